//! Schemes that route by one fingerprint: Extreme Binning, and a hash table of chunks.

use crate::piece::{Grain, Piece};
use crate::print::{mix, remainder};
use crate::router::{Answers, Router};

/// Extreme Binning: a file's least fingerprint names its node (MASCOTS 2009).
#[derive(Debug, Default)]
pub struct ExtremeBinning;

impl Router for ExtremeBinning {
    fn grain(&self) -> Grain {
        Grain::File
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        by_first(piece, answers)
    }
}

/// Each chunk on the node that its fingerprint names: finds every duplicate, and tears every
/// stream apart.
#[derive(Debug, Default)]
pub struct ExactDht;

impl Router for ExactDht {
    fn grain(&self) -> Grain {
        Grain::Chunk
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        by_first(piece, answers)
    }
}

fn by_first(piece: &Piece, answers: &dyn Answers) -> usize {
    let least = piece.handprint(1).first().copied().unwrap_or(0);
    remainder(mix(least), answers.nodes())
}
