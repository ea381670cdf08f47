use super::*;
use crate::{MemoryStorage, OperationKind, PutMode, RecordingStorage};

const BLOCK: u32 = 60_000;
const BLOCKS: u32 = 100;

fn object() -> Vec<u8> {
    (0..BLOCK * BLOCKS / 4).flat_map(|word| (word / 7).to_le_bytes()).collect()
}

fn far() -> RecordingStorage<MemoryStorage> {
    let storage = MemoryStorage::new().far(512 << 10);
    let key = Key::new("containers/a").unwrap();
    storage.put(&key, &[&object(), b"directory"], PutMode::Create).unwrap();
    RecordingStorage::new(storage)
}

/// Reads the blocks with these numbers; returns how many requests that took.
fn read(storage: &RecordingStorage<MemoryStorage>, ahead: &mut Ahead, numbers: &[u32]) -> u64 {
    storage.take();
    let wanted = numbers.iter().map(|number| (number * BLOCK, BLOCK)).collect();
    let end = u64::from(BLOCK * BLOCKS);
    ahead.expect(storage, std::iter::once(Blocks { name: "containers/a", wanted, end }));
    let (object, mut found) = (object(), Vec::new());
    for number in numbers {
        let range = u64::from(number * BLOCK)..u64::from((number + 1) * BLOCK);
        if ahead.block(storage, "containers/a", &range, &mut found) {
            assert!(found == object[to_usize(range.start)..to_usize(range.end)]);
        }
    }
    storage.totals(OperationKind::Get).operations
}

#[test]
fn blocks_of_a_neighbourhood_take_one_request_a_part() {
    let (storage, mut ahead) = (far(), Ahead::default());
    let all: Vec<u32> = (0..BLOCKS).collect();
    assert_eq!(read(&storage, &mut ahead, &all[..34]), 2, "2.04 MB are two parts");
    assert_eq!(read(&storage, &mut ahead, &all), 4, "of six parts, two are there");
}

#[test]
fn a_part_of_which_little_is_wanted_is_read_the_second_time() {
    let (storage, mut ahead) = (far(), Ahead::default());
    assert_eq!(read(&storage, &mut ahead, &[3]), 1, "a block by itself");
    assert_eq!(read(&storage, &mut ahead, &[6]), 1);
    assert_eq!(read(&storage, &mut ahead, &[3, 6, 7]), 0, "the part is there");
    assert_eq!(read(&storage, &mut ahead, &[37, 38]), 1, "a short run by itself");
    assert_eq!(read(&storage, &mut ahead, &[39, 40]), 1, "then all of the part");
    assert_eq!(read(&storage, &mut ahead, &[36, 37, 40, 41]), 0);
}

#[test]
fn what_cannot_be_read_is_left_to_its_reader_and_nobody_waits() {
    let (storage, mut ahead) = (far(), Ahead::default());
    assert!(Key::new("containers/a").and_then(|key| storage.delete(&[key])).is_ok());
    assert_eq!(read(&storage, &mut ahead, &[1, 2, 3, 4, 5, 6]), 6, "each is tried");
}

#[test]
fn a_directory_that_lies_takes_no_memory_and_no_requests() {
    let (storage, mut ahead) = (far(), Ahead::default());
    storage.take();
    let wanted = vec![(0, u32::MAX), (u32::MAX, u32::MAX), (9_000_000, 100), (9_000_200, 100)];
    let blocks = Blocks { name: "containers/a", wanted, end: u64::from(BLOCK * BLOCKS) };
    ahead.expect(&storage, std::iter::once(blocks));
    ahead.fetch(&storage);
    assert!(!ahead.block(&storage, "containers/a", &(0..u64::from(u32::MAX)), &mut Vec::new()));
    assert_eq!(storage.totals(OperationKind::Get).operations, 0);
}

#[test]
fn what_was_fetched_for_others_is_not_read_again() {
    let (storage, parts) = (far(), Arc::new(Parts::new(8 << 20)));
    let numbers = [1, 30, 31, 60, 62, 64, 66, 68, 70];
    let (mut fetching, mut reading) = (Ahead::default(), Ahead::default());
    fetching.share(&parts);
    reading.share(&parts);
    let wanted = numbers.iter().map(|number| (number * BLOCK, BLOCK)).collect();
    let end = u64::from(BLOCK * BLOCKS);
    let blocks = Blocks { name: "containers/a", wanted, end };
    fetching.expect(&storage, std::iter::once(blocks));
    fetching.fetch(&storage);
    assert_eq!(read(&storage, &mut reading, &numbers), 0);
}

#[test]
fn readers_share_parts_and_hold_no_more_than_allowed() {
    let (storage, parts) = (far(), Arc::new(Parts::new(5 << 20)));
    let all: Vec<u32> = (0..BLOCKS).collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut ahead = Ahead::default();
                ahead.share(&parts);
                read(&storage, &mut ahead, &all);
            });
        }
    });
    let held = parts.held();
    assert_eq!(held.parts.keys().map(PartPlace::bytes).sum::<u64>(), held.bytes);
    assert!((1..=5 << 20).contains(&held.bytes), "{}", held.bytes);
}

#[test]
fn nothing_is_expected_where_requests_cost_nothing() {
    let (storage, mut ahead) = (MemoryStorage::new(), Ahead::default());
    let wanted = vec![(0, 10), (10, 10)];
    let blocks = Blocks { name: "containers/a", wanted, end: 20 };
    ahead.expect(&storage, std::iter::once(blocks));
    assert!(ahead.runs.is_empty());
}
