//! Cuts segments into chunks.

mod fastcdc;
mod gear;

use silt_format::{BLOCK_BYTES, Chunking, Result, SEGMENT_BYTES, number};

use fastcdc::FastCdc;

/// Cuts segments into chunks.
#[derive(Clone, Debug)]
pub struct Chunker(Cutter);

#[derive(Clone, Debug)]
enum Cutter {
    Fixed { bytes: u32 },
    FastCdc(FastCdc),
}

impl Chunker {
    /// Returns a chunker with the parameters `chunking`.
    ///
    /// Fails with `Invalid` if the parameters are out of the format's bounds.
    pub fn new(chunking: Chunking) -> Result<Self> {
        Ok(Self(match chunking.validate()? {
            Chunking::Fixed { bytes } => Cutter::Fixed { bytes },
            Chunking::FastCdc { min, avg, max } => Cutter::FastCdc(FastCdc::new(min, avg, max)),
        }))
    }

    /// Whether every chunk is a block of [`BLOCK_BYTES`], but for the last of a segment.
    pub fn cuts_blocks(&self) -> bool {
        matches!(self.0, Cutter::Fixed { bytes } if bytes as usize == BLOCK_BYTES)
    }

    /// The lengths in bytes of the chunks of `segment`, in order, put into `lengths` after clearing
    /// it.
    ///
    /// They depend on the segment and the parameters alone and sum to the segment's length; an
    /// empty segment has no chunks. A segment longer than [`SEGMENT_BYTES`] is a bug and panics.
    pub fn cut(&self, segment: &[u8], lengths: &mut Vec<u32>) {
        assert!(segment.len() <= SEGMENT_BYTES, "a segment of {} bytes is too long", segment.len());
        lengths.clear();
        let mut rest = segment;
        while !rest.is_empty() {
            let length = match &self.0 {
                Cutter::Fixed { bytes } => rest.len().min(*bytes as usize),
                Cutter::FastCdc(fastcdc) => fastcdc.first_cut(rest),
            };
            lengths.push(number::to_u32(length));
            rest = &rest[length..];
        }
    }
}
