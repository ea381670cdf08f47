//! File trees of hosts whose keys may not do everything: hosts that only write, append-only
//! repositories, and pages that whoever has stolen a key has made up and committed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::names::{self, Numbered};
use silt_format::tree::{Entry, EntryKind, Extent, FileChunking, FileKind, Subtree, TreePage};
use silt_format::{
    BlockKind, BlockReader, BlockRef, Chunking, DIRECTORY_POSITION, ErrorKind, FOOTER_BYTES,
    Footer, Hashed, Head, Header, Id, KdfCost, KeyLabel, Level, MapRoot, ObjectKind, ObjectTag,
    SEGMENT_BYTES, Snapshot, SnapshotEntry, VolumeKind, decode_blocks,
};
use silt_repository::map::MapReader;
use silt_repository::packs::PackWriter;
use silt_storage::{Key, MemoryStorage, PutMode, Storage};
use silt_tree::{Existing, MakeOptions};
use siltstone::{
    Administrator, Advice, ArchiveFormat, BackupReport, DeleteMethod, KeyAccess, Protection,
    Repository, TreeRestoreOptions, TreeVolume,
};

use crate::forger::{self, Forger};
use crate::kit::{self, World};
use crate::tree_damage::{
    ALL, Files, ahead_s, backup, find, first_day, on_disk, second_day, stored,
};
use crate::tree_kit::Scratch;

const COST: KdfCost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
const SECRET: &[u8] = b"what nobody else may know";

/// Changes the entries of a root and the map of a volume.
type Forgery<'f> = &'f dyn Fn(&mut Vec<Entry>, &mut MapRoot);

/// A tree, and a repository with several keys.
struct Case {
    scratch: Scratch,
    root: PathBuf,
    world: Arc<World>,
    storage: Arc<MemoryStorage>,
    days: Vec<(Id, Files)>,
}

impl Case {
    fn new(is_append_only: bool) -> Self {
        let (scratch, world) = (Scratch::new(), World::new(5));
        let (storage, root) = (Arc::new(MemoryStorage::new()), scratch.folder("source"));
        world.pass_seconds(ahead_s(&scratch));
        let (label, password) = (KeyLabel::default(), b"all".to_vec());
        let protection = Protection::Password { password, cost: COST, label: label.clone() };
        let signs = Administrator { password: b"admin".to_vec(), cost: COST, label: label.clone() };
        let signs = is_append_only.then_some(signs);
        let (context, config) = (world.context(), kit::config());
        Repository::init(storage.clone(), context, config, &protection, signs.as_ref()).unwrap();
        let case = Self { scratch, root, world, storage, days: Vec::new() };
        let mut all = case.open(b"all");
        if is_append_only {
            all.authorize(b"admin").unwrap();
        }
        for (password, access) in [
            (&b"web"[..], KeyAccess::write_only(&["home"])),
            (b"again", KeyAccess::write_only(&["home"])),
            (b"full", KeyAccess::full()),
        ] {
            all.add_key(password, COST, &label, &access).unwrap();
        }
        first_day(&case.root);
        fs::write(case.root.join("one"), [1; 9000]).unwrap();
        fs::write(case.root.join("two"), [2; 9000]).unwrap();
        fs::write(case.root.join("secret"), SECRET).unwrap();
        case
    }

    fn open(&self, password: &[u8]) -> Repository {
        self.world.pass_seconds(600);
        let password = password.to_vec();
        Repository::open(self.storage.clone(), self.world.context(), move || Ok(password)).unwrap()
    }

    fn administrator(&self) -> Repository {
        let mut administrator = self.open(b"all");
        administrator.authorize(b"admin").unwrap();
        administrator
    }

    fn backup(&mut self, password: &[u8]) -> BackupReport {
        self.world.pass_seconds(86_400);
        let report = backup(&self.open(password), &self.root).unwrap();
        self.days.push((report.snapshot.id, on_disk(&self.root)));
        report
    }

    fn assert_whole(&self) {
        let all = self.open(b"all");
        for (id, files) in &self.days {
            assert!(stored(&all, &find(&all, *id)) == *files, "{id}");
        }
    }

    fn put(&self, name: &str, object: &[u8]) {
        self.storage.put(&Key::new(name).unwrap(), &[object], PutMode::Create).unwrap();
    }

    fn head(&self) -> Head {
        let all = self.open(b"all");
        all.head(all.series_id("home")).unwrap().unwrap()
    }

    /// Puts a head behind the newest.
    fn put_head(&self, forger: &Forger, mut head: Head) {
        head.generation += 1;
        let header = forger.address(ObjectKind::Head, head.series, head.generation);
        let object = forger.object(&header, &head.encode(), forger.id);
        self.put(&Numbered::Head.name(head.series, head.generation), &object);
    }

    /// Commits a snapshot with the keys of a host, whose volume is what `change` makes of that of
    /// the newest one.
    fn forge(&self, password: &[u8], change: Forgery<'_>) -> Id {
        let (thief, forger) = (self.open(password), Forger::steal(&self.storage, password));
        let found = kit::latest(&thief, "home").unwrap();
        let volume = TreeVolume::open(&thief, found.volume("files").unwrap(), 0).unwrap();
        let (mut entries, mut root) = (Vec::new(), volume.tree().root.clone());
        let mut cursor = volume.entries(&root);
        while let Some(entry) = volume.next(&mut cursor).unwrap() {
            entries.push(entry);
        }
        let (mut head, mut snapshot): (Head, Snapshot) = (found.head, found.snapshot);
        change(&mut entries, &mut snapshot.volumes[0].root);
        let reader = Arc::new(MapReader::new(&thief.objects, &head));
        let (next, tag) = (head.next_pack, ObjectTag::first(7));
        let mut packs = PackWriter::new(&thief.objects, head.series, &reader, next, tag).unwrap();
        let page = packs.append(BlockKind::TreePage, &TreePage::Leaf(entries).encode()).unwrap();
        root.subtree = root.subtree.map(|below| Subtree { level: 0, page, ..below });
        let VolumeKind::Tree(tree) = &mut snapshot.volumes[0].kind else { panic!("a tree") };
        tree.root = root;
        for (number, tag) in packs.finish().unwrap().into_numbers() {
            head.packs.push(number, tag);
            head.next_pack = number + 1;
        }
        (snapshot.id, snapshot.time_ns) = (Id(4242), snapshot.time_ns + 1);
        let (id, time_ns, plain) = (snapshot.id, snapshot.time_ns, snapshot.encode());
        let address = forger.address(ObjectKind::Snapshot, head.series, id.0);
        let object = forger.object(&address, &plain, forger.id);
        self.put(&names::snapshot(head.series, id), &object);
        let hash = forger.host.keys.content_hash(Hashed::Snapshot, &plain);
        head.snapshots.push(SnapshotEntry { id, time_ns, flags: 0, hash, labels: Vec::new() });
        self.put_head(&forger, head);
        id
    }
}

#[test]
fn a_host_that_only_writes_reads_only_what_changed() {
    let mut case = Case::new(false);
    case.backup(b"web");
    let same = case.backup(b"web");
    assert_eq!(same.snapshot.levels().total(), 0, "nothing is read");
    assert_eq!(same.snapshot.volumes[0].stored_bytes, 0);
    second_day(&case.root);
    let changed = case.backup(b"web").snapshot;
    assert!(changed.levels().total() < 200_000, "{:?}", changed.levels());
    // Files that only seem to have changed are found by their fingerprints, which it may read.
    fs::set_permissions(case.root.join("d/large"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(case.root.join("one"), fs::Permissions::from_mode(0o600)).unwrap();
    let touched = case.backup(b"web").snapshot;
    assert_eq!((touched.levels().total(), touched.volumes[0].root), (0, changed.volumes[0].root));
    case.assert_whole();
    assert!(case.open(b"all").check(&ALL).unwrap().damage.is_empty());
    // Others go on where it was, and it goes on behind them.
    for password in [&b"all"[..], b"web"] {
        fs::write(case.root.join("one"), password).unwrap();
        case.backup(password);
    }
    let (gone, _) = case.days.remove(1);
    let all = case.open(b"all");
    all.delete("home", &[gone], DeleteMethod::Exact).unwrap();
    all.reclaim("home", &kit::THOROUGH).unwrap();
    case.backup(b"web");
    case.assert_whole();
}

/// All blocks of all recipe packs that a key opens.
fn blocks(forger: &Forger, storage: &MemoryStorage) -> Vec<(BlockKind, Vec<u8>)> {
    let (mut blocks, none) = (Vec::new(), forger.host.keys.content_hash(Hashed::Snapshot, b""));
    for name in forger::all_names(storage, "recipes/") {
        let pack = forger::read(storage, &name).unwrap();
        let sealer = forger.host.keys.sealer(&Header::decode(&pack).unwrap());
        let footer = Footer::decode(&pack[pack.len() - FOOTER_BYTES..]).unwrap();
        let from = usize::try_from(footer.directory_offset).unwrap();
        let end = pack.len() - footer.end_bytes();
        let (mut sealed, mut raw) = (pack[from..end].to_vec(), Vec::new());
        BlockReader::default().read(&sealer, DIRECTORY_POSITION, &mut sealed, &mut raw).unwrap();
        for entry in decode_blocks(&raw).unwrap() {
            let (offset, length, hash) = (entry.offset, entry.sealed_bytes, none);
            let block = BlockRef { pack: 0, offset, length, hash };
            blocks.push((entry.kind, forger.block(&pack, block)));
        }
    }
    blocks
}

#[test]
fn a_host_that_only_writes_reads_names_and_no_content() {
    let mut case = Case::new(false);
    case.backup(b"all");
    fs::write(case.root.join("two"), SECRET).unwrap();
    case.backup(b"web");
    let host = case.open(b"web");
    let found = kit::latest(&host, "home").unwrap();
    let volume = TreeVolume::open(&host, found.volume("files").unwrap(), 0).unwrap();
    for path in [&b"secret"[..], b"two", b"d/large"] {
        let file = volume.find(path).unwrap();
        let mut bytes = [0; 10];
        let error = volume.read_at(&file, 0, &mut bytes).unwrap_err();
        assert_eq!((error.kind(), bytes), (ErrorKind::Denied, [0; 10]), "{error}");
    }
    let (target, options) = (case.scratch.path("restored"), TreeRestoreOptions::default());
    let of = || found.volume("files").unwrap();
    match host.restore_tree(of(), b"/", &target, &options) {
        Err(error) => assert_eq!(error.kind(), ErrorKind::Denied),
        Ok(report) => assert!(report.made.failed > 0, "{report:?}"),
    }
    let restored = on_disk(&target);
    assert!(restored.values().all(Vec::is_empty), "{:?}", restored.keys());
    let mut archive = Vec::new();
    let _ = host.dump_tree(of(), b"/", ArchiveFormat::Tar, 0, &mut archive);
    assert!(!archive.windows(SECRET.len()).any(|part| part == SECRET));
    for refused in [
        host.delete("home", &[found.snapshot.id], DeleteMethod::Exact).map(drop),
        host.reclaim("home", &kit::THOROUGH).map(drop),
        host.set_file_chunking("home", Some(fixed())),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied);
    }
    // Nor without the program: what its keys open are names.
    let forger = Forger::steal(&case.storage, b"web");
    let blocks = blocks(&forger, &case.storage);
    let pages: Vec<_> = blocks.iter().filter(|(kind, _)| *kind == BlockKind::TreePage).collect();
    let has = |block: &[u8], text: &[u8]| block.windows(text.len()).any(|part| part == text);
    assert!(pages.iter().any(|(_, page)| has(page, b"secret")));
    assert!(!blocks.iter().any(|(_, block)| has(block, SECRET)));
    case.assert_whole();
}

fn fixed() -> FileChunking {
    let mut chunking = FileChunking::default();
    for kind in FileKind::ALL {
        chunking.set(kind, Chunking::Fixed { bytes: 4096 }).unwrap();
    }
    chunking
}

/// Entries of two files that refer to each other's content; all else is as it was.
fn swap(entries: &mut [Entry]) {
    let place = |name: &[u8]| entries.iter().position(|entry| entry.name == name).unwrap();
    let (one, two) = (place(b"one"), place(b"two"));
    let extents = std::mem::take(&mut entries[one].extents);
    entries[one].extents = std::mem::replace(&mut entries[two].extents, extents);
}

#[test]
fn no_backup_takes_over_entries_that_another_host_made_up() {
    for password in [&b"again"[..], b"all", b"full"] {
        let mut case = Case::new(false);
        case.backup(b"again");
        let forged = case.forge(b"web", &|entries, _| swap(entries));
        let report = case.backup(password);
        assert!(report.snapshot.levels().total() > 1_000_000, "all of it is read");
        assert_eq!(report.snapshot.levels().get(Level::New), 0, "and none of it stored again");
        case.assert_whole();
        let all = case.open(b"all");
        let found = find(&all, forged);
        let thief = Forger::steal(&case.storage, b"web").id;
        assert_eq!(found.key, Some(thief), "it is known whose it is");
        all.delete("home", &[forged], DeleteMethod::Exact).unwrap();
        all.reclaim("home", &kit::THOROUGH).unwrap();
        assert!(all.check(&ALL).unwrap().damage.is_empty());
        case.assert_whole();
    }
}

#[test]
fn pages_that_a_stolen_key_commits_are_named_and_leave_all_else_alone() {
    let named = |like: &Entry, name: &[u8]| Entry { name: name.to_vec(), ..like.clone() };
    let far = (1 << 30) * SEGMENT_BYTES as u64;
    let climbs = |entries: &mut Vec<Entry>, _: &mut MapRoot| {
        let like = entries[entries.len() - 1].clone();
        entries.insert(0, named(&like, b".."));
        entries.insert(1, named(&like, b"/etc/passwd"));
    };
    let elsewhere = |entries: &mut Vec<Entry>, _: &mut MapRoot| {
        for entry in entries.iter_mut().filter(|entry| entry.metadata.kind == EntryKind::File) {
            let bytes = entry.metadata.size;
            entry.extents = vec![Extent { address: Some(far), bytes }];
        }
    };
    let empties = |_: &mut Vec<Entry>, map: &mut MapRoot| map.page = None;
    let changes: [Forgery<'_>; 3] = [&climbs, &elsewhere, &empties];
    for (number, change) in changes.into_iter().enumerate() {
        let mut case = Case::new(false);
        case.backup(b"again");
        let forged = case.forge(b"web", change);
        let all = case.open(b"all");
        let damage = all.check(&ALL).unwrap().damage;
        assert!(!damage.is_empty(), "{number}");
        let mut hit = damage.iter().flat_map(|damage| &damage.affected);
        assert!(hit.all(|hit| hit.snapshot == Some(forged)), "{number}: {damage:?}");
        let outside = case.scratch.folder("outside");
        fs::write(outside.join("precious"), b"mine").unwrap();
        let make = MakeOptions { existing: Existing::Replace, ..MakeOptions::default() };
        let options = TreeRestoreOptions { make, jobs: 1, ..TreeRestoreOptions::default() };
        let found = find(&all, forged);
        let volume = found.volume("files").unwrap();
        if let Ok(report) = all.restore_tree(volume, b"/", &outside.join("target"), &options) {
            assert!(report.made.failed > 0, "{number}: {report:?}");
        }
        for (path, content) in on_disk(&outside.join("target")) {
            let honest = &case.days[0].1[&path];
            assert!(content == *honest, "{number}: {}", path.escape_ascii());
        }
        let left = on_disk(&outside);
        let beside = left.keys().filter(|path| !path.starts_with(b"/target/"));
        assert_eq!(beside.collect::<Vec<_>>(), [&b"/precious"[..]], "{number}");
        // Others back up, and it goes.
        for password in [&b"again"[..], b"all"] {
            case.backup(password);
        }
        case.assert_whole();
        all.delete("home", &[forged], DeleteMethod::Exact).unwrap();
        all.reclaim("home", &kit::THOROUGH).unwrap();
        case.assert_whole();
        assert!(all.check(&ALL).unwrap().damage.is_empty(), "{number}");
    }
}

#[test]
fn in_an_append_only_repository_trees_are_added_and_hosts_do_not_believe_each_other() {
    let mut case = Case::new(true);
    case.backup(b"full");
    assert_eq!(case.backup(b"full").snapshot.levels().total(), 0, "its own files are not read");
    let other = case.backup(b"all").snapshot;
    assert!(other.levels().total() > 1_000_000, "those of another host are");
    assert_eq!(other.levels().get(Level::New), 0, "and not stored");
    second_day(&case.root);
    case.backup(b"full");
    let host = case.open(b"full");
    let ids: Vec<_> = case.days.iter().map(|(id, _)| *id).collect();
    for refused in [
        host.delete("home", &ids[..1], DeleteMethod::Exact).map(drop),
        host.reclaim("home", &kit::THOROUGH).map(drop),
        host.set_file_chunking("home", Some(fixed())),
        host.protect("home", ids[0]),
    ] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Denied);
    }
    case.assert_whole();
    case.administrator().delete("home", &ids[..1], DeleteMethod::Approximate).unwrap();
    case.days.remove(0);
    case.administrator().undelete("home", ids[0]).unwrap();
    case.administrator().delete("home", &ids[..2], DeleteMethod::Approximate).unwrap();
    case.days.remove(0);
    case.administrator().reclaim("home", &kit::THOROUGH).unwrap();
    case.assert_whole();
    assert!(case.open(b"all").check(&ALL).unwrap().damage.is_empty());
}

#[test]
fn heads_that_a_host_makes_up_cost_no_tree() {
    let changes: [fn(&mut Head); 4] = [
        |head| head.snapshots.clear(),
        |head| drop(head.snapshots.remove(0)),
        |head| head.file_chunking = Some(fixed()),
        |head| head.packs = silt_format::ObjectSet::default(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        for password in [&b"full"[..], b"web"] {
            let mut case = Case::new(true);
            case.backup(b"all");
            second_day(&case.root);
            case.backup(b"all");
            let mut head = case.head();
            change(&mut head);
            case.put_head(&Forger::steal(&case.storage, password), head);
            let what = format!("{number} {}", password.escape_ascii());
            let error = case.administrator().reclaim("home", &kit::THOROUGH).unwrap_err();
            let is_advised = matches!(error.advice(), Some(Advice::RecoverSeries { .. }));
            assert!(is_advised && error.kind() == ErrorKind::Denied, "{what}: {error}");
            assert!(case.administrator().recover("home").unwrap(), "{what}");
            case.administrator().reclaim("home", &kit::THOROUGH).unwrap();
            case.assert_whole();
            let all = case.open(b"all");
            assert_eq!(all.file_chunking("home").unwrap(), FileChunking::default(), "{what}");
            case.backup(b"all");
            case.assert_whole();
            assert!(case.open(b"all").check(&ALL).unwrap().damage.is_empty(), "{what}");
        }
    }
}
