//! Copies chunks from private stores to the shared one.

use std::ops::Range;
use std::sync::Arc;

use silt_format::number::to_u32;
use silt_format::{
    Fingerprint, Head, ObjectTag, Result, RunRef, RunUse, SHARED_STORE, SeriesId, names,
};
use silt_repository::chunks::{ChunkReader, Container, open_container};
use silt_repository::container_reader::{ContainerReader, StoredChunk};
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;
use silt_repository::upload::Uploads;
use silt_runs::shared_record::{Owner, SharedRecord};
use silt_runs::{DurableRun, RunReader, RunWriter, Sorted, Sorter, Stream, merge};

use silt_backup::{ContainerWriter, Pipeline};
use silt_repository::Repository;
use silt_repository::edit::Edit;
use silt_repository::jobs::jobs;

/// Maximum number of runs of an index; when there are more, they are merged into one.
const RUNS_MAX: usize = 4;

/// The frame that was read last, from which mostly the next chunk comes too.
pub struct Source<'a> {
    repository: &'a Repository,
    /// The container that is open, by series and number; it may not be readable.
    container: Option<(SeriesId, u32, Option<Container>)>,
    reader: ContainerReader<'a>,
    /// The series whose deltas the reader reads.
    deltas_of: Option<SeriesId>,
}

impl<'a> Source<'a> {
    /// Nothing was read yet.
    pub fn new(repository: &'a Repository) -> Self {
        let reader = ContainerReader::new(&repository.objects);
        Self { repository, container: None, reader, deltas_of: None }
    }

    /// A chunk and its fingerprint, verified; `None` if it can't be read.
    pub fn read(&mut self, head: &Head, place: Owner) -> Result<Option<(Fingerprint, &[u8])>> {
        let here = (head.series, place.container);
        if self.container.as_ref().is_none_or(|(series, number, _)| (*series, *number) != here) {
            let tag = head.containers.tag(place.container).unwrap_or(ObjectTag::NONE);
            let opened = open_or_warn(self.repository, head.series, place.container, tag)?;
            let has_deltas = opened.as_ref().is_some_and(|it| !it.directory.deltas.is_empty());
            if has_deltas && self.deltas_of != Some(head.series) {
                let objects = &self.repository.objects;
                let chunks = ChunkReader::new(objects, head, objects.context.budget(0))?;
                self.reader.read_deltas_with(Arc::new(chunks));
                self.deltas_of = Some(head.series);
            }
            self.container = Some((head.series, place.container, opened));
        }
        let Some((_, _, Some(container))) = &self.container else { return Ok(None) };
        let StoredChunk { bytes, fingerprint } = match self.reader.chunk(container, place.slot) {
            Ok(Some(chunk)) => chunk,
            Ok(None) => return Ok(None),
            Err(error) if is_damage(&error) => {
                self.repository.warn(Warning::after(&error, "its chunks are not shared"));
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let key = self.repository.objects.keys.fingerprint_key(head.domain, head.series);
        let is_whole = silt_format::fingerprint(&key, bytes) == fingerprint;
        Ok(is_whole.then_some((fingerprint, bytes)))
    }
}

/// Opens a container; one that is damaged or gone by now is passed over with a warning.
pub fn open_or_warn(
    repository: &Repository,
    store: SeriesId,
    number: u32,
    tag: ObjectTag,
) -> Result<Option<Container>> {
    match open_container(&repository.objects, store, number, tag) {
        Ok(container) => Ok(Some(container)),
        Err(error) if is_damage(&error) => {
            repository.warn(Warning::after(&error, "its chunks are not shared"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Chunks on their way to the shared store, and where they are placed.
pub struct Additions<'p, 'a> {
    pipeline: &'p Pipeline<'a>,
    writer: ContainerWriter,
    placed: Sorter,
    /// The first container number that is not to be used.
    end: u32,
}

impl Additions<'_, '_> {
    /// Stores a chunk that the store has not. Returns whether there was a container number for it.
    pub fn add(&mut self, chunk: &[u8], fingerprint: Fingerprint) -> Result<bool> {
        if self.writer.next_number() >= self.end {
            return Ok(false);
        }
        let reference = self.writer.append(self.pipeline, chunk, fingerprint)?;
        let chunk_bytes = to_u32(chunk.len());
        self.placed.push(SharedRecord { reference, chunk_bytes }.encode(fingerprint))?;
        Ok(true)
    }
}

/// Containers that are durable, and which chunks they hold.
pub struct Filled {
    /// Where the chunks are, as records of an index.
    pub placed: Sorted,
    /// The containers.
    pub containers: Vec<(u32, ObjectTag)>,
    /// Behind the last of their numbers.
    pub next_number: u32,
    /// Bytes written.
    pub stored_bytes: u64,
}

/// Lets `fill` add chunks to new containers of a shared store, with numbers from a range. No head
/// names them yet.
pub fn fill_containers<T>(
    repository: &Repository,
    store: SeriesId,
    numbers: Range<u32>,
    placed: Sorter,
    fill: impl FnOnce(&mut Additions<'_, '_>) -> Result<T>,
) -> Result<(T, Filled)> {
    let (objects, config) = (&repository.objects, &repository.config);
    let first = (numbers.start, ObjectTag::first(objects.context.random_id()));
    let budget = objects.context.budget(0);
    let uploads = Uploads::new(objects, budget.uploads(objects.storage.uploads()));
    let writer = ContainerWriter::new(objects, (store, SHARED_STORE), config, first, uploads)?;
    let workers = objects.context.workers(budget.workers(jobs(0)));
    let pipeline = Pipeline::of_packing(&objects.buffers, config.zstd_level, workers);
    let (filled, placed, writer) = pipeline.run(|pipeline| {
        let mut additions = Additions { pipeline, writer, placed, end: numbers.end };
        let filled = fill(&mut additions)?;
        let Additions { mut writer, placed, .. } = additions;
        writer.close(pipeline)?;
        Ok((filled, placed, writer))
    })?;
    let placed = placed.finish()?;
    let (next_number, stored_bytes) = (writer.next_number(), writer.stored_bytes);
    let containers = writer.finish()?.0;
    Ok((filled, Filled { placed, containers, next_number, stored_bytes }))
}

/// Lets `fill` add chunks to the shared store and commits them with the store's next head. Returns
/// the result of `fill` and the number of bytes written.
pub fn add_to_store<T>(
    repository: &Repository,
    edit: &mut Edit<'_>,
    placed: Sorter,
    fill: impl FnOnce(&mut Additions<'_, '_>, &mut Edit<'_>) -> Result<T>,
) -> Result<(T, u64)> {
    let numbers = next_number(repository, &edit.head)?..u32::MAX;
    let (store, head) = (edit.head.series, &mut *edit);
    let filling = |additions: &mut Additions<'_, '_>| fill(additions, head);
    let (value, filled) = fill_containers(repository, store, numbers, placed, filling)?;
    let records = filled.placed.records();
    let run_bytes = commit_additions(
        repository,
        edit,
        (filled.containers, filled.next_number),
        (vec![filled.placed.stream()], records),
    )?;
    Ok((value, filled.stored_bytes + run_bytes))
}

/// Commits containers and the index of what they hold, in streams of so many records. Returns the
/// number of bytes written.
pub fn commit_additions(
    repository: &Repository,
    edit: &mut Edit<'_>,
    (containers, next_number): (Vec<(u32, ObjectTag)>, u32),
    placed: (Vec<Stream<'_>>, u64),
) -> Result<u64> {
    let run = index(repository, edit, placed)?;
    containers.into_iter().for_each(|(number, tag)| edit.head.containers.push(number, tag));
    edit.head.next_container = next_number;
    edit.head.users = ids_of_all(repository)?;
    edit.commit()?;
    Ok(run.stored_bytes)
}

/// A container's number that lies behind all that are there, also those of interrupted builds.
pub fn next_number(repository: &Repository, head: &Head) -> Result<u32> {
    let mut next_number = head.next_container;
    for item in repository.objects.names(&names::containers(head.series), None)? {
        if let Some((number, _)) = names::number_and_tag(&item?.0) {
            next_number = next_number.max(number.saturating_add(1));
        }
    }
    Ok(next_number)
}

/// Adds new chunks to the index: as a run of their own, or merged with all there are.
fn index(
    repository: &Repository,
    edit: &mut Edit<'_>,
    (mut streams, mut records): (Vec<Stream<'_>>, u64),
) -> Result<DurableRun> {
    let (objects, store) = (&repository.objects, edit.head.series);
    let before: Vec<RunRef> = shared_runs(&edit.head).collect();
    if before.len() >= RUNS_MAX {
        for run in before {
            streams.push(Stream::new(RunReader::new(objects, store, run)));
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

/// The ids of all series, for a shared store to know.
pub fn ids_of_all(repository: &Repository) -> Result<Vec<SeriesId>> {
    let mut ids: Vec<_> = all_series(repository)?.into_iter().map(|(id, _)| id).collect();
    ids.sort_unstable();
    Ok(ids)
}

/// All series, also those whose records are lost.
pub fn all_series(repository: &Repository) -> Result<Vec<(SeriesId, String)>> {
    let mut series = repository.series()?;
    series.extend(repository.unrecorded(&series)?);
    let stores = repository.stores();
    series.retain(|(id, _)| stores.iter().all(|store| store.id != *id));
    Ok(series)
}

/// The runs of a shared store's head that say where its chunks are.
pub fn shared_runs(head: &Head) -> impl Iterator<Item = RunRef> + '_ {
    head.runs.iter().filter(|run| run.use_ == RunUse::Shared).copied()
}
