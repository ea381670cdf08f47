//! Sweeps of the shared store where other hosts count the references: whatever they answer, chunks
//! that a series refers to stay.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::{Level, Result, RunRef, RunUse, names};
use silt_sharing::counting::{CountTask, Counted, CountedHead, Counters, count_references};
use silt_sharing::exchange::Workspace;
use silt_storage::{ByteRange, Fault, FaultStorage, Key, Operation, PutMode, Storage, list_all};
use siltstone::{ReclaimOptions, Repository, SharedSweepOptions, SharedSweepReport};

use crate::kit::{self, MemorySource, World};
use crate::shared::{Fleet, check, fleet_image, spool, sweep, with_garbage};

const SHARED: u16 = 1;

/// Changes what hosts have answered.
type Change<'a> = dyn Fn(&CountTask, Vec<Counted>) -> Vec<Counted> + 'a;

/// Hosts that count, each with a repository of its own.
struct Others<'a> {
    storage: Arc<dyn Storage>,
    hosts: usize,
    change: &'a Change<'a>,
    /// Hosts so far: each has random numbers of its own.
    seeds: Cell<u64>,
}

impl<'a> Others<'a> {
    fn new(fleet: &Fleet, hosts: usize, change: &'a Change<'a>) -> Self {
        Self { storage: fleet.storage.clone(), hosts, change, seeds: Cell::new(100) }
    }

    /// What a host of its own counts.
    fn counted(&self, task: &CountTask) -> Result<Counted> {
        self.seeds.set(self.seeds.get() + 1);
        let host = kit::open(Arc::clone(&self.storage), &World::new(self.seeds.get()))?;
        let workspace = Workspace { folder: spool(), memory_bytes: 0 };
        Ok(count_references(&host, task, &workspace, &mut || Ok(()))?.0)
    }
}

impl Counters for Others<'_> {
    fn count(
        &self,
        task: &CountTask,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Counted>> {
        let parts = task.series.chunks(task.series.len().div_ceil(self.hosts).max(1));
        let mut counted = Vec::new();
        for series in parts {
            keep()?;
            counted.push(self.counted(&task.of(series.to_vec()))?);
        }
        Ok((self.change)(task, counted))
    }
}

fn options(reclaim: ReclaimOptions) -> SharedSweepOptions {
    SharedSweepOptions { spool: spool(), memory_bytes: 0, reclaim, dry_run: false }
}

fn sweep_with(fleet: &Fleet, hosts: usize, change: &Change<'_>) -> Result<SharedSweepReport> {
    let others = Others::new(fleet, hosts, change);
    fleet.repository.sweep_store_with(SHARED, &options(kit::THOROUGH), &others)
}

/// The task of a sweep, as it would be now.
fn task(repository: &Repository) -> CountTask {
    let head = repository.head(repository.store(SHARED).id).unwrap().unwrap();
    let series = repository.series_ids().unwrap();
    CountTask { store: SHARED, containers: head.next_container, series }
}

/// Runs of the shared store that are in the storage.
fn runs(fleet: &Fleet) -> Vec<Key> {
    let runs = names::runs(fleet.repository.store(SHARED).id);
    list_all(&*fleet.storage, &runs, None).map(|item| item.unwrap().0).collect()
}

/// Fails unless everything is whole, and nothing is left that no head names.
fn assert_whole(fleet: &Fleet) {
    fleet.assert_whole(&fleet.repository);
    let report = check(&fleet.repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

#[test]
fn other_hosts_count_what_one_process_counts() {
    let alone = sweep(&with_garbage().repository).unwrap();
    assert_eq!(alone.counted_elsewhere, 0);
    for fleet in [with_garbage(), with_garbage().at_once()] {
        for hosts in [0, 1, 2, 7] {
            let Fleet { storage, world, images, .. } = &fleet;
            let storage = Arc::new(storage.snapshot());
            let recipes = Arc::new(AtomicU64::new(0));
            let counter = Arc::clone(&recipes);
            let rule = move |operation: &Operation, _| {
                let is_recipe = matches!(operation,
                    Operation::Get { key, .. } if key.as_str().starts_with("recipes/"));
                counter.fetch_add(u64::from(is_recipe), Ordering::Relaxed);
                Fault::Pass
            };
            let watched = Arc::new(FaultStorage::new(Arc::clone(&storage), rule));
            let repository = kit::open(watched, world).unwrap();
            let (world, images) = (Arc::clone(world), images.clone());
            let fleet = Fleet { storage, world, repository, images };
            let before = runs(&fleet).len();
            // What is left by others stays for a day.
            let options = options(ReclaimOptions { grace_s: 86_400, ..kit::THOROUGH });
            let change: &Change<'_> = &|_, mut counted| {
                counted.truncate(hosts);
                counted
            };
            let others = Others::new(&fleet, hosts.max(1), change);
            let report = fleet.repository.sweep_store_with(SHARED, &options, &others).unwrap();
            let found = |it: &SharedSweepReport| (it.slots, it.condemned_slots, it.dead_slots);
            assert_eq!(found(&report), found(&alone), "{hosts} hosts");
            if hosts == 0 {
                assert!(recipes.load(Ordering::Relaxed) > 0);
                continue;
            }
            // Of all three series, before and after they are fenced.
            assert_eq!(report.counted_elsewhere, 2 * 3);
            assert_eq!(recipes.load(Ordering::Relaxed), 0, "others have read all recipes");
            assert_eq!(runs(&fleet).len(), before, "an index and nothing else");
            assert_whole(&fleet);
        }
    }
}

#[test]
fn a_count_from_before_a_backup_deletes_nothing_that_the_backup_uses() {
    let fleet = with_garbage();
    let image = fleet_image(9);
    let mut session = fleet.repository.backup("d", kit::options()).unwrap();
    let volume = session.add_volume("disk", &MemorySource::new(&image), None).unwrap();
    assert!(volume.levels.get(Level::Shared) > 0);
    let condemned = sweep(&fleet.repository).unwrap();
    assert!(condemned.condemned_slots > 0 && condemned.dead_slots == 0, "{condemned:?}");
    // A host counts, and sleeps. Its answer comes when the backup has committed.
    let others = Others::new(&fleet, 1, &|_, it| it);
    others.seeds.set(500);
    let old = others.counted(&task(&fleet.repository)).unwrap();
    session.finish().unwrap();
    let answered = Cell::new(0);
    let report = sweep_with(&fleet, 1, &|_, _| {
        answered.set(answered.get() + 1);
        vec![old.clone()]
    });
    let report = report.unwrap();
    assert_eq!((answered.get(), report.condemned_slots), (1, condemned.condemned_slots));
    assert!(report.dead_slots < report.condemned_slots, "some of it is used now: {report:?}");
    // The fence has committed a head of each series that did not know of the sweep.
    assert!(report.counted_elsewhere < 4, "{report:?}");
    let found = kit::latest(&fleet.repository, "d").unwrap();
    assert!(kit::restore(&fleet.repository, &found).unwrap() == image);
    assert_whole(&fleet);
}

#[test]
fn heads_that_are_not_the_newest_do_not_count() {
    let alone = sweep(&with_garbage().repository).unwrap();
    let changes: [fn(&mut CountedHead); 4] = [
        |head| head.generation -= 1,
        |head| head.generation += 1,
        |head| head.writer[0] ^= 1,
        |head| head.series.0[0] ^= 1,
    ];
    for change in changes {
        let fleet = with_garbage();
        let report = sweep_with(&fleet, 2, &|_, mut counted| {
            counted.iter_mut().flat_map(|it| &mut it.heads).for_each(change);
            // As if it had no reference.
            counted.iter_mut().for_each(|it| it.run = empty(&fleet));
            counted
        });
        let report = report.unwrap();
        assert_eq!((report.counted_elsewhere, report.dead_slots), (0, alone.dead_slots));
        assert_whole(&fleet);
    }
}

/// A run without a record.
fn empty(fleet: &Fleet) -> RunRef {
    let store = fleet.repository.store(SHARED).id;
    let writer =
        silt_runs::RunWriter::new(&fleet.repository.objects, store, RunUse::Owners, 0).unwrap();
    writer.finish().unwrap().run
}

#[test]
fn what_dead_hosts_have_not_counted_is_counted_here() {
    let alone = sweep(&with_garbage().repository).unwrap();
    for living in 0..3 {
        let fleet = with_garbage();
        let report = sweep_with(&fleet, 3, &|_, mut counted| {
            counted.truncate(living);
            counted
        });
        let report = report.unwrap();
        assert_eq!(
            (report.counted_elsewhere, report.dead_slots),
            (2 * living as u64, alone.dead_slots)
        );
        assert_whole(&fleet);
    }
}

/// What is done to a run of a host, by the storage.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Flip(usize),
    Cut,
    Gone,
    /// The bytes of the store's index.
    Swapped,
}

fn harm(fleet: &Fleet, harm: Harm, run: &RunRef) {
    let store = fleet.repository.store(SHARED).id;
    let key = Key::new(names::run(store, run.id, 0)).unwrap();
    let mut bytes = Vec::new();
    fleet.storage.get(&key, ByteRange::Full, &mut bytes).unwrap();
    fleet.storage.delete(std::slice::from_ref(&key)).unwrap();
    match harm {
        Harm::Flip(part) => {
            let at = bytes.len() * part / 16;
            bytes[at] ^= 4;
        }
        Harm::Cut => bytes.truncate(bytes.len() / 2),
        Harm::Gone => return,
        Harm::Swapped => {
            let head = fleet.repository.head(store).unwrap().unwrap();
            let index = Key::new(names::run(store, head.runs[0].id, 0)).unwrap();
            fleet.storage.get(&index, ByteRange::Full, &mut bytes).unwrap();
        }
    }
    fleet.storage.put(&key, &[&bytes], PutMode::Create).unwrap();
}

#[test]
fn a_damaged_run_is_no_answer() {
    let alone = sweep(&with_garbage().repository).unwrap();
    let harms = (0..16).map(Harm::Flip).chain([Harm::Cut, Harm::Gone, Harm::Swapped]);
    let mut seen = 0;
    for kind in harms {
        let fleet = with_garbage();
        let report = sweep_with(&fleet, 2, &|_, counted| {
            harm(&fleet, kind, &counted[0].run);
            counted
        });
        let report = report.unwrap();
        // The run of the other host has one of the three series. A run's filter is not read.
        assert!([2, 2 * 3].contains(&report.counted_elsewhere), "{kind:?}: {report:?}");
        seen += u32::from(report.counted_elsewhere == 2);
        assert_eq!(report.dead_slots, alone.dead_slots, "{kind:?}");
        let warnings = fleet.world.warnings.lock().unwrap();
        let warned = warnings.iter().any(|it| it.contains("is counted again"));
        assert_eq!(warned, report.counted_elsewhere == 2, "{kind:?}: {warnings:?}");
        drop(warnings);
        assert_whole(&fleet);
    }
    assert!(seen > 12, "{seen}");
}

#[test]
fn a_run_that_the_head_names_stays_whatever_hosts_say() {
    let alone = sweep(&with_garbage().repository).unwrap();
    let fleet = with_garbage();
    let report = sweep_with(&fleet, 2, &|_, mut counted| {
        let store = fleet.repository.store(SHARED).id;
        let head = fleet.repository.head(store).unwrap().unwrap();
        counted[1].run = head.runs[0];
        counted
    });
    let report = report.unwrap();
    assert_eq!((report.counted_elsewhere, report.dead_slots), (2 * 2, alone.dead_slots));
    assert_whole(&fleet);
    let found = kit::backup(&fleet.repository, "d", &fleet_image(3)).unwrap().snapshot;
    assert!(found.volumes[0].levels.get(Level::Shared) > 0);
}

#[test]
fn a_preview_lets_nobody_write() {
    let fleet = with_garbage();
    let before = runs(&fleet);
    let options = SharedSweepOptions { dry_run: true, ..options(kit::THOROUGH) };
    let change: &Change<'_> = &|_, _| panic!("nobody is asked");
    let others = Others::new(&fleet, 1, change);
    let report = fleet.repository.sweep_store_with(SHARED, &options, &others).unwrap();
    assert!(report.condemned_slots > 0);
    assert_eq!(runs(&fleet), before);
}
