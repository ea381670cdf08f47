//! Produck: a coordinator estimates how much a super-chunk overlaps with each node.

use std::collections::BTreeMap;

use crate::piece::{Grain, Piece};
use crate::print::{mix, remainder};
use crate::router::{Answers, Router};

/// Bitmaps of a vector: 64 KB of 64 bits (SoCC 2012).
const BITMAPS: usize = 8192;
/// Flajolet and Martin's constant: the mean of the lowest unset bit is log2(0.77351 n).
const PHI: f64 = 0.77351;

/// The bitmaps of Flajolet and Martin's probabilistic counting with stochastic averaging.
#[derive(Clone, Debug)]
struct Vector(Vec<u64>);

impl Vector {
    fn new() -> Self {
        Self(vec![0; BITMAPS])
    }

    fn of(piece: &Piece) -> Self {
        let mut vector = Self::new();
        for chunk in &piece.chunks {
            let hash = mix(chunk.print);
            let rank = (hash / BITMAPS as u64).trailing_zeros().min(63);
            vector.0[remainder(hash, BITMAPS)] |= 1 << rank;
        }
        vector
    }

    /// How many different fingerprints these bitmaps have seen: m / 0.77351 * 2^(mean rank). With
    /// less than a few fingerprints a bitmap this is far too many, so 1 is taken off the power.
    fn estimate(bitmaps: impl Iterator<Item = u64>) -> f64 {
        let ranks: u32 = bitmaps.map(u64::trailing_ones).sum();
        let count = BITMAPS as f64;
        count / PHI * ((f64::from(ranks) / count).exp2() - 1.0)
    }

    fn overlap(&self, own: f64, node: &(Self, f64)) -> f64 {
        let both = self.0.iter().zip(&node.0.0).map(|(a, b)| a | b);
        own + node.1 - Self::estimate(both)
    }

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, more)| *own |= more);
    }
}

/// Produck's coordinator.
#[derive(Debug)]
pub struct Produck {
    /// Bytes of a super-chunk: 15 MiB.
    pub super_chunk_bytes: u64,
    /// Bytes of the buckets in which the load of a node is counted: one super-chunk.
    pub bucket_bytes: u64,
    /// Buckets that a node may have more than the node that has fewest: 1.
    pub slack: u64,
    /// Nodes of the highest overlap among which the one before is preferred: 1 is none. As
    /// remembered.
    pub best: usize,
    vectors: Vec<(Vector, f64)>,
    last: BTreeMap<u32, usize>,
}

impl Default for Produck {
    fn default() -> Self {
        let bytes = 15 << 20;
        Self {
            super_chunk_bytes: bytes,
            bucket_bytes: bytes,
            slack: 1,
            best: 2,
            vectors: Vec::new(),
            last: BTreeMap::new(),
        }
    }
}

impl Router for Produck {
    fn grain(&self) -> Grain {
        Grain::Bytes(self.super_chunk_bytes)
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        let nodes = answers.nodes();
        self.vectors.resize_with(nodes, || (Vector::new(), 0.0));
        let vector = Vector::of(piece);
        let own = Vector::estimate(vector.0.iter().copied());
        let overlap = |node: &(Vector, f64)| vector.overlap(own, node);
        let overlaps: Vec<f64> = self.vectors.iter().map(overlap).collect();
        let buckets = |node: usize| answers.used_bytes(node) / self.bucket_bytes;
        let least = (0..nodes).map(buckets).min().unwrap_or(0);
        let has_room = |node: &usize| buckets(*node) <= least + self.slack;
        let mut ranked: Vec<usize> = (0..nodes).filter(has_room).collect();
        let key = |node: usize| (answers.used_bytes(node), node);
        ranked.sort_by(|a, b| {
            overlaps[*b].total_cmp(&overlaps[*a]).then_with(|| key(*a).cmp(&key(*b)))
        });
        let before = self.last.get(&piece.stream).copied();
        let again = before.filter(|node| ranked.iter().take(self.best).any(|best| best == node));
        let chosen = again.or_else(|| ranked.first().copied()).unwrap_or(0);
        self.last.insert(piece.stream, chosen);
        let entry = &mut self.vectors[chosen];
        entry.0.add(&vector);
        entry.1 = Vector::estimate(entry.0.0.iter().copied());
        chosen
    }
}
