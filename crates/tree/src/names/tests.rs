use std::collections::BTreeSet;
use std::fs;

use proptest::prelude::*;
use rustix::fs::{Mode, OFlags, open};

use super::*;

/// Sorts names within this memory and returns them as they are read window by window.
fn sorted(names: &[Vec<u8>], memory_bytes: usize, window: usize) -> Vec<Vec<u8>> {
    let mut sorter = Sorter::within(memory_bytes);
    for name in names {
        sorter.push(name, u8::from(name.len().is_multiple_of(2))).unwrap();
    }
    let mut found = sorter.finish().unwrap();
    let mut all = Vec::new();
    while all.len() < found.len() {
        let range = all.len()..found.len().min(all.len() + window);
        found.load(range.clone()).unwrap();
        for at in range {
            assert_eq!(found.is_directory(at), Some(found.name(at).len().is_multiple_of(2)));
            all.push(found.name(at).to_vec());
        }
    }
    all
}

/// A name of up to 255 bytes that is different for each number.
fn name(number: usize) -> Vec<u8> {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut name = format!("{mixed:x}").into_bytes();
    name.resize(name.len() + number % 240, b'.');
    name
}

#[test]
fn many_runs_are_merged_in_several_passes() {
    let names: Vec<_> = (0..60_000).map(name).collect();
    let wanted: Vec<_> = names.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
    let runs = names.iter().map(Vec::len).sum::<usize>() / (20 << 10);
    assert!(runs > spill::FAN_IN, "{runs} runs");
    for (memory_bytes, window) in [(MEMORY_BYTES, 1024), (1 << 20, 1024), (20 << 10, 7)] {
        assert!(sorted(&names, memory_bytes, window) == wanted, "within {memory_bytes}");
    }
}

#[test]
fn names_in_a_file_are_found_and_loaded_from_anywhere() {
    let mut sorter = Sorter::within(16 << 10);
    let mut names: Vec<_> = (0..5000).map(name).collect();
    names.iter().for_each(|name| sorter.push(name, 0).unwrap());
    let mut found = sorter.finish().unwrap();
    names.sort();
    assert!(found.sorted.is_some() && found.len() == names.len());
    for at in [0, 4999, 2500, 2501, 1, 4000] {
        let end = names.len().min(at + 1024);
        found.load(at..end).unwrap();
        assert_eq!((found.name(at), found.name(end - 1)), (&*names[at], &*names[end - 1]));
    }
    for wanted in names.iter().step_by(97) {
        assert!(found.contains(wanted).unwrap());
        assert!(!found.contains(&[wanted, &b"!"[..]].concat()).unwrap());
    }
    for missing in [&b" "[..], b"~"] {
        assert!(!found.contains(missing).unwrap());
    }
    found.retain_only(&names[3000]).unwrap();
    assert_eq!((found.len(), found.name(0)), (1, &*names[3000]));
}

#[test]
fn a_damaged_file_is_noticed() {
    let mut sorter = Sorter::within(1 << 10);
    (0..500).for_each(|number| sorter.push(&name(number), 0).unwrap());
    let mut found = sorter.finish().unwrap();
    found.sorted.as_ref().unwrap().damage();
    assert!(found.load(0..1).is_err());
    assert!(found.contains(b"x").is_err());
}

#[test]
fn nobody_reads_names_in_a_temporary_file() {
    let mut sorter = Sorter::within(1 << 10);
    (0..500).for_each(|number| sorter.push(&[b"secret ", &*name(number)].concat(), 0).unwrap());
    let stored = sorter.finish().unwrap().sorted.unwrap().stored();
    assert!(stored.len() > 500 * 50);
    assert!(stored.windows(6).all(|part| part != b"secret" && part != b"......"));
}

proptest! {
    #[test]
    fn names_come_in_order_and_once(
        names in prop::collection::vec(prop::collection::vec(1..=255_u8, 1..=255), 0..300),
        window in 1..50_usize,
    ) {
        let wanted: Vec<_> = names.iter().cloned().collect::<BTreeSet<_>>().into_iter().collect();
        prop_assert_eq!(&sorted(&names, 2 << 10, window), &wanted);
        prop_assert_eq!(&sorted(&names, MEMORY_BYTES, window), &wanted);
    }
}

#[test]
fn a_directory_with_more_names_than_memory_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(200);
    for number in 0..22_000 {
        fs::write(folder.path().join(format!("{:05}{long}", number * 7919 % 22_000)), b"").unwrap();
    }
    fs::create_dir(folder.path().join("~")).unwrap();
    let directory = open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let (mut names, problem) = Names::read(&directory);
    assert!(problem.is_none() && names.sorted.is_some());
    assert_eq!(names.len(), 22_001);
    for at in 0..22_000 {
        names.load(at..at + 1).unwrap();
        assert!(names.name(at).starts_with(format!("{at:05}").as_bytes()));
        assert_ne!(names.is_directory(at), Some(true));
    }
    names.load(22_000..22_001).unwrap();
    assert_ne!(names.is_directory(22_000), Some(false));
}

#[test]
fn a_directory_that_was_removed_after_it_was_opened_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("removed");
    fs::create_dir(&path).unwrap();
    let directory = open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    fs::remove_dir(&path).unwrap();
    let (names, problem) = Names::read(&directory);
    assert_eq!((names.len(), problem.unwrap().kind()), (0, ErrorKind::NotFound));
    let without_folder = Error::io("creating a temporary file", Errno::NOENT.into());
    assert_ne!(unsorted(without_folder).kind(), ErrorKind::NotFound);
}

/// Measures the memory of sorting ten million names. Run it by hand, alone and optimized.
#[test]
#[ignore = "it measures memory"]
fn memory() {
    let resident = || {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
    };
    let before = resident();
    let mut sorter = Sorter::default();
    for number in 0..10_000_000_u64 {
        let mixed = number * 7_919_999 % 10_000_000;
        sorter.push(format!("the name of a file {mixed:07}").as_bytes(), 0).unwrap();
    }
    let mut names = sorter.finish().unwrap();
    assert_eq!(names.len(), 10_000_000);
    for at in (0..10_000_000).step_by(1000) {
        names.load(at..at + 1000).unwrap();
        assert!(names.name(at).ends_with(format!("{at:07}").as_bytes()));
    }
    println!("{} MiB for ten million names of 26 bytes", resident() - before);
    assert!(resident() - before < 16, "more than 16 MiB");
}
