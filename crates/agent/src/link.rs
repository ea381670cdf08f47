//! The way to the bus: connecting to it, and being on it for as long as the agent runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use silt_cluster::{Agent, Bus, Messages, Name, NatsBus, NatsOptions};
use silt_terminal::failure::Failure;
use silt_terminal::secrets;
use siltstone::{Env, Repository};

use crate::index::Holding;
use crate::settings::BusSettings;
use crate::tell::Teller;

const SECOND_NS: u64 = 1_000_000_000;
/// Between two attempts to open the repository, or to connect, the first time; each next pause is
/// twice as long, up to the longest.
const PAUSE_NS: u64 = 5 * SECOND_NS;
const PAUSE_NS_MAX: u64 = 300 * SECOND_NS;
/// After this long without the bus, the agent connects anew: the password may be another one.
const ANEW_NS: i64 = 300 * 1_000_000_000;

/// Opens the repository.
pub type Open<'o> = &'o (dyn Fn() -> Result<Repository, Failure> + Sync);

/// How a bus is reached as this member.
pub fn options(bus: &BusSettings, member: Name) -> Result<NatsOptions, Failure> {
    let user = match (&bus.user, &bus.password_file) {
        (Some(user), Some(file)) => {
            let password = String::from_utf8(secrets::of_file(file)?);
            let password = password.map_err(|_| {
                Failure::Usage("the password of the bus has characters that are no text".to_owned())
            })?;
            Some((user.clone(), password))
        }
        _ => None,
    };
    Ok(NatsOptions {
        servers: bus.servers.clone(),
        user,
        certificates: bus.certificates.clone(),
        identity: bus.certificate.clone().zip(bus.key.clone()),
        tls_first: bus.tls_first,
        replicas: bus.replicas.unwrap_or(1),
        ..NatsOptions::new(String::new(), member)
    })
}

/// Connects to a bus.
pub fn connect(
    bus: &BusSettings,
    member: &Name,
    env: &Arc<dyn Env>,
) -> Result<Arc<dyn Bus>, Failure> {
    let options = options(bus, member.clone())?;
    let connected = NatsBus::connect(options, Arc::clone(env))
        .map_err(|error| error.context(format!("reach the bus at {}", bus.servers.join(", "))))?;
    Ok(Arc::new(connected))
}

/// Whether the bus is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// It was not tried yet.
    #[default]
    New,
    /// It is.
    Up,
    /// It is not.
    Down,
}

/// Being on the bus, from a thread of its own: what it waits for delays no backup.
pub struct Link<'l> {
    pub agent: &'l Agent,
    pub env: &'l Arc<dyn Env>,
    pub open: Open<'l>,
    pub connect: &'l (dyn Fn() -> Result<Arc<dyn Bus>, Failure> + Sync),
    pub teller: Teller,
    pub state: Mutex<LinkState>,
    /// Memory for a part of the shared index, in bytes.
    pub index_memory: u64,
}

impl Link<'_> {
    /// Is on the bus until the process ends.
    pub fn run(&self) {
        let opened = self.try_until_done(|| Ok(Messages::new(&(self.open)()?.objects)));
        let Some(messages) = opened else { return };
        while !self.env.is_interrupted() {
            let Some(bus) = self.try_until_done(self.connect) else { return };
            let is_over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                if self.index_memory > 0 {
                    let (agent, env, memory_bytes) = (self.agent, self.env, self.index_memory);
                    let holding = Holding { agent, env, memory_bytes };
                    let (bus, messages, is_over) = (&bus, &messages, &is_over);
                    scope.spawn(move || holding.run(bus, messages, is_over));
                }
                self.meet(&bus, &messages);
                is_over.store(true, Ordering::Relaxed);
            });
        }
    }

    /// Whether the bus is reached.
    pub fn state(&self) -> LinkState {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries until it is done or the process ends.
    fn try_until_done<T>(&self, attempt: impl Fn() -> Result<T, Failure>) -> Option<T> {
        let mut pause_ns = PAUSE_NS;
        while !self.env.is_interrupted() {
            match attempt() {
                Ok(done) => return Some(done),
                Err(failure) => self.note(Some(&failure.to_string())),
            }
            self.env.sleep_ns(pause_ns);
            pause_ns = (2 * pause_ns).min(PAUSE_NS_MAX);
        }
        None
    }

    /// Meets the others on this bus until the process ends or the bus is away for long.
    fn meet(&self, bus: &Arc<dyn Bus>, messages: &Messages) {
        let mut away_since_ns = None;
        while !self.env.is_interrupted() {
            let now_ns = self.env.now_ns();
            match self.agent.meet(bus, messages) {
                Ok(()) => {
                    away_since_ns = None;
                    self.note(None);
                }
                Err(error) => {
                    let since_ns = *away_since_ns.get_or_insert(now_ns);
                    self.note(Some(&error.to_string()));
                    if !(0..ANEW_NS).contains(&(now_ns - since_ns)) {
                        return;
                    }
                }
            }
            self.env.sleep_ns(SECOND_NS);
        }
        self.agent.leave(bus);
    }

    /// Tells when the bus is lost and when it is back, once each.
    fn note(&self, trouble: Option<&str>) {
        let new = if trouble.is_some() { LinkState::Down } else { LinkState::Up };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *state, new) != new {
            self.teller.bus(trouble);
        }
    }
}

#[cfg(test)]
mod tests;
