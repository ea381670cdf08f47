use super::*;
use crate::{ByteRange, MemoryStorage, OperationKind, PutMode, RecordingStorage};

const BLOCK: u32 = 100_000;
const BLOCKS: u32 = 100;

fn object() -> Vec<u8> {
    (0..BLOCK * BLOCKS / 4).flat_map(|word| (word / 7).to_le_bytes()).collect()
}

fn storage() -> RecordingStorage<MemoryStorage> {
    let storage = MemoryStorage::new().far(512 << 10);
    for name in ["containers/a", "containers/b"] {
        storage.put(&Key::new(name).unwrap(), &[&object()], PutMode::Create).unwrap();
    }
    RecordingStorage::new(storage)
}

/// Reads that are from near, since the first ones came at once.
fn reads(storage: &dyn Storage, bytes_max: u64) -> PlannedReads {
    let reads = PlannedReads::new(bytes_max);
    reads.plan(storage, 0, blocks("containers/b", &[1, 20, 40, 60, 80, 99]));
    while let Some(run) = reads.next_run(storage) {
        reads.read(storage, run, || 0);
    }
    reads.restored(0);
    assert_eq!(reads.is_far(), Some(false));
    reads
}

fn blocks(name: &str, numbers: &[u32]) -> Vec<PlannedBlock> {
    let block =
        |number: &u32| PlannedBlock { name: name.into(), offset: number * BLOCK, length: BLOCK };
    numbers.iter().map(block).collect()
}

fn plan(reads: &PlannedReads, storage: &dyn Storage, segment: u64, numbers: &[u32]) {
    reads.plan(storage, segment, blocks("containers/a", numbers));
}

/// Takes a block as a reader does; whether it was there.
fn take(reads: &PlannedReads, storage: &dyn Storage, number: u32, needs: bool) -> bool {
    let Some(bytes) = reads.take(storage, "containers/a", number * BLOCK, || 0) else {
        return false;
    };
    let start = to_usize(u64::from(number * BLOCK));
    assert!(bytes == object()[start..start + BLOCK as usize]);
    reads.give_back(bytes);
    if needs {
        reads.need_again("containers/a", number * BLOCK);
    }
    true
}

/// Reads all that may be read now; returns the numbers of blocks of each request.
fn read_all(reads: &PlannedReads, storage: &dyn Storage) -> Vec<Vec<u64>> {
    let mut runs = Vec::new();
    while let Some(run) = reads.next_run(storage) {
        let number = |block: &Block| block.range.start / u64::from(BLOCK);
        runs.push(run.blocks.iter().map(number).collect());
        reads.read(storage, run, || 0);
    }
    runs
}

#[test]
fn what_segments_need_together_is_one_request() {
    let storage = storage();
    let reads = reads(&storage, 20 << 20);
    storage.take();
    // Segments one behind the other, of which the next one needs what lies before, and a later one
    // something beyond a gap.
    for (segment, numbers) in [(1, [10, 11]), (2, [12, 13]), (3, [8, 9]), (90, [15, 30])] {
        plan(&reads, &storage, segment, &numbers);
    }
    assert_eq!(read_all(&reads, &storage), [vec![8, 9, 10, 11, 12, 13, 15], vec![30]]);
    let totals = storage.totals(OperationKind::Get);
    assert_eq!(totals.operations, 2);
    assert_eq!(totals.bytes, u64::from(9 * BLOCK), "with the gap of one block");
    for (segment, numbers) in [(1, [10, 11]), (2, [12, 13]), (3, [8, 9]), (90, [15, 30])] {
        for number in numbers {
            assert!(take(&reads, &storage, number, false));
            assert!(!take(&reads, &storage, number, false), "it was taken");
        }
        reads.restored(segment);
    }
    assert_eq!(storage.totals(OperationKind::Get).operations, 2);
    assert!(!take(&reads, &storage, 14, false), "nobody planned it");
    is_empty(&reads);
}

#[test]
fn blocks_that_are_here_or_needed_late_are_gaps() {
    let storage = storage();
    let reads = reads(&storage, 20 << 20);
    plan(&reads, &storage, 1, &[11]);
    plan(&reads, &storage, 2, &[10]);
    assert_eq!(read_all(&reads, &storage), [[10, 11]]);
    plan(&reads, &storage, 3, &[8, 9, 12, 13]);
    plan(&reads, &storage, 4, &[9]);
    assert_eq!(read_all(&reads, &storage), [[8, 9, 12, 13]], "across two that are here");
    plan(&reads, &storage, 5, &[20, 26, 33]);
    plan(&reads, &storage, 300, &[21, 22, 23, 24, 25, 27, 28, 29, 30, 31, 32]);
    for segment in 6..14 {
        plan(&reads, &storage, segment, &[]);
    }
    assert_eq!(read_all(&reads, &storage)[0], [20, 26], "six are too long a gap");
    (1..301).for_each(|segment| reads.restored(segment));
    is_empty(&reads);
}

#[test]
fn buffers_that_have_no_room_are_not_kept() {
    let storage = storage();
    let reads = reads(&storage, 1 << 20);
    for number in 0..1000 {
        assert!(!take(&reads, &storage, number % 100, true));
        reads.give_back(Vec::new());
    }
    assert!(reads.state().spare.len() < 10);
}

fn is_empty(reads: &PlannedReads) {
    let state = reads.state();
    assert!(state.objects.is_empty() && state.segments.is_empty());
    assert_eq!((state.bytes, state.reading), (0, 0));
    let spare: usize = state.spare.iter().map(Vec::capacity).sum();
    assert_eq!(to_u64(spare), state.spare_bytes);
    assert!(state.spare_bytes <= state.bytes_max);
}

#[test]
fn a_request_has_an_end_and_does_not_fill_the_memory_with_what_is_needed_late() {
    let storage = storage();
    let reads = reads(&storage, 20 << 20);
    plan(&reads, &storage, 1, &[0]);
    plan(&reads, &storage, 2, &(1..90).collect::<Vec<_>>());
    let runs = read_all(&reads, &storage);
    assert_eq!(runs[0].len(), 62, "6 MiB");
    assert!(runs.iter().map(Vec::len).sum::<usize>() == 90);
    (1..3).for_each(|segment| reads.restored(segment));
    is_empty(&reads);
    // What is needed at the end of the window is read until half of the memory is taken, 80 of 160
    // buffers; what is needed sooner, until less is left.
    for (late, buffers) in [(254, 80), (230, 88)] {
        let reads = self::reads(&storage, 160 * to_u64(room(u64::from(BLOCK))));
        plan(&reads, &storage, 100, &[0]);
        plan(&reads, &storage, 100 + late, &(1..50).collect::<Vec<_>>());
        plan(&reads, &storage, 101, &[60]);
        plan(&reads, &storage, 101 + late, &(61..BLOCKS).collect::<Vec<_>>());
        let runs = read_all(&reads, &storage);
        let lengths: Vec<usize> = runs.iter().map(Vec::len).collect();
        assert_eq!(lengths[..2], [50, buffers - 50], "{late}");
        (100..102 + late).for_each(|segment| reads.restored(segment));
        is_empty(&reads);
    }
}

#[test]
fn a_block_that_was_taken_is_read_again_only_for_who_needs_it() {
    let storage = storage();
    let reads = reads(&storage, 20 << 20);
    for segment in 1..4 {
        plan(&reads, &storage, segment, &[7]);
    }
    assert_eq!(read_all(&reads, &storage), [[7]]);
    assert!(take(&reads, &storage, 7, false));
    assert!(read_all(&reads, &storage).is_empty(), "its chunks were kept");
    reads.restored(1);
    plan(&reads, &storage, 4, &[7]);
    assert_eq!(read_all(&reads, &storage), [[7]], "of which a later segment needs others");
    assert!(take(&reads, &storage, 7, true));
    assert_eq!(read_all(&reads, &storage), [[7]], "they could not be kept");
    (2..5).for_each(|segment| reads.restored(segment));
    is_empty(&reads);
}

#[test]
fn a_reader_reads_what_nobody_has_read_with_what_lies_around() {
    let storage = storage();
    let reads = reads(&storage, 20 << 20);
    plan(&reads, &storage, 1, &[20, 21, 22]);
    storage.take();
    assert!([21, 20, 22].iter().all(|number| take(&reads, &storage, *number, false)));
    assert_eq!(storage.totals(OperationKind::Get).operations, 1);
    reads.restored(1);
    is_empty(&reads);
}

#[test]
fn what_is_missing_or_lies_about_itself_is_left_to_its_reader() {
    let storage = storage();
    let reads = reads(&storage, 20 << 20);
    let planned = |name: &str, offset, length| PlannedBlock { name: name.into(), offset, length };
    reads.plan(
        &storage,
        1,
        vec![
            planned("containers/c", 0, 10),
            planned("no name", 0, 10),
            planned("containers/a", BLOCK * BLOCKS - 5, 10),
            planned("containers/a", 0, u32::MAX),
            planned("containers/a", 5, 0),
            planned("containers/b", u32::MAX, 1),
            // Two that overlap.
            planned("containers/b", 0, 1000),
            planned("containers/b", 500, 1000),
        ],
    );
    assert_eq!(read_all(&reads, &storage).len(), 5, "apart");
    for (name, offset) in [
        ("containers/c", 0),
        ("no name", 0),
        ("containers/a", BLOCK * BLOCKS - 5),
        ("containers/a", 0),
    ] {
        assert!(reads.take(&storage, name, offset, || 0).is_none(), "{name} {offset}");
    }
    assert_eq!(reads.take(&storage, "containers/b", 500, || 0).unwrap().len(), 1000);
    assert!(reads.has("containers/b", 0) && !reads.has("containers/b", 500));
    reads.restored(1);
    // A segment that was restored while its blocks were read.
    plan(&reads, &storage, 2, &[1, 2]);
    let run = reads.next_run(&storage).unwrap();
    reads.restored(2);
    reads.read(&storage, run, || 0);
    is_empty(&reads);
}

#[test]
fn from_far_away_requests_are_shorter_and_many() {
    let storage = storage();
    let (reads, all) = (PlannedReads::new(20 << 20), (0..BLOCKS).collect::<Vec<_>>());
    plan(&reads, &storage, 0, &all);
    let clock = std::cell::Cell::new(0);
    let now_ns = || {
        clock.set(clock.get() + 30_000_000);
        clock.get()
    };
    for _ in 0..READ_FIRST / to_u64(READ_FIRST_MAX) {
        assert_eq!(reads.is_far(), None);
        let first: Vec<Run> = std::iter::from_fn(|| reads.next_run(&storage)).collect();
        assert_eq!(first.len(), READ_FIRST_MAX, "until it is known how far it is");
        first.into_iter().for_each(|run| reads.read(&storage, run, now_ns));
    }
    assert_eq!(reads.is_far(), Some(true));
    let more: Vec<Run> = std::iter::from_fn(|| reads.next_run(&storage)).collect();
    assert_eq!(more.len(), 4);
    assert!(more.iter().all(|run| run.bytes() <= RUN_BYTES_FAR));
    more.into_iter().for_each(|run| reads.read(&storage, run, now_ns));
    reads.restored(0);
    is_empty(&reads);
}

/// However long requests take: all processors may be busy.
#[test]
fn storage_whose_answers_begin_soon_is_near() {
    let storage = |soonest_ns| {
        let storage = MemoryStorage::new().far(512 << 10).answering_in(soonest_ns);
        let key = Key::new("containers/a").unwrap();
        storage.put(&key, &[&object()], PutMode::Create).unwrap();
        RecordingStorage::new(storage)
    };
    let (near, far) = (storage(SOON_NS - 1), storage(SOON_NS));
    let clock = std::cell::Cell::new(0);
    let slowly = || clock.replace(clock.get() + 300_000_000);
    let (reads, all) = (PlannedReads::new(20 << 20), (0..BLOCKS).collect::<Vec<_>>());
    plan(&reads, &near, 0, &all);
    assert_eq!(reads.is_far(), Some(false), "before anything is read");
    let run = reads.next_run(&near).unwrap();
    assert!(run.bytes() > RUN_BYTES_FAR, "{}", run.bytes());
    reads.read(&near, run, slowly);
    assert_eq!(reads.is_far(), Some(false));
    // A place from farther away was asked, too.
    let run = reads.next_run(&far).unwrap();
    reads.read(&far, run, || 0);
    assert_eq!(reads.is_far(), Some(true));
    reads.restored(0);
    plan(&reads, &far, 1, &all);
    let more: Vec<Run> = std::iter::from_fn(|| reads.next_run(&far)).collect();
    assert!(more.len() > READ_NEAR_MAX && more.iter().all(|run| run.bytes() <= RUN_BYTES_FAR));
    more.into_iter().for_each(|run| reads.read(&far, run, || 0));
    reads.restored(1);
    is_empty(&reads);
}

/// Near storage that many read at once is mostly slow, but not always; far storage always is.
#[test]
fn what_is_mostly_slow_is_near_and_long_requests_tell_nothing() {
    let storage = storage();
    let reads = PlannedReads::new(20 << 20);
    let clock = std::cell::Cell::new(0);
    let read = |segment: u64, numbers: &[u32], took_ns: i64| {
        plan(&reads, &storage, segment, numbers);
        let run = reads.next_run(&storage).unwrap();
        assert!(reads.next_run(&storage).is_none(), "one request");
        reads.read(&storage, run, || clock.replace(clock.get() + took_ns));
        reads.restored(segment);
    };
    let (slow_ns, soon_ns) = (40_000_000, 2_000_000);
    for segment in 0..100 {
        read(segment, &[5], if segment % 6 == 3 { soon_ns } else { slow_ns });
        assert_eq!(reads.is_far().is_none(), segment < 5);
        assert!(segment < 12 || reads.is_far() == Some(false), "{segment}");
    }
    // Three mebibytes in 40 ms are no reason to think otherwise.
    let long: Vec<u32> = (0..30).collect();
    for segment in 100..140 {
        read(segment, &long, slow_ns);
        assert_eq!(reads.is_far(), Some(false));
    }
    // The road gets longer, and short again.
    let changes = |segments: Range<u64>, took_ns: i64| {
        let was_far = reads.is_far();
        segments.into_iter().find(|segment| {
            read(*segment, &[5], took_ns);
            reads.is_far() != was_far
        })
    };
    assert!((210..230).contains(&changes(200..300, slow_ns).unwrap()));
    (300..400).for_each(|segment| read(segment, &[5], slow_ns));
    assert!((401..405).contains(&changes(400..500, soon_ns).unwrap()));
    is_empty(&reads);
}

/// A network of 1 Gbit/s takes 8 ns a byte, and one of 10 Gbit/s 0.8.
#[test]
fn gaps_are_longer_where_long_requests_are_fast() {
    let storage = storage();
    let reads = reads(&storage, 20 << 20);
    let clock = std::cell::Cell::new(0);
    let long: Vec<u32> = (0..40).collect();
    let read = |segment: u64, numbers: &[u32], took_ns: i64| {
        plan(&reads, &storage, segment, numbers);
        let mut requests = 0;
        while let Some(run) = reads.next_run(&storage) {
            reads.read(&storage, run, || clock.replace(clock.get() + took_ns));
            requests += 1;
        }
        reads.restored(segment);
        requests
    };
    assert_eq!(read(1, &[5, 20], 0), 2, "nothing is known yet");
    // Four megabytes in 32 ms, and in 3.2; processors are busy with others most of the time.
    let changes = |segments: Range<u64>, of_eight: u64, took_ns: i64| {
        let before = read(0, &[5, 20], 0);
        segments.into_iter().find(|segment| {
            let is_soon = segment % 8 < of_eight;
            assert_eq!(read(*segment, &long, if is_soon { took_ns } else { 32_000_000 }), 1);
            read(0, &[5, 20], 0) != before
        })
    };
    assert_eq!(changes(8..60, 0, 0), None);
    assert!(changes(64..80, 2, 3_200_000).is_some());
    assert_eq!(read(0, &[5, 20], 0), 1);
    assert_eq!(read(0, &[5, 26], 32_000_000), 1);
    assert_eq!(read(0, &[5, 27], 0), 2, "2,000,000 bytes are near each other, 2,100,000 are not");
    // One of sixteen is enough.
    let seldom = |start: u64| {
        changes(start..start + 1, 8, 3_200_000).or(changes(start + 1..start + 16, 0, 0))
    };
    assert!((88..600).step_by(16).all(|start| seldom(start).is_none()));
    assert!((630..720).contains(&changes(600..900, 0, 0).unwrap()));
    assert_eq!(changes(904..1000, 8, 20_000_000), None, "20 ms for 4 MB is 1.6 Gbit/s");
    is_empty(&reads);
}

#[test]
fn readers_wait_for_what_is_being_read() {
    let storage = storage();
    let reads = reads(&storage, 4 << 20);
    let all: Vec<u32> = (0..BLOCKS).collect();
    for segment in 0..BLOCKS / 4 {
        let first = to_usize(u64::from(segment * 4));
        plan(&reads, &storage, u64::from(segment), &all[first..first + 4]);
    }
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !reads.state().segments.is_empty() {
                    if let Some(run) = reads.next_run(&storage) {
                        reads.read(&storage, run, || 0);
                    }
                    std::thread::yield_now();
                }
            });
        }
        for reader in 0..2 {
            let reads = &reads;
            let storage = &storage;
            scope.spawn(move || {
                for segment in (reader..BLOCKS / 4).step_by(2) {
                    for number in segment * 4..segment * 4 + 4 {
                        assert!(take(reads, storage, number, false));
                    }
                    reads.restored(u64::from(segment));
                }
            });
        }
    });
    assert!(reads.state().spare_bytes <= 4 << 20);
    is_empty(&reads);
}

#[test]
fn where_there_are_copies_nothing_is_planned() {
    struct Copies(MemoryStorage);
    impl Storage for Copies {
        fn copies(&self, _: &Key) -> usize {
            2
        }
        fn put_bytes(
            &self,
            key: &Key,
            body: &[bytes::Bytes],
            mode: PutMode,
        ) -> silt_format::Result<()> {
            self.0.put_bytes(key, body, mode)
        }
        fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> silt_format::Result<()> {
            self.0.get(key, range, into)
        }
        fn settle(&self, key: &Key) -> silt_format::Result<()> {
            self.0.settle(key)
        }
        fn head(&self, key: &Key) -> silt_format::Result<crate::ObjectMeta> {
            self.0.head(key)
        }
        fn delete(&self, keys: &[Key]) -> silt_format::Result<()> {
            self.0.delete(keys)
        }
        fn list(&self, prefix: &str, after: Option<&Key>) -> silt_format::Result<crate::ListPage> {
            self.0.list(prefix, after)
        }
        fn guarantees(&self) -> crate::Guarantees {
            self.0.guarantees()
        }
        fn describe(&self) -> String {
            self.0.describe()
        }
    }
    let (storage, reads) = (Copies(MemoryStorage::new()), PlannedReads::new(1 << 20));
    plan(&reads, &storage, 1, &[1, 2]);
    assert!(reads.next_run(&storage).is_none() && !reads.has("containers/a", BLOCK));
    reads.restored(1);
    is_empty(&reads);
}
