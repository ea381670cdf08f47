//! File trees that change while they are backed up.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use silt_format::tree::{Entry, EntryKind, State};
use silt_storage::MemoryStorage;
use siltstone::{Protection, Repository, SystemEnv, TreeOptions, TreeVolume};

use crate::kit::{self, World};
use crate::tree_kit::{Scratch, set_xattr};
use crate::tree_script::{At, Events, Scripted};

/// A directory whose files take long to read, and whose entries take long to look at if asked for.
fn slow(root: &Path, world: &Arc<World>, is_slow_to_look_at: bool) -> Box<Scripted> {
    let world = world.clone();
    Box::new(Scripted::new(root, move |at| match at {
        At::Read(..) => world.pass_seconds(60),
        At::Completed(_) if is_slow_to_look_at => world.pass_seconds(60),
        _ => {}
    }))
}

/// What counts is when a file was opened, however long its reading took: a second change in the
/// same tick of the clock may have come right after that.
#[test]
fn a_file_that_changed_right_before_it_was_opened_is_read_again_next_time() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    for (name, bytes) in [("small", 1000), ("large", 5 << 20)] {
        fs::write(root.join(name), vec![7; bytes]).unwrap();
        let world = World::new(1);
        let changed = fs::metadata(root.join(name)).unwrap().ctime();
        // The clock is one second ahead of the change.
        world.pass_seconds(changed + 1 - 1_790_000_000);
        let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
        let mut session = repository.backup("home", kit::options()).unwrap();
        let source = slow(&root, &world, false);
        session.add_tree_from("files", "slow", source, &TreeOptions::default()).unwrap();
        session.finish().unwrap();
        let found = kit::latest(&repository, "home").unwrap();
        let volume = TreeVolume::open(&repository, found.volume("files").unwrap(), 0).unwrap();
        assert_eq!(volume.find(name.as_bytes()).unwrap().state, State::Fresh, "{name}");
        fs::remove_file(root.join(name)).unwrap();
    }
}

/// The same of attributes: what counts is when they were looked at, however long that took.
#[test]
fn attributes_that_changed_right_before_they_were_read_are_read_again_next_time() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    fs::create_dir(root.join("folder")).unwrap();
    std::os::unix::fs::symlink("somewhere", root.join("link")).unwrap();
    let world = World::new(1);
    let changed = fs::symlink_metadata(root.join("link")).unwrap().ctime();
    world.pass_seconds(changed + 1 - 1_790_000_000);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    for state in [State::Fresh, State::Whole] {
        let mut session = repository.backup("home", kit::options()).unwrap();
        let source = slow(&root, &world, true);
        session.add_tree_from("files", "slow", source, &TreeOptions::default()).unwrap();
        session.finish().unwrap();
        let found = kit::latest(&repository, "home").unwrap();
        let volume = TreeVolume::open(&repository, found.volume("files").unwrap(), 0).unwrap();
        // The root is looked at first, and the clock goes on from there.
        assert_eq!(volume.tree().root.state, state);
        if state == State::Whole {
            assert_eq!(volume.find(b"folder").unwrap().state, state);
            assert_eq!(volume.find(b"link").unwrap().state, state);
        }
    }
}

/// A file is changed between its two names: under neither does a later backup take what it read
/// before for what the file holds now.
#[test]
fn a_file_that_changes_between_its_names_is_read_again_under_both() {
    for (has_parent, is_before) in [(false, false), (false, true), (true, false), (true, true)] {
        let scratch = Scratch::new();
        let root = scratch.folder("source");
        fs::write(root.join("a"), [1; 9000]).unwrap();
        fs::hard_link(root.join("a"), root.join("b")).unwrap();
        let world = World::new(1);
        let changed = fs::metadata(root.join("a")).unwrap().ctime();
        world.pass_seconds(changed + 3600 - 1_790_000_000);
        let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
        let events = Events::default();
        let backup = || {
            world.pass_seconds(3600);
            let mut session = repository.backup("home", kit::options()).unwrap();
            let happening = events.clone();
            let source = Box::new(Scripted::new(&root, move |at| happening.reach(at)));
            let options = TreeOptions::default();
            session.add_tree_from("files", "eventful", source, &options).unwrap();
            session.finish().unwrap();
        };
        if has_parent {
            backup();
        }
        let (path, at) = (root.join("a"), if is_before { At::Done("a") } else { At::Step("b") });
        events.add(at, move || fs::write(path, [2; 9000]).unwrap());
        backup();
        assert!(events.have_happened());
        for _ in 0..2 {
            backup();
            let found = kit::latest(&repository, "home").unwrap();
            let volume = TreeVolume::open(&repository, found.volume("files").unwrap(), 0).unwrap();
            for name in [&b"a"[..], b"b"] {
                let file = volume.find(name).unwrap();
                let is_new = read(&volume, &file).iter().all(|byte| *byte == 2);
                assert!(is_new, "{} {has_parent} {is_before}", name.escape_ascii());
            }
        }
    }
}

/// The file is read again, and its attributes were read before: the change is not taken for known.
#[test]
fn an_attribute_that_changes_while_its_file_is_read_is_in_the_next_backup() {
    for bytes in [9000, 5 << 20] {
        let scratch = Scratch::new();
        let root = scratch.folder("source");
        let path = root.join("file");
        fs::write(&path, vec![7; bytes]).unwrap();
        if !set_xattr(&path, "user.note", b"before") {
            eprintln!("SKIPPED: the temporary folder has no extended attributes");
            return;
        }
        let world = World::new(1);
        let changed = fs::metadata(&path).unwrap().ctime();
        world.pass_seconds(changed + 3600 - 1_790_000_000);
        let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
        let events = Events::default();
        events.add(At::Read("file", 0), move || assert!(set_xattr(&path, "user.note", b"after")));
        for _ in 0..2 {
            world.pass_seconds(3600);
            let mut session = repository.backup("home", kit::options()).unwrap();
            let happening = events.clone();
            let source = Box::new(Scripted::new(&root, move |at| happening.reach(at)));
            let options = TreeOptions::default();
            session.add_tree_from("files", "interrupted", source, &options).unwrap();
            session.finish().unwrap();
        }
        assert!(events.have_happened());
        let found = kit::latest(&repository, "home").unwrap();
        let volume = TreeVolume::open(&repository, found.volume("files").unwrap(), 0).unwrap();
        let xattrs = volume.find(b"file").unwrap().metadata.xattrs;
        let note = xattrs.iter().find(|xattr| xattr.name == b"user.note").unwrap();
        assert_eq!(note.value, b"after", "{bytes}");
    }
}

const LINE: usize = 16;
/// How many lines the files have: some fill a segment of their own.
const LINES: [usize; 4] = [1, 300, 5000, 100_000];

/// The lines of a generation of a file.
fn content(generation: u64, lines: usize) -> Vec<u8> {
    format!("{generation:015}\n").repeat(lines).into_bytes()
}

/// What a writer does with its file, over and over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    /// Writes a new file and renames it.
    Replaces,
    /// Cuts the file to nothing and writes it.
    Rewrites,
    /// Writes over it, from its start to its end.
    Overwrites,
}

const WRITERS: [Writer; 3] = [Writer::Replaces, Writer::Rewrites, Writer::Overwrites];

fn write(writer: Writer, folder: &Path, lines: usize, has_ended: &AtomicBool) {
    let path = folder.join("file");
    for generation in 0.. {
        let bytes = content(generation, lines);
        match writer {
            Writer::Replaces => {
                fs::write(folder.join("new"), bytes).unwrap();
                #[expect(clippy::disallowed_methods, reason = "the user renames a file")]
                fs::rename(folder.join("new"), &path).unwrap();
            }
            Writer::Rewrites => {
                let file = File::create(&path).unwrap();
                write_all(&file, &bytes);
            }
            Writer::Overwrites => {
                let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
                write_all(&file.unwrap(), &bytes);
            }
        }
        if generation > 0 && has_ended.load(Ordering::SeqCst) {
            return;
        }
        // Most files rest at times, or nothing could be read whole.
        #[expect(clippy::disallowed_methods, reason = "a user pauses")]
        std::thread::sleep(std::time::Duration::from_millis(generation * 7 % 50));
    }
}

fn write_all(file: &File, bytes: &[u8]) {
    for (number, piece) in bytes.chunks(40 * LINE).enumerate() {
        file.write_all_at(piece, (number * 40 * LINE) as u64).unwrap();
    }
}

/// Whether a writer's file had this content at some time.
fn was_once(writer: Writer, lines: usize, read: &[u8]) -> bool {
    let generation = |line: &[u8]| std::str::from_utf8(&line[..LINE - 1]).unwrap().parse::<u64>();
    let all: Vec<u64> = read.chunks(LINE).map(|line| generation(line).unwrap()).collect();
    let first = all.first().copied();
    match writer {
        Writer::Replaces => all.len() == lines && all.iter().all(|it| Some(*it) == first),
        Writer::Rewrites => all.iter().all(|it| Some(*it) == first),
        // The rest is of the generation before, or not there yet.
        Writer::Overwrites => {
            let Some(first) = first else { return true };
            let new = all.iter().take_while(|it| **it == first).count();
            let is_old = |it: &u64| first.checked_sub(1) == Some(*it);
            all[new..].iter().all(is_old) && (all.len() == lines || first == 0)
        }
    }
}

#[test]
fn what_is_not_marked_as_changed_is_a_state_that_the_file_had() {
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let config = kit::config();
    let storage = Arc::new(MemoryStorage::new());
    let context = SystemEnv::context();
    let repository = Repository::init(storage, context, config, &Protection::None, None).unwrap();
    let writers: Vec<_> =
        WRITERS.iter().flat_map(|writer| LINES.map(|lines| (*writer, lines))).collect();
    let folder = |writer: &Writer, lines: usize| root.join(format!("{writer:?}{lines}"));
    for (writer, lines) in &writers {
        fs::create_dir(folder(writer, *lines)).unwrap();
    }
    let has_ended = AtomicBool::new(false);
    let (mut seen, mut changed) = (0, 0);
    std::thread::scope(|scope| {
        for (writer, lines) in &writers {
            let (folder, has_ended) = (folder(writer, *lines), &has_ended);
            scope.spawn(move || write(*writer, &folder, *lines, has_ended));
        }
        for _ in 0..12 {
            let mut session = repository.backup("home", kit::options()).unwrap();
            session.add_tree("files", &root, &TreeOptions::default()).unwrap();
            session.finish().unwrap();
        }
        has_ended.store(true, Ordering::SeqCst);
    });
    let head = repository.heads(&[]).unwrap().remove(0);
    for entry in &head.snapshots {
        let selector = siltstone::Selector::Id(entry.id.to_string());
        let found = kit::find(&repository, &selector).unwrap();
        let volume = TreeVolume::open(&repository, found.volume("files").unwrap(), 0).unwrap();
        for (writer, lines) in &writers {
            let path = format!("{writer:?}{lines}/file");
            let Ok(file) = volume.find(path.as_bytes()) else { continue };
            assert_eq!(file.metadata.kind, EntryKind::File);
            let read = read(&volume, &file);
            match file.state {
                State::Changed => changed += 1,
                State::Unreadable => panic!("{path} can be read"),
                State::Whole | State::Fresh => {
                    seen += 1;
                    assert!(was_once(*writer, *lines, &read), "{path} of {}", entry.id);
                }
            }
        }
    }
    assert!(seen > 50, "{seen} files were read whole, {changed} changed meanwhile");
}

fn read(volume: &TreeVolume, file: &Entry) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata.size).unwrap()];
    assert_eq!(volume.read_at(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}
