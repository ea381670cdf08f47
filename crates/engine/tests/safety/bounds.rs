//! Heads that list far more than there is: forged, or damaged before they were sealed (I-7).

use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::{Error, ErrorKind, Head, ObjectSet, ObjectTag};
use silt_storage::{Key, MemoryStorage, PutMode, Storage, list_all};
use siltstone::{
    Advice, CheckOptions, CheckReport, DataCheck, DeleteMethod, Repository, SharePolicy,
    SweepOptions,
};

use crate::kit::{self, World};
use crate::shared;

/// Two series of two days each, which share a store.
struct Forgery {
    storage: Arc<MemoryStorage>,
    world: Arc<World>,
    images: [Vec<u8>; 2],
}

/// What is forged.
#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Containers,
    Packs,
}

impl Forgery {
    fn new() -> Self {
        let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
        let repository = kit::init(storage.clone(), &world).unwrap();
        let first = kit::image(1, 300);
        let second = kit::changed(&first, 2);
        for name in ["vm", "other"] {
            for image in [&first, &second] {
                kit::backup(&repository, name, image).unwrap();
                world.pass_seconds(3600);
            }
        }
        shared::build(&repository, SharePolicy::Duplicates).unwrap();
        Self { storage, world, images: [first, second] }
    }

    fn repository(&self) -> Repository {
        kit::open(self.storage.clone(), &self.world).unwrap()
    }

    /// Writes a next head that is as the newest of `name` but for `change`.
    fn forge(&self, name: &str, change: &dyn Fn(&mut Head)) -> Head {
        let repository = self.repository();
        let id = match name {
            "" => shared_store(&repository),
            _ => repository.series_id(name),
        };
        let mut head = repository.head(id).unwrap().unwrap();
        head.generation += 1;
        change(&mut head);
        let object = kit::sealed_head(&*self.storage, &head);
        let name = Key::new(Numbered::Head.name(id, head.generation)).unwrap();
        self.storage.put(&name, &[&object], PutMode::Create).unwrap();
        head
    }

    /// A head that also lists all numbers from its next on but the last `left`.
    fn forge_all(&self, name: &str, what: What, left: u32) -> Head {
        self.forge(name, &|head| {
            let end = u32::MAX - left;
            match what {
                What::Containers => {
                    add(head, |head| &mut head.containers, head.next_container, end);
                    head.next_container = end;
                }
                What::Packs => {
                    add(head, |head| &mut head.packs, head.next_pack, end);
                    head.next_pack = end;
                }
            }
        })
    }

    fn assert_restores(&self, repository: &Repository) {
        for name in ["vm", "other"] {
            let head = repository.head(repository.series_id(name)).unwrap().unwrap();
            for (entry, image) in head.snapshots.iter().zip(&self.images) {
                let selector = siltstone::Selector::Id(entry.id.to_string());
                let found = kit::find(repository, &selector).unwrap();
                assert!(kit::restore(repository, &found).unwrap() == *image, "{name}");
            }
        }
    }

    /// Bytes of what is stored.
    fn bytes(&self) -> u64 {
        list_all(&*self.storage as &dyn Storage, "", None).map(|item| item.unwrap().1).sum()
    }
}

/// The series that the shared store's store table of "vm" names.
fn shared_store(repository: &Repository) -> silt_format::SeriesId {
    kit::backup(repository, "vm", &kit::image(1, 300)).unwrap();
    let head = repository.head(repository.series_id("vm")).unwrap().unwrap();
    head.stores.iter().find(|store| store.number == 1).unwrap().id
}

/// Adds the numbers from `first` to before `end` to a set, by its stored form.
fn add(head: &mut Head, set: impl Fn(&mut Head) -> &mut ObjectSet, first: u32, end: u32) {
    let tag = ObjectTag::rewritten(0x0123_4567_89ab_cdef);
    set(head).push(first, tag);
    let (mut bytes, mut range) = (head.encode(), first.to_le_bytes().to_vec());
    range.extend_from_slice(&1_u32.to_le_bytes());
    range.extend_from_slice(&tag.bits().to_le_bytes());
    let at = bytes.windows(range.len()).position(|window| window == range).unwrap();
    bytes[at + 4..at + 8].copy_from_slice(&(end - first).to_le_bytes());
    *head = Head::decode(&bytes).unwrap();
}

fn check(repository: &Repository, data: DataCheck) -> CheckReport {
    repository.check(&CheckOptions { data, ..CheckOptions::default() }).unwrap()
}

fn assert_refused<T>(result: Result<T, Error>, name: &str) {
    let Err(error) = result else { panic!("a forged head was followed") };
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    let text = error.to_string();
    assert_eq!(error.advice(), Some(&Advice::Check), "{text}");
    assert!(text.contains(name), "{text}");
    assert!(text.contains("lists 42949"), "{text}");
}

#[test]
fn a_check_names_what_is_missing_as_a_range() {
    for what in [What::Containers, What::Packs] {
        let forgery = Forgery::new();
        let repository = forgery.repository();
        assert!(check(&repository, DataCheck::All).damage.is_empty());
        let before = repository.head(repository.series_id("vm")).unwrap().unwrap();
        forgery.forge_all("vm", what, 0);
        let bytes = forgery.bytes();
        let series = repository.series_id("vm");
        let expected = match what {
            What::Containers => names::containers(series),
            What::Packs => names::recipes(series),
        };
        let first = if what == What::Packs { before.next_pack } else { before.next_container };
        let expected = format!("{expected}{first:08x}..fffffffe");
        for data in [DataCheck::All, DataCheck::None, DataCheck::Percent(50.0), DataCheck::All] {
            let report = check(&repository, data);
            let damage: Vec<&str> = report.damage.iter().map(|d| d.object.as_str()).collect();
            assert_eq!(damage, [expected.as_str()], "{data:?}");
            assert_eq!(report.damage[0].affected, [], "no snapshot needs them");
            assert!(report.verified_containers < 100);
        }
        assert!(forgery.bytes() < bytes + (256 << 10), "the record stays small");
        forgery.assert_restores(&repository);
    }
}

#[test]
fn missing_objects_of_a_range_are_named_with_whom_they_hurt() {
    let forgery = Forgery::new();
    let repository = forgery.repository();
    let series = repository.series_id("vm");
    let names: Vec<Key> =
        list_all(&*forgery.storage as &dyn Storage, names::containers(series), None)
            .map(|item| item.unwrap().0)
            .collect();
    assert!(names.len() > 2);
    forgery.storage.delete(&names[..2]).unwrap();
    for data in [DataCheck::None, DataCheck::All] {
        let report = check(&repository, data);
        let [damage] = &report.damage[..] else { panic!("{:?}", report.damage) };
        assert_eq!(damage.object, format!("{}00000000..00000001", names::containers(series)));
        assert!(damage.affected.iter().any(|affected| affected.bytes > 0), "{damage:?}");
    }
    // What they held is stored again.
    kit::backup(&repository, "vm", &forgery.images[1]).unwrap();
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == forgery.images[1]);
}

#[test]
fn nothing_is_taken_away_by_a_head_that_lists_far_more_than_there_is() {
    for what in [What::Containers, What::Packs] {
        let forgery = Forgery::new();
        let repository = forgery.repository();
        let head = forgery.forge_all("vm", what, 0);
        let objects = || {
            list_all(&*forgery.storage as &dyn Storage, "", None)
                .map(|item| item.unwrap().0)
                .filter(|key| !Numbered::Lease.is(key.as_str()))
                .collect::<Vec<_>>()
        };
        let before = objects();
        let ids: Vec<_> = head.snapshots.iter().map(|entry| entry.id).collect();
        assert_refused(repository.reclaim("vm", &kit::THOROUGH), "'vm'");
        let gentle = siltstone::ReclaimOptions { leak_share_max: 9.0, ..kit::THOROUGH };
        assert_refused(repository.reclaim("vm", &gentle), "'vm'");
        assert_refused(repository.sweep("vm", SweepOptions::default()), "'vm'");
        assert_refused(repository.delete("vm", &ids[..1], DeleteMethod::Exact), "'vm'");
        assert_refused(repository.delete("vm", &ids, DeleteMethod::Approximate), "'vm'");
        assert_refused(repository.repoint("vm", &shared::spool()), "'vm'");
        assert_refused(shared::build(&repository, SharePolicy::Duplicates), "'vm'");
        assert_refused(shared::sweep(&repository), "'vm'");
        assert_eq!(objects(), before);
        repository.reclaim("other", &kit::THOROUGH).unwrap();
        forgery.assert_restores(&repository);
    }
}

#[test]
fn nothing_is_taken_away_by_such_a_head_of_the_shared_store() {
    let forgery = Forgery::new();
    forgery.forge_all("", What::Containers, 0);
    let repository = forgery.repository();
    assert_refused(shared::sweep(&repository), "shared");
    let report = check(&repository, DataCheck::All);
    assert_eq!(report.damage.len(), 1, "{:?}", report.damage);
    forgery.assert_restores(&repository);
}

#[test]
fn a_backup_goes_on_as_long_as_there_are_numbers() {
    for what in [What::Containers, What::Packs] {
        let forgery = Forgery::new();
        let repository = forgery.repository();
        forgery.forge_all("vm", what, 1000);
        let image = kit::changed(&forgery.images[1], 7);
        kit::backup(&repository, "vm", &image).unwrap();
        let found = kit::latest(&repository, "vm").unwrap();
        assert!(kit::restore(&repository, &found).unwrap() == image);
        forgery.assert_restores(&repository);
    }
}

#[test]
fn a_backup_without_numbers_left_says_so() {
    for what in [What::Containers, What::Packs] {
        for left in [0, 1] {
            let forgery = Forgery::new();
            let repository = forgery.repository();
            let head = forgery.forge_all("vm", what, left);
            let image = kit::image(77, 900);
            let outcome = kit::backup(&repository, "vm", &image);
            let error = match outcome {
                // One pack is enough.
                Ok(_) if (what, left) == (What::Packs, 1) => continue,
                Ok(_) => panic!("{what:?} {left}: there are no numbers"),
                Err(error) => error,
            };
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("has used all"), "{error}");
            let newest = repository.head(head.series).unwrap().unwrap();
            assert_eq!(newest.generation, head.generation);
            forgery.assert_restores(&repository);
        }
    }
}

/// The number of the next object lies behind all that are listed; a head that says otherwise is
/// damaged.
#[test]
fn a_backup_on_a_head_whose_next_number_is_listed_fails_clearly() {
    let changes: [fn(&mut Head); 2] = [|head| head.next_container = 0, |head| head.next_pack = 0];
    for change in changes {
        let forgery = Forgery::new();
        let repository = forgery.repository();
        forgery.forge("vm", &change);
        let image = kit::changed(&forgery.images[1], 7);
        let error = kit::backup(&repository, "vm", &image).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        kit::backup(&repository, "other", &forgery.images[0]).unwrap();
    }
}

/// What nothing names is counted, of every kind, also where there is no head.
#[test]
fn a_check_counts_what_nothing_names() {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let repository = kit::init(storage.clone(), &world).unwrap();
    kit::backup(&repository, "vm", &kit::image(1, 300)).unwrap();
    assert_eq!(check(&repository, DataCheck::All).unreferenced, 0);
    let ours = repository.series_id("vm");
    let tag = ObjectTag::first(9);
    let add = |series| {
        let id = silt_format::Id(12);
        let names = [
            names::container(series, 1000, tag),
            names::pack(series, 1000, tag),
            names::snapshot(series, id),
            names::summary(series, id, 0),
            names::summary(series, id, 1),
            names::dead_list(series, id, 0),
            names::run(series, id, 0),
        ];
        for name in &names {
            storage.put(&Key::new(name).unwrap(), &[b"left"], PutMode::Create).unwrap();
        }
        names.len() as u64
    };
    let mut expected = add(ours);
    assert_eq!(check(&repository, DataCheck::All).unreferenced, expected);
    // Of a series without a record or a head, and of one that has a record.
    expected += add(repository.series_id("nobody's"));
    assert_eq!(check(&repository, DataCheck::None).unreferenced, expected);
    let mut session = repository.backup("interrupted", kit::options()).unwrap();
    session.add_volume("disk", &kit::MemorySource::new(&kit::image(2, 300)), None).unwrap();
    drop(session);
    let interrupted = repository.series_id("interrupted");
    let left = list_all(&*storage as &dyn Storage, names::containers(interrupted), None).count();
    assert!(left > 0);
    let packs = list_all(&*storage as &dyn Storage, names::recipes(interrupted), None).count();
    expected += (left + packs) as u64;
    assert_eq!(check(&repository, DataCheck::None).unreferenced, expected);
    // Only what was asked for.
    let one = CheckOptions { series: vec!["vm".to_owned()], ..CheckOptions::default() };
    assert_eq!(repository.check(&one).unwrap().unreferenced, 7);
    // A check record that an interrupted check has left.
    let newest = repository.head(ours).unwrap().unwrap();
    assert_eq!(newest.generation, 1);
    let checks = Numbered::Check.prefix(ours);
    let newest = list_all(&*storage as &dyn Storage, &checks, None).next().unwrap().unwrap().0;
    let number = Numbered::number(newest.as_str()).unwrap();
    let old = Key::new(Numbered::Check.name(ours, number - 1)).unwrap();
    storage.put(&old, &[b"left"], PutMode::Create).unwrap();
    assert_eq!(repository.check(&one).unwrap().unreferenced, 8);
    let all = CheckOptions { data: DataCheck::All, ..one };
    assert_eq!(repository.check(&all).unwrap().unreferenced, 7, "the next that writes removes it");
}
