//! Bytes on a connection, by what they are for.

use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::replica::{ReplicaMessage, SourceMessage};

/// Bytes on a connection in both directions, with everything but what the stream itself adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes that were sent.
    pub sent: PhaseBytes,
    /// Bytes that were received.
    pub received: PhaseBytes,
}

/// Bytes of one direction by the phase of the replication, compressed and sealed as they are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseBytes {
    /// Hellos, and which snapshots are sent and committed.
    pub agreement: u64,
    /// Digests of segments, and which of them are needed.
    pub segments: u64,
    /// Fingerprints of the chunks of needed segments, and which chunks are lacking.
    pub fingerprints: u64,
    /// Chunks that were lacking.
    pub chunks: u64,
    /// Chunks that were lacking, as deltas.
    pub deltas: u64,
    /// Entries of file trees.
    pub entries: u64,
}

impl PhaseBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.agreement
            + self.segments
            + self.fingerprints
            + self.chunks
            + self.deltas
            + self.entries
    }
}

/// What a message is for.
#[derive(Clone, Copy)]
pub(crate) enum Phase {
    Agreement,
    Segments,
    Fingerprints,
    Chunks,
    Deltas,
    Entries,
}

impl From<&SourceMessage> for Phase {
    fn from(message: &SourceMessage) -> Self {
        match message {
            SourceMessage::Segments(_) => Self::Segments,
            SourceMessage::Chunks { .. } => Self::Fingerprints,
            SourceMessage::Data(_) | SourceMessage::Frame(_) => Self::Chunks,
            SourceMessage::Delta(_) => Self::Deltas,
            SourceMessage::Steps(_) => Self::Entries,
            _ => Self::Agreement,
        }
    }
}

impl From<&ReplicaMessage> for Phase {
    fn from(message: &ReplicaMessage) -> Self {
        match message {
            ReplicaMessage::Need(_) => Self::Segments,
            ReplicaMessage::Want { .. } => Self::Fingerprints,
            ReplicaMessage::Placed { .. } => Self::Chunks,
            _ => Self::Agreement,
        }
    }
}

/// Counts the bytes of one direction.
#[derive(Default)]
pub(crate) struct Counter([AtomicU64; 6]);

impl Counter {
    pub fn add(&self, phase: Phase, bytes: u64) {
        self.0[phase as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn bytes(&self) -> PhaseBytes {
        let [agreement, segments, fingerprints, chunks, deltas, entries] =
            self.0.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        PhaseBytes { agreement, segments, fingerprints, chunks, deltas, entries }
    }
}
