//! File trees: what is restored is what was there, whatever happened between.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use silt_format::SEGMENT_BYTES;
use silt_storage::MemoryStorage;
use siltstone::{
    BackupReport, CheckOptions, DataCheck, DeleteMethod, Found, Level, ReclaimOptions, Repository,
    TreeOptions, TreeRestoreOptions, TreeVolume, VolumeKind,
};

use silt_tree::MakeOptions;

use crate::kit::{self, Random, World};
use crate::tree_kit::{Scratch, assert_same, awkward_tree, has};

/// A repository whose clock is an hour ahead of the files that a test makes, so that their times
/// prove that they did not change.
pub fn repository(scratch: &Scratch) -> (Repository, Arc<World>) {
    let world = World::new(1);
    let probe = scratch.path("probe");
    fs::write(&probe, b"").unwrap();
    world.pass_seconds(fs::metadata(probe).unwrap().ctime() - 1_790_000_000 + 3600);
    (kit::init(Arc::new(MemoryStorage::new()), &world).unwrap(), world)
}

pub fn backup(repository: &Repository, root: &Path) -> BackupReport {
    let mut session = repository.backup("home", kit::options()).unwrap();
    session.add_tree("files", root, &TreeOptions::default()).unwrap();
    session.finish().unwrap()
}

pub fn restore(repository: &Repository, found: &Found, target: &Path) {
    let volume = found.volume("files").unwrap();
    let options = TreeRestoreOptions { jobs: 2, ..TreeRestoreOptions::default() };
    let report = repository.restore_tree(volume, b"/", target, &options).unwrap();
    assert_eq!(report.made.failed, 0, "{:?}", report.made.failures);
    assert_eq!(report.unreadable, 0);
}

pub fn assert_whole(repository: &Repository) {
    let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = repository.check(&options).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

#[test]
fn every_oddity_comes_back_and_an_unchanged_tree_is_not_read_again() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    awkward_tree(&root);
    let (repository, world) = repository(&scratch);
    let first = backup(&repository, &root);
    assert!(first.stored_bytes > 0);
    restore(&repository, &kit::latest(&repository, "home").unwrap(), &scratch.path("first"));
    assert_same(&root, &scratch.path("first"));
    assert_whole(&repository);

    world.pass_seconds(86_400);
    let second = backup(&repository, &root);
    let (first, volume) = (&first.snapshot.volumes[0], &second.snapshot.volumes[0]);
    assert_eq!(volume.root, first.root, "no segment was written");
    assert_eq!((volume.levels.total(), volume.stored_bytes), (0, 0));
    let (VolumeKind::Tree(before), VolumeKind::Tree(now)) = (&first.kind, &volume.kind) else {
        panic!("a tree");
    };
    assert_eq!(before, now);
    restore(&repository, &kit::latest(&repository, "home").unwrap(), &scratch.path("second"));
    assert_same(&root, &scratch.path("second"));
    assert!(world.warnings.lock().unwrap().is_empty(), "{:?}", world.warnings);
}

/// Paths of the files of a tree.
pub fn files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

fn bytes(random: &mut Random) -> Vec<u8> {
    let sizes = [0, 1, 100, 3000, 20_000, 300_000, (1 << 20) - 1, 1 << 20, 3_000_000, 5 << 20];
    let mut bytes = vec![0; sizes[random.below(sizes.len())] + random.below(3)];
    random.fill(&mut bytes);
    if random.below(3) == 0 {
        let end = bytes.len() / 2;
        bytes[..end].fill(b'a');
    }
    bytes
}

#[expect(clippy::disallowed_methods, reason = "the user renames a file")]
pub fn rename(from: &Path, to: PathBuf) {
    fs::rename(from, to).unwrap();
}

/// One change of a tree, of a kind that files really undergo.
fn change(root: &Path, random: &mut Random) {
    let all = files(root);
    let number = random.next() % 10_000;
    let folder = root.join(format!("folder {}", random.below(5)));
    fs::create_dir_all(&folder).unwrap();
    let some = all.get(random.below(all.len().max(1)));
    match (random.below(9), some) {
        (0, Some(some)) => fs::remove_file(some).unwrap(),
        (1, Some(some)) => {
            // An insertion shifts what is behind it.
            let mut content = fs::read(some).unwrap();
            let at = random.below(content.len() + 1);
            content.splice(at..at, bytes(random).into_iter().take(10_000));
            fs::write(some, content).unwrap();
        }
        (2, Some(some)) => {
            let mut content = fs::read(some).unwrap();
            if let Some(byte) = content.first_mut() {
                *byte ^= 1;
            }
            fs::write(some, content).unwrap();
        }
        (3, Some(some)) => {
            let _ = fs::hard_link(some, folder.join(format!("link {number}")));
        }
        (4, Some(some)) => rename(some, folder.join(format!("moved {number}"))),
        (5, _) => drop(symlink("../somewhere", folder.join(format!("symlink {number}")))),
        (6, Some(some)) => {
            let file = fs::OpenOptions::new().write(true).open(some).unwrap();
            file.set_len(random.below(4 << 20) as u64).unwrap();
        }
        _ => fs::write(folder.join(format!("new {number}")), bytes(random)).unwrap(),
    }
}

#[test]
fn every_day_of_a_changing_tree_is_restored_until_it_is_deleted() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let (repository, world) = repository(&scratch);
    let mut random = Random(7);
    let mut days = Vec::new();
    for day in 0..8 {
        for _ in 0..12 {
            change(&root, &mut random);
        }
        let copy = scratch.path(&format!("day {day}"));
        crate::tree_kit::copy(&root, &copy, MakeOptions::default());
        assert_same(&root, &copy);
        world.pass_seconds(86_400);
        days.push((backup(&repository, &root).snapshot.id, copy));
    }
    assert_whole(&repository);
    let all_match = |days: &[(silt_format::Id, PathBuf)]| {
        for (id, copy) in days {
            let found = kit::find(&repository, &siltstone::Selector::Id(id.to_string())).unwrap();
            let target = scratch.path(&format!("restored {id}"));
            restore(&repository, &found, &target);
            assert_same(copy, &target);
            fs::remove_dir_all(&target).unwrap();
        }
    };
    all_match(&days);
    let gone: Vec<_> = [0, 2, 3, 5].into_iter().map(|day: usize| days[day].0).collect();
    repository.delete("home", &gone, DeleteMethod::default()).unwrap();
    let reclaim = ReclaimOptions {
        keep_deleted_s: Some(0),
        dead_share_min: 0.0,
        leak_share_max: 0.0,
        ..ReclaimOptions::default()
    };
    let report = repository.reclaim("home", &reclaim).unwrap();
    assert!(report.freed_bytes() > 0, "{report:?}");
    days.retain(|(id, _)| !gone.contains(id));
    all_match(&days);
    assert_whole(&repository);
}

#[test]
fn an_insertion_into_a_large_file_stores_little_and_leaves_most_segments() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let mut content = vec![0; 40 << 20];
    Random(3).fill(&mut content);
    fs::write(root.join("dump.sql"), &content).unwrap();
    let (repository, world) = repository(&scratch);
    backup(&repository, &root);
    content.splice(1_000_000..1_000_000, [7; 3_333]);
    fs::write(root.join("dump.sql"), &content).unwrap();
    world.pass_seconds(86_400);
    let report = backup(&repository, &root);
    let volume = &report.snapshot.volumes[0];
    let new = volume.levels.get(Level::New);
    assert!(new > 0 && new < 200_000, "{new} bytes are new");
    assert!(volume.levels.total() < 6 * SEGMENT_BYTES as u64, "{:?}", volume.levels);
    let found = kit::latest(&repository, "home").unwrap();
    let tree = TreeVolume::open(&repository, found.volume("files").unwrap(), 0).unwrap();
    let file = tree.find(b"/dump.sql").unwrap();
    let mut read = vec![0; content.len() + 1];
    assert_eq!(tree.read_at(&file, 0, &mut read).unwrap(), content.len());
    assert!(read[..content.len()] == content);
    assert!(tree.find(b"/missing").is_err() && tree.find(b"/dump.sql/x").is_err());
}
