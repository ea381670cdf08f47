//! Verifies a repository: its structure, its data, and the snapshots that damage affects.

mod damage;
mod data;
mod lists;
mod missing;
mod paths;
mod structure;
mod unreferenced;

use std::collections::BTreeSet;

use silt_format::names::Numbered;
use silt_format::{Error, ErrorKind, FIRST_NODE, Head, Id, PRIVATE_STORE, Result, SeriesId, names};
use silt_repository::check_record::RecordState;
use silt_repository::objects::is_damage;
use silt_repository::stores::is_away;
use silt_runs::marks;

pub use damage::{Affected, Damage};

use crate::repository::Repository;
use damage::Findings;

/// How often a series is checked that changes meanwhile.
const TRIES_MAX: usize = 5;
/// What checking a series needs at least and at most, and for each of its containers and packs.
const CHECK_BYTES_MIN: u64 = 512 << 10;
const CHECK_BYTES_MAX: u64 = 12 << 20;
const CHECKED_OBJECT_BYTES: u64 = 128 << 10;

/// How much stored data is read.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
/// let report = repository.check(&options)?;
/// assert_eq!(report.verified_containers, report.containers);
///
/// // One percent each night reads everything in a hundred nights.
/// let options = CheckOptions { data: DataCheck::Percent(1.0), ..CheckOptions::default() };
/// assert!(repository.check(&options)?.damage.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum DataCheck {
    /// No data: only the objects that the structure needs.
    #[default]
    None,
    /// Every byte. An interrupted pass continues where it stopped.
    All,
    /// About this percentage of the bytes, over 0 and at most 100. Bytes that were verified longest
    /// ago come first.
    Percent(f64),
}

/// Which series a check covers, and how much data it reads.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let options = CheckOptions {
///     series: vec!["web1".to_owned()],
///     data: DataCheck::All,
///     ..CheckOptions::default()
/// };
/// let report = repository.check(&options)?;
/// assert_eq!((report.series, report.snapshots), (1, 1));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CheckOptions {
    /// The series; all if empty.
    pub series: Vec<String>,
    /// How much data is read.
    pub data: DataCheck,
    /// Starts a new pass over all data even if an interrupted one could continue.
    pub restart: bool,
    /// The number of threads; 0 for one per core.
    pub jobs: usize,
}

/// The result of a check.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let report = repository.check(&CheckOptions::default())?;
/// for damage in &report.damage {
///     println!("{}: {}", damage.object, damage.error);
/// }
/// assert!(report.damage.is_empty());
/// assert_eq!((report.snapshots, report.containers), (1, 1));
/// assert_eq!(report.verified_bytes, 0, "only the structure was checked");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Series checked.
    pub series: u64,
    /// Snapshots whose structure was followed.
    pub snapshots: u64,
    /// Recipes read.
    pub recipes: u64,
    /// Containers that are referred to.
    pub containers: u64,
    /// Containers whose every byte was verified.
    pub verified_containers: u64,
    /// Bytes of the verified containers.
    pub verified_bytes: u64,
    /// Whether this check continued an interrupted pass.
    pub resumed: bool,
    /// Objects that nothing names, left by interrupted runs, or by one that still runs; harmless.
    ///
    /// These are containers and packs that the series' head does not list with their tag, snapshots
    /// that it lists neither as living nor as deleted, dead lists and runs that it does not name,
    /// summary vectors that none of its snapshots names, and check records but the newest; and all
    /// of them in a series that has no head, since its first backup was interrupted. Heads, leases
    /// and series records do not count, nor does anything of a series whose head can't be read.
    pub unreferenced: u64,
    /// The damage found.
    pub damage: Vec<Damage>,
}

impl Repository {
    /// Checks the repository; damage is reported, not an error.
    pub fn check(&self, options: &CheckOptions) -> Result<CheckReport> {
        let mut report = CheckReport::default();
        let mut findings = Findings::default();
        for (name, error) in self.root_damage()? {
            findings.error(&name, &error);
        }
        let mut series = self.series_to_check()?;
        series.retain(|(_, name)| options.series.is_empty() || options.series.contains(name));
        let checked: BTreeSet<SeriesId> = series.iter().map(|(id, _)| *id).collect();
        let stores = series.iter().take_while(|(id, _)| self.is_store(*id)).count();
        let others = series.split_off(stores);
        for (id, name) in series {
            let number = self.number_of(id);
            if self.nodes().iter().any(|node| node.number == number && !node.is_taken_out())
                && let Err(error) = marks::require(self, number)
                && is_damage(&error)
            {
                findings.error(&name, &error);
            }
            let store = vec![(id, name.clone())];
            match self.check_beside(store, options, &mut report, &mut findings) {
                Err(error) if is_away(&error, number) => findings.away(&name, &error),
                checked => checked?,
            }
        }
        self.check_beside(others, options, &mut report, &mut findings)?;
        if options.series.is_empty() {
            // Those that have neither a record nor a head.
            let all = unreferenced::series_with_objects(self)?;
            let opens = |id: &SeriesId| self.objects.keys.opens(*id);
            let left = all.difference(&checked).copied().filter(opens).collect();
            let count = |it: &Self, id| unreferenced::without_head(&it.objects, id);
            self.each_beside(left, count, |objects| {
                report.unreferenced += objects?;
                Ok::<_, Error>(())
            })?;
        }
        if let Some(missing) = options.series.iter().find(|name| report_lacks(self, name)) {
            self.heads(std::slice::from_ref(missing))?;
        }
        // A key that opens only some series cannot see which others need shared chunks.
        let sees_sharers = options.series.is_empty() && self.objects.keys.opens_all();
        report.damage = findings.into_damage(|series| !self.is_store(series) || sees_sharers);
        Ok(report)
    }

    /// Every series, and before them the shared store and those of nodes: what is damaged there is
    /// damaged for their series.
    fn series_to_check(&self) -> Result<Vec<(SeriesId, String)>> {
        let mut series = self.series()?;
        series.extend(self.unrecorded(&series)?);
        let stores = self.stores();
        for store in stores.iter().filter(|store| store.number >= FIRST_NODE) {
            // A node's places are not listed with the others.
            series.retain(|(id, _)| *id != store.id);
            series.push((store.id, store.shown.clone()));
        }
        series.sort_by_key(|(id, _)| !stores.iter().any(|store| store.id == *id));
        Ok(series)
    }

    /// The number of a store.
    fn number_of(&self, id: SeriesId) -> u16 {
        let number = self.stores().iter().find(|store| store.id == id).map(|store| store.number);
        number.unwrap_or(PRIVATE_STORE)
    }

    /// Checks series that don't depend on each other, side by side unless their data is read: that
    /// keeps the processors busy by itself.
    fn check_beside(
        &self,
        series: Vec<(SeriesId, String)>,
        options: &CheckOptions,
        report: &mut CheckReport,
        findings: &mut Findings,
    ) -> Result<()> {
        let is_any_before = !findings.is_empty();
        let check = |repository: &Self, (id, name): (SeriesId, String)| {
            let mut report = CheckReport::default();
            let mut findings = Findings::after(is_any_before);
            repository.check_still_series(id, &name, options, &mut report, &mut findings)?;
            Ok((report, findings))
        };
        let mut take = |checked: Result<(CheckReport, Findings)>| {
            let (of_series, found) = checked?;
            report.add(&of_series);
            findings.merge(found);
            Ok(())
        };
        if options.data == DataCheck::None {
            return self.each_beside(series, check, take);
        }
        series.into_iter().try_for_each(|series| take(check(self, series)))
    }

    /// Checks the series again that are known to be damaged, and records what is whole now.
    pub(crate) fn check_damaged_again(&self) -> Result<()> {
        let (options, mut report) = (CheckOptions::default(), CheckReport::default());
        for (id, name) in self.series_to_check()? {
            let (_, record) = self.objects.check_record(id)?;
            if !record.damaged.is_empty() || !record.damaged_blocks.is_empty() {
                let mut findings = Findings::default();
                self.check_still_series(id, &name, &options, &mut report, &mut findings)?;
            }
        }
        Ok(())
    }

    /// Checks a series, and once more if something was found while a reclaim changed it: what it
    /// has removed meanwhile is no damage.
    fn check_still_series(
        &self,
        id: SeriesId,
        name: &str,
        options: &CheckOptions,
        report: &mut CheckReport,
        findings: &mut Findings,
    ) -> Result<()> {
        let (report_before, findings_before) = (report.clone(), findings.clone());
        for tries_left in (0..TRIES_MAX).rev() {
            let generation = |head: Result<Option<Head>>| head.ok().flatten().map(|h| h.generation);
            let before = generation(self.head(id));
            self.check_series(id, name, options, report, findings)?;
            let is_new = findings.len() > findings_before.len();
            if !is_new || tries_left == 0 || generation(self.head(id)) == before {
                break;
            }
            report.clone_from(&report_before);
            findings.clone_from(&findings_before);
        }
        Ok(())
    }

    fn check_series(
        &self,
        id: SeriesId,
        name: &str,
        options: &CheckOptions,
        report: &mut CheckReport,
        findings: &mut Findings,
    ) -> Result<()> {
        let record_name = names::series(id);
        if !self.is_store(id) {
            findings.note_if_damaged(self.series_record(id).map(|_| ()), &record_name)?;
        }
        if let Err(error) = self.verify_history(id) {
            if error.kind() != ErrorKind::Denied && !is_damage(&error) {
                return Err(error);
            }
            findings.error(&Numbered::Head.prefix(id), &error);
        }
        let head = match self.head(id) {
            Ok(Some(head)) => head,
            Ok(None) => {
                report.unreferenced += unreferenced::without_head(&self.objects, id)?;
                return Ok(());
            }
            Err(error) if is_damage(&error) => {
                let object = self.objects.newest_name(Numbered::Head, id)?;
                findings.whole_series(&object.unwrap_or_default(), &error, name);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let _place = self.objects.room.place(bytes_of_check(&head));
        let is_begun = !head.snapshots.is_empty() || !head.deleted.is_empty();
        let is_shared = self.is_store(id);
        report.series += u64::from(is_begun && !is_shared);
        let mut state = RecordState::read(&self.objects, id)?;
        data::verify(self, &head, options, &mut state, report, findings)?;
        structure::verify(self, &head, options, &mut state, report, findings)?;
        state.save(&self.objects).map(drop)
    }
}

/// Most bytes that checking the structure of a series holds: directories of its containers, as many
/// as are kept, map pages, and what is known of its containers.
fn bytes_of_check(head: &Head) -> u64 {
    (head.containers.len() + head.packs.len())
        .saturating_mul(CHECKED_OBJECT_BYTES)
        .clamp(CHECK_BYTES_MIN, CHECK_BYTES_MAX)
}

impl CheckReport {
    /// Adds what was found in another series.
    fn add(&mut self, other: &Self) {
        self.series += other.series;
        self.snapshots += other.snapshots;
        self.recipes += other.recipes;
        self.containers += other.containers;
        self.verified_containers += other.verified_containers;
        self.verified_bytes += other.verified_bytes;
        self.resumed |= other.resumed;
        self.unreferenced += other.unreferenced;
    }
}

/// Whether a series that was asked for has no record.
fn report_lacks(repository: &Repository, name: &str) -> bool {
    repository.series_record(repository.series_id(name)).is_err()
}

/// Where in a series damage was met.
#[derive(Clone, Copy)]
pub(crate) struct VolumePath<'a> {
    pub(crate) series: &'a str,
    pub(crate) snapshot: Id,
    pub(crate) volume: &'a str,
    /// Whether the volume is a file tree.
    pub(crate) is_tree: bool,
}
