//! The frames of file trees: those of large files are larger than those of small files.

use std::fs;
use std::path::Path;

use silt_repository::chunks::open_container;
use silt_repository::container_reader::ContainerReader;
use siltstone::{DeleteMethod, ReclaimOptions, Repository};

use crate::kit::{self, Random};
use crate::tree_kit::{Scratch, assert_same, has};
use crate::trees::{assert_whole, backup, repository, restore};

/// The configured size of frames, and the size of those of large files in these tests' containers.
const FRAME_BYTES: u32 = 32 << 10;
const LARGE_FRAME_BYTES: u32 = 64 << 10;
/// The highest bit of a byte is set in large files only.
const LARGE: u8 = 0x80;

/// Writes two large files among small ones.
fn write(root: &Path, random: &mut Random) {
    for number in 0..40 {
        let is_large = number % 20 == 7;
        let mut bytes = vec![0; if is_large { 3 << 20 } else { 2000 + random.below(3000) }];
        random.fill(&mut bytes);
        bytes.iter_mut().for_each(|byte| *byte = if is_large { *byte | LARGE } else { *byte / 2 });
        fs::write(root.join(format!("file {number:02}")), &bytes).unwrap();
    }
}

/// Looks into every frame. Returns the sizes of those of large files, and of those of small ones.
fn frames(repository: &Repository) -> [Vec<u32>; 2] {
    let (mut large, mut small) = (Vec::new(), Vec::new());
    let series = repository.series_id("home");
    let head = repository.head(series).unwrap().unwrap();
    let mut reader = ContainerReader::new(&repository.objects);
    for (number, tag) in head.containers.iter() {
        let container = open_container(&repository.objects, series, number, tag).unwrap();
        for (number, frame) in (0..).zip(&container.directory.frames) {
            let raw = reader.frame(&container, number).unwrap();
            let of_large = raw.iter().filter(|byte| **byte & LARGE != 0).count();
            assert!(of_large == 0 || of_large == raw.len(), "{of_large} bytes of {}", raw.len());
            if of_large > 0 { &mut large } else { &mut small }.push(frame.raw_bytes);
        }
    }
    [large, small]
}

fn assert_sizes(repository: &Repository) {
    let [large, small] = frames(repository);
    assert!(small.iter().all(|bytes| *bytes <= FRAME_BYTES), "{small:?}");
    assert!(large.iter().all(|bytes| *bytes <= LARGE_FRAME_BYTES), "{large:?}");
    let full = large.iter().filter(|bytes| **bytes > FRAME_BYTES).count();
    assert!(full * 4 > large.len() * 3, "{large:?}");
}

#[test]
fn large_files_are_in_larger_frames_also_after_a_reclaim() {
    if !has("rsync") {
        return;
    }
    let scratch = Scratch::new();
    let root = scratch.folder("source");
    let mut random = Random(5);
    write(&root, &mut random);
    let (repository, world) = repository(&scratch);
    let first = backup(&repository, &root).snapshot.id;
    assert_sizes(&repository);

    // Parts of large files and some of the small files change, so that their old chunks die.
    for number in [7, 27] {
        let path = root.join(format!("file {number:02}"));
        let mut bytes = fs::read(&path).unwrap();
        random.fill(&mut bytes[500_000..900_000]);
        bytes[500_000..900_000].iter_mut().for_each(|byte| *byte |= LARGE);
        fs::write(&path, bytes).unwrap();
    }
    (0..40).step_by(5).filter(|number| number % 20 != 7).for_each(|number| {
        fs::write(root.join(format!("file {number:02}")), [b'x'; 700]).unwrap();
    });
    world.pass_seconds(86_400);
    backup(&repository, &root);
    repository.delete("home", &[first], DeleteMethod::Exact).unwrap();
    let before = frames(&repository).concat().iter().sum::<u32>();
    let reclaim = ReclaimOptions {
        keep_deleted_s: Some(0),
        dead_share_min: 0.0,
        leak_share_max: 0.0,
        ..ReclaimOptions::default()
    };
    assert!(repository.reclaim("home", &reclaim).unwrap().freed_bytes() > 400_000);
    assert!(frames(&repository).concat().iter().sum::<u32>() + 800_000 <= before);
    assert_sizes(&repository);
    restore(&repository, &kit::latest(&repository, "home").unwrap(), &scratch.path("restored"));
    assert_same(&root, &scratch.path("restored"));
    assert_whole(&repository);
}
