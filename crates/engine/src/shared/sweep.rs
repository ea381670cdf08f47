//! Deletes from the shared store in three steps: condemn, wait for backups that do not know of it,
//! delete.
//!
//! A commit of the store's head condemns slots without references: backups that begin later do not
//! refer to them. Each series whose newest commit does not know that head gets a new commit, which
//! prevents earlier backups from committing. Then all references are checked again, and condemned
//! slots still without references are dead. No decision depends on a clock.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use silt_format::{
    ALONE, Advice, DeadRange, Error, ErrorKind, Head, ObjectTag, Record, Result, RunUse,
    SHARED_STORE, SeriesId, names,
};
use silt_repository::bounds::require_listed;
use silt_repository::chunks::open_container;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::heads;
use silt_repository::lease;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_repository::sync::lock;
use silt_runs::shared_index::name_store;
use silt_runs::shared_record::{Owner, SharedRecord, by_place, place_of};
use silt_runs::{RunReader, RunWriter, Sorted, Sorter, Stream, merge};

use crate::deletion::{ReclaimOptions, ReclaimReport};
use crate::edit::Edit;
use crate::repository::Repository;
use silt_sharing::copy::{all_series, ids_of_all, shared_runs};
use silt_sharing::references::each_reference_to;

/// Memory to sort references in by default, in bytes.
const SORT_BYTES_DEFAULT: u64 = 24 << 20;

/// How the shared store is swept and its space freed.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let options = SharedSweepOptions {
///     spool: std::env::temp_dir(),
///     memory_bytes: 0,
///     reclaim: ReclaimOptions::default(),
///     dry_run: false,
/// };
/// assert_eq!(repository.sweep_shared(&options)?.slots, 0, "nothing is shared yet");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedSweepOptions {
    /// A folder for temporary files, which take about 32 bytes a reference.
    pub spool: PathBuf,
    /// Bytes of memory to sort in, 0 for the default.
    pub memory_bytes: u64,
    /// How the space of dead chunks is freed.
    pub reclaim: ReclaimOptions,
    /// Reports the chunks that would be condemned and freed, and changes nothing.
    pub dry_run: bool,
}

/// The result of a sweep of the shared store.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// # let mut backup = repository.backup("web2", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// # let (spool, memory_bytes, dry_run) = (std::env::temp_dir(), 0, false);
/// # let policy = SharePolicy::Duplicates;
/// # repository.build_popular(&PopularOptions { policy, spool, memory_bytes, dry_run })?;
/// # let (spool, reclaim) = (std::env::temp_dir(), ReclaimOptions::default());
/// # let options = SharedSweepOptions { spool, memory_bytes, reclaim, dry_run };
/// let report = repository.sweep_shared(&options)?;
/// println!("{} bytes were freed", report.reclaimed.freed_bytes());
/// assert_eq!(report.slots, 2);
/// assert!(report.waiting_for.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SharedSweepReport {
    /// Slots of the store.
    pub slots: u64,
    /// Slots that no series refers to and that new backups will not use.
    pub condemned_slots: u64,
    /// Slots that were found dead.
    pub dead_slots: u64,
    /// Series that are being backed up. Condemned slots stay until a sweep after those backups.
    pub waiting_for: Vec<String>,
    /// The space that was freed.
    pub reclaimed: ReclaimReport,
}

impl Repository {
    /// Deletes chunks from the shared store to which no series refers.
    ///
    /// Fails with `Busy` while another process changes the store, and if a snapshot cannot be read,
    /// because its chunks must not be deleted. Condemned slots of series that are being backed up
    /// wait for the next sweep.
    pub fn sweep_shared(&self, options: &SharedSweepOptions) -> Result<SharedSweepReport> {
        self.sweep_store(SHARED_STORE, options)
    }

    /// The same for the store with this number: the shared store, or that of a node. Also removes
    /// what backups that have ended have left in a node. What backups that still run write stays.
    pub fn sweep_store(
        &self,
        number: u16,
        options: &SharedSweepOptions,
    ) -> Result<SharedSweepReport> {
        let mut report = SharedSweepReport::default();
        let store = self.objects.keys.store_id(DEFAULT_DOMAIN, number);
        // The first build may have been interrupted, and have left something.
        let left = [names::containers(store), names::runs(store), names::dead_lists(store)];
        let has_left = |prefix: &String| self.objects.has_any(prefix);
        if self.verified_head(store)?.is_none()
            && !left.iter().map(has_left).collect::<Result<Vec<_>>>()?.contains(&true)
        {
            return Ok(report);
        }
        let mut edit = Edit::begin_store(self, number)?;
        let verify = |repository: &Self, (id, _): (SeriesId, String)| repository.verify_history(id);
        self.each_beside(self.users(&edit.head)?, verify, |verified| {
            verified?;
            edit.keep()
        })?;
        edit.end_writers(options.dry_run)?;
        edit.sweep_store(number, options, &mut report)?;
        edit.finish()?;
        Ok(report)
    }

    /// All series; `Corrupt` if one is not there that the shared store knew when it was last built
    /// or swept: what it refers to must not be deleted because storage hides it.
    fn users(&self, store: &Head) -> Result<Vec<(SeriesId, String)>> {
        let series = all_series(self)?;
        let is_there = |id: &SeriesId| series.iter().any(|(known, _)| known == id);
        let missing = store.users.iter().find(|id| !is_there(id));
        match missing.filter(|_| !self.objects.context.env.accepts_older()) {
            Some(id) => Err(Error::corrupt(format!(
                "series {id}, which uses the shared store, is missing: the storage hides it, or it \
                 was removed; nothing is deleted"
            ))
            .with_advice(Advice::AcceptRemovedSeries)),
            None => Ok(series),
        }
    }
}

impl Edit<'_> {
    /// Takes the reservations of backups away that have ended: if one of them only sleeps, it can
    /// register nothing any more.
    fn end_writers(&mut self, is_dry_run: bool) -> Result<()> {
        let objects = &self.repository.objects;
        let mut running = Vec::new();
        for writer in &self.head.store_writers {
            if lease::is_held_by(objects, writer.series, writer.session)? {
                running.push(*writer);
            }
        }
        if running.len() < self.head.store_writers.len() && !is_dry_run {
            self.head.store_writers = running;
            self.commit()?;
        }
        Ok(())
    }

    fn sweep_store(
        &mut self,
        number: u16,
        options: &SharedSweepOptions,
        report: &mut SharedSweepReport,
    ) -> Result<()> {
        let (objects, store) = (&self.repository.objects, self.head.series);
        if self.head.condemned.is_empty() {
            let unreferenced = self.unreferenced(number, options, report)?;
            report.condemned_slots = unreferenced.slots();
            if !unreferenced.is_empty() && !options.dry_run {
                let list = dead::write(objects, store, &unreferenced)?;
                self.head.condemned = list.into_iter().collect();
                self.head.condemned_in = self.head.generation + 1;
                self.head.users = ids_of_all(self.repository)?;
                self.commit()?;
            }
        }
        if !self.head.condemned.is_empty() && !options.dry_run {
            let condemned = dead::read(objects, store, &self.head.condemned)?;
            report.condemned_slots = condemned.slots();
            report.waiting_for = fence(self.repository, number, &self.head)?;
            if report.waiting_for.is_empty() {
                let unreferenced = self.unreferenced(number, options, report)?;
                self.bury(&condemned.intersection(&unreferenced), report)?;
            }
        }
        // The lists say what is dead; there are no snapshots here that could.
        let steps = self.plan(&options.reclaim)?;
        report.reclaimed = steps.forecast();
        if options.dry_run {
            return Ok(());
        }
        self.execute(&steps, &mut report.reclaimed)
    }

    /// Makes condemned slots dead, and takes them out of the index in the same commit.
    fn bury(&mut self, gone: &DeadSlots, report: &mut SharedSweepReport) -> Result<()> {
        let (objects, store) = (Arc::clone(&self.repository.objects), self.head.series);
        report.dead_slots = gone.slots();
        if !gone.is_empty() {
            let before = dead::read(&objects, store, &self.head.dead)?;
            let list = dead::write(&objects, store, &before.union(gone.clone()))?;
            self.head.dead = list.into_iter().collect();
            let runs: Vec<_> = shared_runs(&self.head).collect();
            let records = runs.iter().map(|run| run.records).sum();
            let readers = runs.iter().map(|run| RunReader::new(&objects, store, *run));
            let mut all = merge(readers.map(Stream::new).collect());
            let mut index = RunWriter::new(&objects, store, RunUse::Shared, records)?;
            while let Some(record) = all.next()? {
                if !gone.has(SharedRecord::decode(&record).reference) {
                    index.push(record)?;
                }
            }
            let index = index.finish()?;
            self.head.runs.retain(|run| run.use_ != RunUse::Shared);
            self.head.runs.push(index.run);
        }
        self.head.condemned.clear();
        self.head.condemned_in = 0;
        self.commit()
    }

    /// The slots that are not known to be dead and that no series refers to.
    fn unreferenced(
        &mut self,
        number: u16,
        options: &SharedSweepOptions,
        report: &mut SharedSweepReport,
    ) -> Result<DeadSlots> {
        let references = self.references(number, options)?;
        let (objects, store) = (Arc::clone(&self.repository.objects), self.head.series);
        require_listed(&objects, &self.head)?;
        let known = dead::read(&objects, store, &self.head.dead)?;
        let known: std::collections::HashMap<_, _> = known.by_container().collect();
        let mut stream = references.stream();
        let mut unreferenced = Vec::new();
        report.slots = 0;
        let containers: Vec<(u32, ObjectTag)> = self.head.containers.iter().collect();
        for (number, tag) in containers {
            self.keep()?;
            let gone = known.get(&number).copied().unwrap_or_default();
            let container = open_container(&objects, store, number, tag)?;
            for slot in container.directory.slot_numbers() {
                report.slots += 1;
                let here = (number, slot);
                while stream.peek()?.is_some_and(|next| slot_of(&place_of(next)) < here) {
                    stream.next()?;
                }
                let is_used = stream.peek()?.is_some_and(|next| slot_of(&place_of(next)) == here);
                if !is_used && !dead::holds(gone, slot) {
                    unreferenced.push(DeadRange { container: number, first: slot, last: slot });
                }
            }
        }
        Ok(DeadSlots::of(unreferenced))
    }

    /// Everything that any series refers to in the store, in the order of the slots: by recipes of
    /// snapshots, and by links.
    fn references(&mut self, number: u16, options: &SharedSweepOptions) -> Result<Sorted> {
        let objects = Arc::clone(&self.repository.objects);
        let bytes =
            if options.memory_bytes == 0 { SORT_BYTES_DEFAULT } else { options.memory_bytes / 2 };
        let bytes = silt_format::number::to_usize(bytes);
        // Filled in any order: they are sorted.
        let references = Mutex::new(Sorter::new(&objects, &options.spool, bytes));
        let repository = self.repository;
        let push = |record| lock(&references).push(record);
        let read = |repository: &Repository, (id, _): (SeriesId, String)| {
            references_of(repository, number, id, &push)
        };
        repository.each_beside(repository.users(&self.head)?, read, |read| {
            read?;
            self.keep()
        })?;
        references.into_inner().unwrap_or_else(PoisonError::into_inner).finish()
    }
}

/// Everything that a series refers to in the store.
fn references_of(
    repository: &Repository,
    store: u16,
    id: SeriesId,
    each: &dyn Fn(Record) -> Result<()>,
) -> Result<()> {
    let objects = &repository.objects;
    // What refers to chunks is asked of the very head that was found to have dropped nothing.
    let Some(head) = repository.verified_head(id)?.filter(|head| head.domain != ALONE) else {
        return Ok(());
    };
    require_listed(objects, &head)?;
    let push = |reference: silt_format::Reference| {
        let (container, slot) = (reference.container(), reference.slot());
        let owner = Owner { series: 0, container, slot, is_shared: true };
        each(by_place(owner, [0; 12]))
    };
    each_reference_to(repository, store, &head, &mut |chunk| push(chunk.reference))?;
    // Links lead to the shared store alone.
    let is_linked = |tag: ObjectTag| store == SHARED_STORE && tag.is_rewritten();
    for (number, tag) in head.containers.iter().filter(|(_, tag)| is_linked(*tag)) {
        let container = open_container(objects, id, number, tag)?;
        container.directory.links.iter().try_for_each(|link| push(link.target))?;
    }
    Ok(())
}

fn slot_of(place: &Owner) -> (u32, u16) {
    (place.container, place.slot)
}

/// Sees to it that no backup that began before the store's chunks were condemned can commit; the
/// answer names the series that are being changed just now, of which that can't be said.
fn fence(repository: &Repository, number: u16, store: &Head) -> Result<Vec<String>> {
    let (generation, mut waiting) = (store.condemned_in, Vec::new());
    let fence = |repository: &Repository, (id, name): (SeriesId, String)| {
        let is_fenced = fence_one(repository, id, &name, (number, generation));
        is_fenced.map(|is_fenced| (!is_fenced).then_some(name))
    };
    repository.each_beside(repository.users(store)?, fence, |changed| {
        waiting.extend(changed?);
        Ok::<_, Error>(())
    })?;
    Ok(waiting)
}

/// The same for one series; `false` if it is being changed just now.
fn fence_one(
    repository: &Repository,
    id: SeriesId,
    name: &str,
    (number, generation): (u16, u64),
) -> Result<bool> {
    // Nobody knows a head of the store that it does not have: whoever says so knows nothing. One
    // that is not durable yet keeps nobody from committing, once the power has failed.
    let head = repository.verified_head(id)?;
    head.as_ref().map_or(Ok(()), |head| heads::settle(&repository.objects, head))?;
    // Where nothing is shared, nothing can be missed.
    let recorded = || repository.series_record(id).map_or(0, |record| record.domain);
    if head.as_ref().map_or_else(recorded, |head| head.domain) == ALONE {
        return Ok(true);
    }
    let seen = head.map_or(0, |head| head.seen(number));
    if (generation..=repository.store_generation(number)?).contains(&seen) {
        return Ok(true);
    }
    let fenced = Edit::begin_or_make(repository, id, name).and_then(|mut edit| {
        let store = repository.objects.keys.store_id(edit.head.domain, number);
        let known = edit.head.stores.iter_mut().filter(|known| known.number == number);
        known.for_each(|known| known.seen = 0);
        name_store(&mut edit.head, (number, store), generation);
        edit.commit()?;
        edit.finish()
    });
    match fenced {
        Err(error) if error.kind() == ErrorKind::Busy => Ok(false),
        other => other.map(|()| true),
    }
}
