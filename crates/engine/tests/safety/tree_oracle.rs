//! Whole trees, compared with what is restored of them by other programs. Run by hand, as root.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use silt_storage::MemoryStorage;
use siltstone::Selector;

use crate::kit::{self, World};
use crate::tree_kit::{Scratch, assert_same, can_act_as_root, has, tool};
use crate::trees::{assert_whole, backup, restore};

/// Backs up a tree, restores it, and compares contents, metadata, hard links and holes.
fn assert_comes_back(root: &Path) {
    let scratch = Scratch::new();
    let repository = kit::init(Arc::new(MemoryStorage::new()), &World::new(1)).unwrap();
    backup(&repository, root);
    let target = scratch.path("restored");
    restore(&repository, &kit::latest(&repository, "home").unwrap(), &target);
    assert_same(root, &target);
    assert_whole(&repository);
}

#[test]
#[ignore = "takes minutes: for changes of file trees"]
fn a_million_empty_files_come_back() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    for folder in 0..1000 {
        let folder = root.join(format!("folder {folder:03}"));
        fs::create_dir(&folder).unwrap();
        (0..1000).for_each(|file| fs::write(folder.join(format!("file {file:03}")), b"").unwrap());
    }
    assert_comes_back(&root);
}

#[test]
#[ignore = "takes minutes, and memory for the repository: for changes of file trees"]
fn trees_of_this_machine_come_back() {
    if !can_act_as_root() {
        return;
    }
    #[expect(clippy::disallowed_methods, reason = "who runs it names the trees")]
    let trees = std::env::var("SILT_TREES").unwrap_or("/etc".to_owned());
    trees.split(':').for_each(|tree| assert_comes_back(Path::new(tree)));
}

/// Versions of a tree replace one another in a folder, as `rsync` does it, and each is backed up.
#[test]
#[ignore = "takes minutes, and memory for the repository: for changes of file trees"]
fn versions_of_a_tree_come_back() {
    #[expect(clippy::disallowed_methods, reason = "who runs it names the versions")]
    let versions = std::env::var("SILT_TREE_VERSIONS").unwrap_or_default();
    let versions: Vec<&Path> =
        versions.split(':').filter(|it| !it.is_empty()).map(Path::new).collect();
    if versions.is_empty() || !has("rsync") {
        println!("SKIPPED: SILT_TREE_VERSIONS names no directories");
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let repository = kit::init(Arc::new(MemoryStorage::new()), &World::new(1)).unwrap();
    let made = versions.iter().map(|version| {
        let from = version.join("");
        let args = ["-aHAX", "--delete"].map(OsStr::new);
        tool("rsync", &[&args[..], &[from.as_ref(), root.as_ref()]].concat(), &root);
        backup(&repository, &root).snapshot
    });
    let made: Vec<_> = made.collect();
    assert_whole(&repository);
    for (snapshot, version) in made.iter().zip(&versions) {
        let (target, selector) = (scratch.path("restored"), Selector::Id(snapshot.id.to_string()));
        restore(&repository, &kit::find(&repository, &selector).unwrap(), &target);
        assert_same(version, &target);
        fs::remove_dir_all(&target).unwrap();
    }
}
