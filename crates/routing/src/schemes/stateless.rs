//! Schemes that ask nobody: EMC's stateless routing, and whole applications on one node.

use super::SUPER_CHUNK_BYTES;
use crate::piece::{Grain, Piece};
use crate::print::{Print, PrintMap, mix, remainder};
use crate::router::{Answers, Router};

/// What of a super-chunk decides (FAST 2011, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// The fingerprint of the first chunk.
    First,
    /// The least fingerprint.
    Least,
    /// The greatest fingerprint.
    Greatest,
    /// The most common fingerprint, and of several the least.
    MostCommon,
}

impl Feature {
    /// The feature of a piece, or 0 if it is empty.
    pub fn of(self, piece: &Piece) -> Print {
        let mut prints = piece.chunks.iter().map(|chunk| chunk.print);
        let found = match self {
            Self::First => prints.next(),
            Self::Least => prints.min(),
            Self::Greatest => prints.max(),
            Self::MostCommon => {
                let mut counts = PrintMap::<u32>::default();
                prints.for_each(|print| *counts.entry(print).or_default() += 1);
                let most = counts.into_iter().max_by_key(|(print, count)| (*count, !*print));
                most.map(|(print, _)| print)
            }
        };
        found.unwrap_or(0)
    }
}

/// EMC's stateless routing: a feature names a bin, and a bin a node. Bins do not migrate here.
#[derive(Debug)]
pub struct Stateless {
    /// The least fingerprint unless said otherwise.
    pub feature: Feature,
    /// Bins for each node: 1,024 bins in all, as remembered, and at least 8 a node.
    pub bins: usize,
}

impl Default for Stateless {
    fn default() -> Self {
        Self { feature: Feature::Least, bins: 1024 }
    }
}

impl Router for Stateless {
    fn grain(&self) -> Grain {
        Grain::Bytes(SUPER_CHUNK_BYTES)
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        let bins = self.bins.max(8 * answers.nodes());
        remainder(mix(self.feature.of(piece)), bins) % answers.nodes()
    }
}

/// Each application on one node, by turns. Best deduplication, worst balance.
#[derive(Debug, Default)]
pub struct AppAware;

impl Router for AppAware {
    fn grain(&self) -> Grain {
        Grain::Bytes(SUPER_CHUNK_BYTES)
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        usize::from(piece.application.0) % answers.nodes()
    }
}
