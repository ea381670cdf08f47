//! AppDedupe and Sigma-Dedupe: the candidate that has most representatives for its load.

use super::SUPER_CHUNK_BYTES;
use crate::director::Director;
use crate::piece::{Grain, Piece};
use crate::placement::Placement;
use crate::router::{Answers, Router, least_loaded, mean_bytes};

/// AppDedupe: the director names the nodes of the application, the handprint chooses among them.
#[derive(Clone, Debug)]
pub struct AppDedupe {
    /// The table of applications.
    pub director: Director,
    /// Representatives of a super-chunk: 8 (section 5).
    pub handprint: usize,
    /// Consistent hashing in the paper.
    pub placement: Placement,
    /// Whether resemblance is divided by load, as it is in the paper.
    pub is_weighted: bool,
    /// Bytes of a super-chunk: 1 MiB (section 5).
    pub super_chunk_bytes: u64,
    /// What is near in a stream is near in a node: a super-chunk follows the one before it to its
    /// node if none resembles it more, unless that node has so many bytes more than the least
    /// loaded one, or four times as many if it knows most of it. If there are no more nodes than
    /// representatives, all are candidates: that a handprint does not name its node must not end a
    /// run. 0, as in the paper, never follows.
    pub run_bytes: u64,
    /// Representatives that a node holds of a super-chunk, as it is cut where the node has it. If
    /// they are fewer than in a handprint, one of two nodes that have the same is found to have
    /// more by chance; then a run goes on with up to half as many fewer.
    pub held: usize,
    /// The node of the last super-chunk, of which there is none at first.
    pub last: Option<usize>,
}

/// Runs by which a node that knows most of a super-chunk may be ahead of the least loaded one.
const RUNS_AHEAD: u64 = 4;

impl Default for AppDedupe {
    fn default() -> Self {
        Self {
            director: Director::new(1.05, 16 << 20),
            handprint: 8,
            placement: Placement::Rendezvous,
            is_weighted: true,
            super_chunk_bytes: SUPER_CHUNK_BYTES,
            run_bytes: 0,
            held: 8,
            last: None,
        }
    }
}

impl Router for AppDedupe {
    fn grain(&self) -> Grain {
        Grain::Bytes(self.super_chunk_bytes)
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        let nodes = self.director.nodes(piece.application, answers);
        let handprint = piece.handprint(self.handprint);
        let candidates = match self.run_bytes {
            1.. if nodes.len() <= self.handprint => nodes.to_vec(),
            _ => self.placement.candidates(&handprint, nodes),
        };
        let run = (self.last, self.run_bytes, self.held);
        let node =
            choose(piece, &handprint, (&candidates, nodes), (self.is_weighted, run), answers);
        self.last = Some(node);
        node
    }
}

/// Sigma-Dedupe: the handprint chooses among all nodes (Middleware 2012, algorithm 1).
#[derive(Debug)]
pub struct Sigma {
    /// Representatives of a super-chunk: 8.
    pub handprint: usize,
    /// Modulo in the paper.
    pub placement: Placement,
}

impl Default for Sigma {
    fn default() -> Self {
        Self { handprint: 8, placement: Placement::Modulo }
    }
}

impl Router for Sigma {
    fn grain(&self) -> Grain {
        Grain::Bytes(SUPER_CHUNK_BYTES)
    }

    fn route(&mut self, piece: &Piece, answers: &dyn Answers) -> usize {
        let nodes: Vec<usize> = (0..answers.nodes()).collect();
        let handprint = piece.handprint(self.handprint);
        let candidates = self.placement.candidates(&handprint, &nodes);
        choose(piece, &handprint, (&candidates, &nodes), (true, (None, 0, 0)), answers)
    }
}

/// The candidate with the most representatives, divided by its load relative to the mean of
/// `nodes`; in runs, that of the last super-chunk if it has as many as any other. If none knows
/// any, the least loaded candidate, or that of the last super-chunk. That one is not chosen so if
/// it has more bytes than the least loaded candidate by the length of a run, or of four runs if it
/// knows three quarters of the representatives: what it knows adds nothing to its load.
fn choose(
    piece: &Piece,
    handprint: &[u64],
    (candidates, nodes): (&[usize], &[usize]),
    (is_weighted, (last, run_bytes, held)): (bool, (Option<usize>, u64, usize)),
    answers: &dyn Answers,
) -> usize {
    let mean = mean_bytes(nodes, answers);
    let mut best: Option<(f64, usize)> = None;
    let (mut most, mut of_last) = (0, 0);
    for &node in candidates {
        let found = answers.similar(node, piece.application, handprint);
        most = most.max(found);
        of_last = if last == Some(node) { found } else { of_last };
        let load = (answers.used_bytes(node) as f64).max(1.0) / mean;
        let value = if is_weighted { found as f64 / load } else { found as f64 };
        if found > 0 && best.is_none_or(|(highest, _)| value > highest) {
            best = Some((value, node));
        }
    }
    let least = least_loaded(candidates.iter().copied(), answers);
    // What several nodes have lies in each of them in the order of the stream that stored it.
    let adds_little = of_last > 0 && of_last * 4 >= held.min(handprint.len()) * 3;
    let runs_ahead = if adds_little { RUNS_AHEAD } else { 1 };
    let ahead_max = answers.used_bytes(least).saturating_add(run_bytes.saturating_mul(runs_ahead));
    let by_chance = if held < handprint.len() { held / 2 } else { 0 };
    let follows = |node: &usize| {
        let has_most = of_last + by_chance >= most && (of_last > 0 || most == 0);
        has_most && candidates.contains(node) && answers.used_bytes(*node) < ahead_max
    };
    if run_bytes > 0
        && let Some(last) = last.filter(follows)
    {
        return last;
    }
    match best {
        Some((_, node)) => node,
        None if is_weighted => least,
        None => candidates.first().copied().unwrap_or(0),
    }
}
