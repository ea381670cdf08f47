//! Those who may know sooner than the storage tells where chunks of stores are that several series
//! use.

use std::fmt;

use silt_format::{Fingerprint, Reference};

/// Knows the places of chunks in the shared store.
pub trait SharedPlaces: fmt::Debug + Send + Sync {
    /// The places of chunks by fingerprint and length in bytes, `None` where it knows none. A
    /// backup uses only those that the shared store's head allows.
    ///
    /// Returns `None` if the index in the storage is to be used instead.
    fn find(&self, wanted: &[(Fingerprint, u32)]) -> Option<Vec<Option<Reference>>>;
}

/// Knows what storage nodes have: the way to a process beside each node.
///
/// Each question is about one application, by its number in the nodes' heads, and several nodes, by
/// theirs. The answers come in the same order; `None` says that the node's index in the storage is
/// to be used instead.
pub trait NodeAnswers: fmt::Debug + Send + Sync {
    /// How many representatives of each handprint a node has. A handprint is the eight smallest
    /// fingerprints of a super-chunk, by their first eight bytes.
    fn similar(&self, application: u16, asked: &[(u16, Vec<Vec<u64>>)]) -> Vec<Option<Vec<usize>>>;

    /// The places of chunks in a node, by fingerprint and length in bytes, `None` where it knows
    /// none. They come in the order of their volume. A backup uses only places that the node's
    /// head allows.
    fn find(
        &self,
        application: u16,
        asked: &[(u16, Vec<Wanted>)],
    ) -> Vec<Option<Vec<Option<Reference>>>>;
}

/// Representatives that a process beside a node holds of a super-chunk as it lies in a container.
/// Backups ask for eight, of which the smallest are these: what both have in common is found nearly
/// as often, for half the memory.
pub const HELD_REPRESENTATIVES: usize = 4;

/// A chunk that is looked up: its fingerprint, and its length in bytes.
pub type Wanted = (Fingerprint, u32);
