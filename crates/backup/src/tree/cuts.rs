//! How the content of files is cut into chunks and segments.

use silt_chunking::Chunker;
use silt_format::number::to_usize;
use silt_format::tree::{FileChunking, FileKind};
use silt_format::{Chunking, Result, SEGMENT_BYTES};

/// What recipes of trees say of their chunks: they are of any length.
pub(crate) const ANY_LENGTH: Chunking = Chunking::FastCdc { min: 2048, avg: 8192, max: 65_536 };
/// The least size of a segment of a large file whose chunks are content-defined.
const SEGMENT_BYTES_MIN: usize = SEGMENT_BYTES / 2;
/// Files from this size on have segments of fixed size: a list of all others would be too long.
const FIXED_SEGMENTS_FROM: u64 = 64 << 30;

/// A part of a segment that is cut by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) bytes: usize,
    pub(crate) kind: FileKind,
    /// Where the parent had the file's data, as many bytes in one segment.
    pub(crate) held: Option<u64>,
}

/// Chunkers of all kinds of files.
#[derive(Clone)]
pub(crate) struct Cutter {
    /// At the place of each kind's number.
    chunkers: Vec<(Chunking, Chunker)>,
}

impl Cutter {
    pub(crate) fn new(chunking: &FileChunking) -> Result<Self> {
        let chunkers = FileKind::ALL.iter().map(|kind| {
            let chunking = chunking.of(*kind);
            Ok((chunking, Chunker::new(chunking)?))
        });
        Ok(Self { chunkers: chunkers.collect::<Result<_>>()? })
    }

    /// The lengths of a part's chunks, put into `lengths` after clearing it.
    pub(crate) fn cut(&self, data: &[u8], kind: FileKind, lengths: &mut Vec<u32>) {
        self.chunkers[kind.index()].1.cut(data, lengths);
    }

    /// How many of the first bytes of a large file's rest make the next segment. `data` is a full
    /// segment, and the file goes on behind it.
    ///
    /// The segment ends with a chunk: of those that end in its second half, that with the least
    /// hash of its last bytes. So an insertion changes the segments around it, and those behind
    /// are found again.
    pub(crate) fn segment_bytes(&self, data: &[u8], kind: FileKind, file_bytes: u64) -> usize {
        let (chunking, chunker) = &self.chunkers[kind.index()];
        let is_fixed = matches!(chunking, Chunking::Fixed { .. });
        if is_fixed || file_bytes >= FIXED_SEGMENTS_FROM {
            return data.len();
        }
        let mut lengths = Vec::new();
        chunker.cut(data, &mut lengths);
        // The last chunk is cut by the end of the buffer.
        lengths.pop();
        let mut end = 0;
        let mut best: Option<(u64, usize)> = None;
        for length in lengths {
            end += to_usize(u64::from(length));
            if end < SEGMENT_BYTES_MIN {
                continue;
            }
            let candidate = (hash(&data[end - HASHED_BYTES.min(end)..end]), end);
            if best.is_none_or(|best| candidate.0 < best.0) {
                best = Some(candidate);
            }
        }
        best.map_or(data.len(), |(_, end)| end)
    }
}

/// Bytes before the end of a chunk that decide whether a segment ends with it.
const HASHED_BYTES: usize = 64;

/// FNV-1a over words, and SplitMix64's finaliser.
fn hash(bytes: &[u8]) -> u64 {
    let hash = bytes.chunks(8).fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| {
        let mut padded = [0; 8];
        padded[..word.len()].copy_from_slice(word);
        (hash ^ u64::from_le_bytes(padded)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
