//! EndRE: redundancy elimination by SampleByte fingerprints, as published, over versions' bytes.
//!
//! A table marks some byte values. A scan stops at each marked byte, fingerprints the 32 bytes from
//! there, and skips half a period. Both ends keep all bytes that were sent.

use std::collections::{HashMap, HashSet};

use crate::prepare::Prepared;
use crate::{Result, now};

/// Bytes of a window.
const WINDOW: usize = 32;
/// Bytes of a match on the wire: where, and how long.
const MATCH_BYTES: u64 = 8;
/// Bytes of the hash of a chunk on the wire.
const CHUNK_BYTES: u64 = 20;
/// Bytes of training data, about.
const TRAINING_BYTES: u64 = 6 << 20;
/// The last round that training data is from.
const TRAINING_ROUND: u32 = 2;
/// Numbers of marked bytes that training tries.
const MARKED: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The bounds of the period in bytes.
pub const PERIODS: [usize; 5] = [32, 64, 128, 256, 512];
/// Loads of the processor above which the period doubles, and below which it is halved.
const LOAD_HIGH: f64 = 0.8;
const LOAD_LOW: f64 = 0.4;

/// How matches are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// A fingerprint's bytes are compared and extended both ways.
    Max,
    /// What lies between two fingerprints is a chunk with a hash.
    Chunk,
}

/// What was counted after round 0.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub logical: u64,
    /// Bytes sent: what no match covers, and the matches.
    pub sent: u64,
    pub packed: u64,
    /// Bytes that matches cover.
    pub matched: u64,
    /// Seconds of fingerprints, and of look-ups and comparisons.
    pub sample: f64,
    pub search: f64,
    /// Of the table at the end.
    pub entries: usize,
    pub table_bytes: usize,
}

/// The period after an interval with this load, from 0 to 1.
pub fn next_period(period: usize, load: f64) -> usize {
    let next = if load > LOAD_HIGH {
        period * 2
    } else if load < LOAD_LOW {
        period / 2
    } else {
        period
    };
    next.clamp(PERIODS[0], PERIODS[4])
}

/// Bob Jenkins's hash, one byte at a time.
fn jenkins(bytes: &[u8]) -> u32 {
    let mixed = bytes.iter().fold(0_u32, |hash, byte| {
        let hash = hash.wrapping_add(u32::from(*byte));
        let hash = hash.wrapping_add(hash << 10);
        hash ^ (hash >> 6)
    });
    let hash = mixed.wrapping_add(mixed << 3);
    let hash = hash ^ (hash >> 11);
    hash.wrapping_add(hash << 15)
}

/// The bytes that redundant content begins with, those of most of it first: training finds
/// windows at maxima of a hash that occurred before.
fn ranked(training: &[u8]) -> Vec<u8> {
    let (mut seen, mut counts) = (HashSet::new(), [0_u64; 256]);
    let hashes: Vec<u32> = training.windows(8).map(jenkins).collect();
    for (place, near) in hashes.chunks(PERIODS[0]).enumerate() {
        let maximum = (0..near.len()).max_by_key(|at| near[*at]).unwrap_or(0);
        let at = place * PERIODS[0] + maximum;
        let Some(window) = training.get(at..at + WINDOW) else { continue };
        if !seen.insert(window) {
            counts[usize::from(window[0])] += 1;
        }
    }
    let mut bytes: Vec<u8> = (0..=255).collect();
    bytes.sort_by_key(|byte| std::cmp::Reverse(counts[usize::from(*byte)]));
    bytes
}

/// Which bytes are marked.
pub struct SampleByte {
    marked: [bool; 256],
    period: usize,
}

impl SampleByte {
    /// A table for a period: the bytes that most redundant content begins with, and so many of them
    /// that twice as many would not find one percent more in the training data. Skipping half a
    /// period keeps samples from becoming too many.
    pub fn train(training: &[u8], period: usize) -> Self {
        let ranked = ranked(training);
        let mut best = (Self { marked: [false; 256], period }, 0);
        for count in MARKED {
            let mut table = Self { marked: [false; 256], period };
            ranked[..count].iter().for_each(|byte| table.marked[usize::from(*byte)] = true);
            let mut seen = HashSet::new();
            let samples = table.sample(training);
            let found = samples.iter().filter(|(_, print)| !seen.insert(*print)).count();
            // Of a match, samples are a period apart in the mean.
            if found as f64 > best.1 as f64 * 1.01 {
                best = (table, found);
            }
        }
        best.0
    }

    /// Where windows begin, and their fingerprints.
    fn sample(&self, bytes: &[u8]) -> Vec<(usize, u32)> {
        let (mut found, mut at) = (Vec::new(), 0);
        while at + WINDOW <= bytes.len() {
            if self.marked[usize::from(bytes[at])] {
                found.push((at, jenkins(&bytes[at..at + WINDOW])));
                at += self.period / 2;
            } else {
                at += 1;
            }
        }
        found
    }
}

/// Both ends.
struct Ends {
    /// All bytes that were sent, and where each fingerprint was last; only the last `cache` bytes
    /// are in the caches of both.
    kept: Vec<u8>,
    cache: usize,
    places: HashMap<u32, u32>,
    chunks: HashSet<[u8; 20]>,
    fingerprinter: silt_chunking::Fingerprinter,
}

impl Ends {
    /// Bytes that matches cover, the rest, and the number of matches; by extending fingerprints.
    fn longest(&self, bytes: &[u8], samples: &[(usize, u32)]) -> (u64, Vec<u8>, u64) {
        let (mut done, mut matched, mut matches, mut rest) = (0, 0, 0, Vec::new());
        let first = self.kept.len().saturating_sub(self.cache);
        for (at, print) in samples {
            let Some(place) = self.places.get(print).filter(|_| *at >= done) else { continue };
            let from = *place as usize;
            if from < first {
                continue;
            }
            let same = self.kept[from..].iter().zip(&bytes[*at..]);
            let forward = same.take_while(|(ours, theirs)| ours == theirs).count();
            if forward < WINDOW {
                continue;
            }
            let same = self.kept[first..from].iter().rev().zip(bytes[done..*at].iter().rev());
            let back = same.take_while(|(ours, theirs)| ours == theirs).count();
            rest.extend_from_slice(&bytes[done..at - back]);
            matched += (forward + back) as u64;
            matches += 1;
            done = at + forward;
        }
        rest.extend_from_slice(&bytes[done..]);
        (matched, rest, matches)
    }

    /// The same by the hashes of what lies between fingerprints.
    fn known(&mut self, bytes: &[u8], samples: &[(usize, u32)]) -> (u64, Vec<u8>, u64) {
        let (mut matched, mut matches, mut rest, mut start) = (0, 0, Vec::new(), 0);
        let ends = samples.iter().map(|(at, _)| *at).filter(|at| *at > 0).chain([bytes.len()]);
        for end in ends {
            let chunk = &bytes[start..end];
            let hash = self.fingerprinter.fingerprint(chunk).0;
            if self.chunks.insert(hash) {
                rest.extend_from_slice(chunk);
            } else {
                matched += chunk.len() as u64;
                matches += 1;
            }
            start = end;
        }
        (matched, rest, matches)
    }
}

/// All versions of the first rounds of some files.
fn training(prepared: &Prepared) -> Vec<u8> {
    let early = || prepared.versions.iter().filter(|version| version.round <= TRAINING_ROUND);
    let chunks = early().flat_map(|version| &version.chunks);
    let bytes: u64 = chunks.map(|chunk| prepared.chunk(*chunk).len() as u64).sum();
    let one_in = u32::try_from(bytes.div_ceil(TRAINING_BYTES)).unwrap_or(u32::MAX).max(1);
    let some = early().filter(|version| version.file.is_multiple_of(one_in));
    some.flat_map(|version| prepared.version(version)).collect()
}

/// Sends all versions of a set; `period` is that of each round, and `cache` how many bytes both
/// ends keep.
pub fn send(
    prepared: &Prepared,
    by: Match,
    cache: usize,
    period: impl Fn(u32) -> usize,
) -> Result<Found> {
    let training = training(prepared);
    let mut tables: HashMap<usize, SampleByte> = HashMap::new();
    let mut ends = Ends {
        kept: Vec::new(),
        cache,
        places: HashMap::new(),
        chunks: HashSet::new(),
        fingerprinter: silt_chunking::Fingerprinter::new([6; 32]),
    };
    let mut found = Found::default();
    for version in &prepared.versions {
        let period = period(version.round);
        let table = tables.entry(period).or_insert_with(|| SampleByte::train(&training, period));
        let bytes = prepared.version(version);
        let start = now();
        let samples = table.sample(&bytes);
        let sampled = start.elapsed().as_secs_f64();
        let start = now();
        let (matched, rest, matches) = match by {
            Match::Max => ends.longest(&bytes, &samples),
            Match::Chunk => ends.known(&bytes, &samples),
        };
        if by == Match::Max {
            let first = ends.kept.len();
            ends.kept.extend_from_slice(&bytes);
            for (at, print) in samples {
                ends.places.insert(print, u32::try_from(first + at)?);
            }
            let first = ends.kept.len().saturating_sub(cache);
            if first > 0 && version.file.is_multiple_of(64) {
                ends.places.retain(|_, place| *place as usize >= first);
                ends.places.shrink_to_fit();
            }
        }
        let searched = start.elapsed().as_secs_f64();
        if version.round > 0 {
            let match_bytes = if by == Match::Max { MATCH_BYTES } else { CHUNK_BYTES };
            found.logical += bytes.len() as u64;
            found.matched += matched;
            found.sent += rest.len() as u64 + matches * match_bytes;
            found.packed += zstd::bulk::compress(&rest, crate::send::LEVEL)?.len() as u64;
            found.packed += matches * match_bytes;
            found.sample += sampled;
            found.search += searched;
        }
    }
    found.entries = ends.places.len() + ends.chunks.len();
    found.table_bytes = ends.places.capacity() * 9 + ends.chunks.capacity() * 21;
    Ok(found)
}
