//! The commit of what the hosts of a round have stored.

use std::ops::Range;

use silt_format::{Error, ObjectTag, Record, Result, RunRef, names};
use silt_repository::Repository;
use silt_repository::edit::Edit;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_runs::Stream;
use silt_runs::shared_record::SharedRecord;

use super::{Workspace, streams};
use crate::copy::{commit_additions, next_number};

/// Numbers that are granted for as many bytes of chunks as fill a container: what does not compress
/// takes a little more than one.
const NUMBERS_OF_A_CONTAINER: u64 = 2;

/// What a host has stored for the shared store, durable and named by no head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The containers, with the numbers that were granted.
    pub containers: Vec<(u32, ObjectTag)>,
    /// A run of the shared store: which chunk is where.
    pub run: RunRef,
    /// How many chunks there are.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes written.
    pub stored_bytes: u64,
}

/// The process that commits a round's additions: it holds the lease of the shared store, grants
/// container numbers, and commits.
///
/// If it sleeps until the lease is over and somebody else changes the store, its commit fails, and
/// nothing of the round is shared.
pub struct SharedAdditions<'r> {
    repository: &'r Repository,
    edit: Edit<'r>,
    /// The first number that nobody has.
    free: u32,
    granted: Vec<Range<u32>>,
}

impl<'r> SharedAdditions<'r> {
    /// Takes the lease of the shared store.
    ///
    /// Fails with `Busy` while another process changes it, with `Denied` if this key may not.
    pub fn begin(repository: &'r Repository) -> Result<Self> {
        let edit = Edit::begin_shared(repository, DEFAULT_DOMAIN)?;
        let free = next_number(repository, &edit.head)?;
        Ok(Self { repository, edit, free, granted: Vec::new() })
    }

    /// Keeps the lease; fails with `Busy` if somebody took it over.
    pub fn keep(&mut self) -> Result<()> {
        self.edit.keep()
    }

    /// Grants container numbers to a host that stores this many chunks of at most `chunk_bytes`.
    pub fn grant(&mut self, chunks: u64, chunk_bytes: u64) -> Result<Range<u32>> {
        let container_bytes = u64::from(self.repository.config.container_bytes).max(1);
        let bytes = chunks.saturating_mul(chunk_bytes.max(1));
        // One more, which is begun and may stay empty.
        let numbers = (bytes / container_bytes + 1).saturating_mul(NUMBERS_OF_A_CONTAINER) + 1;
        let end = u32::try_from(numbers).ok().and_then(|numbers| self.free.checked_add(numbers));
        let end = end.ok_or_else(|| {
            Error::invalid("the shared store has used all 2^32 container numbers")
        })?;
        let granted = self.free..end;
        self.free = end;
        self.granted.push(granted.clone());
        Ok(granted)
    }

    /// Commits what the hosts have stored, each with the numbers that it was granted. Returns the
    /// head's generation, and the bytes of the index.
    ///
    /// Fails with `Corrupt` if one of them names a container or a chunk outside of its numbers.
    pub fn commit(
        &mut self,
        placed: &[(Range<u32>, Placed)],
        workspace: &Workspace,
    ) -> Result<(u64, u64)> {
        let mut containers: Vec<(u32, ObjectTag)> = Vec::new();
        for (granted, placed) in placed {
            let is_granted = self.granted.contains(granted)
                && placed.containers.iter().all(|(number, _)| granted.contains(number));
            if !is_granted {
                return Err(Error::corrupt("a host names containers that it was not granted"));
            }
            containers.extend(&placed.containers);
        }
        containers.sort_unstable();
        if containers.windows(2).any(|pair| pair[0].0 == pair[1].0) {
            return Err(Error::corrupt("two containers have one number"));
        }
        let runs: Vec<RunRef> = placed.iter().map(|(_, placed)| placed.run).collect();
        let all = streams(self.repository, &runs, &(0..=u32::MAX), workspace);
        // Runs without records have no stream.
        let hosts = placed.iter().filter(|(_, placed)| placed.run.records > 0);
        let own = |((granted, placed), stream): (&(Range<u32>, Placed), Stream<'static>)| {
            let held = placed.containers.iter().map(|(number, _)| *number).collect();
            Stream::new(Own { stream, numbers: granted.clone(), held, last: None })
        };
        let all = hosts.zip(all).map(own).collect();
        let mut many = None;
        let all = workspace.merged(&self.repository.objects, all, &mut many)?;
        let records = placed.iter().map(|(_, placed)| placed.run.records);
        let records = records.fold(0, u64::saturating_add);
        let numbers = (containers, self.free);
        let bytes =
            commit_additions(self.repository, &mut self.edit, numbers, (vec![all], records))?;
        Ok((self.edit.head.generation, bytes))
    }

    /// Removes runs that the round needs no more, and gives the lease back. What the head names
    /// stays, whatever a host says.
    pub fn finish(self, runs: &[RunRef]) -> Result<()> {
        let (store, named) = (self.edit.head.series, &self.edit.head.runs);
        let runs = runs.iter().filter(|run| named.iter().all(|named| named.id != run.id));
        let parts = |run: &RunRef| {
            let id = run.id;
            (0..run.partitions()).map(move |partition| names::run(store, id, partition))
        };
        let names: Vec<String> = runs.flat_map(parts).collect();
        let removed = self.repository.objects.delete(&names);
        self.edit.finish()?;
        removed
    }
}

/// Records of chunks in containers that their host has named, in order; others are an error.
struct Own {
    stream: Stream<'static>,
    numbers: Range<u32>,
    /// In order.
    held: Vec<u32>,
    last: Option<Record>,
}

impl silt_runs::Records for Own {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        self.stream.next_batch(batch)?;
        for record in &*batch {
            if self.last.replace(*record).is_some_and(|last| last >= *record) {
                return Err(Error::corrupt("a host places chunks out of order, or one twice"));
            }
        }
        let number = |record: &Record| SharedRecord::decode(record).reference.container();
        let is_own = |number: u32| self.held.binary_search(&number).is_ok();
        match batch.iter().map(number).find(|number| !is_own(*number)) {
            Some(number) => Err(Error::corrupt(format!(
                "a host that was granted numbers {:?} places a chunk in container {number}",
                self.numbers
            ))),
            None => Ok(()),
        }
    }
}
