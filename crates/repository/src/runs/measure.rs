//! The join by itself, for the benchmark: an index and requests of any size.

use std::path::Path;

use silt_format::number::to_u64;
use silt_format::{Fingerprint, Record, Result, RunRef, RunUse, SeriesId};

use super::merge::Records;
use super::{RunReader, RunWriter, Sorted, Sorter, Stream, join, merge};
use crate::repository::Repository;

/// A run of made-up records, and what it is joined with.
pub struct JoinMeasure<'r> {
    repository: &'r Repository,
    store: SeriesId,
}

/// Evenly spread numbers, each drawn from its own.
fn draw(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Record `number` of `records` in the order of fingerprints.
fn record(number: u64, records: u64) -> Record {
    let mut fingerprint = [0; 20];
    let step = u64::MAX / records;
    let prefix = number * step + draw(number) % step;
    fingerprint[..8].copy_from_slice(&prefix.to_be_bytes());
    fingerprint[8..16].copy_from_slice(&draw(!number).to_be_bytes());
    fingerprint[16..].copy_from_slice(&draw(number ^ 1 << 60).to_be_bytes()[..4]);
    let mut payload = [0; 12];
    payload[4..].copy_from_slice(&number.to_be_bytes());
    Record { fingerprint: Fingerprint(fingerprint), payload }
}

impl<'r> JoinMeasure<'r> {
    /// Measures in a store of its own in this repository, which is good for nothing else
    /// afterwards.
    pub fn new(repository: &'r Repository) -> Self {
        Self { repository, store: repository.series_id("measured run") }
    }

    /// Writes an index of so many entries; its bytes in storage.
    pub fn write(&self, entries: u64) -> Result<(RunRef, u64)> {
        let objects = &self.repository.objects;
        let mut writer = RunWriter::new(objects, self.store, RunUse::Shared, entries)?;
        for number in 0..entries {
            writer.push(record(number, entries))?;
        }
        let run = writer.finish()?;
        Ok((run.run, run.stored_bytes))
    }

    /// Sorts so many requests, of which three in four are in the index, in `sort_bytes` of memory.
    pub fn sort(
        &self,
        run: RunRef,
        requests: u64,
        folder: &Path,
        sort_bytes: usize,
    ) -> Result<SortedRequests> {
        let mut sorter = Sorter::new(&self.repository.objects, folder, sort_bytes);
        for number in 0..requests {
            let drawn = draw(number.wrapping_mul(3) ^ 0x5bd1_e995);
            let mut request = record(drawn % run.records, run.records);
            request.payload = [0; 12];
            if drawn >> 62 == 3 {
                request.fingerprint.0[19] ^= 1;
            }
            sorter.push(request)?;
        }
        sorter.finish().map(SortedRequests)
    }

    /// Joins them; how many different ones there were, and how many were found.
    pub fn join(&self, run: RunRef, requests: &SortedRequests) -> Result<(u64, u64)> {
        let reader = RunReader::new(&self.repository.objects, self.store, run);
        let (mut asked, mut found) = (0, 0);
        join(&mut requests.0.stream(), &mut Stream::new(reader), &mut |_, _, known| {
            asked += 1;
            found += to_u64(known.len());
            Ok(())
        })?;
        Ok((asked, found))
    }
}

/// Requests in order.
pub struct SortedRequests(Sorted);

/// An index that finds every duplicate, by sorting and merging alone.
pub struct ExactIndex<'r> {
    repository: &'r Repository,
    store: SeriesId,
    folder: std::path::PathBuf,
    sort_bytes: usize,
    runs: Vec<RunRef>,
}

/// Most runs; when there are more, they are merged.
const RUNS_MAX: usize = 8;

impl<'r> ExactIndex<'r> {
    /// An empty one; requests are sorted in `sort_bytes` and spill to `folder`.
    pub fn new(repository: &'r Repository, folder: &Path, sort_bytes: usize) -> Self {
        let store = repository.series_id("exact index");
        Self { repository, store, folder: folder.to_owned(), sort_bytes, runs: Vec::new() }
    }

    /// Answers the requests of a round and adds what is new; how many different ones were new.
    pub fn round(&mut self, requests: &mut dyn Iterator<Item = Fingerprint>) -> Result<u64> {
        let objects = &self.repository.objects;
        let mut sorter = Sorter::new(objects, &self.folder, self.sort_bytes);
        for fingerprint in requests {
            sorter.push(Record { fingerprint, payload: [0; 12] })?;
        }
        let sorted = sorter.finish()?;
        let mut new = RunWriter::new(objects, self.store, RunUse::Shared, sorted.records())?;
        let mut count = 0;
        let mut add = |fingerprint: &Fingerprint| {
            count += 1;
            new.push(Record { fingerprint: *fingerprint, payload: [0; 12] })
        };
        join(&mut sorted.stream(), &mut self.index(), &mut |fingerprint, _, known| {
            if known.is_empty() { add(fingerprint) } else { Ok(()) }
        })?;
        self.runs.push(new.finish()?.run);
        if self.runs.len() > RUNS_MAX {
            let records = self.runs.iter().map(|run| run.records).sum();
            let mut all = RunWriter::new(objects, self.store, RunUse::Shared, records)?;
            let mut index = self.index();
            while let Some(record) = index.next()? {
                all.push(record)?;
            }
            self.runs = vec![all.finish()?.run];
        }
        Ok(count)
    }

    /// All entries in order.
    fn index(&self) -> Stream<'r> {
        let objects = &self.repository.objects;
        let readers = self.runs.iter().map(|run| RunReader::new(objects, self.store, *run));
        let mut streams: Vec<_> = readers.map(Stream::new).collect();
        if streams.is_empty() {
            streams.push(Stream::new(NoRecords));
        }
        merge(streams)
    }
}

struct NoRecords;

impl Records for NoRecords {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        batch.clear();
        Ok(())
    }
}
