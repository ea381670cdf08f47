//! How a backup is made.

use silt_format::{Chunking, SIGNATURES};

/// The VM-centric scheme's number of similar segments.
const SIMILAR_SEGMENTS: usize = 10;

/// How a backup is made.
#[derive(Clone, Debug, Default)]
pub struct BackupOptions {
    /// Labels of the snapshot.
    pub tags: Vec<String>,
    /// How to cut segments; by default as the repository's configuration says.
    pub chunking: Option<Chunking>,
    /// How many threads read, scan and compress; 0 for two more than cores.
    pub jobs: usize,
    /// Bytes of memory to work with, 0 for what the context says.
    pub memory_bytes: u64,
    /// Read and deduplicate as if the series had no snapshot.
    pub no_parent: bool,
    /// Make the series one that shares nothing with others, if it is new.
    pub no_share: bool,
    /// Where duplicates are looked for.
    pub detection: DetectionOptions,
    /// The program's name and version, for the record.
    pub program: String,
}

/// Where a backup looks for the chunks of a segment that has changed. A level that is off finds
/// nothing: the backup takes less memory and reads less, and stores more.
///
/// [`Volume::levels`](silt_format::Volume::levels) says how many bytes each level has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DetectionOptions {
    /// Look in the parent's segment at the same offset.
    pub same_offset: bool,
    /// Look among the chunks that this backup placed last.
    pub recent: bool,
    /// By how many signatures similar segments are found, at most eight. With 0 none are, and
    /// containers of an interrupted backup are not used.
    pub similar_signatures: usize,
    /// In how many similar segments to look, those with most signatures in common first. No more
    /// than 96 are ever found.
    pub similar_segments: usize,
    /// Look in the shared store.
    pub shared: bool,
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
        }
    }
}
