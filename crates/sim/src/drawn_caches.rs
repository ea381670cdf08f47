//! Adds caches to histories of buckets.

use crate::plan::{Action, Plan, series};
use crate::random::Random;

impl Plan {
    /// Gives the machines of every second history of buckets caches, which are older than the
    /// repository in half of these: it was rolled back.
    pub(crate) fn draw_caches(&mut self, random: &mut Random) {
        self.caches = !self.folders && random.once_in(2);
        if !self.caches {
            return;
        }
        for _ in 0..random.below(3) {
            let place = random.below(self.prelude.len() + 1);
            let (one, which) = (series(random), random.bits());
            let reads = random.once_in(2);
            let action = if reads { Action::Restore(one, which) } else { Action::Backup(one) };
            self.prelude.insert(place, action);
        }
        if random.once_in(2) {
            self.prelude.push(Action::RollBack(random.bits()));
            for _ in 0..random.below(3) {
                self.prelude.push(Action::Backup(series(random)));
            }
        }
    }
}
