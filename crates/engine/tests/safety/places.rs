//! A repository in several places: any of them may be damaged, gone, or fail in the middle.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::names::{self, Numbered};
use silt_format::{Error, ErrorKind, KdfCost, KeyLabel, Result};
use silt_storage::{
    ByteRange, CachePolicy, CachedStorage, Counted, CrashStorage, CrashingOperation, Fault,
    FaultStorage, Keep, Key, MemoryStorage, Operation, OperationKind, PutMode, Storage, list_all,
};
use siltstone::storage::CACHE_POLICY;
use siltstone::{
    Administrator, Advice, Completeness, DeleteMethod, HealOptions, KeyAccess, Protection,
    Repository, SharePolicy,
};

use crate::kit::{self, World};
use crate::{rounds, shared};

pub const ALL_DATA: HealOptions = HealOptions { read_data: true, dry_run: false };

/// Storages by their locations; one that is not there can't be reached.
#[derive(Default)]
pub struct Disks(pub Mutex<BTreeMap<String, Arc<MemoryStorage>>>);

impl Disks {
    pub fn with(locations: &[&str]) -> Self {
        let disks = locations.iter().map(|name| ((*name).to_owned(), Arc::default()));
        Self(Mutex::new(disks.collect()))
    }

    pub fn get(&self, location: &str) -> Arc<MemoryStorage> {
        Arc::clone(&self.0.lock().unwrap()[location])
    }

    pub fn open(&self, location: &str) -> Result<Arc<dyn Storage>> {
        let disks = self.0.lock().unwrap();
        let found = disks.get(location).map(|disk| Arc::clone(disk) as Arc<dyn Storage>);
        found.ok_or_else(|| Error::new(ErrorKind::Unavailable, "the disk is not there"))
    }

    pub fn repository(&self, location: &str, world: &Arc<World>) -> Result<Repository> {
        let open = |location: &str| self.open(location);
        kit::open(self.open(location)?, world)?.with_places(location, &open)
    }

    pub fn add(
        &self,
        here: &str,
        location: &str,
        is_shared: bool,
        world: &Arc<World>,
    ) -> Repository {
        let open = |location: &str| self.open(location);
        let repository = self.repository(here, world).unwrap();
        let added = if is_shared {
            repository.add_shared_place(here, location, &open)
        } else {
            repository.add_place(here, location, &open)
        };
        added.unwrap().0
    }

    pub fn objects(&self, location: &str) -> BTreeMap<String, Vec<u8>> {
        let disk = self.get(location);
        let keys = list_all(&*disk, "", None).map(|item| item.unwrap().0);
        let keys = keys.filter(|key| !Numbered::Lease.is(key.as_str()));
        keys.map(|key| {
            let mut bytes = Vec::new();
            disk.get(&key, ByteRange::Full, &mut bytes).unwrap();
            (key.as_str().to_owned(), bytes)
        })
        .collect()
    }
}

pub fn replace(disk: &MemoryStorage, name: &str, bytes: Option<&[u8]>) {
    let key = Key::new(name).unwrap();
    disk.delete(std::slice::from_ref(&key)).unwrap();
    bytes.iter().for_each(|bytes| disk.put(&key, &[bytes], PutMode::Create).unwrap());
}

/// A repository in two places with two snapshots, and its images.
fn two_copies() -> (Disks, Arc<World>, [Vec<u8>; 2]) {
    two_copies_with(2)
}

/// The same with another second day: names, which come from the same random numbers, are the same.
fn two_copies_with(day: u64) -> (Disks, Arc<World>, [Vec<u8>; 2]) {
    let (disks, world) = (Disks::with(&["a", "b"]), World::new(1));
    let repository = kit::init(disks.get("a"), &world).unwrap();
    let first = kit::image(1, 300);
    kit::backup(&repository, "vm", &first).unwrap();
    let repository = disks.add("a", "b", false, &world);
    world.pass_seconds(3600);
    let second = kit::changed(&first, day);
    kit::backup(&repository, "vm", &second).unwrap();
    assert_eq!(disks.objects("a"), disks.objects("b"));
    (disks, world, [first, second])
}

fn assert_restores(repository: &Repository, images: &[Vec<u8>; 2]) {
    let found = kit::latest(repository, "vm").unwrap();
    assert!(kit::restore(repository, &found).unwrap() == images[1]);
    let ids: Vec<_> = found.head.snapshots.iter().map(|entry| entry.id).collect();
    let first = kit::find(repository, &siltstone::Selector::Id(ids[0].to_string())).unwrap();
    assert!(kit::restore(repository, &first).unwrap() == images[0]);
}

#[test]
fn one_place_is_enough_to_restore_and_all_are_needed_to_write() {
    for lost in ["a", "b"] {
        let (disks, world, images) = two_copies();
        let left = if lost == "a" { "b" } else { "a" };
        disks.0.lock().unwrap().remove(lost);
        let repository = disks.repository(left, &world).unwrap();
        assert_restores(&repository, &images);
        let error = kit::backup(&repository, "vm", &images[0]).unwrap_err();
        assert_eq!(error.advice(), Some(&Advice::ReachPlace), "{error}");
        // Without the lost one all goes on.
        repository.remove_place(lost, &|location| disks.open(location)).unwrap();
        let repository = disks.repository(left, &world).unwrap();
        kit::backup(&repository, "vm", &images[0]).unwrap();
        let error = repository.remove_place(left, &|location| disks.open(location)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
    }
}

#[test]
fn places_that_were_each_used_without_the_other_are_not_taken_for_one_repository() {
    let (disks, world, _) = two_copies();
    let first_list = |disks: &Disks, location: &str| {
        let lists = disks.objects(location).into_iter();
        lists.filter(|(name, _)| Numbered::Places.is(name)).collect::<Vec<_>>()
    };
    // Who removes the one dies after the first list, before the other place knows; it is away then.
    let known = first_list(&disks, "a").len();
    let (elsewhere, other_world, _) = two_copies();
    let repository = elsewhere.repository("a", &other_world).unwrap();
    repository.remove_place("a", &|location| elsewhere.open(location)).unwrap();
    let lists = first_list(&elsewhere, "a");
    assert_eq!(lists.len(), known + 2, "a list is written twice");
    let (name, bytes) = &lists[1];
    replace(&disks.get("a"), name, Some(bytes));
    let away = disks.0.lock().unwrap().remove("a").unwrap();
    // And somebody else goes on without the other one.
    let repository = disks.repository("b", &world).unwrap();
    repository.remove_place("b", &|location| disks.open(location)).unwrap();
    disks.0.lock().unwrap().insert("a".to_owned(), away);
    for location in ["a", "b"] {
        let error = disks.repository(location, &world).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.to_string().contains("each was used without the other"), "{error}");
    }
}

#[test]
fn a_place_that_was_left_out_learns_what_happened_without_it() {
    let (disks, world, images) = two_copies();
    let old = disks.get("b");
    disks.0.lock().unwrap().remove("b");
    let repository = disks.repository("a", &world).unwrap();
    repository.remove_place("b", &|location| disks.open(location)).unwrap();
    let repository = disks.repository("a", &world).unwrap();
    kit::backup(&repository, "vm", &images[0]).unwrap();
    // Whoever opens the old place is told, reads the others, and changes nothing.
    disks.0.lock().unwrap().insert("b".to_owned(), old);
    let repository = disks.repository("b", &world).unwrap();
    assert_eq!(repository.places().len(), 1);
    let said = "b is not a copy of the repository, which is in a";
    assert!(world.warnings.lock().unwrap().iter().any(|text| text.contains(said)));
    let before = disks.objects("a");
    let denied = |done: Result<(), Error>| {
        let error = done.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(said), "{error}");
    };
    let open = |location: &str| disks.open(location);
    denied(kit::backup(&repository, "vm", &images[1]).map(drop));
    let latest = kit::latest(&repository, "vm").unwrap().entry.id;
    denied(repository.delete("vm", &[latest], DeleteMethod::Approximate).map(drop));
    denied(repository.give_up_place("a", &open));
    denied(repository.move_place("a", "b", &open).map(drop));
    denied(repository.heal_copies(ALL_DATA).map(drop));
    denied(repository.reclaim("vm", &kit::THOROUGH).map(drop));
    denied(shared::build(&repository, SharePolicy::Duplicates).map(drop));
    denied(disks.repository("b", &world).unwrap().add_place("b", "c", &open).map(drop));
    assert!(shared::check(&repository).damage.is_empty());
    assert_eq!(disks.objects("a"), before);
    let found = kit::latest(&repository, "vm").unwrap();
    assert_eq!(found.head.snapshots.len(), 3);
    // It comes back as it was, and is brought up to date.
    disks.add("a", "b", false, &world);
    assert_eq!(disks.objects("a"), disks.objects("b"));
}

/// A disk is mounted elsewhere: who says where goes on there, and nobody else's old copy is taken
/// for it.
#[test]
fn a_place_that_was_moved_is_where_its_administrator_says() {
    let (disks, world, images) = two_copies();
    let open = |location: &str| disks.open(location);
    let rename = |from: &str, to: &str| {
        let mut all = disks.0.lock().unwrap();
        let disk = all.remove(from).unwrap();
        all.insert(to.to_owned(), disk);
    };
    let old = disks.get("b").snapshot();
    let repository = disks.repository("a", &world).unwrap();
    let error = repository.move_place("b", "c", &open).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "nothing has moved: {error}");
    kit::backup(&repository, "vm", &images[0]).unwrap();
    // An old copy of it is in its stead: it counts as incomplete until it was compared.
    disks.0.lock().unwrap().remove("b");
    disks.0.lock().unwrap().insert("c".to_owned(), Arc::new(old));
    let repository = disks.repository("a", &world).unwrap();
    kit::backup(&repository, "vm", &images[1]).unwrap_err();
    assert_eq!(repository.move_place("b", "c", &open).unwrap(), Completeness::Incomplete);
    assert!(disks.repository("a", &world).unwrap().places()[1].is_filling);
    disks.add("a", "c", false, &world);
    assert_eq!(disks.objects("a"), disks.objects("c"));
    // All of them move: the one is said, the other is added anew.
    rename("a", "d");
    rename("c", "e");
    let repository = disks.repository("d", &world).unwrap();
    kit::backup(&repository, "vm", &images[1]).unwrap_err();
    let moved = repository.move_place("a", "d", &open).unwrap();
    assert_eq!(moved, Completeness::Incomplete, "the other may have more");
    let repository = disks.repository("d", &world).unwrap();
    let error = repository.move_place("c", "e", &open).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "it may lack what was made since: {error}");
    let error = repository.remove_place("c", &open).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "it is the only complete one: {error}");
    repository.give_up_place("c", &open).unwrap();
    assert!(!disks.repository("d", &world).unwrap().places()[0].is_filling);
    disks.add("d", "e", false, &world);
    let repository = disks.repository("e", &world).unwrap();
    kit::backup(&repository, "vm", &images[1]).unwrap();
    assert_eq!(kit::latest(&repository, "vm").unwrap().head.snapshots.len(), 4);
    assert!(shared::check(&repository).damage.is_empty());
}

/// Without a password nobody can tell which of two keys is whole; the copy beside each can.
#[test]
fn whatever_is_damaged_of_the_root_is_healed_by_the_other_place() {
    let (disks, world) = (Disks::with(&["a", "b"]), World::new(1));
    let (cost, label) = (KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 }, KeyLabel::default());
    let (password, storage) = (kit::PASSWORD.to_vec(), disks.get("a"));
    let signs = Administrator { password: b"signs".to_vec(), cost, label: label.clone() };
    let protection = Protection::Password { password, cost, label };
    let config = kit::config();
    Repository::init(storage, world.context(), config, &protection, Some(&signs)).unwrap();
    let mut repository = disks.repository("a", &world).unwrap();
    repository.authorize(b"signs").unwrap();
    let open = |location: &str| disks.open(location);
    repository.add_place("a", "b", &open).unwrap();
    let names: Vec<String> = disks.objects("a").into_keys().collect();
    let of_root = |name: &&String| names::twin(name).is_some() || name.starts_with(names::WRITERS);
    let hurt: Vec<&String> = names.iter().filter(of_root).collect();
    assert_eq!(hurt.len(), 6, "{hurt:?}");
    for name in hurt {
        for middle in [true, false] {
            let change = |bytes: &mut Vec<u8>| {
                let at = if middle { bytes.len() / 2 } else { bytes.len() - 1 };
                bytes[at] ^= 1;
            };
            disks.get("a").damage(&Key::new(name.as_str()).unwrap(), change).unwrap();
            let healed = disks.repository("b", &world).unwrap().heal_copies(ALL_DATA).unwrap();
            assert!(healed.conflicts.is_empty() && healed.lost.is_empty(), "{name}: {healed:?}");
            assert_eq!(healed.replaced_objects, 1, "{name}");
            assert_eq!(disks.objects("a"), disks.objects("b"), "{name}");
        }
    }
}

/// A bucket's prefix was used by another repository before, whose configuration was kept nearby.
#[test]
fn a_configuration_that_was_kept_nearby_is_not_taken_for_the_places_own() {
    let (disks, world, images) = two_copies();
    let folder = tempfile::tempdir().unwrap();
    let keep: fn(&Key) -> Keep =
        |key| if key.as_str() == names::CONFIG { Keep::Settled } else { Keep::Nothing };
    let policy = CachePolicy { keep, end: |_| None };
    let kept = |storage| CachedStorage::new(storage, folder.path(), policy, 1 << 20);
    let before: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
    kit::init(Arc::clone(&before), &world).unwrap();
    kit::open(Arc::new(kept(before)), &world).unwrap();
    let open = |location: &str| -> Result<Arc<dyn Storage>> {
        let storage = disks.open(location)?;
        Ok(if location == "b" { Arc::new(kept(storage)) } else { storage })
    };
    let repository = kit::open(disks.open("a").unwrap(), &world).unwrap();
    let repository = repository.with_places("a", &open).unwrap();
    assert!(repository.places().iter().all(|place| place.failure.is_none()));
    kit::backup(&repository, "vm", &images[0]).unwrap();
    assert_eq!(disks.objects("a"), disks.objects("b"));
}

#[test]
fn a_folder_whose_disk_is_not_mounted_is_not_written_to() {
    let (disks, world, images) = two_copies();
    disks.0.lock().unwrap().insert("a".to_owned(), Arc::default());
    let repository = disks.repository("b", &world).unwrap();
    assert_restores(&repository, &images);
    kit::backup(&repository, "vm", &images[0]).unwrap_err();
    assert!(disks.objects("a").is_empty());
    let why = repository.places()[0].failure.clone().unwrap();
    assert!(why.contains("mounted"), "{why}");
}

/// The same of a bucket that was emptied while a host has its configuration in a cache.
#[test]
fn an_emptied_place_is_not_taken_for_a_copy_by_what_a_cache_has() {
    let (disks, world, images) = two_copies();
    let folder = tempfile::tempdir().unwrap();
    let open = |location: &str| -> Result<Arc<dyn Storage>> {
        let (storage, kept) = (disks.open(location)?, folder.path().join(location));
        Ok(Arc::new(CachedStorage::new(storage, kept, CACHE_POLICY, 1 << 20)))
    };
    let repository = || {
        let opened = kit::open(open("a").unwrap(), &world).unwrap();
        opened.with_places("a", &open).unwrap()
    };
    for _ in 0..2 {
        kit::backup(&repository(), "vm", &images[1]).unwrap();
    }
    disks.0.lock().unwrap().insert("b".to_owned(), Arc::default());
    let repository = repository();
    assert_restores(&repository, &images);
    kit::backup(&repository, "vm", &images[1]).unwrap_err();
    assert!(disks.objects("b").is_empty());
    let why = repository.places()[1].failure.clone().unwrap();
    assert!(why.contains("mounted"), "{why}");
}

/// Who may create objects and do nothing else puts names beside ours.
#[test]
fn what_a_stranger_puts_before_our_objects_hides_none_of_them() {
    let (disks, world, images) = two_copies();
    let series = disks.repository("a", &world).unwrap().series_id("vm");
    let kinds = [Numbered::Head, Numbered::Lease, Numbered::Check, Numbered::Places];
    for location in ["a", "b"] {
        for kind in kinds {
            for name in ["-", "0", "00000000000000000"] {
                replace(&disks.get(location), &format!("{}{name}", kind.prefix(series)), Some(b""));
            }
        }
        replace(&disks.get(location), "series/-", Some(b""));
    }
    let before = disks.repository("a", &world).unwrap();
    assert_eq!(before.places().len(), 2);
    assert_restores(&before, &images);
    assert!(shared::check(&before).damage.is_empty());
    kit::backup(&before, "vm", &images[0]).unwrap();
    // One that was open before a place went knows of it still.
    let repository = disks.repository("a", &world).unwrap();
    repository.remove_place("b", &|location| disks.open(location)).unwrap();
    assert_eq!(kit::backup(&before, "vm", &images[1]).unwrap_err().kind(), ErrorKind::Busy);
    // And a list that is newer than all, and none, is named and not passed over.
    let name = Numbered::Places.name(silt_format::SeriesId::NONE, u64::MAX);
    replace(&disks.get("a"), &name, Some(b""));
    let error = disks.repository("a", &world).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("list of places"), "{error}");
}

#[test]
fn of_two_whole_objects_the_one_is_kept_that_others_refer_to() {
    let (disks, world, images) = two_copies();
    let (whole, other) = (disks.objects("a"), two_copies_with(3).0.objects("a"));
    let mut decided = BTreeMap::new();
    let differing = whole.iter().filter_map(|(name, bytes)| {
        other.get(name).filter(|strange| *strange != bytes).map(|strange| (name, bytes, strange))
    });
    for (name, bytes, strange) in differing {
        for location in ["a", "b"] {
            replace(&disks.get(location), name, Some(strange));
            let repository = disks.repository("b", &world).unwrap();
            let report = repository.heal_copies(ALL_DATA).unwrap();
            assert!(report.lost.is_empty(), "{report:?}");
            let kind = name.split('/').next().unwrap();
            if ["containers", "recipes", "snapshots", "summaries"].contains(&kind) {
                assert_eq!((report.replaced_objects, report.conflicts.len()), (1, 0), "{name}");
                assert!(disks.objects(location)[name] == *bytes, "{name} is what it was");
                *decided.entry(kind).or_insert(0) += 1;
            } else {
                // Two days of which nobody can say which one was: both stay.
                assert_eq!(report.conflicts, std::slice::from_ref(name), "{report:?}");
                assert!(disks.objects(location)[name] == *strange, "{name} is left");
                replace(&disks.get(location), name, Some(bytes));
            }
            assert_restores(&repository, &images);
        }
    }
    let decided: Vec<_> = decided.into_keys().collect();
    assert_eq!(decided, ["containers", "recipes", "snapshots", "summaries"]);
}

/// Removes `a`, backs up, and adds `a` again until its storage fails after so many changes. Whether
/// it failed.
fn add_again_until(disks: &Disks, succeeding: u64, image: &[u8]) -> bool {
    let world = World::process(50 + succeeding, 8, "there", &Arc::default());
    world.pass_seconds(90_000);
    let open = |location: &str| disks.open(location);
    disks.repository("b", &world).unwrap().remove_place("a", &open).unwrap();
    let repository = disks.repository("b", &world).unwrap();
    kit::backup(&repository, "vm", image).unwrap();
    let lost = CrashingOperation::Lost;
    let filled = Arc::new(CrashStorage::new(disks.get("a"), succeeding, Counted::Mutations, lost));
    let filling = |location: &str| -> Result<Arc<dyn Storage>> {
        if location == "a" { Ok(filled.clone()) } else { disks.open(location) }
    };
    let added = repository.add_place("b", "a", &filling);
    assert_eq!(added.is_err(), filled.has_crashed());
    filled.has_crashed()
}

/// A backup that began before a place was removed writes its head there while the place is being
/// added again, and is refused by the other one. Without the place, backups go on.
#[test]
fn a_head_that_a_sleeper_leaves_in_a_place_that_is_being_filled_goes_with_the_place() {
    let mut left = 0;
    for succeeding in 0.. {
        let (disks, world, images) = two_copies();
        let disks = Arc::new(disks);
        let (theirs, own) = (kit::changed(&images[1], 3), kit::changed(&images[1], 4));
        let failed = Arc::new(Mutex::new(None));
        let rule = {
            let (disks, failed) = (disks.clone(), failed.clone());
            move |operation: &Operation, _: u64| {
                let is_head = operation.keys().iter().any(|key| Numbered::Head.is(key.as_str()));
                let mut failed = failed.lock().unwrap();
                if is_head && operation.kind() == OperationKind::Put && failed.is_none() {
                    *failed = Some(add_again_until(&disks, succeeding, &theirs));
                }
                Fault::Pass
            }
        };
        let asleep: Arc<dyn Storage> = Arc::new(FaultStorage::new(disks.get("a"), rule));
        let open = |location: &str| -> Result<Arc<dyn Storage>> {
            if location == "a" { Ok(asleep.clone()) } else { disks.open(location) }
        };
        let sleeper = kit::open(asleep.clone(), &world).unwrap().with_places("a", &open).unwrap();
        kit::backup(&sleeper, "vm", &own).unwrap_err();
        if failed.lock().unwrap().take() == Some(false) {
            break;
        }
        let later = World::process(900, 9, "later", &Arc::default());
        later.pass_seconds(200_000);
        let repository = disks.repository("b", &later).unwrap();
        let (a, b) = (disks.objects("a"), disks.objects("b"));
        let is_other = |(name, bytes): (&String, &Vec<u8>)| {
            Numbered::Head.is(name) && b.get(name).is_some_and(|other| other != bytes)
        };
        if repository.places().iter().any(|place| place.is_filling) && a.iter().any(is_other) {
            left += 1;
            // Nobody builds on either, as which one counts cannot be told for sure.
            let error = kit::backup(&repository, "vm", &images[0]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            let open = |location: &str| disks.open(location);
            let repository = disks.repository("b", &later).unwrap();
            let error = repository.add_place("b", "a", &open).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            disks.repository("b", &later).unwrap().remove_place("a", &open).unwrap();
            let repository = disks.repository("b", &later).unwrap();
            kit::backup(&repository, "vm", &images[0]).unwrap();
            disks.0.lock().unwrap().insert("a".to_owned(), Arc::default());
            disks.add("b", "a", false, &later);
            assert_eq!(disks.objects("a"), disks.objects("b"));
            let repository = disks.repository("a", &later).unwrap();
            let found = kit::latest(&repository, "vm").unwrap();
            assert_eq!(found.head.snapshots.len(), 4);
            assert!(kit::restore(&repository, &found).unwrap() == images[0]);
            assert!(shared::check(&repository).damage.is_empty());
        }
    }
    assert!(left > 2, "{left}");
}

#[test]
fn damage_to_one_place_is_read_around_and_healed() {
    let (disks, world, images) = two_copies();
    let whole = disks.objects("a");
    for location in ["a", "b"] {
        let disk = disks.get(location);
        for (name, bytes) in &whole {
            let mut damaged = bytes.clone();
            let at = damaged.len() * 2 / 3;
            damaged[at] ^= 4;
            let cases: [Option<&[u8]>; 3] = [Some(&damaged), Some(&bytes[..bytes.len() / 2]), None];
            for case in cases {
                replace(&disk, name, case);
                let repository = disks.repository("b", &world).unwrap();
                assert_restores(&repository, &images);
                let damage = shared::check(&repository).damage;
                assert!(damage.is_empty() || name.starts_with("config"), "{name} {damage:?}");
                let dry = HealOptions { dry_run: true, ..ALL_DATA };
                let report = repository.heal_copies(dry).unwrap();
                let changes = report.copied_objects + report.replaced_objects;
                assert_eq!((changes, report.copied_bytes), (1, 0), "{name} {report:?}");
                let report = repository.heal_copies(ALL_DATA).unwrap();
                assert!(report.lost.is_empty(), "{report:?}");
                assert!(disks.objects(location)[name] == *bytes, "{name} is healed");
                replace(&disk, name, Some(bytes));
            }
        }
    }
    // What the checks have written down since is in both.
    assert_eq!(disks.objects("a"), disks.objects("b"));
}

/// Heals with a place `b` that behaves as a rule says, where every head is damaged in `a`. Returns
/// the result, and how many objects were deleted in `b`.
fn heal_with(
    disks: &Disks,
    world: &Arc<World>,
    rule: impl Fn(&Key, OperationKind) -> Fault + Send + Sync + 'static,
) -> (Result<siltstone::HealReport>, u64) {
    let deleted = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&deleted);
    let faulty = FaultStorage::new(disks.get("b"), move |operation: &Operation, _| {
        if operation.kind() == OperationKind::Delete {
            counter.fetch_add(1, Ordering::SeqCst);
        }
        operation.keys().first().map_or(Fault::Pass, |key| rule(key, operation.kind()))
    });
    let faulty: Arc<dyn Storage> = Arc::new(faulty);
    let open = |location: &str| -> Result<Arc<dyn Storage>> {
        if location == "b" { Ok(Arc::clone(&faulty)) } else { disks.open(location) }
    };
    let repository = kit::open(disks.open("a").unwrap(), world).unwrap();
    let repository = repository.with_places("a", &open).unwrap();
    let healed = repository.heal_copies(ALL_DATA);
    (healed, deleted.load(Ordering::SeqCst))
}

/// The name of the newest head of the only series.
fn newest_head(disks: &Disks) -> String {
    disks.objects("a").into_keys().filter(|name| Numbered::Head.is(name)).min().unwrap()
}

#[test]
fn a_place_that_does_not_answer_for_a_moment_keeps_its_copies() {
    let (disks, world, images) = two_copies();
    let name = newest_head(&disks);
    let whole = disks.objects("b");
    let mut damaged = whole[&name].clone();
    damaged[100] ^= 1;
    // The read that compares fails, or the one that looks for whole copies, too, or all of them. In
    // the last two cases nothing else is answered either.
    for (failing, is_away) in [(1, false), (2, false), (2, true), (u64::MAX, true)] {
        replace(&disks.get("a"), &name, Some(&damaged));
        let (reads, wanted) = (AtomicU64::new(0), name.clone());
        let (healed, deleted) = heal_with(&disks, &world, move |key, kind| {
            let is_read = kind == OperationKind::Get && key.as_str() == wanted;
            let is_look = kind == OperationKind::Head && key.as_str() == wanted;
            let number = reads.fetch_add(u64::from(is_read), Ordering::SeqCst);
            if is_read && number < failing || is_look && is_away && number <= failing {
                Fault::FailBefore(ErrorKind::Unavailable)
            } else {
                Fault::Pass
            }
        });
        assert_eq!(deleted, 0, "{failing} {is_away}");
        assert!(disks.objects("b") == whole);
        match healed {
            Ok(report) => {
                assert_eq!((report.replaced_objects, report.lost.len(), is_away), (1, 0, false));
            }
            Err(error) => {
                assert_eq!((error.kind(), is_away), (ErrorKind::Unavailable, true), "{error}");
            }
        }
        disks.repository("b", &world).unwrap().heal_copies(ALL_DATA).unwrap();
        assert!(disks.objects("a") == whole);
    }
    assert_restores(&disks.repository("a", &world).unwrap(), &images);
    // It answers, but this object cannot be read: a bad sector. It is replaced.
    let wanted = name.clone();
    let is_gone = AtomicBool::new(false);
    let (healed, deleted) = heal_with(&disks, &world, move |key, kind| {
        is_gone.fetch_or(kind == OperationKind::Delete, Ordering::SeqCst);
        let is_bad = key.as_str() == wanted && kind == OperationKind::Get;
        if is_bad && !is_gone.load(Ordering::SeqCst) {
            Fault::FailBefore(ErrorKind::Unavailable)
        } else {
            Fault::Pass
        }
    });
    assert_eq!((healed.unwrap().replaced_objects, deleted), (1, 1));
    assert!(disks.objects("b") == whole);
}

#[test]
fn healing_deletes_nothing_after_the_list_of_places_has_changed() {
    let (disks, world, images) = two_copies();
    let disks = Arc::new(disks);
    let name = newest_head(&disks);
    // Its reads of one place go wrong. Before it replaces the head there, another process gives up
    // the other place, so that this copy is the only one that counts.
    let (others, other_world, reads) = (Arc::clone(&disks), Arc::clone(&world), AtomicU64::new(0));
    let wanted = name.clone();
    let (healed, deleted) = heal_with(&disks, &world, move |key, kind| {
        if kind != OperationKind::Get || key.as_str() != wanted {
            return Fault::Pass;
        }
        if reads.fetch_add(1, Ordering::SeqCst) == 2 {
            let open = |location: &str| others.open(location);
            let repository = others.repository("b", &other_world).unwrap();
            repository.remove_place("a", &open).unwrap();
        }
        Fault::FlipRead { byte: 100, bit: 0 }
    });
    let error = healed.unwrap_err();
    assert_eq!((error.kind(), deleted), (ErrorKind::Busy, 0), "{error}");
    assert_restores(&disks.repository("b", &world).unwrap(), &images);
}

#[test]
fn what_is_damaged_in_every_place_is_named() {
    let (disks, world, _) = two_copies();
    let objects = disks.objects("a");
    let name = objects.keys().find(|name| name.starts_with("containers/")).unwrap();
    for location in ["a", "b"] {
        let mut bytes = objects[name].clone();
        bytes[150] ^= 1;
        replace(&disks.get(location), name, Some(&bytes));
    }
    let repository = disks.repository("a", &world).unwrap();
    let report = repository.heal_copies(ALL_DATA).unwrap();
    assert_eq!(report.lost, std::slice::from_ref(name));
    assert!(!shared::check(&repository).damage.is_empty());
}

/// Something done to a repository, with an image of a disk.
type Action<'a> = &'a dyn Fn(&Repository, &[u8]) -> Result<()>;

/// Runs `action` with a storage that fails at some point in one of the places; then nothing is
/// lost, and healing makes both alike.
#[test]
fn a_place_may_fail_in_the_middle_of_anything() {
    let actions: [Action<'_>; 3] = [
        &|repository, image| kit::backup(repository, "vm", image).map(drop),
        &|repository, _| {
            let oldest = kit::latest(repository, "vm")?.head.snapshots[0].id;
            repository.delete("vm", &[oldest], DeleteMethod::Exact)?;
            repository.reclaim("vm", &kit::THOROUGH).map(drop)
        },
        &|repository, image| {
            rounds::round(repository, &[("vm", image), ("other", image)]).map(drop)
        },
    ];
    let (disks, _, images) = two_copies();
    let third = kit::changed(&images[1], 3);
    let mut failures = 0;
    for (number, action) in actions.iter().enumerate() {
        for failing in ["a", "b"] {
            for struck in [CrashingOperation::Lost, CrashingOperation::Applied] {
                for succeeding in 0.. {
                    let copies = Disks::default();
                    for name in ["a", "b"] {
                        let copy = Arc::new(disks.get(name).snapshot());
                        copies.0.lock().unwrap().insert(name.to_owned(), copy);
                    }
                    let crashing = Arc::new(CrashStorage::new(
                        copies.get(failing),
                        succeeding,
                        Counted::Mutations,
                        struck,
                    ));
                    let victim = World::process(100 + succeeding, 7, "here", &Arc::default());
                    victim.pass_seconds(864_000);
                    let open = |location: &str| -> Result<Arc<dyn Storage>> {
                        if location == failing {
                            Ok(crashing.clone())
                        } else {
                            copies.open(location)
                        }
                    };
                    let opened = kit::open(copies.open("a").unwrap(), &victim)
                        .and_then(|repository| repository.with_places("a", &open));
                    let done = opened.and_then(|repository| action(&repository, &third));
                    if !crashing.has_crashed() {
                        done.unwrap();
                        break;
                    }
                    failures += 1;
                    let next = World::process(900 + succeeding, 8, "there", &Arc::default());
                    next.pass_seconds(864_000 + 3600);
                    let repository = copies.repository("b", &next).unwrap();
                    let newest =
                        kit::restore(&repository, &kit::latest(&repository, "vm").unwrap());
                    let newest = newest.unwrap();
                    assert!(newest == images[1] || newest == third, "{number}");
                    kit::backup(&repository, "vm", &third).unwrap();
                    repository.reclaim("vm", &kit::THOROUGH).unwrap();
                    let report = repository.heal_copies(ALL_DATA).unwrap();
                    assert!(report.lost.is_empty(), "{report:?}");
                    assert_eq!(copies.objects("a"), copies.objects("b"), "{number} {succeeding}");
                    let found = kit::latest(&repository, "vm").unwrap();
                    assert!(kit::restore(&repository, &found).unwrap() == third);
                    assert!(shared::check(&repository).damage.is_empty());
                }
            }
        }
    }
    assert!(failures > 60, "{failures}");
}

#[test]
fn the_shared_store_may_be_elsewhere_and_have_more_copies() {
    let (disks, world) = (Disks::with(&["main", "s1", "s2"]), World::new(1));
    let repository = kit::init(disks.get("main"), &world).unwrap();
    let common = kit::image(77, 300);
    let images = [1, 2].map(|seed| [common.as_slice(), &kit::image(seed, 80)].concat());
    kit::backup(&repository, "a", &images[0]).unwrap();
    kit::backup(&repository, "b", &images[1]).unwrap();
    shared::build(&repository, SharePolicy::Duplicates).unwrap();
    let stored = |location: &str| -> BTreeMap<String, Vec<u8>> {
        let is_list = |name: &String| name.starts_with("root/");
        disks.objects(location).into_iter().filter(|(name, _)| !is_list(name)).collect()
    };
    let before = stored("main").len();
    let repository = disks.add("main", "s1", true, &world);
    assert!(stored("main").len() < before);
    assert!(disks.objects("s1").keys().any(|name| name.starts_with("containers/")));
    let names = |location: &str| -> Vec<String> { stored(location).into_keys().collect() };
    let elsewhere = names("s1");
    let both = names("main").into_iter().filter(|name| elsewhere.contains(name));
    assert_eq!(both.collect::<Vec<_>>(), ["config", "config.copy"], "nothing is in both");

    // Everything that uses the shared store goes on, and a second copy of it can be made.
    drop(repository);
    let repository = disks.add("main", "s2", true, &world);
    assert_eq!(stored("s1"), stored("s2"));
    for name in ["a", "b"] {
        repository.repoint(name, &shared::spool()).unwrap();
        repository.reclaim(name, &kit::THOROUGH).unwrap();
    }
    let third = [common.as_slice(), &kit::image(3, 80)].concat();
    rounds::round(&repository, &[("a", &images[0]), ("b", &images[1]), ("c", &third)]).unwrap();
    disks.0.lock().unwrap().remove("s1");
    let repository = disks.repository("main", &world).unwrap();
    for (name, image) in [("a", &images[0]), ("b", &images[1]), ("c", &third)] {
        let found = kit::latest(&repository, name).unwrap();
        assert!(kit::restore(&repository, &found).unwrap() == *image, "{name}");
    }
    let report = shared::check(&repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
}

#[test]
fn a_place_cannot_be_added_twice_or_hold_another_repository() {
    let (disks, world, _) = two_copies();
    let open = |location: &str| disks.open(location);
    let repository = disks.repository("a", &world).unwrap();
    let error = repository.add_place("a", "b", &open).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    disks.0.lock().unwrap().insert("c".to_owned(), Arc::default());
    kit::init(disks.get("c"), &World::new(2)).unwrap();
    let repository = disks.repository("a", &world).unwrap();
    let error = repository.add_place("a", "c", &open).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let repository = disks.repository("a", &world).unwrap();
    let error = repository.remove_place("nowhere", &open).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert_eq!(disks.repository("b", &world).unwrap().places().len(), 2);
}

#[test]
fn a_shared_place_is_added_only_while_all_others_are_there() {
    let (disks, world) = (Disks::with(&["a", "s", "t"]), World::new(1));
    let repository = kit::init(disks.get("a"), &world).unwrap();
    let image = kit::image(1, 300);
    kit::backup(&repository, "vm", &image).unwrap();
    disks.add("a", "s", true, &world);
    let before = disks.objects("s");
    let away = disks.0.lock().unwrap().remove("a").unwrap();
    let open = |location: &str| disks.open(location);
    let refused = disks.repository("s", &world).unwrap().add_shared_place("s", "t", &open);
    let refused = refused.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(refused.to_string().contains("copy in a cannot be reached"), "{refused}");
    let refused = disks.repository("s", &world).unwrap().give_up_place("s", &open);
    assert!(refused.is_err());
    // Nothing was written of which the one that was away does not know.
    assert_eq!(disks.objects("s"), before);
    disks.0.lock().unwrap().insert("a".to_owned(), away);
    kit::backup(&disks.repository("a", &world).unwrap(), "vm", &kit::changed(&image, 2)).unwrap();
}

#[test]
fn a_copy_of_old_learns_of_places_from_one_that_has_the_shared_store_alone() {
    let (disks, world) = (Disks::with(&["a", "s", "t"]), World::new(1));
    let repository = kit::init(disks.get("a"), &world).unwrap();
    kit::backup(&repository, "vm", &kit::image(1, 300)).unwrap();
    disks.add("a", "s", true, &world);
    let old = disks.get("a").snapshot();
    disks.add("a", "t", true, &world);
    disks.0.lock().unwrap().insert("a".to_owned(), Arc::new(old));
    let repository = disks.repository("a", &world).unwrap();
    let places: Vec<_> = repository.places().into_iter().map(|place| place.location).collect();
    assert_eq!(places, ["a", "s", "t"]);
    kit::backup(&repository, "vm", &kit::image(2, 300)).unwrap();
}

#[test]
fn a_key_that_was_removed_stays_removed_where_somebody_brings_it_back() {
    let (disks, world) = (Disks::with(&["a", "b"]), World::new(1));
    let (cost, label) = (KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 }, KeyLabel::default());
    let (password, storage) = (kit::PASSWORD.to_vec(), disks.get("a"));
    let protection = Protection::Password { password, cost, label: label.clone() };
    Repository::init(storage, world.context(), kit::config(), &protection, None).unwrap();
    let repository = disks.add("a", "b", false, &world);
    let id = repository.add_key(b"old", cost, &label, &KeyAccess::full()).unwrap();
    let names = [names::key(id), names::key_copy(id)];
    let objects = names.clone().map(|name| disks.objects("b")[&name].clone());
    repository.remove_key(&id.to_string()).unwrap();
    // Whoever adds a place and sleeps copies it there when it was removed.
    let bring_back = |place: &str| {
        let disk = disks.get(place);
        names.iter().zip(&objects).for_each(|(name, object)| replace(&disk, name, Some(object)));
    };
    bring_back("b");
    disks.repository("a", &world).unwrap().heal_copies(ALL_DATA).unwrap();
    assert!(names.iter().all(|name| !disks.objects("a").contains_key(name)));
    bring_back("a");
    let open = || Repository::open(disks.get("a"), world.context(), || Ok(b"old".to_vec()));
    let refused = open().err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert!(refused.to_string().contains("was removed"), "{refused}");
    // It is none that another could be removed for.
    let repository = disks.repository("a", &world).unwrap();
    let only = repository.keys().unwrap().into_iter().find(|key| key.id != id).unwrap();
    assert!(repository.remove_key(&only.id.to_string()).is_err());
}
