//! Digests of whole segments.

use std::fmt;
use std::ops::Range;

use silt_format::{BLOCK_BYTES, Fingerprint, SEGMENT_BYTES, SegmentDigest, number};

use crate::{Fingerprinter, is_zero};

const BITMAP_BYTES_MAX: usize = SEGMENT_BYTES.div_ceil(BLOCK_BYTES).div_ceil(8);

/// Computes the digests of segments under the keys of one domain.
#[derive(Clone)]
pub struct SegmentDigester {
    key: [u8; 32],
    fingerprinter: Fingerprinter,
}

/// The blocks of the segment that was digested last; kept, so that nothing is allocated anew.
#[derive(Debug, Default)]
pub struct DigestedBlocks {
    stored: Vec<Range<usize>>,
    fingerprints: Vec<Fingerprint>,
    /// What the digest is computed over.
    message: Vec<u8>,
}

impl DigestedBlocks {
    /// Where the blocks that are not all zero are in the segment, and their fingerprints, in order.
    pub fn stored(&self) -> impl Iterator<Item = (Range<usize>, Fingerprint)> {
        self.stored.iter().cloned().zip(self.fingerprints.iter().copied())
    }
}

impl SegmentDigester {
    /// A digester under `key`, the segment key of a domain, and of fingerprints of that domain.
    pub fn new(key: [u8; 32], fingerprinter: Fingerprinter) -> Self {
        Self { key, fingerprinter }
    }

    /// The digest of a segment of at most [`SEGMENT_BYTES`]; a longer one is a bug and panics.
    /// `blocks` is filled with what it was made of.
    ///
    /// It is the first 16 bytes of keyed BLAKE3 over, in this order: the fingerprints of all blocks
    /// of [`BLOCK_BYTES`] that are not all zero (the last block may be short); a bitmap of
    /// `ceil(blocks / 8)` bytes in which bit `i % 8` of byte `i / 8` says that block `i` is not
    /// zero; the segment's length in bytes as a little-endian `u32`. The length gives the size of
    /// the bitmap and the bitmap the place of every block, so segments that differ in more than
    /// blocks of one fingerprint never feed the same bytes. Where chunks are blocks, a segment is
    /// so hashed once for both; zero blocks cost their scan alone.
    pub fn digest(&self, segment: &[u8], blocks: &mut DigestedBlocks) -> SegmentDigest {
        assert!(segment.len() <= SEGMENT_BYTES, "a segment of {} bytes is too long", segment.len());
        let mut bitmap = [0; BITMAP_BYTES_MAX];
        blocks.stored.clear();
        for (index, block) in segment.chunks(BLOCK_BYTES).enumerate() {
            if !is_zero(block) {
                let start = index * BLOCK_BYTES;
                blocks.stored.push(start..start + block.len());
                bitmap[index / 8] |= 1 << (index % 8);
            }
        }
        let DigestedBlocks { stored, fingerprints, message } = blocks;
        self.fingerprinter.fingerprint_many(segment, stored, fingerprints);
        message.clear();
        fingerprints.iter().for_each(|fingerprint| message.extend_from_slice(&fingerprint.0));
        message.extend_from_slice(&bitmap[..segment.len().div_ceil(BLOCK_BYTES).div_ceil(8)]);
        message.extend_from_slice(&number::to_u32(segment.len()).to_le_bytes());
        let mut digest = [0; 16];
        digest.copy_from_slice(&blake3::keyed_hash(&self.key, message).as_bytes()[..16]);
        SegmentDigest::new(digest)
    }
}

/// Shows no key.
impl fmt::Debug for SegmentDigester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SegmentDigester(secret)")
    }
}
