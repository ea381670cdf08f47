//! Counting what series refer to in a store of several series, here or by other hosts.
//!
//! A sweep of such a store deletes slots to which no series refers. The references of a series can
//! be read by any host: it sorts them and writes them as a run of the store. What a run says counts
//! only for the heads that it was counted from, so the host says which these are, and the sweep
//! compares them with the heads that it finds by itself. A reference too many keeps a chunk. So a
//! run that is old, or counted twice, deletes nothing.

use std::sync::{Mutex, PoisonError};

use silt_format::{
    ALONE, Error, Fingerprint, Head, ObjectTag, Record, Reference, Result, RunRef, RunUse,
    SHARED_STORE, SeriesId,
};
use silt_repository::Repository;
use silt_repository::beside::each_beside;
use silt_repository::bounds::require_listed;
use silt_repository::chunks::open_container;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::sync::lock;
use silt_runs::{DurableRun, Records, RunReader, RunWriter, Sorted, Sorter, Stream};

use crate::exchange::Workspace;
use crate::owners::sorter;
use crate::references::each_reference_to;

/// A slot, as container and slot number.
pub type Slot = (u32, u16);

/// Whose references are counted, and in which store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountTask {
    /// The number of the store.
    pub store: u16,
    /// How many container numbers the store has used, by which the records of slots are spread over
    /// the partitions of a run. All runs that are read together have the same number.
    pub containers: u32,
    /// The series.
    pub series: Vec<SeriesId>,
}

impl CountTask {
    /// The same for other series.
    #[must_use]
    pub fn of(&self, series: Vec<SeriesId>) -> Self {
        Self { series, ..*self }
    }

    fn store_id(&self, repository: &Repository) -> SeriesId {
        repository.objects.keys.store_id(DEFAULT_DOMAIN, self.store)
    }

    /// A record whose key is the place of a slot: containers in order, evenly over all partitions.
    fn record(&self, (container, slot): Slot) -> Record {
        let scaled = (u64::from(container) << 32) / u64::from(self.containers.max(1));
        let scaled = u32::try_from(scaled).unwrap_or(u32::MAX);
        let mut key = [0; 20];
        key[..4].copy_from_slice(&scaled.to_be_bytes());
        key[4..8].copy_from_slice(&container.to_be_bytes());
        key[8..10].copy_from_slice(&slot.to_be_bytes());
        Record { fingerprint: Fingerprint(key), payload: [0; 12] }
    }

    /// The slot of such a record; `Corrupt` if it is another one.
    fn slot(&self, record: &Record) -> Result<Slot> {
        let key = &record.fingerprint.0;
        let container = u32::from_be_bytes([key[4], key[5], key[6], key[7]]);
        let slot = (container, u16::from_be_bytes([key[8], key[9]]));
        if self.record(slot) == *record {
            return Ok(slot);
        }
        Err(Error::corrupt("a run of counted references has a record that is none"))
    }
}

/// The head from which a series' references were counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedHead {
    /// The series.
    pub series: SeriesId,
    /// The head's generation, 0 if there was none.
    pub generation: u64,
    /// The session that wrote it.
    pub writer: [u8; 16],
}

impl CountedHead {
    /// What identifies the newest head of a series.
    pub fn new(series: SeriesId, head: Option<&Head>) -> Self {
        let (generation, writer) = head.map_or((0, [0; 16]), |head| (head.generation, head.writer));
        Self { series, generation, writer }
    }
}

/// What somebody has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// From which heads.
    pub heads: Vec<CountedHead>,
    /// The references, as a run of the store.
    pub run: RunRef,
}

/// Others who count.
pub trait Counters {
    /// Lets others count, as far as there are any. `keep` is called now and then. What nobody
    /// has counted is left out, whatever the reason; fails only if the whole sweep is to end.
    fn count(&self, task: &CountTask, keep: &mut dyn FnMut() -> Result<()>)
    -> Result<Vec<Counted>>;
}

/// Nobody else counts.
pub struct Alone;

impl Counters for Alone {
    fn count(&self, _: &CountTask, _: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Counted>> {
        Ok(Vec::new())
    }
}

/// Counts the references of series and writes them as a run of the store, which no head names.
///
/// Fails if a snapshot of one of them cannot be read.
pub fn count_references(
    repository: &Repository,
    task: &CountTask,
    workspace: &Workspace,
    keep: &mut dyn FnMut() -> Result<()>,
) -> Result<(Counted, DurableRun)> {
    let Workspace { folder, memory_bytes } = workspace;
    let objects = &repository.objects;
    let references = References::new(task, sorter(objects, folder, *memory_bytes));
    let heads = references.count(repository, task.series.clone(), keep)?;
    let sorted = references.finish()?;
    let store = task.store_id(repository);
    let mut writer = RunWriter::new(objects, store, RunUse::Owners, sorted.records.records())?;
    let (mut stream, mut last) = (sorted.records.stream(), None);
    while let Some(record) = stream.next()? {
        if last.replace(record) != Some(record) {
            writer.push(record)?;
        }
    }
    let written = writer.finish()?;
    Ok((Counted { heads, run: written.run }, written))
}

/// References that are being collected: counted here, and by others.
pub struct References {
    task: CountTask,
    // Filled in any order: they are sorted.
    sorter: Mutex<Sorter>,
}

impl References {
    /// None so far.
    pub fn new(task: &CountTask, sorter: Sorter) -> Self {
        Self { task: task.of(Vec::new()), sorter: Mutex::new(sorter) }
    }

    /// Counts what series refer to, and says from which heads.
    pub fn count(
        &self,
        repository: &Repository,
        series: Vec<SeriesId>,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<CountedHead>> {
        let mut heads = Vec::new();
        let push = |slot| lock(&self.sorter).push(self.task.record(slot));
        let read =
            |repository: &Repository, id| each_slot_of(repository, self.task.store, id, &push);
        each_beside(repository, series, read, |read| {
            heads.push(read?);
            keep()
        })?;
        Ok(heads)
    }

    /// Takes what another host has counted. After an error, a part of it was taken, which only
    /// keeps chunks.
    ///
    /// Fails with `Corrupt` if the run is damaged, or has anything else.
    pub fn take(
        &self,
        repository: &Repository,
        run: RunRef,
        keep: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let mut run = RunReader::new(&repository.objects, self.task.store_id(repository), run);
        let mut batch = Vec::new();
        loop {
            run.next_batch(&mut batch)?;
            if batch.is_empty() {
                return Ok(());
            }
            keep()?;
            for record in &batch {
                self.task.slot(record)?;
                lock(&self.sorter).push(*record)?;
            }
        }
    }

    /// All of them, sorted.
    pub fn finish(self) -> Result<SortedReferences> {
        let sorter = self.sorter.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(SortedReferences { task: self.task, records: sorter.finish()? })
    }
}

/// Calls `each` with every slot of a store that a series refers to: by recipes of snapshots, and by
/// links.
fn each_slot_of(
    repository: &Repository,
    store: u16,
    id: SeriesId,
    each: &dyn Fn(Slot) -> Result<()>,
) -> Result<CountedHead> {
    let objects = &repository.objects;
    // What refers to chunks is asked of the very head that was found to have dropped nothing.
    let head = repository.verified_head(id)?;
    let counted = CountedHead::new(id, head.as_ref());
    let Some(head) = head.filter(|head| head.domain != ALONE) else { return Ok(counted) };
    require_listed(objects, &head)?;
    let push = |reference: Reference| each((reference.container(), reference.slot()));
    each_reference_to(repository, store, &head, &mut |chunk| push(chunk.reference))?;
    // Links lead to the shared store alone.
    let is_linked = |tag: ObjectTag| store == SHARED_STORE && tag.is_rewritten();
    for (number, tag) in head.containers.iter().filter(|(_, tag)| is_linked(*tag)) {
        let container = open_container(objects, id, number, tag)?;
        container.directory.links.iter().try_for_each(|link| push(link.target))?;
    }
    Ok(counted)
}

/// Collected references.
pub struct SortedReferences {
    task: CountTask,
    records: Sorted,
}

impl SortedReferences {
    /// All slots, in order.
    pub fn slots(&self) -> Slots<'_> {
        Slots { task: &self.task, records: self.records.stream(), asked: None }
    }
}

/// Slots in order.
pub struct Slots<'a> {
    task: &'a CountTask,
    records: Stream<'a>,
    asked: Option<Slot>,
}

impl Slots<'_> {
    /// Whether a slot is among them. Panics unless slots are asked for in their order: one that has
    /// been passed would be taken for unreferenced.
    pub fn has(&mut self, wanted: Slot) -> Result<bool> {
        assert!(self.asked.replace(wanted).is_none_or(|last| last < wanted), "slots in order");
        while let Some(record) = self.records.peek()? {
            let slot = self.task.slot(record)?;
            if slot >= wanted {
                return Ok(slot == wanted);
            }
            self.records.next()?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TASK: CountTask = CountTask { store: 1, containers: 1000, series: Vec::new() };

    #[test]
    fn slots_sort_by_containers_and_fill_all_partitions() {
        let slots = [(0, 0), (0, 9), (1, 0), (499, 65_535), (500, 0), (999, 1), (1000, 0)];
        let beyond = [(1001, 0), (u32::MAX, 0), (u32::MAX, 1)];
        let records: Vec<Record> =
            slots.iter().chain(&beyond).map(|slot| TASK.record(*slot)).collect();
        assert!(records.is_sorted());
        assert_eq!(records[4].fingerprint.0[..4], [0x80, 0, 0, 0]);
        for (slot, record) in slots.iter().chain(&beyond).zip(&records) {
            assert_eq!(TASK.slot(record).unwrap(), *slot);
        }
    }

    #[test]
    fn a_record_of_anything_else_is_none_of_a_slot() {
        let good = TASK.record((3, 1));
        let mut with_payload = good;
        with_payload.payload[3] = 1;
        let mut with_more = good;
        with_more.fingerprint.0[19] = 1;
        let of_another_size = CountTask { containers: 999, ..TASK }.record((3, 1));
        assert!(TASK.slot(&good).is_ok());
        for record in [with_payload, with_more, of_another_size] {
            assert!(TASK.slot(&record).is_err(), "{record:?}");
        }
    }
}
