//! Hosts whose keys are in the wrong hands write what they may, and nothing else.

use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::{
    BlockKind, BlockRef, Chunking, ErrorKind, Fingerprint, Hashed, Head, Header, Id, KdfCost,
    KeyLabel, Level, MapRoot, ObjectKind, ObjectTag, PAGE_ENTRIES, Page, Places, Recipe, Reference,
    Role, SEGMENT_BYTES, SIGNATURE_BYTES, SegmentEntry, SeriesId, SeriesRecord, Signer, Snapshot,
    SnapshotEntry, Writer, WriterState, Writers,
};
use silt_storage::{Key, MemoryStorage, OperationKind, PutMode, RecordingStorage, Storage};
use siltstone::{
    Advice, BackupOptions, DeleteMethod, KeyAccess, Protection, Repository, Selector, SharePolicy,
    SweepOptions,
};

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
        for (password, series) in [(&b"web"[..], "web1*"), (b"db", "db-*")] {
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
        self.open_in(self.storage.clone(), password)
    }

    fn open_in(&self, storage: Arc<dyn Storage>, password: &[u8]) -> Repository {
        self.world.pass_seconds(600);
        let password = password.to_vec();
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
    for (password, series) in [(&b"web"[..], "db-1"), (b"web", "we"), (b"db", "db")] {
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
    let kept = KeyAccess { is_write_only: false, series: vec!["a".to_owned()], is_alone: false };
    assert!(all.add_key(b"x", COST, &KeyLabel::default(), &kept).is_err());
    case.assert_whole();
}

/// Heads that the host of another series puts behind the newest of `db-1`. One that it signs itself
/// is passed over; one of which nobody knows whose it is could be a good one that is damaged.
#[test]
fn a_head_of_another_host_is_passed_over_or_refused_and_recovered_from() {
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
            if claim == 0 {
                assert_eq!(kit::latest(&all, "db-1").unwrap().snapshot.id, case.living[2].0);
                all.reclaim("db-1", &kit::THOROUGH).unwrap();
                case.backup(b"db", "db-1", &kit::image(6, 60));
                assert!(!all.recover("db-1").unwrap(), "{what}");
                all.reclaim("db-1", &kit::THOROUGH).unwrap();
                case.assert_whole();
                continue;
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
            let advice = Advice::RecoverSeries { series: "db-1".to_owned() };
            assert_eq!(refused.advice(), Some(&advice), "{what}: {refused}");
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
    case.assert_whole();
    let label = KeyLabel::default();
    all.add_key(b"db again", COST, &label, &KeyAccess::write_only(&["db-*"])).unwrap();
    case.backup(b"db again", "db-1", &kit::image(6, 60));
    // A series that it never wrote is not begun by it either.
    let fresh = all.series_id("db-9");
    let first = Head { generation: 1, ..Head::empty(fresh, 0, "db-9") };
    case.put_head(&forger, &first, forger.id);
    assert_eq!(kit::latest(&case.open(b"all"), "db-9").unwrap_err().kind(), ErrorKind::NotFound);
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

        let own = forger.host.signer(forger.id).public().unwrap();
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

/// A series as whoever has stolen its key finds it, and what is put behind it.
struct Falsified<'c> {
    case: &'c Case,
    forger: &'c Forger,
    head: Head,
    snapshot: Snapshot,
    /// The map's only page.
    entries: Vec<Option<SegmentEntry>>,
}

impl<'c> Falsified<'c> {
    fn new(case: &'c Case, forger: &'c Forger) -> Self {
        let (all, head) = (case.open(b"all"), case.head("db-1"));
        let newest = head.snapshots.last().unwrap();
        let snapshot = all.snapshot(head.series, newest).unwrap();
        let mut falsified = Self { case, forger, head, snapshot, entries: Vec::new() };
        let page = falsified.block(falsified.snapshot.volumes[0].root.page.unwrap());
        let Page::Leaf(entries) = Page::decode(&page, 0).unwrap() else { panic!() };
        falsified.entries = entries;
        falsified
    }

    fn block(&self, block: BlockRef) -> Vec<u8> {
        let tag = self.head.packs.tag(block.pack).unwrap();
        let name = names::pack(self.head.series, block.pack, tag);
        self.forger.block(&forger::read(&self.case.storage, &name).unwrap(), block)
    }

    /// Puts a pack of these blocks, and lists it.
    fn put_pack(&mut self, blocks: &[(BlockKind, Vec<u8>)]) -> Vec<BlockRef> {
        let (number, tag) = (self.head.next_pack, ObjectTag::first(7));
        let series = self.head.series;
        let address = self.forger.address(ObjectKind::Recipes, series, u64::from(number));
        let (object, references) = self.forger.pack(&Header { tag, ..address }, blocks);
        self.case.put(&names::pack(series, number, tag), &object);
        self.head.packs.push(number, tag);
        self.head.next_pack += 1;
        references
    }

    /// Commits a snapshot with this map.
    fn commit(mut self, root: MapRoot) -> Id {
        let (id, time_ns) = (Id(4242), self.snapshot.time_ns + 1);
        self.snapshot.volumes[0].root = root;
        (self.snapshot.id, self.snapshot.time_ns, self.snapshot.summary) = (id, time_ns, None);
        let plain = self.snapshot.encode();
        let series = self.head.series;
        let address = self.forger.address(ObjectKind::Snapshot, series, id.0);
        let object = self.forger.object(&address, &plain, self.forger.id);
        self.case.put(&names::snapshot(series, id), &object);
        let hash = self.forger.host.keys.content_hash(Hashed::Snapshot, &plain);
        self.head.snapshots.push(SnapshotEntry { id, time_ns, flags: 0, hash, labels: Vec::new() });
        self.head.generation += 1;
        self.case.put_head(self.forger, &self.head, self.forger.id);
        id
    }
}

/// What whoever has stolen a key does to the recipes of its own series, leaving every digest as it
/// was.
type Falsify = fn(&mut Recipe);

/// Adds a snapshot to `db-1` whose first segment has another recipe.
fn add_false_snapshot(case: &Case, forger: &Forger, falsify: Falsify) -> Id {
    let mut falsified = Falsified::new(case, forger);
    let entry = falsified.entries[0].unwrap();
    let mut recipe = Recipe::decode(&falsified.block(entry.recipe)).unwrap();
    falsify(&mut recipe);
    let raw = recipe.encode(Chunking::Fixed { bytes: 4096 });
    let recipe = falsified.put_pack(&[(BlockKind::Recipe, raw)])[0];
    falsified.entries[0] = Some(SegmentEntry { recipe, ..entry });
    let page = Page::Leaf(falsified.entries.clone()).encode();
    let page = falsified.put_pack(&[(BlockKind::Page, page)])[0];
    falsified.commit(MapRoot { level: 0, page: Some(page) })
}

/// A few pages stand for a million segments, all with one recipe.
#[test]
fn pages_and_recipes_that_are_repeated_are_damage_and_cost_nothing() {
    for repeated in 0..2 {
        let mut case = Case::new();
        let forger = Forger::steal(&case.storage, b"db");
        let mut falsified = Falsified::new(&case, &forger);
        let entry = falsified.entries[0];
        let leaf = Page::Leaf(vec![entry; PAGE_ENTRIES]).encode();
        let leaves = falsified.put_pack(&vec![(BlockKind::Page, leaf); PAGE_ENTRIES]);
        let children = match repeated {
            0 => vec![Some(leaves[0]); PAGE_ENTRIES],
            _ => leaves.into_iter().map(Some).collect(),
        };
        let root = falsified.put_pack(&[(BlockKind::Page, Page::Branch(1, children).encode())])[0];
        falsified.snapshot.volumes[0].bytes = (PAGE_ENTRIES * PAGE_ENTRIES * SEGMENT_BYTES) as u64;
        let bomb = falsified.commit(MapRoot { level: 1, page: Some(root) });
        let recording = Arc::new(RecordingStorage::new(case.storage.clone()));
        let all = case.open_in(recording.clone(), b"all");
        let damage = shared::check(&all).damage;
        let mut affected = damage.iter().flat_map(|damage| &damage.affected);
        assert!(affected.clone().count() > 0);
        assert!(affected.all(|affected| affected.snapshot == Some(bomb)), "{damage:?}");
        let swept = all.sweep("db-1", SweepOptions::default()).unwrap_err();
        assert_eq!(swept.kind(), ErrorKind::Corrupt, "{swept}");
        let good = kit::find(&all, &Selector::Id(case.living[2].0.to_string())).unwrap();
        let bad = kit::find(&all, &Selector::Id(bomb.to_string())).unwrap();
        let differs = all.diff(good.volumes().next().unwrap(), bad.volumes().next().unwrap());
        assert_eq!(differs.unwrap_err().kind(), ErrorKind::Corrupt);
        for password in [&b"db"[..], b"all"] {
            let image = kit::changed(&case.living[2].1, 3);
            let host = case.open_in(recording.clone(), password);
            let report = kit::backup(&host, "db-1", &image).unwrap();
            case.living.push((report.snapshot.id, image));
        }
        all.delete("db-1", &[bomb], DeleteMethod::Approximate).unwrap();
        case.assert_whole();
        let reads = recording.totals(OperationKind::Get).operations;
        assert!(reads < 5000, "{reads} reads");
    }
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
        // The machine that goes on has digested all of it, and remembers it.
        let memory = tempfile::tempdir().unwrap();
        *case.world.segments.lock().unwrap() = Some(memory.path().to_owned());
        let image = case.living[2].1.clone();
        case.backup(b"db", "db-1", &image);
        let label = KeyLabel::default();
        let forger = Forger::steal(&case.storage, b"db");
        let all = case.open(b"all");
        all.add_key(b"db again", COST, &label, &KeyAccess::write_only(&["db-*"])).unwrap();
        let id = add_false_snapshot(&case, &forger, falsify);
        all.remove_key(&forger.id.to_string()).unwrap();
        for password in [&b"db again"[..], b"db again", b"all"] {
            case.backup(password, "db-1", &image);
        }
        assert!(memory.path().read_dir().unwrap().next().is_some(), "there is a memo");
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

#[test]
fn a_key_for_named_series_opens_no_other() {
    let mut case = Case::new();
    let all = case.open(b"all");
    let access = KeyAccess::write_only(&["web1", "own"]);
    all.add_key(b"one", COST, &KeyLabel::default(), &access).unwrap();
    // It goes on where others were, and shares what may be shared.
    kit::backup(&all, "copy", &case.living[0].1).unwrap();
    shared::build(&all, SharePolicy::Duplicates).unwrap();
    let image = case.living[0].1.clone();
    case.backup(b"one", "own", &image);
    case.backup(b"one", "web1", &kit::changed(&image, 3));
    let host = case.open(b"one");
    let found = kit::latest(&host, "own").unwrap();
    assert!(found.snapshot.levels().get(Level::Shared) > 0);
    let names = |repository: &Repository| {
        repository.series().unwrap().into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(&host), ["own", "web1"]);
    assert_eq!(names(&all), ["copy", "db-1", "own", "web1"]);
    let report = host.check(&siltstone::CheckOptions::default()).unwrap();
    assert!(report.damage.is_empty() && report.series == 2 && report.unreferenced == 0);
    // Neither with the program nor without it.
    assert_eq!(kit::latest(&host, "db-1").unwrap_err().kind(), ErrorKind::NotFound);
    let forger = Forger::steal(&case.storage, b"one");
    let db = all.series_id("db-1");
    for name in forger::all_names(&case.storage, "") {
        let bytes = forger::read(&case.storage, &name).unwrap();
        let is_foreign = names::series_of(&name) == Some(db);
        let opened = forger.open(&bytes).is_some();
        assert!(!(is_foreign && opened), "{name}");
        let is_own_head =
            name.contains(&all.series_id("own").to_string()) && name.contains("heads");
        assert!(!is_own_head || opened, "{name}");
    }
    assert_ne!(forger.host.keys.series_id(0, "db-1"), db, "nor does it find out what is called so");
    case.assert_whole();
}

#[test]
fn a_series_that_shares_nothing_is_of_no_use_to_others() {
    let mut case = Case::new();
    let all = case.open(b"all");
    let label = KeyLabel::default();
    let access = KeyAccess { is_alone: true, ..KeyAccess::write_only(&["pin", "copy"]) };
    all.add_key(b"alone", COST, &label, &access).unwrap();
    for bad in [
        KeyAccess { is_alone: true, ..KeyAccess::write_only(&["p*"]) },
        KeyAccess { is_alone: true, ..KeyAccess::full() },
    ] {
        let error = all.add_key(b"x", COST, &label, &bad).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
    let image = case.living[0].1.clone();
    // What others have is stored again, and so is what the two have in common; in the series itself
    // nothing is.
    for (password, series) in [(&b"alone"[..], "pin"), (b"alone", "copy")] {
        case.backup(password, series, &image);
        case.backup(password, series, &kit::changed(&image, 3));
        let found = kit::latest(&case.open(b"all"), series).unwrap();
        let levels = found.snapshot.levels();
        assert!(levels.get(Level::New) < levels.total() / 2, "{levels:?}");
    }
    let options = BackupOptions { no_share: true, ..kit::options() };
    let refused = all.backup("web1", options.clone()).and_then(|mut session| {
        session.add_volume("disk", &kit::MemorySource::new(&image), None).map(drop)
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
    let mut session = all.backup("own", options).unwrap();
    session.add_volume("disk", &kit::MemorySource::new(&image), None).unwrap();
    case.living.push((session.finish().unwrap().snapshot.id, image.clone()));
    kit::backup(&all, "web2", &image).unwrap();
    // One that was begun as such stays so, whoever goes on with it.
    let again = case.open(b"all");
    let mut session = again.backup("begun", BackupOptions { no_share: true, ..kit::options() });
    drop(session.as_mut().map(|session| {
        session.add_volume("disk", &kit::MemorySource::new(&image), None).map(drop)
    }));
    drop(session);
    case.backup(b"all", "begun", &image);
    let begun = all.head(all.series_id("begun")).unwrap().unwrap();
    assert_eq!(begun.domain, silt_format::ALONE);
    // Nothing of them is asked for by popularity, linked, or swept.
    let report = shared::build(&all, SharePolicy::Duplicates).unwrap();
    assert!(report.chosen_chunks > 0);
    let of_domain: u64 = 60;
    assert!(report.chosen_chunks <= of_domain, "{report:?}");
    for series in ["pin", "copy", "own", "web1", "web2"] {
        let linked = all.repoint(series, &shared::spool()).unwrap().linked_chunks;
        assert_eq!(linked > 0, series.starts_with("web"), "{series}");
        all.reclaim(series, &kit::THOROUGH).unwrap();
    }
    shared::sweep(&all).unwrap();
    case.assert_whole();
    for series in ["pin", "own"] {
        let head = all.head(all.series_id(series)).unwrap().unwrap();
        assert_eq!((head.domain, head.stores.len()), (silt_format::ALONE, 1));
    }
    // With its keys nothing of others is found, and with theirs nothing of it.
    let host = case.open(b"alone");
    assert_eq!(host.series().unwrap().len(), 2);
    let thief = Forger::steal(&case.storage, b"web").host.keys;
    let (pin, alone) = (all.series_id("pin"), silt_format::ALONE);
    let own = Forger::steal(&case.storage, b"alone").host.keys;
    assert_ne!(own.fingerprint_key(alone, pin), thief.fingerprint_key(0, pin));
    assert_ne!(own.fingerprint_key(0, pin), thief.fingerprint_key(0, pin));
    case.backup(b"alone", "pin", &image);
    case.assert_whole();
}

/// Whoever can seal metadata and replace objects does not make an append-only repository one in
/// which all may remove.
#[test]
fn a_configuration_does_not_say_who_may_remove() {
    let (world, storage) = (World::new(5), Arc::new(MemoryStorage::new()));
    let (label, cost) = (KeyLabel::default(), COST);
    let protection = Protection::Password { password: b"all".to_vec(), cost, label: label.clone() };
    let password = b"admin".to_vec();
    let admin = siltstone::Administrator { password, cost, label: label.clone() };
    let (objects, context) = (storage.clone(), world.context());
    Repository::init(objects, context, kit::config(), &protection, Some(&admin)).unwrap();
    let open = |storage: &Arc<MemoryStorage>| {
        Repository::open(storage.clone(), world.context(), || Ok(b"all".to_vec()))
    };
    assert!(open(&storage).unwrap().is_append_only());
    let forger = Forger::steal(&storage, b"all");
    let mut config = open(&storage).unwrap().config.clone();
    config.append_only = false;
    let mut object = forger.header.encode().to_vec();
    let at = object.len();
    object.extend_from_slice(&config.encode());
    forger.host.keys.sealer(&forger.header).seal(0, &mut object, at);
    for name in [names::CONFIG, names::CONFIG_COPY] {
        forger::replace(&storage, name, &object);
    }
    let refused = open(&storage).map(drop).unwrap_err();
    assert!(refused.kind() == ErrorKind::Corrupt && refused.to_string().contains("append-only"));
}

/// Who slept while a place was added would remove a key where nobody looks any more.
#[test]
fn a_key_is_not_removed_in_the_old_places_alone() {
    let case = Case::new();
    let there = Arc::new(MemoryStorage::new());
    let open = |location: &str| -> silt_format::Result<Arc<dyn Storage>> {
        Ok(if location == "here" { case.storage.clone() } else { there.clone() })
    };
    let all = || {
        let storage = case.storage.clone();
        let opened = Repository::open(storage, case.world.context(), || Ok(b"all".to_vec()));
        opened.unwrap().with_places("here", &open).unwrap()
    };
    let asleep = all();
    all().add_place("here", "there", &open).unwrap();
    let id = Forger::steal(&case.storage, b"web").id.to_string();
    assert_eq!(asleep.remove_key(&id).unwrap_err().kind(), ErrorKind::Busy);
    let error = asleep.add_key(b"x", COST, &KeyLabel::default(), &KeyAccess::full()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
}
