//! File trees: whatever changes a series of them may stop at every storage operation, and a backup
//! does not carry on what it finds damaged.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::tree::{FileChunking, FileKind};
use silt_format::{Chunking, Id, Result};
use silt_storage::{ByteRange, Key, MemoryStorage, Storage, list_all};
use siltstone::{DeleteMethod, Repository, SweepOptions, TreeOptions};

use crate::kit::{self, MemorySource, Random, World};
use crate::tree_damage::{ALL, Files, ahead_s, backup, find, on_disk, stored};
use crate::tree_kit::Scratch;
use crate::trees::rename;

/// Damages an object.
type Hurt<'h> = &'h dyn Fn(&mut Vec<u8>);

/// Four days of a tree; the numbers of its segments begin anew on the last.
struct Days {
    _scratch: Scratch,
    root: PathBuf,
    later_s: i64,
    storage: Arc<MemoryStorage>,
    repository: Repository,
    ids: Vec<Id>,
    files: Vec<Files>,
}

impl Days {
    fn new() -> Self {
        let scratch = Scratch::new();
        let root = scratch.folder("source");
        let (world, mut random) = (World::new(1), Random(3));
        let later_s = ahead_s(&scratch);
        world.pass_seconds(later_s);
        let storage = Arc::new(MemoryStorage::new());
        let repository = kit::init(storage.clone(), &world).unwrap();
        let (mut ids, mut files) = (Vec::new(), Vec::new());
        let mut write = |path: &str, bytes: usize| {
            let mut content = vec![0; bytes];
            random.fill(&mut content);
            fs::write(root.join(path), content).unwrap();
        };
        for day in 0..4 {
            fs::create_dir_all(root.join("a/b")).unwrap();
            for number in 0..4 {
                write(&format!("a/b/file{}", (number + day) % 6), 4000 + 7000 * number);
                write(&format!("a/day{day} {number}"), 9000);
            }
            match day {
                0 => write("large", 1_100_000),
                1 => fs::remove_file(root.join("a/b/file1")).unwrap(),
                2 => rename(&root.join("a"), root.join("c")),
                _ => {
                    // The snapshot before lacks the tree.
                    let mut session = repository.backup("home", kit::options()).unwrap();
                    let disk = MemorySource::new(&kit::image(1, 20));
                    session.add_volume("disk", &disk, None).unwrap();
                    let id = session.finish().unwrap().snapshot.id;
                    repository.delete("home", &[id], DeleteMethod::Exact).unwrap();
                    world.pass_seconds(3600);
                    let mut session = repository.backup("home", kit::options()).unwrap();
                    session.add_volume("disk", &disk, None).unwrap();
                    let id = session.finish().unwrap().snapshot.id;
                    world.pass_seconds(3600);
                    ids.push(backup(&repository, &root).unwrap().snapshot.id);
                    files.push(on_disk(&root));
                    repository.delete("home", &[id], DeleteMethod::Approximate).unwrap();
                    break;
                }
            }
            world.pass_seconds(86_400);
            ids.push(backup(&repository, &root).unwrap().snapshot.id);
            files.push(on_disk(&root));
        }
        repository.reclaim("home", &kit::THOROUGH).unwrap();
        let later_s = later_s + 864_000;
        Self { _scratch: scratch, root, later_s, storage, repository, ids, files }
    }

    /// The listed days, each restored and compared.
    fn whole(&self, repository: &Repository) -> Vec<usize> {
        let head = repository.head(repository.series_id("home")).unwrap().unwrap();
        let place = |id: Id| self.ids.iter().position(|known| *known == id).unwrap();
        let days: Vec<usize> = head.snapshots.iter().map(|entry| place(entry.id)).collect();
        for day in &days {
            let found = find(repository, self.ids[*day]);
            assert!(stored(repository, &found) == self.files[*day], "day {day}");
        }
        days
    }

    /// Stops `action` at every storage operation; afterwards either state is whole, and all goes
    /// on.
    fn stop_everywhere(&self, action: &dyn Fn(&Repository) -> Result<()>) -> u32 {
        let before = self.whole(&self.repository);
        let complete = Arc::new(self.storage.snapshot());
        let world = World::process(5, 5, "here", &Arc::default());
        world.pass_seconds(self.later_s);
        let repository = kit::open(complete, &world).unwrap();
        action(&repository).unwrap();
        let after = self.whole(&repository);
        kit::each_crash(&self.storage, self.later_s, action, &mut |repository| {
            let days = self.whole(repository);
            assert!(days == before || days == after, "{days:?}");
            repository.reclaim("home", &kit::THOROUGH).unwrap();
            let again = repository.reclaim("home", &kit::THOROUGH).unwrap();
            assert_eq!((again.removed_objects, again.sweep.unwrap().dead_slots), (0, 0));
            assert_eq!(self.whole(repository), days);
            let report = repository.check(&ALL).unwrap();
            assert!(report.damage.is_empty() && report.unreferenced == 0, "{report:?}");
            let id = backup(repository, &self.root).unwrap().snapshot.id;
            assert!(stored(repository, &find(repository, id)) == on_disk(&self.root));
        })
    }
}

#[test]
fn a_deletion_of_trees_may_stop_anywhere() {
    let days = Days::new();
    for method in [DeleteMethod::Approximate, DeleteMethod::Exact] {
        let delete =
            |repository: &Repository| repository.delete("home", &days.ids[1..3], method).map(drop);
        assert!(days.stop_everywhere(&delete) >= 4);
    }
}

#[test]
fn an_undeletion_of_a_tree_may_stop_anywhere() {
    let days = Days::new();
    let doomed = [days.ids[0], days.ids[2], days.ids[3]];
    days.repository.delete("home", &doomed, DeleteMethod::Approximate).unwrap();
    for day in [0, 3] {
        let undelete = |repository: &Repository| repository.undelete("home", days.ids[day]);
        assert!(days.stop_everywhere(&undelete) >= 6);
    }
}

#[test]
fn a_reclaim_of_trees_may_stop_anywhere() {
    let days = Days::new();
    let doomed = [days.ids[0], days.ids[2]];
    days.repository.delete("home", &doomed, DeleteMethod::Approximate).unwrap();
    let crashes =
        days.stop_everywhere(&|repository| repository.reclaim("home", &kit::THOROUGH).map(drop));
    assert!(crashes > 12, "{crashes}");
    let sweeps = days
        .stop_everywhere(&|repository| repository.sweep("home", SweepOptions::default()).map(drop));
    assert!(sweeps >= 4, "{sweeps}");
}

/// A sleeping backup of a tree does not refer to what others have removed meanwhile.
#[test]
fn a_backup_of_a_tree_that_slept_through_a_reclaim_cannot_commit() {
    let days = Days::new();
    fs::write(days.root.join("c/new"), [7; 9000]).unwrap();
    let mut session = days.repository.backup("home", kit::options()).unwrap();
    session.add_tree("files", &days.root, &TreeOptions::default()).unwrap();
    let world = World::process(50, 9, "there", &Arc::default());
    world.pass_seconds(days.later_s);
    let awake = kit::open(days.storage.clone(), &world).unwrap();
    awake.delete("home", &days.ids[..3], DeleteMethod::Exact).unwrap();
    awake.reclaim("home", &kit::THOROUGH).unwrap();
    let late = session.finish();
    assert_eq!(late.err().map(|error| error.kind()), Some(silt_format::ErrorKind::Busy));
    assert!(awake.check(&ALL).unwrap().damage.is_empty());
    let id = backup(&awake, &days.root).unwrap().snapshot.id;
    assert!(stored(&awake, &find(&awake, id)) == on_disk(&days.root));
}

/// Files are cut in another way while a backup runs: of the two one commits, and nothing is lost.
#[test]
fn the_kinds_of_a_series_change_while_its_tree_is_backed_up() {
    let days = Days::new();
    let mut chunking = FileChunking::default();
    for kind in FileKind::ALL {
        chunking.set(kind, Chunking::Fixed { bytes: 4096 }).unwrap();
    }
    for file in ["c/new", "c/newer"] {
        fs::write(days.root.join(file), vec![7; 90_000]).unwrap();
        let mut session = days.repository.backup("home", kit::options()).unwrap();
        session.add_tree("files", &days.root, &TreeOptions::default()).unwrap();
        let world = World::process(50, 9, "there", &Arc::default());
        world.pass_seconds(days.later_s);
        let awake = kit::open(days.storage.clone(), &world).unwrap();
        awake.set_file_chunking("home", Some(chunking)).unwrap();
        let late = session.finish();
        assert_eq!(late.err().map(|error| error.kind()), Some(silt_format::ErrorKind::Busy));
        let id = backup(&awake, &days.root).unwrap().snapshot.id;
        assert!(stored(&awake, &find(&awake, id)) == on_disk(&days.root));
        assert_eq!(awake.file_chunking("home").unwrap(), chunking);
        awake.set_file_chunking("home", None).unwrap();
    }
    days.stop_everywhere_with_new(&|repository| {
        repository.set_file_chunking("home", Some(chunking))
    });
}

impl Days {
    /// The same where snapshots were added since.
    fn stop_everywhere_with_new(&self, action: &dyn Fn(&Repository) -> Result<()>) {
        let crashes = kit::each_crash(&self.storage, self.later_s + 864_000, action, &mut |it| {
            for (id, files) in self.ids.iter().zip(&self.files) {
                assert!(stored(it, &find(it, *id)) == *files, "{id}");
            }
            let id = backup(it, &self.root).unwrap().snapshot.id;
            assert!(stored(it, &find(it, id)) == on_disk(&self.root));
            assert!(it.check(&ALL).unwrap().damage.is_empty());
        });
        assert!(crashes >= 2, "{crashes}");
    }
}

/// The provider serves another object of the series, a changed one, or none, for one that a backup
/// compares with. Nobody has checked it before.
#[test]
fn a_backup_carries_on_no_page_that_is_not_what_its_parent_wrote() {
    let days = Days::new();
    let objects: Vec<(Key, u64)> =
        list_all(&*days.storage, "recipes/", None).map(|item| item.unwrap()).collect();
    assert!(objects.len() > 3);
    let read = |name: &Key| {
        let mut bytes = Vec::new();
        days.storage.get(name, ByteRange::Full, &mut bytes).unwrap();
        bytes
    };
    let mut warned = 0;
    for (number, (name, bytes)) in objects.iter().enumerate() {
        let half = usize::try_from(bytes / 2).unwrap();
        let older = read(&objects[(number + objects.len() - 1) % objects.len()].0);
        let hurts: [Hurt<'_>; 4] = [
            &|object| object.clone_from(&older),
            &|object| object[half] ^= 1,
            &|object| object[100] ^= 1,
            &|object| object.truncate(half),
        ];
        for (what, hurt) in hurts.iter().enumerate() {
            let storage = Arc::new(days.storage.snapshot());
            storage.damage(name, hurt).unwrap();
            let world = World::process(9, 9, "here", &Arc::default());
            world.pass_seconds(days.later_s);
            let repository = kit::open(storage, &world).unwrap();
            fs::write(days.root.join("c/changed"), format!("{name} {what}")).unwrap();
            // What cannot be read may be written down first.
            let made = backup(&repository, &days.root).or_else(|error| {
                assert!(error.to_string().contains("Run the backup again"), "{name}: {error}");
                backup(&repository, &days.root)
            });
            let id = made.unwrap().snapshot.id;
            let found = find(&repository, id);
            assert!(stored(&repository, &found) == on_disk(&days.root), "{name} {what}");
            let damage = repository.check(&ALL).unwrap().damage;
            let hit = damage.iter().flat_map(|damage| &damage.affected);
            let of_new: Vec<_> = hit.filter(|it| it.snapshot == Some(id)).collect();
            assert!(of_new.is_empty(), "{name} {what}: {of_new:?}");
            warned += u32::from(!world.warnings.lock().unwrap().is_empty());
        }
    }
    assert!(warned > 2, "{warned}");
}
