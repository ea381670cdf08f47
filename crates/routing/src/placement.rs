//! Functions from a fingerprint to a node.

use crate::print::{Print, mix, remainder};

/// How a fingerprint names one of a list of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Rendezvous hashing: the node with the highest hash of node and fingerprint. A node that is
    /// added takes an equal share from each other node, and nothing else moves.
    Rendezvous,
    /// The fingerprint modulo the number of nodes (Sigma-Dedupe). Almost everything moves when a
    /// node is added.
    Modulo,
}

impl Placement {
    /// The node of `nodes` for a fingerprint, or `None` if there are no nodes.
    pub fn node(self, print: Print, nodes: &[usize]) -> Option<usize> {
        match self {
            Self::Rendezvous => {
                let score = |node: &usize| mix(print ^ mix(*node as u64));
                nodes.iter().copied().max_by_key(score)
            }
            Self::Modulo if nodes.is_empty() => None,
            Self::Modulo => nodes.get(remainder(mix(print), nodes.len())).copied(),
        }
    }

    /// The different nodes that a handprint names, in the order in which it names them.
    pub fn candidates(self, handprint: &[Print], nodes: &[usize]) -> Vec<usize> {
        let mut found = Vec::with_capacity(handprint.len());
        for node in handprint.iter().filter_map(|print| self.node(*print, nodes)) {
            if !found.contains(&node) {
                found.push(node);
            }
        }
        found
    }
}

/// A ring of consistent hashing on which each node has some places (tokens).
#[derive(Clone, Debug)]
pub struct Ring(Vec<(u64, usize)>);

impl Ring {
    /// A ring of `nodes` nodes with `tokens` places each; both are at least 1.
    pub fn new(nodes: usize, tokens: usize) -> Self {
        assert!(nodes > 0 && tokens > 0, "a ring has places");
        let place = |node: usize, token: usize| mix(mix(node as u64) ^ token as u64);
        let each = |node| (0..tokens).map(move |token| (place(node, token), node));
        let mut places: Vec<(u64, usize)> = (0..nodes).flat_map(each).collect();
        places.sort_unstable();
        Self(places)
    }

    /// The node of the first place at or behind a fingerprint.
    pub fn node(&self, print: Print) -> usize {
        let next = self.0.partition_point(|place| place.0 < print);
        self.0[next % self.0.len()].1
    }
}
