//! What of a fleet's snapshots survives when hosts fail: file-system blocks of 64 MB, each on so
//! many hosts, and a snapshot that needs all the blocks it has chunks in.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::random::{Random, draw, floor};
use crate::report::{Line, Table, percent, plot};
use crate::schemes::{BLOCK_CHUNKS, BLOCKS_SHARE};
use crate::trace::{Print, Segment, Trace};

/// A fleet as the paper's figures imply it.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Blocks that a machine depends on where all machines' chunks are mixed.
    pub mixed: f64,
    /// Blocks of a machine's own store.
    pub own: f64,
    /// Blocks of the shared store.
    pub shared: f64,
}

/// Fitted to the published figures.
pub const PUBLISHED: Layout = Layout { mixed: 58_721.0, own: 550.4, shared: 18_040.0 };
/// Copies of a block, and of a shared one.
const COPIES: usize = 3;
const SHARED_COPIES: usize = 6;

/// The probability that a block survives when `failed` of `hosts` fail: at least one copy is
/// elsewhere.
pub fn of_block(copies: usize, failed: usize, hosts: usize) -> f64 {
    if failed < copies {
        return 1.0;
    }
    let lost: f64 = (0..copies).map(|at| (failed - at) as f64 / (hosts - at) as f64).product();
    1.0 - lost
}

impl Layout {
    /// The probability that a snapshot survives where chunks are mixed.
    pub fn of_mixed(&self, failed: usize, hosts: usize) -> f64 {
        of_block(COPIES, failed, hosts).powf(self.mixed)
    }

    /// The same where each machine has a store of its own.
    pub fn of_own(&self, shared_copies: usize, failed: usize, hosts: usize) -> f64 {
        of_block(COPIES, failed, hosts).powf(self.own)
            * of_block(shared_copies, failed, hosts).powf(self.shared)
    }
}

/// How often a snapshot survives in so many trials: all blocks are placed at random each time.
fn monte_carlo(blocks: &[(f64, usize)], failed: usize, hosts: usize, trials: usize) -> f64 {
    let mut random = Random(7);
    let survived = (0..trials).filter(|_| {
        blocks.iter().all(|(count, copies)| {
            (0..random.around(*count)).all(|_| survives(*copies, failed, hosts, &mut random))
        })
    });
    survived.count() as f64 / trials as f64
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

/// The published table, the formula and the trials side by side.
pub fn table(trials: usize) -> Table {
    let published = [
        (3, [69.5484, 99.6602, 99.9647, 99.9997]),
        (5, [2.6475, 96.6533, 99.6472, 99.9967]),
        (10, [0.0, 66.2464, 95.8481, 99.9603]),
        (20, [0.0, 1.1325, 66.8407, 99.6231]),
    ];
    let mut table = Table::new(
        "Snapshots that survive failed hosts, %",
        &["failed hosts", "hosts", "layout", "published", "formula", "trials"],
    );
    let layout = PUBLISHED;
    for (failed, published) in published {
        for (at, hosts) in [100, 1000].into_iter().enumerate() {
            let mixed = [(layout.mixed, COPIES)];
            let own = [(layout.own, COPIES), (layout.shared, SHARED_COPIES)];
            let tried = monte_carlo(&mixed, failed, hosts, trials);
            let mut row = |name: &str, published: f64, formula: f64, tried: f64| {
                table.row(vec![
                    failed.to_string(),
                    hosts.to_string(),
                    name.to_owned(),
                    format!("{published:.4}"),
                    format!("{:.4}", formula * 100.0),
                    percent(tried),
                ]);
            };
            row("mixed", published[2 * at], layout.of_mixed(failed, hosts), tried);
            let tried = monte_carlo(&own, failed, hosts, trials);
            let formula = layout.of_own(SHARED_COPIES, failed, hosts);
            row("own stores", published[2 * at + 1], formula, tried);
        }
    }
    table.note(format!(
        "If d of p hosts fail, a block with r copies survives with probability 1 - C(d,r)/C(p,r). \
         A snapshot survives if all its blocks do: {} mixed blocks, or {} of its own with {COPIES} \
         copies and {} shared ones with {SHARED_COPIES}. Both layouts are fitted to the published \
         figures. {trials} trials each.",
        PUBLISHED.mixed, PUBLISHED.own, PUBLISHED.shared
    ));
    table
}

/// Survival over the number of copies of the shared store.
pub fn copies_plot() -> String {
    let lines = [5, 10, 20].map(|failed| Line {
        name: format!("{failed} of 100 fail"),
        points: (3..=9)
            .map(|copies: usize| (copies as f64, PUBLISHED.of_own(copies, failed, 100) * 100.0))
            .collect(),
        is_published: false,
    });
    plot("Snapshots that survive", "copies of the shared store", 0.0, &lines)
}

/// The blocks that the last snapshots of a trace depend on: in the product's stores, as counted,
/// and where chunks are mixed.
pub fn counted(trace: &Trace, own: &[(usize, usize)], hosts: usize) -> Table {
    let mixed = mixed_blocks(trace, BLOCK_CHUNKS, hosts);
    let mean = |counts: &mut dyn Iterator<Item = usize>| {
        let (sum, count) = counts.fold((0, 0), |(sum, count), next| (sum + next, count + 1));
        sum as f64 / f64::from(count.max(1))
    };
    let layout = Layout {
        mixed: mean(&mut mixed.into_iter()),
        own: mean(&mut own.iter().map(|counts| counts.0)),
        shared: mean(&mut own.iter().map(|counts| counts.1)),
    };
    let title = format!("The same with blocks counted on the trace, {BLOCK_CHUNKS} chunks each, %");
    let mut table = Table::new(&title, &["failed of 100 hosts", "mixed", "own stores"]);
    for failed in [3, 5, 10, 20] {
        let own = layout.of_own(SHARED_COPIES, failed, 100);
        table.row(vec![failed.to_string(), percent(layout.of_mixed(failed, 100)), percent(own)]);
    }
    table.note(format!(
        "A machine's last snapshot depends on {:.1} blocks if fingerprints decide which host \
         stores a chunk, and on {:.1} blocks of its own and {:.1} shared ones if {:.0} % of the \
         different chunks are shared.",
        layout.mixed,
        layout.own,
        layout.shared,
        BLOCKS_SHARE * 100.0
    ));
    table
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

/// Chunks are appended, in the order in which they come, by the host that their bin belongs to.
fn mixed_blocks(trace: &Trace, block_chunks: usize, hosts: usize) -> Vec<usize> {
    let mut appended = vec![0_usize; hosts];
    let mut block_of: HashMap<Print, (usize, usize)> = HashMap::new();
    for day in 0..trace.days() {
        for segment in trace.machines.iter().flat_map(|machine| machine.days[day].changed.values())
        {
            let prints = || segment.iter().filter(|print| **print != 0);
            let Some(least) = prints().map(|print| draw(*print)).min() else { continue };
            let host = usize::try_from(least % hosts as u64).unwrap_or(0);
            for print in prints() {
                block_of.entry(*print).or_insert_with(|| {
                    appended[host] += 1;
                    (host, (appended[host] - 1) / block_chunks)
                });
            }
        }
    }
    let blocks = |disk: BTreeMap<u32, &Segment>| {
        let prints = disk.values().flat_map(|segment| segment.iter());
        prints.filter_map(|print| block_of.get(print)).collect::<HashSet<_>>().len()
    };
    last_disks(trace).into_iter().map(blocks).collect()
}

/// How many trials give a share that is right within `error` in nineteen of twenty cases.
pub fn trials_for(error: f64) -> usize {
    floor((0.98 / error).powi(2)) + 1
}

#[cfg(test)]
mod tests {
    use super::{PUBLISHED, monte_carlo, of_block, trials_for};

    #[test]
    fn the_formula_gives_the_published_table() {
        let close = |a: f64, b: f64| assert!((a * 100.0 - b).abs() < 0.1, "{a} for {b}");
        close(of_block(3, 5, 100), 99.993_816);
        close(of_block(6, 20, 100), 99.996_748);
        close(PUBLISHED.of_mixed(3, 100), 69.5484);
        close(PUBLISHED.of_mixed(20, 1000), 66.8407);
        close(PUBLISHED.of_own(6, 3, 100), 99.6602);
        close(PUBLISHED.of_own(6, 10, 100), 66.2464);
        close(PUBLISHED.of_own(6, 20, 100), 1.1325);
        close(PUBLISHED.of_own(6, 20, 1000), 99.6231);
    }

    #[test]
    fn trials_agree_with_the_formula() {
        let trials = trials_for(0.05);
        let tried = monte_carlo(&[(550.4, 3)], 10, 100, trials);
        let formula = of_block(3, 10, 100).powf(550.4);
        assert!((tried - formula).abs() < 0.1, "{tried} for {formula}");
        assert!(
            monte_carlo(&[(1000.0, 3)], 2, 100, 10) >= 1.0,
            "two hosts can't lose three copies"
        );
    }
}
