//! Series whose snapshots are deleted: every chunk is unique, and a part of them changes each day.

#[cfg(test)]
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::trace::{Day, Machine, Print, SEGMENT_CHUNKS, Segment};
use silt_report::{Random, floor};

/// How a series changes.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// Segments on the first day.
    pub segments: usize,
    /// Segments from the second day on.
    pub grown_segments: usize,
    pub days: usize,
    /// Of the chunks, the share that changes in a day (000: 2.5 %).
    pub share: f64,
    /// Chunks that change together.
    pub run: usize,
    pub seed: u64,
}

impl Change {
    pub fn chunks(&self) -> usize {
        self.grown_segments * SEGMENT_CHUNKS
    }

    /// Chunks that change in a day.
    pub fn changed(&self) -> usize {
        floor(self.chunks() as f64 * self.share / self.run as f64) * self.run
    }

    /// The machine with its days.
    pub fn machine(&self) -> Machine {
        let mut random = Random(self.seed);
        let mut next: Print = self.seed << 40;
        let mut fresh = move || {
            next += 1;
            next
        };
        let mut disk: Vec<Print> = (0..self.segments * SEGMENT_CHUNKS).map(|_| fresh()).collect();
        let mut days = vec![day_of(&disk, &(0..self.segments).collect())];
        for number in 1..self.days {
            let mut dirty = BTreeSet::new();
            if number == 1 {
                disk.resize_with(self.chunks(), &mut fresh);
                dirty.extend(self.segments..self.grown_segments);
            }
            let runs = disk.len() / self.run;
            let mut changed = BTreeSet::new();
            while changed.len() * self.run < self.changed() {
                changed.insert(random.below(runs));
            }
            for run in changed {
                let places = run * self.run..(run + 1) * self.run;
                dirty.extend(places.start / SEGMENT_CHUNKS..=(places.end - 1) / SEGMENT_CHUNKS);
                disk[places].fill_with(&mut fresh);
            }
            days.push(day_of(&disk, &dirty));
        }
        Machine { name: format!("series{}", self.seed), days }
    }
}

fn day_of(disk: &[Print], segments: &BTreeSet<usize>) -> Day {
    let segment = |place: &usize| -> (u32, Segment) {
        let chunks = &disk[place * SEGMENT_CHUNKS..(place + 1) * SEGMENT_CHUNKS];
        (u32::try_from(*place).unwrap_or(u32::MAX), chunks.into())
    };
    Day { changed: segments.iter().map(segment).collect() }
}

/// The chunks that a machine has on each day.
#[cfg(test)]
pub fn contents(machine: &Machine) -> Vec<BTreeSet<Print>> {
    let mut disk: BTreeMap<u32, &Segment> = BTreeMap::new();
    let mut days = Vec::new();
    for day in &machine.days {
        disk.extend(day.changed.iter().map(|(place, segment)| (*place, segment)));
        days.push(disk.values().flat_map(|segment| segment.iter().copied()).collect());
    }
    days
}
