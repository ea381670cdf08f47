//! The popular data set: the chunks that most machines have, stored once.

use std::collections::{HashMap, HashSet};

use super::local::{Search, after_search};
use crate::random::floor;
use crate::trace::{Print, Trace};

/// How many different chunks a trace has: what a perfect scheme leaves.
pub fn unique(trace: &Trace) -> u64 {
    let days = trace.machines.iter().flat_map(|machine| &machine.days);
    let segments = days.flat_map(|day| day.changed.values());
    let all: HashSet<Print> = segments.flat_map(|segment| segment.iter().copied()).collect();
    (all.len() - usize::from(all.contains(&0))) as u64
}

/// A chunk after deduplication inside each machine.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Shared {
    /// Machines that have it.
    machines: u32,
    /// How often it is stored without sharing.
    stored: u32,
    print: Print,
}

/// In how many machines chunks are, after deduplication inside each.
pub struct Popularity {
    /// The most popular first.
    chunks: Vec<Shared>,
}

impl Popularity {
    pub fn of(trace: &Trace, search: Search) -> Self {
        let mut all: Vec<(Print, u32)> = Vec::new();
        after_search(trace, search, &mut |machine, print| {
            all.push((print, u32::try_from(machine).unwrap_or(u32::MAX)));
        });
        all.sort_unstable();
        let count = |group: usize| u32::try_from(group).unwrap_or(u32::MAX);
        let groups = all.chunk_by(|a, b| a.0 == b.0);
        let mut chunks: Vec<Shared> = groups
            .map(|group| Shared {
                machines: count(group.chunk_by(|a, b| a.1 == b.1).count()),
                stored: count(group.len()),
                print: group[0].0,
            })
            .collect();
        chunks.sort_unstable_by(|a, b| b.cmp(a));
        Self { chunks }
    }

    /// The popular set of this share of the different chunks, and each chunk's place in it.
    pub fn prints(trace: &Trace, search: Search, share: f64) -> HashMap<Print, usize> {
        let all = Self::of(trace, search);
        let chosen = all.chosen(share);
        all.chunks[..chosen].iter().enumerate().map(|(place, chunk)| (chunk.print, place)).collect()
    }

    fn chosen(&self, share: f64) -> usize {
        floor(self.entries(share)).min(self.chunks.len())
    }

    /// Entries of the index of a popular set of this share of the different chunks.
    pub fn entries(&self, share: f64) -> f64 {
        (self.chunks.len() as f64 * share).round()
    }

    /// Chunks that are stored without sharing.
    pub fn alone(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.stored)).sum()
    }

    /// Chunks that are stored if the most popular ones, of this share, are stored once.
    pub fn stored(&self, share: f64) -> u64 {
        let chosen = self.chosen(share);
        let rest: u64 = self.chunks[chosen..].iter().map(|chunk| u64::from(chunk.stored)).sum();
        chosen as u64 + rest
    }
}
