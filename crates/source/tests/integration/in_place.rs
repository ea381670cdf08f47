//! Files that keep their place.

use std::fs::{self, File};
use std::path::Path;

use proptest::prelude::*;
use silt_format::ErrorKind;
use silt_source::{
    MARKER_TEXT, TargetFormat, TargetMode, TargetOptions, VolumeTarget, open_target,
};

use crate::qemu::{Images, MIB, assert_same};

fn in_place(path: &Path, size: u64) -> Box<dyn VolumeTarget> {
    let options = TargetOptions { format: TargetFormat::Raw, size, mode: TargetMode::InPlace };
    open_target(path, options).unwrap()
}

fn is_marked(path: &Path) -> bool {
    fs::read(path).unwrap().starts_with(MARKER_TEXT.as_bytes())
}

fn pattern(length: u64) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 239 + 1).unwrap()).collect()
}

#[test]
fn an_unfinished_file_is_marked_and_a_finished_one_is_not() {
    let images = Images::new();
    let path = images.path("disk.raw");
    let mut expected = pattern(MIB);
    fs::write(&path, &expected).unwrap();
    let target = in_place(&path, MIB);
    target.write_at(0, &[9; 5000]).unwrap();
    assert!(is_marked(&path));
    let block = fs::read(&path).unwrap();
    assert!(block[MARKER_TEXT.len()..4096].iter().all(|&byte| byte == 0));
    assert_eq!(block[4096..5000], [9; 904]);
    assert_same(&block[5000..], &expected[5000..], "what follows");
    target.write_zeroes(500_000, 100_000).unwrap();
    expected[..5000].fill(9);
    expected[500_000..600_000].fill(0);
    let mut found = vec![1; 1 << 20];
    assert!(target.can_read());
    target.read_at(0, &mut found).unwrap();
    assert_same(&found, &expected, "read before the end");
    drop(target);
    assert!(is_marked(&path));
    let target = in_place(&path, MIB);
    target.write_at(0, &expected[..10_000]).unwrap();
    target.finish().unwrap();
    assert_same(&fs::read(&path).unwrap(), &expected, "finished");
}

#[test]
fn nothing_written_is_nothing_changed() {
    let images = Images::new();
    let path = images.path("disk.raw");
    fs::write(&path, pattern(MIB)).unwrap();
    let before = path.metadata().unwrap().modified().unwrap();
    let target = in_place(&path, MIB);
    target.read_at(0, &mut [0; 8192]).unwrap();
    // The first block as it is anyway: no change either.
    target.write_at(0, &pattern(4096)).unwrap();
    target.finish().unwrap();
    assert_eq!(path.metadata().unwrap().modified().unwrap(), before);
    assert_same(&fs::read(&path).unwrap(), &pattern(MIB), "untouched");
}

#[test]
fn the_original_first_block_comes_back() {
    let images = Images::new();
    let path = images.path("disk.raw");
    let mut expected = pattern(MIB);
    fs::write(&path, &expected).unwrap();
    let target = in_place(&path, MIB);
    target.write_at(10_000, &[9; 100]).unwrap();
    assert!(is_marked(&path));
    target.finish().unwrap();
    expected[10_000..10_100].fill(9);
    assert_same(&fs::read(&path).unwrap(), &expected, "finished");
    let target = in_place(&path, MIB);
    target.write_at(100, &[8; 100]).unwrap();
    assert!(!is_marked(&path), "the first block is written last");
    target.finish().unwrap();
    expected[100..200].fill(8);
    assert_same(&fs::read(&path).unwrap(), &expected, "only the first block changed");
}

#[test]
fn a_lost_first_block_is_not_taken_for_the_volumes() {
    let images = Images::new();
    let path = images.path("disk.raw");
    fs::write(&path, pattern(MIB)).unwrap();
    let target = in_place(&path, MIB);
    target.write_at(10_000, &[9; 100]).unwrap();
    drop(target);
    let target = in_place(&path, MIB);
    target.write_at(20_000, &[9; 100]).unwrap();
    let error = target.finish().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("restore the whole"), "{error}");
    assert!(is_marked(&path));
    // A volume that truly begins with the marker is another matter.
    let marked = fs::read(&path).unwrap();
    let target = in_place(&path, MIB);
    target.write_at(0, &marked).unwrap();
    target.finish().unwrap();
    assert_same(&fs::read(&path).unwrap(), &marked, "a marked volume");
}

#[test]
fn a_file_of_another_size_is_resized() {
    let images = Images::new();
    let path = images.path("disk.raw");
    for (old, new) in [(MIB, 2 * MIB + 5), (MIB, 100_000), (100, MIB), (MIB, 100), (MIB, 0)] {
        fs::write(&path, pattern(old)).unwrap();
        let mut expected = pattern(old);
        expected.resize(usize::try_from(new).unwrap(), 0);
        let target = in_place(&path, new);
        let mut found = vec![1; expected.len()];
        target.read_at(0, &mut found).unwrap();
        assert_same(&found, &expected, "before it is resized");
        assert_eq!(path.metadata().unwrap().len(), old, "nothing is written yet");
        target.finish().unwrap();
        assert_same(&fs::read(&path).unwrap(), &expected, "resized only");
        fs::write(&path, pattern(old)).unwrap();
        let target = in_place(&path, new);
        if new > 0 {
            let last = usize::try_from(new - 1).unwrap();
            target.write_at(new - 1, &[7]).unwrap();
            target.write_zeroes(new / 2, new / 4).unwrap();
            expected[last] = 7;
            expected
                [usize::try_from(new / 2).unwrap()..usize::try_from(new / 2 + new / 4).unwrap()]
                .fill(0);
        }
        target.finish().unwrap();
        assert_same(&fs::read(&path).unwrap(), &expected, "resized and written");
    }
}

#[test]
fn threads_write_at_once() {
    let images = Images::new();
    let path = images.path("disk.raw");
    File::create(&path).unwrap().set_len(4 * MIB).unwrap();
    let target = in_place(&path, 4 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let target = &*target;
            scope.spawn(move || {
                let byte = u8::try_from(thread + 1).unwrap();
                for index in 0..64 {
                    target.write_at((index * 4 + thread) * 16_384, &[byte; 16_384]).unwrap();
                }
            });
        }
    });
    target.finish().unwrap();
    for (index, strip) in fs::read(&path).unwrap().chunks_exact(16_384).enumerate() {
        assert!(strip.iter().all(|&byte| usize::from(byte) == index % 4 + 1), "strip {index}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]
    #[test]
    fn any_writes_leave_what_they_say(
        old in 0_u64..20_000,
        new in 0_u64..20_000,
        writes in prop::collection::vec((0_u64..20_000, 0_u64..9000, 0_u8..4), 0..8),
        finished in any::<bool>(),
    ) {
        let images = Images::new();
        let path = images.path("disk.raw");
        fs::write(&path, pattern(old)).unwrap();
        let mut expected = pattern(old);
        expected.resize(usize::try_from(new).unwrap(), 0);
        let target = in_place(&path, new);
        let mut beyond_first = false;
        for (offset, length, byte) in writes {
            let offset = offset.min(new);
            let length = length.min(new - offset);
            beyond_first |= length > 0 && offset + length > 4096;
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + length).unwrap();
            expected[range.clone()].fill(byte);
            match byte {
                0 => target.write_zeroes(offset, length).unwrap(),
                _ => target.write_at(offset, &vec![byte; range.len()]).unwrap(),
            }
            let mut found = vec![1; range.len()];
            target.read_at(offset, &mut found).unwrap();
            prop_assert_eq!(&found[..], &expected[range]);
        }
        prop_assert_eq!(is_marked(&path), beyond_first);
        if finished {
            target.finish().unwrap();
            prop_assert_eq!(fs::read(&path).unwrap(), expected);
        }
    }
}
