//! Adds the making of deltas to histories.

use siltstone::OptimizeOptions;

use crate::plan::{Action, Plan, Series, Work, fault};
use crate::random::Random;

/// How deltas are made: of small containers, in little memory.
pub(crate) fn delta_options() -> OptimizeOptions {
    OptimizeOptions {
        container_share_min: 0.01,
        compression: Some(1),
        memory_bytes: 8 << 20,
        ..OptimizeOptions::default()
    }
}

impl Plan {
    /// Lets some hosts of every second history store similar chunks as deltas.
    pub(crate) fn draw_deltas(&mut self, random: &mut Random) {
        if random.once_in(2) {
            return;
        }
        let series =
            |random: &mut Random| random.of(&[Series::Vm, Series::Vm, Series::Vm, Series::Other]);
        if random.once_in(2) {
            let one = series(random);
            let backups = (0..=random.below(3)).map(|_| Action::Backup(one));
            self.prelude.extend(backups.chain([Action::Optimize(one)]));
        }
        for host in &mut self.hosts {
            for _ in 0..random.below(3) {
                let after_minutes = random.of(&[0, 0, 1, 10, 100]);
                let action = Action::Optimize(series(random));
                let faults = random.of(&[0, 0, 1, 1, 2]);
                let faults = (0..faults).map(|_| fault(self.folders, random)).collect();
                let place = random.below(host.work.len() + 1);
                let faults_there = Vec::new();
                host.work.insert(place, Work { after_minutes, action, faults, faults_there });
            }
        }
    }

    /// Whether anybody makes deltas.
    pub(crate) fn has_deltas(&self) -> bool {
        let is_making = |action: &Action| matches!(action, Action::Optimize(_));
        let mut work = self.hosts.iter().flat_map(|host| &host.work);
        self.prelude.iter().any(is_making) || work.any(|work| is_making(&work.action))
    }
}
