//! Digests of whole segments.

use std::fmt;

use blake3::Hasher;
use silt_format::{BLOCK_BYTES, SEGMENT_BYTES, SegmentDigest, number};

use crate::is_zero;

const BITMAP_BYTES_MAX: usize = SEGMENT_BYTES.div_ceil(BLOCK_BYTES).div_ceil(8);

/// Computes the digests of segments under one key.
#[derive(Clone)]
pub struct SegmentDigester {
    key: [u8; 32],
}

impl SegmentDigester {
    /// A digester under `key`, the segment key of a domain.
    pub fn new(key: [u8; 32]) -> Self {
        Self { key }
    }

    /// The digest of a segment of at most [`SEGMENT_BYTES`]; a longer one is a bug and panics.
    ///
    /// It is the first 16 bytes of keyed BLAKE3 over, in this order: the bytes of every block of
    /// [`BLOCK_BYTES`] that is not all zero (the last block may be short); a bitmap of
    /// `ceil(blocks / 8)` bytes in which bit `i % 8` of byte `i / 8` says that block `i` is not
    /// zero; the segment's length in bytes as a little-endian `u32`. The length gives the size of
    /// the bitmap and the bitmap the place of every block, so different segments never feed the
    /// same bytes. Zero blocks cost their scan alone.
    pub fn digest(&self, segment: &[u8]) -> SegmentDigest {
        assert!(segment.len() <= SEGMENT_BYTES, "a segment of {} bytes is too long", segment.len());
        let mut hasher = Hasher::new_keyed(&self.key);
        let mut bitmap = [0; BITMAP_BYTES_MAX];
        // Blocks that touch are fed as one run: BLAKE3 is twice as fast on long input.
        let mut run_begin = 0;
        let mut position = 0;
        for (index, block) in segment.chunks(BLOCK_BYTES).enumerate() {
            let end = position + block.len();
            if is_zero(block) {
                hasher.update(&segment[run_begin..position]);
                run_begin = end;
            } else {
                bitmap[index / 8] |= 1 << (index % 8);
            }
            position = end;
        }
        hasher.update(&segment[run_begin..]);
        hasher.update(&bitmap[..segment.len().div_ceil(BLOCK_BYTES).div_ceil(8)]);
        hasher.update(&number::to_u32(segment.len()).to_le_bytes());
        let mut digest = [0; 16];
        digest.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        SegmentDigest(digest)
    }
}

/// Shows no key.
impl fmt::Debug for SegmentDigester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SegmentDigester(secret)")
    }
}
