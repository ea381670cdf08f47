//! The model: the expected state of the repository, updated while the history runs.

use std::collections::BTreeMap;

use silt_format::tree::Timestamp;

use crate::content::{Content, Data};
use crate::disk;
use crate::plan::{Plan, Series, Shape};
use crate::race::Race;
use crate::random::Random;
use crate::tree::MemoryTree;

/// How many trees a series has.
const TREES: usize = 2;

/// What a restore may bring back of each volume: more than one state, if it changed during the
/// backup.
pub type Image = Vec<Vec<Vec<u8>>>;

/// A backup that somebody tried.
#[derive(Clone, Copy, Debug)]
pub struct Attempt {
    /// Of which series.
    pub series: Series,
    number: usize,
}

/// What is known of one snapshot.
#[derive(Clone, Debug)]
pub struct Known {
    /// The backup that made it, if that was reported as done.
    by: Option<Attempt>,
    /// Whether it must be listed; `None` while uncertain.
    pub is_living: Option<bool>,
    /// Number of attempts to delete it or to bring it back.
    attempts: u64,
    /// Number of these attempts that have not ended.
    pending: u64,
}

/// The attempted operations and their reported results.
pub struct Model {
    images: BTreeMap<Series, Vec<u8>>,
    trees: BTreeMap<Series, [MemoryTree; TREES]>,
    shapes: [Shape; 2],
    tick_ns: i64,
    /// How many backups of each series run.
    running: BTreeMap<Series, usize>,
    /// What every backup that was ever tried would restore to.
    tried: BTreeMap<Series, Vec<Image>>,
    /// Snapshots by series and id.
    pub known: BTreeMap<(Series, u64), Known>,
    /// Violations found so far.
    pub violations: Vec<String>,
    random: Random,
    random_of_trees: Random,
    random_of_volumes: Random,
}

/// What volumes are called.
const NAMES: [&str; 3] = ["disk", "tree", "more"];

impl Model {
    /// Returns the model of a repository without snapshots.
    pub fn new(plan: &Plan) -> Self {
        let mut random = Random(plan.seed ^ 0x000d_15c5);
        let mut random_of_trees = Random(plan.seed ^ 0x0007_4ee5);
        let mut random_of_volumes = Random(plan.seed ^ 0x0070_01e5);
        let image = disk::image(&mut random);
        let images = Series::ALL.into_iter().map(|series| (series, image.clone())).collect();
        let tree = MemoryTree::new(1, &mut random_of_trees, timestamp(0));
        // Where one comes under the name of the other, no file has both its number and its times.
        let trees = [tree, MemoryTree::new(1001, &mut random_of_volumes, timestamp(0))];
        let trees = Series::ALL.into_iter().map(|series| (series, trees.clone())).collect();
        Self {
            images,
            trees,
            shapes: plan.shapes,
            tick_ns: i64::from(plan.tick_ms) * 1_000_000,
            running: BTreeMap::new(),
            tried: BTreeMap::new(),
            known: BTreeMap::new(),
            violations: Vec::new(),
            random,
            random_of_trees,
            random_of_volumes,
        }
    }

    /// The time that a file gets which changes now.
    pub fn stamp_ns(&self, now_ns: i64) -> i64 {
        now_ns - now_ns.rem_euclid(self.tick_ns.max(1))
    }

    /// Changes the sources of a series at this time, and returns them to be backed up.
    pub fn change(&mut self, series: Series, now_ns: i64) -> Content {
        let shape = self.shapes[series as usize];
        let mut volumes = Vec::new();
        if shape.has_disk()
            && let Some(image) = self.images.get_mut(&series)
        {
            disk::change(image, &mut self.random);
            volumes.push((NAMES[0], Data::Disk(image.clone())));
        }
        let now = timestamp(self.stamp_ns(now_ns));
        // A backup reads the state that it began with, whatever others change: what it reads late
        // would look settled.
        let stands_still = self.tick_ns > 0 && self.is_running(series, 1);
        let trees = self.trees.get_mut(&series);
        for (tree, name) in trees.into_iter().flatten().zip(&NAMES[1..]).take(shape.trees()) {
            if !stands_still {
                tree.change(&mut self.random_of_trees, now);
            }
            let random = &mut self.random_of_volumes;
            let races = self.tick_ns > 0 && random.once_in(2);
            let race = races.then(|| Race::draw(tree, self.tick_ns, random));
            volumes.push((name, Data::Tree(Box::new(tree.clone()), race)));
        }
        if shape.varies() {
            vary(&mut volumes, &mut self.random_of_volumes);
        }
        Content { volumes }
    }

    /// Whether at least so many backups of a series run.
    fn is_running(&self, series: Series, count: usize) -> bool {
        self.running.get(&series).is_some_and(|running| *running >= count)
    }

    /// A backup begins to run.
    pub fn begin_backup(&mut self, series: Series) {
        *self.running.entry(series).or_default() += 1;
    }

    /// A backup runs no more.
    pub fn end_backup(&mut self, series: Series) {
        *self.running.entry(series).or_default() -= 1;
    }

    /// Somebody tries to back this up.
    pub fn tries(&mut self, series: Series, content: &Content) -> Attempt {
        let expected = content.expected().into_iter().map(|state| vec![state]).collect();
        let tried = self.tried.entry(series).or_default();
        tried.push(expected);
        Attempt { series, number: tried.len() - 1 }
    }

    /// An entry of a tree changes during its backup, unless it is not what it was any more. Both
    /// states may be restored.
    pub fn races(
        &mut self,
        attempt: &Attempt,
        volume: usize,
        (before, after): (&MemoryTree, &MemoryTree),
        inode: u64,
    ) -> bool {
        if self.is_running(attempt.series, 2) {
            return false;
        }
        let trees = self.trees.get_mut(&attempt.series).into_iter().flatten();
        let Some(tree) = trees.into_iter().find(|tree| tree.is_as_in(before, inode)) else {
            return false;
        };
        tree.copy_from(after, inode);
        let tried = self.tried.get_mut(&attempt.series);
        let image = tried.and_then(|tried| tried.get_mut(attempt.number));
        if let Some(states) = image.and_then(|image| image.get_mut(volume)) {
            states.push(after.manifest());
            // Attributes are read before content, and may be older than the times of the file.
            let mut mixed = after.clone();
            mixed.keep_attributes(before, inode);
            states.push(mixed.manifest());
        }
        true
    }

    /// A snapshot was reported as made.
    pub fn made(&mut self, by: Attempt, id: u64) {
        // Others may have seen it, and deleted it, before its maker was told.
        let known = self.entry(by.series, id);
        known.by = Some(by);
        if known.attempts == 0 {
            known.is_living = Some(true);
        }
    }

    fn entry(&mut self, series: Series, id: u64) -> &mut Known {
        let unknown = Known { by: None, is_living: None, attempts: 0, pending: 0 };
        self.known.entry((series, id)).or_insert(unknown)
    }

    /// Records the begin of an attempt to delete a snapshot or to bring it back. Returns the number
    /// of the attempt for [`end`](Self::end), and whether the snapshot was living.
    pub fn begin(&mut self, series: Series, id: u64) -> (u64, Option<bool>) {
        let known = self.entry(series, id);
        known.attempts += 1;
        known.pending += 1;
        (known.attempts, known.is_living.take())
    }

    /// Records the end of an attempt, with the state of the snapshot if it is certain. The state is
    /// unknown if another attempt overlapped: either may have come last.
    pub fn end(&mut self, series: Series, id: u64, attempt: u64, is_living: Option<bool>) {
        let known = self.entry(series, id);
        known.pending -= 1;
        let was_alone = known.attempts == attempt && known.pending == 0;
        known.is_living = is_living.filter(|_| was_alone);
    }

    /// Somebody restored a snapshot.
    pub fn restored(&mut self, series: Series, id: u64, volumes: &[Vec<u8>], by: &str) {
        let made_by = self.known.get(&(series, id)).and_then(|known| known.by);
        let tried = self.tried.get(&series).map(Vec::as_slice).unwrap_or_default();
        let is_right = match made_by {
            Some(by) => is_one_of(volumes, &tried[by.number]),
            None => tried.iter().any(|image| is_one_of(volumes, image)),
        };
        if !is_right {
            self.violations
                .push(format!("{by}: {}@{id:016x} restores to something else", series.name()));
        }
    }
}

/// Whether each volume is in one of its states.
fn is_one_of(volumes: &[Vec<u8>], image: &Image) -> bool {
    volumes.len() == image.len()
        && volumes.iter().zip(image).all(|(volume, states)| states.contains(volume))
}

/// Leaves volumes out, and gives them each other's names.
fn vary(volumes: &mut Vec<(&'static str, Data)>, random: &mut Random) {
    if random.once_in(8) {
        let names: Vec<_> = volumes.iter().map(|(name, _)| *name).collect();
        let volumes = volumes.iter_mut().zip(names.iter().cycle().skip(1));
        volumes.for_each(|(volume, name)| volume.0 = *name);
    }
    while volumes.len() > 1 && random.once_in(3) {
        volumes.remove(random.below(volumes.len()));
    }
}

/// A time as a file has it.
pub fn timestamp(now_ns: i64) -> Timestamp {
    let nanoseconds = u32::try_from(now_ns.rem_euclid(1_000_000_000)).unwrap_or(0);
    Timestamp { seconds: now_ns.div_euclid(1_000_000_000), nanoseconds }
}
