//! Rounds of several hosts: what they exchange through the shared store.
//!
//! The stages are those of multi-stage deduplication (Zhang et al., HotStorage 2013), with runs in
//! the storage where the paper sends buffers. Each host writes its requests as a run in the order
//! of fingerprints, and so does whoever counts which series have which chunks. The fingerprints'
//! range is divided into tasks; each task reads its part of all runs, joins them, and writes which
//! host is to store which chunk. The hosts read their parts of these answers, store the chunks in
//! containers whose numbers they were granted, and write where they are. One process, which holds
//! the lease of the shared store meanwhile, commits all of it with the store's next head.
//!
//! A run here is a stream from the storage, so that memory does not grow with the number of
//! requests. Nor does it with the number of hosts: of many runs, a few are read at once, and what
//! is needed of them goes to a temporary file. No head names these runs: what a round leaves behind
//! goes with the next sweep of the shared store.

mod claim;
mod commit;
mod host;
mod join;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::{Result, RunRef, SeriesId};
use silt_repository::Repository;
use silt_repository::objects::Objects;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_runs::{RunReader, Sorted, Sorter, Stream, gather, merge};

pub use claim::write_owners;
pub use commit::{Placed, SharedAdditions};
pub use host::HostRound;
pub use join::{Answers, join_claims};

/// Hosts of a round at most.
pub const HOSTS_MAX: u16 = 4096;

/// Where and in how much memory a stage sorts.
#[derive(Clone, Debug)]
pub struct Workspace {
    /// A folder for temporary files.
    pub folder: PathBuf,
    /// Bytes of memory, 0 for the default.
    pub memory_bytes: u64,
}

/// Memory that a run takes while it is read, in bytes: a block as it is stored and as it is read,
/// two batches of records, what decoding needs, and what is read ahead.
pub const RUN_BYTES: u64 = 400 << 10;
/// Runs that are read at once at the least.
const RUNS_MIN: u64 = 4;

impl Workspace {
    fn sorter(&self, objects: &Arc<Objects>) -> Sorter {
        crate::owners::sorter(objects, &self.folder, self.memory_bytes)
    }

    /// A quarter of the memory reads runs.
    fn reading_bytes(&self) -> u64 {
        crate::owners::memory(self.memory_bytes) / 4
    }

    /// How many runs are read at once at most: with more, records go to a temporary file.
    pub fn runs_at_once(&self) -> usize {
        to_usize((self.reading_bytes() / RUN_BYTES).max(RUNS_MIN))
    }

    /// All records of these streams, in order, in a temporary file.
    fn gather(&self, objects: &Arc<Objects>, streams: Vec<Stream<'_>>) -> Result<Sorted> {
        gather(streams, self.runs_at_once(), self.sorter(objects))
    }

    /// All records of these streams, in order: as they are read, or, if they are too many, from a
    /// temporary file, which `many` then keeps.
    fn merged<'s>(
        &self,
        objects: &Arc<Objects>,
        streams: Vec<Stream<'s>>,
        many: &'s mut Option<Sorted>,
    ) -> Result<Stream<'s>> {
        if streams.len() <= self.runs_at_once() {
            return Ok(merge(streams));
        }
        Ok(many.insert(self.gather(objects, streams)?).stream())
    }
}

/// Requests of a task, about: so many that its overhead does not count.
const REQUESTS_OF_A_TASK: u64 = 1 << 20;
/// Tasks of a round at most: whoever stores is told a run of answers of each in one message. The
/// memory of a task does not grow with its requests.
pub const TASKS_MAX: u32 = 2048;

/// Into how many tasks the comparing of so many requests is divided among hosts.
pub fn tasks_of(requests: u64, hosts: u32) -> u32 {
    let hosts = hosts.max(1);
    let wanted = u32::try_from(requests / REQUESTS_OF_A_TASK + 1).unwrap_or(u32::MAX);
    // As many for each host, if there is one for each.
    let of_a_host = wanted.div_ceil(hosts).min((TASKS_MAX / hosts).max(1));
    of_a_host.saturating_mul(hosts).min(TASKS_MAX)
}

/// The fingerprints of task `task` of `tasks`, by their first four bytes.
pub fn keys_of(task: u32, tasks: u32) -> RangeInclusive<u32> {
    part(task, tasks, 1 << 32)
}

/// The records for host `host` of `hosts` in a run of answers, by their first four bytes.
fn lane_of(host: u16, hosts: u16) -> RangeInclusive<u32> {
    part(u32::from(host), u32::from(hosts), 1 << 32)
}

/// Part `number` of `count` of the numbers below `all`.
fn part(number: u32, count: u32, all: u64) -> RangeInclusive<u32> {
    let bound = |number: u32| u64::from(number) * all / u64::from(count.max(1));
    let narrow = |bound: u64| u32::try_from(bound).unwrap_or(u32::MAX);
    narrow(bound(number))..=narrow(bound(number + 1) - 1)
}

fn shared_store(repository: &Repository) -> SeriesId {
    repository.objects.keys.shared_store_id(DEFAULT_DOMAIN)
}

/// Streams of a range of several runs. If all are read at once, each reads little at a time.
fn streams(
    repository: &Repository,
    runs: &[RunRef],
    keys: &RangeInclusive<u32>,
    workspace: &Workspace,
) -> Vec<Stream<'static>> {
    let at_once = to_u64(runs.len().min(workspace.runs_at_once()));
    let read_bytes = workspace.reading_bytes() / 2 / at_once.max(1);
    let store = shared_store(repository);
    let reader = |run: &RunRef| {
        let reader = RunReader::between(&repository.objects, store, *run, keys.clone());
        Stream::new(reader.reading(read_bytes))
    };
    runs.iter().filter(|run| run.records > 0).map(reader).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_have_equal_shares_of_tasks() {
        assert_eq!([tasks_of(1, 4), tasks_of(5 << 20, 4), tasks_of(8 << 20, 4)], [4, 8, 12]);
        // 100,000 disks in twelve parts.
        let of = |hosts| tasks_of(17_900_000_000, hosts);
        assert_eq!([of(10), of(1000), of(3000)], [2040, 2000, 2048]);
        assert_eq!(tasks_of(u64::MAX, 0), TASKS_MAX);
    }

    #[test]
    fn a_quarter_of_the_memory_reads_runs() {
        let of = |memory_bytes| Workspace { folder: PathBuf::new(), memory_bytes }.runs_at_once();
        assert_eq!([of(1), of(32 << 20), of(0)], [4, 20, 30]);
    }
}
