//! The results of a scan for segments that differ from the parent, kept in a temporary file, so
//! that the following backup reads only data that it will store.
//!
//! A record is only a hint (I-6): bytes are stored under the fingerprint that they have when they
//! are read, and a segment that has changed since the scan is read and scanned as a whole.

mod blocks;
#[cfg(test)]
mod tests;
mod trees;

pub use trees::{ReadFiles, TreeSurvey};
pub(crate) use trees::{RecordedTree, TreeRecorder};

use std::ops::Range;

use silt_format::number::{to_u32, to_u64};
use silt_format::{Error, Fingerprint, Level, Reference, Result, SegmentDigest};
use silt_repository::event::Warning;
use silt_repository::temporary::TemporaryFile;
use silt_source::VolumeSource;

use self::blocks::{BlockReader, BlockWriter, Blocks};
use super::scan::{DraftChunk, ScanBuffers, Scanner, SegmentDraft};

/// Chunks with at most this many bytes between them are read by one request.
const GAP_BYTES: usize = 64 << 10;
/// The two highest bits of a chunk's length hold the result of the scan.
const KIND_SHIFT: u32 = 30;

/// The result of the scan for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Zero,
    /// The series has the chunk.
    InSeries,
    /// The series does not have the chunk. The shared store may have it.
    New,
}

#[derive(Debug)]
struct RecordedChunk {
    length: u32,
    fingerprint: Fingerprint,
    seen: Seen,
}

/// A segment as the scan saw it.
#[derive(Debug)]
pub struct RecordedSegment {
    index: u64,
    digest: SegmentDigest,
    /// Empty if the segment was all zeros.
    chunks: Vec<RecordedChunk>,
}

impl RecordedSegment {
    pub fn is_zero(&self) -> bool {
        self.chunks.is_empty()
    }

    fn encode(index: u64, digest: SegmentDigest, chunks: &[DraftChunk], to: &mut Vec<u8>) {
        to.extend_from_slice(&index.to_le_bytes());
        to.push(digest.kind);
        to.extend_from_slice(&digest.bytes);
        to.extend_from_slice(&to_u32(chunks.len()).to_le_bytes());
        for chunk in chunks {
            let kind = match chunk.found {
                Some((_, Level::Zero)) => 0_u32,
                // The backup searches the shared store again: it may have changed by then.
                None | Some((_, Level::Shared)) => 2,
                Some(_) => 1,
            };
            let length = to_u32(chunk.range.len()) | kind << KIND_SHIFT;
            to.extend_from_slice(&length.to_le_bytes());
            to.extend_from_slice(&chunk.fingerprint.0);
        }
    }

    fn decode(from: &mut &[u8]) -> Option<Self> {
        let index = u64::from_le_bytes(*array(from)?);
        let [kind] = *array(from)?;
        let digest = SegmentDigest { kind, bytes: *array(from)? };
        let count = u32::from_le_bytes(*array(from)?);
        let chunk = |from: &mut &[u8]| {
            let length = u32::from_le_bytes(*array(from)?);
            let fingerprint = Fingerprint(*array(from)?);
            let seen = match length >> KIND_SHIFT {
                0 => Seen::Zero,
                1 => Seen::InSeries,
                _ => Seen::New,
            };
            Some(RecordedChunk { length: length & ((1 << KIND_SHIFT) - 1), fingerprint, seen })
        };
        let chunks = (0..count).map(|_| chunk(from)).collect::<Option<_>>()?;
        Some(Self { index, digest, chunks })
    }
}

fn array<'b, const N: usize>(from: &mut &'b [u8]) -> Option<&'b [u8; N]> {
    let (first, rest) = from.split_first_chunk()?;
    *from = rest;
    Some(first)
}

/// Writes the record of one volume's scan. One file may hold the records of several volumes.
pub struct ScanRecorder<'f>(BlockWriter<'f>);

impl<'f> ScanRecorder<'f> {
    /// Starts a record at the end of `file`.
    pub fn new(file: &'f mut TemporaryFile) -> Self {
        Self(BlockWriter::new(file))
    }

    /// Adds a segment. Numbers of segments must ascend.
    pub fn push(&mut self, draft: &SegmentDraft) -> Result<()> {
        self.add(draft.index, draft.digest, &draft.chunks)
    }

    /// Adds a segment of zeros.
    pub fn zeros(&mut self, index: u64) -> Result<()> {
        self.add(index, SegmentDigest { kind: 0, bytes: [0; 16] }, &[])
    }

    fn add(&mut self, index: u64, digest: SegmentDigest, chunks: &[DraftChunk]) -> Result<()> {
        RecordedSegment::encode(index, digest, chunks, &mut self.0.buffer);
        self.0.end_record()
    }

    /// Ends the record of a volume.
    pub fn finish(self) -> Result<RecordedScan> {
        Ok(RecordedScan(self.0.finish()?))
    }
}

/// The record of one volume's scan.
pub struct RecordedScan(Blocks);

impl RecordedScan {
    pub fn segments(&self) -> RecordedSegments<'_> {
        RecordedSegments { records: BlockReader::new(&self.0), ahead: None }
    }
}

/// Reads a record from its beginning to its end.
pub struct RecordedSegments<'s> {
    records: BlockReader<'s>,
    /// The next segment, once it was read.
    ahead: Option<RecordedSegment>,
}

impl RecordedSegments<'_> {
    /// Returns the record of a segment, if there is one; skips the records before it.
    pub fn take(&mut self, index: u64) -> Result<Option<RecordedSegment>> {
        loop {
            if self.ahead.is_none() {
                self.ahead = self.next()?;
            }
            match &self.ahead {
                Some(ahead) if ahead.index < index => self.ahead = None,
                Some(ahead) if ahead.index == index => return Ok(self.ahead.take()),
                _ => return Ok(None),
            }
        }
    }

    fn next(&mut self) -> Result<Option<RecordedSegment>> {
        let early = || Error::invalid("the record of a scan ends too early");
        self.records.next(|from| RecordedSegment::decode(from).ok_or_else(early))
    }
}

impl Scanner {
    /// Makes a draft of a segment from its record. Reads the chunks that neither the series nor the
    /// shared store has into their places in `data`, which is as long as the segment and begins at
    /// `offset` of the volume. Returns `None` if these have changed since the scan or cannot be
    /// read.
    pub(super) fn recall(
        &self,
        recorded: RecordedSegment,
        (source, offset): (&dyn VolumeSource, u64),
        data: &mut Vec<u8>,
        buffers: &mut ScanBuffers,
        warnings: &mut Vec<Warning>,
    ) -> Result<Option<SegmentDraft>> {
        let RecordedSegment { index, digest, chunks } = recorded;
        let chunks = self.recalled(chunks)?;
        let read = |start: usize, part: &mut [u8]| {
            let read = source.read_at(offset + to_u64(start), part);
            read.is_ok_and(|read| read == part.len())
        };
        let bytes = chunks.last().map_or(0, |last| last.range.end);
        if data.len() != bytes || !self.read_recalled(&chunks, data, &read, buffers) {
            return Ok(None);
        }
        let parent = self.parent_entry(index, warnings)?;
        let mut draft = SegmentDraft::new(index, std::mem::take(data), chunks, digest);
        (draft.parents, draft.recalled) = (parent.into_iter().collect(), true);
        Ok(Some(draft))
    }

    /// Returns the chunks of a record. Those that neither the series nor the shared store has are
    /// to be read.
    fn recalled(&self, chunks: Vec<RecordedChunk>) -> Result<Vec<DraftChunk>> {
        let mut start = 0;
        let chunks = chunks.into_iter().map(|RecordedChunk { length, fingerprint, seen }| {
            let range = start..start + length as usize;
            start = range.end;
            let found = (seen == Seen::Zero).then_some((Reference::ZERO, Level::Zero));
            DraftChunk { range, fingerprint, found, is_read: seen == Seen::New, node: 0 }
        });
        let mut chunks: Vec<DraftChunk> = chunks.collect();
        self.find_shared(&mut chunks)?;
        Ok(chunks)
    }

    /// Reads the chunks that are to be read into their places in `data`. Returns whether they are
    /// what the record says.
    fn read_recalled(
        &self,
        chunks: &[DraftChunk],
        data: &mut [u8],
        read: &ReadPart<'_>,
        buffers: &mut ScanBuffers,
    ) -> bool {
        let mut wanted = Vec::with_capacity(chunks.len());
        wanted.extend(chunks.iter().filter(|chunk| chunk.is_read).map(|chunk| chunk.range.clone()));
        if !read_ranges(read, &wanted, data) {
            return false;
        }
        let found = &mut buffers.fingerprints;
        self.fingerprinter.fingerprint_many(data, &wanted, found);
        let recorded = chunks.iter().filter(|chunk| chunk.is_read);
        recorded.map(|chunk| &chunk.fingerprint).eq(found.iter())
    }

    /// Looks in the shared store for the chunks that are new to the series. Those found need not be
    /// read.
    fn find_shared(&self, chunks: &mut [DraftChunk]) -> Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let mut new: Vec<_> = chunks.iter_mut().filter(|chunk| chunk.is_read).collect();
        shared.resolve(&mut new)?;
        for chunk in new {
            chunk.is_read = chunk.found.is_none();
        }
        Ok(())
    }
}

/// Reads a part of a segment from an offset in it. Returns whether all of it could be read.
type ReadPart<'r> = dyn Fn(usize, &mut [u8]) -> bool + 'r;

/// Reads parts of a segment into their places in `data`. Returns whether all of them could be read.
fn read_ranges(read: &ReadPart<'_>, ranges: &[Range<usize>], data: &mut [u8]) -> bool {
    let mut runs = ranges.chunk_by(|before, after| after.start - before.end <= GAP_BYTES);
    runs.all(|run| read(run[0].start, &mut data[run[0].start..run[run.len() - 1].end]))
}
