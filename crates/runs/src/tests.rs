//! Runs against plain vectors.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use proptest::prelude::*;
use silt_format::number::to_u64;
use silt_format::{Config, Record, RunRef, RunUse, SeriesId};
use silt_storage::{Key, MemoryStorage, Storage};

use super::*;
use silt_repository::env::Context;
use silt_repository::event::Silent;
use silt_repository::open::Protection;
use silt_repository::repository::Repository;
use silt_repository::system::SystemEnv;

const STORE: SeriesId = SeriesId([7; 12]);

fn repository() -> (Repository, Arc<MemoryStorage>) {
    let storage = Arc::new(MemoryStorage::new());
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(env, Arc::new(Silent));
    let shared: Arc<dyn Storage> = Arc::clone(&storage) as Arc<dyn Storage>;
    let config = Config::default();
    let made = Repository::init(shared, context, config, &Protection::None, None).unwrap();
    (made, storage)
}

/// A record whose fingerprint is drawn from `seed`: few seeds make many equal ones.
fn record(seed: u64, payload: u8) -> Record {
    let fingerprint = silt_format::fingerprint(&[3; 32], &seed.to_le_bytes());
    Record { fingerprint, payload: [payload; 12] }
}

fn drain(mut stream: Stream<'_>) -> Vec<Record> {
    let mut all = Vec::new();
    while let Some(record) = stream.next().unwrap() {
        all.push(record);
    }
    all
}

fn write(repository: &Repository, records: &[Record], records_max: u64) -> RunRef {
    let objects = &repository.objects;
    let mut writer = RunWriter::new(objects, STORE, RunUse::Owners, records_max).unwrap();
    records.iter().for_each(|record| writer.push(*record).unwrap());
    writer.finish().unwrap().run
}

fn sorted(seeds: &[u64]) -> Vec<Record> {
    let mut all: Vec<Record> =
        seeds.iter().map(|seed| record(seed / 3, seed.to_le_bytes()[0])).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn more_than_memory_holds_is_sorted_by_spilling_and_merging_twice() {
    let (repository, _) = repository();
    let folder = std::env::temp_dir();
    // The least memory, and more spills than are merged at once.
    let mut sorter = Sorter::new(&repository.objects, &folder, 0);
    let records = 2048 * 70 + 5;
    let all: Vec<Record> = (0..records).map(|seed| record(seed % 1000, 1)).collect();
    all.iter().for_each(|record| sorter.push(*record).unwrap());
    let sorted = sorter.finish().unwrap();
    assert_eq!(sorted.records(), records);
    let mut expected = all;
    expected.sort_unstable();
    assert!(drain(sorted.stream()) == expected, "the first time");
    assert!(drain(sorted.stream()) == expected, "and again");
}

/// Counts how many streams are being read.
struct Counted<'c> {
    left: Vec<Record>,
    is_open: bool,
    open: &'c Cell<usize>,
    most: &'c Cell<usize>,
}

impl Records for Counted<'_> {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> silt_format::Result<()> {
        if !self.is_open {
            self.is_open = true;
            self.open.set(self.open.get() + 1);
            self.most.set(self.most.get().max(self.open.get()));
        }
        batch.clear();
        let now = self.left.len().min(10);
        batch.extend(self.left.drain(..now));
        Ok(())
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.open.set(self.open.get() - usize::from(self.is_open));
    }
}

#[test]
fn of_any_number_of_streams_a_few_are_read_at_once() {
    let (repository, _) = repository();
    let (open, most) = (Cell::new(0), Cell::new(0));
    let records = |number: u64| sorted(&(number..number + 25).collect::<Vec<u64>>());
    // Some have nothing, and some have what others have.
    let all: Vec<Vec<Record>> =
        (0..500).map(|it| if it % 7 == 0 { Vec::new() } else { records(it * 11) }).collect();
    let stream = |left: &Vec<Record>| {
        let left = left.clone();
        Stream::new(Counted { left, is_open: false, open: &open, most: &most })
    };
    let gathered = |at_once| {
        let sorter = Sorter::new(&repository.objects, &std::env::temp_dir(), 0);
        gather(all.iter().map(stream).collect(), at_once, sorter).unwrap()
    };
    let mut expected = all.concat();
    expected.sort_unstable();
    // With 3, there are more pieces than are merged at once.
    for at_once in [3, 64, 500] {
        most.set(0);
        let gathered = gathered(at_once);
        assert_eq!((most.get(), open.get()), (at_once, 0));
        assert_eq!(gathered.records(), to_u64(expected.len()));
        assert!(drain(gathered.stream()) == expected && drain(gathered.stream()) == expected);
    }
}

#[test]
fn a_run_of_many_partitions_reads_back_and_answers_every_look_up() {
    let (repository, _) = repository();
    let records = sorted(&(0..30_000).collect::<Vec<u64>>());
    // As if it were to become large: 64 partitions.
    let run = write(&repository, &records, 6_000_000);
    assert_eq!((run.partitions(), run.records), (64, records.len() as u64));
    let reader = RunReader::new(&repository.objects, STORE, run);
    assert!(drain(Stream::new(reader)) == records);
    let mut lookup = RunLookup::new(&repository.objects, STORE, vec![run], 64 << 10);
    for seed in 0..200 {
        let wanted = record(seed, 0).fingerprint;
        let expected = records.iter().find(|record| record.fingerprint == wanted);
        assert_eq!(lookup.find(&wanted, &|_| true).unwrap().as_ref(), expected, "{seed}");
    }
    for seed in 10_000..20_000 {
        assert_eq!(lookup.find(&record(seed, 0).fingerprint, &|_| true).unwrap(), None);
    }
}

#[test]
fn what_was_read_of_a_run_is_taken_over_wherever_the_run_stands() {
    let (repository, storage) = repository();
    let (old, new) = (sorted(&(0..9000).collect::<Vec<u64>>()), sorted(&[60_000, 60_003]));
    let (of_old, of_new) = (write(&repository, &old, 9000), write(&repository, &new, 9000));
    let look_up = |runs| RunLookup::new(&repository.objects, STORE, runs, 16 << 20);
    let mut before = look_up(vec![of_old]);
    let finds = |lookup: &mut RunLookup, records: &[Record]| {
        let mut found = records.iter().map(|it| lookup.find(&it.fingerprint, &|_| true));
        found.try_fold(0, |count, found| found.map(|found| count + usize::from(found.is_some())))
    };
    assert_eq!(finds(&mut before, &old).unwrap(), old.len());
    let mut after = look_up(vec![of_new, of_old]);
    after.take_over(&mut before);
    assert_eq!(finds(&mut before, &old).unwrap(), old.len(), "the other one reads it again");
    let name = silt_format::names::run(STORE, of_old.id, 0);
    storage.delete(&[Key::new(&name).unwrap()]).unwrap();
    assert_eq!(finds(&mut after, &old).unwrap(), old.len());
    assert_eq!(finds(&mut after, &new).unwrap(), new.len());
    assert!(finds(&mut look_up(vec![of_new, of_old]), &old).is_err(), "it is gone");
}

#[test]
fn ranges_of_fingerprints_are_read_by_themselves() {
    let (repository, _) = repository();
    let records = sorted(&(0..30_000).collect::<Vec<u64>>());
    let key = |record: &Record| silt_format::partition_of(32, &record.fingerprint);
    for (partitions_for, ranges) in [(1, 1), (1, 7), (6_000_000, 3), (6_000_000, 100)] {
        let run = write(&repository, &records, partitions_for);
        let mut found = Vec::new();
        let bound = |number: u64| u32::try_from((number << 32) / ranges).unwrap_or(u32::MAX);
        for number in 0..ranges {
            let last = if number + 1 == ranges { u32::MAX } else { bound(number + 1) - 1 };
            let keys = bound(number)..=last;
            let reader = RunReader::between(&repository.objects, STORE, run, keys.clone());
            let part = drain(Stream::new(reader));
            assert!(part.iter().all(|record| keys.contains(&key(record))), "{keys:?}");
            found.extend(part);
        }
        assert!(found == records, "{ranges} ranges of {} partitions", run.partitions());
        // Bounds that are those of a record are in the range.
        let (first, last) = (key(&records[4000]), key(&records[4100]));
        let reader = RunReader::between(&repository.objects, STORE, run, first..=last);
        let part = drain(Stream::new(reader));
        let expected = records.iter().filter(|record| (first..=last).contains(&key(record)));
        assert!(part.iter().eq(expected));
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_run_is_an_error_and_never_a_wrong_record() {
    let (repository, storage) = repository();
    let records = sorted(&(0..9000).collect::<Vec<u64>>());
    let run = write(&repository, &records, 1);
    let name = Key::new(silt_format::names::run(STORE, run.id, 0)).unwrap();
    let mut whole = Vec::new();
    storage.get(&name, silt_storage::ByteRange::Full, &mut whole).unwrap();
    for bit in (0..whole.len() * 8).step_by(whole.len() * 8 / 97) {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        storage.delete(std::slice::from_ref(&name)).unwrap();
        storage.put(&name, &[&damaged], silt_storage::PutMode::Create).unwrap();
        let mut stream = Stream::new(RunReader::new(&repository.objects, STORE, run));
        let mut read = Vec::new();
        let end = loop {
            match stream.next() {
                Ok(Some(record)) => read.push(record),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        assert!(records.starts_with(&read), "bit {bit}");
        // The filter and the footer's reserved bytes are not read by a scan.
        let is_seen = end.as_ref().is_some_and(silt_repository::objects::is_damage);
        assert!(is_seen || read == records, "bit {bit} of {}: {end:?}", whole.len() * 8);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_merge_gives_all_records_of_its_streams_in_order(
        parts in prop::collection::vec(prop::collection::vec(0_u64..500, 0..200), 1..6)
    ) {
        let (repository, _) = repository();
        let mut expected = Vec::new();
        let streams = parts.iter().map(|seeds| {
            let records = sorted(seeds);
            expected.extend_from_slice(&records);
            let run = write(&repository, &records, 1);
            Stream::new(RunReader::new(&repository.objects, STORE, run))
        }).collect();
        let merged = drain(merge(streams));
        expected.sort_unstable();
        prop_assert!(merged == expected);
    }

    #[test]
    fn a_join_finds_what_a_search_finds(
        asked in prop::collection::vec(0_u64..900, 0..300),
        known in prop::collection::vec(0_u64..900, 0..300),
    ) {
        let (repository, _) = repository();
        let (asked, known) = (sorted(&asked), sorted(&known));
        let stream = |records: &[Record]| {
            let run = write(&repository, records, 300_000);
            Stream::new(RunReader::new(&repository.objects, STORE, run))
        };
        let mut answers = Vec::new();
        join(&mut stream(&asked), &mut stream(&known), &mut |fingerprint, requests, found| {
            answers.extend(requests.iter().map(|request| (*request, found.to_vec())));
            assert!(requests.iter().all(|r| r.fingerprint == *fingerprint));
            Ok(())
        }).unwrap();
        let search = |request: &Record| -> Vec<Record> {
            known.iter().filter(|r| r.fingerprint == request.fingerprint).copied().collect()
        };
        let expected: Vec<_> = asked.iter().map(|request| (*request, search(request))).collect();
        prop_assert_eq!(answers, expected);
    }
}
