//! Giving the space of what is dead back: a plan that can be printed, and its execution.
//!
//! Everything that is removed is first dropped from the head. That commit is also a fence: a backup
//! that began before it can't commit any more, so what it may have relied on can go.

use std::collections::{HashMap, HashSet};

use silt_chunking::Fingerprinter;
use silt_format::{
    DeadRange, DeletedEntry, ErrorKind, Head, Id, ObjectSet, ObjectTag, Result, Snapshot,
    SnapshotEntry, names,
};
use silt_repository::bounds::require_listed;
use silt_repository::chunks::open_container;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::edit::read_snapshots;
use silt_repository::env::Progress;
use silt_repository::heads::{self, HEADS_KEPT};
use silt_repository::objects::{is_damage, key};

use super::delete::leak_share;
use super::rewrite::Rewriter;
use super::sweep::{SweepOptions, SweepReport, living_packs};
use super::undelete::known_slots;
use super::vectors::Vectors;
use crate::edit::Edit;
use crate::repository::Repository;

/// How many containers are rewritten before they are committed: what an interruption
/// may cost.
const REWRITES_PER_COMMIT: usize = 32;
/// About what a slot takes whose chunk is in the shared store.
const LINK_BYTES: u64 = 34;
/// How many objects are removed in one call.
const REMOVED_AT_ONCE: usize = 500;

/// How space is reclaimed.
#[derive(Clone, Copy, Debug)]
pub struct ReclaimOptions {
    /// From which dead share of its bytes on a container is rewritten, from 0 to 1.
    pub dead_share_min: f64,
    /// From which forecast on an exact sweep comes first, as a share of what the series stores; 0
    /// for always.
    pub leak_share_max: f64,
    /// How long containers of interrupted backups are kept for the next backup to use, in seconds.
    pub grace_s: u64,
    /// How long deleted snapshots can be brought back, in seconds; by default as the series' policy
    /// says, else not at all.
    pub keep_deleted_s: Option<u64>,
    /// How long they can be where neither this nor a policy says, in seconds.
    pub keep_deleted_unless_said_s: u64,
    /// Only say what would be done.
    pub dry_run: bool,
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
            dry_run: false,
            memory_bytes: 0,
        }
    }
}

/// What a reclaim came to, or would come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReclaimReport {
    /// Deleted snapshots that can't be brought back any more.
    pub purged: Vec<Id>,
    /// Containers that went as a whole.
    pub dropped_containers: u64,
    /// Containers that were rewritten.
    pub rewritten_containers: u64,
    /// Bytes of them as rewritten; of a plan, an estimate.
    pub rewritten_bytes: u64,
    /// Recipe packs that went.
    pub dropped_packs: u64,
    /// Objects that were removed, with those that interrupted runs had left.
    pub removed_objects: u64,
    /// Bytes of all objects that were removed.
    pub removed_bytes: u64,
    /// Dead slots that stay for now, since their containers hold too few of them.
    pub dead_slots_left: u64,
    /// The exact sweep that came first, if there was one.
    pub sweep: Option<SweepReport>,
}

impl ReclaimReport {
    /// By how many bytes the repository shrank.
    pub fn freed_bytes(&self) -> u64 {
        self.removed_bytes.saturating_sub(self.rewritten_bytes)
    }
}

/// What is to be done in a series.
struct Plan {
    purge: Vec<Id>,
    /// Dead slots that no snapshot needs that can be brought back.
    reclaimable: DeadSlots,
    drop: Vec<u32>,
    rewrite: Vec<u32>,
    rewrite_bytes: u64,
    drop_packs: Vec<u32>,
    /// All objects of the series before anything is changed.
    listing: Vec<Listed>,
    next_container: u32,
    next_pack: u32,
}

pub(super) struct Listed {
    pub(super) name: String,
    pub(super) bytes: u64,
}

impl Repository {
    /// Gives back the space of what is dead in a series: drops and rewrites containers, drops
    /// recipe packs and what interrupted runs have left. Backups of other series and restores go on
    /// meanwhile.
    pub fn reclaim(&self, series: &str, options: &ReclaimOptions) -> Result<ReclaimReport> {
        let id = self.series_id(series);
        let mut edit = match Edit::begin(self, id, series) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.has_record(id)? => {
                return self.reclaim_unfinished(series, options);
            }
            begun => begun?,
        };
        let mut report = ReclaimReport::default();
        let must_sweep = leak_share(&edit.head.leak) >= options.leak_share_max;
        let readable = dead::read(&self.objects, edit.head.series, &edit.head.dead);
        let is_lost = matches!(&readable, Err(error) if is_damage(error));
        if (must_sweep || is_lost) && !options.dry_run {
            report.sweep = Some(edit.repair(SweepOptions {
                memory_bytes: options.memory_bytes,
                ..SweepOptions::default()
            })?);
        }
        edit.reclaim(options, &mut report)?;
        edit.finish()?;
        Ok(report)
    }
}

impl Plan {
    fn describe(&self, head: &Head, report: &mut ReclaimReport) {
        report.purged.clone_from(&self.purge);
        report.dropped_containers = self.drop.len() as u64;
        report.rewritten_containers = self.rewrite.len() as u64;
        report.rewritten_bytes = self.rewrite_bytes;
        report.dropped_packs = self.drop_packs.len() as u64;
        let going: HashSet<String> = self
            .drop
            .iter()
            .chain(&self.rewrite)
            .filter_map(|n| Some(names::container(head.series, *n, head.containers.tag(*n)?)))
            .chain(
                self.drop_packs
                    .iter()
                    .filter_map(|n| Some(names::pack(head.series, *n, head.packs.tag(*n)?))),
            )
            .collect();
        let gone = self.listing.iter().filter(|listed| going.contains(&listed.name));
        report.removed_objects = gone.clone().count() as u64;
        report.removed_bytes = gone.map(|listed| listed.bytes).sum();
    }
}

impl Edit<'_> {
    /// Gives the space back of what is known to be dead.
    pub(crate) fn reclaim(
        &mut self,
        options: &ReclaimOptions,
        report: &mut ReclaimReport,
    ) -> Result<()> {
        let plan = self.plan(options)?;
        plan.describe(&self.head, report);
        if !options.dry_run {
            self.execute(&plan, report)?;
        }
        Ok(())
    }

    fn plan(&mut self, options: &ReclaimOptions) -> Result<Plan> {
        let objects = &self.repository.objects;
        let series = self.head.series;
        require_listed(objects, &self.head)?;
        let listing = self.listing()?;
        let policy_s = self.head.policy.as_ref().map(|policy| policy.keep_deleted_s);
        let keep_s = options.keep_deleted_s.or(policy_s.filter(|keep_s| *keep_s > 0));
        let keep_s = keep_s.unwrap_or(options.keep_deleted_unless_said_s);
        let keep_ns = i64::try_from(keep_s).unwrap_or(i64::MAX).saturating_mul(1_000_000_000);
        let oldest_ns = objects.context.env.now_ns().saturating_sub(keep_ns);
        let (purge, kept): (Vec<&DeletedEntry>, Vec<&DeletedEntry>) =
            self.head.deleted.iter().partition(|deleted| deleted.deleted_ns <= oldest_ns);
        let kept: Vec<SnapshotEntry> = kept.iter().map(|deleted| deleted.entry.clone()).collect();
        let kept = read_snapshots(self.repository, series, &kept)?;
        let dead = dead::read(objects, series, &self.head.dead)?;
        let reclaimable = if kept.is_empty() {
            dead
        } else {
            let mut references = known_slots(self, &dead)?;
            Vectors::of(&kept).retain_absent(objects, series, &mut references)?;
            DeadSlots::of_references(&references)
        };
        let mut plan = Plan {
            purge: purge.iter().map(|deleted| deleted.entry.id).collect(),
            reclaimable,
            drop: Vec::new(),
            rewrite: Vec::new(),
            rewrite_bytes: 0,
            drop_packs: Vec::new(),
            next_container: self.next_container(&listing, options.grace_s)?,
            next_pack: next_number(&listing, &names::recipes(series), self.head.next_pack),
            listing,
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
                self.repository.warn(&format!("{error}; recipe packs are left as they are"));
            }
            Err(error) => return Err(error),
        }
        Ok(plan)
    }

    /// Decides which containers go and which are rewritten.
    fn plan_containers(&mut self, dead_share_min: f64, plan: &mut Plan) -> Result<()> {
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
                        self.repository.warn(&format!("{error}; it is left as it is"));
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

    fn execute(&mut self, plan: &Plan, report: &mut ReclaimReport) -> Result<()> {
        report.removed_objects = 0;
        report.removed_bytes = 0;
        report.rewritten_bytes = 0;
        report.rewritten_containers = 0;
        let orphans = self.unnamed(&plan.listing)?;
        let is_needed = !plan.purge.is_empty()
            || !plan.drop.is_empty()
            || !plan.drop_packs.is_empty()
            || (plan.next_container, plan.next_pack)
                != (self.head.next_container, self.head.next_pack)
            || !orphans.is_empty();
        if is_needed {
            self.head.deleted.retain(|deleted| !plan.purge.contains(&deleted.entry.id));
            self.head.containers = without(&self.head.containers, &plan.drop);
            self.head.packs = without(&self.head.packs, &plan.drop_packs);
            self.head.next_container = plan.next_container;
            self.head.next_pack = plan.next_pack;
            let replaced = self.replace_dead(&plan.reclaimable, &plan.drop)?;
            self.commit()?;
            self.repository.objects.delete(&replaced)?;
        }
        if !plan.drop.is_empty() && !plan.rewrite.is_empty() {
            // Storage may be full: what goes makes room for what is written.
            let gone = self.unnamed(&plan.listing)?;
            self.remove(&gone, plan, report)?;
        }
        let tag = ObjectTag::rewritten(self.repository.objects.context.random_id());
        for batch in plan.rewrite.chunks(REWRITES_PER_COMMIT) {
            self.rewrite(batch, plan, tag, report)?;
        }
        // Last, so that an interruption before leaves only what the next run finds unnamed.
        let gone = self.unnamed(&plan.listing)?;
        self.remove(&gone, plan, report)?;
        report.dead_slots_left = self.head.dead.iter().map(|list| list.slots).sum();
        self.remove_old_heads()
    }

    /// Rewrites containers and commits them.
    fn rewrite(
        &mut self,
        batch: &[u32],
        plan: &Plan,
        tag: ObjectTag,
        report: &mut ReclaimReport,
    ) -> Result<()> {
        let repository = self.repository;
        let objects = &repository.objects;
        let rewriter = Rewriter {
            objects,
            series: self.head.series,
            fingerprinter: Fingerprinter::new(
                objects.keys.fingerprint_key(self.head.domain, self.head.series),
            ),
            config: &repository.config,
        };
        let dead: HashMap<u32, &[DeadRange]> = plan.reclaimable.by_container().collect();
        let mut done: HashSet<u32> = HashSet::new();
        for number in batch {
            self.keep()?;
            let Some(old) = self.head.containers.tag(*number) else { continue };
            let ranges = dead.get(number).copied().unwrap_or_default();
            let written = open_container(objects, self.head.series, *number, old)
                .and_then(|container| rewriter.rewrite(&container, *number, tag, ranges, &[]));
            match written {
                Ok(bytes) => {
                    report.rewritten_bytes += bytes;
                    report.rewritten_containers += 1;
                    done.insert(*number);
                }
                Err(error) if is_damage(&error) => {
                    repository.warn(&format!("{error}; the container is left as it is"));
                }
                Err(error) => return Err(error),
            }
            let progress = Progress {
                done_bytes: report.rewritten_bytes,
                total_bytes: plan.rewrite_bytes,
                ..Progress::default()
            };
            objects.context.observer.progress("reclaim", progress);
        }
        self.head.containers = retagged(&self.head.containers, &done, tag);
        let done: Vec<u32> = done.into_iter().collect();
        let replaced = self.replace_dead(&plan.reclaimable, &done)?;
        self.commit()?;
        self.repository.objects.delete(&replaced)
    }

    /// Writes a dead list without the slots of `reclaimed` in the containers `done`. The answer
    /// names the objects that can go once the head is committed.
    fn replace_dead(&mut self, reclaimed: &DeadSlots, done: &[u32]) -> Result<Vec<String>> {
        let objects = &self.repository.objects;
        let series = self.head.series;
        let done: HashSet<u32> = done.iter().copied().collect();
        let before = dead::read(objects, series, &self.head.dead)?;
        let gone: HashMap<u32, &[DeadRange]> = reclaimed.by_container().collect();
        let mut left = before.clone();
        left.retain_containers(|number| !done.contains(&number));
        // Slots that a deleted snapshot still needs stay dead in a rewritten container.
        let mut still = Vec::new();
        for (number, ranges) in before.by_container().filter(|(number, _)| done.contains(number)) {
            let Some(gone) = gone.get(&number) else { continue };
            let is_whole = |ranges: &[DeadRange]| ranges == [DeadRange::whole(number)];
            if *gone != ranges && !is_whole(ranges) && self.head.containers.tag(number).is_some() {
                let slots = DeadSlots::of(ranges.to_vec());
                let kept = slots.references().filter(|bits| {
                    !dead::holds(gone, silt_format::Reference::from_bits(*bits).slot())
                });
                still.extend(kept);
            }
        }
        let left = left.union(DeadSlots::of_references(&still));
        if left == before && self.head.dead.len() <= 1 {
            return Ok(Vec::new());
        }
        let list = dead::write(objects, series, &left)?;
        let replaced = std::mem::replace(&mut self.head.dead, list.into_iter().collect());
        let parts = replaced.iter().flat_map(|list| (0..list.parts).map(|part| (list.id, part)));
        Ok(parts.map(|(id, part)| names::dead_list(series, id, part)).collect())
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

    /// The objects of a listing that the head as it is now names neither itself nor by its
    /// snapshots, and that no backup can come to use.
    fn unnamed(&self, listing: &[Listed]) -> Result<Vec<usize>> {
        let head = &self.head;
        let series = head.series;
        let deleted = head.deleted.iter().map(|deleted| &deleted.entry);
        let entries: Vec<SnapshotEntry> = head.snapshots.iter().chain(deleted).cloned().collect();
        let snapshots = read_readable(self.repository, head, &entries)?;
        let Some(snapshots) = snapshots else { return Ok(Vec::new()) };
        let vectors: HashSet<Id> =
            snapshots.iter().filter_map(|snapshot| snapshot.summary).map(|s| s.id).collect();
        let set = |set: &ObjectSet, next: u32, name: &str| {
            names::number_and_tag(name)
                .is_none_or(|(number, tag)| number >= next || set.tag(number) == Some(tag))
        };
        let id = |name: &str| name.rsplit('/').next().and_then(Id::from_hex);
        let is_named = |name: &str| {
            if name.starts_with(&names::containers(series)) {
                set(&head.containers, head.next_container, name)
            } else if name.starts_with(&names::recipes(series)) {
                set(&head.packs, head.next_pack, name)
            } else if name.starts_with(&names::snapshots(series)) {
                id(name).is_none_or(|id| entries.iter().any(|entry| entry.id == id))
            } else if name.starts_with(&names::summaries(series)) {
                names::id_and_part(name).is_none_or(|(id, _)| vectors.contains(&id))
            } else if name.starts_with(&names::runs(series)) {
                names::id_and_part(name)
                    .is_none_or(|(id, _)| head.runs.iter().any(|run| run.id == id))
            } else {
                let mut lists = head.dead.iter().chain(&head.condemned).chain(&head.delta_bases);
                names::id_and_part(name).is_none_or(|(id, _)| lists.any(|list| list.id == id))
            }
        };
        let unnamed = listing.iter().enumerate().filter(|(_, listed)| !is_named(&listed.name));
        Ok(unnamed.map(|(place, _)| place).collect())
    }

    /// Removes objects that the committed head does not name.
    fn remove(&mut self, gone: &[usize], plan: &Plan, report: &mut ReclaimReport) -> Result<()> {
        for places in gone.chunks(REMOVED_AT_ONCE) {
            self.keep()?;
            let listed = places.iter().map(|place| &plan.listing[*place]);
            let names: Vec<String> = listed.clone().map(|listed| listed.name.clone()).collect();
            self.repository.objects.delete(&names)?;
            report.removed_objects += names.len() as u64;
            report.removed_bytes += listed.map(|listed| listed.bytes).sum::<u64>();
        }
        Ok(())
    }

    /// Removes all heads but the newest ones, oldest first.
    fn remove_old_heads(&mut self) -> Result<()> {
        let objects = &self.repository.objects;
        let heads: Vec<_> = heads::all(objects, self.head.series).collect::<Result<_>>()?;
        // One must stay of somebody who may remove, to vouch for those that go.
        if silt_format::number::to_u64(heads.len()) > HEADS_KEPT {
            let name = names::Numbered::Head.name(self.head.series, self.head.generation);
            let newest = heads::judge(objects, self.head.series, &name)?;
            let vouches = matches!(newest, heads::Reading::Good(_, by) if by.may_remove);
            if !vouches {
                self.commit()?;
            }
        }
        // Those that others have committed since don't count: the head that this one signed stays.
        // One by one, since the order is what a late writer goes by.
        let newest = self.head.generation;
        let is_old =
            |(generation, _): &&(u64, String)| generation.saturating_add(HEADS_KEPT) <= newest;
        for (_, name) in heads.iter().filter(is_old).rev() {
            self.repository.objects.delete(std::slice::from_ref(name))?;
        }
        Ok(())
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

/// The same containers, of which those in `done` were rewritten under `tag`.
pub(crate) fn retagged(set: &ObjectSet, done: &HashSet<u32>, tag: ObjectTag) -> ObjectSet {
    let mut containers = ObjectSet::default();
    for (number, old) in set.iter() {
        containers.push(number, if done.contains(&number) { tag } else { old });
    }
    containers
}

/// The first number behind `next` and behind all that are listed below `prefix`.
fn next_number(listing: &[Listed], prefix: &str, next: u32) -> u32 {
    let listed = listing.iter().filter(|listed| listed.name.starts_with(prefix));
    let numbers = listed.filter_map(|listed| names::number_and_tag(&listed.name));
    numbers.map(|(number, _)| number.saturating_add(1)).fold(next, u32::max)
}

/// The snapshots of a head; `None` with a warning if one can't be read, since what it names is then
/// not known.
fn read_readable(
    repository: &Repository,
    head: &Head,
    entries: &[SnapshotEntry],
) -> Result<Option<Vec<Snapshot>>> {
    match read_snapshots(repository, head.series, entries) {
        Ok(snapshots) => Ok(Some(snapshots)),
        Err(error) if is_damage(&error) => {
            repository.warn(&format!("{error}; objects that nothing names are left as they are"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn without(set: &ObjectSet, gone: &[u32]) -> ObjectSet {
    let mut left = ObjectSet::default();
    for (number, tag) in set.iter().filter(|(number, _)| gone.binary_search(number).is_err()) {
        left.push(number, tag);
    }
    left
}

#[expect(clippy::cast_precision_loss, reason = "a share need not be exact")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}
