//! Stopping after every storage operation (I-1, I-5).

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::{ErrorKind, Result};
use silt_storage::{
    Counted, CrashStorage, CrashingOperation, Fault, FaultStorage, MemoryStorage, Operation,
    OperationKind, Storage,
};
use siltstone::{CheckOptions, DataCheck, Repository};

use crate::kit::{self, MemorySource, World};

/// What the crash interrupts.
pub type Action = dyn Fn(&Repository) -> Result<()>;

/// Crashes `action` at every mutation, in a repository that holds `committed`, and checks what is
/// left.
fn crash_everywhere(committed: &[Vec<u8>], next: &[u8], action: &Action) -> Totals {
    crash_everywhere_in(&|objects| Arc::new(objects), committed, next, action)
}

/// The same in other places, which `place` makes of the objects that are there before.
pub fn crash_everywhere_in(
    place: &dyn Fn(MemoryStorage) -> Arc<dyn Storage>,
    committed: &[Vec<u8>],
    next: &[u8],
    action: &Action,
) -> Totals {
    let world = World::new(1);
    let base = MemoryStorage::new();
    let storage = Arc::new(base);
    let repository = kit::init(storage.clone(), &world).unwrap();
    for image in committed {
        kit::backup(&repository, "vm", image).unwrap();
    }
    let mut adopted = 0;
    let crashes = kit::each_crash_in(&storage, place, 3600, action, &mut |repository| {
        adopted += survives(repository, committed, next);
    });
    Totals { crashes, adopted }
}

pub struct Totals {
    pub crashes: u32,
    pub adopted: usize,
}

/// Every committed snapshot is whole, nothing needs repair, and the next backup works.
fn survives(repository: &Repository, committed: &[Vec<u8>], next: &[u8]) -> usize {
    let heads = repository.heads(&[]).unwrap();
    let snapshots = heads.first().map_or(&[][..], |head| &head.snapshots);
    assert!(snapshots.len() >= committed.len(), "a committed snapshot is gone");
    for (number, entry) in snapshots.iter().enumerate() {
        let selector = siltstone::Selector::Id(entry.id.to_string());
        let found = kit::find(repository, &selector).unwrap();
        let expected = committed.get(number).map_or(next, Vec::as_slice);
        assert!(kit::restore(repository, &found).unwrap() == expected, "snapshot {number}");
    }
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = repository.check(&all).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    let report = kit::backup(repository, "vm", next).unwrap();
    let found = kit::latest(repository, "vm").unwrap();
    assert!(kit::restore(repository, &found).unwrap() == next);
    assert!(repository.check(&all).unwrap().damage.is_empty());
    report.adopted_containers
}

#[test]
fn a_first_backup_may_stop_anywhere() {
    let image = kit::image(1, 1400);
    let next = image.clone();
    let totals = crash_everywhere(&[], &image, &move |repository| {
        kit::backup(repository, "vm", &next).map(|_| ())
    });
    assert!(totals.crashes > 20, "{}", totals.crashes);
    assert!(totals.adopted > 10, "what was uploaded is used: {}", totals.adopted);
}

#[test]
fn a_second_backup_may_stop_anywhere() {
    let image = kit::image(2, 1400);
    let next = kit::changed(&image, 5);
    let wanted = next.clone();
    let totals = crash_everywhere(&[image], &next, &move |repository| {
        kit::backup(repository, "vm", &wanted).map(|_| ())
    });
    assert!(totals.crashes > 10, "{}", totals.crashes);
}

#[test]
fn a_check_may_stop_anywhere() {
    let image = kit::image(3, 900);
    let next = kit::changed(&image, 6);
    let totals = crash_everywhere(&[image], &next, &|repository| {
        let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
        let report = repository.check(&all)?;
        assert!(report.damage.is_empty());
        Ok(())
    });
    assert!(totals.crashes >= 2, "{}", totals.crashes);
}

#[test]
fn a_backup_after_a_crash_may_crash_too() {
    let image = kit::image(4, 1400);
    for first in (2..30).step_by(5) {
        for second in (1..30).step_by(4) {
            let survivor = Arc::new(MemoryStorage::new());
            let dead = Arc::new(Mutex::new(HashSet::from([7, 8])));
            let world = World::process(first, 1, "here", &dead);
            kit::init(survivor.clone(), &world).unwrap();
            for (process, succeeding) in [(7, first), (8, second)] {
                let crashing = Arc::new(CrashStorage::new(
                    survivor.clone(),
                    succeeding,
                    Counted::Mutations,
                    CrashingOperation::Applied,
                ));
                let seed = first * 100 + second + u64::from(process);
                let world = World::process(seed, process, "here", &dead);
                let opened = kit::open(crashing, &world);
                let _ = opened.and_then(|repository| kit::backup(&repository, "vm", &image));
            }
            let world = World::process(99, 9, "here", &dead);
            let repository = kit::open(survivor, &world).unwrap();
            survives(&repository, &[], &image);
        }
    }
}

#[test]
fn an_interrupted_backup_says_so_and_leaves_the_repository_whole() {
    let world = World::new(5);
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage, &world).unwrap();
    let image = kit::image(5, 1400);
    world.interrupted.store(true, Ordering::SeqCst);
    let error = kit::backup(&repository, "vm", &image).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    world.interrupted.store(false, Ordering::SeqCst);
    survives(&repository, &[], &image);
}

/// A container whose put fails, or whose sender panics, keeps its session from committing, also
/// where the caller does not mind the error.
#[test]
fn a_session_that_lost_a_container_commits_nothing() {
    let images = [1, 2].map(|seed| kit::image(seed, 1024));
    let mut lost = 0;
    for panics in [false, true] {
        for nth in 0.. {
            let objects = Arc::new(MemoryStorage::new());
            kit::init(objects.clone(), &World::new(1)).unwrap();
            let puts = AtomicU64::new(0);
            let rule = move |operation: &Operation, _: u64| {
                let is_container = operation.kind() == OperationKind::Put
                    && format!("{operation:?}").contains("containers/");
                if is_container && puts.fetch_add(1, Ordering::SeqCst) == nth {
                    assert!(!panics, "a bug in a storage");
                    return Fault::FailBefore(ErrorKind::Denied);
                }
                Fault::Pass
            };
            let storage = Arc::new(FaultStorage::new(objects, rule));
            let repository = kit::open(storage, &World::new(2)).unwrap();
            let mut session = repository.backup("vm", kit::options()).unwrap();
            let mut failures = 0;
            for (name, image) in ["a", "b"].into_iter().zip(&images) {
                let source = MemorySource::new(image);
                failures += u32::from(session.add_volume(name, &source, None).is_err());
            }
            let Err(error) = session.finish() else {
                assert_eq!(failures, 0, "all containers were stored");
                break;
            };
            lost += 1;
            assert!(kit::latest(&repository, "vm").is_err(), "{error}");
            kit::backup(&repository, "vm", &images[0]).unwrap();
            let found = kit::latest(&repository, "vm").unwrap();
            assert!(kit::restore(&repository, &found).unwrap() == images[0]);
        }
    }
    assert!(lost >= 20, "{lost} containers were lost");
}
