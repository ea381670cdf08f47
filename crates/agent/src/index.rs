//! The part of the shared index that an agent holds in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use silt_cluster::index::IndexServer;
use silt_cluster::{Agent, Bus, IndexStatus, Messages, Name};
use silt_format::Error;
use silt_terminal::output;
use siltstone::Env;

const SECOND_NS: u64 = 1_000_000_000;
/// How often it is seen whether the shared store has another index.
const REFRESH_NS: i64 = 30 * 1_000_000_000;

/// Holding a part of the shared index, from a thread of its own while the bus is reached.
pub struct Holding<'h> {
    pub agent: &'h Agent,
    pub env: &'h Arc<dyn Env>,
    pub memory_bytes: u64,
}

impl Holding<'_> {
    /// Answers questions until the bus is given up.
    pub fn run(&self, bus: &Arc<dyn Bus>, messages: &Messages, is_over: &AtomicBool) {
        let mut told = None;
        while !is_over.load(Ordering::Relaxed) && !self.env.is_interrupted() {
            if let Err(error) = self.hold(bus, messages, is_over) {
                let text = error.to_string();
                if told.as_ref() != Some(&text) {
                    output::note(&format!(
                        "silt: warning: this agent cannot hold the shared index in memory: {text}"
                    ));
                    told = Some(text);
                }
            }
            self.agent.set_index(None);
            self.pause(REFRESH_NS, is_over, || false);
        }
        self.agent.set_index(None);
    }

    fn hold(
        &self,
        bus: &Arc<dyn Bus>,
        messages: &Messages,
        is_over: &AtomicBool,
    ) -> Result<(), Error> {
        // What a key says that does not read data, nobody believes.
        if !messages.are_believed()? {
            return Ok(());
        }
        let name = self.agent.name();
        let server = IndexServer::start(&**bus, messages, name.clone(), self.memory_bytes)?;
        while !is_over.load(Ordering::Relaxed) && !self.env.is_interrupted() {
            self.agent.set_index(Some(server.status()));
            let hosts = self.agent.index_hosts();
            // Before the director knows of it, and if there are enough others, it holds none.
            let holders: &[Name] = if hosts.contains(&name) { &hosts } else { &[] };
            server.refresh(holders)?;
            let status = server.status();
            self.agent.set_index(Some(status));
            self.pause(REFRESH_NS, is_over, || {
                // What was asked meanwhile.
                self.agent.set_index(Some(server.status()));
                self.agent.index_hosts() != hosts
            });
        }
        Ok(())
    }

    /// Waits, unless something is to be done before.
    fn pause(&self, ns: i64, is_over: &AtomicBool, is_to_do: impl Fn() -> bool) {
        let until_ns = self.env.now_ns().saturating_add(ns);
        while self.env.now_ns() < until_ns
            && !is_over.load(Ordering::Relaxed)
            && !self.env.is_interrupted()
            && !is_to_do()
        {
            self.env.sleep_ns(SECOND_NS);
        }
    }
}

/// What a status says of it, in a few words.
pub fn shown(index: Option<&IndexStatus>) -> String {
    index.map_or_else(|| "-".to_owned(), |it| output::bytes(it.used_bytes))
}
