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
//! requests. No head names these runs: what a round leaves behind goes with the next sweep of the
//! shared store.

mod claim;
mod commit;
mod host;
mod join;

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::{RunRef, SeriesId};
use silt_repository::Repository;
use silt_repository::objects::Objects;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_runs::{RunReader, Sorter, Stream};

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

impl Workspace {
    fn sorter(&self, objects: &Arc<Objects>) -> Sorter {
        crate::owners::sorter(objects, &self.folder, self.memory_bytes)
    }
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

/// Streams of a range of several runs, each of which reads little at a time if there are many.
fn streams(
    repository: &Repository,
    runs: &[RunRef],
    keys: &RangeInclusive<u32>,
) -> Vec<Stream<'static>> {
    let read_bytes = READ_BYTES_OF_ALL / runs.len().max(1) as u64;
    let store = shared_store(repository);
    let reader = |run: &RunRef| {
        let reader = RunReader::between(&repository.objects, store, *run, keys.clone());
        Stream::new(reader.reading(read_bytes))
    };
    runs.iter().filter(|run| run.records > 0).map(reader).collect()
}

/// Bytes that the readers of all requests, or all owners, hold together.
const READ_BYTES_OF_ALL: u64 = 4 << 20;
