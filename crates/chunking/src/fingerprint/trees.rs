//! Fingerprints of chunks of any length: the leaves and pairs of many trees side by side.

use std::ops::Range;

use blake3::hazmat::HasherExt;
use blake3::{Hasher, IncrementCounter};
use silt_format::Fingerprint;
use silt_format::number::to_u64;

use super::{
    CHAIN_BYTES, CHUNK_END, CHUNK_START, Fingerprinter, KEYED_HASH, LEAF_BYTES, PAIR_BYTES, PARENT,
    ROOT, truncated,
};

/// Chunks with more leaves fill the lanes by themselves.
const LEAVES_MAX: usize = 16;
/// Inputs are hashed by as many at once, or by twice as many. Not by four: then blake3's code for
/// AVX-512 (1.8.7) reads up to 48 bytes behind the first input, and there may be no memory there.
const LANES_LEAST: usize = 8;

/// Whether a chunk of this length in bytes is hashed faster together with others.
pub(super) fn is_worth_it(bytes: usize) -> bool {
    bytes > LEAF_BYTES && bytes <= LEAVES_MAX * LEAF_BYTES
}

/// A chunk whose tree is hashed level by level.
struct Tree {
    /// Where its fingerprint goes.
    index: usize,
    /// The places of its chaining values.
    nodes: Range<usize>,
}

impl Fingerprinter {
    /// Computes the fingerprints of chunks that are [worth it](is_worth_it), each with the place of
    /// its fingerprint in `out`.
    pub(super) fn fingerprint_trees(&self, chunks: &[(usize, &[u8])], out: &mut [Fingerprint]) {
        let (mut trees, mut end) = (Vec::with_capacity(chunks.len()), 0);
        for (index, chunk) in chunks {
            let nodes = end..end + chunk.len().div_ceil(LEAF_BYTES);
            end = nodes.end;
            trees.push(Tree { index: *index, nodes });
        }
        let mut chains = vec![[0; CHAIN_BYTES]; end];
        let mut side = SideBySide::<LEAF_BYTES>::default();
        for leaf in 0..LEAVES_MAX {
            for ((_, chunk), tree) in chunks.iter().zip(&trees) {
                let rest = chunk.get(leaf * LEAF_BYTES..).unwrap_or_default();
                let place = tree.nodes.start + leaf;
                match rest.first_chunk() {
                    Some(full) => side.push(place, full),
                    None if rest.is_empty() => {}
                    None => chains[place] = self.last_leaf(leaf, rest),
                }
            }
            let flags = (KEYED_HASH, CHUNK_START, CHUNK_END);
            side.finish(self, to_u64(leaf), flags, &mut chains);
        }
        self.pair_up(trees, chains, out);
    }

    /// Returns the chaining value of a leaf that is not full.
    fn last_leaf(&self, leaf: usize, bytes: &[u8]) -> [u8; CHAIN_BYTES] {
        let mut hasher = Hasher::new_keyed(&self.key);
        hasher.set_input_offset(to_u64(leaf * LEAF_BYTES)).update(bytes);
        hasher.finalize_non_root()
    }

    /// Hashes pairs of neighbours until one is left of each tree. One without a neighbour goes up a
    /// level as it is.
    fn pair_up(
        &self,
        mut trees: Vec<Tree>,
        mut chains: Vec<[u8; CHAIN_BYTES]>,
        out: &mut [Fingerprint],
    ) {
        while !trees.is_empty() {
            let below = chains.clone();
            let mut pairs = SideBySide::<PAIR_BYTES>::default();
            let is_root = |tree: &Tree| tree.nodes.len() == 2;
            for tree in trees.iter().filter(|tree| is_root(tree)) {
                pairs.push(tree.nodes.start, pair(&below, tree.nodes.start));
            }
            pairs.finish(self, 0, (KEYED_HASH | PARENT | ROOT, 0, 0), &mut chains);
            for tree in trees.iter().filter(|tree| is_root(tree)) {
                out[tree.index] = truncated(&chains[tree.nodes.start]);
            }
            trees.retain(|tree| !is_root(tree));
            for Tree { nodes, .. } in &mut trees {
                let (start, count) = (nodes.start, nodes.len());
                (0..count / 2).for_each(|at| pairs.push(start + at, pair(&below, start + 2 * at)));
                if count % 2 == 1 {
                    chains[start + count / 2] = below[start + count - 1];
                }
                *nodes = start..start + count.div_ceil(2);
            }
            pairs.finish(self, 0, (KEYED_HASH | PARENT, 0, 0), &mut chains);
        }
    }
}

fn pair(chains: &[[u8; CHAIN_BYTES]], at: usize) -> &[u8; PAIR_BYTES] {
    assert!(at + 1 < chains.len(), "a pair has two nodes");
    let both = chains[at..].as_flattened();
    both.first_chunk().unwrap_or(&[0; PAIR_BYTES])
}

/// Inputs of one length that are hashed side by side.
struct SideBySide<'data, const BYTES: usize> {
    inputs: Vec<&'data [u8; BYTES]>,
    /// Where the result of each goes.
    places: Vec<usize>,
    results: Vec<[u8; CHAIN_BYTES]>,
}

impl<const BYTES: usize> Default for SideBySide<'_, BYTES> {
    fn default() -> Self {
        Self { inputs: Vec::new(), places: Vec::new(), results: Vec::new() }
    }
}

impl<'data, const BYTES: usize> SideBySide<'data, BYTES> {
    fn push(&mut self, place: usize, input: &'data [u8; BYTES]) {
        self.inputs.push(input);
        self.places.push(place);
    }

    /// Hashes the inputs, puts the results at their places and starts anew.
    fn finish(
        &mut self,
        with: &Fingerprinter,
        counter: u64,
        (flags, start, end): (u8, u8, u8),
        chains: &mut [[u8; CHAIN_BYTES]],
    ) {
        let Some(&first) = self.inputs.first() else { return };
        // The lanes at the end hash the first input again, for nothing.
        self.inputs.resize(self.inputs.len().next_multiple_of(LANES_LEAST), first);
        self.results.resize(self.inputs.len(), [0; CHAIN_BYTES]);
        with.platform.hash_many(
            &self.inputs,
            &with.key_words,
            counter,
            IncrementCounter::No,
            flags,
            start,
            end,
            self.results.as_flattened_mut(),
        );
        for (place, result) in self.places.iter().zip(&self.results) {
            chains[*place] = *result;
        }
        self.inputs.clear();
        self.places.clear();
    }
}
