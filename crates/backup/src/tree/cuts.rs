//! Cutting the content of files into chunks and segments.

use silt_chunking::Chunker;
use silt_format::number::to_usize;
use silt_format::tree::{FileChunking, FileKind};
use silt_format::{Chunking, Result, SEGMENT_BYTES};

/// The chunking that is recorded for the volume of a tree. Its recipes store the length of each
/// chunk, as every kind of file has a chunking of its own.
pub(crate) const ANY_LENGTH: Chunking = Chunking::FastCdc { min: 2048, avg: 8192, max: 65_536 };
/// Minimum size of a segment of a large file with content-defined chunks, except its last one.
const SEGMENT_BYTES_MIN: usize = SEGMENT_BYTES / 2;
/// Files of at least this size get segments of fixed size. Each content-defined segment is an
/// extent of its own, and the list of extents would be too long.
const FIXED_SEGMENTS_FROM: u64 = 64 << 30;

/// A part of a segment that is cut into chunks by itself: the data of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) bytes: usize,
    pub(crate) kind: FileKind,
    /// The address of the file's data in the parent, if that is one piece of the same size.
    pub(crate) held: Option<u64>,
}

/// The chunkers of all kinds of files.
#[derive(Clone)]
pub(crate) struct Cutter {
    /// Indexed by the number of the kind.
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

    /// Cuts the data of a file of this kind; sets `lengths` to the lengths of its chunks in bytes.
    pub(crate) fn cut(&self, data: &[u8], kind: FileKind, lengths: &mut Vec<u32>) {
        self.chunkers[kind.index()].1.cut(data, lengths);
    }

    /// Returns the length in bytes of the next segment of a large file. `data` is a full segment
    /// from its start on, and the file continues after it.
    ///
    /// Of the chunks that end in the second half of `data`, the segment ends after the one with the
    /// smallest hash of its last bytes. So an insertion changes only nearby segments; later ones
    /// are cut as before.
    pub(crate) fn segment_bytes(&self, data: &[u8], kind: FileKind, file_bytes: u64) -> usize {
        let (chunking, chunker) = &self.chunkers[kind.index()];
        let is_fixed = matches!(chunking, Chunking::Fixed { .. });
        if is_fixed || file_bytes >= FIXED_SEGMENTS_FROM {
            return data.len();
        }
        let mut lengths = Vec::new();
        chunker.cut(data, &mut lengths);
        // The last chunk ends at the end of the buffer, not at a cut that depends on its content.
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

/// Number of bytes at the end of a chunk that decide whether a segment ends with it.
const HASHED_BYTES: usize = 64;

/// Returns FNV-1a over 64-bit words, mixed by the finaliser of SplitMix64.
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
