//! Copying chunks from private stores to the shared one.

use silt_format::number::{to_u16, to_u32};
use silt_format::{
    CONTAINER_SLOTS_MAX, Fingerprint, Head, Reference, Result, RunRef, RunUse, SHARED_STORE,
    SeriesId, names,
};

use super::owners::shared_runs;
use super::record::{Owner, SharedRecord};
use crate::chunks::{Container, open_container, read_frame};
use crate::deletion::Edit;
use crate::draft::ContainerDraft;
use crate::objects::{Scratch, is_damage};
use crate::repository::Repository;
use crate::runs::{DurableRun, RunReader, RunWriter, Sorted, Sorter, Stream, merge};

/// Most runs of an index; when there are more, they are merged into one.
const RUNS_MAX: usize = 4;

/// The frame that was read last, from which mostly the next chunk comes too.
pub(super) struct Source<'a> {
    repository: &'a Repository,
    /// The container that is open, by series and number; it may not be readable.
    container: Option<(SeriesId, u32, Option<Container>)>,
    frame: Option<u16>,
    raw: Vec<u8>,
    scratch: Scratch,
}

impl<'a> Source<'a> {
    pub(super) fn new(repository: &'a Repository) -> Result<Self> {
        let scratch = Scratch::new()?;
        Ok(Self { repository, container: None, frame: None, raw: Vec::new(), scratch })
    }

    /// A chunk and its fingerprint, verified; `None` if it can't be read.
    pub(super) fn read(
        &mut self,
        head: &Head,
        place: Owner,
    ) -> Result<Option<(Fingerprint, &[u8])>> {
        let here = (head.series, place.container);
        if self.container.as_ref().is_none_or(|(series, number, _)| (*series, *number) != here) {
            let revision = head.containers.revision(place.container).unwrap_or(0);
            let opened = open_or_warn(self.repository, head.series, place.container, revision)?;
            self.container = Some((head.series, place.container, opened));
            self.frame = None;
        }
        let Some((_, _, Some(container))) = &self.container else { return Ok(None) };
        let Some(slot) = container.directory.slot(place.slot) else { return Ok(None) };
        let fingerprint = container.directory.fingerprints[slot.index as usize];
        let objects = &self.repository.objects;
        if self.frame != Some(slot.frame) {
            match read_frame(objects, container, slot.frame, &mut self.scratch, &mut self.raw) {
                Ok(()) => self.frame = Some(slot.frame),
                Err(error) if is_damage(&error) => {
                    self.frame = None;
                    self.repository.warn(&format!("{error}; its chunks are not shared"));
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        let start = slot.offset as usize;
        let chunk = &self.raw[start..start + slot.length as usize];
        let key = objects.keys.fingerprint_key(head.domain);
        let is_whole = silt_format::fingerprint(&key, chunk) == fingerprint;
        Ok(is_whole.then_some((fingerprint, chunk)))
    }
}

/// Opens a container; one that is damaged or gone by now is passed over with a warning.
pub(super) fn open_or_warn(
    repository: &Repository,
    store: SeriesId,
    number: u32,
    revision: u32,
) -> Result<Option<Container>> {
    match open_container(&repository.objects, store, number, revision) {
        Ok(container) => Ok(Some(container)),
        Err(error) if is_damage(&error) => {
            repository.warn(&format!("{error}; its chunks are not shared"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Chunks on their way to the shared store, and their index.
pub(super) struct Additions<'a> {
    repository: &'a Repository,
    writer: StoreWriter<'a>,
    placed: Sorter,
}

impl<'a> Additions<'a> {
    pub(super) fn new(repository: &'a Repository, head: &Head, placed: Sorter) -> Result<Self> {
        Ok(Self { repository, writer: StoreWriter::new(repository, head)?, placed })
    }

    /// Stores a chunk that the store has not.
    pub(super) fn add(&mut self, chunk: &[u8], fingerprint: Fingerprint) -> Result<()> {
        let reference = self.writer.append(chunk, fingerprint)?;
        let chunk_bytes = to_u32(chunk.len());
        self.placed.push(SharedRecord { reference, chunk_bytes }.encode(fingerprint))
    }

    /// Commits the chunks with the store's next head; the answer is how many bytes were written.
    pub(super) fn commit(self, edit: &mut Edit<'_>) -> Result<u64> {
        let containers = self.writer.finish()?;
        let run = index(self.repository, edit, &self.placed.finish()?)?;
        containers.numbers.iter().for_each(|number| edit.head.containers.push(*number, 0));
        edit.head.next_container = containers.next_number;
        edit.commit()?;
        Ok(containers.stored_bytes + run.stored_bytes)
    }
}

/// Adds new chunks to the index: as a run of their own, or merged with all there are.
fn index(repository: &Repository, edit: &mut Edit<'_>, placed: &Sorted) -> Result<DurableRun> {
    let (objects, store) = (&repository.objects, edit.head.series);
    let before: Vec<RunRef> = shared_runs(&edit.head).collect();
    let mut streams = vec![placed.stream()];
    let mut records = placed.records();
    if before.len() >= RUNS_MAX {
        for run in before {
            streams.push(Stream::new(RunReader::new(objects, store, run)?));
            records += run.records;
        }
        edit.head.runs.retain(|run| run.use_ != RunUse::Shared);
    }
    let mut merged = merge(streams);
    let mut writer = RunWriter::new(objects, store, RunUse::Shared, records)?;
    while let Some(record) = merged.next()? {
        writer.push(record)?;
    }
    let run = writer.finish()?;
    edit.head.runs.push(run.run);
    Ok(run)
}

/// Writes containers of the shared store.
struct StoreWriter<'a> {
    repository: &'a Repository,
    store: SeriesId,
    next_number: u32,
    open: Option<(u32, ContainerDraft)>,
    numbers: Vec<u32>,
    stored_bytes: u64,
}

/// Proof that every container is durable.
struct DurableStore {
    numbers: Vec<u32>,
    next_number: u32,
    stored_bytes: u64,
}

impl<'a> StoreWriter<'a> {
    /// A writer whose numbers lie behind all that are there, also those of interrupted builds.
    fn new(repository: &'a Repository, head: &Head) -> Result<Self> {
        let mut next_number = head.next_container;
        for item in repository.objects.names(&names::containers(head.series), None)? {
            if let Some((number, _)) = names::number_and_revision(&item?.0) {
                next_number = next_number.max(number.saturating_add(1));
            }
        }
        let (numbers, stored_bytes) = (Vec::new(), 0);
        Ok(Self { repository, store: head.series, next_number, open: None, numbers, stored_bytes })
    }

    fn append(&mut self, chunk: &[u8], fingerprint: Fingerprint) -> Result<Reference> {
        let config = &self.repository.config;
        let is_full = |draft: &ContainerDraft| {
            draft.bytes() >= config.container_bytes as usize
                || draft.chunks() == CONTAINER_SLOTS_MAX
        };
        if self.open.as_ref().is_some_and(|(_, draft)| is_full(draft)) {
            self.close()?;
        }
        let (number, draft) = match &mut self.open {
            Some(open) => open,
            none => {
                let (objects, number) = (&self.repository.objects, self.next_number);
                self.next_number += 1;
                let draft = ContainerDraft::new(objects, config, self.store, number, 0)?;
                none.insert((number, draft))
            }
        };
        let slot = to_u16(draft.chunks());
        draft.push(slot, chunk, fingerprint);
        Ok(Reference::new(SHARED_STORE, *number, slot))
    }

    fn close(&mut self) -> Result<()> {
        let Some((number, draft)) = self.open.take() else { return Ok(()) };
        self.stored_bytes += draft.finish(&self.repository.objects)?;
        self.numbers.push(number);
        Ok(())
    }

    fn finish(mut self) -> Result<DurableStore> {
        self.close()?;
        let (numbers, next_number) = (self.numbers, self.next_number);
        Ok(DurableStore { numbers, next_number, stored_bytes: self.stored_bytes })
    }
}
