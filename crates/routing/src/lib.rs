//! Storage nodes that deduplicate inside of themselves, and the schemes that choose between them.
//!
//! A [`Cutter`] groups the chunks of one application's stream into a [`Piece`]: a super-chunk, a
//! file or a chunk. A [`Router`] chooses a node for it, by answers that it asks of nodes through
//! [`Answers`]. A [`Node`] finds which chunks of the piece it has. [`Cluster`] connects them in one
//! process and counts the questions; messages between processes can take its place.
//!
//! Routing is a hint. A wrong choice costs deduplication, never data.

#![expect(clippy::cast_precision_loss, reason = "loads are compared, and are below 2^52 bytes")]

mod bins;
mod cache;
mod cluster;
mod director;
mod domain;
mod node;
mod options;
mod piece;
mod placement;
mod print;
mod router;
mod schemes;
#[cfg(test)]
mod tests;

pub use cluster::{Cluster, Questions};
pub use director::Director;
pub use node::Node;
pub use options::{Domains, Lookup, NodeOptions, Stored};
pub use piece::{Application, Chunk, Cutter, Grain, Piece, SuperChunks, handprint};
pub use placement::{Placement, Ring};
pub use print::{Print, PrintMap, PrintSet, mix};
pub use router::{Answers, Router};
pub use schemes::{
    AppAware, AppDedupe, ExactDht, ExtremeBinning, Feature, Produck, Sigma, Stateful, Stateless,
};
