//! Brings snapshots of one repository to another.
//!
//! A [`Source`] reads snapshots and describes them; a [`Replica`] takes what its repository lacks.
//! They exchange the messages of docs/PROTOCOL.md: through a [`Connection`] over any stream of
//! bytes, or directly, where one process has both repositories open.

mod connection;
mod direct;
mod init;
mod listen;
mod pace;
mod pinned;
mod replica;
mod source;
mod traffic;
mod transport;

pub use connection::{Connection, Stream, serve};
pub use direct::{Watch, foreign, replicate, replicate_over, replicate_watched};
pub use init::{Answered, answer_init, make_replica};
pub use listen::{ListenOptions, Listener};
pub use replica::{KeepDeltas, Replica};
pub use source::{
    DeltaUse, FrameUse, Outcome, ReplicateOptions, ReplicateReport, SeriesBacklog, SeriesKnown,
    SnapshotOutcome, Source, backlog,
};
pub use traffic::{PhaseBytes, Traffic};
pub use transport::{Destination, Line};
