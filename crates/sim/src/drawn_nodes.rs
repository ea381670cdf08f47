//! Adds storage nodes to histories.

use crate::plan::{
    Action, Class, Exact, Fault, Host, Keep, Kind, MINUTES, Plan, Point, Series, Shape, Work,
    Wrong, fault,
};
use crate::random::Random;

impl Plan {
    /// Draws the plan of a seed for storage nodes, to which hosts back up, and which they sweep,
    /// cut off, add, close and move.
    pub fn draw_with_nodes(seed: u64) -> Self {
        let mut random = Random(seed ^ 0x000d_0de6);
        let random = &mut random;
        let folders = random.once_in(2);
        let hosts = (0..2 + random.below(3)).map(|_| Host {
            stays_open: random.once_in(4),
            skew_minutes: random.of(&[0, 0, 0, 0, 3, -3, 1440, -1440]),
            work: (0..=random.below(3)).map(|_| work(folders, random)).collect(),
            ..Host::default()
        });
        let hosts = hosts.collect();
        let shapes = [Shape::Disk, Shape::Disk, Shape::Tree, Shape::Both];
        let shapes = [random.of(&shapes), random.of(&shapes)];
        let places = 1 + usize::from(random.once_in(4));
        let mut plan = Self { seed, places, folders, shapes, hosts, ..Self::default() };
        if places > 1 && random.once_in(2) {
            plan.prelude.push(Action::AddPlace(1));
        }
        plan.add_nodes(random);
        plan.draw_caches(&mut Random(seed ^ 0x000c_ac4e));
        plan.draw_restored(&mut Random(seed ^ 0x0001_d15c));
        plan
    }

    /// Puts disks of nodes back to what they were in every fourth history.
    fn draw_restored(&mut self, random: &mut Random) {
        if !random.once_in(4) {
            return;
        }
        for _ in 0..=random.below(2) {
            let host = random.below(self.hosts.len());
            let host = &mut self.hosts[host];
            let place = random.below(host.work.len() + 1);
            let action = Action::RestoreNode(random.bits());
            let after_minutes = random.of(&[0, 1, 10, 100]);
            let restored = Work { after_minutes, action, faults: vec![], faults_there: vec![] };
            host.work.insert(place, restored);
            // Others back up afterwards.
            for _ in 0..=random.below(3) {
                let place = place + 1 + random.below(host.work.len() - place);
                let action = Action::Backup(series(random));
                let backup = Work { after_minutes, action, faults: vec![], faults_there: vec![] };
                host.work.insert(place, backup);
            }
        }
    }

    /// Whether disks of nodes are put back to what they were.
    pub fn restores_nodes(&self) -> bool {
        let mut work = self.hosts.iter().flat_map(|host| &host.work);
        work.any(|work| matches!(work.action, Action::RestoreNode(_)))
    }

    /// Gives the repository of every third history storage nodes.
    pub(crate) fn draw_nodes(&mut self, random: &mut Random) {
        if random.once_in(3) {
            self.add_nodes(random);
        }
    }

    fn add_nodes(&mut self, random: &mut Random) {
        let nodes = 1 + random.below(3);
        self.nodes = nodes + random.below(2);
        for node in 0..nodes {
            if random.once_in(8) {
                continue;
            }
            let number = silt_format::number::to_u64(node);
            let place = random.below(self.prelude.len() + 1).min(node);
            self.prelude.insert(place, Action::AddNode(number));
        }
        for _ in 0..random.below(3) {
            self.prelude.push(Action::Backup(series(random)));
        }
        let folders = self.folders;
        for host in &mut self.hosts {
            for work in &mut host.work {
                if random.once_in(2) {
                    work.faults.push(node_fault(folders, random));
                }
            }
            for _ in 0..=random.below(3) {
                let place = random.below(host.work.len() + 1);
                host.work.insert(place, work(folders, random));
            }
        }
    }
}

fn work(folders: bool, random: &mut Random) -> Work {
    let after_minutes = random.of(&[0, 0, 1, 10, 100, 1500]);
    let action = action(random);
    let faults = random.of(&[0, 0, 1, 1, 2]);
    let mut faults: Vec<Fault> = (0..faults).map(|_| node_fault(folders, random)).collect();
    if matches!(action, Action::RemoveNode(_)) && random.once_in(2) {
        // Others use the node before the list says that nobody may.
        let nth = random.of(&[0, 0, 1, 2, 3]);
        let at = Point { kind: Kind::Put, class: Some(Class::Places), nth };
        faults.push(Fault { at, what: Wrong::Sleep(random.of(&MINUTES)) });
    }
    Work { after_minutes, action, faults, faults_there: Vec::new() }
}

fn series(random: &mut Random) -> Series {
    random.of(&[Series::Vm, Series::Other])
}

fn action(random: &mut Random) -> Action {
    let number = random.bits();
    let one = series(random);
    let backup = Action::Backup(one);
    random.of(&[
        backup,
        backup,
        backup,
        backup,
        Action::SweepNodes,
        Action::SweepNodes,
        Action::SweepNodes,
        Action::Delete(one, number, Exact::Yes),
        Action::Reclaim(one, Keep::Nothing),
        Action::AddNode(number),
        Action::CloseNode(number),
        Action::MoveNode(number),
        Action::RemoveNode(number),
        Action::CutNode(number),
    ])
}

/// A fault that mostly concerns nodes.
fn node_fault(folders: bool, random: &mut Random) -> Fault {
    let any = fault(folders, random);
    if random.once_in(4) {
        return any;
    }
    let class = random.of(&[
        Class::NodeHeads,
        Class::NodeHeads,
        Class::NodeHeads,
        Class::NodeContainers,
        Class::NodeContainers,
        Class::NodeRuns,
        Class::NodeLeases,
    ]);
    let kind = random.of(&[Kind::Put, Kind::Put, Kind::Put, Kind::Delete, Kind::Get, Kind::List]);
    let nth = random.of(&[0, 0, 1, 1, 2, 3]);
    let what = match any.what {
        Wrong::Away(_) => Wrong::Away(random.of(&MINUTES)),
        what => what,
    };
    Fault { at: Point { kind, class: Some(class), nth }, what }
}
