//! The model: the expected state of the repository, updated while the history runs.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::tree::Timestamp;
use silt_format::{RepositoryId, Snapshot};

use crate::called::Called;
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
    /// At which site.
    pub site: usize,
    /// Of which series.
    pub series: Series,
    /// How many came before it.
    pub number: usize,
}

/// What a copy has in common with the snapshot that it is a copy of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// When the backup began, in nanoseconds since 1970.
    pub time_ns: i64,
    duration_ms: u64,
    host: String,
    program: String,
    labels: Vec<String>,
}

impl Facts {
    /// The facts of a snapshot with these labels.
    pub fn of(snapshot: &Snapshot, labels: &[String]) -> Self {
        let Snapshot { time_ns, duration_ms, .. } = *snapshot;
        let (host, program) = (snapshot.host.clone(), snapshot.program.clone());
        Self { time_ns, duration_ms, host, program, labels: labels.to_vec() }
    }
}

/// A site and the id of a snapshot that was backed up there.
pub type Origin = (usize, u64);

/// What is known of one snapshot.
#[derive(Clone, Debug)]
pub struct Known {
    /// Whether it must be listed; `None` while uncertain.
    pub is_living: Option<bool>,
    /// Number of attempts to delete it or to bring it back.
    attempts: u64,
    /// Number of these attempts that have not ended.
    pending: u64,
}

/// What a site backs up.
struct Sources {
    images: BTreeMap<Series, Vec<u8>>,
    trees: BTreeMap<Series, [MemoryTree; TREES]>,
    random: Random,
    random_of_trees: Random,
    random_of_volumes: Random,
}

/// What users were told of snapshots.
#[derive(Clone, Default)]
pub struct Told {
    known: BTreeMap<(Called, u64), Known>,
    copies: BTreeMap<(Called, Origin), BTreeSet<u64>>,
    excused: BTreeSet<Called>,
}

/// The attempted operations and their reported results.
pub struct Model {
    sources: Vec<Sources>,
    shapes: [Shape; 2],
    tick_ns: i64,
    /// How many backups of each series run at each site.
    running: BTreeMap<(usize, Series), usize>,
    /// What every backup that was ever tried would restore to.
    tried: BTreeMap<(usize, Series), Vec<Image>>,
    /// Backups that were reported as done.
    made: BTreeMap<Origin, (Attempt, Facts)>,
    /// Snapshots by series and id.
    pub known: BTreeMap<(Called, u64), Known>,
    /// How many backups of each series had been tried when a node lost something: those that were
    /// made may have been lost with it.
    risked: BTreeMap<(usize, Series), usize>,
    /// Snapshots that were made while a node could not be reached that they need: whoever made them
    /// was told so.
    needing_away: BTreeSet<Origin>,
    /// The places that were put back to what they were.
    pub restored: BTreeSet<usize>,
    /// How many hosts do something.
    pub busy: usize,
    /// The repositories of the sites.
    pub sites: Vec<RepositoryId>,
    /// The ids of all copies of a snapshot that were ever seen in a series.
    copies: BTreeMap<(Called, Origin), BTreeSet<u64>>,
    /// Series of replicas in which a snapshot may come back: they were empty again, or a clock was
    /// behind.
    excused: BTreeSet<Called>,
    /// Violations found so far.
    pub violations: Vec<String>,
}

/// What volumes are called.
const NAMES: [&str; 3] = ["disk", "tree", "more"];

impl Sources {
    /// What a site backs up at first.
    fn new(seed: u64, site: usize) -> Self {
        let of = silt_format::number::to_u64(site);
        let seed = seed ^ of << 40;
        let mut random = Random(seed ^ 0x000d_15c5);
        let mut random_of_trees = Random(seed ^ 0x0007_4ee5);
        let mut random_of_volumes = Random(seed ^ 0x0070_01e5);
        let image = disk::image(&mut random);
        let images = Series::ALL.into_iter().map(|series| (series, image.clone())).collect();
        // Where one comes under the name of the other, no file has both its number and its times.
        let (first, then) = (1 + of * 100_000, timestamp(i64::from(site != 0) * 1_000_000_007));
        let tree = MemoryTree::new(first, &mut random_of_trees, then);
        let trees = [tree, MemoryTree::new(first + 1000, &mut random_of_volumes, then)];
        let trees = Series::ALL.into_iter().map(|series| (series, trees.clone())).collect();
        Self { images, trees, random, random_of_trees, random_of_volumes }
    }
}

impl Model {
    /// Returns the model of repositories without snapshots.
    pub fn new(plan: &Plan) -> Self {
        Self {
            sources: (0..=plan.replicas).map(|site| Sources::new(plan.seed, site)).collect(),
            shapes: plan.shapes,
            tick_ns: i64::from(plan.tick_ms) * 1_000_000,
            running: BTreeMap::new(),
            tried: BTreeMap::new(),
            made: BTreeMap::new(),
            known: BTreeMap::new(),
            risked: BTreeMap::new(),
            needing_away: BTreeSet::new(),
            restored: BTreeSet::new(),
            busy: 0,
            sites: Vec::new(),
            copies: BTreeMap::new(),
            excused: BTreeSet::new(),
            violations: Vec::new(),
        }
    }

    /// What users were told so far.
    pub fn told(&self) -> Told {
        let Self { known, copies, excused, .. } = self;
        Told { known: known.clone(), copies: copies.clone(), excused: excused.clone() }
    }

    /// What users were told after this does not hold any more: these snapshots are gone.
    pub fn roll_back(&mut self, told: Told) {
        let Told { mut known, copies, excused } = told;
        for snapshot in self.known.keys() {
            let gone = || Known { is_living: Some(false), attempts: 0, pending: 0 };
            known.entry(*snapshot).or_insert_with(gone);
        }
        (self.known, self.copies, self.excused) = (known, copies, excused);
    }

    /// The node in this place loses what was stored there lately.
    pub fn lose(&mut self, place: usize) {
        self.restored.insert(place);
        self.risked = self.tried.iter().map(|(of, tried)| (*of, tried.len())).collect();
    }

    /// Whether a node has lost anything.
    pub fn has_lost(&self) -> bool {
        !self.risked.is_empty()
    }

    /// A snapshot needs a node that could not be reached when it was made.
    pub fn needs_away(&mut self, by: Attempt, id: u64) {
        self.needing_away.insert((by.site, id));
    }

    /// Whether a snapshot may have been lost: its backup did not begin after the last loss, or did
    /// not see what was lost.
    pub fn may_be_lost(&self, called: Called, id: u64) -> bool {
        let of = (called.site, called.series);
        let made = self.made.get(&(called.site, id)).map(|(by, _)| by.number);
        let is_early = |number| self.risked.get(&of).is_some_and(|it| number < *it);
        let saw = made.is_some_and(|number| !is_early(number));
        self.has_lost() && (!saw || self.needing_away.contains(&(called.site, id)))
    }

    /// A snapshot that may have been lost is given up.
    pub fn gives_up(&mut self, called: Called, id: u64) {
        self.entry(called, id).is_living = None;
    }

    /// The time that a file gets which changes now.
    pub fn stamp_ns(&self, now_ns: i64) -> i64 {
        now_ns - now_ns.rem_euclid(self.tick_ns.max(1))
    }

    /// Changes the sources of a series at this time, and returns them to be backed up.
    pub fn change(&mut self, site: usize, series: Series, now_ns: i64) -> Content {
        let shape = self.shapes[series as usize];
        let mut volumes = Vec::new();
        let now = timestamp(self.stamp_ns(now_ns));
        // A backup reads the state that it began with, whatever others change: what it reads late
        // would look settled.
        let stands_still = self.tick_ns > 0 && self.is_running((site, series), 1);
        let sources = &mut self.sources[site];
        if shape.has_disk()
            && let Some(image) = sources.images.get_mut(&series)
        {
            disk::change(image, &mut sources.random);
            volumes.push((NAMES[0], Data::Disk(image.clone())));
        }
        let trees = sources.trees.get_mut(&series);
        for (tree, name) in trees.into_iter().flatten().zip(&NAMES[1..]).take(shape.trees()) {
            if !stands_still {
                tree.change(&mut sources.random_of_trees, now);
            }
            let random = &mut sources.random_of_volumes;
            let races = self.tick_ns > 0 && random.once_in(2);
            let race = races.then(|| Race::draw(tree, self.tick_ns, random));
            volumes.push((name, Data::Tree(Box::new(tree.clone()), race)));
        }
        if shape.varies() {
            vary(&mut volumes, &mut sources.random_of_volumes);
        }
        Content { volumes }
    }

    /// Whether at least so many backups of a series run.
    fn is_running(&self, of: (usize, Series), count: usize) -> bool {
        self.running.get(&of).is_some_and(|running| *running >= count)
    }

    /// Somebody tries to back this up.
    pub fn tries(&mut self, site: usize, series: Series, content: &Content) -> Attempt {
        let expected = content.expected().into_iter().map(|state| vec![state]).collect();
        let tried = self.tried.entry((site, series)).or_default();
        tried.push(expected);
        Attempt { site, series, number: tried.len() - 1 }
    }

    /// A backup begins to run.
    pub fn begin_backup(&mut self, of: Attempt) {
        *self.running.entry((of.site, of.series)).or_default() += 1;
    }

    /// A backup runs no more.
    pub fn end_backup(&mut self, of: Attempt) {
        *self.running.entry((of.site, of.series)).or_default() -= 1;
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
        let of = (attempt.site, attempt.series);
        if self.is_running(of, 2) {
            return false;
        }
        let sources = &mut self.sources[attempt.site];
        let trees = sources.trees.get_mut(&attempt.series).into_iter().flatten();
        let Some(tree) = trees.into_iter().find(|tree| tree.is_as_in(before, inode)) else {
            return false;
        };
        tree.copy_from(after, inode);
        let tried = self.tried.get_mut(&of);
        let image = tried.and_then(|tried| tried.get_mut(attempt.number));
        if let Some(states) = image.and_then(|image| image.get_mut(volume)) {
            states.push(after.manifest());
            // Attributes are read before content, and may be older than the times of the file.
            let mut mixed = after.clone();
            mixed.keep_attributes(before, inode);
            states.push(mixed.manifest());
            // Nothing tells the second name of a changed file from that of another file.
            if !after.tells_births {
                states.extend(after.manifests_between(before, inode));
            }
        }
        true
    }

    /// A snapshot was reported as made.
    pub fn made(&mut self, by: Attempt, snapshot: &Snapshot, labels: &[String]) {
        let id = snapshot.id.0;
        self.made.insert((by.site, id), (by, Facts::of(snapshot, labels)));
        self.is_there(Called::own(by.site, by.series), id);
    }

    /// Somebody was told that a snapshot is there.
    fn is_there(&mut self, called: Called, id: u64) {
        // Others may have seen it, and deleted it, before its maker was told.
        let known = self.entry(called, id);
        if known.attempts == 0 {
            known.is_living = Some(true);
        }
    }

    /// A copy was reported as made.
    pub fn copied(&mut self, called: Called, id: u64, origin: Origin) {
        self.is_there(called, id);
        self.saw_copy(called, id, origin);
    }

    /// Somebody has seen a copy. There must never have been another one of the same snapshot.
    pub fn saw_copy(&mut self, called: Called, id: u64, origin: Origin) {
        let ids = self.copies.entry((called, origin)).or_default();
        if ids.insert(id) && ids.len() > 1 && !self.excused.contains(&called) {
            let (site, name) = (called.site, called.name());
            self.violations.push(format!(
                "site {site}: {name} has got {:016x} of site {} more than once: {ids:x?}",
                origin.1, origin.0
            ));
        }
    }

    /// The series of a site that have been seen there, of those that are called like this one at
    /// the site that backs it up; the site's own one if none has been seen.
    pub fn all_called(&self, site: usize, series: Series) -> Vec<Called> {
        let called = self.known.keys().map(|(called, _)| *called);
        let mut all: Vec<Called> =
            called.filter(|called| called.site == site && called.series == series).collect();
        all.dedup();
        if all.is_empty() {
            all.push(Called::own(site, series));
        }
        all
    }

    /// One of these series.
    pub fn some_called(&self, site: usize, series: Series, which: u64) -> Called {
        let all = self.all_called(site, series);
        let count = silt_format::number::to_u64(all.len());
        all[usize::try_from((which >> 32) % count).unwrap_or(0)]
    }

    /// From now on, snapshots may come back in a series.
    pub fn excuse(&mut self, called: Called) {
        self.excused.insert(called);
    }

    /// Whether a series has ever had a copy.
    pub fn has_copies(&self, called: Called) -> bool {
        self.copies.keys().any(|(with, _)| *with == called)
    }

    /// The snapshot of which a snapshot is a copy; `None` if it is none.
    pub fn origin_of(&self, snapshot: &Snapshot) -> Option<Origin> {
        let origin = snapshot.origin?;
        let site = self.sites.iter().position(|site| *site == origin.repository);
        Some((site.unwrap_or(usize::MAX), origin.snapshot.0))
    }

    /// Whether a series certainly lists a snapshot, or a copy of it.
    pub fn has(&self, called: Called, origin: Origin) -> bool {
        let is_own = called.prefix.is_none() && called.site == origin.0;
        let copies = self.copies.get(&(called, origin)).into_iter().flatten();
        (is_own && self.lives(called, origin.1))
            || copies.into_iter().any(|id| self.lives(called, *id))
    }

    /// Whether a snapshot is certainly listed, and nobody is about to delete it.
    fn lives(&self, called: Called, id: u64) -> bool {
        let known = self.known.get(&(called, id));
        known.is_some_and(|known| known.is_living == Some(true) && known.pending == 0)
    }

    fn entry(&mut self, called: Called, id: u64) -> &mut Known {
        let unknown = Known { is_living: None, attempts: 0, pending: 0 };
        self.known.entry((called, id)).or_insert(unknown)
    }

    /// Records the begin of an attempt to delete a snapshot or to bring it back. Returns the number
    /// of the attempt for [`end`](Self::end), and whether the snapshot was living.
    pub fn begin(&mut self, called: Called, id: u64) -> (u64, Option<bool>) {
        let known = self.entry(called, id);
        known.attempts += 1;
        known.pending += 1;
        (known.attempts, known.is_living.take())
    }

    /// Records the end of an attempt, with the state of the snapshot if it is certain. The state is
    /// unknown if another attempt overlapped: either may have come last.
    pub fn end(&mut self, called: Called, id: u64, attempt: u64, is_living: Option<bool>) {
        let known = self.entry(called, id);
        known.pending -= 1;
        let was_alone = known.attempts == attempt && known.pending == 0;
        known.is_living = is_living.filter(|_| was_alone);
    }

    /// Somebody restored a snapshot.
    pub fn restored(
        &mut self,
        called: Called,
        (snapshot, labels): (&Snapshot, &[String]),
        volumes: &[Vec<u8>],
        by: &str,
    ) {
        let (id, origin) = (snapshot.id.0, self.origin_of(snapshot));
        if let Some(origin) = origin {
            self.saw_copy(called, id, origin);
        }
        let of = origin.unwrap_or((called.site, id));
        let made = self.made.get(&of);
        let tried = self.tried.get(&(of.0, called.series)).map(Vec::as_slice).unwrap_or_default();
        let is_right = match made {
            Some((by, _)) => is_one_of(volumes, &tried[by.number]),
            None => tried.iter().any(|image| is_one_of(volumes, image)),
        };
        let (site, name) = (called.site, called.name());
        let facts = Facts::of(snapshot, labels);
        if let Some((_, expected)) = made.filter(|(_, expected)| *expected != facts) {
            self.violations.push(format!(
                "{by}: site {site}: {name}@{id:016x} is described as {facts:?}, not {expected:?}"
            ));
        }
        if !is_right {
            self.violations
                .push(format!("{by}: site {site}: {name}@{id:016x} restores to something else"));
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
