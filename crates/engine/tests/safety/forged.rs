//! Heads that a host makes up with all the keys it has: they cost no snapshot that others
//! committed.
//!
//! Before all heads since the last signed one were compared field by field, these passed: another
//! next number or another index of the shared store, a leak forecast, a *seen* that claims to know
//! what is condemned later, a tag of a container whose number was free, the name of another series,
//! a head behind a gap. A sweep of the shared store believed any head.

use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::{
    ContentHash, DeadListRef, DeletedEntry, ErrorKind, Head, Id, LeakForecast, ObjectRange,
    ObjectSet, ObjectTag, Period, RetentionPolicy, RunRef, RunUse, SeriesId, SnapshotEntry,
    StoreEntry, StoreWriter, SummaryGeometry,
};
use silt_storage::{ByteRange, Key, MemoryStorage, PutMode, Storage, list_all};
use siltstone::{Advice, DeleteMethod, Repository, Selector, SharePolicy};

use crate::deletion::init_append_only;
use crate::kit::{self, World};
use crate::shared::{build, check, spool, sweep};

const SERIES: [&str; 4] = ["a", "b", "c", "fresh"];

/// An append-only repository of several series with a shared store, and all that was committed to
/// it.
struct Honest {
    storage: MemoryStorage,
    world: Arc<World>,
    /// Snapshots that live, with what they hold.
    living: Vec<(Id, Vec<u8>)>,
}

fn image(own: u64) -> Vec<u8> {
    [kit::image(77, 150), kit::image(1000 + own, 40)].concat()
}

fn administrator(storage: &Arc<MemoryStorage>, world: &Arc<World>) -> Repository {
    let mut administrator = kit::open(storage.clone(), world).unwrap();
    administrator.authorize(b"admin").unwrap();
    administrator
}

impl Honest {
    fn new() -> Self {
        let (world, storage) = (World::new(1), Arc::new(MemoryStorage::new()));
        init_append_only(&storage, &world);
        let host = kit::open(storage.clone(), &world).unwrap();
        let mut living = Vec::new();
        let mut backup = |series, seed| {
            let image = image(seed);
            living.push((kit::backup(&host, series, &image).unwrap().snapshot.id, image));
            world.pass_seconds(3600);
        };
        for (series, seed) in [("a", 1), ("b", 2), ("c", 3)] {
            backup(series, seed);
        }
        let administrator = administrator(&storage, &world);
        build(&administrator, SharePolicy::Duplicates).unwrap();
        for series in ["a", "b", "c"] {
            administrator.repoint(series, &spool()).unwrap();
            administrator.reclaim(series, &kit::THOROUGH).unwrap();
        }
        // One has deletions and a policy, one shares, one is new; all have heads that nobody
        // signed.
        for (series, seed) in [("a", 4), ("a", 5), ("b", 6), ("fresh", 7), ("fresh", 8)] {
            backup(series, seed);
        }
        let policy = RetentionPolicy { last: 3, ..RetentionPolicy::default() };
        administrator.set_policy("a", Some(policy)).unwrap();
        let (gone, _) = living.remove(3);
        administrator.delete("a", &[gone], DeleteMethod::Exact).unwrap();
        living.push((kit::backup(&host, "a", &image(9)).unwrap().snapshot.id, image(9)));
        Self { storage: storage.snapshot(), world, living }
    }

    /// Everything that was committed is there and whole.
    fn assert_whole(&self, repository: &Repository, what: &str) {
        for (id, image) in &self.living {
            let found = kit::find(repository, &Selector::Id(id.to_string()));
            let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
            let restored = kit::restore(repository, &found);
            let restored = restored.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(restored == *image, "{what}: snapshot {id}");
        }
        let damage = check(repository).damage;
        assert!(damage.is_empty(), "{what}: {damage:?}");
    }
}

/// Everything that removes objects; returns the kinds of errors.
fn remove_all(administrator: &Repository, what: &str) -> Vec<ErrorKind> {
    let reclaims = SERIES.map(|series| administrator.reclaim(series, &kit::THOROUGH).map(drop));
    let errors = reclaims.into_iter().chain([sweep(administrator).map(drop)]);
    let errors = errors.filter_map(Result::err);
    errors
        .map(|error| {
            let is_denied = error.kind() == ErrorKind::Denied;
            assert!(is_denied, "{what}: {error}");
            let is_advised = matches!(error.advice(), Some(Advice::RecoverSeries { .. }));
            assert!(is_advised, "{what}: {error}");
            error.kind()
        })
        .collect()
}

fn put_head(storage: &MemoryStorage, place: (SeriesId, u64), plain: &[u8]) {
    let object = kit::sealed_as_head(storage, place, plain);
    let name = Key::new(Numbered::Head.name(place.0, place.1)).unwrap();
    storage.put(&name, &[&object], PutMode::Create).unwrap();
}

fn shared_store(repository: &Repository) -> SeriesId {
    repository.series_id("\0shared")
}

/// Recovers what must be, removes what is garbage, and finds all there; the answer says whether the
/// administrator was told.
fn survives(honest: &Honest, storage: &Arc<MemoryStorage>, series: SeriesId, what: &str) -> bool {
    let administrator = administrator(storage, &honest.world);
    let is_denied = !remove_all(&administrator, what).is_empty();
    let recovered = administrator.recover(&format!("id:{series}")).unwrap();
    assert_eq!(recovered, is_denied, "{what}");
    assert_eq!(remove_all(&administrator, what), [], "{what}");
    honest.assert_whole(&administrator, what);
    is_denied
}

type Change = fn(&mut Head);

fn without_first(set: &ObjectSet) -> ObjectSet {
    let mut left = ObjectSet::default();
    set.iter().skip(1).for_each(|(number, tag)| left.push(number, tag));
    left
}

fn retagged(set: &ObjectSet) -> ObjectSet {
    let mut other = ObjectSet::default();
    set.iter().for_each(|(number, _)| other.push(number, ObjectTag::first(0xbad)));
    other
}

/// No field can be added without a look at the changes below.
fn all_fields_are_known(head: &Head, range: ObjectRange, run: RunRef, list: DeadListRef) {
    #[rustfmt::skip]
    let Head {
        generation: _, series: _, domain: _, name: _, writer: _, writers: _, next_container: _,
        next_pack: _,
        stores: _, containers: _, packs: _, snapshots: _, summary: _, deleted: _, dead: _, leak: _,
        policy: _, runs: _, condemned: _, condemned_in: _, delta_bases: _, alias: _,
        users: _, file_chunking: _, store_writers: _, applications: _,
    } = head;
    for StoreWriter { session: _, series: _, first: _, end: _ } in &head.store_writers {}
    let ObjectRange { first: _, count: _, tag: _ } = range;
    let RunRef { id: _, use_: _, partition_bits: _, records: _, hash: _ } = run;
    let DeadListRef { id: _, parts: _, slots: _, hash: _ } = list;
    let LeakForecast { deletions: _, leaked_millichunks: _, stored_chunks: _ } = head.leak;
    if let Some(SummaryGeometry { partitions: _, partition_bytes: _, hashes: _ }) = head.summary {}
    for StoreEntry { number: _, kind: _, id: _, seen: _, places: _ } in &head.stores {}
    for SnapshotEntry { id: _, time_ns: _, flags: _, hash: _, labels: _ } in &head.snapshots {}
    for DeletedEntry { entry: _, deleted_ns: _ } in &head.deleted {}
    #[rustfmt::skip]
    let RetentionPolicy {
        last: _, hourly: _, daily: _, weekly: _, monthly: _, yearly: _, within: _, tags: _,
        age_min_s: _, keep_deleted_s: _,
    } = RetentionPolicy::default();
    let Period { years: _, months: _, days: _, hours: _ } = Period::default();
}

fn made_up() -> DeadListRef {
    DeadListRef { id: Id(7), parts: 1, slots: 9, hash: ContentHash([7; 16]) }
}

fn made_up_run() -> RunRef {
    let hash = ContentHash([7; 16]);
    RunRef { id: Id(7), use_: RunUse::Shared, partition_bits: 0, records: 9, hash }
}

fn with_policy(head: &mut Head, change: fn(&mut RetentionPolicy)) {
    head.policy.iter_mut().for_each(change);
}

/// Changes of the fields that say what there is.
fn changes_of_contents() -> Vec<Change> {
    vec![
        |head| head.generation -= 1,
        |head| head.generation = 0,
        |head| head.series.0[0] ^= 1,
        |head| head.domain = 1,
        |head| "c".clone_into(&mut head.name),
        |head| head.writer[0] ^= 1,
        |head| head.writers += 1,
        |head| head.writers = 0,
        |head| head.next_container = 0,
        |head| head.next_container += 1000,
        |head| head.next_pack = 0,
        |head| head.next_pack += 1000,
        |head| head.stores.clear(),
        |head| drop(head.stores.pop()),
        |head| head.stores.reverse(),
        |head| head.stores.push(StoreEntry::new(1, 1, head.series)),
        |head| head.stores.push(StoreEntry::new(2, 3, head.series)),
        |head| head.stores.push(StoreEntry::new(2, 2, head.series)),
        |head| head.stores.push(StoreEntry { seen: 9, ..StoreEntry::new(2, 2, head.series) }),
        |head| head.stores[0].seen += 1,
        |head| head.stores.iter_mut().for_each(|store| store.seen += 1000),
        |head| head.stores.iter_mut().for_each(|store| store.seen = 0),
        |head| head.stores.iter_mut().for_each(|store| store.number += 1),
        |head| head.stores.iter_mut().for_each(|store| store.kind += 1),
        |head| head.stores.iter_mut().for_each(|store| store.id.0[0] ^= 1),
        |head| head.stores.iter_mut().for_each(|store| store.places.push("/x".to_owned())),
        |head| head.containers = ObjectSet::default(),
        |head| head.containers = without_first(&head.containers),
        |head| head.containers = retagged(&head.containers),
        |head| head.containers.push(head.next_container, ObjectTag::first(1)),
        |head| {
            head.containers.push(head.next_container, ObjectTag::first(1));
            head.next_container += 1;
        },
        |head| head.packs = ObjectSet::default(),
        |head| head.packs = without_first(&head.packs),
        |head| head.packs = retagged(&head.packs),
        |head| head.packs.push(head.next_pack, ObjectTag::first(1)),
        |head| {
            head.packs.push(head.next_pack, ObjectTag::first(1));
            head.next_pack += 1;
        },
        |head| head.snapshots.clear(),
        |head| head.snapshots = head.snapshots.split_off(head.snapshots.len().min(1)),
        |head| head.snapshots.reverse(),
        |head| head.snapshots.iter_mut().for_each(|entry| entry.id.0 ^= 1),
        |head| head.snapshots.iter_mut().for_each(|entry| entry.time_ns += 1),
        |head| head.snapshots.iter_mut().for_each(|entry| entry.flags ^= 1),
        |head| head.snapshots.iter_mut().for_each(|entry| entry.hash.0[0] ^= 1),
        |head| head.snapshots.iter_mut().for_each(|entry| entry.labels.push("x".to_owned())),
        |head| head.snapshots.extend(head.snapshots.clone()),
        |head| head.snapshots.extend(head.deleted.iter().map(|deleted| deleted.entry.clone())),
        |head| head.summary = None,
        |head| head.summary = Some(SummaryGeometry::for_references(1)),
    ]
}

/// Changes of the fields that say what may go.
fn changes_of_deletions() -> Vec<Change> {
    vec![
        |head| head.deleted.clear(),
        |head| head.deleted.iter_mut().for_each(|deleted| deleted.deleted_ns = 0),
        |head| head.deleted.iter_mut().for_each(|deleted| deleted.entry.hash.0[0] ^= 1),
        |head| {
            let entries = head.snapshots.iter();
            let deleted = entries.map(|entry| DeletedEntry { entry: entry.clone(), deleted_ns: 0 });
            head.deleted.extend(deleted);
        },
        |head| head.dead.clear(),
        |head| head.dead.push(made_up()),
        |head| head.dead.iter_mut().for_each(|list| list.id.0 ^= 1),
        |head| head.dead.iter_mut().for_each(|list| list.parts += 1),
        |head| head.dead.iter_mut().for_each(|list| list.slots += 1),
        |head| head.leak.deletions += 1,
        |head| head.leak.leaked_millichunks += 1 << 40,
        |head| head.leak.stored_chunks += 1,
        |head| head.policy = None,
        |head| head.policy = Some(RetentionPolicy::default()),
        |head| with_policy(head, |policy| policy.last += 1),
        |head| with_policy(head, |policy| policy.hourly += 1),
        |head| with_policy(head, |policy| policy.daily += 1),
        |head| with_policy(head, |policy| policy.weekly += 1),
        |head| with_policy(head, |policy| policy.monthly += 1),
        |head| with_policy(head, |policy| policy.yearly += 1),
        |head| with_policy(head, |policy| policy.within.hours += 1),
        |head| with_policy(head, |policy| policy.tags.push("x".to_owned())),
        |head| with_policy(head, |policy| policy.age_min_s += 1),
        |head| with_policy(head, |policy| policy.keep_deleted_s += 1),
        |head| head.runs.clear(),
        |head| head.runs.push(made_up_run()),
        |head| head.runs.iter_mut().for_each(|run| run.id.0 ^= 1),
        |head| head.runs.iter_mut().for_each(|run| run.use_ = RunUse::Owners),
        |head| head.runs.iter_mut().for_each(|run| run.partition_bits += 1),
        |head| head.runs.iter_mut().for_each(|run| run.records += 1),
        |head| head.condemned.push(made_up()),
        |head| {
            head.condemned.push(made_up());
            head.condemned_in = head.generation;
        },
        |head| head.delta_bases.push(made_up()),
        |head| head.users.clear(),
        |head| head.users.push(head.series),
        |head| head.file_chunking = Some(siltstone::FileChunking::default()),
        |head| head.alias = Some("x".to_owned()),
        |head| {
            let (session, series) = ([7; 16], head.series);
            head.store_writers.push(StoreWriter { session, series, first: 0, end: u32::MAX });
        },
        |head| head.applications.push(1),
    ]
}

fn each_change_survives(changes: &[Change]) {
    let honest = Honest::new();
    let host = kit::open(Arc::new(honest.storage.snapshot()), &honest.world).unwrap();
    let targets = ["fresh", "a", "b"].map(|name| host.series_id(name));
    for series in targets.into_iter().chain([shared_store(&host)]) {
        let mut before = host.head(series).unwrap().unwrap();
        all_fields_are_known(&before, before.containers.ranges()[0], made_up_run(), made_up());
        before.generation += 1;
        let place = (series, before.generation);
        for (number, change) in changes.iter().enumerate() {
            let mut forged = before.clone();
            change(&mut forged);
            if forged == before {
                continue;
            }
            let storage = Arc::new(honest.storage.snapshot());
            put_head(&storage, place, &forged.encode());
            survives(&honest, &storage, series, &format!("change {number} of {series}"));
        }
    }
}

#[test]
fn no_change_of_what_a_head_lists_costs_a_snapshot() {
    each_change_survives(&changes_of_contents());
}

#[test]
fn no_change_of_what_a_head_lets_go_costs_a_snapshot() {
    each_change_survives(&changes_of_deletions());
}

#[test]
fn a_head_of_generation_0_is_none() {
    let honest = Honest::new();
    let storage = Arc::new(honest.storage.snapshot());
    let host = kit::open(storage.clone(), &honest.world).unwrap();
    for name in ["a", "nobody"] {
        let series = host.series_id(name);
        put_head(&storage, (series, 0), &Head::empty(series, 0, name).encode());
    }
    assert!(host.head(host.series_id("nobody")).unwrap().is_none());
    assert!(!survives(&honest, &storage, host.series_id("a"), "generation 0"));
    kit::backup(&host, "nobody", &image(1)).unwrap();
    honest.assert_whole(&host, "generation 0");
}

#[test]
fn a_gap_or_a_head_that_nobody_can_read_is_tampering() {
    let honest = Honest::new();
    for name in ["fresh", "a", "\0shared"] {
        let storage = Arc::new(honest.storage.snapshot());
        let host = kit::open(storage.clone(), &honest.world).unwrap();
        let series = host.series_id(name);
        let newest = host.head(series).unwrap().unwrap();
        let forged = Head { generation: newest.generation + 3, ..newest.clone() };
        put_head(&storage, (series, forged.generation), &forged.encode());
        // A host's head of the shared store counts as little as none, wherever it is.
        let counts = name != "\0shared";
        assert_eq!(survives(&honest, &storage, series, "a gap"), counts);

        let storage = Arc::new(honest.storage.snapshot());
        put_head(&storage, (series, newest.generation + 1), b"nothing");
        assert_eq!(survives(&honest, &storage, series, "an unreadable head"), counts);
        let storage = Arc::new(honest.storage.snapshot());
        let name = Key::new(Numbered::Head.name(series, newest.generation + 1)).unwrap();
        storage.put(&name, &[&[9; 500]], PutMode::Create).unwrap();
        assert!(survives(&honest, &storage, series, "a head of nobody's"));
    }
}

#[test]
fn a_generation_that_leaves_no_room_must_be_removed_by_hand() {
    let honest = Honest::new();
    let storage = Arc::new(honest.storage.snapshot());
    let host = kit::open(storage.clone(), &honest.world).unwrap();
    let series = host.series_id("a");
    let forged = Head { generation: u64::MAX - 1, ..host.head(series).unwrap().unwrap() };
    put_head(&storage, (series, forged.generation), &forged.encode());
    assert!(kit::backup(&host, "a", &image(1)).is_err(), "nothing is committed and then lost");
    let administrator = administrator(&storage, &honest.world);
    let name = Numbered::Head.name(series, forged.generation);
    assert!(administrator.recover("a").unwrap_err().to_string().contains(&name));
    storage.delete(&[Key::new(&name).unwrap()]).unwrap();
    assert!(!survives(&honest, &storage, series, "a generation too high"));
}

#[test]
fn what_is_backed_up_on_top_of_a_forged_head_is_kept() {
    let drops: [Change; 3] = [
        |head| head.snapshots.clear(),
        |head| {
            head.snapshots.clear();
            head.containers = ObjectSet::default();
            head.packs = ObjectSet::default();
            (head.next_container, head.next_pack) = (0, 0);
        },
        |head| {
            head.stores.truncate(1);
            head.snapshots.truncate(1);
            head.policy = None;
        },
    ];
    let honest = Honest::new();
    for (series, drop) in ["fresh", "a", "b"].into_iter().flat_map(|name| drops.map(|d| (name, d)))
    {
        let storage = Arc::new(honest.storage.snapshot());
        let host = kit::open(storage.clone(), &honest.world).unwrap();
        let id = host.series_id(series);
        let before = host.head(id).unwrap().unwrap();
        let mut forged = Head { generation: before.generation + 1, ..before.clone() };
        drop(&mut forged);
        put_head(&storage, (id, forged.generation), &forged.encode());
        let kept = image(40);
        let later = kit::backup(&host, series, &kept).unwrap().snapshot.id;
        assert!(survives(&honest, &storage, id, series), "{series}");
        let found = kit::find(&host, &Selector::Id(later.to_string())).unwrap();
        assert!(kit::restore(&host, &found).unwrap() == kept, "{series}");
        let after = host.head(id).unwrap().unwrap();
        assert_eq!((after.policy, after.alias), (before.policy, before.alias));
    }
}

#[test]
fn a_series_without_a_record_is_looked_at_before_the_shared_store_is_swept() {
    let honest = Honest::new();
    let storage = Arc::new(honest.storage.snapshot());
    let host = kit::open(storage.clone(), &honest.world).unwrap();
    let id = host.series_id("b");
    storage.delete(&[Key::new(names::series(id)).unwrap()]).unwrap();
    let mut forged = host.head(id).unwrap().unwrap();
    forged.generation += 1;
    forged.snapshots.clear();
    put_head(&storage, (id, forged.generation), &forged.encode());
    let administrator = administrator(&storage, &honest.world);
    let refused = sweep(&administrator).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    assert_eq!(refused.advice(), Some(&Advice::RecoverSeries { series: "b".to_owned() }));
    assert!(administrator.recover("b").unwrap());
    kit::backup(&host, "b", &image(2)).unwrap();
    assert_eq!(remove_all(&administrator, "no record"), []);
    honest.assert_whole(&administrator, "no record");
}

#[test]
fn a_made_up_shared_store_is_not_linked_to() {
    let honest = Honest::new();
    let storage = Arc::new(honest.storage.snapshot());
    let host = kit::open(storage.clone(), &honest.world).unwrap();
    let mut forged = host.head(shared_store(&host)).unwrap().unwrap();
    forged.generation += 1;
    forged.next_container += 1;
    put_head(&storage, (forged.series, forged.generation), &forged.encode());
    let administrator = administrator(&storage, &honest.world);
    administrator.repoint("fresh", &spool()).unwrap();
    assert!(!survives(&honest, &storage, forged.series, "a made-up shared store"));
    let newest = administrator.head(forged.series).unwrap().unwrap();
    assert!(newest.next_container < forged.next_container, "it is skipped");
}

#[test]
fn old_heads_go_only_when_a_signed_one_vouches_for_them() {
    let (world, storage) = (World::new(1), Arc::new(MemoryStorage::new()));
    init_append_only(&storage, &world);
    let host = kit::open(storage.clone(), &world).unwrap();
    let small = kit::image(1, 20);
    let administrator = administrator(&storage, &world);
    for _ in 0..2 {
        for _ in 0..20 {
            kit::backup(&host, "vm", &small).unwrap();
        }
        administrator.reclaim("vm", &kit::THOROUGH).unwrap();
        let heads = Numbered::Head.prefix(host.series_id("vm"));
        assert!(list_all(&*storage, &heads, None).count() <= 17);
    }
    assert!(check(&host).damage.is_empty());
    assert!(!administrator.recover("vm").unwrap());
}

/// That a head is what its object says.
#[test]
fn forged_heads_are_well_made() {
    let honest = Honest::new();
    let storage = Arc::new(honest.storage.snapshot());
    let host = kit::open(storage.clone(), &honest.world).unwrap();
    let mut head = host.head(host.series_id("b")).unwrap().unwrap();
    head.generation += 1;
    put_head(&storage, (head.series, head.generation), &head.encode());
    let mut bytes = Vec::new();
    let name = Key::new(Numbered::Head.name(head.series, head.generation)).unwrap();
    storage.get(&name, ByteRange::Full, &mut bytes).unwrap();
    assert_eq!(host.head(head.series).unwrap(), Some(head));
}
