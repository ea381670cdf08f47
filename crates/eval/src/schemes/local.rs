//! Deduplication inside a machine: dirty bits, the same place, similar segments.

use std::collections::{BTreeMap, HashMap, HashSet};

use silt_chunking::signatures;
use silt_format::Fingerprint;

use crate::random::draw;
use crate::trace::{Print, Segment, Trace, chunks};

/// Most segments of the parent that one is compared with.
const SIMILAR_MAX: usize = 10;

/// Where a dirty segment's chunks are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// In the parent's segment at the same place.
    SamePlace,
    /// Also in the parent's segments with the same least fingerprint, as the paper does.
    One,
    /// Also in those that share one of the product's eight signatures.
    Eight,
}

/// Chunks in segments that have changed: what dirty bits alone leave.
pub fn dirty_chunks(trace: &Trace) -> u64 {
    let days = trace.machines.iter().flat_map(|machine| &machine.days);
    days.flat_map(|day| day.changed.values()).map(|segment| chunks(segment)).sum()
}

/// Calls `rest` with every chunk that is not found in its machine, and the machine's number.
pub fn after_search(trace: &Trace, search: Search, rest: &mut dyn FnMut(usize, Print)) {
    for (number, machine) in trace.machines.iter().enumerate() {
        let mut disk: BTreeMap<u32, &Segment> = BTreeMap::new();
        let mut similar: HashMap<u64, Vec<u32>> = HashMap::new();
        for day in &machine.days {
            for (place, segment) in &day.changed {
                let mut candidates: Vec<&Segment> = disk.get(place).copied().into_iter().collect();
                for signature in signatures_of(segment, search) {
                    let places = similar.get(&signature).into_iter().flatten();
                    candidates.extend(places.filter_map(|place| disk.get(place).copied()));
                }
                candidates.truncate(SIMILAR_MAX);
                let mut known: HashSet<Print> = candidates
                    .into_iter()
                    .flat_map(|candidate| candidate.iter().copied())
                    .collect();
                known.insert(0);
                segment.iter().filter(|print| known.insert(**print)).for_each(|print| {
                    rest(number, *print);
                });
            }
            disk.extend(day.changed.iter().map(|(place, segment)| (*place, segment)));
            similar.clear();
            if search == Search::SamePlace {
                continue;
            }
            for (place, segment) in &disk {
                for signature in signatures_of(segment, search) {
                    similar.entry(signature).or_default().push(*place);
                }
            }
        }
    }
}

/// What a segment is known by.
fn signatures_of(segment: &[Print], search: Search) -> Vec<u64> {
    let prints = segment.iter().filter(|print| **print != 0);
    match search {
        Search::SamePlace => Vec::new(),
        Search::One => prints.map(|print| draw(*print)).min().into_iter().collect(),
        Search::Eight => {
            let found = signatures(prints.map(|print| {
                let mut fingerprint = [0; 20];
                fingerprint[..8].copy_from_slice(&print.to_be_bytes());
                fingerprint[8..16].copy_from_slice(&draw(*print).to_be_bytes());
                Fingerprint(fingerprint)
            }));
            let all = (0_u64..).zip(found.0).filter(|(_, value)| *value != u32::MAX);
            all.map(|(bucket, value)| bucket << 32 | u64::from(value)).collect()
        }
    }
}
