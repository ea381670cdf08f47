//! The plan of a reclaim: which objects are removed, and which containers are rewritten.

use std::collections::HashMap;

use silt_format::{DeadRange, DeletedEntry, Head, Id, ObjectTag, Result, SnapshotEntry, names};
use silt_repository::bounds::require_listed;
use silt_repository::chunks::open_container;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::edit::read_snapshots;
use silt_repository::event::Warning;
use silt_repository::objects::{is_damage, key};

use super::named::{Listed, retagged, without};
use super::sweep::{SweepReport, living_packs};
use crate::edit::Edit;

/// About what a slot takes whose chunk is in the shared store.
const LINK_BYTES: u64 = 34;

/// How space is reclaimed.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// repository.delete("web1", &[snapshot.id], DeleteMethod::default())?;
/// let week_s = 7 * 24 * 3600;
/// let options = ReclaimOptions { keep_deleted_s: Some(week_s), ..ReclaimOptions::default() };
/// assert!(repository.reclaim("web1", &options)?.purged.is_empty());
/// repository.undelete("web1", snapshot.id)?;
/// assert_eq!(repository.heads(&[])?[0].snapshots.len(), 1);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReclaimOptions {
    /// A container is rewritten if at least this share of its bytes is dead, from 0 to 1.
    pub dead_share_min: f64,
    /// An exact sweep comes first if the series has leaked at least this share of its stored bytes
    /// by the forecast; 0 for always.
    pub leak_share_max: f64,
    /// How long containers of interrupted backups are kept for the next backup to use, in seconds.
    pub grace_s: u64,
    /// Time in which deleted snapshots can be brought back, in seconds; by default that of the
    /// series' policy, otherwise none.
    pub keep_deleted_s: Option<u64>,
    /// The same if neither `keep_deleted_s` nor a policy is set, in seconds.
    pub keep_deleted_unless_said_s: u64,
    /// Bytes of memory for the marks of a sweep, 0 for the default.
    pub memory_bytes: u64,
}

impl Default for ReclaimOptions {
    fn default() -> Self {
        Self {
            dead_share_min: 0.2,
            leak_share_max: 0.01,
            grace_s: 24 * 3600,
            keep_deleted_s: None,
            keep_deleted_unless_said_s: 0,
            memory_bytes: 0,
        }
    }
}

/// The result of a reclaim, or the forecast of a plan.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// repository.delete("web1", &[snapshot.id], DeleteMethod::default())?;
/// let options = ReclaimOptions { keep_deleted_s: Some(0), ..ReclaimOptions::default() };
/// let report = repository.reclaim("web1", &options)?;
/// assert_eq!(report.purged, [snapshot.id]);
/// assert_eq!(report.dropped_containers, 1);
/// println!("{} bytes were freed", report.freed_bytes());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimReport {
    /// Deleted snapshots that can no longer be brought back.
    pub purged: Vec<Id>,
    /// Containers that were removed completely.
    pub dropped_containers: u64,
    /// Containers that were rewritten.
    pub rewritten_containers: u64,
    /// Bytes of the new containers; an estimate in a plan.
    pub rewritten_bytes: u64,
    /// Recipe packs that were removed.
    pub dropped_packs: u64,
    /// Number of objects removed, including those that interrupted runs had left.
    pub removed_objects: u64,
    /// Bytes of all objects that were removed.
    pub removed_bytes: u64,
    /// Dead slots in containers that hold too few of them to be rewritten.
    pub dead_slots_left: u64,
    /// The exact sweep that preceded the reclaim, if there was one.
    pub sweep: Option<SweepReport>,
}

impl ReclaimReport {
    /// The number of bytes by which the repository shrank.
    pub fn freed_bytes(&self) -> u64 {
        self.removed_bytes.saturating_sub(self.rewritten_bytes)
    }
}

/// A reclaim of a series that was planned and not executed.
///
/// [`Repository::execute_reclaim`](crate::Repository::execute_reclaim) executes it as long as the
/// series has not changed since.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// repository.delete("web1", &[snapshot.id], DeleteMethod::default())?;
/// let options = ReclaimOptions { keep_deleted_s: Some(0), ..ReclaimOptions::default() };
/// let plan = repository.plan_reclaim("web1", &options)?;
/// println!("{} bytes would be freed", plan.forecast().freed_bytes());
/// assert_eq!(plan.dropped_containers().len(), 1);
/// let report = repository.execute_reclaim(&plan)?;
/// assert_eq!(report.dropped_containers, 1);
/// assert_eq!(report.freed_bytes(), plan.forecast().freed_bytes());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Debug)]
pub struct ReclaimPlan {
    pub(super) series: String,
    pub(super) options: ReclaimOptions,
    /// `None` for a series whose first backup was interrupted.
    pub(super) steps: Option<Steps>,
    pub(super) forecast: ReclaimReport,
    pub(super) needs_sweep: bool,
}

impl ReclaimPlan {
    /// The series' name.
    pub fn series(&self) -> &str {
        &self.series
    }

    /// The result that its execution would have.
    pub fn forecast(&self) -> &ReclaimReport {
        &self.forecast
    }

    /// Whether execution begins with an exact sweep. The sweep finds more dead chunks, so the plan
    /// is then made again.
    pub fn needs_sweep(&self) -> bool {
        self.needs_sweep
    }

    /// The numbers of the containers that are removed completely, ascending.
    pub fn dropped_containers(&self) -> &[u32] {
        self.steps.as_ref().map_or(&[], |steps| &steps.drop)
    }

    /// The numbers of the containers that are rewritten without their dead chunks, ascending.
    pub fn rewritten_containers(&self) -> &[u32] {
        self.steps.as_ref().map_or(&[], |steps| &steps.rewrite)
    }
}

/// The planned actions in a series.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Of the head that it was made of.
    pub(super) generation: u64,
    pub(super) purge: Vec<Id>,
    /// Dead slots that no snapshot needs that can be brought back, and no delta.
    pub(super) reclaimable: DeadSlots,
    pub(super) drop: Vec<u32>,
    pub(super) rewrite: Vec<u32>,
    pub(super) rewrite_bytes: u64,
    pub(super) drop_packs: Vec<u32>,
    /// All objects of the series before anything is changed.
    pub(super) listing: Vec<Listed>,
    /// Those of the listing that will go.
    pub(super) gone: Vec<usize>,
    pub(super) next_container: u32,
    pub(super) next_pack: u32,
}

impl Steps {
    /// Takes what goes out of a head.
    pub(super) fn apply(&self, head: &mut Head) {
        head.deleted.retain(|deleted| !self.purge.contains(&deleted.entry.id));
        head.containers = without(&head.containers, &self.drop);
        head.packs = without(&head.packs, &self.drop_packs);
        if head.snapshots.is_empty() && head.deleted.is_empty() {
            head.delta_bases.clear();
        }
        head.next_container = self.next_container;
        head.next_pack = self.next_pack;
    }

    /// Their totals.
    pub(crate) fn forecast(&self) -> ReclaimReport {
        let mut report = ReclaimReport::default();
        report.purged.clone_from(&self.purge);
        report.dropped_containers = self.drop.len() as u64;
        report.rewritten_containers = self.rewrite.len() as u64;
        report.rewritten_bytes = self.rewrite_bytes;
        report.dropped_packs = self.drop_packs.len() as u64;
        let gone = self.gone.iter().map(|place| self.listing[*place].bytes);
        report.removed_objects = gone.len() as u64;
        report.removed_bytes = gone.sum();
        report
    }
}

impl Edit<'_> {
    /// Decides what goes and what is rewritten; nothing is changed.
    pub(crate) fn plan(&mut self, options: &ReclaimOptions) -> Result<Steps> {
        let objects = &self.repository.objects;
        let series = self.head.series;
        require_listed(objects, &self.head)?;
        let listing = self.listing()?;
        let oldest_ns = self.kept_from_ns(options);
        let (purge, kept): (Vec<&DeletedEntry>, Vec<&DeletedEntry>) =
            self.head.deleted.iter().partition(|deleted| deleted.deleted_ns <= oldest_ns);
        let dead = dead::read(objects, series, &self.head.dead)?;
        let mut reclaimable = self.unneeded(dead, &kept)?;
        if !self.head.snapshots.is_empty() || !kept.is_empty() {
            reclaimable = reclaimable.without(&self.bases()?);
        }
        let kept: Vec<SnapshotEntry> = kept.iter().map(|deleted| deleted.entry.clone()).collect();
        let kept = read_snapshots(self.repository, series, &kept)?;
        let mut plan = Steps {
            generation: self.head.generation,
            purge: purge.iter().map(|deleted| deleted.entry.id).collect(),
            reclaimable,
            drop: Vec::new(),
            rewrite: Vec::new(),
            rewrite_bytes: 0,
            drop_packs: Vec::new(),
            next_container: self.next_container(&listing, options.grace_s)?,
            next_pack: next_number(&listing, &names::recipes(series), self.head.next_pack),
            listing,
            gone: Vec::new(),
        };
        self.plan_containers(options.dead_share_min, &mut plan)?;
        let mut snapshots = self.living()?;
        snapshots.extend(kept);
        match living_packs(self.repository, &self.head, &snapshots) {
            Ok(packs) => {
                let all = self.head.packs.iter().map(|(number, _)| number);
                plan.drop_packs = all.filter(|number| !packs.contains(number)).collect();
            }
            Err(error) if is_damage(&error) => {
                self.repository.warn(Warning::after(&error, "recipe packs are not changed"));
            }
            Err(error) => return Err(error),
        }
        let mut after = self.head.clone();
        plan.apply(&mut after);
        after.containers = retagged(
            &after.containers,
            &plan.rewrite.iter().copied().collect(),
            ObjectTag::rewritten(0),
        );
        if !plan.drop.is_empty() || !plan.rewrite.is_empty() {
            after.dead.clear();
        }
        plan.gone = self.unnamed_by(&after, &plan.listing)?;
        Ok(plan)
    }

    /// Deleted snapshots are kept if they were deleted after this time.
    fn kept_from_ns(&self, options: &ReclaimOptions) -> i64 {
        let policy_s = self.head.policy.as_ref().map(|policy| policy.keep_deleted_s);
        let keep_s = options.keep_deleted_s.or(policy_s.filter(|keep_s| *keep_s > 0));
        let keep_s = keep_s.unwrap_or(options.keep_deleted_unless_said_s);
        let keep_ns = i64::try_from(keep_s).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
        self.repository.objects.context.env.now_ns().saturating_sub(keep_ns)
    }

    /// Takes the deleted snapshots out of the head that a plan would purge, and returns their ids.
    pub(super) fn purge(&mut self, options: &ReclaimOptions) -> Vec<Id> {
        let oldest_ns = self.kept_from_ns(options);
        let gone = self.head.deleted.extract_if(.., |deleted| deleted.deleted_ns <= oldest_ns);
        gone.map(|deleted| deleted.entry.id).collect()
    }

    /// Decides which containers go and which are rewritten.
    fn plan_containers(&mut self, dead_share_min: f64, plan: &mut Steps) -> Result<()> {
        let sizes: HashMap<&str, u64> =
            plan.listing.iter().map(|listed| (listed.name.as_str(), listed.bytes)).collect();
        let mut left = DeadSlots::default();
        for (number, ranges) in plan.reclaimable.by_container() {
            self.keep()?;
            let Some(tag) = self.head.containers.tag(number) else { continue };
            let objects = &self.repository.objects;
            let opened = open_container(objects, self.head.series, number, tag);
            let container = match opened {
                Ok(container) => container,
                Err(error) if is_damage(&error) => {
                    if ranges == [DeadRange::whole(number)] {
                        plan.drop.push(number);
                    } else {
                        self.repository.warn(Warning::after(&error, "it is not changed"));
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            let (mut dead_bytes, mut all_bytes) = (0_u64, 0_u64);
            let chunks = container.directory.slots();
            let chunks = chunks.map(|(slot, place)| (slot, u64::from(place.length)));
            let links = container.directory.links.iter().map(|link| (link.slot, LINK_BYTES));
            for (slot, bytes) in chunks.chain(links) {
                all_bytes += bytes;
                dead_bytes += bytes * u64::from(dead::holds(ranges, slot));
            }
            if dead_bytes == all_bytes {
                plan.drop.push(number);
            } else if dead_bytes > 0 && share(dead_bytes, all_bytes) >= dead_share_min {
                let name = names::container(self.head.series, number, tag);
                let bytes = sizes.get(name.as_str()).copied().unwrap_or(0);
                plan.rewrite_bytes += bytes / all_bytes.max(1) * (all_bytes - dead_bytes)
                    + bytes % all_bytes.max(1) * (all_bytes - dead_bytes) / all_bytes.max(1);
                plan.rewrite.push(number);
            } else {
                left = left.union(DeadSlots::of(ranges.to_vec()));
            }
        }
        plan.reclaimable.retain_containers(|number| {
            plan.drop.binary_search(&number).is_ok() || plan.rewrite.binary_search(&number).is_ok()
        });
        Ok(())
    }

    /// All objects of the series but heads, leases and checks.
    pub(super) fn listing(&self) -> Result<Vec<Listed>> {
        let series = self.head.series;
        let mut listing = Vec::new();
        for prefix in names::data(series) {
            for item in self.repository.objects.names(&prefix, None)? {
                let (name, bytes) = item?;
                listing.push(Listed { name, bytes });
            }
        }
        Ok(listing)
    }

    /// The container number from which on nothing is touched: that of the first one that an
    /// interrupted backup has left lately, else the first that nobody has used.
    fn next_container(&self, listing: &[Listed], grace_s: u64) -> Result<u32> {
        let objects = &self.repository.objects;
        let prefix = names::containers(self.head.series);
        let behind = next_number(listing, &prefix, self.head.next_container);
        let now_ms = objects.context.env.now_ns() / 1_000_000;
        let grace_ms = i64::try_from(grace_s).unwrap_or(i64::MAX).saturating_mul(1000);
        for listed in listing.iter().filter(|listed| listed.name.starts_with(&prefix)) {
            let Some((number, _)) = names::number_and_tag(&listed.name) else { continue };
            if number < self.head.next_container || grace_s == 0 {
                continue;
            }
            let modified_ms = objects.storage.head(&key(&listed.name)?)?.modified_ms;
            let modified_ms = modified_ms.and_then(|ms| i64::try_from(ms).ok());
            if modified_ms.is_none_or(|ms| now_ms.saturating_sub(ms) < grace_ms) {
                return Ok(number);
            }
        }
        Ok(behind)
    }
}

/// The first number behind `next` and behind all that are listed below `prefix`.
fn next_number(listing: &[Listed], prefix: &str, next: u32) -> u32 {
    let listed = listing.iter().filter(|listed| listed.name.starts_with(prefix));
    let numbers = listed.filter_map(|listed| names::number_and_tag(&listed.name));
    numbers.map(|(number, _)| number.saturating_add(1)).fold(next, u32::max)
}

#[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
