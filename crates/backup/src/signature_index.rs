//! Finds segments that share signatures with a new one, in bounded memory.

use std::collections::HashMap;

use silt_format::number::to_u32;
use silt_format::{BlockRef, ObjectTag, SIGNATURES, Signatures};

use super::options::DetectionOptions;

/// Number of segments with one equal signature that a search examines, newest first.
const CHAIN_MAX: usize = 12;
const END: u32 = u32::MAX;

/// A place to look for the chunks of a new segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Candidate {
    /// A recipe of this series.
    Recipe(BlockRef),
    /// A container that an interrupted backup has left.
    Container(u32, ObjectTag),
}

/// Maps each signature to the segments that have it, newest first.
///
/// Once it is full, only signatures whose hash falls below a threshold are kept, and the threshold
/// is halved each time. Stored and searched segments are sampled in the same way, so similar
/// segments still share signatures, only fewer than eight.
pub(crate) struct SignatureIndex {
    places_max: usize,
    /// Number of signatures of each segment that are stored and compared.
    signatures: usize,
    /// Maximum number of candidates that one search returns.
    candidates_max: usize,
    heads: HashMap<(u8, u32), u32>,
    places: Vec<(u32, u32)>,
    candidates: Vec<Candidate>,
    sampled_bits: u32,
}

impl SignatureIndex {
    /// Returns an empty index of at most `places_max` places. A segment takes one place for each of
    /// its signatures, at most eight.
    pub(crate) fn new(places_max: usize, options: &DetectionOptions) -> Self {
        Self {
            places_max,
            signatures: options.similar_signatures.min(SIGNATURES),
            candidates_max: options.similar_segments,
            heads: HashMap::new(),
            places: Vec::new(),
            candidates: Vec::new(),
            sampled_bits: 0,
        }
    }

    /// Returns whether searches never find a candidate.
    pub(crate) fn is_off(&self) -> bool {
        self.signatures == 0 || self.candidates_max == 0
    }

    /// Adds a segment, or a part of a container.
    pub(crate) fn insert(&mut self, signatures: &Signatures, candidate: Candidate) {
        if self.is_off() {
            return;
        }
        let id = to_u32(self.candidates.len());
        self.candidates.push(candidate);
        for (bucket, &value) in (0_u8..).zip(&signatures.0[..self.signatures]) {
            self.insert_place(bucket, value, id);
        }
        if self.places.len() > self.places_max {
            self.thin();
        }
    }

    fn insert_place(&mut self, bucket: u8, value: u32, id: u32) {
        if value == u32::MAX || !self.is_sampled(value) {
            return;
        }
        let place = to_u32(self.places.len());
        let next = self.heads.insert((bucket, value), place).unwrap_or(END);
        self.places.push((id, next));
    }

    /// Decides by the low bits: signatures are minima, so their high bits are not random.
    fn is_sampled(&self, value: u32) -> bool {
        value & ((1 << self.sampled_bits) - 1) == 0
    }

    /// Halves the sample until the index is at most half full.
    fn thin(&mut self) {
        while self.places.len() > self.places_max / 2 {
            self.sampled_bits += 1;
            let empty =
                Self { heads: HashMap::new(), places: Vec::new(), candidates: Vec::new(), ..*self };
            let old = std::mem::replace(self, empty);
            let mut kept = HashMap::new();
            // In a fixed order, so that the same input gives the same candidates.
            let heads: std::collections::BTreeMap<_, _> = old.heads.into_iter().collect();
            for ((bucket, value), head) in heads {
                if !self.is_sampled(value) {
                    continue;
                }
                // Chains are newest first; the copies are made oldest first to keep that order.
                let mut chain = Vec::new();
                let mut at = head;
                while at != END && chain.len() < CHAIN_MAX {
                    let (id, next) = old.places[at as usize];
                    chain.push(id);
                    at = next;
                }
                for id in chain.into_iter().rev() {
                    let new = *kept.entry(id).or_insert_with(|| {
                        self.candidates.push(old.candidates[id as usize]);
                        to_u32(self.candidates.len() - 1)
                    });
                    self.insert_place(bucket, value, new);
                }
            }
            assert!(self.sampled_bits < 32, "thinning ends");
        }
    }

    /// Returns the candidates that share the most signatures with a segment, best first.
    pub(crate) fn search(&self, signatures: &Signatures) -> Vec<Candidate> {
        let mut ids = Vec::with_capacity(SIGNATURES * CHAIN_MAX);
        for (bucket, &value) in (0_u8..).zip(&signatures.0[..self.signatures]) {
            let mut at = self.heads.get(&(bucket, value)).copied().unwrap_or(END);
            for _ in 0..CHAIN_MAX {
                if at == END {
                    break;
                }
                let (id, next) = self.places[at as usize];
                ids.push(id);
                at = next;
            }
        }
        ids.sort_unstable();
        let mut votes: Vec<(usize, u32)> =
            ids.chunk_by(|a, b| a == b).map(|same| (same.len(), same[0])).collect();
        // Of equally similar candidates, the newest is the best guess.
        votes.sort_unstable_by(|a, b| b.cmp(a));
        votes.truncate(self.candidates_max);
        votes.into_iter().map(|(_, id)| self.candidates[id as usize]).collect()
    }
}
