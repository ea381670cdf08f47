//! Options of a backup.

use std::sync::Arc;

use silt_format::{Chunking, SIGNATURES};

use crate::described::Taken;
use crate::places::{NodeAnswers, SharedPlaces};

/// The VM-centric scheme's number of similar segments.
const SIMILAR_SEGMENTS: usize = 10;

/// Options of a backup.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// Labels of the snapshot.
    pub tags: Vec<String>,
    /// The chunking of segments; by default that of the repository's configuration.
    pub chunking: Option<Chunking>,
    /// Number of threads that read, scan and compress; 0 for two more than cores, and for trees
    /// one more.
    pub jobs: usize,
    /// Memory limit in bytes; 0 stands for the context's limit.
    pub memory_bytes: u64,
    /// Read and deduplicate as if the series had no snapshot.
    pub no_parent: bool,
    /// A snapshot of this time or later, in nanoseconds since 1970, makes this backup needless,
    /// unless it is dated more than ten minutes ahead of the clock.
    pub due_since_ns: Option<i64>,
    /// Make the series one that shares nothing with others, if it is new.
    pub no_share: bool,
    /// The levels that look for duplicates.
    pub detection: DetectionOptions,
    /// The program's name and version, for the record.
    pub program: String,
    /// The circumstances of a snapshot that was taken elsewhere or earlier.
    pub taken: Taken,
    /// Who looks chunks up in the shared store, in place of its index in the storage.
    pub places: Option<Arc<dyn SharedPlaces>>,
    /// Who knows what storage nodes have, in place of their indexes in the storage.
    pub node_answers: Option<Arc<dyn NodeAnswers>>,
}

/// The levels that look for the chunks of a changed segment. If a level is off, the backup uses
/// less memory and reads less, and stores more.
///
/// [`Volume::levels`](silt_format::Volume::levels) holds the bytes that each level has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectionOptions {
    /// Look in the parent's segment at the same offset.
    pub same_offset: bool,
    /// Look among the chunks that this backup placed last.
    pub recent: bool,
    /// Number of signatures by which similar segments are found, at most eight. With 0, similar
    /// segments and containers of an interrupted backup are not used.
    pub similar_signatures: usize,
    /// Maximum number of similar segments to search; those with the most equal signatures come
    /// first. At most 96 are found.
    pub similar_segments: usize,
    /// Look in the shared store.
    pub shared: bool,
    /// Look in the storage nodes, and store new chunks there, if the repository has any.
    pub nodes: bool,
}

impl Default for DetectionOptions {
    /// All levels, eight signatures, ten similar segments.
    fn default() -> Self {
        Self {
            same_offset: true,
            recent: true,
            similar_signatures: SIGNATURES,
            similar_segments: SIMILAR_SEGMENTS,
            shared: true,
            nodes: true,
        }
    }
}
