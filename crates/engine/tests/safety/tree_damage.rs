//! File trees: interrupted backups, and damage of every object.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use silt_format::tree::{Entry, EntryKind};
use silt_format::{ErrorKind, Id};
use silt_storage::{ByteRange, Key, MemoryStorage, Storage, list_all};
use silt_tree::MakeOptions;
use siltstone::{
    BackupReport, CheckOptions, CheckReport, DataCheck, Found, Repository, Selector, TreeOptions,
    TreeRestoreOptions, TreeVolume,
};

use crate::kit::{self, Random, World};
use crate::tree_kit::Scratch;

pub const ALL: CheckOptions =
    CheckOptions { series: Vec::new(), data: DataCheck::All, restart: true, jobs: 2 };

/// Files by their paths with a `/` in front; directories have no content and end in `/`.
pub type Files = BTreeMap<Vec<u8>, Vec<u8>>;

/// What is in a folder.
pub fn on_disk(root: &Path) -> Files {
    fn add(folder: &Path, path: &[u8], files: &mut Files) {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name();
            let mut path = [path, name.as_encoded_bytes()].concat();
            if entry.file_type().unwrap().is_dir() {
                path.push(b'/');
                add(&entry.path(), &path, files);
                files.insert(path, Vec::new());
            } else {
                files.insert(path, fs::read(entry.path()).unwrap());
            }
        }
    }
    let mut files = Files::new();
    if root.exists() {
        add(root, b"/", &mut files);
    }
    files
}

/// What is in a tree of a snapshot.
pub fn stored(repository: &Repository, found: &Found) -> Files {
    fn add(volume: &TreeVolume, directory: &Entry, path: &[u8], files: &mut Files) {
        let mut entries = volume.entries(directory);
        while let Some(entry) = volume.next(&mut entries).unwrap() {
            let mut path = [path, &entry.name].concat();
            let mut content = vec![0; usize::try_from(entry.metadata.size).unwrap()];
            if entry.metadata.kind == EntryKind::Directory {
                path.push(b'/');
                add(volume, &entry, &path, files);
            } else {
                assert_eq!(volume.read_at(&entry, 0, &mut content).unwrap(), content.len());
            }
            files.insert(path, content);
        }
    }
    let volume = TreeVolume::open(repository, found.volume("files").unwrap(), 0).unwrap();
    let mut files = Files::new();
    add(&volume, &volume.tree().root, b"/", &mut files);
    files
}

/// Three folders with small files, and a large one.
pub fn first_day(root: &Path) {
    let mut random = Random(1);
    for folder in ["a", "b/c", "d"] {
        fs::create_dir_all(root.join(folder)).unwrap();
        for number in 0..4 {
            let mut bytes = vec![0; 3000 + random.below(30_000)];
            random.fill(&mut bytes);
            fs::write(root.join(folder).join(format!("file{number}")), bytes).unwrap();
        }
    }
    let mut large = vec![0; 1_400_000];
    random.fill(&mut large);
    fs::write(root.join("d/large"), large).unwrap();
    fs::write(root.join("empty"), b"").unwrap();
}

/// Some files change, one goes, one comes, one is renamed.
pub fn second_day(root: &Path) {
    let mut bytes = vec![0; 40_000];
    Random(2).fill(&mut bytes);
    fs::write(root.join("a/file1"), &bytes).unwrap();
    fs::write(root.join("b/new"), &bytes[5000..]).unwrap();
    fs::remove_file(root.join("b/c/file2")).unwrap();
    #[expect(clippy::disallowed_methods, reason = "the user renames a file")]
    fs::rename(root.join("a/file3"), root.join("d/renamed")).unwrap();
}

/// By how many seconds a clock is to go on so that the times of files prove what did not change.
pub fn ahead_s(scratch: &Scratch) -> i64 {
    use std::os::unix::fs::MetadataExt;
    let probe = scratch.path("probe");
    fs::write(&probe, b"").unwrap();
    fs::metadata(probe).unwrap().ctime() - 1_790_000_000 + 3600
}

pub fn backup(repository: &Repository, root: &Path) -> silt_format::Result<BackupReport> {
    let mut session = repository.backup("home", kit::options())?;
    session.add_tree("files", root, &TreeOptions::default())?;
    session.finish()
}

pub fn find(repository: &Repository, id: Id) -> Found {
    kit::find(repository, &Selector::Id(id.to_string())).unwrap()
}

#[test]
fn a_backup_of_a_tree_may_stop_anywhere() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let later_s = ahead_s(&scratch);
    for has_parent in [false, true] {
        first_day(&root);
        let world = World::new(1);
        world.pass_seconds(later_s);
        let storage = Arc::new(MemoryStorage::new());
        let repository = kit::init(storage.clone(), &world).unwrap();
        let mut committed = Vec::new();
        if has_parent {
            backup(&repository, &root).unwrap();
            committed.push(on_disk(&root));
            second_day(&root);
        }
        let next = on_disk(&root);
        let action = |repository: &Repository| backup(repository, &root).map(drop);
        let crashes = kit::each_crash(&storage, later_s + 86_400, &action, &mut |repository| {
            let heads = repository.heads(&[]).unwrap();
            let snapshots = heads.first().map_or(&[][..], |head| &head.snapshots);
            assert!(snapshots.len() >= committed.len(), "a committed snapshot is gone");
            for (number, entry) in snapshots.iter().enumerate() {
                let expected = committed.get(number).unwrap_or(&next);
                assert!(stored(repository, &find(repository, entry.id)) == *expected, "{number}");
            }
            assert!(repository.check(&ALL).unwrap().damage.is_empty());
            let report = backup(repository, &root).unwrap();
            assert!(stored(repository, &find(repository, report.snapshot.id)) == next);
            assert!(repository.check(&ALL).unwrap().damage.is_empty());
        });
        assert!(crashes > 10, "{crashes}");
        fs::remove_dir_all(&root).unwrap();
        fs::create_dir(&root).unwrap();
    }
}

/// Two days of a tree.
struct Case {
    root: std::path::PathBuf,
    later_s: i64,
    storage: MemoryStorage,
    days: Vec<(Id, Files)>,
}

impl Case {
    fn new(scratch: &Scratch) -> Self {
        let root = scratch.folder("source");
        let world = World::new(1);
        let later_s = ahead_s(scratch);
        world.pass_seconds(later_s);
        let storage = Arc::new(MemoryStorage::new());
        let repository = kit::init(storage.clone(), &world).unwrap();
        let days = [first_day, second_day].map(|change| {
            change(&root);
            world.pass_seconds(86_400);
            (backup(&repository, &root).unwrap().snapshot.id, on_disk(&root))
        });
        let later_s = later_s + 3 * 86_400;
        Self { root, later_s, storage: storage.snapshot(), days: days.to_vec() }
    }

    fn objects(&self) -> Vec<(Key, u64)> {
        list_all(&self.storage as &dyn Storage, "", None).map(|item| item.unwrap()).collect()
    }

    /// Each of these changes one object.
    fn hurts(&self, name: &Key, bytes: u64) -> Vec<(String, MemoryStorage)> {
        let mut hurt = Vec::new();
        let mut add = |what: String, change: &dyn Fn(&mut Vec<u8>)| {
            let storage = self.storage.snapshot();
            storage.damage(name, change).unwrap();
            hurt.push((what, storage));
        };
        for at in [100, bytes / 3, bytes / 2, bytes - 40] {
            let at = usize::try_from(at.min(bytes - 1)).unwrap();
            add(format!("bit flipped at {at}"), &move |object| object[at] ^= 4);
        }
        let half = usize::try_from(bytes / 2).unwrap();
        add(format!("cut to {half}"), &move |object| object.truncate(half));
        let folder = |name: &Key| name.as_str().rsplit_once('/').map(|(at, _)| at.to_owned());
        let other = self.objects().into_iter().map(|(other, _)| other);
        if let Some(other) = other.into_iter().find(|it| it != name && folder(it) == folder(name)) {
            let mut theirs = Vec::new();
            self.storage.get(&other, ByteRange::Full, &mut theirs).unwrap();
            add(format!("replaced by {other}"), &move |object| object.clone_from(&theirs));
        }
        let storage = self.storage.snapshot();
        storage.delete(std::slice::from_ref(name)).unwrap();
        hurt.push(("removed".to_owned(), storage));
        hurt
    }
}

/// Paths of a snapshot that a check names.
fn hit(report: &CheckReport, id: Id) -> BTreeSet<Vec<u8>> {
    let affected = report.damage.iter().flat_map(|damage| &damage.affected);
    let affected: Vec<_> = affected.filter(|affected| affected.snapshot == Some(id)).collect();
    for one in &affected {
        assert_eq!(one.path_count, one.paths.len() as u64, "few enough to be listed");
        assert!(one.path_count > 0 || one.volume.is_none(), "{one:?}");
    }
    affected.into_iter().flat_map(|affected| affected.paths.iter().cloned()).collect()
}

/// Whether a path is named, or is in a directory that is.
fn is_hit(hit: &BTreeSet<Vec<u8>>, path: &[u8]) -> bool {
    hit.iter().any(|hit| path == hit.as_slice() || hit.ends_with(b"/") && path.starts_with(hit))
}

#[test]
fn damage_is_named_by_path_and_everything_else_is_restored() {
    let scratch = Scratch::new();
    let case = Case::new(&scratch);
    let (mut files_hit, mut directories_hit) = (0, 0);
    for (name, bytes) in case.objects() {
        let is_data = ["containers/", "recipes/"].iter().any(|it| name.as_str().starts_with(it));
        for (what, storage) in case.hurts(&name, bytes) {
            let label = format!("{name} {what}");
            let world = World::new(2);
            let Ok(repository) = kit::open(Arc::new(storage), &world) else {
                assert!(!is_data, "{label}");
                continue;
            };
            let report = repository.check(&ALL).unwrap();
            if !is_data {
                continue;
            }
            let is_named = |object: &str| object == name.as_str() || object.contains("..");
            assert!(report.damage.iter().any(|damage| is_named(&damage.object)), "{label}");
            for (id, files) in &case.days {
                let hit = hit(&report, *id);
                let target = scratch.path("restored");
                let found = find(&repository, *id);
                let options = TreeRestoreOptions { jobs: 1, ..TreeRestoreOptions::default() };
                let volume = found.volume("files").unwrap();
                let done = repository.restore_tree(volume, b"/", &target, &options).unwrap();
                let restored = on_disk(&target);
                for failure in &done.made.failures {
                    let path = [b"/", failure.path.as_slice()].concat();
                    let kind = failure.error.kind();
                    assert!(hit.contains(&path), "{label}: {} {kind:?}", path.escape_ascii());
                    files_hit += u32::from(!path.ends_with(b"/"));
                    directories_hit += u32::from(path.ends_with(b"/"));
                }
                assert_eq!(hit.is_empty(), done.made.failed == 0, "{label}: {hit:?}");
                for (path, content) in files {
                    let restored = restored.get(path);
                    let is_right = restored.map_or_else(|| is_hit(&hit, path), |it| it == content);
                    assert!(is_right, "{label}: {}", path.escape_ascii());
                }
                assert!(restored.len() <= files.len(), "{label}");
                let _ = fs::remove_dir_all(&target);
            }
            // The next backup reads again what was lost.
            world.pass_seconds(case.later_s);
            let report = backup(&repository, &case.root).unwrap();
            let healed = stored(&repository, &find(&repository, report.snapshot.id));
            assert!(healed == case.days[1].1, "{label}");
        }
    }
    assert!(files_hit > 50 && directories_hit > 5, "{files_hit} {directories_hit}");
}

#[test]
fn a_restore_that_cannot_read_a_directory_removes_nothing_from_it() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    fs::create_dir(root.join("kept")).unwrap();
    fs::write(root.join("kept/file"), b"content").unwrap();
    let world = World::new(1);
    world.pass_seconds(ahead_s(&scratch));
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &world).unwrap();
    backup(&repository, &root).unwrap();
    fs::write(root.join("kept/newer"), b"not in the snapshot").unwrap();
    let found = kit::latest(&repository, "home").unwrap();
    let volume = found.volume("files").unwrap();
    let make = MakeOptions { existing: silt_tree::Existing::Replace, ..MakeOptions::default() };
    let options = TreeRestoreOptions { delete: true, make, jobs: 1, ..Default::default() };
    // The packs are gone after the snapshot was found.
    let names: Vec<_> = list_all(&*storage as &dyn Storage, "recipes/", None).collect();
    for name in names {
        storage.delete(&[name.unwrap().0]).unwrap();
    }
    let fresh = kit::open(storage, &world).unwrap();
    match fresh.restore_tree(volume, b"/", &root, &options) {
        Ok(report) => assert_eq!(report.made.failed, 1, "{:?}", report.made.failures),
        Err(error) => assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt)),
    }
    assert_eq!(fs::read(root.join("kept/file")).unwrap(), b"content");
    assert_eq!(fs::read(root.join("kept/newer")).unwrap(), b"not in the snapshot");
}
