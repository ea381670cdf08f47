//! Names that are given to other files, and files that are changed, right when a backup looks.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use silt_format::tree::State;
use silt_storage::MemoryStorage;
use silt_tree::Trust;
use siltstone::{Repository, TreeOptions, TreeVolume};

use crate::kit::{self, World};
use crate::tree_kit::{Scratch, set_modified};
use crate::tree_script::{At, Events, Scripted};
use crate::trees::{assert_whole, rename, restore};

/// A directory, and a repository whose clock is an hour ahead of its files.
struct Stage {
    scratch: Scratch,
    root: PathBuf,
    repository: Repository,
    world: Arc<World>,
    options: TreeOptions,
    events: Events,
    numbers: HashMap<&'static str, u64>,
    tells_births: bool,
}

impl Stage {
    fn new() -> Self {
        let scratch = Scratch::new();
        let root = scratch.folder("source");
        let (repository, world) = crate::trees::repository(&scratch);
        let (options, events, numbers) =
            (TreeOptions::default(), Events::default(), HashMap::new());
        let tells_births = true;
        Self { scratch, root, repository, world, options, events, numbers, tells_births }
    }

    fn at(&self, at: At<'static>, event: impl FnOnce() + Send + 'static) {
        self.events.add(at, event);
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.root.join(name), bytes).unwrap();
        self.root.join(name)
    }

    fn link(&self, name: &str, other: &str) {
        fs::hard_link(self.root.join(name), self.root.join(other)).unwrap();
    }

    fn backup(&self) -> TreeVolume {
        self.world.pass_seconds(3600);
        let mut session = self.repository.backup("home", kit::options()).unwrap();
        let events = self.events.clone();
        let mut source = Box::new(Scripted::new(&self.root, move |at| events.reach(at)));
        (source.numbers, source.tells_births) = (self.numbers.clone(), self.tells_births);
        session.add_tree_from("files", "scripted", source, &self.options).unwrap();
        session.finish().unwrap();
        assert!(self.events.have_happened());
        let found = kit::latest(&self.repository, "home").unwrap();
        TreeVolume::open(&self.repository, found.volume("files").unwrap(), 0).unwrap()
    }

    fn restore(&self, name: &str) -> PathBuf {
        let target = self.scratch.path(name);
        restore(&self.repository, &kit::latest(&self.repository, "home").unwrap(), &target);
        assert_whole(&self.repository);
        target
    }
}

fn read(volume: &TreeVolume, name: &str) -> Vec<u8> {
    let file = volume.find(name.as_bytes()).unwrap();
    let mut bytes = vec![0; usize::try_from(file.metadata.size).unwrap()];
    assert_eq!(volume.read_at(&file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// A file with two names is removed when one was read, and its number given to a new file with two
/// names: each name has the content of its own file, even where nothing says when it was created.
#[test]
fn the_number_of_a_removed_file_does_not_bring_its_content_back() {
    let cases = [(false, 2), (false, 1), (true, 2), (true, 1)];
    for (tells_births, (has_parent, new_names)) in
        [true, false].into_iter().flat_map(|tells| cases.map(|case| (tells, case)))
    {
        let mut stage = Stage::new();
        stage.tells_births = tells_births;
        stage.write("a", &[1; 9000]);
        stage.link("a", "z removed");
        if has_parent {
            stage.backup();
        }
        // It is created at another time, as the clock of the kernel goes in ticks.
        let status = |name: &str| fs::metadata(stage.root.join(name)).unwrap();
        let (born, modified) = (status("a").created().ok(), status("a").modified().unwrap());
        let is_later = || {
            let status = status("m");
            status.created().ok() != born && status.modified().unwrap() != modified
        };
        while born.is_some() && !(stage.root.join("m").exists() && is_later()) {
            drop(fs::remove_file(stage.root.join("m")));
            stage.write("m", &[2; 9000]);
        }
        if born.is_none() {
            eprintln!("SKIPPED: the temporary folder does not tell when files were created");
            return;
        }
        if new_names == 2 {
            stage.link("m", "n");
        }
        // A file system may give it another number, so it gets this one here.
        let number = inode(&stage.root.join("a"));
        stage.numbers = HashMap::from([("m", number), ("n", number)]);
        let root = stage.root.clone();
        stage.at(At::Step("m"), move || fs::remove_file(root.join("z removed")).unwrap());
        let volume = stage.backup();
        assert!(read(&volume, "a") == [1; 9000]);
        assert!(read(&volume, "m") == [2; 9000], "{has_parent} {new_names}");
        let restored = stage.restore("restored");
        assert!(fs::read(restored.join("a")).unwrap() == [1; 9000]);
        assert!(fs::read(restored.join("m")).unwrap() == [2; 9000]);
        if new_names == 2 {
            assert!(fs::read(restored.join("n")).unwrap() == [2; 9000]);
            assert_eq!(inode(&restored.join("m")), inode(&restored.join("n")));
        }
        assert_ne!(inode(&restored.join("a")), inode(&restored.join("m")));
    }
}

/// A file is changed when the status of all its names was read: before the first is reached, or
/// behind it. Where nothing says when files are created, it becomes two then, and each is whole.
#[test]
fn a_file_that_changes_between_its_names_is_what_it_was_under_each() {
    let births = [(true, "a"), (true, "b"), (false, "a"), (false, "b")];
    let cases = [true, false].into_iter().flat_map(|has_parent| births.map(|it| (has_parent, it)));
    for (has_parent, (tells_births, at)) in cases {
        let mut stage = Stage::new();
        stage.tells_births = tells_births;
        stage.write("a", &[1; 9000]);
        set_modified(&stage.root.join("a"), 1_000_000_000, 0);
        stage.link("a", "b");
        stage.link("a", "c");
        if has_parent {
            stage.backup();
        }
        let path = stage.root.join("c");
        stage.at(At::Step(at), move || fs::write(path, [2; 9000]).unwrap());
        let volume = stage.backup();
        let contents = ["a", "b", "c"].map(|name| read(&volume, name)[0]);
        // With a parent, the status of each name says that it is unchanged.
        let wanted = match (at, tells_births) {
            _ if has_parent => [1, 1, 1],
            ("a", _) => [2, 2, 2],
            (_, true) => [1, 1, 1],
            (_, false) => [1, 2, 2],
        };
        assert_eq!(contents, wanted, "{tells_births} {at} {has_parent}");
        let state = |name: &str| volume.find(name.as_bytes()).unwrap().state;
        assert!(["a", "b", "c"].iter().all(|name| state(name) != State::Changed));
        let restored = stage.restore("restored");
        let number = |name: &str| inode(&restored.join(name));
        assert_eq!(number("b"), number("c"));
        assert_eq!(number("a") == number("b"), contents[0] == contents[1]);
        // The next backup finds one file again.
        let volume = stage.backup();
        assert_eq!(["a", "b", "c"].map(|name| read(&volume, name)[0]), [2, 2, 2]);
        let restored = stage.restore("restored later");
        assert_eq!(inode(&restored.join("a")), inode(&restored.join("c")));
    }
}

/// A further name of a file becomes that of another file after its status was read.
#[test]
fn a_name_that_is_given_to_another_file_has_its_content() {
    for other_names in [1, 2] {
        let stage = Stage::new();
        stage.write("a", &[1; 9000]);
        stage.link("a", "b");
        stage.link("a", "c");
        stage.write("x other", &[2; 9000]);
        if other_names == 2 {
            stage.link("x other", "z other");
        }
        let root = stage.root.clone();
        stage.at(At::Step("b"), move || rename(&root.join("x other"), root.join("b")));
        let volume = stage.backup();
        let contents = ["a", "b", "c"].map(|name| read(&volume, name)[0]);
        assert_eq!(contents, [1, 2, 1], "{other_names}");
        let restored = stage.restore("restored");
        assert_eq!(inode(&restored.join("a")), inode(&restored.join("c")));
        if other_names == 2 {
            assert_eq!(inode(&restored.join("b")), inode(&restored.join("z other")));
        }
    }
}

/// The number of a file's names changes while it is read, and once more before the next is reached.
#[test]
fn names_that_come_and_go_do_not_end_the_backup() {
    for is_large in [false, true] {
        let stage = Stage::new();
        let path = stage.write("a", &vec![1; if is_large { 3 << 20 } else { 9000 }]);
        stage.link("a", "y");
        stage.link("a", "z");
        stage.write("m", b"m");
        let root = stage.root.clone();
        stage.at(At::Read("a", 0), move || {
            fs::remove_file(root.join("y")).unwrap();
            fs::remove_file(root.join("z")).unwrap();
            OpenOptions::new().append(true).open(root.join("a")).unwrap().write_all(&[1]).unwrap();
        });
        let root = stage.root.clone();
        stage.at(At::Step("m"), move || {
            fs::hard_link(root.join("a"), root.join("y")).unwrap();
            fs::hard_link(root.join("a"), root.join("z")).unwrap();
        });
        let volume = stage.backup();
        let wanted = fs::read(path).unwrap();
        for name in ["a", "y", "z"] {
            assert!(read(&volume, name) == wanted, "{name}");
        }
        stage.restore("restored");
    }
}

/// On file systems whose change times say nothing, the attributes of every file are read again. A
/// file that changes right before that is read, too.
#[test]
fn a_file_that_changes_behind_its_status_is_not_taken_for_unchanged() {
    for ignore_changed in [false, true] {
        let mut stage = Stage::new();
        stage.options.trust = Trust { ignore_inode: false, ignore_changed };
        let path = stage.write("file", &[1; 9000]);
        set_modified(&path, 1_000_000_000, 0);
        stage.backup();
        let changed = path.clone();
        stage.at(At::Step("file"), move || fs::write(changed, [2; 9000]).unwrap());
        stage.backup();
        let volume = stage.backup();
        assert!(read(&volume, "file") == [2; 9000], "{ignore_changed}");
    }
}

/// More is appended to each with every read than was read.
#[test]
fn files_that_grow_faster_than_they_are_read_are_read_twice_and_marked() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    // The second outgrows the segment that it shares with the first.
    let sizes = [("a", 1000), ("b", 900_000), ("c", 3 << 20)];
    for (name, bytes) in sizes {
        fs::write(root.join(name), vec![7; bytes]).unwrap();
    }
    let world = World::new(1);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    let mut session = repository.backup("home", kit::options()).unwrap();
    let folder = root.clone();
    let source = Box::new(Scripted::new(&root, move |at| {
        let At::Read(name, bytes) = at else { return };
        let mut file = OpenOptions::new().append(true).open(folder.join(name)).unwrap();
        file.write_all(&vec![7; 2 * bytes]).unwrap();
    }));
    session.add_tree_from("files", "growing", source, &TreeOptions::default()).unwrap();
    session.finish().unwrap();
    let found = kit::latest(&repository, "home").unwrap();
    let volume = TreeVolume::open(&repository, found.volume("files").unwrap(), 0).unwrap();
    for (name, bytes) in sizes {
        assert_eq!(volume.find(name.as_bytes()).unwrap().state, State::Changed, "{name}");
        let content = read(&volume, name);
        assert!(content.len() >= bytes && content.iter().all(|byte| *byte == 7), "{name}");
        let now = fs::metadata(root.join(name)).unwrap().len();
        assert!(now <= bytes as u64 * 40, "{name} was read twice: {now}");
    }
    assert_whole(&repository);
}
