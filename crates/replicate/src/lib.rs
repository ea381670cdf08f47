//! Brings snapshots of one repository to another.
//!
//! A [`Source`] reads snapshots and describes them; a [`Replica`] takes what its repository lacks.
//! They exchange the messages of docs/PROTOCOL.md: through a [`Connection`] over any stream of
//! bytes, or directly, where one process has both repositories open.

mod connection;
mod direct;
mod replica;
mod source;

pub use connection::{Connection, Traffic, serve};
pub use direct::{replicate, replicate_over};
pub use replica::Replica;
pub use source::{Outcome, ReplicateOptions, ReplicateReport, SnapshotOutcome, Source};
