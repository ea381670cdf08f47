//! The process of a storage node.

use std::sync::Arc;

use serde_json::json;
use silt_cluster::nodes::{NodeHolds, NodeServer, NodeServerOptions};
use silt_format::{Error, ErrorKind, NodePlaces};
use silt_terminal::failure::Failure;
use silt_terminal::output;
use siltstone::{Env, Repository};

use crate::group::Group;

/// How often it is seen whether a node has another index.
const REFRESH_NS: u64 = 1_000_000_000;
const PAUSE_NS: u64 = 200_000_000;

/// Answers for storage nodes until the process is stopped.
pub struct NodeProcess<'p> {
    /// The repository of the nodes.
    pub repository: &'p Repository,
    /// The names of nodes.
    pub names: &'p [String],
    /// How it answers.
    pub options: NodeServerOptions,
    /// How it is asked.
    pub group: &'p Group,
    /// Ends the line of progress.
    pub finish_line: &'p dyn Fn(),
    /// Whether it prints messages for programs.
    pub json: bool,
}

/// What is known of a node while its process runs.
struct Answered {
    name: String,
    number: u16,
    server: NodeServer,
    /// Whether it was told that the node is answered for.
    is_told: bool,
    trouble: Option<String>,
}

impl NodeProcess<'_> {
    /// Answers until the process is interrupted.
    pub fn run(self) -> Result<u8, Failure> {
        let mut nodes = Vec::new();
        for name in self.names {
            let all = self.repository.nodes();
            let node = all.iter().find(|node| node.name == *name);
            let number = node.ok_or_else(|| missing(name, all))?.number;
            let (bus, messages) = (self.group.bus(), self.group.messages());
            let server = NodeServer::start(&**bus, messages, number, self.options)?;
            let name = name.clone();
            nodes.push(Answered { name, number, server, is_told: false, trouble: None });
        }
        while !self.is_over() {
            for node in &mut nodes {
                self.refresh(node);
            }
            self.pause();
        }
        for node in &nodes {
            self.tell("node_stopped", node, &node.server.holds());
        }
        Ok(0)
    }

    fn env(&self) -> &Arc<dyn Env> {
        &self.repository.objects.context.env
    }

    fn is_over(&self) -> bool {
        self.env().is_interrupted()
    }

    fn refresh(&self, node: &mut Answered) {
        match node.server.refresh() {
            Ok(holds) => {
                (self.finish_line)();
                if !node.is_told || node.trouble.take().is_some() {
                    self.tell("node_answers", node, &holds);
                }
                node.is_told = true;
            }
            Err(_) if self.is_over() => {}
            Err(error) => note_once(node, &error),
        }
    }

    fn tell(&self, what: &str, node: &Answered, holds: &NodeHolds) {
        let (name, number) = (&node.name, node.number);
        if self.json {
            let value = json!({
                "name": name,
                "number": number,
                "generation": holds.generation,
                "containers": holds.containers,
                "unreadable": holds.unreadable,
                "representatives": holds.representatives,
                "asked": holds.asked,
                "found": holds.found,
            });
            output::message(what, value);
        } else if what == "node_stopped" {
            let asked = output::count(holds.asked, "chunk");
            output::line(&format!("Node {name}: {asked} asked for, {} known.", holds.found));
        } else {
            let containers = output::count(holds.containers, "container");
            let prints = output::count(holds.representatives, "representative");
            output::line(&format!("Answering for node {name}: {containers}, {prints}."));
        }
    }

    fn pause(&self) {
        let mut left_ns = REFRESH_NS;
        while left_ns > 0 && !self.is_over() {
            self.env().sleep_ns(PAUSE_NS);
            left_ns = left_ns.saturating_sub(PAUSE_NS);
        }
    }
}

fn missing(name: &str, all: &[NodePlaces]) -> Error {
    let names: Vec<&str> = all.iter().map(|node| node.name.as_str()).collect();
    let message = if names.is_empty() {
        format!("there is no node '{name}': the repository has no nodes")
    } else {
        format!("there is no node '{name}', but {}", names.join(", "))
    };
    Error::new(ErrorKind::NotFound, message)
}

fn note_once(node: &mut Answered, error: &Error) {
    let text = error.to_string();
    if node.trouble.as_ref() != Some(&text) {
        let name = &node.name;
        output::note(&format!("silt: warning: the process of node {name} knows less: {text}"));
        node.trouble = Some(text);
    }
}
