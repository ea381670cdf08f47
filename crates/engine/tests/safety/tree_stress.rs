//! File trees in which real programs change everything while they are backed up.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, fallocate};
use silt_format::Id;
use silt_format::tree::{Entry, EntryKind, State};
use silt_storage::MemoryStorage;
use siltstone::{Protection, Repository, Selector, SystemEnv, TreeOptions, TreeVolume};

use crate::kit::{self, Random};
use crate::tree_kit::{Scratch, assert_same, awkward_tree, has};
use crate::trees::{assert_whole, restore};

/// How long each load lasts.
const SECONDS: u64 = 6;
/// Snapshots that are restored at most; a fast machine makes many more.
const RESTORED: usize = 8;
const BLOCK: usize = 4096;

/// A program that is ended with the test.
struct Load(Child);

impl Load {
    fn start(program: &str, args: &[&str], folder: &Path) -> Self {
        let mut command = Command::new(program);
        command.args(args).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }

    fn has_ended(&mut self) -> bool {
        match self.0.try_wait().unwrap() {
            Some(status) => {
                assert!(status.success(), "{status}");
                true
            }
            None => false,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // It has ended already unless the test has failed.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Lets the writers end, also if the test fails.
struct EndOnDrop<'e>(&'e AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn repository() -> Repository {
    let storage = Arc::new(MemoryStorage::new());
    let context = SystemEnv::context();
    Repository::init(storage, context, kit::config(), &Protection::None, None).unwrap()
}

/// Backs up again and again until told to end, and then once more. Returns the snapshots.
fn back_up_until(
    repository: &Repository,
    root: &Path,
    mut has_ended: impl FnMut() -> bool,
) -> Vec<Id> {
    let mut made = Vec::new();
    loop {
        let is_last = has_ended();
        let mut session = repository.backup("home", kit::options()).unwrap();
        session.add_tree("files", root, &TreeOptions::default()).unwrap();
        made.push(session.finish().unwrap().snapshot.id);
        if is_last {
            return made;
        }
    }
}

fn volume(repository: &Repository, id: Id) -> TreeVolume {
    let found = kit::find(repository, &Selector::Id(id.to_string())).unwrap();
    TreeVolume::open(repository, found.volume("files").unwrap(), 0).unwrap()
}

/// Every entry below one, by its path.
fn entries(volume: &TreeVolume, above: &Entry, path: &Path, all: &mut BTreeMap<String, Entry>) {
    let mut cursor = volume.entries(above);
    while let Some(entry) = volume.next(&mut cursor).unwrap() {
        let path = path.join(entry.name.escape_ascii().to_string());
        entries(volume, &entry, &path, all);
        all.insert(path.to_str().unwrap().to_owned(), entry);
    }
}

fn read(volume: &TreeVolume, file: &Entry) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(file.metadata.size).unwrap()];
    assert_eq!(volume.read_at(file, 0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// The kinds of entries that are restored, by path.
fn kinds(root: &Path) -> BTreeMap<Vec<u8>, char> {
    let printed = crate::tree_kit::tool(
        "find",
        &["-mindepth", "1", "-printf", "%y%P\\0"].map(AsRef::as_ref),
        root,
    );
    let lines = printed.split(|byte| *byte == 0).filter(|line| !line.is_empty());
    lines.map(|line| (line[1..].to_vec(), char::from(line[0]))).collect()
}

fn kinds_in(volume: &TreeVolume, above: &Entry, path: &[u8], all: &mut BTreeMap<Vec<u8>, char>) {
    let mut cursor = volume.entries(above);
    while let Some(entry) = volume.next(&mut cursor).unwrap() {
        let kind = match entry.metadata.kind {
            EntryKind::File => 'f',
            EntryKind::Directory => 'd',
            EntryKind::Symlink => 'l',
            EntryKind::Fifo => 'p',
            EntryKind::Socket => 's',
            EntryKind::CharDevice => 'c',
            EntryKind::BlockDevice => 'b',
        };
        let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
        let path = [path, separator, &entry.name].concat();
        kinds_in(volume, &entry, &path, all);
        all.insert(path, kind);
    }
}

/// Directories, links and names come and go. Every backup succeeds, is whole, and is restored with
/// everything in it; what is at rest meanwhile comes back as it is.
#[test]
fn trees_in_which_names_come_and_go_are_backed_up_whole() {
    if !has("stress-ng") || !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    awkward_tree(&root.join("middle"));
    fs::create_dir(root.join("load")).unwrap();
    let timeout = format!("{SECONDS}s");
    let (paths, time) = (["--temp-path", "load"], ["--timeout", &timeout]);
    let kinds_of_load = ["dir", "rename", "link", "symlink", "dentry", "touch"];
    let kinds_of_load: Vec<String> = kinds_of_load.iter().map(|kind| format!("--{kind}")).collect();
    let mut args: Vec<&str> = kinds_of_load.iter().flat_map(|kind| [&**kind, "1"]).collect();
    args.extend(paths.into_iter().chain(time));
    args.extend(["--dir-dirs", "512", "--dentries", "512", "--quiet"]);
    let mut load = Load::start("stress-ng", &args, &root);
    let repository = repository();
    let made = back_up_until(&repository, &root, || load.has_ended());
    assert!(made.len() > 3, "{} backups", made.len());
    let mut seen = 0;
    let every = made.len().div_ceil(RESTORED);
    for (number, id) in made.into_iter().rev().enumerate() {
        let volume = volume(&repository, id);
        assert_eq!(volume.tree().counts.unreadable, 0, "{id}");
        let mut stored = BTreeMap::new();
        kinds_in(&volume, &volume.tree().root, b"", &mut stored);
        seen += stored.len();
        if number % every > 0 {
            continue;
        }
        let found = kit::find(&repository, &Selector::Id(id.to_string())).unwrap();
        let target = scratch.path(&format!("restored {id}"));
        restore(&repository, &found, &target);
        assert_eq!(stored, kinds(&target), "{id}");
        assert_same(&root.join("middle"), &target.join("middle"));
        drop(crate::tree_kit::tool("rm", &["-rf".as_ref(), "load".as_ref()], &target));
    }
    assert!(seen > 5000, "{seen} entries were there");
    assert_whole(&repository);
}

/// Numbers of blocks that the files of [`scatter`] have: small ones share segments.
const SCATTERED: [u64; 6] = [1, 3, 40, 200, 300, 1500];

/// The block that a write of [`scatter`] changes, and whether it makes a hole there.
fn target_of(write: u64, blocks: u64) -> (u64, bool) {
    let mixed = write.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ blocks;
    (mixed.rotate_left(29) % blocks, mixed >> 60 == 0)
}

/// Writes blocks here and there over and over, each with the number of its write.
fn scatter(folder: &Path, blocks: u64, ends: &AtomicBool) {
    let path = folder.join(format!("{blocks}"));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    file.set_len(blocks * BLOCK as u64).unwrap();
    for write in 1.. {
        let (block, is_hole) = target_of(write, blocks);
        let offset = block * BLOCK as u64;
        if is_hole {
            let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, mode, offset, BLOCK as u64).unwrap();
        } else {
            file.write_all_at(&write.to_le_bytes().repeat(BLOCK / 8), offset).unwrap();
        }
        if ends.load(Ordering::SeqCst) {
            return;
        }
        // It rests at times, or nothing could be read whole.
        if write % 50 == 0 {
            pause(write % 7 * 15);
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a user pauses")]
fn pause(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// Writes that can have become holes again.
const LATER_MAX: u64 = 64;

/// Whether a file of [`scatter`] was like this behind one of its writes. Holes have no number, so
/// the last write may have been a later one than any number tells.
fn was_scattered(bytes: &[u8]) -> bool {
    let blocks = (bytes.len() / BLOCK) as u64;
    let stamps: Vec<u64> = bytes
        .chunks(BLOCK)
        .map(|block| u64::from_le_bytes(block[..8].try_into().unwrap()))
        .collect();
    let is_uniform =
        |(block, stamp): (&[u8], &u64)| block.chunks(8).all(|word| word == stamp.to_le_bytes());
    if !bytes.chunks(BLOCK).zip(&stamps).all(is_uniform) {
        return false;
    }
    let newest = stamps.iter().copied().max().unwrap_or(0);
    // What was written later is a hole again.
    (newest..newest + LATER_MAX).any(|last| stamps == state_behind(last, blocks))
}

/// The number in each block behind a write.
fn state_behind(last: u64, blocks: u64) -> Vec<u64> {
    let mut state = vec![None; usize::try_from(blocks).unwrap()];
    let mut left = state.len();
    for write in (1..=last).rev() {
        let (block, is_hole) = target_of(write, blocks);
        let place = &mut state[usize::try_from(block).unwrap()];
        if place.is_none() {
            *place = Some(if is_hole { 0 } else { write });
            left -= 1;
        }
        if left == 0 {
            break;
        }
    }
    state.into_iter().map(Option::unwrap_or_default).collect()
}

/// Makes files with two names that tell what they hold, and removes them again, so that the file
/// system gives the numbers of removed files to new ones.
fn replace(folder: &Path, outside: &Path, ends: &AtomicBool) {
    let mut random = Random(9);
    let mut there = VecDeque::new();
    for number in 0_u64.. {
        let names = [(); 2].map(|()| format!("{:06}-{number}-{}", random.below(999_999), random.0));
        fs::write(outside, of_number(number)).unwrap();
        names.iter().for_each(|name| fs::hard_link(outside, folder.join(name)).unwrap());
        fs::remove_file(outside).unwrap();
        there.push_back(names);
        if there.len() > 300 {
            let gone = there.pop_front().unwrap();
            gone.iter().for_each(|name| fs::remove_file(folder.join(name)).unwrap());
        }
        if ends.load(Ordering::SeqCst) {
            return;
        }
        if number % 20 == 0 {
            pause(1);
        }
    }
}

/// What the file of a number holds.
fn of_number(number: u64) -> Vec<u8> {
    let bytes = usize::try_from(number * 7919 % 30_000).unwrap();
    number.to_le_bytes().repeat(1 + bytes / 8)
}

/// Files with checksums in the header of each block.
const FIO_FILES: usize = 32;

fn fio(folder: &Path, more: &[&str]) -> Load {
    let files = format!("--nrfiles={FIO_FILES}");
    let fixed = ["--name=load", "--filename_format=$filenum", "--filesize=256k", "--bs=4k"];
    let checks = ["--verify=crc32c", "--do_verify=0", "--verify_state_save=0"];
    let ways = ["--ioengine=psync", "--randrepeat=0", "--output=/dev/null", &files];
    let args = [&fixed[..], &checks, &ways, more].concat();
    Load::start("fio", &args, folder)
}

/// CRC-32C without the inversion at its end, as fio computes it.
fn fio_crc32c(bytes: &[u8], table: &[u32; 256]) -> u32 {
    let step = |crc: u32, byte: &u8| table[usize::from(crc.to_le_bytes()[0] ^ byte)] ^ (crc >> 8);
    bytes.iter().fold(!0, step)
}

fn crc32c_table() -> [u32; 256] {
    std::array::from_fn(|byte| {
        let bit = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
        (0..8).fold(u32::try_from(byte).unwrap(), bit)
    })
}

/// Whether a block is one that fio wrote at this offset: the header of its version 3, with magic,
/// offset and checksum, then the checksum of the rest.
fn is_of_fio(block: &[u8], offset: u64, table: &[u32; 256]) -> bool {
    let u32_at = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap());
    block[..2] == 0xacca_u16.to_le_bytes()
        && block[16..24] == offset.to_le_bytes()
        && u32_at(36) == fio_crc32c(&block[..36], table)
        && u32_at(40) == fio_crc32c(&block[44..], table)
}

/// Every file that is not marked as changed is a state that it had while it was read.
#[test]
fn files_that_are_written_here_and_there_are_states_that_they_had() {
    if !has("fio") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let [by_fio, scattered, replaced] = ["fio", "scattered", "replaced"].map(|name| {
        fs::create_dir(root.join(name)).unwrap();
        root.join(name)
    });
    let mut layout = fio(&by_fio, &["--rw=write"]);
    while !layout.has_ended() {
        std::thread::yield_now();
    }
    let runtime = format!("--runtime={SECONDS}");
    let random = ["--rw=randwrite", "--norandommap", "--time_based", &runtime, "--rate_iops=150"];
    let mut load = fio(&by_fio, &random);
    let repository = repository();
    let ends = AtomicBool::new(false);
    let made = std::thread::scope(|scope| {
        let _end = EndOnDrop(&ends);
        for blocks in SCATTERED {
            let (folder, ends) = (&scattered, &ends);
            scope.spawn(move || scatter(folder, blocks, ends));
        }
        let outside = scratch.path("outside");
        let (folder, ended) = (&replaced, &ends);
        scope.spawn(move || replace(folder, &outside, ended));
        back_up_until(&repository, &root, || load.has_ended())
    });
    assert!(made.len() > 3, "{} backups", made.len());
    let table = crc32c_table();
    let mut whole = BTreeMap::new();
    for id in &made {
        let volume = volume(&repository, *id);
        let mut all = BTreeMap::new();
        entries(&volume, &volume.tree().root, Path::new(""), &mut all);
        for (path, entry) in all {
            let is_settled = matches!(entry.state, State::Whole | State::Fresh);
            let Some((folder, name)) = path.split_once('/').filter(|_| is_settled) else {
                assert!(entry.state != State::Unreadable, "{path}");
                continue;
            };
            let bytes = read(&volume, &entry);
            let is_right = match folder {
                "fio" => bytes
                    .chunks(BLOCK)
                    .zip((0..).step_by(BLOCK))
                    .all(|(block, offset)| is_of_fio(block, offset, &table)),
                "scattered" => was_scattered(&bytes),
                _ => bytes == of_number(name.split('-').nth(1).unwrap().parse().unwrap()),
            };
            assert!(is_right, "{path} of {id} was never like this");
            *whole.entry(folder.to_owned()).or_insert(0) += 1;
        }
    }
    assert!(whole.len() == 3 && whole.values().all(|count| *count > 20), "{whole:?}");
    let last = kit::latest(&repository, "home").unwrap();
    let target = scratch.path("restored");
    restore(&repository, &last, &target);
    for entry in fs::read_dir(target.join("replaced")).unwrap() {
        let (path, name) = {
            let entry = entry.unwrap();
            (entry.path(), entry.file_name().into_string().unwrap())
        };
        let number = name.split('-').nth(1).unwrap().parse().unwrap();
        assert!(fs::read(&path).unwrap() == of_number(number), "{name}");
        assert!(fs::metadata(&path).unwrap().nlink() <= 2);
    }
    assert_whole(&repository);
}
