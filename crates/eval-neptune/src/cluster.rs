//! Cluster-based deduplication: super-chunks are routed to the node that has most of them.
//!
//! Routing is stateful: of each super-chunk, a sample of the fingerprints is looked up on all
//! nodes. Inside a node, deduplication is exact.

use std::collections::HashSet;

use silt_format::Fingerprint;

use crate::destination::BLOOM_BYTES;
use crate::now;
use crate::prepare::Prepared;
use silt_report::floor;

/// Nodes of the cluster.
pub const NODES: usize = 16;
/// Bytes of a super-chunk.
const SUPER_CHUNK_BYTES: u64 = 1 << 20;
/// One fingerprint in so many is looked up on all nodes.
const SAMPLE: u32 = 8;
/// So much more must be on a node than on that which the first fingerprint names.
const BENEFIT: f64 = 1.5;
/// Of the fingerprints, those in the cache: one in so many.
const CACHED: usize = 8;
/// Bytes of a fingerprint on the wire, and in a table with its place.
const PRINT_BYTES: u64 = 20;
const ENTRY_BYTES: usize = 24;

/// What was counted after round 0.
#[derive(Clone, Debug, Default)]
pub struct Routed {
    pub logical: u64,
    pub chunks: u64,
    pub duplicates: u64,
    /// Bytes of fingerprints and of chunks that their node does not have.
    pub sent: u64,
    pub raw: u64,
    pub packed: u64,
    /// Chunks that another node has.
    pub lost: u64,
    /// Seconds of routing and look-ups.
    pub search: f64,
    pub memory: usize,
}

#[derive(Default)]
struct Node {
    bytes: u64,
    prints: HashSet<Fingerprint>,
    sampled: HashSet<Fingerprint>,
}

fn is_sampled(print: &Fingerprint) -> bool {
    u32::from(print.0[0]) % SAMPLE == 0
}

/// Where a super-chunk goes.
fn route(nodes: &[Node], prints: &[Fingerprint]) -> usize {
    let named = prints
        .first()
        .map_or(0, |print| usize::from(u16::from_le_bytes([print.0[1], print.0[2]])) % nodes.len());
    let mean = nodes.iter().map(|node| node.bytes).sum::<u64>() as f64 / nodes.len() as f64;
    let votes = |node: &Node| {
        let sampled = prints.iter().filter(|print| is_sampled(print));
        let known = sampled.filter(|print| node.sampled.contains(print)).count() as f64;
        known / (node.bytes as f64 / mean.max(1.0)).max(1.0)
    };
    let all: Vec<f64> = nodes.iter().map(votes).collect();
    let best = (0..nodes.len()).max_by(|a, b| all[*a].total_cmp(&all[*b])).unwrap_or(0);
    if all[best] > BENEFIT * all[named] { best } else { named }
}

/// Sends all versions of a set.
pub fn send(prepared: &Prepared) -> crate::Result<Routed> {
    let mut nodes: Vec<Node> = (0..NODES).map(|_| Node::default()).collect();
    let (mut everywhere, mut routed) = (HashSet::new(), Routed::default());
    for version in &prepared.versions {
        let (mut at, mut raw) = (0, Vec::new());
        while at < version.chunks.len() {
            let (start, mut bytes) = (at, 0);
            while at < version.chunks.len() && bytes < SUPER_CHUNK_BYTES {
                bytes += prepared.chunk(version.chunks[at]).len() as u64;
                at += 1;
            }
            let chunks = &version.chunks[start..at];
            let time = now();
            let print = |chunk: &u32| prepared.chunks[*chunk as usize].print;
            let prints: Vec<Fingerprint> = chunks.iter().map(print).collect();
            let node = route(&nodes, &prints);
            let node = &mut nodes[node];
            let is_new: Vec<bool> = prints.iter().map(|it| node.prints.insert(*it)).collect();
            node.sampled.extend(prints.iter().filter(|print| is_sampled(print)));
            let seconds = time.elapsed().as_secs_f64();
            for (chunk, _) in chunks.iter().zip(&is_new).filter(|(_, is_new)| **is_new) {
                node.bytes += prepared.chunk(*chunk).len() as u64;
                raw.extend_from_slice(prepared.chunk(*chunk));
                let is_lost = !everywhere.insert(*chunk) && version.round > 0;
                routed.lost += u64::from(is_lost);
            }
            if version.round > 0 {
                routed.search += seconds;
                routed.logical += bytes;
                routed.chunks += chunks.len() as u64;
                routed.duplicates += is_new.iter().filter(|is_new| !**is_new).count() as u64;
            }
        }
        if version.round > 0 {
            let prints = PRINT_BYTES * version.chunks.len() as u64;
            routed.raw += raw.len() as u64;
            routed.sent += raw.len() as u64 + prints;
            let level = crate::send::LEVEL;
            routed.packed += zstd::bulk::compress(&raw, level)?.len() as u64 + prints;
        }
    }
    for node in &nodes {
        let state = node.sampled.capacity() * (size_of::<Fingerprint>() + 1);
        let bloom = floor(node.prints.len() as f64 * BLOOM_BYTES);
        routed.memory += state + bloom + node.prints.len() / CACHED * ENTRY_BYTES;
    }
    Ok(routed)
}
