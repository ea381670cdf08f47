//! What a machine remembers of segments decides about time alone (I-6, I-12).

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use silt_format::{Level, SEGMENT_BYTES};
use silt_storage::MemoryStorage;
use siltstone::{BackupOptions, BackupReport, CheckOptions, DataCheck, Repository};
use tempfile::TempDir;

use crate::kit::{self, MemorySource, Random, World};
use crate::rounds::{self, round};

/// Segments of the disks, all different and without zeros.
const SEGMENTS: usize = 6;

/// A machine that remembers, with a repository of its own or another machine's.
struct Machine {
    world: Arc<World>,
    memory: TempDir,
}

impl Machine {
    fn new(seed: u64, host: &str) -> Self {
        let world = World::process(seed, 1, host, &Arc::default());
        let memory = tempfile::tempdir().unwrap();
        *world.segments.lock().unwrap() = Some(memory.path().to_owned());
        Self { world, memory }
    }

    fn open(&self, storage: &Arc<MemoryStorage>) -> Repository {
        self.world.pass_seconds(600);
        kit::open(storage.clone(), &self.world).unwrap()
    }

    /// The files of what it remembers.
    fn files(&self) -> Vec<PathBuf> {
        let below = |folder: &Path| {
            let entries = fs::read_dir(folder).unwrap();
            entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        below(self.memory.path()).iter().flat_map(|folder| below(folder)).collect()
    }

    /// The only one of them.
    fn file(&self) -> PathBuf {
        let files = self.files();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].clone()
    }
}

fn disk(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; SEGMENTS * SEGMENT_BYTES];
    Random(seed).fill(&mut bytes);
    bytes
}

/// The disk with another byte in some segments.
fn with_changes(disk: &[u8], segments: &[usize]) -> Vec<u8> {
    let mut disk = disk.to_vec();
    segments.iter().for_each(|segment| disk[segment * SEGMENT_BYTES + 12_345] ^= 1);
    disk
}

/// Backs up, restores, and returns the number of recognized segments.
fn backed_up(repository: &Repository, disk: &[u8]) -> u64 {
    let report = kit::backup(repository, "vm", disk).unwrap();
    let found = kit::latest(repository, "vm").unwrap();
    assert!(kit::restore(repository, &found).unwrap() == *disk);
    report.recognized_segments
}

fn new_storage(machine: &Machine) -> (Arc<MemoryStorage>, Repository) {
    let storage = Arc::new(MemoryStorage::new());
    let repository = kit::init(storage.clone(), &machine.world).unwrap();
    (storage, repository)
}

fn digest_bytes(report: &BackupReport) -> u64 {
    report.snapshot.volumes[0].levels.get(Level::Digest)
}

#[test]
fn unchanged_segments_are_recognized_from_the_second_backup_on() {
    let machine = Machine::new(1, "here");
    let (storage, repository) = new_storage(&machine);
    let first = disk(1);
    assert_eq!(backed_up(&repository, &first), 0);
    let repository = machine.open(&storage);
    assert_eq!(backed_up(&repository, &first), SEGMENTS as u64);
    let second = with_changes(&first, &[1, 4]);
    assert_eq!(backed_up(&repository, &second), SEGMENTS as u64 - 2);
    assert_eq!(backed_up(&repository, &second), SEGMENTS as u64);
    // Where nobody remembers, the same is found by digests.
    *machine.world.segments.lock().unwrap() = None;
    let report = kit::backup(&repository, "vm", &second).unwrap();
    assert_eq!((report.recognized_segments, digest_bytes(&report)), (0, second.len() as u64));
}

/// A pair says which digest bytes have, and nothing of snapshots: what others have backed up since
/// does not matter.
#[test]
fn backups_of_other_hosts_between_do_not_matter() {
    let (one, other) = (Machine::new(1, "one"), Machine::new(2, "other"));
    let (storage, repository) = new_storage(&one);
    let (first, second) = (disk(1), with_changes(&disk(1), &[0, 1, 5]));
    assert_eq!(backed_up(&repository, &first), 0);
    assert_eq!(backed_up(&other.open(&storage), &second), 0);
    // The disk of this machine is as it was, and the parent is not.
    assert_eq!(backed_up(&one.open(&storage), &first), SEGMENTS as u64 - 3);
    assert_eq!(backed_up(&other.open(&storage), &first), SEGMENTS as u64 - 3);
    // The disk is another machine's now, whose bytes were never digested here.
    assert_eq!(backed_up(&one.open(&storage), &second), SEGMENTS as u64 - 3);
    assert_eq!(backed_up(&one.open(&storage), &second), SEGMENTS as u64);
    assert_eq!(backed_up(&other.open(&storage), &second), SEGMENTS as u64 - 3);
}

/// An old memo, of a disk that has changed twice and back.
#[test]
fn an_old_memo_costs_time() {
    let machine = Machine::new(1, "here");
    let (_, repository) = new_storage(&machine);
    let (first, second) = (disk(1), with_changes(&disk(1), &[2, 3]));
    backed_up(&repository, &first);
    let file = machine.file();
    let old = fs::read(&file).unwrap();
    backed_up(&repository, &second);
    fs::write(&file, &old).unwrap();
    assert_eq!(backed_up(&repository, &second), SEGMENTS as u64 - 2);
    fs::write(&file, &old).unwrap();
    assert_eq!(backed_up(&repository, &first), SEGMENTS as u64 - 2);
    fs::remove_file(&file).unwrap();
    assert_eq!(backed_up(&repository, &second), 0);
    assert_eq!(backed_up(&repository, &second), SEGMENTS as u64);
}

/// Of one segment, the memo gets the digest that the parent has of another state, or any other
/// damage: all of them cost time.
#[test]
fn a_damaged_memo_costs_time() {
    let machine = Machine::new(1, "here");
    let (_, repository) = new_storage(&machine);
    let mut now = disk(1);
    backed_up(&repository, &now);
    let mut random = Random(7);
    println!("seed 7");
    for turn in 0..24 {
        let file = machine.file();
        let mut bytes = fs::read(&file).unwrap();
        // The pairs begin behind the header and the proof of the page.
        let pairs = 4096 + 32;
        match turn % 4 {
            0 => {
                let at = pairs + random.below(SEGMENTS * 32);
                bytes[at] ^= 1 << random.below(8);
            }
            1 => bytes.truncate(random.below(bytes.len())),
            2 => bytes.copy_within(pairs..pairs + 32, pairs + 32 * (1 + random.below(4))),
            _ => {
                let at = random.below(bytes.len());
                let end = (at + random.below(2000)).min(bytes.len());
                random.fill(&mut bytes[at..end]);
            }
        }
        fs::write(&file, bytes).unwrap();
        let segment = random.below(SEGMENTS);
        now = with_changes(&now, &[segment]);
        let recognized = backed_up(&repository, &now);
        assert!(recognized < SEGMENTS as u64, "turn {turn}");
    }
    assert_eq!(backed_up(&repository, &now), SEGMENTS as u64);
}

/// The same names in another repository, and that machine's file in the place of this one's.
#[test]
fn the_memo_of_another_repository_says_nothing() {
    let (one, other) = (Machine::new(1, "one"), Machine::new(2, "other"));
    let ((_, first), (_, second)) = (new_storage(&one), new_storage(&other));
    assert_ne!(first.id(), second.id());
    let now = disk(1);
    backed_up(&first, &now);
    backed_up(&second, &now);
    let (from, to) = (one.file(), other.file());
    assert_ne!(from.file_name(), to.file_name(), "names are keyed");
    fs::copy(&from, &to).unwrap();
    assert_eq!(backed_up(&second, &now), 0);
    assert_eq!(backed_up(&second, &now), SEGMENTS as u64);
}

/// Who has all keys of the repository, and this machine's memo of another volume, makes no match.
#[test]
fn the_memo_of_another_volume_says_nothing() {
    let machine = Machine::new(1, "here");
    let (_, repository) = new_storage(&machine);
    let now = disk(1);
    kit::backup(&repository, "other", &now).unwrap();
    let from = machine.file();
    backed_up(&repository, &now);
    let to = machine.files().into_iter().find(|file| *file != from).unwrap();
    fs::copy(&from, &to).unwrap();
    assert_eq!(backed_up(&repository, &now), 0);
}

/// Chunks that are known to be damaged are stored again, although their segment is recognized.
#[test]
fn damaged_chunks_of_recognized_segments_are_stored_again() {
    let machine = Machine::new(1, "here");
    let (storage, repository) = new_storage(&machine);
    let now = disk(1);
    backed_up(&repository, &now);
    let objects = silt_storage::list_all(&*storage, "", None);
    let objects: Vec<_> = objects.map(|object| object.unwrap()).collect();
    let (container, bytes) = objects.iter().max_by_key(|(_, bytes)| *bytes).unwrap();
    let middle = usize::try_from(bytes / 2).unwrap();
    storage.damage(container, |bytes: &mut Vec<u8>| bytes[middle] ^= 1).unwrap();
    let repository = machine.open(&storage);
    let data = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    assert!(!repository.check(&data).unwrap().damage.is_empty());
    let recognized = backed_up(&repository, &now);
    assert!(recognized > 0 && recognized < SEGMENTS as u64, "{recognized}");
}

/// Without a parent, everything is digested, whatever is remembered.
#[test]
fn a_backup_without_a_parent_digests_everything() {
    let machine = Machine::new(1, "here");
    let (_, repository) = new_storage(&machine);
    let now = disk(1);
    backed_up(&repository, &now);
    let options = BackupOptions { no_parent: true, ..kit::options() };
    let report = kit::backup_with(&repository, "vm", &MemorySource::new(&now), options).unwrap();
    assert_eq!(report.recognized_segments, 0);
}

#[test]
fn rounds_recognize_segments_too() {
    let machine = Machine::new(1, "here");
    let (_, repository) = new_storage(&machine);
    let (a, b) = (disk(1), disk(2));
    let recognized = |a: &[u8], b: &[u8]| {
        machine.world.pass_seconds(600);
        let report = round(&repository, &[("a", a), ("b", b)]).unwrap();
        rounds::assert_latest(&repository, &[("a", a.to_vec()), ("b", b.to_vec())]);
        let backups = report.backups.into_iter();
        backups.map(|backup| backup.unwrap().recognized_segments).collect::<Vec<_>>()
    };
    assert_eq!(recognized(&a, &b), [0, 0]);
    assert_eq!(recognized(&a, &b), [SEGMENTS as u64; 2]);
    let changed = with_changes(&b, &[3]);
    assert_eq!(recognized(&a, &changed), [SEGMENTS as u64, SEGMENTS as u64 - 1]);
    // A backup alone finds what the round has noted.
    let report = kit::backup(&repository, "b", &changed).unwrap();
    assert_eq!(report.recognized_segments, SEGMENTS as u64);
}
