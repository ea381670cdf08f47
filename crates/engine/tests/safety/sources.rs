//! Sources that fail, shrink, and lie about what has changed.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use silt_format::{ByteSpan, Level, Result, SEGMENT_BYTES};
use silt_source::{ChangedMap, MapForm, SourceInfo, VolumeSource};
use silt_storage::MemoryStorage;
use siltstone::Repository;

use crate::kit::{self, MemorySource, World};

fn repository(world: &Arc<World>) -> Repository {
    kit::init(Arc::new(MemoryStorage::new()), world).unwrap()
}

#[test]
fn what_cannot_be_read_is_listed_and_stands_as_zeros() {
    let world = World::new(1);
    let repository = repository(&world);
    let image: Vec<u8> = kit::image(1, 1024).iter().map(|byte| byte | 1).collect();
    let source = MemorySource::new(&image);
    let bad = [ByteSpan { offset: 8192, length: 4096 }, ByteSpan { offset: 3 << 20, length: 5000 }];
    *source.failing.lock().unwrap() = bad.to_vec();
    let report = kit::backup_with(&repository, "vm", &source, kit::options()).unwrap();
    let unreadable = &report.snapshot.volumes[0].unreadable;
    let expected =
        [ByteSpan { offset: 8192, length: 4096 }, ByteSpan { offset: 3 << 20, length: 8192 }];
    assert_eq!(unreadable[..], expected);
    assert!(!world.warnings.lock().unwrap().is_empty());
    let mut right = image.clone();
    right[8192..12288].fill(0);
    right[3 << 20..(3 << 20) + 8192].fill(0);
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == right);
    let report = kit::backup(&repository, "vm", &image).unwrap();
    assert!(report.snapshot.volumes[0].unreadable.is_empty());
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == image);
}

#[test]
fn a_read_that_fails_once_is_tried_again() {
    let world = World::new(2);
    let repository = repository(&world);
    let image = kit::image(2, 600);
    let source = MemorySource::new(&image);
    *source.failing.lock().unwrap() = vec![ByteSpan { offset: 0, length: 10 << 20 }];
    source.failures_left.store(2, Ordering::SeqCst);
    let report = kit::backup_with(&repository, "vm", &source, kit::options()).unwrap();
    assert!(report.snapshot.volumes[0].unreadable.is_empty());
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == image);
}

#[test]
fn a_source_that_shrinks_keeps_its_size_and_lists_what_is_gone() {
    let world = World::new(3);
    let repository = repository(&world);
    let image: Vec<u8> = kit::image(3, 1000).iter().map(|byte| byte | 1).collect();
    let gone = 100 * 4096;
    let source = MemorySource {
        claimed: image.len() as u64,
        ..MemorySource::new(&image[..image.len() - gone])
    };
    // Past its end the source must still look like data, or it would be a hole.
    let report = kit::backup_with(&repository, "vm", &source, kit::options()).unwrap();
    let volume = &report.snapshot.volumes[0];
    assert_eq!(volume.bytes, image.len() as u64);
    let span = ByteSpan { offset: (image.len() - gone) as u64, length: gone as u64 };
    assert_eq!(volume.unreadable[..], [span]);
}

#[test]
fn a_source_that_has_lost_most_of_itself_says_so_a_few_times() {
    let world = World::new(9);
    let repository = repository(&world);
    let image: Vec<u8> = kit::image(3, 512 * 40).iter().map(|byte| byte | 1).collect();
    let claimed = image.len() as u64;
    let source = MemorySource { claimed, ..MemorySource::new(&image[..512 * 4096]) };
    kit::backup_with(&repository, "vm", &source, kit::options()).unwrap();
    let warnings = world.warnings.lock().unwrap();
    assert!((2..15).contains(&warnings.len()), "{warnings:?}");
}

/// A map in the form of `rbd diff` of where two images differ.
fn map_of(old: &[u8], new: &[u8]) -> ChangedMap {
    let differing =
        (0..new.len() / 4096).filter(|i| old[i * 4096..][..4096] != new[i * 4096..][..4096]);
    let extents: Vec<String> = differing
        .map(|i| format!("{{\"offset\":{},\"length\":4096,\"exists\":\"true\"}}", i * 4096))
        .collect();
    let json = format!("[{}]", extents.join(","));
    let (size, grain) = (new.len() as u64, SEGMENT_BYTES as u64);
    ChangedMap::parse(json.as_bytes(), size, grain, Some(MapForm::RbdDiff)).unwrap()
}

#[test]
fn a_map_saves_reading_and_a_wrong_one_is_found_out() {
    let world = World::new(4);
    let repository = repository(&world);
    let old = kit::image(4, 512 * 60);
    kit::backup(&repository, "vm", &old).unwrap();
    let mut new = old.clone();
    for segment in [3, 40, 41] {
        new[segment * SEGMENT_BYTES + 70000] ^= 1;
    }
    let run = |map: &ChangedMap, image: &[u8]| {
        let source = MemorySource::new(image);
        let mut session = repository.backup("vm", kit::options()).unwrap();
        session.add_volume("disk", &source, Some(map)).unwrap();
        (session.finish().unwrap(), source.reads.load(Ordering::SeqCst))
    };
    let (report, reads) = run(&map_of(&old, &new), &new);
    assert!(!report.map_distrusted);
    assert!(reads <= 3 + 9, "{reads} segments were read");
    assert!(report.snapshot.levels().get(Level::Map) > 0);
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == new);
    // Everything changes, and the map says nothing did.
    let other = kit::image(99, 512 * 60);
    let (report, _) = run(&map_of(&new, &new), &other);
    assert!(report.map_distrusted);
    let found = kit::latest(&repository, "vm").unwrap();
    assert!(kit::restore(&repository, &found).unwrap() == other);
}

/// A source that notes which segments are read.
struct Watched(MemorySource, Mutex<BTreeSet<u64>>);

impl VolumeSource for Watched {
    fn info(&self) -> SourceInfo {
        self.0.info()
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<silt_source::Extent> {
        self.0.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.1.lock().unwrap().insert(offset / SEGMENT_BYTES as u64);
        self.0.read_at(offset, buf)
    }
}

#[test]
fn after_thirty_backups_every_segment_that_a_map_calls_unchanged_was_compared() {
    let world = World::new(8);
    let repository = repository(&world);
    let image = kit::image(8, 512 * 60 - 7);
    kit::backup(&repository, "vm", &image).unwrap();
    let map = map_of(&image, &image);
    let (mut compared, mut first_ns) = (BTreeSet::new(), 0);
    for day in 0..60 {
        world.pass_seconds(86_400);
        let before = kit::latest(&repository, "vm").unwrap().snapshot;
        let source = Watched(MemorySource::new(&image), Mutex::default());
        let mut session = repository.backup("vm", kit::options()).unwrap();
        session.add_volume("disk", &source, Some(&map)).unwrap();
        let snapshot = session.finish().unwrap().snapshot;
        let proof = snapshot.volumes[0].map_proof.clone().unwrap();
        let turns = proof.compared_ns.len() as u64;
        let now: Vec<u64> = (0..)
            .zip(&proof.compared_ns)
            .filter(|(_, at)| **at == snapshot.time_ns)
            .map(|(turn, _)| turn)
            .collect();
        assert_eq!((turns, now.len()), (30, 1), "day {day}");
        let read = source.1.into_inner().unwrap();
        let of_turn: Vec<u64> = (0..60).filter(|segment| segment % turns == now[0]).collect();
        assert!(of_turn.iter().all(|segment| read.contains(segment)), "day {day}: {read:?}");
        assert!(proof.compared >= of_turn.len() as u64 && proof.clean == 60, "{proof:?}");
        compared.extend(of_turn);
        first_ns = if day == 0 { snapshot.time_ns } else { first_ns };
        match day {
            // All of it was read by the backup before the first map.
            0..29 => assert!(proof.since_ns() < first_ns),
            29 => assert_eq!((proof.since_ns(), compared.len()), (first_ns, 60)),
            _ => assert!(snapshot.time_ns - proof.since_ns() < 30 * 86_401 * 1_000_000_000),
        }
        assert_eq!(snapshot.parent, Some(before.id));
    }
    // Once all is read again, nothing rests on maps.
    let report = kit::backup(&repository, "vm", &image).unwrap();
    assert_eq!(report.snapshot.volumes[0].map_proof, None);
}

#[test]
fn a_map_is_not_used_where_it_cannot_be_right() {
    let world = World::new(5);
    let repository = repository(&world);
    let image: Vec<u8> = kit::image(5, 512 * 4).iter().map(|byte| byte | 1).collect();
    let empty = map_of(&image, &image);
    let run = |name: &str, bytes: &[u8], failing: Option<ByteSpan>| {
        let source = MemorySource::new(bytes);
        source.failing.lock().unwrap().extend(failing);
        let map = map_of(bytes, bytes);
        let mut session = repository.backup(name, kit::options()).unwrap();
        session.add_volume("disk", &source, Some(&map)).unwrap();
        session.finish().unwrap();
        let found = kit::latest(&repository, name).unwrap();
        (kit::restore(&repository, &found).unwrap(), found)
    };
    assert_eq!(empty.changed_grains(), 0);
    // No parent: all is read.
    let (bytes, found) = run("vm", &image, Some(ByteSpan { offset: 5 << 20, length: 1 }));
    assert!(bytes != image);
    assert_eq!(found.snapshot.volumes[0].unreadable.len(), 1);
    // What could not be read is read again though the map calls it unchanged.
    let (bytes, found) = run("vm", &image, None);
    assert!(bytes == image);
    assert!(found.snapshot.volumes[0].unreadable.is_empty());
    // Another size: all is read.
    let mut longer = image.clone();
    longer.extend(kit::image(6, 512));
    let (bytes, _) = run("vm", &longer, None);
    assert!(bytes == longer);
}

/// A source with a bug: it panics when it is read.
struct Panicking(MemorySource);

impl VolumeSource for Panicking {
    fn info(&self) -> SourceInfo {
        self.0.info()
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<silt_source::Extent> {
        self.0.extent_at(offset)
    }
    fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize> {
        panic!("a bug in a source")
    }
}

#[test]
fn a_panic_of_a_thread_ends_the_backup_and_is_passed_on() {
    let repository = repository(&World::new(1));
    let image = kit::image(1, 1024);
    let source = Panicking(MemorySource::new(&image));
    let backup = std::panic::AssertUnwindSafe(|| {
        let mut session = repository.backup("vm", kit::options()).unwrap();
        session.add_volume("disk", &source, None).map(|_| ())
    });
    std::panic::catch_unwind(backup).unwrap_err();
    kit::backup(&repository, "vm", &image).unwrap();
}
