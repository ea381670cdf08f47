//! Decides which part of a volume is scanned next, and reads it.

use silt_format::number::{to_u64, to_usize};
use silt_format::{BLOCK_BYTES, ByteSpan, Error, Result, SEGMENT_BYTES};
use silt_source::{ExtentKind, VolumeSource};

use super::clean::CleanSegments;
use super::recorded::{RecordedSegment, RecordedSegments};

/// Number of times that a failed read is repeated before its range counts as unreadable.
const READ_RETRIES: usize = 2;
/// Maximum number of segments in one claim, so that progress is visible and queues stay balanced.
const RUN_SEGMENTS_MAX: u64 = 4096;

/// A part of the volume that one worker processes, in the order of the volume.
#[derive(Debug)]
pub(crate) enum Claim {
    /// Segments that are zeros or holes.
    Zeros {
        segments: u64,
        bytes: u64,
    },
    /// Segments that are equal to the parent's, according to the changed-blocks map.
    Clean {
        first: u64,
        segments: u64,
        bytes: u64,
    },
    Segment(SegmentClaim),
    /// The volume has ended.
    End,
}

/// A segment to scan.
#[derive(Debug)]
pub(crate) struct SegmentClaim {
    pub(crate) index: u64,
    pub(crate) bytes: usize,
    /// Whether its bytes are in the buffer already.
    pub(crate) filled: bool,
    /// Its record, from an earlier scan.
    pub(crate) recorded: Option<RecordedSegment>,
}

/// Hands out a volume's segments in order.
pub(crate) struct Feed<'a> {
    source: &'a dyn VolumeSource,
    clean: Option<&'a CleanSegments<'a>>,
    /// The records of a scan, for the segments that must be read.
    recorded: Option<RecordedSegments<'a>>,
    size: Option<u64>,
    next: u64,
    /// Offset up to which the source is known to be zeros.
    zeros_until: u64,
    /// Bytes handed out; at the end the volume's size.
    pub(crate) bytes: u64,
}

impl<'a> Feed<'a> {
    pub(crate) fn new(
        source: &'a dyn VolumeSource,
        clean: Option<&'a CleanSegments<'a>>,
        recorded: Option<RecordedSegments<'a>>,
    ) -> Self {
        let size = source.info().size;
        Self { source, clean, recorded, size, next: 0, zeros_until: 0, bytes: 0 }
    }

    /// Returns the next part. If the source is sequential, reads its segment into `buffer`.
    pub(crate) fn claim(&mut self, buffer: &mut Vec<u8>) -> Result<Claim> {
        let start = self.next * to_u64(SEGMENT_BYTES);
        let Some(size) = self.size else { return self.claim_unsized(buffer) };
        if start >= size {
            return Ok(Claim::End);
        }
        let segments_left = (size - start).div_ceil(to_u64(SEGMENT_BYTES));
        let clean = self.clean_segments(segments_left.min(RUN_SEGMENTS_MAX));
        if clean > 0 {
            let first = self.next;
            let bytes = self.advance(clean, size);
            return Ok(Claim::Clean { first, segments: clean, bytes });
        }
        if self.zeros_until <= start && !self.source.is_sequential() {
            let extent = self.source.extent_at(start).map_err(not_ours)?;
            if extent.kind == ExtentKind::Zero {
                self.zeros_until = extent.offset.saturating_add(extent.length);
            }
        }
        let zero_segments = if self.zeros_until >= size {
            segments_left
        } else {
            self.zeros_until.saturating_sub(start) / to_u64(SEGMENT_BYTES)
        };
        let zero_segments = self.changed_segments(zero_segments);
        if zero_segments > 0 {
            let bytes = self.advance(zero_segments, size);
            return Ok(Claim::Zeros { segments: zero_segments, bytes });
        }
        let index = self.next;
        let bytes = to_usize(self.advance(1, size));
        let filled = self.source.is_sequential();
        if filled {
            buffer.resize(bytes, 0);
            let read = self.source.read_at(start, buffer).map_err(not_ours)?;
            if read < bytes {
                return Err(Error::new(
                    silt_format::ErrorKind::Unavailable,
                    format!("{} ended after {} of {size} bytes", self.name(), start + to_u64(read)),
                ));
            }
        }
        let recorded = match &mut self.recorded {
            Some(recorded) if !filled => recorded.take(index)?,
            _ => None,
        };
        Ok(Claim::Segment(SegmentClaim { index, bytes, filled, recorded }))
    }

    /// Returns the next part of a stream, whose size is unknown.
    fn claim_unsized(&mut self, buffer: &mut Vec<u8>) -> Result<Claim> {
        buffer.resize(SEGMENT_BYTES, 0);
        let read = self.source.read_at(self.bytes, buffer).map_err(not_ours)?;
        buffer.truncate(read);
        if read == 0 {
            return Ok(Claim::End);
        }
        let index = self.next;
        self.next += 1;
        self.bytes += to_u64(read);
        Ok(Claim::Segment(SegmentClaim { index, bytes: read, filled: true, recorded: None }))
    }

    fn advance(&mut self, segments: u64, size: u64) -> u64 {
        self.next += segments;
        let end = (self.next * to_u64(SEGMENT_BYTES)).min(size);
        let bytes = end - self.bytes;
        self.bytes = end;
        bytes
    }

    fn clean_segments(&self, most: u64) -> u64 {
        let Some(clean) = self.clean else { return 0 };
        (0..most).find(|i| !clean.is_clean(self.next + i)).unwrap_or(most)
    }

    /// Returns how many of the next `most` segments must be read before the next clean one.
    fn changed_segments(&self, most: u64) -> u64 {
        let Some(clean) = self.clean else { return most };
        (0..most).find(|i| clean.is_clean(self.next + i)).unwrap_or(most)
    }

    fn name(&self) -> String {
        self.source.info().description
    }
}

/// Changes the kind `Corrupt` to `Invalid`: a damaged source is not damage to the repository.
fn not_ours(error: Error) -> Error {
    match error.kind() {
        silt_format::ErrorKind::Corrupt => error.with_kind(silt_format::ErrorKind::Invalid),
        _ => error,
    }
}

/// Reads `buffer.len()` bytes at `offset`. Blocks that cannot be read become zeros and are listed.
pub(crate) fn read_or_mark(
    source: &dyn VolumeSource,
    offset: u64,
    buffer: &mut [u8],
    unreadable: &mut Vec<ByteSpan>,
) -> Option<Error> {
    let mut failure = match read_fully(source, offset, buffer) {
        Ok(()) => return None,
        Err(error) => error,
    };
    // Block by block, so that one bad sector costs one block.
    for (number, block) in (0_u64..).zip(buffer.chunks_mut(BLOCK_BYTES)) {
        let at = offset + number * to_u64(BLOCK_BYTES);
        let Err(error) = read_fully(source, at, block) else { continue };
        failure = error;
        block.fill(0);
        let length = to_u64(block.len());
        match unreadable.last_mut() {
            Some(last) if last.offset + last.length == at => last.length += length,
            _ => unreadable.push(ByteSpan { offset: at, length }),
        }
    }
    Some(failure)
}

fn read_fully(source: &dyn VolumeSource, offset: u64, buffer: &mut [u8]) -> Result<()> {
    let mut tries = 0;
    loop {
        let error = match source.read_at(offset, buffer) {
            Ok(read) if read == buffer.len() => return Ok(()),
            Ok(read) => {
                return Err(Error::new(
                    silt_format::ErrorKind::Unavailable,
                    format!(
                        "{} shrank: it ends at byte {}",
                        source.info().description,
                        offset + to_u64(read)
                    ),
                ));
            }
            Err(error) => error,
        };
        if tries == READ_RETRIES {
            return Err(error);
        }
        tries += 1;
    }
}
