//! Deltas in the store: whatever happens to their bases, the living stay whole, and nothing leaks.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::{ErrorKind, PRIVATE_STORE, Reference, Result, names};
use silt_repository::chunks::open_container;
use silt_storage::{Key, MemoryStorage, RecordingStorage, Storage};
use siltstone::{
    CheckOptions, CheckReport, DataCheck, DeleteMethod, OptimizeOptions, Repository, SharePolicy,
    SweepOptions,
};

use crate::deletion::{Series, whole_days};
use crate::kit::{self, World};
use crate::replication::Sleeping;
use crate::shared;

/// Small repositories make small containers.
pub const OPTIONS: OptimizeOptions = OptimizeOptions {
    saved_share_min: 0.25,
    container_share_min: 0.01,
    compression: None,
    memory_bytes: 8 << 20,
    dry_run: false,
};

/// Days that differ by a few bytes in some blocks.
pub fn series(days: u64) -> Series {
    let world = World::new(1);
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &world).unwrap();
    let (mut ids, mut images) = (Vec::new(), vec![kit::image(5, 400)]);
    for day in 0..days {
        let image = images.last().unwrap().clone();
        ids.push(kit::backup(&repository, "vm", &image).unwrap().snapshot.id);
        images.push(kit::touched(&image, day + 50));
        world.pass_seconds(86_400);
    }
    images.pop();
    Series { storage, world, repository, ids, images }
}

fn optimized(days: u64) -> Series {
    let series = series(days);
    let report = series.repository.optimize("vm", &OPTIONS).unwrap();
    assert!(report.deltas > 20 && report.saved_bytes() > 0, "{report:?}");
    series
}

pub fn check(repository: &Repository) -> CheckReport {
    let all = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    repository.check(&all).unwrap()
}

pub fn is_clean(repository: &Repository) {
    let report = check(repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

/// The deltas of a series with their bases, and all slots that hold chunks.
pub fn stored(repository: &Repository) -> (Vec<(Reference, Reference)>, BTreeSet<u64>) {
    let id = repository.series_id("vm");
    let head = repository.head(id).unwrap().unwrap();
    let (mut deltas, mut slots) = (Vec::new(), BTreeSet::new());
    for (number, tag) in head.containers.iter() {
        let container = open_container(&repository.objects, id, number, tag).unwrap();
        let here = |slot| Reference::new(PRIVATE_STORE, number, slot);
        slots.extend(container.directory.slot_numbers().map(|slot| here(slot).bits()));
        let all = container.directory.deltas.iter();
        deltas.extend(all.map(|delta| (here(delta.slot), delta.base)));
    }
    (deltas, slots)
}

/// What is dead is gone, and the rest is whole.
pub fn nothing_leaks(series: &Series, repository: &Repository) {
    let days = whole_days(series, repository);
    nothing_is_left(repository);
    assert_eq!(whole_days(series, repository), days);
}

/// What is dead is gone after two reclaims, and deltas have whole bases that the head lists.
pub fn nothing_is_left(repository: &Repository) {
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
    let again = repository.reclaim("vm", &kit::THOROUGH).unwrap();
    assert_eq!((again.removed_objects, again.rewritten_containers), (0, 0), "{again:?}");
    assert_eq!(again.sweep.unwrap().dead_slots, 0);
    is_clean(repository);
    let (deltas, slots) = stored(repository);
    let bases: BTreeSet<u64> = deltas.iter().map(|(_, base)| base.bits()).collect();
    let listed = repository.head(repository.series_id("vm")).unwrap().unwrap().delta_bases;
    assert_eq!(listed.iter().map(|list| list.slots).sum::<u64>(), bases.len() as u64);
    assert!(bases.is_subset(&slots));
    assert!(deltas.iter().all(|(delta, _)| !bases.contains(&delta.bits())), "one level");
}

#[test]
fn resembling_chunks_become_deltas_and_restore() {
    let series = series(6);
    let plan = OptimizeOptions { dry_run: true, ..OPTIONS };
    let before = series.names("");
    let expected = series.repository.optimize("vm", &plan).unwrap();
    let untouched = series.names("");
    assert!(before.iter().all(|name| untouched.contains(name)), "a dry run changes nothing");
    let report = series.repository.optimize("vm", &OPTIONS).unwrap();
    assert_eq!(report, expected);
    assert!(report.deltas > 100, "{report:?}");
    assert!(report.rewritten_bytes * 10 < report.removed_bytes, "{report:?}");
    assert_eq!(whole_days(&series, &series.repository).len(), 6);
    is_clean(&series.repository);
    let (deltas, _) = stored(&series.repository);
    assert_eq!(deltas.len() as u64, report.deltas);
    // Again there is nothing to do, and later days resemble the whole chunks of the first.
    let again = series.repository.optimize("vm", &OPTIONS).unwrap();
    assert_eq!((again.deltas, again.rewritten_containers), (0, 0), "{again:?}");
    let next = kit::touched(&series.images[5], 99);
    let stored_bytes = kit::backup(&series.repository, "vm", &next).unwrap().stored_bytes;
    assert!(stored_bytes < 400_000, "a backup finds the chunks of deltas: {stored_bytes}");
    let more = series.repository.optimize("vm", &OPTIONS).unwrap();
    assert!(more.deltas > 10, "{more:?}");
    let found = kit::latest(&series.repository, "vm").unwrap();
    assert!(kit::restore(&series.repository, &found).unwrap() == next);
    series.repository.delete("vm", &[found.snapshot.id], DeleteMethod::Approximate).unwrap();
    nothing_leaks(&series, &series.repository);
}

#[test]
fn any_chunk_is_read_from_two_containers_at_most() {
    let series = optimized(50);
    let (deltas, _) = stored(&series.repository);
    assert!(deltas.len() > 1000, "{}", deltas.len());
    let objects = series.storage.clone() as Arc<dyn Storage>;
    for day in [0, 25, 49] {
        let id = siltstone::Selector::Id(series.ids[day].to_string());
        for block in (0..400).step_by(7) {
            let recording = Arc::new(RecordingStorage::new(objects.clone()));
            let repository = kit::open(recording.clone(), &series.world).unwrap();
            let found = kit::find(&repository, &id).unwrap();
            let volume = found.volume("disk").unwrap();
            let reader = siltstone::VolumeReader::open(&repository, volume, 0).unwrap();
            let (mut bytes, offset) = ([0; 4096], block * 4096);
            reader.read_at(offset as u64, &mut bytes).unwrap();
            assert!(bytes == series.images[day][offset..offset + 4096]);
            let records = recording.records();
            let keys = records.iter().flat_map(|record| record.operation.keys());
            let containers: BTreeSet<&str> =
                keys.map(Key::as_str).filter(|key| key.starts_with("containers/")).collect();
            assert!(containers.len() <= 2, "{containers:?}");
        }
    }
}

#[test]
fn what_deltas_are_applied_to_never_becomes_a_delta_itself() {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let repository = kit::init(storage.clone(), &world).unwrap();
    let much_touched =
        |image: &[u8], seed| (0..8_u64).fold(image.to_vec(), |one, n| kit::touched(&one, seed + n));
    let (first, new) = (kit::image(5, 200), kit::image(6, 400));
    let second = much_touched(&first, 100);
    let third = [&much_touched(&second, 200)[..], &new].concat();
    let images = vec![first, [&second[..], &new].concat(), third];
    let mut ids = Vec::new();
    for image in &images {
        ids.push(kit::backup(&repository, "vm", image).unwrap().snapshot.id);
        world.pass_seconds(86_400);
    }
    let series = Series { storage, world, repository, ids, images };
    // The container of the second day has much that resembles nothing, so it stays at first.
    let most = OptimizeOptions { container_share_min: 0.5, ..OPTIONS };
    series.repository.optimize("vm", &most).unwrap();
    let bases = |found: &[(Reference, Reference)]| {
        found.iter().map(|(_, base)| base.bits()).collect::<BTreeSet<u64>>()
    };
    let (before, _) = stored(&series.repository);
    let report = series.repository.optimize("vm", &OPTIONS).unwrap();
    assert!(report.deltas > 10, "{report:?}");
    let (after, _) = stored(&series.repository);
    let new: BTreeSet<u32> = after
        .iter()
        .filter(|(delta, _)| !before.iter().any(|(old, _)| old == delta))
        .map(|(delta, _)| delta.container())
        .collect();
    let is_there = |bits: &u64| new.contains(&Reference::from_bits(*bits).container());
    assert!(bases(&before).iter().any(is_there), "the case that is tested: {before:?}");
    assert_eq!(whole_days(&series, &series.repository), [0, 1, 2]);
    nothing_leaks(&series, &series.repository);
}

/// Stops an action at every change of storage.
pub fn stop_everywhere(series: &Series, action: fn(&Series, &Repository) -> Result<()>) -> u32 {
    kit::each_crash(
        &series.storage,
        864_000,
        &|repository| action(series, repository),
        &mut |repository| {
            whole_days(series, repository);
            assert!(check(repository).damage.is_empty());
            nothing_leaks(series, repository);
            kit::backup(repository, "vm", &series.images[1]).unwrap();
            repository.optimize("vm", &OPTIONS).unwrap();
            let found = kit::latest(repository, "vm").unwrap();
            assert!(kit::restore(repository, &found).unwrap() == series.images[1]);
            assert!(check(repository).damage.is_empty());
        },
    )
}

#[test]
fn making_deltas_may_stop_anywhere() {
    let crashes =
        stop_everywhere(&series(3), |_, repository| repository.optimize("vm", &OPTIONS).map(drop));
    assert!(crashes >= 10, "{crashes}");
}

#[test]
fn deleting_and_reclaiming_deltas_and_bases_may_stop_anywhere() {
    let series = optimized(4);
    let crashes = stop_everywhere(&series, |series, repository| {
        repository.delete("vm", &series.ids[..2], DeleteMethod::Approximate)?;
        repository.reclaim("vm", &kit::THOROUGH).map(drop)
    });
    assert!(crashes >= 10, "{crashes}");
}

#[test]
fn bases_outlive_their_snapshots_and_nothing_outlives_the_last() {
    let series = optimized(5);
    let (repository, id) = (&series.repository, series.repository.series_id("vm"));
    for method in [DeleteMethod::Approximate, DeleteMethod::Exact] {
        let head = repository.head(id).unwrap().unwrap();
        let oldest = head.snapshots[0].id;
        repository.delete("vm", &[oldest], method).unwrap();
        // Without a sweep, bases that are dead stay.
        let options = siltstone::ReclaimOptions { leak_share_max: 1.0, ..kit::THOROUGH };
        repository.reclaim("vm", &options).unwrap();
        whole_days(&series, repository);
        is_clean(repository);
        nothing_leaks(&series, repository);
    }
    assert_eq!(whole_days(&series, repository), [2, 3, 4]);
    let (deltas, slots) = stored(repository);
    // The two days that are gone had chunks that deltas of the others are applied to.
    assert!(!deltas.is_empty());
    repository.delete("vm", &series.ids[3..], DeleteMethod::Approximate).unwrap();
    nothing_leaks(&series, repository);
    let (fewer, left) = stored(repository);
    assert!(fewer.len() < deltas.len() && left.len() < slots.len());
    repository.delete("vm", &series.ids[2..3], DeleteMethod::Approximate).unwrap();
    let options = siltstone::ReclaimOptions { leak_share_max: 1.0, ..kit::THOROUGH };
    repository.reclaim("vm", &options).unwrap();
    let left = [names::containers(id), names::dead_lists(id)];
    assert!(left.iter().all(|prefix| series.names(prefix).is_empty()), "nothing is left");
    assert!(repository.head(id).unwrap().unwrap().delta_bases.is_empty());
    kit::backup(repository, "vm", &series.images[0]).unwrap();
    is_clean(repository);
}

#[test]
fn what_comes_back_after_a_sweep_has_its_bases() {
    let series = optimized(4);
    let repository = &series.repository;
    repository.delete("vm", &series.ids, DeleteMethod::Approximate).unwrap();
    let keep = siltstone::ReclaimOptions { keep_deleted_s: Some(1 << 40), ..kit::THOROUGH };
    repository.reclaim("vm", &keep).unwrap();
    repository.undelete("vm", series.ids[3]).unwrap();
    assert_eq!(whole_days(&series, repository), [3]);
    repository.reclaim("vm", &keep).unwrap();
    nothing_leaks(&series, repository);
    assert_eq!(whole_days(&series, repository), [3]);
}

/// Runs `action` in a process that sleeps right before its n-th change, while another one, which
/// holds it for dead, does `meanwhile`; for every n.
pub fn sleep_everywhere(
    prepared: &Series,
    action: fn(&Series, &Repository) -> Result<()>,
    meanwhile: fn(&Series, &Repository),
) -> usize {
    for sleeps_at in 1.. {
        let storage = Arc::new(prepared.storage.snapshot());
        let (ids, images) = (prepared.ids.clone(), prepared.images.clone());
        let dead = Arc::new(Mutex::new(HashSet::new()));
        let world = World::process(40, 8, "here", &dead);
        world.pass_seconds(864_000);
        let repository = kit::open(storage.clone(), &world).unwrap();
        let other = Arc::new(Series { storage: storage.clone(), world, repository, ids, images });
        let slept = Arc::new(AtomicBool::new(false));
        let while_it_sleeps = {
            let (other, dead, slept) = (other.clone(), dead.clone(), slept.clone());
            move || {
                dead.lock().unwrap().insert(7);
                meanwhile(&other, &other.repository);
                slept.store(true, Ordering::SeqCst);
            }
        };
        let left = Mutex::new(sleeps_at);
        let sleeping = Sleeping { inner: storage, left, meanwhile: while_it_sleeps };
        let victim = World::process(30, 7, "here", &dead);
        victim.pass_seconds(864_000);
        let sleeper = kit::open(Arc::new(sleeping), &victim).unwrap();
        let done = action(&other, &sleeper);
        whole_days(&other, &other.repository);
        let report = check(&other.repository);
        assert!(report.damage.is_empty(), "{sleeps_at} {done:?} {report:?}");
        nothing_leaks(&other, &other.repository);
        if !slept.load(Ordering::SeqCst) {
            done.unwrap();
            return sleeps_at;
        }
    }
    0
}

#[test]
fn deltas_of_a_sleeper_are_not_committed_on_bases_that_are_gone() {
    let changes = sleep_everywhere(
        &series(4),
        |_, repository| repository.optimize("vm", &OPTIONS).map(drop),
        |series, repository| {
            repository.delete("vm", &series.ids[..3], DeleteMethod::Approximate).unwrap();
            repository.reclaim("vm", &kit::THOROUGH).unwrap();
            repository.sweep("vm", SweepOptions::default()).unwrap();
        },
    );
    assert!(changes > 8, "{changes}");
}

#[test]
fn a_reclaim_that_sleeps_removes_no_base_of_new_deltas() {
    let series = series(4);
    series.repository.delete("vm", &series.ids[1..3], DeleteMethod::Approximate).unwrap();
    let changes = sleep_everywhere(
        &series,
        |_, repository| repository.reclaim("vm", &kit::THOROUGH).map(drop),
        |_, repository| {
            repository.optimize("vm", &OPTIONS).unwrap();
        },
    );
    assert!(changes > 8, "{changes}");
}

#[test]
fn a_backup_that_slept_through_it_cannot_commit() {
    let series = series(3);
    let there = World::process(50, 50, "there", &Arc::default());
    let remote = kit::open(series.storage.clone(), &there).unwrap();
    let mut sleeper = remote.backup("vm", kit::options()).unwrap();
    sleeper.add_volume("disk", &kit::MemorySource::new(&series.images[2]), None).unwrap();
    series.world.pass_seconds(100_000);
    series.repository.optimize("vm", &OPTIONS).unwrap();
    assert_eq!(sleeper.finish().unwrap_err().kind(), ErrorKind::Busy);
    assert_eq!(whole_days(&series, &series.repository), [0, 1, 2]);
}

/// A chunk of a delta's base, and its delta, in containers of their own names.
fn delta_and_base(series: &Series) -> (Reference, Reference) {
    let (deltas, _) = stored(&series.repository);
    *deltas.iter().find(|(delta, base)| delta.container() != base.container()).unwrap()
}

fn name_of(series: &Series, reference: Reference) -> Key {
    let id = series.repository.series_id("vm");
    let head = series.repository.head(id).unwrap().unwrap();
    let tag = head.containers.tag(reference.container()).unwrap();
    Key::new(names::container(id, reference.container(), tag)).unwrap()
}

/// Damages a container by `harm`, and looks at everything that can notice.
fn hurt(container_of: fn((Reference, Reference)) -> Reference, harm: fn(&Series, &Key)) {
    for finds_by_restore in [false, true] {
        let series = optimized(4);
        let (delta, base) = delta_and_base(&series);
        let victim = container_of((delta, base));
        let name = name_of(&series, victim);
        harm(&series, &name);
        let id = siltstone::Selector::Id(series.ids[3].to_string());
        let found = kit::find(&series.repository, &id).unwrap();
        let world = World::new(77);
        world.pass_seconds(900_000);
        let repository = kit::open(series.storage.clone(), &world).unwrap();
        if finds_by_restore {
            // Each of these reads what is damaged, and records it.
            for day in 0..4 {
                let id = siltstone::Selector::Id(series.ids[day].to_string());
                let found = kit::find(&repository, &id).unwrap();
                let error = kit::restore(&repository, &found).map(drop);
                if let Err(error) = error {
                    assert_ne!(error.kind(), ErrorKind::Unavailable, "{error}");
                }
            }
        } else {
            let report = check(&repository);
            assert!(!report.damage.is_empty());
            let named = report.damage.iter().find(|damage| damage.object == name.as_str());
            assert!(named.is_some_and(|damage| !damage.is_harmless), "{:?}", report.damage);
        }
        assert!(kit::restore(&repository, &found).is_err(), "the newest day needs it");
        // The machine still has the data: the next backup stores it again.
        kit::backup(&repository, "vm", &series.images[3]).unwrap();
        let found = kit::latest(&repository, "vm").unwrap();
        let restored = kit::restore(&repository, &found);
        assert!(restored.is_ok_and(|bytes| bytes == series.images[3]), "{finds_by_restore}");
    }
}

fn flip(series: &Series, name: &Key) {
    series
        .storage
        .damage(name, |bytes| (100..bytes.len() / 2).step_by(97).for_each(|at| bytes[at] ^= 1))
        .unwrap();
}

fn remove(series: &Series, name: &Key) {
    series.storage.delete(std::slice::from_ref(name)).unwrap();
}

#[test]
fn damage_to_a_base_is_damage_to_its_deltas() {
    hurt(|(_, base)| base, flip);
}

#[test]
fn damage_to_a_delta_is_found_and_stored_again() {
    hurt(|(delta, _)| delta, flip);
}

#[test]
fn a_base_whose_container_is_missing_is_damage_to_its_deltas() {
    hurt(|(_, base)| base, remove);
}

#[test]
fn an_error_names_the_delta_and_its_base() {
    let series = optimized(4);
    let (_, base) = delta_and_base(&series);
    remove(&series, &name_of(&series, base));
    let found = kit::latest(&series.repository, "vm").unwrap();
    let world = World::new(5);
    let repository = kit::open(series.storage.clone(), &world).unwrap();
    let error = kit::restore(&repository, &found).unwrap_err().to_string();
    assert!(error.contains("containers/"), "{error}");
    let report = check(&repository);
    let all: Vec<&str> = report.damage.iter().map(|damage| damage.error.as_str()).collect();
    assert!(all.iter().any(|error| error.contains("it is missing")), "{all:?}");
}

#[test]
fn bases_never_become_links_and_deltas_may() {
    let series = optimized(4);
    let repository = &series.repository;
    // Another machine has the first day and the last.
    let images = [&series.images[0][..], &series.images[3][..]].concat();
    kit::backup(repository, "twin", &images).unwrap();
    shared::build(repository, SharePolicy::Duplicates).unwrap();
    let (before, _) = stored(repository);
    let report = repository.repoint("vm", &shared::spool()).unwrap();
    assert!(report.linked_chunks > 0, "{report:?}");
    let (after, _) = stored(repository);
    assert!(after.len() < before.len(), "some deltas are links now");
    assert!(!after.is_empty());
    assert_eq!(whole_days(&series, repository), [0, 1, 2, 3]);
    assert!(check(repository).damage.is_empty());
    // Without their deltas, bases can go: a sweep says so, and the next links replace them.
    nothing_leaks(&series, repository);
    repository.repoint("vm", &shared::spool()).unwrap();
    shared::sweep(repository).unwrap();
    repository.optimize("vm", &OPTIONS).unwrap();
    nothing_leaks(&series, repository);
    assert_eq!(whole_days(&series, repository), [0, 1, 2, 3]);
}

#[test]
fn dead_deltas_without_bases_keep_no_container_from_being_linked() {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let repository = kit::init(storage, &world).unwrap();
    // The second day resembles the first and has new blocks besides; the third has those alone.
    let (first, new) = (kit::image(5, 200), kit::image(6, 200));
    let second = [&kit::touched(&first, 7)[..], &new].concat();
    let mut old = Vec::new();
    for image in [&first, &second] {
        old.push(kit::backup(&repository, "vm", image).unwrap().snapshot.id);
        world.pass_seconds(86_400);
    }
    kit::backup(&repository, "vm", &new).unwrap();
    assert!(repository.optimize("vm", &OPTIONS).unwrap().deltas > 10);
    // The bases go, and the small deltas stay, as they are no reason to rewrite a container.
    repository.delete("vm", &old, DeleteMethod::Approximate).unwrap();
    let options = siltstone::ReclaimOptions { dead_share_min: 0.9, ..kit::THOROUGH };
    repository.reclaim("vm", &options).unwrap();
    let (deltas, slots) = stored(&repository);
    let has_gone = |base: &Reference| !slots.contains(&base.bits());
    assert!(deltas.iter().any(|(_, base)| has_gone(base)), "the case that is tested");
    // Another machine has the new blocks.
    kit::backup(&repository, "twin", &new).unwrap();
    shared::build(&repository, SharePolicy::Duplicates).unwrap();
    let report = repository.repoint("vm", &shared::spool()).unwrap();
    assert!(report.linked_chunks > 100, "{report:?}");
    let all = world.warnings.lock().unwrap();
    assert!(all.is_empty(), "{all:?}");
    drop(all);
    let (deltas, _) = stored(&repository);
    assert!(!deltas.iter().any(|(_, base)| has_gone(base)), "dead deltas went");
    let head = repository.head(repository.series_id("vm")).unwrap().unwrap();
    let dead = silt_repository::dead::read(&repository.objects, head.series, &head.dead).unwrap();
    assert!(dead.references().all(|bits| slots.contains(&bits)), "the list names what is there");
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == new);
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
    is_clean(&repository);
}

#[test]
fn a_chunk_that_only_a_delta_has_can_be_shared() {
    let series = optimized(3);
    let repository = &series.repository;
    kit::backup(repository, "twin", &series.images[2]).unwrap();
    repository.optimize("twin", &OPTIONS).unwrap();
    let report = shared::build(repository, SharePolicy::Duplicates).unwrap();
    assert!(report.copied_chunks > 0, "{report:?}");
    for name in ["vm", "twin"] {
        repository.repoint(name, &shared::spool()).unwrap();
    }
    assert!(
        kit::restore(repository, &kit::latest(repository, "twin").unwrap()).unwrap()
            == series.images[2]
    );
    assert_eq!(whole_days(&series, repository), [0, 1, 2]);
    assert!(check(repository).damage.is_empty());
}

#[test]
fn an_append_only_repository_takes_deltas_from_its_administrator_alone() {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    crate::deletion::init_append_only(&storage, &world);
    let repository = kit::open(storage, &world).unwrap();
    kit::backup(&repository, "vm", &kit::image(5, 100)).unwrap();
    let error = repository.optimize("vm", &OPTIONS).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "the administrator's key is needed");
    let error = repository.optimize("none", &OPTIONS).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Denied), "{error}");
}
