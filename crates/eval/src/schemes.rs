//! The schemes, each run over a whole trace: the product's by the product itself.

use std::collections::{BTreeSet, HashSet};
use std::thread::ScopedJoinHandle;

use silt_format::{BLOCK_BYTES, CONTAINER_SLOTS_MAX, Level, LevelBytes};
use siltstone::{DetectionOptions, PopularReport, SharePolicy};

use crate::Result;
use crate::fleet::{Block, Fleet};
use crate::routed;
use crate::trace::{Print, Trace};
use silt_report::{Table, number, percent};

/// Blocks of its own store and of the shared one.
pub type Needed = (BTreeSet<Block>, BTreeSet<Block>);

/// What a scheme leaves.
pub struct Outcome {
    pub name: String,
    /// Chunks that are stored.
    pub stored_chunks: u64,
    /// Entries of the index that the scheme holds in memory, of all machines together.
    pub index_entries: u64,
    /// The efficiency and the memory of a machine in MB that were published, if they were.
    pub published: (Option<f64>, Option<&'static str>),
}

/// What is left where a share of the different chunks is popular.
#[derive(Clone, Copy, Debug)]
pub struct Popular {
    pub share: f64,
    /// Chunks in all stores.
    pub stored: u64,
    /// Chunks in the shared store, all of which the index has.
    pub entries: u64,
    /// Bytes of the index as it is stored.
    pub index_bytes: u64,
}

/// What the schemes leave of a trace.
pub struct Outcomes {
    pub schemes: Vec<Outcome>,
    /// What each level of the product found.
    pub levels: LevelBytes,
    /// Chunks that are stored where nothing is shared.
    pub alone: u64,
    /// What is stored by the share of the different chunks that is popular.
    pub popular: Vec<Popular>,
    /// For each of [`BLOCKS`], the blocks of its own and of the shared store that each
    /// machine's last snapshot needs where [`BLOCKS_SHARE`] is popular.
    pub blocks: Vec<Vec<Needed>>,
}

/// The cluster that the papers report on: raw bytes and machines (000), bytes of an index entry
/// (001, u).
const RAW_BYTES: f64 = 1e15;
const HOSTS: f64 = 100.0;
const ENTRY_BYTES: f64 = 40.0;
/// Bins of stateless routing: ours, as the text gives no number.
pub const BINS: usize = 1024;
/// Rounds of a day: ours.
const ROUNDS: usize = 2;
/// Popular shares of the different chunks, rising: what is shared stays so.
const SHARES: [f64; 6] = [0.005, 0.01, 0.02, 0.04, 0.08, 0.16];
/// Blocks whose loss is counted, and how many chunks of 4 KiB one holds. A machine of the generated
/// trace has as many blocks of 8 chunks, a part of a frame, as one of 40 GB has of 64 MiB. Frames
/// and containers are as the product writes them, with chunks that compress to half; containers of
/// 64 MiB are written if it is told so.
pub const BLOCKS: [(&str, usize); 4] = [
    ("8 chunks", 8),
    ("a frame of 256 KiB", 64),
    ("a container of 8 MiB", 4096),
    ("a container of 64 MiB", 32768),
];
/// A number of chunks that no container exceeds, so that a block is a whole one.
const WHOLE: usize = CONTAINER_SLOTS_MAX;
/// The share that is popular where blocks are counted.
pub const BLOCKS_SHARE: f64 = 0.02;

/// Where the parent's segment at the same offset is all that is searched.
pub const SAME_OFFSET: DetectionOptions = DetectionOptions {
    same_offset: true,
    recent: false,
    similar_signatures: 0,
    similar_segments: 0,
    shared: true,
    nodes: false,
};

/// As the paper searches: by one signature.
pub const ONE_SIGNATURE: DetectionOptions =
    DetectionOptions { similar_signatures: 1, similar_segments: 10, ..SAME_OFFSET };

/// Chunks that a level accounted for.
pub fn chunks(levels: &LevelBytes, level: Level) -> u64 {
    levels.get(level) / BLOCK_BYTES as u64
}

/// Chunks of segments that are not as in the parent.
pub fn dirty_chunks(levels: &LevelBytes) -> u64 {
    let looked_for = Level::ALL
        .into_iter()
        .filter(|level| !matches!(level, Level::Zero | Level::Map | Level::Digest));
    looked_for.map(|level| chunks(levels, level)).sum()
}

/// How many different chunks a trace has: what a perfect scheme leaves.
pub fn unique(trace: &Trace) -> u64 {
    let days = trace.machines.iter().flat_map(|machine| &machine.days);
    let segments = days.flat_map(|day| day.changed.values());
    let all: HashSet<Print> = segments.flat_map(|segment| segment.iter().copied()).collect();
    (all.len() - usize::from(all.contains(&0))) as u64
}

/// Chunks in all stores of a fleet.
fn stored(counted: &PopularReport) -> u64 {
    counted.private_slots + counted.shared_slots
}

/// A fleet in which only the same place is searched: the chunks that are dirty, those that are
/// stored, and those that are stored and shared where 2 % are popular.
fn same_offset(trace: &Trace) -> Result<(u64, u64, (u64, u64))> {
    let fleet = Fleet::backed_up(trace, SAME_OFFSET)?;
    let alone = fleet.share(SharePolicy::Popular(0.02))?;
    let popular = fleet.count()?;
    let popular = (stored(&popular), popular.shared_slots);
    Ok((dirty_chunks(&fleet.levels), stored(&alone), popular))
}

/// What the product leaves with all its levels.
struct Whole {
    levels: LevelBytes,
    /// Chunks that are stored and shared before anything is shared, with each of [`SHARES`], and
    /// with all duplicates.
    counts: Vec<(u64, u64)>,
    /// Bytes of the index with each of [`SHARES`].
    index_bytes: Vec<u64>,
    blocks: Vec<Vec<Needed>>,
}

fn whole(trace: &Trace) -> Result<Whole> {
    let fleet = Fleet::backed_up(trace, DetectionOptions::default())?;
    let (mut counts, mut index_bytes, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    let mut count = |counted: &PopularReport| {
        counts.push((stored(counted), counted.shared_slots));
    };
    for share in SHARES {
        count(&fleet.share(SharePolicy::Popular(share))?);
        index_bytes.push(fleet.index_bytes()?);
        if share == BLOCKS_SHARE {
            let sizes = [BLOCKS[0].1, BLOCKS[1].1, WHOLE];
            blocks = sizes.iter().map(|size| fleet.blocks(*size)).collect::<Result<_>>()?;
        }
    }
    count(&fleet.share(SharePolicy::Duplicates)?);
    count(&fleet.count()?);
    Ok(Whole { levels: fleet.levels, counts, index_bytes, blocks })
}

/// The containers of 64 MiB that each machine's last snapshot needs.
pub fn large_containers(trace: &Trace) -> Result<Vec<Needed>> {
    let fleet = Fleet::in_large_containers(trace)?;
    fleet.share(SharePolicy::Popular(BLOCKS_SHARE))?;
    fleet.blocks(WHOLE)
}

/// Runs all schemes, those of the product side by side.
pub fn run_all(trace: &Trace) -> Result<Outcomes> {
    let (rounds, whole, same, one, large) = std::thread::scope(|scope| {
        let rounds = scope.spawn(|| {
            let fleet = Fleet::in_rounds(trace, ROUNDS)?;
            fleet.link()?;
            fleet.count()
        });
        let whole = scope.spawn(|| whole(trace));
        let same = scope.spawn(|| same_offset(trace));
        let one = scope.spawn(|| Fleet::backed_up(trace, ONE_SIGNATURE)?.count());
        let large = scope.spawn(|| large_containers(trace));
        (joined(rounds), joined(whole), joined(same), joined(one), joined(large))
    });
    let (rounds, mut whole, same) = (stored(&rounds?), whole?, same?);
    whole.blocks.push(large?);
    let mut schemes = Vec::new();
    // Published as what is left, 24.13 and 12.05 % (000): of what a perfect scheme removes, which
    // leaves 4.8 % if 8.6 % that are left are an efficiency of 96.01 %.
    let mut push = |name: &str, (stored_chunks, index_entries), published| {
        let name = name.to_owned();
        schemes.push(Outcome { name, stored_chunks, index_entries, published });
    };
    push("dirty bits only", (same.0, 0), (Some(79.7), Some("-")));
    push("same place in the parent", (same.1, 0), (None, None));
    push("similar segments, one signature", (stored(&one?), 0), (Some(92.4), Some("10")));
    push("all levels inside a machine", whole.counts[0], (None, None));
    push("popular 2 %, no similarity", same.2, (Some(94.3), Some("108")));
    let shares = SHARES.into_iter().zip(whole.counts[1..].iter().copied());
    for (share, efficiency, memory) in [(0.02, 96.01, "118"), (0.04, 96.58, "190-220")] {
        let name = format!("popular {} %", share * 100.0);
        let count = shares.clone().find(|found| found.0 == share).map_or((0, 0), |found| found.1);
        push(&name, count, (Some(efficiency), Some(memory)));
    }
    push("all duplicates shared", whole.counts[SHARES.len() + 1], (None, None));
    let routed = routed::stored_chunks(trace, BINS);
    push("stateless routing with binning", routed, (Some(97.86), Some("2400")));
    let name = format!("collaborative, {ROUNDS} rounds a day");
    push(&name, (rounds, 0), (Some(100.0), Some("35-90")));
    let perfect = unique(trace);
    push("synchronous (perfect)", (perfect, perfect), (Some(100.0), Some("40")));
    Ok(Outcomes {
        schemes,
        levels: whole.levels,
        alone: whole.counts[0].0,
        popular: shares
            .zip(&whole.index_bytes)
            .map(|((share, (stored, entries)), bytes)| Popular {
                share,
                stored,
                entries,
                index_bytes: *bytes,
            })
            .collect(),
        blocks: whole.blocks,
    })
}

/// The efficiencies of dirty bits, one signature, 2 % popular, and stateless routing with binning.
pub fn in_brief(trace: &Trace) -> Result<[f64; 4]> {
    let (one, all) = std::thread::scope(|scope| {
        let one = scope.spawn(|| Fleet::backed_up(trace, ONE_SIGNATURE)?.count());
        let all = scope.spawn(|| {
            let fleet = Fleet::backed_up(trace, DetectionOptions::default())?;
            fleet.share(SharePolicy::Popular(0.02))?;
            Ok((dirty_chunks(&fleet.levels), stored(&fleet.count()?)))
        });
        (joined(one), joined(all))
    });
    let (one, (dirty, popular)) = (stored(&one?), all?);
    let (raw, perfect) = (trace.raw_chunks(), unique(trace));
    let routed = routed::stored_chunks(trace, BINS).0;
    Ok([dirty, one, popular, routed].map(|stored| efficiency(raw, perfect, stored)))
}

/// What a thread came to.
fn joined<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// The table of efficiency beside what was published.
pub fn table(machines: &str, trace: &Trace, outcomes: &Outcomes) -> Table {
    let raw = trace.raw_chunks();
    let perfect = unique(trace);
    let mut table = Table::new(
        &format!("Efficiency of the schemes, {machines}"),
        &[
            "scheme",
            "of raw left %",
            "data reduction %",
            "efficiency %",
            "published efficiency % (output)",
            "index MB a host, scaled",
            "published MB (output)",
        ],
    );
    for outcome in &outcomes.schemes {
        let scaled =
            outcome.index_entries as f64 / raw as f64 * (RAW_BYTES / 4096.0) * ENTRY_BYTES / HOSTS;
        let efficiency = efficiency(raw, perfect, outcome.stored_chunks);
        let published = outcome.published.0.map_or("-".to_owned(), |value| format!("{value:.2}"));
        table.row(vec![
            outcome.name.clone(),
            percent(outcome.stored_chunks as f64 / raw as f64),
            percent(1.0 - outcome.stored_chunks as f64 / raw as f64),
            percent(efficiency),
            published,
            number(scaled / 1e6),
            outcome.published.1.unwrap_or("-").to_owned(),
        ]);
    }
    let dirty = dirty_chunks(&outcomes.levels);
    let found = [Level::SameOffset, Level::Recent, Level::Similar, Level::New].map(|level| {
        format!(
            "{} {} %",
            level.name(),
            percent(chunks(&outcomes.levels, level) as f64 / dirty as f64)
        )
    });
    table.note(format!(
        "All levels inside a machine account for the chunks of dirty segments in this way: {}.",
        found.join(", ")
    ));
    table
}

/// Of the duplicates that a perfect scheme removes, the share that is removed where so much is
/// stored.
pub fn efficiency(raw: u64, perfect: u64, stored: u64) -> f64 {
    (raw as f64 - stored as f64) / (raw as f64 - perfect as f64)
}

#[cfg(test)]
mod tests;
