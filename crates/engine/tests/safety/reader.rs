//! Reading volumes at random: from any thread, any range, what was backed up or an error.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::{DamagedSlots, ErrorKind, ObjectTag, SEGMENT_BYTES};
use silt_repository::check_record::RecordState;
use silt_storage::{
    ByteRange, Fault, FaultStorage, MemoryStorage, Operation, OperationKind, RecordingStorage,
    Storage, list_all,
};
use siltstone::{
    BackupOptions, DeleteMethod, MEMORY_BYTES_MIN, Repository, SharePolicy, VolumeReader,
};

use crate::kit::{self, MemorySource, Random, World};
use crate::shared;

fn reader(repository: &Repository, memory_bytes: u64) -> VolumeReader {
    let found = kit::latest(repository, "vm").unwrap();
    VolumeReader::open(repository, found.volume("disk").unwrap(), memory_bytes).unwrap()
}

/// Zeros over several segments, data with zeros inside, and an end in the middle of a block.
fn image() -> Vec<u8> {
    let odd = [kit::image(2, 700), vec![0; 3 * SEGMENT_BYTES], kit::image(3, 900)].concat();
    odd[..odd.len() - 1234].to_vec()
}

/// Some offset and length, often at or over a border of blocks or segments.
fn range(random: &mut Random, bytes: usize) -> (usize, usize) {
    let at = match random.below(4) {
        0 => random.below(bytes),
        1 => random.below(bytes / 4096) * 4096,
        2 => (random.below(bytes / SEGMENT_BYTES) * SEGMENT_BYTES).saturating_sub(random.below(9)),
        _ => bytes - random.below(9000).min(bytes),
    };
    let length = [1, 511, 4096, 10_000, 70_000, SEGMENT_BYTES + 5][random.below(6)];
    (at, length)
}

#[test]
fn any_range_is_what_was_backed_up() {
    let image = image();
    for chunking in ["4K", "64K", "cdc"] {
        for request_bytes in [0, 512 << 10] {
            let world = World::new(1);
            let storage = Arc::new(MemoryStorage::new().far(request_bytes));
            let repository = kit::init(storage, &world).unwrap();
            let options = BackupOptions {
                chunking: Some(kit::chunked(chunking)),
                ..BackupOptions::default()
            };
            kit::backup_with(&repository, "vm", &MemorySource::new(&image), options).unwrap();
            let reader = &reader(&repository, MEMORY_BYTES_MIN);
            let image = &image;
            let in_memory = &AtomicU64::new(0);
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    scope.spawn(move || {
                        let mut random = Random(thread + 1);
                        for _ in 0..150 {
                            let (at, length) = range(&mut random, image.len());
                            let mut into = vec![7; length];
                            let read = reader.read_at(at as u64, &mut into).unwrap();
                            assert_eq!(read, length.min(image.len() - at));
                            assert!(into[..read] == image[at..at + read], "{at}+{length}");
                            into.fill(7);
                            // Other threads may have driven it out already.
                            let found = reader.read_in_memory(at as u64, &mut into[..read]);
                            if let Some(is_zero) = found {
                                assert!(into[..read] == image[at..at + read], "{at}+{length}");
                                assert!(!is_zero || into[..read].iter().all(|byte| *byte == 0));
                                in_memory.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    });
                }
            });
            let mut none = [1; 8];
            assert_eq!(reader.read_at(image.len() as u64 + 5, &mut none).unwrap(), 0);
            assert_eq!(reader.read_at(u64::MAX, &mut none).unwrap(), 0);
            assert_eq!(reader.read_in_memory(image.len() as u64 - 7, &mut none), None);
            assert!(in_memory.load(Ordering::Relaxed) > 100);
        }
    }
}

#[test]
fn extents_say_where_zeros_are() {
    let image = image();
    let repository = kit::init(Arc::new(MemoryStorage::new()), &World::new(2)).unwrap();
    kit::backup(&repository, "vm", &image).unwrap();
    let reader = reader(&repository, 0);
    let (mut at, mut zeros, mut extents) = (0, 0, 0);
    while let Some(extent) = reader.extent_at(at as u64).unwrap() {
        assert_eq!(extent.span.offset, at as u64);
        let end = at + usize::try_from(extent.span.length).unwrap();
        assert!(end > at);
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        for block in image[at..end].chunks(4096) {
            assert_eq!(is_zero(block), extent.is_zero, "at {at}");
        }
        zeros += if extent.is_zero { end - at } else { 0 };
        (at, extents) = (end, extents + 1);
    }
    assert_eq!(at, image.len());
    assert!(zeros > 3 * SEGMENT_BYTES && extents > 4, "{zeros} {extents}");
    // From the middle of an extent to its end.
    let hole = (700 * 4096 + SEGMENT_BYTES) as u64;
    let extent = reader.extent_at(hole).unwrap().unwrap();
    assert!(extent.is_zero && extent.span.offset == hole);
}

#[test]
fn damage_is_an_error_that_names_the_object_and_no_wrong_byte() {
    let image = kit::image(5, 3000);
    let storage = MemoryStorage::new();
    let storage = Arc::new(storage);
    let world = World::new(3);
    kit::backup(&kit::init(storage.clone(), &world).unwrap(), "vm", &image).unwrap();
    let all = list_all(&*storage as &dyn Storage, "containers/", None);
    for (key, bytes) in all.map(|item| item.unwrap()).collect::<Vec<_>>() {
        let hurt = storage.snapshot();
        hurt.damage(&key, |object| object[usize::try_from(bytes / 2).unwrap()] ^= 1).unwrap();
        let repository = kit::open(Arc::new(hurt), &world).unwrap();
        let reader = reader(&repository, 0);
        let (mut damaged, mut good) = (0, 0);
        for (at, block) in (0..).step_by(4096).zip(image.chunks(4096)) {
            let mut into = vec![0; block.len()];
            match reader.read_at(at, &mut into) {
                Ok(_) => {
                    assert!(into == block, "at {at}");
                    good += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert!(error.to_string().contains(key.as_str()), "{error}");
                    damaged += 1;
                }
            }
        }
        assert!(damaged > 0 && good > 0, "{damaged} {good}");
    }
}

/// Containers are rewritten and their chunks moved to the shared store under an open reader.
#[test]
fn what_is_rewritten_meanwhile_is_followed() {
    let storage = Arc::new(MemoryStorage::new());
    let world = World::new(4);
    let repository = kit::init(storage.clone(), &world).unwrap();
    let images: Vec<_> = (0..3).map(|day| kit::changed(&kit::image(6, 2500), day)).collect();
    for image in &images {
        kit::backup(&repository, "vm", image).unwrap();
    }
    kit::backup(&repository, "other", &images[2]).unwrap();
    let reader = reader(&repository, MEMORY_BYTES_MIN);
    let mut first = vec![0; 4096];
    reader.read_at(0, &mut first).unwrap();
    let entries = kit::latest(&repository, "vm").unwrap().head.snapshots;
    let old: Vec<_> = entries[..2].iter().map(|entry| entry.id).collect();
    repository.delete("vm", &old, DeleteMethod::Exact).unwrap();
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
    shared::build(&repository, SharePolicy::Duplicates).unwrap();
    repository.repoint("vm", &shared::spool()).unwrap();
    repository.reclaim("vm", &kit::THOROUGH).unwrap();
    let mut all = vec![0; images[2].len()];
    assert_eq!(reader.read_at(0, &mut all).unwrap(), all.len());
    assert!(all == images[2]);
}

#[test]
fn from_far_away_little_is_asked_for() {
    let image = kit::image(7, 6000);
    let storage = Arc::new(MemoryStorage::new());
    let world = World::new(5);
    kit::backup(&kit::init(storage.clone(), &world).unwrap(), "vm", &image).unwrap();
    let requests = |request_bytes: u64| {
        let storage = Arc::new(RecordingStorage::new(storage.snapshot().far(request_bytes)));
        let repository = kit::open(storage.clone(), &world).unwrap();
        let reader = reader(&repository, 0);
        storage.take();
        let mut all = Vec::new();
        let mut into = vec![0; 128 << 10];
        while let read @ 1.. = reader.read_at(all.len() as u64, &mut into).unwrap() {
            all.extend_from_slice(&into[..read]);
        }
        assert!(all == image);
        storage.totals(OperationKind::Get)
    };
    let (near, far) = (requests(0), requests(512 << 10));
    assert!(far.operations * 3 < near.operations, "{far:?} {near:?}");
    assert!(far.bytes < near.bytes * 3 / 2, "{far:?} {near:?}");
}

/// A bit that flips on the way says nothing of what is stored.
#[test]
fn damage_is_recorded_if_a_second_read_finds_it() {
    let (world, image) = (World::new(1), image());
    let flips = Arc::new(AtomicU64::new(0));
    let left = Arc::clone(&flips);
    let rule = move |operation: &Operation, _: u64| {
        // Frames; the directory is read as the tail.
        let is_data = matches!(operation, Operation::Get { key, range: ByteRange::Bounded { .. } }
            if key.as_str().starts_with("containers/"));
        let take = |left: u64| left.checked_sub(1);
        if is_data && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            Fault::FlipRead { byte: 300, bit: 3 }
        } else {
            Fault::Pass
        }
    };
    let storage = Arc::new(FaultStorage::new(MemoryStorage::new(), rule));
    let repository = kit::init(storage, &world).unwrap();
    kit::backup(&repository, "vm", &image).unwrap();
    let series = repository.series_id("vm");
    let read = |repository: &Repository| {
        let found = kit::latest(repository, "vm").unwrap();
        let reader = VolumeReader::open(repository, found.volume("disk").unwrap(), 0).unwrap();
        reader.read_at(0, &mut vec![0; 1 << 20]).map(drop)
    };
    flips.store(1, Ordering::Relaxed);
    assert_eq!(read(&repository).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(repository.objects.check_record(series).unwrap().0, 0, "a false alarm");
    read(&repository).unwrap();
    // Another process meets damage that stays.
    let storage = Arc::clone(&repository.objects.storage);
    let repository = kit::open(storage, &world).unwrap();
    flips.store(u64::MAX, Ordering::Relaxed);
    for _ in 0..3 {
        assert_eq!(read(&repository).unwrap_err().kind(), ErrorKind::Corrupt);
    }
    let (number, record) = repository.objects.check_record(series).unwrap();
    assert!(number == 1 && !record.damaged.is_empty(), "recorded once: {number}, {record:?}");
    flips.store(0, Ordering::Relaxed);
    kit::backup(&repository, "vm", &image).unwrap();
    read(&repository).unwrap();
}

#[test]
fn what_two_processes_find_at_once_is_recorded_together() {
    let world = World::new(1);
    let repository = kit::init(Arc::new(MemoryStorage::new()), &world).unwrap();
    kit::backup(&repository, "vm", &image()).unwrap();
    let (objects, series) = (&repository.objects, repository.series_id("vm"));
    let slots = |slot| DamagedSlots { container: 0, tag: ObjectTag::NONE, first: slot, last: slot };
    let mut both = [1, 2].map(|_| RecordState::read(objects, series).unwrap());
    for (slot, state) in (1..).zip(&mut both) {
        state.add_slots(slots(slot));
        assert!(state.save(objects).unwrap());
    }
    let (number, record) = objects.check_record(series).unwrap();
    assert_eq!((number, record.damaged.len()), (2, 2), "{record:?}");
    // Who has healed one of them clears it, and keeps what others have found since.
    let [mut stale, _] = both;
    let mut healer = RecordState::read(objects, series).unwrap();
    stale.add_slots(slots(3));
    assert!(stale.save(objects).unwrap());
    healer.record.damaged.retain(|damaged| damaged.first != 1);
    assert!(healer.save(objects).unwrap());
    let (_, record) = objects.check_record(series).unwrap();
    let left: Vec<u16> = record.damaged.iter().map(|damaged| damaged.first).collect();
    assert_eq!(left, [2, 3]);
}
