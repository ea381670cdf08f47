//! EMC's stateful routing: all nodes are asked what they have.

use super::SUPER_CHUNK_BYTES;
use crate::piece::{Grain, Piece};
use crate::print::{Print, mix};
use crate::router::{Answers, Router, least_loaded, mean_bytes};

/// EMC's stateful routing (FAST 2011, section 3.2; the constants as remembered).
#[derive(Debug)]
pub struct Stateful {
    /// One of 2^B fingerprints is asked for: B = 3.
    pub sample_bits: u32,
    /// A node is excluded above this share of the mean load: 1.05.
    pub overload: f64,
    /// Votes that the best node needs, as a multiple of the mean of all nodes: 1.5.
    pub benefit: f64,
}

impl Default for Stateful {
    fn default() -> Self {
        Self { sample_bits: 3, overload: 1.05, benefit: 1.5 }
    }
}

impl Router for Stateful {
    fn grain(&self) -> Grain {
        Grain::Bytes(SUPER_CHUNK_BYTES)
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        let mask = (1 << self.sample_bits) - 1;
        let prints = piece.chunks.iter().map(|chunk| chunk.print);
        let sample: Vec<Print> = prints.filter(|print| mix(*print) & mask == 0).collect();
        let nodes: Vec<usize> = (0..answers.nodes()).collect();
        let mean = mean_bytes(&nodes, answers);
        let (mut best, mut sum) = ((0.0, None), 0.0);
        for &node in &nodes {
            let load = answers.used_bytes(node) as f64 / mean;
            let vote = answers.known(node, &sample) as f64 / load.max(1.0);
            sum += vote;
            if vote > best.0 && load <= self.overload {
                best = (vote, Some(node));
            }
        }
        let needed = self.benefit * sum / nodes.len() as f64;
        let chosen = best.1.filter(|_| best.0 > needed || nodes.len() == 1);
        chosen.unwrap_or_else(|| least_loaded(nodes.into_iter(), answers))
    }
}
