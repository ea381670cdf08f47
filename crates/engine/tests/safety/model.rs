//! Random sequences of all operations, with crashes, against a model: a map from snapshots to
//! images and file trees.
//!
//! A sequence that fails is shrunk: steps are left out as long as it still fails.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use silt_format::{ErrorKind, Id, SeriesId, names};
use silt_storage::{
    Counted, CrashStorage, CrashingOperation, Key, MemoryStorage, Storage, list_all,
};
use siltstone::{
    CheckOptions, DataCheck, DeleteMethod, ReclaimOptions, Repository, Selector, SharePolicy,
    SharedSweepOptions, SweepOptions,
};

use crate::kit::{self, Random, World};
use crate::model_trees::{self, Files};
use crate::{deltas, rounds, shared};

/// How many sequences are tried in memory; SILT_MODEL_SEQUENCES says otherwise.
const SEQUENCES: u64 = 500;
const STEPS: usize = 32;
const ALL: CheckOptions =
    CheckOptions { series: Vec::new(), data: DataCheck::All, restart: false, jobs: 1 };
/// Two disks and a file tree.
const NAMES: [&str; 3] = ["vm", "other", "files"];
const DISKS: usize = 2;

/// What may happen. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Action {
    Backup,
    Delete(u64, u64, DeleteMethod),
    Undelete(u64),
    Sweep,
    Reclaim {
        share: f64,
        keep_s: u64,
    },
    Check,
    /// Both disks at once, with a spool or without.
    Round(bool),
    /// What several have is copied to the shared store.
    Build(SharePolicy),
    Repoint,
    /// Chunks that resemble others become deltas.
    Optimize,
    SweepShared {
        share: f64,
    },
}

#[derive(Clone, Debug)]
enum Step {
    Change(usize, u64),
    Do(usize, Action),
    /// The process dies at this mutating storage operation, which happens or not.
    Crash(usize, Action, u64, CrashingOperation),
}

fn action(random: &mut Random) -> Action {
    match random.below(22) {
        20 | 21 => Action::Optimize,
        14 | 15 => Action::Round(random.below(2) == 0),
        16 => {
            let policies = [SharePolicy::Duplicates, SharePolicy::Popular(0.2)];
            Action::Build(policies[random.below(2)])
        }
        17 => Action::Repoint,
        18 | 19 => Action::SweepShared { share: [0.0, 0.2, 0.9][random.below(3)] },
        0..=3 => Action::Backup,
        4..=6 => {
            let method = [DeleteMethod::Approximate, DeleteMethod::Exact][random.below(2)];
            Action::Delete(random.next(), random.next() % 3, method)
        }
        7 | 8 => Action::Undelete(random.next()),
        9 => Action::Sweep,
        10..=12 => {
            let share = [0.0, 0.2, 0.9][random.below(3)];
            Action::Reclaim { share, keep_s: [0, 0, 1 << 40][random.below(3)] }
        }
        _ => Action::Check,
    }
}

fn steps(seed: u64) -> Vec<Step> {
    let mut random = Random(seed);
    let step = |random: &mut Random| {
        let which = [0, 0, 0, 0, 1, 2, 2][random.below(7)];
        match random.below(5) {
            0 | 1 => Step::Change(which, random.next()),
            2 | 3 => Step::Do(which, action(random)),
            _ => {
                let how = [CrashingOperation::Lost, CrashingOperation::Applied][random.below(2)];
                let action = action(random);
                Step::Crash(which, action, random.next() % 20, how)
            }
        }
    };
    (0..STEPS).map(|_| step(&mut random)).collect()
}

struct Model {
    storage: Arc<dyn Storage>,
    dead: Arc<Mutex<HashSet<u32>>>,
    process: u32,
    seed: u64,
    images: [Vec<u8>; DISKS],
    files: Files,
    /// Every snapshot that was ever committed.
    known: BTreeMap<u64, Vec<u8>>,
    living: [BTreeSet<u64>; NAMES.len()],
}

impl Model {
    fn new(seed: u64, storage: Arc<dyn Storage>) -> Self {
        let model = Self {
            storage,
            dead: Arc::default(),
            process: 1,
            seed,
            images: {
                let common = kit::image(seed, 300);
                let other = [common.as_slice(), &kit::image(seed + 1, 200)].concat();
                [common, other]
            },
            files: Files::new(seed),
            known: BTreeMap::new(),
            living: Default::default(),
        };
        kit::init(model.storage.clone(), &model.world()).unwrap();
        model
    }

    fn world(&self) -> Arc<World> {
        let seed = self.seed * 1000 + u64::from(self.process);
        let world = World::process(seed, self.process, "here", &self.dead);
        world.pass_seconds(i64::from(self.process) * 60);
        world
    }

    /// The next process, on this storage; the one before has died.
    fn repository_on(&mut self, storage: Arc<dyn Storage>) -> silt_format::Result<Repository> {
        self.dead.lock().unwrap().insert(self.process);
        self.process += 1;
        kit::open(storage, &self.world())
    }

    fn repository(&mut self) -> Repository {
        self.repository_on(self.storage.clone()).unwrap()
    }

    /// Does something; what it must have done to the living snapshots is the answer.
    fn act(
        &self,
        repository: &Repository,
        which: usize,
        action: &Action,
    ) -> silt_format::Result<[BTreeSet<u64>; NAMES.len()]> {
        let mut after = self.living.clone();
        match action {
            Action::Round(spool) => {
                let images = NAMES.into_iter().zip(self.images.iter().map(Vec::as_slice));
                let images: Vec<_> = images.collect();
                let report = rounds::round_by(repository, &images, *spool)?;
                for (living, backup) in after.iter_mut().zip(report.backups) {
                    living.insert(backup?.snapshot.id.0);
                }
            }
            Action::Build(policy) => drop(shared::build(repository, *policy)?),
            Action::SweepShared { share } => {
                let reclaim = ReclaimOptions { dead_share_min: *share, ..kit::THOROUGH };
                let options = SharedSweepOptions {
                    spool: shared::spool(),
                    memory_bytes: 0,
                    reclaim,
                    dry_run: false,
                };
                repository.sweep_shared(&options)?;
            }
            _ => {
                if let Some(own) = self.act_on_one(repository, which, action)? {
                    after[which] = own.into_iter().collect();
                }
            }
        }
        Ok(after)
    }

    /// Does something to one series, if it can be done.
    fn act_on_one(
        &self,
        repository: &Repository,
        which: usize,
        action: &Action,
    ) -> silt_format::Result<Option<Vec<u64>>> {
        let name = NAMES[which];
        let living: Vec<u64> = self.living[which].iter().copied().collect();
        let head = repository.head(repository.series_id(name))?;
        if head.is_none() && !matches!(action, Action::Backup | Action::Check) {
            return Ok(None);
        }
        let mut after = living.clone();
        match action {
            Action::Backup => {
                let report = match self.images.get(which) {
                    Some(image) => kit::backup(repository, name, image)?,
                    None => model_trees::backup(repository, name, &self.files)?,
                };
                after.push(report.snapshot.id.0);
            }
            Action::Delete(first, more, method) => {
                if living.is_empty() {
                    return Ok(None);
                }
                let at = usize::try_from(*first % living.len() as u64).unwrap();
                let end = (at + 1 + usize::try_from(*more).unwrap()).min(living.len());
                let doomed: Vec<Id> = living[at..end].iter().map(|id| Id(*id)).collect();
                let report = repository.delete(name, &doomed, *method)?;
                assert_eq!(report.deleted, doomed);
                after.drain(at..end);
            }
            Action::Undelete(which) => {
                let deleted = head.map_or_else(Vec::new, |head| head.deleted);
                if deleted.is_empty() {
                    return Ok(None);
                }
                let at = usize::try_from(*which % deleted.len() as u64).unwrap();
                repository.undelete(name, deleted[at].entry.id)?;
                after.push(deleted[at].entry.id.0);
            }
            Action::Sweep => drop(
                repository.sweep(name, SweepOptions { memory_bytes: 1 << 14, phases_min: 0 })?,
            ),
            Action::Reclaim { share, keep_s } => {
                let options = ReclaimOptions {
                    dead_share_min: *share,
                    leak_share_max: 0.5,
                    grace_s: 0,
                    keep_deleted_s: Some(*keep_s),
                    ..ReclaimOptions::default()
                };
                repository.reclaim(name, &options)?;
            }
            Action::Repoint => drop(repository.repoint(name, &shared::spool())?),
            Action::Optimize => drop(repository.optimize(name, &deltas::OPTIONS)?),
            Action::Check => drop(repository.check(&ALL)?),
            Action::Round(_) | Action::Build(_) | Action::SweepShared { .. } => {
                unreachable!("these act on both")
            }
        }
        Ok(Some(after))
    }

    fn listed(&mut self, which: usize) -> BTreeSet<u64> {
        let repository = self.repository();
        let head = repository.head(repository.series_id(NAMES[which])).unwrap();
        head.iter().flat_map(|head| &head.snapshots).map(|entry| entry.id.0).collect()
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Change(which, seed) => match self.images.get_mut(*which) {
                Some(image) => *image = kit::touched(&kit::changed(image, *seed), *seed),
                None => self.files.change(*seed),
            },
            Step::Do(which, action) => {
                let repository = self.repository();
                self.living = self.act(&repository, *which, action).unwrap();
            }
            Step::Crash(which, action, at, struck) => {
                let storage =
                    CrashStorage::new(self.storage.clone(), *at, Counted::Mutations, *struck);
                if let Ok(repository) = self.repository_on(Arc::new(storage)) {
                    drop(self.act(&repository, *which, action));
                }
                self.see_after_crash(*which, action);
            }
        }
        // What is new is what the images and files were.
        let now = [self.images[0].clone(), self.images[1].clone(), self.files.manifest()];
        for (living, content) in self.living.iter().zip(&now) {
            for id in living {
                self.known.entry(*id).or_insert_with(|| content.clone());
            }
        }
    }

    /// It happened as a whole or not at all, and nobody was told which.
    fn see_after_crash(&mut self, which: usize, action: &Action) {
        for of in 0..NAMES.len() {
            let listed = self.listed(of);
            let before = &self.living[of];
            let (gone, new) =
                (before.difference(&listed).count(), listed.difference(before).count());
            match action {
                Action::Round(_) => assert!(gone == 0 && new <= 1),
                Action::Backup | Action::Undelete(_) if of == which => {
                    assert!(gone == 0 && new <= 1);
                }
                Action::Delete(..) if of == which => assert!(new == 0),
                _ => assert!(gone == 0 && new == 0),
            }
            self.living[of] = listed;
        }
    }

    /// Every living snapshot is as it was, and nothing else is listed.
    fn verify(&mut self) {
        for which in 0..NAMES.len() {
            assert_eq!(self.listed(which), self.living[which]);
        }
        let repository = self.repository();
        for (which, living) in self.living.iter().enumerate() {
            for id in living {
                let found = kit::find(&repository, &Selector::Id(Id(*id).to_string())).unwrap();
                let restored = match which {
                    0..DISKS => kit::restore(&repository, &found),
                    _ => model_trees::manifest(&repository, &found),
                };
                assert!(restored.unwrap() == self.known[id], "{}", Id(*id));
            }
        }
        let report = repository.check(&ALL).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
    }

    /// After a sweep and a reclaim storage holds nothing that nobody refers to.
    fn verify_no_waste(&mut self) {
        for name in NAMES {
            let repository = self.repository();
            if repository.head(repository.series_id(name)).unwrap().is_none() {
                continue;
            }
            let options = kit::THOROUGH;
            let report = repository.reclaim(name, &options).unwrap();
            assert_eq!(report.dead_slots_left, 0);
            let again = repository.reclaim(name, &options).unwrap();
            assert_eq!((again.removed_objects, again.rewritten_containers), (0, 0), "{again:?}");
            let swept = again.sweep.unwrap();
            assert_eq!(swept.dead_slots, 0, "what is stored is what mark-and-sweep keeps");
        }
        // Of the shared store nothing is left that neither refers to.
        let repository = self.repository();
        let options = || SharedSweepOptions {
            spool: shared::spool(),
            memory_bytes: 0,
            reclaim: kit::THOROUGH,
            dry_run: false,
        };
        assert!(repository.sweep_shared(&options()).unwrap().waiting_for.is_empty());
        // What was condemned by an interrupted sweep was dealt with, the rest is now.
        repository.sweep_shared(&options()).unwrap();
        let again = repository.sweep_shared(&options()).unwrap();
        assert_eq!((again.condemned_slots, again.dead_slots), (0, 0), "{again:?}");
        assert_eq!(again.reclaimed.dead_slots_left, 0);
        // A series whose only backup was interrupted has got a head from the sweep.
        for name in NAMES {
            match repository.reclaim(name, &kit::THOROUGH) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                other => drop(other.unwrap()),
            }
        }
        self.verify();
        self.verify_objects();
    }

    /// Names every object that the heads do not account for.
    fn verify_objects(&mut self) {
        let repository = self.repository();
        let names: Vec<_> = list_all(&*self.storage, "", None).map(|i| i.unwrap().0).collect();
        // What an interrupted first backup or build has left, which only the next can take over.
        let headless = |key: &&Key| {
            let mut parts = key.as_str().split('/');
            let is_data = !matches!(parts.next(), Some("series" | "state" | "root"));
            let series = parts.next().and_then(SeriesId::from_hex);
            is_data && series.is_some_and(|series| repository.head(series).unwrap().is_none())
        };
        let left = names.iter().filter(headless).count() as u64;
        assert_eq!(repository.check(&ALL).unwrap().unreferenced, left, "{names:#?}");
        for name in NAMES {
            let series = repository.series_id(name);
            let Some(head) = repository.head(series).unwrap() else { continue };
            let vectors: BTreeSet<String> = head
                .snapshots
                .iter()
                .filter_map(|entry| repository.snapshot(series, entry).unwrap().summary)
                .map(|summary| names::summary(series, summary.id, 0))
                .collect();
            let count = |prefix: &str| {
                list_all(&*self.storage, prefix, None)
                    .map(|item| item.unwrap())
                    .filter(|(name, _): &(Key, u64)| {
                        name.as_str().ends_with(".0000") || !prefix.starts_with("summ")
                    })
                    .count()
            };
            assert_eq!(count(&names::snapshots(series)), head.snapshots.len());
            assert_eq!(count(&names::summaries(series)), vectors.len());
            // Nothing is dead; the lists that there are hold bases of deltas.
            let lists: usize = head.delta_bases.iter().map(|list| list.parts as usize).sum();
            assert_eq!(count(&names::dead_lists(series)), lists);
        }
    }
}

/// Makes an empty storage.
type Place<'a> = dyn Fn() -> Arc<dyn Storage> + Sync + 'a;

fn run(seed: u64, steps: &[Step], place: &Place<'_>) -> Result<(), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut model = Model::new(seed, place());
        steps.iter().for_each(|step| model.step(step));
        model.verify();
        model.verify_no_waste();
    }));
    outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default()
    })
}

/// Leaves out steps, many at first, as long as the rest still fails.
fn shrink(seed: u64, mut steps: Vec<Step>, place: &Place<'_>) -> (Vec<Step>, String) {
    let mut why = run(seed, &steps, place).err().unwrap_or_default();
    let mut size = steps.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + size).min(steps.len()));
            if let Err(text) = run(seed, &fewer, place) {
                (steps, why) = (fewer, text);
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    (steps, why)
}

/// How many sequences are tried: what a variable says, or a default.
#[expect(clippy::disallowed_methods, reason = "how long a test runs is the tester's choice")]
pub fn sequences(variable: &str, default: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Tries so many sequences, each in a new place.
pub fn try_sequences(sequences: u64, place: &Place<'_>) {
    let next = std::sync::atomic::AtomicU64::new(0);
    let failed = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while failed.lock().unwrap().is_none() {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= sequences {
                        return;
                    }
                    if run(seed, &steps(seed), place).is_err() {
                        failed.lock().unwrap().get_or_insert(seed);
                    }
                }
            });
        }
    });
    if let Some(seed) = failed.into_inner().unwrap() {
        let (steps, why) = shrink(seed, steps(seed), place);
        panic!("seed {seed}: {why}\nshrunk to {steps:#?}");
    }
}

#[test]
fn random_sequences_lose_nothing_and_waste_nothing() {
    let sequences = sequences("SILT_MODEL_SEQUENCES", SEQUENCES);
    // Every second one is far away: there, what is read is read together.
    let places = std::sync::atomic::AtomicU64::new(0);
    let place = || {
        let number = places.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(MemoryStorage::new().far(number % 2 * (512 << 10))) as Arc<dyn Storage>
    };
    try_sequences(sequences, &place);
}
