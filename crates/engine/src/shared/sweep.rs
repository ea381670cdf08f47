//! Deletes from the shared store in three steps: condemn, wait for backups that do not know of it,
//! delete.
//!
//! A commit of the store's head condemns slots without references: backups that begin later do not
//! refer to them. Each series whose newest commit does not know that head gets a new commit, which
//! prevents earlier backups from committing. Then all references are checked again, and condemned
//! slots still without references are dead. No decision depends on a clock.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::{
    ALONE, Advice, DeadRange, Error, ErrorKind, FIRST_NODE, Head, ObjectTag, Result, RunRef,
    RunUse, SHARED_STORE, SeriesId, names,
};
use silt_repository::bounds::require_listed;
use silt_repository::chunks::open_container;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::event::Warning;
use silt_repository::heads;
use silt_repository::lease;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_runs::marks;
use silt_runs::shared_index::name_store;
use silt_runs::shared_record::SharedRecord;
use silt_runs::{RunReader, RunWriter, Sorter, Stream, merge};

use crate::deletion::{ReclaimOptions, ReclaimReport};
use crate::edit::Edit;
use crate::repository::Repository;
use silt_sharing::copy::{all_series, ids_of_all, shared_runs};
use silt_sharing::counting::{
    Alone, CountTask, Counted, CountedHead, Counters, References, SortedReferences,
};

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
    /// Series whose references others have counted, each time that all were counted.
    pub counted_elsewhere: u64,
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
        self.sweep_store_with(number, options, &Alone)
    }

    /// The same, where others count what series refer to as far as they can. Only what they have
    /// counted from the newest heads is believed; the rest is counted here.
    pub fn sweep_store_with(
        &self,
        number: u16,
        options: &SharedSweepOptions,
        counters: &dyn Counters,
    ) -> Result<SharedSweepReport> {
        // They would write runs.
        let counters = if options.dry_run { &Alone } else { counters };
        let mut report = SharedSweepReport::default();
        if self.nodes().iter().any(|node| node.number == number && node.is_taken_out()) {
            return Ok(report);
        }
        let is_node = number >= FIRST_NODE;
        if is_node && options.dry_run {
            marks::require(self, number)?;
        } else if is_node {
            // Before old heads are removed, which are looked for by the mark.
            marks::raise_one(self, number)?;
        }
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
        Sweep { edit: &mut edit, number, options, counters }.run(&mut report)?;
        edit.finish()?;
        if is_node && !options.dry_run {
            marks::raise_one(self, number)?;
        }
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
}

/// A sweep of one store.
struct Sweep<'s, 'r> {
    edit: &'s mut Edit<'r>,
    number: u16,
    options: &'s SharedSweepOptions,
    counters: &'s dyn Counters,
}

impl Sweep<'_, '_> {
    fn run(&mut self, report: &mut SharedSweepReport) -> Result<()> {
        let Self { options, number, .. } = *self;
        let repository = self.edit.repository;
        let (objects, store) = (&repository.objects, self.edit.head.series);
        if self.edit.head.condemned.is_empty() {
            let unreferenced = self.unreferenced(None, report)?;
            report.condemned_slots = unreferenced.slots();
            if !unreferenced.is_empty() && !options.dry_run {
                let list = dead::write(objects, store, &unreferenced)?;
                let head = &mut self.edit.head;
                head.condemned = list.into_iter().collect();
                head.condemned_in = head.generation + 1;
                head.users = ids_of_all(repository)?;
                self.edit.commit()?;
            }
        }
        if !self.edit.head.condemned.is_empty() && !options.dry_run {
            let condemned = dead::read(objects, store, &self.edit.head.condemned)?;
            report.condemned_slots = condemned.slots();
            report.waiting_for = fence(repository, number, &self.edit.head)?;
            if report.waiting_for.is_empty() {
                // Those of other containers were looked at before, if that was this sweep.
                let condemned_only = (report.slots > 0).then_some(&condemned);
                let unreferenced = self.unreferenced(condemned_only, report)?;
                self.edit.bury(&condemned.intersection(&unreferenced), report)?;
            }
        }
        // The lists say what is dead; there are no snapshots here that could.
        let steps = self.edit.plan(&options.reclaim)?;
        report.reclaimed = steps.forecast();
        if options.dry_run {
            return Ok(());
        }
        self.edit.execute(&steps, &mut report.reclaimed)
    }

    /// The slots that are not known to be dead and that no series refers to: of all containers, or
    /// of those that have one of `only`.
    fn unreferenced(
        &mut self,
        only: Option<&DeadSlots>,
        report: &mut SharedSweepReport,
    ) -> Result<DeadSlots> {
        let task = CountTask {
            store: self.number,
            containers: self.edit.head.next_container,
            series: self.users()?,
        };
        let counted = self.counters.count(&task, &mut || self.edit.keep())?;
        let references = self.references(&task, &counted, report);
        let runs: Vec<RunRef> = counted.iter().map(|counted| counted.run).collect();
        let removed = self.remove(&runs);
        let references = references.and_then(|references| removed.map(|()| references))?;
        self.without(&references, only, report)
    }

    /// What all series refer to in the store: as others have counted it, and counted here where
    /// they have not, or not from the newest heads.
    fn references(
        &mut self,
        task: &CountTask,
        counted: &[Counted],
        report: &mut SharedSweepReport,
    ) -> Result<SortedReferences> {
        let (repository, options) = (self.edit.repository, self.options);
        let bytes =
            if options.memory_bytes == 0 { SORT_BYTES_DEFAULT } else { options.memory_bytes / 2 };
        let sorter = Sorter::new(&repository.objects, &options.spool, to_usize(bytes));
        let references = References::new(task, sorter);
        let mut claimed: BTreeMap<SeriesId, Vec<CountedHead>> = BTreeMap::new();
        for Counted { heads, run } in counted {
            match references.take(repository, *run, &mut || self.edit.keep()) {
                Ok(()) => {
                    heads.iter().for_each(|it| claimed.entry(it.series).or_default().push(*it));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
                Err(error) => {
                    let message = "what a host has counted for the sweep is counted again";
                    repository.warn(Warning::after(&error, message));
                }
            }
        }
        let rest = self.uncounted(task, &claimed)?;
        report.counted_elsewhere += to_u64(task.series.len() - rest.len());
        references.count(repository, rest, &mut || self.edit.keep())?;
        references.finish()
    }

    /// The series of which none was counted from the newest head.
    ///
    /// The heads are read after the answers. So what is believed is no older than what a count
    /// here, at this time, would find, whoever may have counted, and whenever.
    fn uncounted(
        &mut self,
        task: &CountTask,
        claimed: &BTreeMap<SeriesId, Vec<CountedHead>>,
    ) -> Result<Vec<SeriesId>> {
        let newest = |repository: &Repository, id: SeriesId| {
            // Without an answer, its head is read when it is counted.
            let Some(claims) = claimed.get(&id) else { return Ok(Some(id)) };
            let newest = CountedHead::new(id, repository.verified_head(id)?.as_ref());
            Ok::<_, Error>((!claims.contains(&newest)).then_some(id))
        };
        let mut rest = Vec::new();
        self.edit.repository.each_beside(task.series.clone(), newest, |stale| {
            rest.extend(stale?);
            self.edit.keep()
        })?;
        Ok(rest)
    }

    /// The slots that are not known to be dead and not among the references; of `only` as above.
    fn without(
        &mut self,
        references: &SortedReferences,
        only: Option<&DeadSlots>,
        report: &mut SharedSweepReport,
    ) -> Result<DeadSlots> {
        let (repository, store) = (self.edit.repository, self.edit.head.series);
        require_listed(&repository.objects, &self.edit.head)?;
        let known = dead::read(&repository.objects, store, &self.edit.head.dead)?;
        let known: HashMap<_, _> = known.by_container().collect();
        let mut slots = references.slots();
        let mut unreferenced = Vec::new();
        let is_wanted = |number: u32| only.is_none_or(|only| !only.of_container(number).is_empty());
        let all = self.edit.head.containers.iter();
        let wanted: Vec<(u32, ObjectTag)> = all.filter(|(number, _)| is_wanted(*number)).collect();
        let mut found = 0;
        let read = |repository: &Repository, (number, tag)| -> Result<(u32, Vec<u16>)> {
            let container = open_container(&repository.objects, store, number, tag)?;
            Ok((number, container.directory.slot_numbers().collect()))
        };
        repository.each_beside(wanted, read, |container| {
            let (number, numbers) = container?;
            self.edit.keep()?;
            found += to_u64(numbers.len());
            let gone = known.get(&number).copied().unwrap_or_default();
            for slot in numbers {
                if !slots.has((number, slot))? && !dead::holds(gone, slot) {
                    unreferenced.push(DeadRange { container: number, first: slot, last: slot });
                }
            }
            Ok::<_, Error>(())
        })?;
        if only.is_none() {
            report.slots = found;
        }
        Ok(DeadSlots::of(unreferenced))
    }

    /// Removes runs of others. What the head names stays, whatever they say.
    fn remove(&self, runs: &[RunRef]) -> Result<()> {
        let (objects, head) = (&self.edit.repository.objects, &self.edit.head);
        let is_named = |run: &&RunRef| head.runs.iter().any(|named| named.id == run.id);
        let parts = |run: &RunRef| {
            let id = run.id;
            (0..run.partitions()).map(move |part| names::run(head.series, id, part))
        };
        let runs = runs.iter().filter(|run| !is_named(run));
        let names: Vec<String> = runs.flat_map(parts).collect();
        objects.delete(&names)
    }

    fn users(&self) -> Result<Vec<SeriesId>> {
        let users = self.edit.repository.users(&self.edit.head)?;
        Ok(users.into_iter().map(|(id, _)| id).collect())
    }
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
