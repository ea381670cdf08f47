//! Adds file trees to histories.

use crate::plan::{Action, Plan, Shape, Work, fault, series};
use crate::random::Random;

impl Plan {
    /// Draws the plan of a seed in which every series has file trees.
    pub fn draw_with_trees(seed: u64) -> Self {
        let mut plan = Self::draw(seed ^ 0x0074_7265_6573);
        let random = &mut Random(seed ^ 0x0007_12ef);
        let had_trees = plan.shapes.iter().any(|shape| shape.trees() > 0);
        for shape in &mut plan.shapes {
            if shape.trees() == 0 {
                let shapes = [Shape::Tree, Shape::Tree, Shape::Both, Shape::Trees, Shape::Varied];
                *shape = random.of(&shapes);
            }
        }
        if !had_trees {
            plan.draw_times(random);
        }
        plan
    }

    /// Adds what concerns file trees alone.
    pub(crate) fn draw_trees(&mut self, random: &mut Random) {
        for shape in &mut self.shapes {
            *shape = match *shape {
                Shape::Both if random.once_in(2) => Shape::Varied,
                Shape::Tree if random.once_in(4) => Shape::Trees,
                shape => shape,
            };
        }
        if self.shapes.iter().any(|shape| shape.trees() > 0) {
            self.draw_times(random);
        }
    }

    /// Lets files have the times of a clock with ticks, and be cut in other ways.
    fn draw_times(&mut self, random: &mut Random) {
        if random.once_in(3) {
            self.tick_ms = random.of(&[4, 10, 1000, 2000]);
            let skew_minutes = self.hosts.first().map_or(0, |host| host.skew_minutes);
            self.hosts.iter_mut().for_each(|host| host.skew_minutes = skew_minutes);
        }
        for host in &mut self.hosts {
            if random.once_in(4) {
                let after_minutes = random.of(&[0, 0, 1, 10]);
                let action = Action::Tune(series(random), random.bits());
                let faults = (0..random.below(2)).map(|_| fault(self.folders, random)).collect();
                let place = random.below(host.work.len() + 1);
                let faults_there = Vec::new();
                host.work.insert(place, Work { after_minutes, action, faults, faults_there });
            }
        }
    }
}
