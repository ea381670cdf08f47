//! The messages of replication: what a source and a replica say to each other.
//!
//! docs/PROTOCOL.md specifies them. Every message is a kind `u8` and a body. A peer is not trusted:
//! decoders check every count and length before they allocate memory.

mod hello;
mod init;
mod source;
mod tree;
mod wanted;

pub use hello::{
    DELTA_VERSION, HELLO_BYTES, Hello, PROTOCOL_VERSION, Role as ReplicaRole, SESSION_TAG_BYTES,
    SessionKeys, transport_seed,
};
pub use init::{
    INIT_BODY_BYTES_MAX, INIT_HEADER_BYTES, INIT_OBJECTS_MAX, INIT_VERSION, InitMessage,
};
pub use source::{Begin, ChunkDelta, DeltaBase, Described, SourceMessage};
pub use tree::TreeStep;
pub use wanted::{KnownSnapshot, ReplicaMessage, Span};

/// Maximum size of a message in bytes.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of segments in a message.
pub const SEGMENTS_PER_MESSAGE_MAX: usize = 4096;
/// Maximum number of snapshots of a series that a replica lists.
pub const KNOWN_SNAPSHOTS_MAX: usize = 1 << 17;

/// Maximum size of the chunks of a delta in bytes.
pub const DELTA_BYTES_MAX: u32 = 4 << 20;
/// Maximum size of the base of a delta in bytes.
pub const DELTA_BASE_BYTES_MAX: u32 = 8 << 20;
/// Maximum number of ranges that a base has.
pub const DELTA_BASES_MAX: usize = 512;

use crate::codec::{Decoder, Encoder};
use crate::{Id, RepositoryId, Result};

/// The snapshot of which another one is a copy: in the repository where the backup was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The repository in which the backup was made.
    pub repository: RepositoryId,
    /// The snapshot's id there.
    pub snapshot: Id,
}

/// Encoded size of an origin in bytes.
pub(crate) const ORIGIN_BYTES: usize = 24;

impl Origin {
    pub(crate) fn encode(&self, to: &mut Encoder) {
        to.raw(&self.repository.0);
        to.u64(self.snapshot.0);
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        Ok(Self { repository: RepositoryId(from.array()?), snapshot: Id(from.u64()?) })
    }
}
