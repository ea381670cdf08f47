//! Digests of whole segments.

use std::fmt;
use std::ops::Range;

use silt_format::{BLOCK_BYTES, Fingerprint, Recipe, SEGMENT_BYTES, SegmentDigest, number};

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
    /// The input of the digest.
    message: Vec<u8>,
}

impl DigestedBlocks {
    /// Iterates over the blocks that are not all zero: their ranges in the segment and their
    /// fingerprints, in order.
    pub fn stored(&self) -> impl Iterator<Item = (Range<usize>, Fingerprint)> {
        self.stored.iter().cloned().zip(self.fingerprints.iter().copied())
    }
}

impl SegmentDigester {
    /// A digester under `key`, the segment key of a domain, and of fingerprints of that domain.
    pub fn new(key: [u8; 32], fingerprinter: Fingerprinter) -> Self {
        Self { key, fingerprinter }
    }

    /// Returns the digest of a segment of at most [`SEGMENT_BYTES`]; panics if it is longer, which
    /// is a bug. Fills `blocks` with the places and fingerprints of the blocks that are not all
    /// zero.
    ///
    /// The digest is the first 16 bytes of keyed BLAKE3 over, in this order: the fingerprints of
    /// all blocks of [`BLOCK_BYTES`] that are not all zero (the last block may be short); a bitmap
    /// of `ceil(blocks / 8)` bytes in which bit `i % 8` of byte `i / 8` is set if block `i` is not
    /// zero; the segment's length in bytes as a little-endian `u32`. The length determines the size
    /// of the bitmap, and the bitmap the place of every block. So two different segments give the
    /// same input only if two different blocks have one fingerprint. If chunks are blocks, each
    /// byte is hashed once for both purposes; zero blocks only cost their scan.
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
        self.of_blocks(message, &bitmap, segment.len())
    }

    /// The digest of a segment of `bytes` bytes whose blocks have the fingerprints in `message`.
    fn of_blocks(
        &self,
        message: &mut Vec<u8>,
        bitmap: &[u8; BITMAP_BYTES_MAX],
        bytes: usize,
    ) -> SegmentDigest {
        message.extend_from_slice(&bitmap[..bytes.div_ceil(BLOCK_BYTES).div_ceil(8)]);
        message.extend_from_slice(&number::to_u32(bytes).to_le_bytes());
        self.of(SegmentDigest::OF_BLOCKS, message)
    }

    fn of(&self, kind: u8, message: &[u8]) -> SegmentDigest {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::keyed_hash(&self.key, message).as_bytes()[..16]);
        SegmentDigest { kind, bytes }
    }

    /// The digest of a segment that is not cut into blocks: of the length in bytes (`u32`) and the
    /// fingerprint of each chunk in order, zeros for a chunk that is all zeros.
    pub fn digest_chunks<'f>(
        &self,
        chunks: impl Iterator<Item = (u32, Option<&'f Fingerprint>)>,
    ) -> SegmentDigest {
        let mut message = Vec::new();
        for (length, fingerprint) in chunks {
            message.extend_from_slice(&length.to_le_bytes());
            message.extend_from_slice(fingerprint.map_or(&[0; 20], |fingerprint| &fingerprint.0));
        }
        self.of(SegmentDigest::OF_CHUNKS, &message)
    }

    /// The digest that a segment with this recipe has; `None` if the recipe can't have one of this
    /// kind.
    pub fn digest_recipe(&self, recipe: &Recipe, kind: u8) -> Option<SegmentDigest> {
        let stored = |reference: silt_format::Reference| !reference.is_zero();
        if kind == SegmentDigest::OF_CHUNKS {
            return Some(self.digest_chunks(recipe.chunks.iter().map(|chunk| {
                (chunk.length, stored(chunk.reference).then_some(&chunk.fingerprint))
            })));
        }
        let (_, full) = recipe.chunks.split_last()?;
        let are_blocks = full.iter().all(|chunk| chunk.length as usize == BLOCK_BYTES)
            && recipe.chunks.iter().all(|chunk| chunk.length as usize <= BLOCK_BYTES);
        if kind != SegmentDigest::OF_BLOCKS
            || !are_blocks
            || recipe.chunks.len() > BITMAP_BYTES_MAX * 8
        {
            return None;
        }
        let (mut bitmap, mut message) = ([0; BITMAP_BYTES_MAX], Vec::new());
        for (index, chunk) in recipe.chunks.iter().enumerate() {
            if stored(chunk.reference) {
                bitmap[index / 8] |= 1 << (index % 8);
                message.extend_from_slice(&chunk.fingerprint.0);
            }
        }
        let bytes = recipe.segment_bytes() as usize;
        Some(self.of_blocks(&mut message, &bitmap, bytes))
    }
}

/// Shows no key.
impl fmt::Debug for SegmentDigester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SegmentDigester(secret)")
    }
}
