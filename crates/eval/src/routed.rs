//! Stateless routing with binning: a dirty segment goes to the bin of its least fingerprint and is
//! compared with what that bin has.

use std::collections::{HashMap, HashSet};

use crate::random::draw;
use crate::trace::{Print, Trace};

/// Chunks that are stored, and entries of all bins.
pub fn stored_chunks(trace: &Trace, bins: u64) -> (u64, u64) {
    let mut all: HashMap<u64, HashSet<Print>> = HashMap::new();
    let mut stored = 0;
    for day in 0..trace.days() {
        for machine in &trace.machines {
            for segment in machine.days[day].changed.values() {
                let prints = || segment.iter().filter(|print| **print != 0);
                let Some(least) = prints().map(|print| draw(*print)).min() else { continue };
                let bin = all.entry(least % bins).or_default();
                stored += prints().filter(|print| bin.insert(**print)).count() as u64;
            }
        }
    }
    (stored, all.values().map(|bin| bin.len() as u64).sum())
}
