//! Nodes in one process, and what is asked of them.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::node::Node;
use crate::options::{NodeOptions, Stored};
use crate::piece::{Application, Piece};
use crate::print::Print;
use crate::router::{Answers, Router};

/// What routers have asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Questions {
    /// Questions to a node.
    pub messages: u64,
    /// Fingerprints in these questions.
    pub prints: u64,
}

/// Nodes that are called directly.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    messages: AtomicU64,
    prints: AtomicU64,
}

impl Cluster {
    /// `count` empty nodes; at least 1.
    pub fn new(count: usize, options: NodeOptions) -> Self {
        assert!(count > 0, "a cluster has a node");
        let nodes = (0..count).map(|_| Node::new(options)).collect();
        Self { nodes, messages: AtomicU64::new(0), prints: AtomicU64::new(0) }
    }

    /// Routes a piece, and stores it where the router says. Returns the node, and what was new.
    pub fn back_up(&self, router: &mut dyn Router, piece: &Piece) -> (usize, Stored) {
        let node = router.route(piece, self);
        assert!(node < self.nodes.len(), "a router names a node that exists");
        (node, self.nodes[node].store(piece))
    }

    /// The nodes.
    pub fn all(&self) -> &[Node] {
        &self.nodes
    }

    /// What routers have asked so far.
    pub fn questions(&self) -> Questions {
        Questions {
            messages: self.messages.load(Ordering::Relaxed),
            prints: self.prints.load(Ordering::Relaxed),
        }
    }

    fn count(&self, prints: usize) {
        self.messages.fetch_add(1, Ordering::Relaxed);
        self.prints.fetch_add(prints as u64, Ordering::Relaxed);
    }
}

impl Answers for Cluster {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn used_bytes(&self, node: usize) -> u64 {
        self.nodes[node].used_bytes()
    }

    fn similar(&self, node: usize, application: Application, handprint: &[Print]) -> usize {
        self.count(handprint.len());
        self.nodes[node].similar(application, handprint)
    }

    fn known(&self, node: usize, sample: &[Print]) -> usize {
        self.count(sample.len());
        self.nodes[node].known(sample)
    }
}
