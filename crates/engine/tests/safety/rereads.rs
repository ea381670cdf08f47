//! File trees: files that are read again though their content did not change add hardly anything.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use siltstone::{BackupReport, Level, Repository, TreeOptions, Volume, VolumeKind};

use crate::kit::{self, Random};
use crate::tree_kit::{Scratch, assert_same, has};
use crate::trees::{assert_whole, backup, files, rename, repository, restore};

/// Files of which few have the size of another, some with zeros or a hole.
fn tree(root: &Path, folders: usize) {
    let mut random = Random(11);
    for folder in 0..folders {
        let folder = root.join(format!("folder {folder}/below"));
        fs::create_dir_all(&folder).unwrap();
        for number in 0..40 {
            let mut content = vec![0; random.below(60_000)];
            random.fill(&mut content);
            if number % 5 == 0 {
                let half = content.len() / 2;
                content[..half].fill(0);
            }
            let path = folder.join(format!("file {number}"));
            fs::write(&path, content).unwrap();
            if number % 7 == 0 {
                let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
                file.set_len(300_000).unwrap();
            }
        }
    }
    let mut large = vec![0; 9 << 20];
    random.fill(&mut large);
    fs::write(root.join("large"), large).unwrap();
}

fn volume(report: &BackupReport) -> &Volume {
    &report.snapshot.volumes[0]
}

fn assert_restored(repository: &Repository, scratch: &Scratch, name: &str) {
    let found = kit::latest(repository, "home").unwrap();
    restore(repository, &found, &scratch.path(name));
    assert_same(&scratch.path("source"), &scratch.path(name));
    assert_whole(repository);
}

#[test]
fn files_that_are_read_again_stay_where_they_are() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    tree(&root, 4);
    let (repository, world) = repository(&scratch);
    backup(&repository, &root);
    // A second segment of small files, so that their order is not that of the walk.
    fs::write(root.join("folder 0/below/file 3"), vec![7; 100_000]).unwrap();
    fs::write(root.join("folder 2/below/a new file"), vec![8; 100_000]).unwrap();
    world.pass_seconds(86_400);
    let before = backup(&repository, &root);

    let mut session = repository.backup("home", kit::options()).unwrap();
    let all = TreeOptions { reread: true, ..TreeOptions::default() };
    session.add_tree("files", &root, &all).unwrap();
    let reread = session.finish().unwrap();
    assert_eq!(volume(&reread).root, volume(&before).root, "no segment is new");
    assert_eq!(volume(&reread).stored_bytes, 0);

    // Only change times differ: the pages of their directories do, and nothing else.
    for path in files(&root) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    }
    world.pass_seconds(86_400);
    let touched = backup(&repository, &root);
    assert_eq!(volume(&touched).root, volume(&before).root, "no segment is new");
    assert_eq!(volume(&touched).levels.total(), 0);
    assert!(volume(&touched).stored_bytes < 40_000, "{} bytes", volume(&touched).stored_bytes);
    assert_restored(&repository, &scratch, "touched");

    // One file of many is stored without those around it.
    for path in files(&root) {
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    fs::write(root.join("folder 1/below/file 20"), vec![9; 5_000]).unwrap();
    world.pass_seconds(86_400);
    let one = backup(&repository, &root);
    assert_eq!(volume(&one).levels.total(), 5_000, "{:?}", volume(&one).levels);
    assert_restored(&repository, &scratch, "one");
    assert!(world.warnings.lock().unwrap().is_empty(), "{:?}", world.warnings);
}

#[test]
fn files_are_not_taken_for_others_of_the_same_size() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    for number in 0..50 {
        fs::write(root.join(format!("file {number:02}")), vec![number; 9_000]).unwrap();
    }
    let (repository, world) = repository(&scratch);
    backup(&repository, &root);
    // Every other file has the content of the one after it, under the old times.
    for number in (0..50).step_by(2) {
        let path = root.join(format!("file {number:02}"));
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        fs::write(&path, vec![number + 1; 9_000]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    }
    world.pass_seconds(86_400);
    let report = backup(&repository, &root);
    assert_eq!(volume(&report).levels.total(), 25 * 9_000, "{:?}", volume(&report).levels);
    assert_eq!(volume(&report).levels.get(Level::New), 0, "{:?}", volume(&report).levels);
    assert_restored(&repository, &scratch, "restored");
}

#[test]
fn a_renamed_directory_is_not_read_again() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    tree(&root, 3);
    let (repository, world) = repository(&scratch);
    let before = backup(&repository, &root);
    world.pass_seconds(86_400);
    rename(&root.join("folder 1"), root.join("another name"));
    // One that has a new name within one that has one, and one that took an old name.
    rename(&root.join("another name/below"), root.join("another name/deeper"));
    rename(&root.join("folder 2"), root.join("folder 1"));
    let renamed = backup(&repository, &root);
    assert_eq!(volume(&renamed).root, volume(&before).root, "no segment is new");
    assert_eq!(volume(&renamed).levels.total(), 0, "no file was read");
    assert!(volume(&renamed).stored_bytes < 6_000, "{} bytes", volume(&renamed).stored_bytes);
    assert_restored(&repository, &scratch, "restored");

    // A file that changed in a directory that was renamed is read.
    rename(&root.join("folder 0"), root.join("zero"));
    fs::write(root.join("zero/below/file 9"), vec![9; 7_000]).unwrap();
    world.pass_seconds(86_400);
    let changed = backup(&repository, &root);
    assert_eq!(volume(&changed).levels.total(), 7_000, "{:?}", volume(&changed).levels);
    assert_restored(&repository, &scratch, "changed");
}

#[test]
fn a_large_file_is_found_again_whatever_the_size_of_its_segments() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let mut content = vec![0; 130 << 20];
    let mut random = Random(5);
    // Zeros end every segment as early as that can be.
    content.chunks_mut(2 << 20).for_each(|part| random.fill(&mut part[..1000]));
    fs::write(root.join("large"), content).unwrap();
    let (repository, world) = repository(&scratch);
    let before = backup(&repository, &root);
    world.pass_seconds(86_400);
    fs::set_permissions(root.join("large"), fs::Permissions::from_mode(0o600)).unwrap();
    let report = backup(&repository, &root);
    assert_eq!(volume(&report).root, volume(&before).root, "no segment is new");
    assert_eq!(volume(&report).levels.total(), 0);
}

fn sparse_segments(report: &BackupReport) -> &[u64] {
    let VolumeKind::Tree(tree) = &volume(report).kind else { panic!("a tree") };
    &tree.sparse_segments
}

#[test]
fn segments_that_are_small_but_in_use_are_left_alone() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let mut random = Random(8);
    let mut file = |path: &str, bytes: usize| {
        let mut content = vec![0; bytes];
        random.fill(&mut content);
        fs::write(root.join(path), content).unwrap();
    };
    // The ends of large files, and as many small files as one segment takes.
    (0..6).for_each(|number| file(&format!("large {number}"), 4_600_000));
    for folder in 0..9 {
        fs::create_dir(root.join(format!("{folder}"))).unwrap();
        (0..2000).for_each(|number| file(&format!("{folder}/{number}"), 150));
    }
    let (repository, world) = repository(&scratch);
    let first = backup(&repository, &root);
    for _ in 0..2 {
        world.pass_seconds(86_400);
        let next = backup(&repository, &root);
        assert_eq!(sparse_segments(&next), [0_u64; 0]);
        assert_eq!(volume(&next).levels.total(), 0, "nothing was read");
        assert_eq!(volume(&next).root, volume(&first).root);
    }
}

#[test]
fn what_is_left_of_sparse_segments_is_put_together_once() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let mut random = Random(9);
    let mut write = |number: usize| {
        let mut content = vec![0; 5000];
        random.fill(&mut content);
        fs::write(root.join(format!("{number:05}")), content).unwrap();
    };
    (0..5000).for_each(&mut write);
    let (repository, world) = repository(&scratch);
    backup(&repository, &root);
    let next = || {
        world.pass_seconds(86_400);
        backup(&repository, &root)
    };
    (0..5000).filter(|number| number % 8 > 0).for_each(&mut write);
    let sparse = next();
    assert!(sparse_segments(&sparse).len() >= 4, "{:?}", sparse_segments(&sparse));
    let together = next();
    let levels = volume(&together).levels;
    assert_eq!((levels.total(), levels.get(Level::New)), (625 * 5000, 0), "{levels:?}");
    assert_eq!(sparse_segments(&together), [0_u64; 0]);
    assert_eq!(volume(&next()).levels.total(), 0, "nothing was read");
    assert_restored(&repository, &scratch, "restored");
}
