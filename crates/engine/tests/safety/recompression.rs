//! `optimize` compresses more what backups have compressed in a hurry.

use std::sync::Arc;

use silt_format::Chunking;
use silt_repository::chunks::open_container;
use silt_storage::MemoryStorage;
use siltstone::{BackupOptions, DeleteMethod, OptimizeOptions, Repository, SweepOptions};

use crate::deletion::{Series, whole_days};
use crate::deltas::{OPTIONS, is_clean, nothing_leaks, sleep_everywhere, stop_everywhere};
use crate::kit::{self, MemorySource, Random, World};

const MORE: OptimizeOptions = OptimizeOptions { compression: Some(9), ..OPTIONS };

const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyz";

/// Sentences of a few thousand words: nothing resembles anything else, and level 9 finds more in
/// them than level 1.
fn prose(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(99);
    let words: Vec<Vec<u8>> = (0..3000)
        .map(|_| (0..3 + random.below(9)).map(|_| LETTERS[random.below(LETTERS.len())]).collect())
        .collect();
    let (mut random, mut text) = (Random(seed), Vec::new());
    while text.len() < bytes {
        // Some words are much more frequent than others.
        let most = 1 + random.below(words.len());
        text.extend_from_slice(&words[random.below(most)]);
        text.push(b' ');
    }
    text.truncate(bytes);
    text
}

/// Days on each of which some prose is added.
fn series(days: u64, chunking: Chunking) -> Series {
    let (storage, world) = (Arc::new(MemoryStorage::new()), World::new(1));
    let repository = kit::init(storage.clone(), &world).unwrap();
    let (mut ids, mut images): (_, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    for day in 0..days {
        let before = images.last().map_or(&[][..], |image| image);
        let image = [before, &prose(day, 100 * 4096)].concat();
        let options = BackupOptions { chunking: Some(chunking), ..kit::options() };
        let source = MemorySource::new(&image);
        let report = kit::backup_with(&repository, "vm", &source, options).unwrap();
        ids.push(report.snapshot.id);
        images.push(image);
        world.pass_seconds(86_400);
    }
    Series { storage, world, repository, ids, images }
}

/// The sizes of all frames before compression, in bytes.
fn frames(repository: &Repository) -> Vec<u32> {
    let id = repository.series_id("vm");
    let head = repository.head(id).unwrap().unwrap();
    let containers = head.containers.iter();
    let directories = containers.map(|(number, tag)| {
        open_container(&repository.objects, id, number, tag).unwrap().directory.frames.clone()
    });
    directories.flatten().map(|frame| frame.raw_bytes).collect()
}

#[test]
fn containers_without_deltas_become_smaller_once() {
    for (chunking, has_large_frames) in [("4K", false), ("cdc", true)] {
        let series = series(3, kit::chunked(chunking));
        let repository = &series.repository;
        let few = repository.optimize("vm", &OPTIONS).unwrap();
        assert_eq!((few.deltas, few.rewritten_containers), (0, 0), "{chunking} {few:?}");
        let plan = OptimizeOptions { dry_run: true, ..MORE };
        let expected = repository.optimize("vm", &plan).unwrap();
        let report = repository.optimize("vm", &MORE).unwrap();
        assert_eq!(report, expected);
        assert!(report.deltas * 50 < report.chunks, "{chunking} {report:?}");
        assert!(report.saved_bytes() * 50 > report.removed_bytes, "{chunking} {report:?}");
        let small = kit::config().frame_bytes;
        let largest = frames(repository).into_iter().max().unwrap();
        assert_eq!(largest > small, has_large_frames, "{chunking} {largest}");
        let again = repository.optimize("vm", &MORE).unwrap();
        assert_eq!(again.rewritten_containers, 0, "{chunking} {again:?}");
        assert_eq!(whole_days(&series, repository), [0, 1, 2]);
        is_clean(repository);
        // Reclaiming keeps large frames large.
        repository.delete("vm", &series.ids[..1], DeleteMethod::Exact).unwrap();
        nothing_leaks(&series, repository);
        let largest = frames(repository).into_iter().max().unwrap();
        assert_eq!(largest > small, has_large_frames, "{chunking} {largest}");
    }
}

#[test]
fn compressing_more_may_stop_anywhere() {
    let crashes = stop_everywhere(&series(2, kit::chunked("cdc")), |_, repository| {
        repository.optimize("vm", &MORE).map(drop)
    });
    assert!(crashes >= 8, "{crashes}");
}

#[test]
fn what_a_sleeper_has_compressed_is_not_committed_after_others_reclaimed() {
    let changes = sleep_everywhere(
        &series(3, kit::chunked("cdc")),
        |_, repository| repository.optimize("vm", &MORE).map(drop),
        |series, repository| {
            repository.delete("vm", &series.ids[1..], DeleteMethod::Approximate).unwrap();
            repository.reclaim("vm", &kit::THOROUGH).unwrap();
            repository.sweep("vm", SweepOptions::default()).unwrap();
        },
    );
    assert!(changes > 6, "{changes}");
}
