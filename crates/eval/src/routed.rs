//! Stateless routing with binning and the sampled index, by the nodes and routers of the product: a
//! dirty segment goes to the bin of its least fingerprint and is compared with what that bin has.

use silt_routing::{
    Application, Chunk, Cluster, Lookup, Node, NodeOptions, Piece, Router, Stateless,
};

use crate::trace::{Print, Trace};
use silt_report::draw;

const CHUNK_BYTES: u32 = 4096;

/// The dirty segments of some days, day by day, as pieces. A machine is a stream.
pub fn pieces(trace: &Trace, days: std::ops::Range<usize>) -> impl Iterator<Item = Piece> {
    days.flat_map(move |day| {
        (0..).zip(&trace.machines).flat_map(move |(stream, machine)| {
            machine.days[day].changed.values().filter_map(move |segment| piece(segment, stream))
        })
    })
}

fn piece(segment: &[Print], stream: u32) -> Option<Piece> {
    let prints = segment.iter().filter(|print| **print != 0);
    let chunk = |print: &Print| Chunk { print: draw(*print), bytes: CHUNK_BYTES };
    let chunks: Vec<Chunk> = prints.map(chunk).collect();
    let is_empty = chunks.is_empty();
    (!is_empty).then_some(Piece { application: Application(0), stream, chunks })
}

/// A cluster that has a node for each bin, which compares a segment with all that it has.
pub fn bins(count: usize) -> Cluster {
    Cluster::new(count, NodeOptions { lookup: Lookup::Full, ..NodeOptions::default() })
}

/// Chunks that all bins store where `router` chooses them.
pub fn stored_by(trace: &Trace, count: usize, router: &mut dyn Router) -> u64 {
    let cluster = bins(count);
    for piece in pieces(trace, 0..trace.days()) {
        cluster.back_up(router, &piece);
    }
    let used: u64 = cluster.all().iter().map(Node::used_bytes).sum();
    used / u64::from(CHUNK_BYTES)
}

/// Chunks that are stored, and entries of all bins: as many.
pub fn stored_chunks(trace: &Trace, count: usize) -> (u64, u64) {
    let stored = stored_by(trace, count, &mut Stateless::default());
    (stored, stored)
}

/// What a sampled index leaves of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    pub stored: u64,
    /// Entries in memory.
    pub entries: u64,
    /// Bytes that their table takes in memory.
    pub bytes: u64,
    /// Containers whose fingerprints were read, for each dirty segment.
    pub fetched: f64,
}

/// One node with an index of one fingerprint in `rate`, and a cache of so many containers.
pub fn sampled(trace: &Trace, rate: u64, cache_containers: usize) -> Sampled {
    let lookup = Lookup::Sampled(rate);
    let node = Node::new(NodeOptions { lookup, cache_containers, ..NodeOptions::default() });
    let mut segments = 0_u64;
    for piece in pieces(trace, 0..trace.days()) {
        node.store(&piece);
        segments += 1;
    }
    Sampled {
        stored: node.used_bytes() / u64::from(CHUNK_BYTES),
        entries: node.entries(),
        bytes: node.index_bytes(),
        fetched: node.index_reads() as f64 / segments.max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use silt_routing::{Answers, Grain, Piece, Router, Stateless, mix};

    use super::{sampled, stored_by};
    use crate::generate::{Shape, generate};
    use crate::schemes::unique;
    use crate::trace::{Print, Trace};
    use silt_report::{Random, draw};

    const BINS: usize = 64;

    fn trace() -> Trace {
        generate(&Shape { machines: 12, segments: 5, days: 3, ..Shape::default() })
    }

    /// Sets of the trace's fingerprints, one for each bin: the check of the row.
    fn oracle(trace: &Trace) -> u64 {
        let mut bins: HashMap<u64, HashSet<Print>> = HashMap::new();
        let mut stored = 0;
        for day in 0..trace.days() {
            for machine in &trace.machines {
                for segment in machine.days[day].changed.values() {
                    let all = || segment.iter().filter(|p| **p != 0).map(|print| draw(*print));
                    let bin = bins.entry(mix(all().min().unwrap_or(0)) % BINS as u64).or_default();
                    stored += all().filter(|print| bin.insert(*print)).count() as u64;
                }
            }
        }
        stored
    }

    /// A router that does not look at a piece.
    struct Anywhere(Random);

    impl Router for Anywhere {
        fn grain(&self) -> Grain {
            Grain::File
        }
        fn route(&mut self, _: &Piece, answers: &dyn Answers) -> usize {
            self.0.below(answers.nodes())
        }
    }

    #[test]
    fn bins_store_what_sets_of_the_least_fingerprints_do_and_random_ones_more() {
        let trace = trace();
        let expected = oracle(&trace);
        assert_eq!(stored_by(&trace, BINS, &mut Stateless::default()), expected);
        // The mutation: the same row without the router fails the check, and by far.
        let anywhere = stored_by(&trace, BINS, &mut Anywhere(Random(3)));
        assert!(anywhere as f64 > expected as f64 * 1.1, "{anywhere} for {expected}");
    }

    #[test]
    fn a_sampled_index_trades_entries_for_duplicates() {
        let trace = trace();
        let perfect = unique(&trace);
        let of = |rate| sampled(&trace, rate, 4);
        let (every, few, fewer) = (of(1), of(64), of(4096));
        assert!((perfect..=perfect * 11 / 10).contains(&every.stored), "{every:?}");
        assert!(every.stored < few.stored && few.stored < fewer.stored, "{few:?} {fewer:?}");
        assert!((every.entries as f64 / few.entries as f64 / 64.0 - 1.0).abs() < 0.3);
        assert!(every.bytes > few.bytes * 16 && few.fetched > 0.0);
    }
}
