//! A process beside a storage node: says from memory what the node has.
//!
//! As AppDedupe's node does, it holds a similarity index: the representatives of the super-chunks
//! that its containers hold. A representative that is asked for brings the directory of a whole
//! container into memory, where the chunks around it are found. Each application has a table and
//! locks of its own. What is not found there is looked
//! for in the node's index in the storage, unless an approximate answer is enough.
//!
//! An answer is a hint: references that the node's head, as the asking host has read it, does not
//! allow are dropped, and no answer means that the host reads the index itself. So a process that
//! is late, stopped or lying about its own node costs duplicates at most. Questions and answers are
//! sealed and signed.

mod client;
mod domains;
mod messages;
mod server;
mod similar;

pub use client::NodeClient;
pub use server::{NodeHolds, NodeServer, NodeServerOptions};

use silt_format::Result;

use crate::Name;

/// The most fingerprints or handprints of a question.
const ASKED_MAX: usize = 8192;

/// The service by which the process of a node answers.
fn service_of(node: u16) -> Result<Name> {
    Name::new(format!("node-{node}"))
}

/// The number that questions to a node are sealed with.
fn number_of(node: u16) -> u64 {
    0x5349_4c54_4e4f_0000 | u64::from(node)
}
