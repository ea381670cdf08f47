//! Traces drawn at random, with the proportions that were published of 2,500 virtual machines.
//!
//! What a disk holds at first are segments that other disks may hold too; how many do falls with
//! the segment's rank as in Zipf's law. Day by day some segments are edited: a run of chunks is
//! replaced by an update, which reaches as many machines by the same law. Some pairs of segments
//! change places.

use std::collections::BTreeMap;

use crate::random::{Random, draw, floor};
use crate::trace::{Day, Machine, Print, SEGMENT_CHUNKS, Segment, Trace};

/// The proportions of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub machines: usize,
    /// Segments of a disk, the mean.
    pub segments: usize,
    /// Snapshots of each machine.
    pub days: usize,
    /// The exponent of Zipf's law.
    pub exponent: f64,
    /// In how many machines a chunk is, the mean after deduplication inside each machine.
    pub sharing: f64,
    /// The share of a disk's segments that are edited each day.
    pub edited: f64,
    /// The share of an edited segment's chunks that are new.
    pub replaced: f64,
    /// The share of a disk's segments that change places each day.
    pub moved: f64,
    pub seed: u64,
}

impl Default for Shape {
    /// Of all raw data 24.1 % are in segments that are dirty, 12.05 % are not found in the same
    /// machine, and 4.8 % are different: as published for ten snapshots. The exponent is fitted to
    /// the efficiency at 2 %.
    fn default() -> Self {
        Self {
            machines: 64,
            segments: 8,
            days: 10,
            exponent: 0.687,
            sharing: 0.1205 / 0.048,
            edited: 0.124,
            replaced: 0.184,
            moved: 0.033,
            seed: 1,
        }
    }
}

/// Generates a trace.
pub fn generate(shape: &Shape) -> Trace {
    let mut random = Random(shape.seed);
    let mut disks: Vec<BTreeMap<u32, Vec<Print>>> = vec![BTreeMap::new(); shape.machines];
    let all = (shape.machines * shape.segments) as f64;
    for (template, owners) in (1..).zip(owners(shape, all, &mut random)) {
        for owner in owners {
            let disk = &mut disks[owner];
            let place = u32::try_from(disk.len()).unwrap_or(u32::MAX);
            disk.insert(place, prints(template, SEGMENT_CHUNKS));
        }
    }
    let name = |number: usize| format!("vm{number:04}");
    let mut machines: Vec<Machine> = (0..shape.machines)
        .map(|number| Machine { name: name(number), days: Vec::new() })
        .collect();
    for (machine, disk) in machines.iter_mut().zip(&disks) {
        let changed = disk.iter().map(|(place, prints)| (*place, sealed(prints)));
        machine.days.push(Day { changed: changed.collect() });
    }
    let updates = updates(shape, &mut random);
    for (machine, (disk, updates)) in machines.iter_mut().zip(disks.iter_mut().zip(updates)) {
        for today in updates {
            machine.days.push(day(shape, disk, &today, &mut random));
        }
    }
    Trace { machines }
}

/// A day of a disk: moves, and an update in each edited segment.
fn day(
    shape: &Shape,
    disk: &mut BTreeMap<u32, Vec<Print>>,
    updates: &[u64],
    random: &mut Random,
) -> Day {
    let mut day = Day::default();
    let count = disk.len();
    if count < 2 {
        return day;
    }
    let place = |random: &mut Random| u32::try_from(random.below(count)).unwrap_or(0);
    let pairs = random.around(count as f64 * shape.moved / 2.0);
    for _ in 0..pairs {
        let (a, b) = (place(random), place(random));
        let (first, second) = (disk[&a].clone(), disk[&b].clone());
        disk.insert(a, second);
        disk.insert(b, first);
        day.changed.extend([a, b].map(|place| (place, Segment::default())));
    }
    let run = floor(SEGMENT_CHUNKS as f64 * shape.replaced).max(1);
    for update in updates {
        let at = place(random);
        let Some(segment) = disk.get_mut(&at) else { continue };
        let start = random.below(SEGMENT_CHUNKS - run + 1);
        segment[start..start + run].copy_from_slice(&prints(*update, run));
        day.changed.insert(at, Segment::default());
    }
    for (place, segment) in &mut day.changed {
        *segment = sealed(&disk[place]);
    }
    day
}

/// For each machine and day after the first, which updates reach it.
fn updates(shape: &Shape, random: &mut Random) -> Vec<Vec<Vec<u64>>> {
    let days = shape.days.saturating_sub(1);
    let mut all = vec![vec![Vec::new(); days]; shape.machines];
    let edits = (shape.machines * shape.segments * days) as f64 * shape.edited;
    if days == 0 {
        return all;
    }
    for (update, owners) in (1_u64 << 40..).zip(owners(shape, edits, random)) {
        let day = random.below(days);
        owners.into_iter().for_each(|owner| all[owner][day].push(update));
    }
    all
}

/// The machines of each piece of data, the most common first, so that all machines together have
/// `pieces`.
fn owners(shape: &Shape, pieces: f64, random: &mut Random) -> Vec<Vec<usize>> {
    let different = (pieces / shape.sharing).max(1.0);
    let ranks = 1..=floor(different);
    let most = shape.machines as f64;
    let counts = |scale: f64| {
        let count =
            move |rank: usize| (scale * (rank as f64).powf(-shape.exponent)).clamp(1.0, most);
        ranks.clone().map(count)
    };
    let (mut low, mut high) = (0.0, pieces * 4.0);
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if counts(middle).sum::<f64>() < pieces { low = middle } else { high = middle }
    }
    let mut order: Vec<usize> = (0..shape.machines).collect();
    counts(low)
        .map(|count| {
            let count = random.around(count).min(shape.machines);
            // The first few of a shuffle, which goes on where it was.
            for at in 0..count {
                let other = at + random.below(shape.machines - at);
                order.swap(at, other);
            }
            order[..count].to_vec()
        })
        .collect()
}

/// The fingerprints of a piece of data.
fn prints(piece: u64, count: usize) -> Vec<Print> {
    (0..count as u64).map(|at| draw(piece << 20 | at).max(1)).collect()
}

fn sealed(prints: &[Print]) -> Segment {
    prints.to_vec().into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::{Shape, generate};

    #[test]
    fn the_same_seed_gives_the_same_trace_of_about_the_size_wanted() {
        let shape = Shape { machines: 40, segments: 8, days: 4, ..Shape::default() };
        let (one, two) = (generate(&shape), generate(&shape));
        assert_eq!(one.raw_chunks(), two.raw_chunks());
        assert_eq!(one.days(), 4);
        let expected = (40 * 8 * 4 * super::SEGMENT_CHUNKS) as f64;
        assert!((one.raw_chunks() as f64 / expected - 1.0).abs() < 0.05);
    }
}
