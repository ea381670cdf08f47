use std::collections::HashMap;

use super::*;

/// Keys that look random, each `times` times, and the sum of the lengths of the distinct ones.
fn add_all(distinct: &mut Distinct, keys: u64, times: u64) -> u64 {
    let mut lengths = HashMap::new();
    for number in 0..keys * times {
        let key = (number % keys + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let length = u32::try_from(key % 4096).unwrap() + 1;
        distinct.add(key, length).unwrap();
        lengths.insert(key, u64::from(length));
    }
    lengths.values().sum()
}

#[test]
fn every_chunk_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    for (keys, times) in [(0, 1), (1, 1), (1, 9000), (1000, 3), (4096, 1), (5000, 7)] {
        let mut distinct = Distinct::new(folder.path());
        let expected = add_all(&mut distinct, keys, times);
        assert_eq!(distinct.bytes().unwrap(), expected, "{keys} {times}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the files have no names");
}

/// More chunks than are compared at a time.
#[test]
fn the_file_is_read_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let mut distinct = Distinct::new(folder.path());
    let expected = add_all(&mut distinct, COMPARED_MAX + 10, 2);
    assert_eq!(distinct.bytes().unwrap(), expected);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let mut distinct = Distinct::new(Path::new("/no/such/folder"));
    let error = (0..).find_map(|key| distinct.add(key, 1).err()).unwrap();
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
}
