//! The border between schemes and nodes.

use crate::piece::{Application, Grain, Piece};
use crate::print::Print;

/// What nodes answer to a router.
pub trait Answers {
    /// How many nodes there are. They are numbered from 0.
    fn nodes(&self) -> usize;
    /// Bytes that a node has stored. Nodes report them; asking costs no look-up.
    fn used_bytes(&self, node: usize) -> u64;
    /// How many of these representatives a node's similarity index has.
    fn similar(&self, node: usize, application: Application, handprint: &[Print]) -> usize;
    /// How many of these fingerprints a node has.
    fn known(&self, node: usize, sample: &[Print]) -> usize;
}

/// A scheme that chooses the node of a piece.
pub trait Router {
    /// What the scheme routes as one.
    fn grain(&self) -> Grain;
    /// The node that a piece goes to: less than `answers.nodes()`.
    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize;
}

/// The node that has stored least, and of several the first; 0 if there is none.
pub(crate) fn least_loaded(nodes: impl Iterator<Item = usize>, answers: &dyn Answers) -> usize {
    nodes.min_by_key(|node| (answers.used_bytes(*node), *node)).unwrap_or(0)
}

/// The mean of what nodes have stored, in bytes, and at least 1.
pub(crate) fn mean_bytes(nodes: &[usize], answers: &dyn Answers) -> f64 {
    let sum: u64 = nodes.iter().map(|node| answers.used_bytes(*node)).sum();
    (sum as f64 / nodes.len().max(1) as f64).max(1.0)
}
