//! Restoring a tree over an older state of itself: only what differs is read from the repository,
//! and no existing file is written to.

#![expect(clippy::print_stdout, reason = "a test says what it read, or that it was skipped")]

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use silt_storage::{MemoryStorage, OperationKind, RecordingStorage, Storage, Totals, list_all};
use siltstone::{TreeRestoreOptions, TreeRestoreReport};

use silt_tree::{Existing, MakeOptions};

use crate::kit::{self, Random, World};
use crate::tree_kit::{Scratch, has, set_modified};
use crate::trees::backup;

const LARGE_BYTES: usize = 16 << 20;

/// A repository whose reads are counted, and the tree that was backed up to it.
struct Case {
    scratch: Scratch,
    storage: Arc<RecordingStorage<MemoryStorage>>,
    root: PathBuf,
}

impl Case {
    fn new(scratch: Scratch, seed: u64, write: impl FnOnce(&Path, &mut Random)) -> Self {
        let root = scratch.folder("source");
        write(&root, &mut Random(seed));
        let storage = Arc::new(RecordingStorage::new(MemoryStorage::new()));
        let repository = kit::init(storage.clone(), &World::new(seed)).unwrap();
        backup(&repository, &root);
        Self { scratch, storage, root }
    }

    /// Copies the tree to the target, to be changed there.
    fn target(&self) -> PathBuf {
        let target = self.scratch.path("target");
        let copied = Command::new("cp").arg("-a").arg(&self.root).arg(&target).status();
        assert!(copied.unwrap().success());
        target
    }

    /// Restores over the target. Returns what was read from the repository.
    fn restore(&self) -> (TreeRestoreReport, Totals) {
        let repository = kit::open(self.storage.clone(), &World::new(7)).unwrap();
        let found = kit::latest(&repository, "home").unwrap();
        self.storage.take();
        let make = MakeOptions { existing: Existing::KeepIfSame, ..MakeOptions::default() };
        let options = TreeRestoreOptions { make, jobs: 2, ..TreeRestoreOptions::default() };
        let (volume, target) = (found.volume("files").unwrap(), self.scratch.path("target"));
        let report = repository.restore_tree(volume, b"/", &target, &options).unwrap();
        (report, self.storage.totals(OperationKind::Get))
    }

    #[track_caller]
    fn assert_restored(&self) -> Totals {
        let (report, read) = self.restore();
        assert_eq!(report.made.failed, 0, "{:?}", report.made.failures);
        let target = self.scratch.path("target");
        for entry in fs::read_dir(&self.root).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            let (wanted, found) = (self.root.join(&name), target.join(&name));
            assert!(fs::read(&wanted).unwrap() == fs::read(&found).unwrap(), "{name:?}");
            let times = [&wanted, &found].map(|path| fs::metadata(path).unwrap());
            assert_eq!(times[0].mtime_nsec(), times[1].mtime_nsec(), "{name:?}");
            assert_eq!(times[0].mode(), times[1].mode(), "{name:?}");
        }
        let temporary = fs::read_dir(&target).unwrap().count();
        assert_eq!(temporary, fs::read_dir(&self.root).unwrap().count(), "no temporary file stays");
        read
    }
}

fn large(root: &Path, random: &mut Random) {
    let mut bytes = vec![0; LARGE_BYTES];
    random.fill(&mut bytes);
    fs::write(root.join("large"), &bytes).unwrap();
}

fn inode(path: &Path) -> u64 {
    path.symlink_metadata().unwrap().ino()
}

/// Changes bytes of a file, and with that its modification time.
fn overwrite(path: &Path, at: u64, bytes: usize) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&vec![b'!'; bytes], at).unwrap();
}

fn set_size(path: &Path, bytes: u64) {
    File::options().write(true).open(path).unwrap().set_len(bytes).unwrap();
}

/// What a restore reads of a file that needs no content: the directories and recipes.
const OVERHEAD_BYTES: u64 = LARGE_BYTES as u64 / 100;

#[track_caller]
fn assert_reads_what_differs(case: &Case) {
    let target = case.target();
    let path = target.join("large");
    let before = inode(&path);
    let nothing = case.assert_restored();
    assert!(nothing.bytes < OVERHEAD_BYTES, "{nothing:?}");
    // Other times are no other content.
    set_modified(&path, 1_000_000, 1);
    let nothing = case.assert_restored();
    assert!(nothing.bytes < OVERHEAD_BYTES, "{nothing:?}");
    assert_eq!(inode(&path), before, "the file is the one that was there");

    // A hundredth differs; frames of 64 KiB and chunks are read as a whole.
    overwrite(&path, 5_000_000, LARGE_BYTES / 100);
    let mut old = File::open(&path).unwrap();
    let hundredth = case.assert_restored();
    let around = 2 * (64 << 10);
    let expected = LARGE_BYTES as u64 / 100 + around + OVERHEAD_BYTES;
    assert!(hundredth.bytes < expected, "{hundredth:?}, of {expected}");
    assert!(hundredth.bytes > LARGE_BYTES as u64 / 100, "{hundredth:?}");
    let (read, of) = (hundredth.bytes, LARGE_BYTES);
    println!("{read} bytes read for a hundredth of {of}, {} for nothing", nothing.bytes);
    assert_ne!(inode(&path), before, "a new file has its name");
    let mut bytes = Vec::new();
    old.read_to_end(&mut bytes).unwrap();
    assert!(bytes[5_000_000..].starts_with(b"!!!!"), "who has the old file open keeps it");

    for size in [LARGE_BYTES as u64 - 100_000, LARGE_BYTES as u64 + 3_000_000] {
        set_size(&path, size);
        let read = case.assert_restored();
        assert!(read.bytes < 100_000 + around + OVERHEAD_BYTES, "{read:?} from {size}");
    }
}

#[test]
fn only_the_chunks_that_differ_are_read() {
    assert_reads_what_differs(&Case::new(Scratch::new(), 1, large));
}

/// A file system on which files can share blocks, until this is dropped.
struct Shared(PathBuf);

impl Shared {
    /// `None` if this machine cannot mount one.
    fn mount(scratch: &Scratch) -> Option<Self> {
        let image = scratch.path("image");
        File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let folder = scratch.folder("mounted");
        let run = |line: &str| shell(line, &[&image, &folder]).status.success();
        let is_mounted = run("mkfs.btrfs -q \"$1\"") && run("mount -o loop \"$1\" \"$2\"");
        if !is_mounted {
            println!("SKIPPED: a file system that shares blocks cannot be mounted");
        }
        is_mounted.then_some(Self(folder))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let unmounted = shell("umount \"$1\"", &[&self.0]);
        assert!(unmounted.status.success() || std::thread::panicking(), "{unmounted:?}");
    }
}

/// Runs a line of shell with these paths as `$1` and so on.
fn shell(line: &str, paths: &[&Path]) -> Output {
    let line = format!("PATH=$PATH:/usr/sbin:/sbin; {line}");
    Command::new("sh").args(["-c", &line, "sh"]).args(paths).output().unwrap()
}

/// Bytes on disk that a file shares with no other.
fn own_bytes(path: &Path) -> u64 {
    let output = shell("btrfs filesystem du --raw \"$1\"", &[path]);
    let output = String::from_utf8(output.stdout).unwrap();
    let last = output.lines().last().unwrap().split_whitespace().nth(1).unwrap();
    last.parse().unwrap()
}

#[test]
fn where_files_can_share_blocks_only_what_differs_is_written() {
    if !has("mkfs.btrfs") {
        return;
    }
    let outer = Scratch::new();
    let Some(shared) = Shared::mount(&outer) else { return };
    let case = Case::new(Scratch::in_folder(&shared.0), 2, |root, random| {
        large(root, random);
        sparse(root, random);
    });
    assert_reads_what_differs(&case);
    fs::remove_dir_all(case.scratch.path("target")).unwrap();
    let target = case.target();
    overwrite(&target.join("large"), 5_000_000, LARGE_BYTES / 100);
    fs::hard_link(target.join("large"), case.scratch.path("before")).unwrap();
    overwrite(&target.join("sparse"), 1 << 20, 1 << 20);
    case.assert_restored();
    rustix::fs::sync();
    let own = own_bytes(&target.join("large"));
    assert!((1..1 << 20).contains(&own), "{own} of {LARGE_BYTES} bytes were written");
    assert!(blocks(&target.join("sparse")) < 3 << 20, "the hole is there again");
    drop(case);
    drop(shared);
}

/// Data, a hole of 20 MiB, data.
fn sparse(root: &Path, random: &mut Random) {
    let file = File::create(root.join("sparse")).unwrap();
    let mut bytes = vec![0; 200_000];
    for at in [0, (20 << 20) + 4096] {
        random.fill(&mut bytes);
        file.write_all_at(&bytes, at).unwrap();
    }
}

fn blocks(path: &Path) -> u64 {
    path.metadata().unwrap().blocks() * 512
}

#[test]
fn holes_come_back_and_zeros_in_them_are_no_difference() {
    let case = Case::new(Scratch::new(), 3, sparse);
    let target = case.target();
    let path = target.join("sparse");
    overwrite(&path, 5 << 20, 4 << 20);
    assert!(blocks(&path) > 4 << 20);
    case.assert_restored();
    assert!(blocks(&path) < 1 << 20, "{} bytes", blocks(&path));
    let before = inode(&path);
    let file = File::options().write(true).open(&path).unwrap();
    file.write_all_at(&vec![0; 1 << 20], 5 << 20).unwrap();
    case.assert_restored();
    assert_eq!(inode(&path), before);
}

#[test]
fn names_outside_of_the_target_keep_content_and_attributes() {
    let case = Case::new(Scratch::new(), 4, |root, _| {
        for name in ["linked", "single"] {
            fs::write(root.join(name), name).unwrap();
        }
        fs::hard_link(root.join("linked"), root.join("second")).unwrap();
    });
    for (name, content) in [("linked", "linked"), ("linked", "LINKED"), ("single", "single")] {
        let target = case.target();
        let outside = case.scratch.path("outside");
        fs::remove_file(target.join(name)).unwrap();
        fs::write(&outside, content).unwrap();
        fs::set_permissions(&outside, fs::Permissions::from_mode(0o604)).unwrap();
        set_modified(&outside, 1_000_000, 5);
        fs::hard_link(&outside, target.join(name)).unwrap();
        let before = outside.metadata().unwrap();
        case.assert_restored();
        let now = outside.metadata().unwrap();
        assert_eq!(fs::read(&outside).unwrap(), content.as_bytes());
        assert_eq!((now.mode(), now.mtime(), now.nlink()), (before.mode(), 1_000_000, 1));
        assert_ne!(inode(&target.join(name)), now.ino());
        assert_eq!(inode(&target.join("linked")), inode(&target.join("second")));
        // Now all is as in the snapshot, and stays.
        let inodes = ["linked", "second", "single"].map(|name| inode(&target.join(name)));
        case.assert_restored();
        assert_eq!(inodes, ["linked", "second", "single"].map(|name| inode(&target.join(name))));
        fs::remove_dir_all(&target).unwrap();
        fs::remove_file(&outside).unwrap();
    }
}

#[test]
fn chunks_that_are_there_need_no_repository() {
    let case = Case::new(Scratch::new(), 5, large);
    let path = case.target().join("large");
    for object in list_all(&*case.storage, "containers/", None) {
        case.storage.inner().delete(&[object.unwrap().0]).unwrap();
    }
    set_modified(&path, 1_000_000, 1);
    case.assert_restored();
    overwrite(&path, 5_000_000, 1000);
    let before = fs::read(&path).unwrap();
    let (report, _) = case.restore();
    assert_eq!(report.made.failed, 1, "{:?}", report.made.failures);
    assert_eq!(report.made.failures[0].path, b"large");
    assert!(fs::read(&path).unwrap() == before, "it stays as it was");
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
}
