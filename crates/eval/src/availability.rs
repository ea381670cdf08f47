//! What of a fleet's snapshots survives when hosts fail: file-system blocks of 64 MiB, each on so
//! many hosts, and a snapshot that needs all the blocks it has chunks in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::schemes::{BLOCKS, BLOCKS_SHARE, Needed, Outcomes};
use crate::trace::{Print, SEGMENT_CHUNKS, Segment, Trace};
use silt_report::{Line, Table, number, percent, plot};
use silt_report::{Random, draw};

/// How many blocks a snapshot depends on.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Blocks that a machine depends on where all machines' chunks are mixed.
    pub mixed: f64,
    /// Blocks of a machine's own store.
    pub own: f64,
    /// Blocks of the shared store.
    pub shared: f64,
}

/// Copies of a block, and of a shared one; bytes of a block of the file system (000).
pub const COPIES: usize = 3;
pub const SHARED_COPIES: usize = 6;
const BLOCK_BYTES: f64 = 64.0 * 1024.0 * 1024.0;
/// How blocks of a segment are counted: chunks of a block, and hosts. A block must hold several
/// segments, and be a small part of what its host has, as blocks of 64 MiB are.
const COUNTED: (usize, usize) = (8 * SEGMENT_CHUNKS, 8);
/// The cluster (000): a host has 10 TB of raw snapshots of 25 machines of 40 GB in segments of 2
/// MiB; there are 100 hosts.
const HOST_RAW_BYTES: f64 = 10e12;
const MACHINES: f64 = 25.0;
const HOSTS: f64 = 100.0;
const MACHINE_SEGMENTS: f64 = 40e9 / (2.0 * 1024.0 * 1024.0);

impl Layout {
    /// The published cluster, if the product leaves there what it leaves of a trace: of its raw
    /// snapshots, in own stores and in the shared one. A segment whose chunks are mixed with those
    /// of other machines depends on as many blocks as are counted.
    pub fn scaled(trace: &Trace, outcomes: &Outcomes) -> Self {
        let popular = outcomes.popular.iter().find(|popular| popular.share == BLOCKS_SHARE);
        let (stored, shared) = popular.map_or((0, 0), |popular| (popular.stored, popular.entries));
        let bytes = |chunks: u64| chunks as f64 / trace.raw_chunks() as f64 * HOST_RAW_BYTES;
        Self {
            mixed: MACHINE_SEGMENTS * blocks_of_segment(trace),
            own: bytes(stored - shared) / MACHINES / BLOCK_BYTES,
            shared: bytes(shared) * HOSTS / BLOCK_BYTES,
        }
    }

    /// The probability that a snapshot survives where chunks are mixed, if blocks were lost
    /// independently of each other.
    pub fn of_mixed(&self, failed: usize, hosts: usize) -> f64 {
        of_block(COPIES, failed, hosts).powf(self.mixed)
    }

    /// The same where each machine has a store of its own.
    pub fn of_own(&self, shared_copies: usize, failed: usize, hosts: usize) -> f64 {
        of_block(COPIES, failed, hosts).powf(self.own)
            * of_block(shared_copies, failed, hosts).powf(self.shared)
    }
}

/// The probability that a block survives when `failed` of `hosts` fail: at least one copy is
/// elsewhere.
pub fn of_block(copies: usize, failed: usize, hosts: usize) -> f64 {
    1.0 - lost(copies, failed, hosts)
}

/// The probability that a block is lost: all its copies are on failed hosts.
pub fn lost(copies: usize, failed: usize, hosts: usize) -> f64 {
    (0..copies).map(|at| failed.saturating_sub(at) as f64 / (hosts - at) as f64).product()
}

/// A block of any store; those of a shared one are the same for all machines.
pub type AnyBlock = (Option<usize>, u32, usize);

/// The share of snapshots that survive, over so many placements: each block's copies are on
/// different hosts, drawn once for all the machines that need the block.
fn placed(
    machines: &[Vec<(AnyBlock, usize)>],
    (failed, hosts): (usize, usize),
    trials: usize,
) -> f64 {
    let mut random = Random(7);
    let mut survived = 0;
    for _ in 0..trials {
        let mut lives: BTreeMap<AnyBlock, bool> = BTreeMap::new();
        for needed in machines {
            let all = needed.iter().all(|(block, copies)| {
                *lives
                    .entry(*block)
                    .or_insert_with(|| survives(*copies, failed, hosts, &mut random))
            });
            survived += usize::from(all);
        }
    }
    survived as f64 / (trials * machines.len().max(1)) as f64
}

/// Places a block's copies on different hosts, of which the first `failed` have failed.
fn survives(copies: usize, failed: usize, hosts: usize, random: &mut Random) -> bool {
    let (mut left, mut bad) = (hosts, failed);
    for _ in 0..copies {
        if random.below(left) >= bad {
            return true;
        }
        (left, bad) = (left - 1, bad - 1);
    }
    false
}

/// The published values beside those that follow from what the product leaves of the trace.
pub fn table(layout: &Layout) -> Table {
    // The text has five of the sixteen values: d, p, mixed, own stores.
    let published = [
        (3, 100, Some("69.5"), Some("99.7")),
        (5, 100, None, None),
        (10, 100, None, None),
        (20, 100, Some("0"), Some("1.13")),
        (3, 1000, None, None),
        (20, 1000, None, Some("99.62")),
    ];
    let mut table = Table::new(
        "Snapshots that survive failed hosts of the published cluster, %",
        &[
            "failed hosts",
            "hosts",
            "mixed",
            "published (output)",
            "own stores",
            "published (output)",
        ],
    );
    for (failed, hosts, mixed, own) in published {
        table.row(vec![
            failed.to_string(),
            hosts.to_string(),
            percent(layout.of_mixed(failed, hosts)),
            mixed.unwrap_or("-").to_owned(),
            percent(layout.of_own(SHARED_COPIES, failed, hosts)),
            own.unwrap_or("-").to_owned(),
        ]);
    }
    table.note(format!(
        "If d of p hosts fail, a block with r copies survives with probability 1 - \
         C(d,r)/C(p,r), and a snapshot if all its blocks do, as if independently. Inputs: 10 TB \
         of raw snapshots a host, of 25 machines of 40 GB; blocks of 64 MiB; {COPIES} copies, \
         {SHARED_COPIES} of popular blocks. Of the raw snapshots, as much is stored and shared as \
         the product leaves of the generated trace with 2 % popular (the table of copies). So a \
         snapshot depends at most on {} blocks, which are all of its own store, and on all {} \
         popular ones. Where chunks are mixed it depends on {} blocks: {:.0} segments, each in {} \
         blocks, as counted on the generated trace with stateless routing ({} hosts append what \
         comes to blocks of {} chunks). Nothing is fitted.",
        number(layout.own),
        number(layout.shared),
        number(layout.mixed),
        MACHINE_SEGMENTS.floor(),
        number(layout.mixed / MACHINE_SEGMENTS),
        COUNTED.1,
        COUNTED.0,
    ));
    table
}

/// Survival over failed hosts, as the paper's figure: a line for each number of copies of popular
/// blocks, and one for mixed chunks.
pub fn copies_plot(layout: &Layout) -> String {
    let failed = || 0..=10_usize;
    let line = |name: String, of: &dyn Fn(usize) -> f64| Line {
        name,
        points: failed().map(|failed| (failed as f64, of(failed) * 100.0)).collect(),
        is_published: false,
    };
    let mut lines = vec![line("mixed".to_owned(), &|failed| layout.of_mixed(failed, 100))];
    for copies in [4, 5, 6, 9] {
        let of = |failed| layout.of_own(copies, failed, 100);
        lines.push(line(format!("{copies} copies of popular blocks"), &of));
    }
    lines.push(Line {
        name: "published: mixed, 6 copies".to_owned(),
        points: vec![(3.0, 69.5), (3.0, 99.7)],
        is_published: true,
    });
    plot("Snapshots that survive, 100 hosts", "failed hosts", 0.0, &lines)
}

/// The blocks that the last snapshots of a trace depend on, in the product's stores and where
/// chunks are mixed: placed on hosts and counted, beside the formula.
pub fn counted(
    (machines, trace): (&str, &Trace),
    own: &[Vec<Needed>],
    hosts: usize,
    trials: usize,
) -> Table {
    let mut table = Table::new(
        &format!("The same with blocks counted and placed, {machines}, %"),
        &[
            "block",
            "failed of 100 hosts",
            "mixed, placed",
            "by the formula",
            "own stores, placed",
            "by the formula",
        ],
    );
    for ((name, chunks), needed) in BLOCKS.into_iter().zip(own) {
        let mixed = mixed_blocks(trace, chunks, hosts);
        let layout = layout_of(&mixed, needed);
        let all_mixed = with_copies(&mixed, COPIES);
        let all_own: Vec<Vec<(AnyBlock, usize)>> =
            needed.iter().enumerate().map(of_machine).collect();
        for failed in [3, 5, 10, 20] {
            let at = (failed, hosts);
            table.row(vec![
                name.to_owned(),
                failed.to_string(),
                percent(placed(&all_mixed, at, trials)),
                percent(layout.of_mixed(failed, hosts)),
                percent(placed(&all_own, at, trials)),
                percent(layout.of_own(SHARED_COPIES, failed, hosts)),
            ]);
        }
        table.note(format!(
            "A block is {name}: a last snapshot depends on {} blocks of {chunks} chunks if \
             fingerprints decide which host stores a chunk, and on {} blocks of its own and {} \
             popular ones if {:.0} % of the different chunks are popular.",
            number(layout.mixed),
            number(layout.own),
            number(layout.shared),
            BLOCKS_SHARE * 100.0
        ));
    }
    table.note(format!(
        "Own stores: frames and containers as the product wrote them; a container holds as many \
         chunks as if they compressed to half. A machine of the generated \
         trace has as many blocks of 8 chunks as one of 40 GB has of 64 MiB. Placed: {trials} \
         times, each block's copies are put on hosts at random, once for all machines, and the \
         machines are counted that have all their blocks. The formula takes the mean number of \
         blocks, and that blocks are lost independently. It is below what is counted where \
         machines depend on different numbers of blocks."
    ));
    table
}

/// How many blocks a machine depends on, the means.
pub fn layout_of(mixed: &[BTreeSet<AnyBlock>], needed: &[Needed]) -> Layout {
    let mean = |counts: &mut dyn Iterator<Item = usize>| {
        let (sum, count) = counts.fold((0, 0), |(sum, count), next| (sum + next, count + 1));
        sum as f64 / f64::from(count.max(1))
    };
    Layout {
        mixed: mean(&mut mixed.iter().map(BTreeSet::len)),
        own: mean(&mut needed.iter().map(|blocks| blocks.0.len())),
        shared: mean(&mut needed.iter().map(|blocks| blocks.1.len())),
    }
}

/// Each machine's blocks, with so many copies of each.
pub fn with_copies(machines: &[BTreeSet<AnyBlock>], copies: usize) -> Vec<Vec<(AnyBlock, usize)>> {
    let blocks = |all: &BTreeSet<AnyBlock>| all.iter().map(|block| (*block, copies)).collect();
    machines.iter().map(blocks).collect()
}

/// The blocks that a machine needs, with their copies.
pub fn of_machine((machine, needed): (usize, &Needed)) -> Vec<(AnyBlock, usize)> {
    let own = needed.0.iter().map(|block| ((Some(machine), block.0, block.1), COPIES));
    let shared = needed.1.iter().map(|block| ((None, block.0, block.1), SHARED_COPIES));
    own.chain(shared).collect()
}

/// The disk of each machine on its last day.
fn last_disks(trace: &Trace) -> Vec<BTreeMap<u32, &Segment>> {
    let mut disks: Vec<BTreeMap<u32, &Segment>> = vec![BTreeMap::new(); trace.machines.len()];
    for (machine, disk) in trace.machines.iter().zip(&mut disks) {
        for day in &machine.days {
            disk.extend(day.changed.iter().map(|(place, segment)| (*place, segment)));
        }
    }
    disks
}

/// Where each chunk is if it is appended, in the order of arrival, by the host that its segment's
/// bin belongs to.
fn mixed_places(trace: &Trace, block_chunks: usize, hosts: usize) -> HashMap<Print, AnyBlock> {
    let mut appended = vec![0_usize; hosts];
    let mut block_of: HashMap<Print, AnyBlock> = HashMap::new();
    for day in 0..trace.days() {
        for segment in trace.machines.iter().flat_map(|machine| machine.days[day].changed.values())
        {
            let prints = || segment.iter().filter(|print| **print != 0);
            let Some(least) = prints().map(|print| draw(*print)).min() else { continue };
            let host = usize::try_from(least % hosts as u64).unwrap_or(0);
            for print in prints() {
                block_of.entry(*print).or_insert_with(|| {
                    appended[host] += 1;
                    (Some(host), 0, (appended[host] - 1) / block_chunks)
                });
            }
        }
    }
    block_of
}

/// The blocks that each machine's last snapshot depends on where chunks are mixed.
pub fn mixed_blocks(trace: &Trace, block_chunks: usize, hosts: usize) -> Vec<BTreeSet<AnyBlock>> {
    let block_of = mixed_places(trace, block_chunks, hosts);
    let blocks = |disk: BTreeMap<u32, &Segment>| {
        let prints = disk.values().flat_map(|segment| segment.iter());
        prints.filter_map(|print| block_of.get(print)).copied().collect()
    };
    last_disks(trace).into_iter().map(blocks).collect()
}

/// In how many blocks the chunks of a segment of a last snapshot are, the mean.
fn blocks_of_segment(trace: &Trace) -> f64 {
    let block_of = mixed_places(trace, COUNTED.0, COUNTED.1);
    let (mut blocks, mut segments) = (0, 0);
    for disk in last_disks(trace) {
        for segment in disk.values().filter(|segment| segment.iter().any(|print| *print != 0)) {
            let all: BTreeSet<_> = segment.iter().filter_map(|print| block_of.get(print)).collect();
            (blocks, segments) = (blocks + all.len(), segments + 1);
        }
    }
    f64::from(u32::try_from(blocks).unwrap_or(u32::MAX)) / f64::from(segments.max(1))
}

#[cfg(test)]
mod tests {
    use super::{AnyBlock, of_block, placed, survives};
    use silt_report::Random;

    fn binomial(n: u64, k: u64) -> f64 {
        (0..k).map(|at| (n - at) as f64 / (k - at) as f64).product()
    }

    #[test]
    fn a_block_is_lost_if_all_its_copies_are() {
        for (copies, failed, hosts) in [(3, 5, 100), (6, 20, 100), (3, 20, 1000), (4, 3, 50)] {
            let lost = binomial(failed, copies) / binomial(hosts, copies);
            let [copies, failed, hosts] =
                [copies, failed, hosts].map(|number| usize::try_from(number).unwrap_or(0));
            let formula = of_block(copies, failed, hosts);
            assert!((1.0 - formula - lost).abs() < 1e-12, "{formula}");
        }
        // Many placements of one block of 2 copies, of which 5 of 10 hosts fail: 1 - 10/45.
        let mut random = Random(1);
        let alive = (0..20_000).filter(|_| survives(2, 5, 10, &mut random)).count();
        assert!((alive as f64 / 20_000.0 - 7.0 / 9.0).abs() < 0.015, "{alive}");
    }

    /// Two machines that need the same block live and die together; two that need a block each do
    /// not. A placement that draws a block for each machine anew fails here.
    #[test]
    fn a_block_that_machines_share_is_placed_once() {
        let block = |number: u32| -> (AnyBlock, usize) { ((None, number, 0), 1) };
        let at = (5, 10);
        for trial in 1..40 {
            let same = placed(&[vec![block(1)], vec![block(1)]], at, trial) * trial as f64;
            assert!((same - same.round()).abs() < 1e-9, "{same}");
        }
        let half = (1..40).any(|trial| {
            let own = placed(&[vec![block(1)], vec![block(2)]], at, trial) * trial as f64;
            (own - own.round()).abs() > 0.1
        });
        assert!(half, "blocks of their own are lost independently");
    }
}
