//! File trees of several series that have files in common, beside disks that hold the same bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use silt_format::{ErrorKind, Level};
use silt_storage::{MemoryStorage, list_all};
use siltstone::{
    BackupReport, DeleteMethod, Repository, RoundMember, RoundOptions, RoundVolume, SharePolicy,
    TreeOptions,
};

use crate::kit::{self, MemorySource, Random, World};
use crate::shared::{build, check, spool, sweep};
use crate::tree_damage::{Files, ahead_s, on_disk, stored};
use crate::tree_kit::Scratch;

/// Two machines with the same programs and some files of their own.
struct Machines {
    scratch: Scratch,
    world: Arc<World>,
    storage: Arc<MemoryStorage>,
    repository: Repository,
    roots: BTreeMap<&'static str, PathBuf>,
}

const OWN_BYTES: usize = 60_000;

/// Many small files and a large one, the same on every machine.
fn install(root: &Path) {
    let mut random = Random(7);
    fs::create_dir_all(root.join("programs")).unwrap();
    for number in 0..12 {
        let mut content = vec![0; 30_000 + 1000 * number];
        random.fill(&mut content);
        fs::write(root.join("programs").join(format!("{number}")), content).unwrap();
    }
    let mut content = vec![0; 1_300_000];
    random.fill(&mut content);
    fs::write(root.join("library"), content).unwrap();
}

impl Machines {
    fn new() -> Self {
        let (scratch, world) = (Scratch::new(), World::new(1));
        world.pass_seconds(ahead_s(&scratch));
        let storage = Arc::new(MemoryStorage::new());
        let repository = kit::init(storage.clone(), &world).unwrap();
        let mut machines = Self { scratch, world, storage, repository, roots: BTreeMap::new() };
        machines.add("a", 1);
        machines.add("b", 2);
        machines
    }

    fn add(&mut self, name: &'static str, seed: u64) -> BackupReport {
        let root = self.scratch.folder(name);
        install(&root);
        let mut own = vec![0; OWN_BYTES];
        Random(seed).fill(&mut own);
        fs::write(root.join("own"), own).unwrap();
        self.roots.insert(name, root);
        self.backup(&self.repository, name)
    }

    fn backup(&self, repository: &Repository, name: &str) -> BackupReport {
        self.world.pass_seconds(3600);
        let mut session = repository.backup(name, kit::options()).unwrap();
        session.add_tree("files", &self.roots[name], &TreeOptions::default()).unwrap();
        session.finish().unwrap()
    }

    fn share(&self) {
        let report = build(&self.repository, SharePolicy::Duplicates).unwrap();
        assert!(report.series_min == 2 && report.copied_chunks > 50, "{report:?}");
        for name in self.roots.keys() {
            self.repository.repoint(name, &spool()).unwrap();
            self.repository.reclaim(name, &kit::THOROUGH).unwrap();
        }
    }

    fn delete(&self, name: &str) {
        let found = kit::latest(&self.repository, name).unwrap();
        let ids: Vec<_> = found.head.snapshots.iter().map(|entry| entry.id).collect();
        self.repository.delete(name, &ids, DeleteMethod::Approximate).unwrap();
        self.repository.reclaim(name, &kit::THOROUGH).unwrap();
    }

    fn latest(repository: &Repository, name: &str) -> Files {
        stored(repository, &kit::latest(repository, name).unwrap())
    }

    fn assert_whole(&self, repository: &Repository, names: &[&str]) {
        for name in names {
            assert!(Self::latest(repository, name) == on_disk(&self.roots[name]), "{name}");
        }
        let report = check(repository);
        assert!(report.damage.is_empty(), "{report:?}");
    }

    fn container_bytes(&self) -> u64 {
        list_all(&*self.storage, "containers/", None).map(|item| item.unwrap().1).sum()
    }
}

#[test]
fn files_that_machines_have_in_common_are_stored_once_and_outlive_each_of_them() {
    let mut machines = Machines::new();
    let before = machines.container_bytes();
    machines.share();
    machines.assert_whole(&machines.repository, &["a", "b"]);
    let shared = machines.container_bytes();
    assert!(shared * 10 < before * 6, "{before} bytes became {shared}");
    // Files that did not change are not read, although their chunks have moved.
    let again = machines.backup(&machines.repository, "a");
    assert_eq!(again.snapshot.levels().total(), 0);
    // A third machine stores only what is its own.
    let third = machines.add("c", 3);
    let levels = third.snapshot.levels();
    assert!(levels.get(Level::New) <= OWN_BYTES as u64, "{levels:?}");
    assert!(levels.get(Level::Shared) > 1_500_000, "{levels:?}");
    machines.assert_whole(&machines.repository, &["a", "b", "c"]);
    // Each goes; what the others refer to stays.
    for (gone, left) in [("a", &["b", "c"][..]), ("c", &["b"])] {
        machines.delete(gone);
        let report = sweep(&machines.repository).unwrap();
        assert!(report.waiting_for.is_empty(), "{report:?}");
        machines.assert_whole(&machines.repository, left);
    }
    machines.delete("b");
    sweep(&machines.repository).unwrap();
    assert_eq!(machines.container_bytes(), 0, "nothing is left that nobody needs");
}

/// A disk image is a file of one machine and the disk of another, which is backed up in rounds.
#[test]
fn a_round_of_disks_and_backups_of_trees_share_chunks() {
    let machines = Machines::new();
    let image = kit::image(77, 300);
    let member = |series: &str, seed: u64| {
        let disk = [&image[..], &kit::image(seed, 20)].concat();
        RoundMember {
            series: series.to_owned(),
            volumes: vec![(
                "disk".to_owned(),
                RoundVolume::Disk(Box::new(MemorySource::new(&disk))),
            )],
            options: kit::options(),
            on_released: None,
        }
    };
    let options = RoundOptions { folder: spool(), memory_bytes: 0, spool: false };
    // One of them is a series of a tree so far, and has a snapshot without it then.
    let members = vec![member("a", 1), member("vm", 2)];
    let report = machines.repository.backup_round(members, &options).unwrap();
    assert!(report.backups.iter().all(Result::is_ok));
    let mut file = image.clone();
    file[..4].copy_from_slice(b"QFI\xfb");
    fs::write(machines.roots["b"].join("machine.qcow2"), &file).unwrap();
    let levels = machines.backup(&machines.repository, "b").snapshot.levels();
    assert!(levels.get(Level::New) < 10 * 4096, "{levels:?}");
    assert!(levels.get(Level::Shared) > 500_000, "{levels:?}");
    // The tree comes back to the series that was without it.
    machines.backup(&machines.repository, "a");
    machines.assert_whole(&machines.repository, &["a", "b"]);
    // The disks go, and the file stays.
    for name in ["a", "vm"] {
        machines.delete(name);
    }
    sweep(&machines.repository).unwrap();
    machines.assert_whole(&machines.repository, &["b"]);
}

/// A tree that refers to shared chunks is not committed after they were deleted.
#[test]
fn a_backup_of_a_tree_that_slept_through_a_sweep_of_the_shared_store_cannot_commit() {
    for series in ["new", "b"] {
        let mut machines = Machines::new();
        machines.share();
        // Nobody refers to what was shared any more.
        machines.delete("a");
        machines.delete("b");
        let root = machines.scratch.folder("new");
        install(&root);
        machines.roots.insert("new", root.clone());
        let mut session = machines.repository.backup(series, kit::options()).unwrap();
        let volume = session.add_tree("files", &root, &TreeOptions::default()).unwrap();
        assert!(volume.levels.get(Level::Shared) > 1_000_000);
        // While it works it is waited for.
        let waiting = sweep(&machines.repository).unwrap().waiting_for;
        assert_eq!(waiting, [series]);
        // Its lease ends, and others take it for gone.
        let there = World::process(50, 9, "there", &Arc::default());
        there.pass_seconds(ahead_s(&machines.scratch) + 10 * 86_400);
        let awake = kit::open(machines.storage.clone(), &there).unwrap();
        let report = sweep(&awake).unwrap();
        assert!(report.waiting_for.is_empty() && report.dead_slots > 0, "{report:?}");
        let late = session.finish();
        assert_eq!(late.err().map(|error| error.kind()), Some(ErrorKind::Busy), "{series}");
        assert!(check(&awake).damage.is_empty());
        machines.roots.insert("b", root);
        machines.backup(&awake, series);
        machines.assert_whole(&awake, &[series]);
    }
}

/// The same where the tree is committed in time: what it refers to is condemned, and stays.
#[test]
fn a_tree_keeps_condemned_chunks_that_it_came_to_use() {
    let mut machines = Machines::new();
    machines.share();
    machines.delete("a");
    machines.delete("b");
    let root = machines.scratch.folder("new");
    install(&root);
    machines.roots.insert("new", root.clone());
    let mut session = machines.repository.backup("new", kit::options()).unwrap();
    session.add_tree("files", &root, &TreeOptions::default()).unwrap();
    let report = sweep(&machines.repository).unwrap();
    assert!(report.condemned_slots > 0 && report.dead_slots == 0, "{report:?}");
    session.finish().unwrap();
    sweep(&machines.repository).unwrap();
    machines.assert_whole(&machines.repository, &["new"]);
}
