//! Snapshots that survive where hosts fail together, as those of a rack do: counted on the blocks
//! that the product wrote, beside the formula, which knows only how many hosts fail.

use std::collections::BTreeMap;

use crate::availability::{
    AnyBlock, COPIES, Layout, SHARED_COPIES, layout_of, mixed_blocks, of_machine, with_copies,
};
use crate::schemes::{BLOCKS, Needed};
use crate::trace::Trace;
use silt_report::{Random, Table, percent};

/// Hosts that fail together (ours), each group with the same probability, and these probabilities:
/// the last two on blocks of which a machine has as many as one of 40 GB has.
const GROUPS: [usize; 4] = [1, 5, 10, 20];
const FAILING: f64 = 0.1;
const OTHERS: [f64; 2] = [0.03, 0.2];
/// How improbable a number of failed groups is that is left out.
const NEGLIGIBLE: f64 = 1e-5;
/// Placements for each number of failed groups, of those for each number of failed hosts.
const TRIALS_SHARE: usize = 8;

/// The columns of the plot.
pub const SHOWN: [&str; 3] = [
    "own stores, counted",
    "the same by the formula, as many hosts",
    "own stores, copies in different groups, counted",
];

/// Where copies of a block may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placement {
    /// On any hosts, each on another one.
    Anywhere,
    /// In as many groups as possible.
    Apart,
}

/// A cluster whose hosts fail in groups.
#[derive(Clone, Copy, Debug)]
pub struct Groups {
    pub hosts: usize,
    pub hosts_of_group: usize,
}

impl Groups {
    fn count(self) -> usize {
        self.hosts / self.hosts_of_group
    }

    /// Whether a block survives whose copies are placed at random, when the first `failed` groups
    /// have failed.
    fn survives(self, copies: usize, how: Placement, failed: usize, random: &mut Random) -> bool {
        let mut used: Vec<usize> = Vec::with_capacity(copies);
        for copy in 0..copies {
            let host = loop {
                let host = random.below(self.hosts);
                let group = host / self.hosts_of_group;
                // Every group has a copy before one has a second.
                let held = used.iter().filter(|used| **used / self.hosts_of_group == group).count();
                let is_apart = how == Placement::Anywhere || held <= copy / self.count();
                if is_apart && !used.contains(&host) {
                    break host;
                }
            };
            if host / self.hosts_of_group >= failed {
                return true;
            }
            used.push(host);
        }
        false
    }

    /// The probability of each number of failed groups, if each fails with this one.
    fn failures(self, probability: f64) -> impl Iterator<Item = (usize, f64)> {
        let count = self.count();
        let first = (1.0 - probability).powf(count as f64);
        let next = move |&(failed, share): &(usize, f64)| {
            let more = (count - failed) as f64 / (failed + 1) as f64;
            (failed < count).then(|| (failed + 1, share * more * probability / (1.0 - probability)))
        };
        std::iter::successors(Some((0, first)), next).filter(|(_, share)| *share > NEGLIGIBLE)
    }

    /// The share of the machines' snapshots that survive: for each number of failed groups, blocks
    /// are placed so often.
    pub fn counted(
        self,
        machines: &[Vec<(AnyBlock, usize)>],
        (how, probability): (Placement, f64),
        trials: usize,
    ) -> f64 {
        let mut random = Random(17);
        let mut mean = 0.0;
        for (failed, share) in self.failures(probability) {
            let mut survived = 0;
            for _ in 0..trials {
                let mut lives: BTreeMap<AnyBlock, bool> = BTreeMap::new();
                survived += machines
                    .iter()
                    .filter(|needed| {
                        needed.iter().all(|(block, copies)| {
                            *lives
                                .entry(*block)
                                .or_insert_with(|| self.survives(*copies, how, failed, &mut random))
                        })
                    })
                    .count();
            }
            mean += share * survived as f64 / (trials * machines.len()).max(1) as f64;
        }
        mean
    }

    /// The formula for each number of failed hosts, weighed by how probable it is.
    fn by_formula(self, probability: f64, of: &dyn Fn(usize) -> f64) -> f64 {
        let hosts = |failed: usize| failed * self.hosts_of_group;
        self.failures(probability).map(|(failed, share)| share * of(hosts(failed))).sum()
    }
}

/// The blocks of one size: where chunks are mixed, and in own stores.
struct Blocks {
    name: &'static str,
    layout: Layout,
    mixed: Vec<Vec<(AnyBlock, usize)>>,
    own: Vec<Vec<(AnyBlock, usize)>>,
}

/// The table over one trace.
pub fn table(
    (machines, trace): (&str, &Trace),
    needed: &[Vec<Needed>],
    hosts: usize,
    trials: usize,
) -> Table {
    let mut table = Table::new(
        &format!("Snapshots that survive where hosts fail in groups, {machines}, %"),
        &[
            "block",
            "of the groups fail %",
            "hosts of a group",
            "mixed, counted",
            "by the formula, as many hosts",
            "own stores, counted",
            "the same by the formula, as many hosts",
            "by the formula for each number of failed hosts",
            "own stores, copies in different groups, counted",
        ],
    );
    for (place, ((name, chunks), needed)) in BLOCKS.into_iter().zip(needed).enumerate() {
        let mixed = mixed_blocks(trace, chunks, hosts);
        let blocks = Blocks {
            name,
            layout: layout_of(&mixed, needed),
            mixed: with_copies(&mixed, COPIES),
            own: needed.iter().enumerate().map(of_machine).collect(),
        };
        let others = OTHERS.into_iter().filter(|_| place == 0);
        for probability in std::iter::once(FAILING).chain(others) {
            for hosts_of_group in GROUPS {
                let groups = Groups { hosts, hosts_of_group };
                table.row(row(&blocks, groups, probability, (trials / TRIALS_SHARE).max(4)));
            }
        }
    }
    table.note(format!(
        "{hosts} hosts in groups of so many (input), each of which fails as a whole with the \
         probability given (input), so that as many hosts fail on average whatever the groups; \
         {COPIES} copies of a block, {SHARED_COPIES} of a popular one. Counted: for each number of \
         failed groups, the blocks that the product wrote are placed anew {} times. The formula \
         takes the mean number of failed hosts for certain, and the mean number of blocks.",
        (trials / TRIALS_SHARE).max(4)
    ));
    table.note(
        "Where copies are on any hosts, it does not matter which hosts fail, but how many: the \
         larger the groups, the more often none fails, and the more is lost when one does. The \
         formula for the mean misses that; taken for each number of failed hosts, it differs from \
         what is counted only as machines need different numbers of blocks, and as the popular \
         blocks that all need are lost for all at once. Where copies are in different groups, a \
         block is lost only if as many groups fail as it has copies, so that large groups lose \
         less; with 5 groups, six copies fill all of them.",
    );
    table
}

fn row(blocks: &Blocks, groups: Groups, probability: f64, trials: usize) -> Vec<String> {
    let Groups { hosts, hosts_of_group } = groups;
    let failed = silt_report::floor(probability * hosts as f64 + 0.5);
    let own = |failed: usize| blocks.layout.of_own(SHARED_COPIES, failed, hosts);
    let counted = |machines: &[_], how| groups.counted(machines, (how, probability), trials);
    let shares = [
        counted(&blocks.mixed, Placement::Anywhere),
        blocks.layout.of_mixed(failed, hosts),
        counted(&blocks.own, Placement::Anywhere),
        own(failed),
        groups.by_formula(probability, &own),
        counted(&blocks.own, Placement::Apart),
    ];
    let names = [blocks.name.to_owned(), format!("{}", probability * 100.0)].into_iter();
    names.chain([hosts_of_group.to_string()]).chain(shares.map(percent)).collect()
}

#[cfg(test)]
mod tests {
    use super::{Groups, Placement};
    use crate::availability::{AnyBlock, of_block};
    use silt_report::Random;

    /// Of so many blocks, the share that survives.
    fn share(groups: Groups, copies: usize, how: Placement, failed: usize) -> f64 {
        let mut random = Random(3);
        let alive = (0..20_000).filter(|_| groups.survives(copies, how, failed, &mut random));
        alive.count() as f64 / 20_000.0
    }

    /// Copies on any hosts are lost as by the formula, whichever hosts have failed; copies in
    /// different groups by the formula of groups, and not at all if fewer groups fail.
    #[test]
    fn a_block_is_lost_if_all_its_hosts_or_all_its_groups_are() {
        let groups = Groups { hosts: 100, hosts_of_group: 10 };
        let near = |found: f64, wanted: f64| assert!((found - wanted).abs() < 0.01, "{found}");
        near(share(groups, 3, Placement::Anywhere, 4), of_block(3, 40, 100));
        near(share(groups, 3, Placement::Apart, 4), of_block(3, 4, 10));
        near(share(groups, 3, Placement::Apart, 2), 1.0);
        assert!(share(groups, 2, Placement::Anywhere, 1) < 0.995);
        // Five groups: of six copies, one has two, and all five must fail.
        let few = Groups { hosts: 100, hosts_of_group: 20 };
        near(share(few, 6, Placement::Apart, 4), 1.0);
        near(share(few, 6, Placement::Apart, 5), 0.0);
    }

    /// As many hosts fail on average; the share of snapshots that need one block of one copy is the
    /// same, and with three copies and larger groups, more is lost.
    #[test]
    fn hosts_that_fail_together_lose_more_than_the_formula_says() {
        let block = |copies| vec![vec![((None, 0, 0), copies)]; 1];
        let survive = |hosts_of_group, copies, how| {
            let machines: Vec<Vec<(AnyBlock, usize)>> = block(copies);
            Groups { hosts: 100, hosts_of_group }.counted(&machines, (how, 0.1), 4000)
        };
        for hosts_of_group in [1, 20] {
            let one = survive(hosts_of_group, 1, Placement::Anywhere);
            assert!((one - 0.9).abs() < 0.01, "{one}");
        }
        let (alone, together) =
            (survive(1, 3, Placement::Anywhere), survive(20, 3, Placement::Anywhere));
        // Ten hosts of a hundred lose 0.07 %; of groups of 20, one fails 33 % of the time (0.7 %),
        // two 7 % (6.1 %), and three 0.8 % (21.2 %).
        assert!(alone > 0.998 && (together - 0.9913).abs() < 0.003, "{alone}, {together}");
        assert!(survive(20, 3, Placement::Apart) > together + 0.003);
    }

    #[test]
    fn the_failures_are_all_that_may_happen() {
        let groups = Groups { hosts: 100, hosts_of_group: 5 };
        let all: Vec<(usize, f64)> = groups.failures(0.1).collect();
        assert!((all.iter().map(|found| found.1).sum::<f64>() - 1.0).abs() < 1e-4);
        let mean = all.iter().map(|(failed, share)| *failed as f64 * share).sum::<f64>();
        assert!((mean - 2.0).abs() < 1e-3, "{mean}");
        let same = |failed: usize| failed as f64;
        assert!((groups.by_formula(0.1, &same) - 10.0).abs() < 0.01);
    }
}
