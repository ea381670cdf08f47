//! File trees in a repository of two places: any object of either may be damaged or missing.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::Id;
use silt_storage::Key;
use siltstone::Repository;

use crate::kit::{self, World};
use crate::places::{ALL_DATA, Disks, replace};
use crate::tree_damage::{
    ALL, Files, ahead_s, backup, find, first_day, on_disk, second_day, stored,
};
use crate::tree_kit::Scratch;

/// Two days of a tree, of which the first was backed up before the second place was there.
struct Copies {
    _scratch: Scratch,
    root: PathBuf,
    world: Arc<World>,
    disks: Disks,
    days: Vec<(Id, Files)>,
}

impl Copies {
    fn new() -> Self {
        let (scratch, world) = (Scratch::new(), World::new(1));
        let (root, disks) = (scratch.folder("source"), Disks::with(&["a", "b"]));
        world.pass_seconds(ahead_s(&scratch));
        let repository = kit::init(disks.get("a"), &world).unwrap();
        first_day(&root);
        // Large files cost time, and are damaged elsewhere.
        fs::remove_file(root.join("d/large")).unwrap();
        let mut copies = Self { _scratch: scratch, root, world, disks, days: Vec::new() };
        copies.backup(&repository);
        let repository = copies.disks.add("a", "b", false, &copies.world);
        second_day(&copies.root);
        copies.backup(&repository);
        assert_eq!(copies.disks.objects("a"), copies.disks.objects("b"));
        copies
    }

    fn backup(&mut self, repository: &Repository) {
        self.world.pass_seconds(86_400);
        let id = backup(repository, &self.root).unwrap().snapshot.id;
        self.days.push((id, on_disk(&self.root)));
    }

    fn assert_whole(&self, repository: &Repository, what: &str) {
        for (id, files) in &self.days {
            assert!(stored(repository, &find(repository, *id)) == *files, "{what}: {id}");
        }
    }

    fn open(&self, location: &str) -> Repository {
        self.disks.repository(location, &self.world).unwrap()
    }
}

#[test]
fn what_one_place_lacks_of_a_tree_is_read_from_the_other_and_healed() {
    let copies = Copies::new();
    let before = copies.disks.objects("a");
    let of_tree = |name: &&String| {
        ["containers/", "recipes/", "snapshots/", "summaries/"]
            .iter()
            .any(|it| name.starts_with(it))
    };
    let names: Vec<_> = before.keys().filter(of_tree).collect();
    assert!(names.len() > 6, "{names:?}");
    for name in names {
        let bytes = &before[name];
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 1;
        let other = before.keys().find(|other| *other != name && same_folder(other, name));
        let states = [None, Some(&flipped), other.map(|other| &before[other])];
        for (number, state) in states.into_iter().enumerate() {
            let what = format!("{name} {number}");
            for hurt in ["a", "b"] {
                replace(&copies.disks.get(hurt), name, state.map(Vec::as_slice));
                let repository = copies.open("a");
                copies.assert_whole(&repository, &what);
                let healed = repository.heal_copies(ALL_DATA).unwrap();
                assert!(
                    healed.conflicts.is_empty() && healed.lost.is_empty(),
                    "{what}: {healed:?}"
                );
                assert!(copies.disks.objects("a") == before, "{what}");
                assert!(copies.disks.objects("b") == before, "{what}");
            }
        }
    }
}

fn same_folder(one: &str, other: &str) -> bool {
    one.rsplit_once('/').map(|(folder, _)| folder)
        == other.rsplit_once('/').map(|(folder, _)| folder)
}

/// Each place has lost other objects: what one backup compares with is read from either.
#[test]
fn a_backup_beside_two_damaged_places_is_whole_in_both() {
    let mut copies = Copies::new();
    let names: Vec<_> = copies.disks.objects("a").into_keys().collect();
    let of_tree = |name: &&String| name.starts_with("recipes/") || name.starts_with("containers/");
    for (number, name) in names.iter().filter(of_tree).enumerate() {
        let hurt = copies.disks.get(["a", "b"][number % 2]);
        hurt.damage(&Key::new(name.as_str()).unwrap(), |object| object[200] ^= 1).unwrap();
    }
    fs::write(copies.root.join("a/file0"), b"another content").unwrap();
    let repository = copies.open("a");
    copies.backup(&repository);
    copies.assert_whole(&repository, "two halves");
    let healed = repository.heal_copies(ALL_DATA).unwrap();
    assert!(healed.lost.is_empty() && healed.conflicts.is_empty(), "{healed:?}");
    for lost in ["a", "b"] {
        let disk = copies.disks.0.lock().unwrap().remove(lost).unwrap();
        let left = copies.open(if lost == "a" { "b" } else { "a" });
        copies.assert_whole(&left, lost);
        assert!(left.check(&ALL).unwrap().damage.is_empty(), "without {lost}");
        copies.disks.0.lock().unwrap().insert(lost.to_owned(), disk);
    }
}

/// A place is away while the tree changes and old days are deleted; then it comes back.
#[test]
fn a_place_that_was_removed_learns_of_the_trees_that_came_meanwhile() {
    for lost in ["a", "b"] {
        let mut copies = Copies::new();
        let left = if lost == "a" { "b" } else { "a" };
        let disk = copies.disks.0.lock().unwrap().remove(lost).unwrap();
        copies.assert_whole(&copies.open(left), lost);
        let open = |location: &str| copies.disks.open(location);
        copies.open(left).remove_place(lost, &open).unwrap();
        fs::write(copies.root.join("a/file0"), vec![9; 50_000]).unwrap();
        let repository = copies.open(left);
        copies.backup(&repository);
        let (gone, _) = copies.days.remove(0);
        repository.delete("home", &[gone], siltstone::DeleteMethod::Exact).unwrap();
        repository.reclaim("home", &kit::THOROUGH).unwrap();
        copies.disks.0.lock().unwrap().insert(lost.to_owned(), disk);
        copies.disks.add(left, lost, false, &copies.world);
        assert_eq!(copies.disks.objects("a"), copies.disks.objects("b"));
        copies.disks.0.lock().unwrap().remove(left);
        let repository = copies.open(lost);
        copies.assert_whole(&repository, lost);
        assert!(repository.check(&ALL).unwrap().damage.is_empty());
    }
}
