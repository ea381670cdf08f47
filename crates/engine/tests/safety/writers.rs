//! Hosts whose keys are in the wrong hands write what they may, and nothing else.

use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::{
    BlockKind, Chunking, ErrorKind, Fingerprint, Head, Header, Id, KdfCost, KeyLabel, ObjectKind,
    ObjectTag, Page, Places, Recipe, Reference, Role, SIGNATURE_BYTES, SeriesId, SeriesRecord,
    Signer, SnapshotEntry, Writer, WriterState, Writers,
};
use silt_storage::{Key, MemoryStorage, PutMode, Storage};
use siltstone::{DeleteMethod, KeyAccess, Protection, Repository, Selector};

use crate::forger::{self, Forger};
use crate::kit::{self, World};
use crate::shared;

const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };

struct Case {
    world: Arc<World>,
    storage: Arc<MemoryStorage>,
    /// What was committed.
    living: Vec<(Id, Vec<u8>)>,
}

impl Case {
    /// A repository with two hosts that only write, and what they have backed up.
    fn new() -> Self {
        let (world, storage) = (World::new(5), Arc::new(MemoryStorage::new()));
        let label = KeyLabel::default();
        let password = b"all".to_vec();
        let protection = Protection::Password { password, cost: COST, label: label.clone() };
        let context = world.context();
        let all =
            Repository::init(storage.clone(), context, kit::config(), &protection, None).unwrap();
        for (password, series) in [(&b"web"[..], "web1"), (b"db", "db-*")] {
            all.add_key(password, COST, &label, &KeyAccess::write_only(&[series])).unwrap();
        }
        let mut case = Self { world, storage, living: Vec::new() };
        for (password, series, seed) in
            [(&b"web"[..], "web1", 1), (b"db", "db-1", 2), (b"db", "db-1", 3), (b"web", "web1", 4)]
        {
            case.backup(password, series, &kit::image(seed, 60));
        }
        case
    }

    fn backup(&mut self, password: &[u8], series: &str, image: &[u8]) {
        let report = kit::backup(&self.open(password), series, image).unwrap();
        self.living.push((report.snapshot.id, image.to_vec()));
    }

    fn open(&self, password: &[u8]) -> Repository {
        self.world.pass_seconds(600);
        let (storage, password) = (self.storage.clone(), password.to_vec());
        let opened = Repository::open(storage, self.world.context(), move || Ok(password)).unwrap();
        opened.with_places("here", &|_| Err(silt_format::Error::invalid("there is one"))).unwrap()
    }

    fn head(&self, series: &str) -> Head {
        let all = self.open(b"all");
        all.head(all.series_id(series)).unwrap().unwrap()
    }

    fn put(&self, name: &str, object: &[u8]) {
        self.storage.put(&Key::new(name).unwrap(), &[object], PutMode::Create).unwrap();
    }

    /// Puts a head behind the newest.
    fn put_head(&self, forger: &Forger, head: &Head, claims: Id) {
        let header = forger.address(ObjectKind::Head, head.series, head.generation);
        let name = Numbered::Head.name(head.series, head.generation);
        self.put(&name, &forger.object(&header, &head.encode(), claims));
    }

    fn assert_whole(&self) {
        let all = self.open(b"all");
        for (id, image) in &self.living {
            let found = kit::find(&all, &Selector::Id(id.to_string())).unwrap();
            assert!(kit::restore(&all, &found).unwrap() == *image, "snapshot {id}");
        }
        let damage = shared::check(&all).damage;
        assert!(damage.is_empty(), "{damage:?}");
    }
}

#[test]
fn a_host_writes_its_own_series_alone() {
    let mut case = Case::new();
    case.backup(b"db", "db-2", &kit::image(9, 60));
    for (password, series) in [(&b"web"[..], "db-1"), (b"web", "web11"), (b"db", "db")] {
        let error = kit::backup(&case.open(password), series, &kit::image(1, 10)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    let all = case.open(b"all");
    assert_eq!(all.series().unwrap().len(), 3, "nothing was begun");
    let series: Vec<_> = all.keys().unwrap().into_iter().map(|key| key.series).collect();
    assert!(series.contains(&vec!["db-*".to_owned()]) && series.contains(&vec!["*".to_owned()]));
    for bad in ["", "a*b", "a@b", "x/*"] {
        let access = KeyAccess::write_only(&[bad]);
        let error = all.add_key(b"x", COST, &KeyLabel::default(), &access).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }
    let kept = KeyAccess { is_write_only: false, series: vec!["a".to_owned()] };
    assert!(all.add_key(b"x", COST, &KeyLabel::default(), &kept).is_err());
    case.assert_whole();
}

/// Heads that the host of another series puts behind the newest of `db-1`.
#[test]
fn a_head_of_another_host_is_refused_by_all_and_recovered_from() {
    let changes: [fn(&mut Head); 4] = [
        |_| {},
        |head| head.snapshots.clear(),
        |head| drop(head.snapshots.pop()),
        |head| head.next_container += 9,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for claim in 0..4 {
            let mut case = Case::new();
            let all = case.open(b"all");
            let forger = Forger::steal(&case.storage, b"web");
            let victim = Forger::steal(&case.storage, b"db").id;
            let mut head = case.head("db-1");
            head.generation += 1;
            change(&mut head);
            let what = format!("change {number}, claim {claim}");
            match claim {
                0 => case.put_head(&forger, &head, forger.id),
                1 => case.put_head(&forger, &head, victim),
                2 => case.put_head(&forger, &head, Signer::ADMINISTRATOR),
                _ => {
                    let header = forger.address(ObjectKind::Head, head.series, head.generation);
                    let name = Numbered::Head.name(head.series, head.generation);
                    case.put(&name, &forger.unsigned(&header, &head.encode()));
                }
            }
            let refused = kit::latest(&all, "db-1").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Corrupt, "{what}: {refused}");
            for password in [&b"db"[..], b"all"] {
                let refused = kit::backup(&case.open(password), "db-1", &kit::image(3, 60));
                let refused = refused.unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::Corrupt, "{what}: {refused}");
            }
            assert!(!shared::check(&all).damage.is_empty(), "{what}");
            let refused = all.reclaim("db-1", &kit::THOROUGH).unwrap_err();
            assert!(refused.to_string().contains("silt recover db-1"), "{what}: {refused}");
            // The others are not concerned.
            case.backup(b"web", "web1", &kit::image(5, 60));
            all.reclaim("web1", &kit::THOROUGH).unwrap();
            assert!(all.recover("db-1").unwrap(), "{what}");
            case.backup(b"db", "db-1", &kit::image(6, 60));
            all.reclaim("db-1", &kit::THOROUGH).unwrap();
            case.assert_whole();
        }
    }
}

/// In a repository that is not append-only, too, a host that only writes takes nothing away.
#[test]
fn a_host_takes_nothing_away_from_its_own_series() {
    let mut case = Case::new();
    let forger = Forger::steal(&case.storage, b"db");
    let mut head = case.head("db-1");
    head.generation += 1;
    drop(head.snapshots.remove(0));
    case.put_head(&forger, &head, forger.id);
    // It is a good backup's base, and nothing is removed by it.
    case.backup(b"db", "db-1", &kit::image(6, 60));
    let all = case.open(b"all");
    let refused = all.reclaim("db-1", &kit::THOROUGH).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied);
    assert!(all.recover("db-1").unwrap());
    all.reclaim("db-1", &kit::THOROUGH).unwrap();
    case.assert_whole();
}

#[test]
fn what_a_removed_key_signs_later_is_refused_and_what_it_signed_before_stays() {
    let mut case = Case::new();
    let forger = Forger::steal(&case.storage, b"db");
    let asleep = case.open(b"db");
    case.open(b"all").remove_key(&forger.id.to_string()).unwrap();
    // A process that has the key in memory is told that it has not committed.
    let refused = kit::backup(&asleep, "db-1", &kit::image(8, 60)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused}");
    case.assert_whole();
    let mut head = case.head("db-1");
    head.generation += 1;
    head.snapshots.clear();
    case.put_head(&forger, &head, forger.id);
    let all = case.open(b"all");
    let refused = kit::latest(&all, "db-1").unwrap_err();
    assert!(refused.to_string().contains("which was removed before"), "{refused}");
    let label = KeyLabel::default();
    all.add_key(b"db again", COST, &label, &KeyAccess::write_only(&["db-*"])).unwrap();
    assert!(all.recover("db-1").unwrap());
    case.backup(b"db again", "db-1", &kit::image(6, 60));
    // A series that it never wrote is not begun by it either.
    let fresh = all.series_id("db-9");
    let first = Head { generation: 1, ..Head::empty(fresh, 0, "db-9") };
    case.put_head(&forger, &first, forger.id);
    assert!(kit::latest(&case.open(b"all"), "db-9").is_err());
    assert!(all.recover("db-9").unwrap());
    case.backup(b"db again", "db-9", &kit::image(7, 60));
    case.assert_whole();
}

#[test]
fn no_host_says_where_the_repository_is_or_who_may_write() {
    let case = Case::new();
    let forger = Forger::steal(&case.storage, b"web");
    let open = || {
        let opened =
            Repository::open(case.storage.clone(), case.world.context(), || Ok(b"db".to_vec()));
        opened.and_then(|repository| {
            let elsewhere = |_: &str| Ok(Arc::new(MemoryStorage::new()) as Arc<dyn Storage>);
            repository.with_places("here", &elsewhere)
        })
    };
    let image = kit::image(6, 60);
    for claims in [forger.id, Signer::ADMINISTRATOR] {
        for number in [1, 2] {
            let places = Places { copies: vec!["/stolen".to_owned()], ..Places::default() };
            let header = forger.address(ObjectKind::Places, SeriesId::NONE, number);
            let name = Numbered::Places.name(SeriesId::NONE, number);
            forger::replace(
                &case.storage,
                &name,
                &forger.object(&header, &places.encode(), claims),
            );
        }
        let refused = open().map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        for name in forger::all_names(&case.storage, "root/places/") {
            case.storage.delete(&[Key::new(&name).unwrap()]).unwrap();
        }
        kit::backup(&open().unwrap(), "db-1", &image).unwrap();

        let own = forger.host.signer(forger.id).unwrap().public();
        let series = vec!["*".to_owned()];
        let (id, role, state) = (forger.id, Role::Full, WriterState::Active);
        let list = Writers { all: vec![Writer { id, role, public: own, series, state }] };
        let number = 9;
        let header = forger.address(ObjectKind::Writers, SeriesId::NONE, number);
        let object = forger.object(&header, &list.encode(), claims);
        for name in [names::writers(number), names::writers_copy(number)] {
            case.put(&name, &object);
        }
        let refused = open().and_then(|repository| kit::backup(&repository, "db-1", &image));
        let refused = refused.map(drop).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
        for name in [names::writers(number), names::writers_copy(number)] {
            case.storage.delete(&[Key::new(&name).unwrap()]).unwrap();
        }
    }
    let series = case.open(b"all").series_id("db-7");
    let record = SeriesRecord { name: "db-7".to_owned(), domain: 0, created_ns: 0 };
    let header = forger.address(ObjectKind::Series, series, 0);
    case.put(&names::series(series), &forger.object(&header, &record.encode(), forger.id));
    let damage = shared::check(&case.open(b"all")).damage;
    assert!(damage.iter().any(|damage| damage.object == names::series(series)), "{damage:?}");
}

#[test]
fn a_withheld_list_of_writers_is_missed_by_who_reads_a_head_that_knew_it() {
    let mut case = Case::new();
    let all = case.open(b"all");
    let before = case.storage.snapshot();
    let access = KeyAccess::write_only(&["new"]);
    all.add_key(b"new", COST, &KeyLabel::default(), &access).unwrap();
    case.backup(b"all", "db-1", &kit::image(6, 60));
    for name in forger::all_names(&case.storage, names::WRITERS) {
        if forger::read(&before, &name).is_none() {
            case.storage.delete(&[Key::new(&name).unwrap()]).unwrap();
        }
    }
    let refused = kit::latest(&case.open(b"all"), "db-1").unwrap_err();
    assert!(refused.to_string().contains("list of writers"), "{refused}");
}

#[test]
fn a_signature_is_as_long_as_it_is_said_to_be() {
    let case = Case::new();
    let forger = Forger::steal(&case.storage, b"all");
    let name = forger::all_names(&case.storage, names::STATE).remove(0);
    let (_, plain) = forger.open(&forger::read(&case.storage, &name).unwrap()).unwrap();
    assert!(Head::decode(&plain[..plain.len() - SIGNATURE_BYTES]).is_ok());
    let all = case.open(b"all");
    let found = kit::latest(&all, "db-1").unwrap();
    all.delete("db-1", &[found.snapshot.id], DeleteMethod::Exact).unwrap();
}

/// What whoever has stolen a key does to the recipes of its own series, leaving every digest as it was.
type Falsify = fn(&mut Recipe);

/// Adds a snapshot to `db-1` whose first segment has another recipe.
fn add_false_snapshot(case: &Case, forger: &Forger, falsify: Falsify) -> Id {
    let all = case.open(b"all");
    let mut head = case.head("db-1");
    let newest = head.snapshots.last().unwrap().clone();
    let mut snapshot = all.snapshot(head.series, &newest).unwrap();
    let root = snapshot.volumes[0].root;
    let read_pack = |number: u32| {
        let name = names::pack(head.series, number, head.packs.tag(number).unwrap());
        forger::read(&case.storage, &name).unwrap()
    };
    let page_ref = root.page.unwrap();
    let page = Page::decode(&forger.block(&read_pack(page_ref.pack), page_ref), 0).unwrap();
    let Page::Leaf(mut entries) = page else { panic!("the volume has one page") };
    let entry = entries[0].as_mut().unwrap();
    let mut recipe =
        Recipe::decode(&forger.block(&read_pack(entry.recipe.pack), entry.recipe)).unwrap();
    falsify(&mut recipe);
    let (number, tag) = (head.next_pack, ObjectTag::first(7));
    let header = |number: u32| {
        let address = forger.address(ObjectKind::Recipes, head.series, u64::from(number));
        Header { tag, ..address }
    };
    let raw = recipe.encode(Chunking::Fixed { bytes: 4096 });
    let (object, references) = forger.pack(&header(number), &[(BlockKind::Recipe, raw)]);
    case.put(&names::pack(head.series, number, tag), &object);
    entry.recipe = references[0];
    let page = Page::Leaf(entries).encode();
    let (object, references) = forger.pack(&header(number + 1), &[(BlockKind::Page, page)]);
    case.put(&names::pack(head.series, number + 1, tag), &object);
    snapshot.volumes[0].root.page = Some(references[0]);
    snapshot.id = Id(4242);
    snapshot.time_ns = newest.time_ns + 1;
    snapshot.summary = None;
    let plain = snapshot.encode();
    let address = forger.address(ObjectKind::Snapshot, head.series, 4242);
    let object = forger.object(&address, &plain, forger.id);
    case.put(&names::snapshot(head.series, Id(4242)), &object);
    let hash = forger.host.keys.content_hash(ObjectKind::Snapshot as u8, &plain);
    let time_ns = snapshot.time_ns;
    let id = snapshot.id;
    head.snapshots.push(SnapshotEntry { id, time_ns, flags: 0, hash, labels: Vec::new() });
    for number in [number, number + 1] {
        head.packs.push(number, tag);
    }
    head.next_pack += 2;
    head.generation += 1;
    case.put_head(forger, &head, forger.id);
    id
}

#[test]
fn a_stolen_key_does_not_decide_what_later_backups_of_its_series_restore_to() {
    let zeros: Falsify = |recipe| {
        for chunk in &mut recipe.chunks {
            (chunk.reference, chunk.fingerprint) = (Reference::ZERO, Fingerprint([0; 20]));
        }
    };
    let swapped: Falsify = |recipe| {
        let (one, other) = (recipe.chunks[0], recipe.chunks[5]);
        (recipe.chunks[0].reference, recipe.chunks[5].reference) = (other.reference, one.reference);
    };
    let exchanged: Falsify = |recipe| recipe.chunks.swap(0, 5);
    for falsify in [zeros, swapped, exchanged] {
        let mut case = Case::new();
        let label = KeyLabel::default();
        let forger = Forger::steal(&case.storage, b"db");
        let all = case.open(b"all");
        all.add_key(b"db again", COST, &label, &KeyAccess::write_only(&["db-*"])).unwrap();
        let id = add_false_snapshot(&case, &forger, falsify);
        all.remove_key(&forger.id.to_string()).unwrap();
        let image = case.living[2].1.clone();
        for password in [&b"db again"[..], b"db again", b"all"] {
            case.backup(password, "db-1", &image);
        }
        let changed = kit::changed(&image, 5);
        case.backup(b"db again", "db-1", &changed);
        let all = case.open(b"all");
        for (id, image) in &case.living {
            let found = kit::find(&all, &Selector::Id(id.to_string())).unwrap();
            assert!(kit::restore(&all, &found).unwrap() == *image, "snapshot {id}");
        }
        let found = kit::find(&all, &Selector::Id(id.to_string())).unwrap();
        assert_eq!(found.key, Some(forger.id), "it is known whose it is");
        let restored = kit::restore(&all, &found);
        assert!(restored.is_err(), "no snapshot restores to what its digests do not say");
        let damage = shared::check(&all).damage;
        assert!(!damage.is_empty());
        let affected = damage.iter().flat_map(|damage| &damage.affected);
        assert!(affected.clone().all(|affected| affected.snapshot == Some(id)), "{damage:?}");
    }
}
