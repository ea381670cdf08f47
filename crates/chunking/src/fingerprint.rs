//! Fingerprints of chunks, one at a time or many side by side.

#[cfg(test)]
mod tests;
mod trees;

use std::fmt;
use std::ops::Range;

use blake3::IncrementCounter;
use blake3::platform::{Platform, words_from_le_bytes_32};
use silt_format::{BLOCK_BYTES, Fingerprint};

/// Chunks hashed side by side: the lanes of the widest vectors that BLAKE3 uses.
const LANES: usize = 16;
/// Lanes are filled up to a multiple of this: an uneven number of them is hashed one after another,
/// and four at once in a way that reads behind the first.
const LANES_STEP: usize = 8;
/// Up to this many chunks, hashing each separately is not slower.
const ALONE_MAX: usize = 4;
/// Bytes of a leaf of BLAKE3's tree.
const LEAF_BYTES: usize = 1024;
const LEAVES: usize = BLOCK_BYTES / LEAF_BYTES;
/// Bytes of a chaining value, which is what a leaf or a pair of chaining values becomes.
const CHAIN_BYTES: usize = 32;
const PAIR_BYTES: usize = 2 * CHAIN_BYTES;

// The tree below is written for two levels of pairs above the leaves.
const _: () = assert!(LEAVES == 4 && BLOCK_BYTES.is_multiple_of(LEAF_BYTES));
const _: () = assert!(LANES.is_multiple_of(LANES_STEP));

// Domain flags of the BLAKE3 specification, section 2.2.
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
const KEYED_HASH: u8 = 1 << 4;

/// Computes the fingerprints of chunks under one key: the first 20 bytes of keyed BLAKE3.
#[derive(Clone)]
pub struct Fingerprinter {
    key: [u8; 32],
    key_words: [u32; 8],
    platform: Platform,
}

impl Fingerprinter {
    /// A fingerprinter under `key`, the fingerprint key of a domain.
    pub fn new(key: [u8; 32]) -> Self {
        Self { key, key_words: words_from_le_bytes_32(&key), platform: Platform::detect() }
    }

    /// The fingerprint of one chunk of any length.
    pub fn fingerprint(&self, chunk: &[u8]) -> Fingerprint {
        truncated(blake3::keyed_hash(&self.key, chunk).as_bytes())
    }

    /// The fingerprints of `chunks`, ranges of bytes in `data`, put into `out` in their order after
    /// clearing it.
    ///
    /// The result is that of [`fingerprint`](Self::fingerprint) on each; chunks of [`BLOCK_BYTES`]
    /// and others of a few KiB are hashed side by side, wherever among others they stand. A range
    /// outside `data` is a bug and panics.
    pub fn fingerprint_many(
        &self,
        data: &[u8],
        chunks: &[Range<usize>],
        out: &mut Vec<Fingerprint>,
    ) {
        out.clear();
        out.resize(chunks.len(), Fingerprint([0; 20]));
        let (mut group, mut others) = (Group::new(), Vec::new());
        for (index, range) in chunks.iter().enumerate() {
            let chunk = &data[range.clone()];
            let Ok(block) = chunk.try_into() else {
                if trees::is_worth_it(chunk.len()) {
                    others.push((index, chunk));
                } else {
                    out[index] = self.fingerprint(chunk);
                }
                continue;
            };
            group.push(index, block);
            if group.length == LANES {
                self.finish_group(&group, out);
                group.length = 0;
            }
        }
        self.finish_group(&group, out);
        self.fingerprint_trees(&others, out);
    }

    fn finish_group(&self, group: &Group<'_>, out: &mut [Fingerprint]) {
        let indices = &group.indices[..group.length];
        if indices.len() <= ALONE_MAX {
            for (&index, &block) in indices.iter().zip(&group.blocks) {
                out[index] = self.fingerprint(block);
            }
            return;
        }
        // The lanes past the group's end hash whatever block was there before, for nothing.
        let lanes = indices.len().next_multiple_of(LANES_STEP);
        let digests = self.hash_blocks(&group.blocks[..lanes]);
        for (&index, digest) in indices.iter().zip(&digests) {
            out[index] = truncated(digest);
        }
    }

    /// The keyed BLAKE3 of up to [`LANES`] blocks, one lane each, level by level of their trees.
    fn hash_blocks(&self, blocks: &[&[u8; BLOCK_BYTES]]) -> [[u8; CHAIN_BYTES]; LANES] {
        let count = blocks.len();
        // Two pairs for each block: leaves 0 and 1, then leaves 2 and 3.
        let mut leaf_pairs = [[0; PAIR_BYTES]; 2 * LANES];
        let mut chains = [[0; CHAIN_BYTES]; LANES];
        for leaf in 0..LEAVES {
            let mut inputs = [&[0; LEAF_BYTES]; LANES];
            for (input, block) in inputs.iter_mut().zip(blocks) {
                *input = &block.as_chunks().0[leaf];
            }
            self.platform.hash_many(
                &inputs[..count],
                &self.key_words,
                leaf as u64,
                IncrementCounter::No,
                KEYED_HASH,
                CHUNK_START,
                CHUNK_END,
                chains.as_flattened_mut(),
            );
            let half = leaf % 2 * CHAIN_BYTES;
            for (lane, chain) in chains[..count].iter().enumerate() {
                leaf_pairs[2 * lane + leaf / 2][half..half + CHAIN_BYTES].copy_from_slice(chain);
            }
        }
        let mut root_pairs = [[0; PAIR_BYTES]; LANES];
        self.hash_pairs(&leaf_pairs[..2 * count], 0, root_pairs.as_flattened_mut());
        self.hash_pairs(&root_pairs[..count], ROOT, chains.as_flattened_mut());
        chains
    }

    /// The chaining values of parent nodes; with [`ROOT`] in `flags`, the final digests.
    fn hash_pairs(&self, pairs: &[[u8; PAIR_BYTES]], flags: u8, out: &mut [u8]) {
        let mut inputs = [&[0; PAIR_BYTES]; 2 * LANES];
        for (input, pair) in inputs.iter_mut().zip(pairs) {
            *input = pair;
        }
        self.platform.hash_many(
            &inputs[..pairs.len()],
            &self.key_words,
            0,
            IncrementCounter::No,
            KEYED_HASH | PARENT | flags,
            0,
            0,
            out,
        );
    }
}

/// Shows no key.
impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprinter(secret)")
    }
}

/// Blocks that wait for their lanes to fill, and where their fingerprints go.
struct Group<'data> {
    blocks: [&'data [u8; BLOCK_BYTES]; LANES],
    indices: [usize; LANES],
    length: usize,
}

impl<'data> Group<'data> {
    fn new() -> Self {
        Self { blocks: [&[0; BLOCK_BYTES]; LANES], indices: [0; LANES], length: 0 }
    }

    fn push(&mut self, index: usize, block: &'data [u8; BLOCK_BYTES]) {
        self.blocks[self.length] = block;
        self.indices[self.length] = index;
        self.length += 1;
    }
}

fn truncated(digest: &[u8; CHAIN_BYTES]) -> Fingerprint {
    let mut bytes = [0; 20];
    bytes.copy_from_slice(&digest[..20]);
    Fingerprint(bytes)
}
