//! Drawing histories of several sites.

use crate::plan::{
    Action, Class, Exact, Fault, Host, Keep, Kind, MINUTES, Plan, Point, Role, Series, Shape, Work,
    Wrong, fault,
};
use crate::random::Random;
use crate::site::Replication;

/// How replications go between sites.
#[derive(Clone, Copy)]
enum Net {
    /// From the first site to the second.
    Pair,
    /// From the first to the second, and on to the third.
    Chain,
    /// From the first two to the third, with prefixes or without.
    Fan,
    /// Around.
    Ring,
    /// Between any two.
    Any,
}

impl Net {
    fn sites(self) -> usize {
        if matches!(self, Self::Pair) { 2 } else { 3 }
    }

    /// The source and the replica of a replication.
    fn edge(self, sites: usize, random: &mut Random) -> (usize, usize) {
        match self {
            Self::Pair => (0, 1),
            Self::Chain => random.of(&[(0, 1), (1, 2)]),
            Self::Fan => random.of(&[(0, 2), (1, 2), (0, 1)]),
            Self::Ring => {
                let from = random.below(sites);
                (from, (from + 1) % sites)
            }
            Self::Any => {
                let from = random.below(sites);
                (from, (from + 1 + random.below(sites - 1)) % sites)
            }
        }
    }
}

impl Plan {
    /// Draws the plan of a seed for several sites with replications between them.
    pub fn draw_sites(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x51_7e5);
        let random = &mut random;
        let net = random.of(&[Net::Pair, Net::Pair, Net::Chain, Net::Fan, Net::Ring, Net::Any]);
        let sites = net.sites();
        // Clocks that are wrong excuse some results, so most histories have none.
        let is_skewed = random.once_in(3);
        let folders = random.once_in(2);
        let mut prelude = Vec::new();
        for _ in 0..random.below(4) {
            prelude.push(match random.below(3) {
                0 => replicate(net, sites, 0, is_skewed, random),
                _ => Action::Backup(series(random)),
            });
        }
        let hosts = (0..2 + random.below(4)).map(|number| {
            let site = if number < sites { number } else { random.below(sites) };
            let skews: &[i64] = if is_skewed { &[0, 0, 3, -3, 1440, -1440] } else { &[0] };
            let skew_minutes = random.of(skews);
            let work = (0..=random.below(5)).map(|_| {
                let after_minutes = random.of(&[0, 0, 1, 10, 100, 1500]);
                let action = match random.below(5) {
                    0 | 1 => replicate(net, sites, site, is_skewed, random),
                    _ => action(site, random),
                };
                let is_far = matches!(action, Action::Replicate(_));
                let mut faults = |most: &[usize]| -> Vec<Fault> {
                    (0..random.of(most)).map(|_| one_fault(is_far, folders, random)).collect()
                };
                let faults_there = if is_far { faults(&[0, 0, 1]) } else { Vec::new() };
                Work { after_minutes, action, faults: faults(&[0, 0, 1, 1, 2]), faults_there }
            });
            let work = work.collect();
            let stays_open = random.once_in(4);
            Host { skew_minutes, stays_open, role: Role::Administrator, site, work }
        });
        let hosts = hosts.collect();
        let shapes = [Shape::Disk, Shape::Disk, Shape::Tree, Shape::Trees, Shape::Both];
        let shapes = [random.of(&shapes), random.of(&shapes)];
        let base = Self { seed, places: 1, folders, shapes, ..Self::default() };
        let mut plan = Self { replicas: sites - 1, prelude, hosts, ..base };
        plan.draw_deltas(&mut Random(seed ^ 0x000d_e17a));
        plan.draw_nodes(&mut Random(seed ^ 0x000d_0de5));
        plan.draw_caches(&mut Random(seed ^ 0x000c_ac4e));
        plan
    }
}

fn series(random: &mut Random) -> Series {
    random.of(&[Series::Vm, Series::Vm, Series::Vm, Series::Other])
}

/// A replication that a host of `site` can run.
fn replicate(net: Net, sites: usize, site: usize, is_skewed: bool, random: &mut Random) -> Action {
    let mut edge = net.edge(sites, random);
    for _ in 0..8 {
        if edge.0 == site || edge.1 == site {
            break;
        }
        edge = net.edge(sites, random);
    }
    let (from, to) = edge;
    let pulls = to == site;
    let other = if pulls { from } else { to };
    let is_prefixed = random.once_in(if matches!(net, Net::Fan | Net::Any) { 3 } else { 10 });
    let skews: &[i64] = if is_skewed { &[0, 3, -3, 1440, -1440] } else { &[0] };
    Action::Replicate(Replication {
        other: if other == site { (site + 1) % sites } else { other },
        pulls,
        is_prefixed,
        only_newest: random.once_in(8),
        skew_minutes: random.of(skews),
        seed: random.bits(),
    })
}

/// What is done at a site besides replications. Replicas forget more than they back up.
fn action(site: usize, random: &mut Random) -> Action {
    let (one, number) = (series(random), random.bits());
    let keep = random.of(&[Keep::Nothing, Keep::Nothing, Keep::Usual, Keep::Deleted]);
    let exact = random.of(&[Exact::Yes, Exact::No]);
    let (backup, delete) = (Action::Backup(one), Action::Delete(one, number, exact));
    let reclaim = Action::Reclaim(one, keep);
    if random.once_in(8) {
        return random.of(&[
            Action::Rename(one, number),
            Action::Round,
            Action::Popular,
            Action::Sweep,
            Action::Repoint(one),
            Action::SweepSeries(one),
            Action::Protect(one, 1 + number % 24),
            Action::Check,
            Action::Tune(one, number),
        ]);
    }
    if site == 0 {
        let undelete = Action::Undelete(one, number);
        return random.of(&[backup, backup, backup, backup, delete, undelete, reclaim]);
    }
    let undelete = Action::Undelete(one, number);
    let restore = Action::Restore(one, number);
    random.of(&[backup, backup, delete, delete, delete, undelete, reclaim, reclaim, restore])
}

fn one_fault(is_far: bool, folders: bool, random: &mut Random) -> Fault {
    if !is_far || random.once_in(3) {
        return fault(folders, random);
    }
    if random.once_in(2) {
        let nth = random.bits() % 30;
        let what = match random.below(8) {
            0..=3 => Wrong::Sleep(random.of(&MINUTES)),
            4 | 5 => Wrong::LoseAnswer,
            _ => Wrong::Kill,
        };
        return Fault { at: Point { kind: Kind::Message, class: None, nth }, what };
    }
    let class = random.of(&[Class::Heads, Class::Snapshots, Class::Containers, Class::Recipes]);
    let kind = random.of(&[Kind::Put, Kind::Put, Kind::Get]);
    let at = Point { kind, class: Some(class), nth: random.bits() % 3 };
    let what = match random.below(6) {
        0..=2 => Wrong::Sleep(random.of(&MINUTES)),
        3 => Wrong::Kill,
        4 => Wrong::KillAfter,
        _ => Wrong::LoseAnswer,
    };
    Fault { at, what }
}
