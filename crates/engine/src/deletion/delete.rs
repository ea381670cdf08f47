//! Deleting snapshots.

use silt_format::{
    Advice, DeletedEntry, Error, ErrorKind, Id, MapRoot, PRIVATE_STORE, Result, Snapshot,
};
use silt_repository::bounds::require_listed;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::edit::read_snapshots;
use silt_repository::event::Warning;
use silt_repository::map::MapReader;
use silt_repository::objects::{Scratch, is_damage};

use super::sweep;
use super::vectors::{Fill, Vectors};
use crate::edit::Edit;
use crate::repository::Repository;

/// How many references are held before the vectors are asked, 8 bytes each.
const REFERENCES_HELD: usize = 1 << 20;

/// How a deletion finds the chunks that it leaves dead.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// repository.delete("web1", &[snapshot.id], DeleteMethod::Exact)?;
/// assert!(repository.heads(&["web1".to_owned()])?[0].snapshots.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeleteMethod {
    /// By the summary vectors of the living snapshots; a few dead chunks may be missed.
    #[default]
    Approximate,
    /// Exactly, by reading all recipes of the series.
    Exact,
}

/// The result of a deletion.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let report = repository.delete("web1", &[snapshot.id], DeleteMethod::default())?;
/// assert_eq!(report.deleted, [snapshot.id]);
/// assert!(report.is_all_dead, "it was the last snapshot of the series");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeleteReport {
    /// The snapshots that were deleted.
    pub deleted: Vec<Id>,
    /// Segments that no neighbouring snapshot shares; their references were looked up.
    pub segments: u64,
    /// References that were looked up.
    pub references: u64,
    /// Chunks that are now known to be dead; not counted if no snapshot is left.
    pub dead_chunks: u64,
    /// Whether no snapshot is left, so that all chunks of the series are dead.
    pub is_all_dead: bool,
    /// The expected number of dead chunks that were missed.
    pub leaked_chunks: f64,
    /// The expected leak of the series so far, as a share of its stored bytes.
    pub leak_share: f64,
}

impl Repository {
    /// Deletes all of these snapshots of a series, or none. [`reclaim`](Self::reclaim) frees their
    /// space later.
    ///
    /// Fails with `NotFound` if one does not exist, with `Denied` if one is protected, and with
    /// `Busy` while the series is being backed up. A damaged summary vector makes the method exact.
    pub fn delete(&self, series: &str, ids: &[Id], method: DeleteMethod) -> Result<DeleteReport> {
        let id = self.series_id(series);
        let mut edit = match method {
            DeleteMethod::Approximate => Edit::begin_brief(self, id, series)?,
            DeleteMethod::Exact => Edit::begin(self, id, series)?,
        };
        for id in ids {
            let entry = &edit.head.snapshots[edit.place(*id)?];
            if entry.is_protected() {
                let error = Error::new(ErrorKind::Denied, format!("snapshot {id} is protected"));
                return Err(error.with_advice(Advice::UnprotectSnapshot { snapshot: *id }));
            }
        }
        let mut report = DeleteReport { deleted: ids.to_vec(), ..DeleteReport::default() };
        if ids.is_empty() {
            edit.finish()?;
            return Ok(report);
        }
        let found = match method {
            DeleteMethod::Approximate => match edit.approximate(ids, &mut report) {
                Err(error) if is_damage(&error) => {
                    self.warn(Warning::after(&error, "dead chunks are found exactly instead"));
                    edit.exact(ids)?
                }
                other => other?,
            },
            DeleteMethod::Exact => edit.exact(ids)?,
        };
        report.is_all_dead = edit.head.snapshots.len() == ids.len();
        report.dead_chunks = if report.is_all_dead { 0 } else { found.dead.slots() };
        edit.forecast(&found, &mut report);
        let list = dead::write(&self.objects, edit.head.series, &found.dead)?;
        edit.head.dead.extend(list);
        let now_ns = self.objects.context.env.now_ns();
        for id in ids {
            let place = edit.place(*id)?;
            let entry = edit.head.snapshots.remove(place);
            edit.head.deleted.push(DeletedEntry { entry, deleted_ns: now_ns });
        }
        edit.commit()?;
        edit.finish()?;
        Ok(report)
    }

    /// Protects a snapshot from deletion by any policy.
    ///
    /// Fails with `NotFound` if the series has no such snapshot, and with `Busy` while another
    /// process changes the series. Protecting a protected snapshot changes nothing.
    pub fn protect(&self, series: &str, id: Id) -> Result<()> {
        self.set_protected(series, id, true)
    }

    /// Ends the protection of a snapshot; see [`protect`](Self::protect).
    pub fn unprotect(&self, series: &str, id: Id) -> Result<()> {
        self.set_protected(series, id, false)
    }

    fn set_protected(&self, series: &str, id: Id, is_protected: bool) -> Result<()> {
        let mut edit = Edit::begin_brief(self, self.series_id(series), series)?;
        let place = edit.place(id)?;
        let entry = &mut edit.head.snapshots[place];
        if entry.is_protected() != is_protected {
            entry.flags ^= silt_format::SnapshotEntry::PROTECTED;
            edit.commit()?;
        }
        edit.finish()
    }
}

/// The slots that a deletion leaves dead, and their certainty.
struct Found {
    dead: DeadSlots,
    fill: Fill,
}

impl Edit<'_> {
    fn approximate(&mut self, ids: &[Id], report: &mut DeleteReport) -> Result<Found> {
        let objects = &self.repository.objects;
        let series = self.head.series;
        let is_doomed = |id: Id| ids.contains(&id);
        let rest = self.head.snapshots.iter().filter(|entry| !is_doomed(entry.id));
        let rest: Vec<_> = rest.cloned().collect();
        if rest.is_empty() {
            // Nothing lives: all that there is, is dead.
            require_listed(objects, &self.head)?;
            let all = self.head.containers.iter();
            let all = all.map(|(number, _)| silt_format::DeadRange::whole(number)).collect();
            return Ok(Found { dead: DeadSlots::of(all), fill: Fill::default() });
        }
        let living = read_snapshots(self.repository, series, &rest)?;
        let vectors = Vectors::of(&living);
        let mut search = Search {
            reader: MapReader::new(objects, &self.head),
            scratch: Scratch::default(),
            raw: Vec::new(),
            references: Vec::new(),
            dead: Vec::new(),
            fill: Fill::default(),
        };
        let mut before: Option<Snapshot> = None;
        for entry in self.head.snapshots.iter().filter(|entry| is_doomed(entry.id)) {
            let doomed = self.repository.snapshot(series, entry)?;
            // Snapshots next to each other in time share most; one that was looked at just before,
            // too.
            let older = living.iter().rfind(|other| other.time_ns <= doomed.time_ns);
            let newer = living.iter().find(|other| other.time_ns > doomed.time_ns);
            let others: Vec<&Snapshot> =
                [older, newer].into_iter().flatten().chain(&before).collect();
            for volume in &doomed.volumes {
                let roots: Vec<MapRoot> = others
                    .iter()
                    .flat_map(|other| other.volumes.iter().filter(|v| v.name == volume.name))
                    .map(|volume| volume.root)
                    .collect();
                search.volume(self.repository, volume.root, &roots, &vectors, series, report)?;
            }
            before = Some(doomed);
        }
        search.flush(self.repository, &vectors, series, report)?;
        Ok(Found { dead: DeadSlots::of_references(&search.dead), fill: search.fill })
    }

    fn exact(&mut self, ids: &[Id]) -> Result<Found> {
        let rest = self.head.snapshots.iter().filter(|entry| !ids.contains(&entry.id));
        let rest: Vec<_> = rest.cloned().collect();
        let living = read_snapshots(self.repository, self.head.series, &rest)?;
        let swept = sweep::dead(self, &living, sweep::SweepOptions::default())?;
        // Older lists hold nothing that this one does not.
        self.head.dead.clear();
        self.head.leak = silt_format::LeakForecast::default();
        Ok(Found { dead: swept.dead, fill: Fill::default() })
    }

    /// Adds what vectors may have held by chance to the series' forecast: of d chunks that are
    /// dead, the fraction e is not found, so that of those found e / (1 - e) as many are left
    /// behind.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an estimate, never negative, far below 2^53"
    )]
    fn forecast(&mut self, found: &Found, report: &mut DeleteReport) {
        let rate = found.fill.false_positive_rate.min(0.999);
        report.leaked_chunks = report.dead_chunks as f64 * rate / (1.0 - rate);
        let leak = &mut self.head.leak;
        leak.deletions = leak.deletions.saturating_add(1);
        leak.leaked_millichunks += (report.leaked_chunks * 1000.0) as u64;
        leak.stored_chunks = found.fill.references as u64;
        report.leak_share = leak_share(leak);
    }
}

/// The expected leaks of a series, as a share of its stored chunks.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn leak_share(leak: &silt_format::LeakForecast) -> f64 {
    leak.leaked_millichunks as f64 / 1000.0 / (leak.stored_chunks.max(1)) as f64
}

/// Collects a doomed snapshot's references, and keeps those that are dead.
struct Search {
    reader: MapReader,
    scratch: Scratch,
    raw: Vec<u8>,
    references: Vec<u64>,
    dead: Vec<u64>,
    fill: Fill,
}

impl Search {
    fn volume(
        &mut self,
        repository: &Repository,
        root: MapRoot,
        others: &[MapRoot],
        vectors: &Vectors,
        series: silt_format::SeriesId,
        report: &mut DeleteReport,
    ) -> Result<()> {
        let mut recipes = Vec::new();
        let walked = self.reader.walk_unshared(root, others, &mut |_| {}, &mut |_, entry| {
            recipes.push(entry.recipe);
            Ok(())
        });
        match walked {
            Err(error) if is_damage(&error) => {
                repository.warn(Warning::after(
                    &error,
                    "chunks that only it refers to remain until a sweep",
                ));
            }
            other => other?,
        }
        for block in recipes {
            report.segments += 1;
            let recipe = match self.reader.recipe(block, &mut self.scratch, &mut self.raw) {
                Err(error) if is_damage(&error) => {
                    repository.warn(Warning::after(&error, "its chunks remain until a sweep"));
                    continue;
                }
                other => other?,
            };
            let ours = recipe.chunks.iter().map(|chunk| chunk.reference);
            let ours = ours.filter(|r| !r.is_zero() && r.store() == PRIVATE_STORE);
            self.references.extend(ours.map(silt_format::Reference::bits));
            if self.references.len() >= REFERENCES_HELD {
                self.flush(repository, vectors, series, report)?;
            }
        }
        Ok(())
    }

    /// Asks the vectors about the references collected so far.
    fn flush(
        &mut self,
        repository: &Repository,
        vectors: &Vectors,
        series: silt_format::SeriesId,
        report: &mut DeleteReport,
    ) -> Result<()> {
        self.references.sort_unstable();
        self.references.dedup();
        report.references += silt_format::number::to_u64(self.references.len());
        self.fill = vectors.retain_absent(&repository.objects, series, &mut self.references)?;
        self.dead.append(&mut self.references);
        Ok(())
    }
}
