//! The files and folders that the kernel knows, by their numbers.

use std::collections::HashMap;
use std::sync::Arc;

use super::tree::{Key, Node};

pub const ROOT: u64 = 1;

/// A file or folder that the kernel knows.
struct Held {
    node: Arc<Node>,
    /// Number of replies with this node that the kernel has not forgotten yet.
    lookups: u64,
}

/// The files and folders that the kernel knows. The kernel tells the server when it forgets one.
pub struct Nodes {
    held: HashMap<u64, Held>,
    numbers: HashMap<Key, u64>,
    next: u64,
}

impl Nodes {
    pub fn new() -> Self {
        let root = Held { node: Arc::new(Node::root()), lookups: 1 };
        Self {
            held: HashMap::from([(ROOT, root)]),
            numbers: HashMap::from([(Key::Root, ROOT)]),
            next: ROOT + 1,
        }
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.held.len()
    }

    /// Returns the node with this number.
    pub fn get(&self, number: u64) -> Option<Arc<Node>> {
        self.held.get(&number).map(|held| Arc::clone(&held.node))
    }

    /// Counts a reply with this node, and returns the node's number. A number is never reused.
    pub fn remember(&mut self, node: Node) -> u64 {
        let number = *self.numbers.entry(node.key.clone()).or_insert_with(|| {
            self.next += 1;
            self.next - 1
        });
        let node = Arc::new(node);
        let held = self.held.entry(number);
        let held = held.or_insert_with(|| Held { node: Arc::clone(&node), lookups: 0 });
        held.lookups += 1;
        held.node = node;
        number
    }

    pub fn forget(&mut self, number: u64, lookups: u64) {
        let Some(held) = self.held.get_mut(&number).filter(|_| number != ROOT) else { return };
        held.lookups = held.lookups.saturating_sub(lookups);
        if held.lookups == 0 {
            self.numbers.remove(&held.node.key);
            self.held.remove(&number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_forgotten_is_not_held_and_its_number_is_not_used_again() {
        let mut nodes = Nodes::new();
        let by_id = || Node::new(Key::ById, 0);
        let number = nodes.remember(by_id());
        assert_eq!(nodes.remember(by_id()), number);
        nodes.forget(number, 1);
        assert!(nodes.get(number).is_some() && nodes.count() == 2);
        nodes.forget(number, 1);
        assert!(nodes.get(number).is_none() && nodes.count() == 1);
        assert!(nodes.remember(by_id()) > number);
        nodes.forget(ROOT, 10);
        assert!(nodes.get(ROOT).is_some());
    }
}
