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

    /// Cuts the data of files that share a segment. Returns the lengths of their chunks in bytes:
    /// `known`, unless that is empty.
    pub(crate) fn cut(&self, data: &[u8], cuts: &[Cut], known: Vec<u32>) -> Vec<u32> {
        if !known.is_empty() {
            return known;
        }
        let (mut all, mut lengths, mut start) = (known, Vec::new(), 0);
        for cut in cuts {
            let file = &data[start..start + cut.bytes];
            self.chunkers[cut.kind.index()].1.cut(file, &mut lengths);
            all.append(&mut lengths);
            start += cut.bytes;
        }
        all
    }

    /// Returns the length in bytes of the next segment of a large file. `data` is a full segment
    /// from its start on, and the file continues after it. Sets `lengths` to the lengths of the
    /// segment's chunks in bytes, or to nothing if it did not have to cut it.
    ///
    /// Of the chunks that end in the second half of `data`, the segment ends after the one with the
    /// smallest hash of its last bytes. So an insertion changes only nearby segments; later ones
    /// are cut as before.
    pub(crate) fn segment_bytes(
        &self,
        data: &[u8],
        (kind, file_bytes): (FileKind, u64),
        lengths: &mut Vec<u32>,
    ) -> usize {
        lengths.clear();
        let (chunking, chunker) = &self.chunkers[kind.index()];
        let is_fixed = matches!(chunking, Chunking::Fixed { .. });
        if is_fixed || file_bytes >= FIXED_SEGMENTS_FROM {
            return data.len();
        }
        chunker.cut(data, lengths);
        let (mut end, mut best) = (0, None);
        // The last chunk ends at the end of the buffer, not at a cut that depends on its content.
        for (number, length) in lengths.iter().enumerate().take(lengths.len().saturating_sub(1)) {
            end += to_usize(u64::from(*length));
            if end < SEGMENT_BYTES_MIN {
                continue;
            }
            let candidate = (hash(&data[end - HASHED_BYTES.min(end)..end]), end, number + 1);
            if best.is_none_or(|best: (u64, usize, usize)| candidate.0 < best.0) {
                best = Some(candidate);
            }
        }
        best.map_or(data.len(), |(_, end, chunks)| {
            lengths.truncate(chunks);
            end
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes without structure.
    fn noise(seed: u64) -> Vec<u8> {
        let words = (1_u64..).map(|number| hash(&(number << 8 | seed).to_le_bytes()).to_le_bytes());
        words.flatten().take(SEGMENT_BYTES).collect()
    }

    #[test]
    fn the_chunks_of_a_shortened_segment_are_those_of_cutting_it_again() -> Result<()> {
        let cutter = Cutter::new(&FileChunking::default())?;
        let zeros = vec![0; SEGMENT_BYTES];
        for data in (0..8).map(noise).chain([zeros]) {
            let (kind, mut lengths) = (FileKind::Executable, vec![1]);
            let bytes = cutter.segment_bytes(&data, (kind, 4 << 20), &mut lengths);
            assert!((SEGMENT_BYTES_MIN..=SEGMENT_BYTES).contains(&bytes));
            let cuts = [Cut { bytes, kind, held: None }];
            assert_eq!(cutter.cut(&data[..bytes], &cuts, Vec::new()), lengths);
            assert_eq!(cutter.cut(&[], &cuts, lengths.clone()), lengths);
        }
        Ok(())
    }

    #[test]
    fn a_segment_of_fixed_size_is_not_cut_in_advance() -> Result<()> {
        let cutter = Cutter::new(&FileChunking::default())?;
        for of_file in [(FileKind::Database, 4 << 20), (FileKind::Text, FIXED_SEGMENTS_FROM)] {
            let mut lengths = vec![1];
            let bytes = cutter.segment_bytes(&noise(1), of_file, &mut lengths);
            assert_eq!((bytes, lengths.len()), (SEGMENT_BYTES, 0));
        }
        Ok(())
    }
}
