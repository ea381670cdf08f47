//! A month of eight machines, with a bad day of each kind.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use jiff::tz::TimeZone;
use silt_format::{Error, ErrorKind, Id, Result, RetentionPolicy};
use silt_storage::{ByteRange, Fault, FaultStorage, Key, MemoryStorage, PutMode, Storage};
use siltstone::{
    Candidate, DeleteMethod, Env, HealOptions, ReclaimOptions, Repository, Selector, SharePolicy,
    apply_policy,
};

use crate::forger::all_names;
use crate::kit::{self, MemorySource, World};
use crate::shared;

const MACHINES: [&str; 8] = ["db1", "db2", "mail", "web1", "web2", "web3", "wiki", "work"];
const DAY_S: i64 = 86_400;
const DAYS: usize = 30;

struct Month {
    world: Arc<World>,
    places: Mutex<BTreeMap<&'static str, Arc<MemoryStorage>>>,
    /// Whether no place has room for containers.
    is_full: Arc<Mutex<bool>>,
    images: BTreeMap<&'static str, Vec<u8>>,
    living: BTreeMap<(&'static str, Id), Vec<u8>>,
}

impl Month {
    fn new() -> Self {
        let world = World::new(30);
        let places: BTreeMap<_, _> = ["a", "b"].map(|name| (name, Arc::default())).into();
        kit::init(Arc::clone(&places["a"]) as _, &world).unwrap();
        let images = (0..).zip(MACHINES).map(|(seed, name)| {
            let image = [kit::image(1000, 60), kit::image(seed, 60)].concat();
            (name, image)
        });
        let (images, living) = (images.collect(), BTreeMap::new());
        let (places, is_full) = (Mutex::new(places), Arc::default());
        let month = Self { world, places, is_full, images, living };
        month.add_copy();
        month
    }

    fn storage(&self, place: &str) -> Result<Arc<dyn Storage>> {
        let places = self.places.lock().unwrap();
        let gone = || Error::new(ErrorKind::Unavailable, "the disk is not there");
        let storage = Arc::clone(places.get(place).ok_or_else(gone)?);
        let is_full = Arc::clone(&self.is_full);
        let rule = move |operation: &silt_storage::Operation, _: u64| {
            let takes_room = operation.keys().iter().any(|key| key.as_str().starts_with("cont"));
            match operation.kind() {
                silt_storage::OperationKind::Put if takes_room && *is_full.lock().unwrap() => {
                    Fault::FailBefore(ErrorKind::Unavailable)
                }
                _ => Fault::Pass,
            }
        };
        Ok(Arc::new(FaultStorage::new(storage, rule)))
    }

    fn open(&self) -> Repository {
        let open = |place: &str| self.storage(place);
        let repository = kit::open(self.storage("a").unwrap(), &self.world).unwrap();
        repository.with_places("a", &open).unwrap()
    }

    fn add_copy(&self) {
        let open = |place: &str| self.storage(place);
        self.open().add_place("a", "b", &open).unwrap();
    }

    /// What changes on a machine in a day, and its backup.
    fn back_up(&mut self, machine: &'static str, day: usize) -> Result<Id> {
        self.world.pass_seconds(600);
        let image = kit::changed(&self.images[machine], day as u64);
        self.images.insert(machine, image.clone());
        let id = kit::backup(&self.open(), machine, &image)?.snapshot.id;
        self.living.insert((machine, id), image);
        Ok(id)
    }

    fn all_fail(&mut self, day: usize) {
        for machine in MACHINES {
            assert_eq!(self.back_up(machine, day).unwrap_err().kind(), ErrorKind::Unavailable);
        }
    }

    /// Flips a byte in the middle of an object.
    fn damage(&self, place: &str, name: &str) {
        let (storage, key) = (&self.places.lock().unwrap()[place], Key::new(name).unwrap());
        let mut bytes = Vec::new();
        storage.get(&key, ByteRange::Full, &mut bytes).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        storage.delete(std::slice::from_ref(&key)).unwrap();
        storage.put(&key, &[&bytes], PutMode::Create).unwrap();
    }

    fn names(&self, prefix: &str) -> Vec<String> {
        all_names(&self.places.lock().unwrap()["a"], prefix)
    }

    /// Deletes what the policy does not keep.
    fn forget(&mut self) {
        let repository = self.open();
        let policy = RetentionPolicy { daily: 7, weekly: 3, ..RetentionPolicy::default() };
        for head in repository.all_heads(&[]).unwrap().heads {
            let candidates: Vec<_> =
                head.snapshots.iter().map(|entry| Candidate::new(entry, None)).collect();
            let now_ns = self.world.now_ns();
            let kept = apply_policy(&policy, &candidates, now_ns, &TimeZone::UTC).unwrap();
            let gone = kept.iter().filter(|kept| kept.reasons.is_empty());
            let gone: Vec<Id> = gone.map(|kept| kept.id).collect();
            repository.delete(&head.name, &gone, DeleteMethod::Approximate).unwrap();
            self.living.retain(|(_, id), _| !gone.contains(id));
        }
    }

    fn reclaim(&self, options: &ReclaimOptions) {
        let repository = self.open();
        let all = repository.all_heads(&[]).unwrap();
        let names = all.heads.into_iter().map(|head| head.name).chain(all.unfinished);
        names.for_each(|name| drop(repository.reclaim(&name, options).unwrap()));
    }

    fn bad_day(&mut self, day: usize) {
        match day {
            // A host is killed in the middle; another never ends its first backup.
            3 => {
                for series in ["mail", "new"] {
                    let repository = self.open();
                    let image = kit::image(99, 200);
                    let mut session = repository.backup(series, kit::options()).unwrap();
                    session.add_volume("disk", &MemorySource::new(&image), None).unwrap();
                    std::mem::forget(session);
                }
                self.world.pass_seconds(1000);
            }
            // A disk flips bits, and is healed by the other.
            5 => {
                let of_kind = |prefix: &str| self.names(prefix).swap_remove(0);
                for prefix in ["containers/", "recipes/", "snapshots/", "summaries/"] {
                    self.damage("a", &of_kind(prefix));
                }
                let all = HealOptions { read_data: true, dry_run: false };
                let healed = self.open().heal_copies(all).unwrap();
                assert_eq!((healed.replaced_objects, healed.lost.len()), (4, 0), "{healed:?}");
            }
            // A place is gone; after a day it is taken off the list, and comes back later.
            8 => {
                self.places.lock().unwrap().remove("b");
                self.all_fail(day);
                let open = |place: &str| self.storage(place);
                self.open().remove_place("b", &open).unwrap();
            }
            11 => {
                self.places.lock().unwrap().insert("b", Arc::default());
                self.add_copy();
            }
            // A clock is four days ahead for one.
            13 => self.world.pass_seconds(4 * DAY_S),
            14 => self.world.pass_seconds(-4 * DAY_S),
            // Storage is full for a day; what frees room still works.
            17 => {
                *self.is_full.lock().unwrap() = true;
                self.all_fail(day);
                self.forget();
                *self.is_full.lock().unwrap() = false;
            }
            // A newest head is damaged in both places.
            20 => {
                let repository = self.open();
                let head = repository.head(repository.series_id("wiki")).unwrap().unwrap();
                let newest = head.snapshots.last().unwrap().id;
                let name = self.names(&format!("state/{}/heads/", head.series)).swap_remove(0);
                for place in ["a", "b"] {
                    self.damage(place, &name);
                }
                assert_eq!(self.open().all_heads(&[]).unwrap().damaged.len(), 1);
                assert!(self.open().recover("wiki").unwrap());
                self.living.remove(&("wiki", newest));
            }
            // Somebody deletes the wrong one.
            22 => {
                let repository = self.open();
                let found = kit::latest(&repository, "db1").unwrap();
                let id = found.snapshot.id;
                repository.delete("db1", &[id], DeleteMethod::Exact).unwrap();
                repository.undelete("db1", id).unwrap();
            }
            _ => {}
        }
    }
}

#[test]
fn after_a_month_of_bad_days_all_is_whole_and_nothing_is_left_over() {
    let mut month = Month::new();
    for day in 0..DAYS {
        month.world.pass_seconds(DAY_S);
        for machine in MACHINES {
            month.back_up(machine, day).unwrap();
        }
        month.bad_day(day);
        if day % 7 == 6 {
            month.forget();
            month.reclaim(&ReclaimOptions::default());
        }
        if day % 10 == 9 {
            let repository = month.open();
            shared::build(&repository, SharePolicy::Duplicates).unwrap();
            for machine in MACHINES {
                repository.repoint(machine, &shared::spool()).unwrap();
            }
            shared::sweep(&repository).unwrap();
        }
    }
    month.forget();
    month.world.pass_seconds(DAY_S);
    for _ in 0..2 {
        shared::sweep(&month.open()).unwrap();
        month.reclaim(&kit::THOROUGH);
    }
    let repository = month.open();
    let report = shared::check(&repository);
    assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
    let listed: usize =
        repository.all_heads(&[]).unwrap().heads.iter().map(|head| head.snapshots.len()).sum();
    assert_eq!(listed, month.living.len());
    assert!(listed >= 8 * 7, "{listed}");
    for ((machine, id), image) in &month.living {
        let found = kit::find(&repository, &Selector::Id(id.to_string())).unwrap();
        assert!(kit::restore(&repository, &found).unwrap() == *image, "{machine} {id}");
    }
    let healed = repository.heal_copies(HealOptions { read_data: true, dry_run: true }).unwrap();
    assert_eq!((healed.copied_objects, healed.replaced_objects), (0, 0), "{healed:?}");
}
