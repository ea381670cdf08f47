//! Frees the space of dead chunks: a plan that can be printed, and its execution.
//!
//! Every object is dropped from the head before it is removed. That commit is also a fence: a
//! backup that began earlier can no longer commit, so no snapshot can refer to the removed objects.

use std::collections::{HashMap, HashSet};

use silt_format::{DeadRange, Error, ErrorKind, ObjectTag, Result, names};
use silt_repository::chunks::{Container, open_container};
use silt_repository::dead::{self, DeadSlots};
use silt_repository::event::{Activity, Progress, Warning};
use silt_repository::heads::{self, HEADS_KEPT};
use silt_repository::objects::is_damage;

use super::delete::leak_share;
use super::named::retagged;
use super::plan::{ReclaimOptions, ReclaimPlan, ReclaimReport, Steps};
use super::rewrite::{Changed, Rewriter};
use super::sweep::SweepOptions;
use crate::edit::Edit;
use crate::repository::Repository;

/// Number of containers rewritten before a commit, which is the most that an interruption can cost.
const REWRITES_PER_COMMIT: usize = 32;
/// Number of objects removed in one call.
const REMOVED_AT_ONCE: usize = 500;

impl Repository {
    /// Plans a reclaim of a series, and changes nothing. The series' lease is held meanwhile.
    ///
    /// A forecast is a lower bound where the plan [needs a sweep](ReclaimPlan::needs_sweep).
    pub fn plan_reclaim(&self, series: &str, options: &ReclaimOptions) -> Result<ReclaimPlan> {
        let (series, options) = (series.to_owned(), *options);
        let Some(mut edit) = self.edit_finished(&series)? else {
            let forecast = self.unfinished(&series, options.grace_s)?;
            return Ok(ReclaimPlan { series, options, steps: None, forecast, needs_sweep: false });
        };
        let needs_sweep = self.needs_sweep(&edit, &options)?;
        let steps = match edit.plan(&options) {
            // Nothing is known to be dead before the sweep.
            Err(error) if needs_sweep && is_damage(&error) => {
                Steps { generation: edit.head.generation, ..Steps::default() }
            }
            planned => planned?,
        };
        let forecast = steps.forecast();
        edit.finish()?;
        Ok(ReclaimPlan { series, options, steps: Some(steps), forecast, needs_sweep })
    }

    /// Executes a plan.
    ///
    /// Fails with `Conflict` if the series has changed since the plan was made.
    pub fn execute_reclaim(&self, plan: &ReclaimPlan) -> Result<ReclaimReport> {
        let Some(steps) = &plan.steps else {
            return self.reclaim_unfinished(&plan.series, &plan.options);
        };
        let mut edit = Edit::begin(self, self.series_id(&plan.series), &plan.series)?;
        if edit.head.generation != steps.generation {
            let message = format!("series '{}' has changed since the plan was made", plan.series);
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        let mut report = plan.forecast.clone();
        if plan.needs_sweep {
            report = edit.sweep_and_execute(&plan.options)?;
        } else {
            edit.execute(steps, &mut report)?;
        }
        edit.finish()?;
        Ok(report)
    }

    /// Plans a reclaim of a series and executes the plan under one lease: drops and rewrites
    /// containers, drops recipe packs, and removes objects that interrupted runs have left. Backups
    /// of other series and restores continue meanwhile.
    pub fn reclaim(&self, series: &str, options: &ReclaimOptions) -> Result<ReclaimReport> {
        let Some(mut edit) = self.edit_finished(series)? else {
            return self.reclaim_unfinished(series, options);
        };
        let needs_sweep = self.needs_sweep(&edit, options)?;
        let report = if needs_sweep {
            edit.sweep_and_execute(options)?
        } else {
            let steps = edit.plan(options)?;
            let mut report = steps.forecast();
            edit.execute(&steps, &mut report)?;
            report
        };
        edit.finish()?;
        Ok(report)
    }

    /// Begins to change a series; `None` if its first backup was interrupted.
    fn edit_finished(&self, series: &str) -> Result<Option<Edit<'_>>> {
        let id = self.series_id(series);
        match Edit::begin(self, id, series) {
            Err(error) if error.kind() == ErrorKind::NotFound && self.has_record(id)? => Ok(None),
            begun => begun.map(Some),
        }
    }

    /// Whether an exact sweep has to come first: too much has leaked, or the dead list is damaged.
    fn needs_sweep(&self, edit: &Edit<'_>, options: &ReclaimOptions) -> Result<bool> {
        let readable = dead::read(&self.objects, edit.head.series, &edit.head.dead);
        let readable = readable.and_then(|_| edit.bases());
        match readable {
            Err(error) if is_damage(&error) => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(leak_share(&edit.head.leak) >= options.leak_share_max),
        }
    }
}

/// Memory that rewriting a container takes: the new one, and frames of the old one.
fn rewriting_bytes(container: &Container) -> u64 {
    let frames = container.directory.frames.iter();
    2 * frames.map(|frame| u64::from(frame.sealed_bytes)).sum::<u64>()
}

impl Edit<'_> {
    /// Reclaims after an exact sweep.
    fn sweep_and_execute(&mut self, options: &ReclaimOptions) -> Result<ReclaimReport> {
        // Snapshots that are purged need no bases of deltas: they go with the commit of the sweep.
        let has_deltas = !self.head.delta_bases.is_empty();
        let purged = if has_deltas { self.purge(options) } else { Vec::new() };
        let memory_bytes = options.memory_bytes;
        let sweep_options = SweepOptions { memory_bytes, ..SweepOptions::default() };
        let sweep = Some(self.sweep_and_commit(sweep_options, !purged.is_empty())?);
        let steps = self.plan(options)?;
        let mut report = ReclaimReport { sweep, ..steps.forecast() };
        report.purged.extend(purged);
        self.execute(&steps, &mut report)?;
        Ok(report)
    }

    /// Does what was planned.
    pub(crate) fn execute(&mut self, plan: &Steps, report: &mut ReclaimReport) -> Result<()> {
        report.removed_objects = 0;
        report.removed_bytes = 0;
        report.rewritten_bytes = 0;
        report.rewritten_containers = 0;
        let orphans = self.unnamed_by(&self.head, &plan.listing)?;
        let is_needed = !plan.purge.is_empty()
            || !plan.drop.is_empty()
            || !plan.drop_packs.is_empty()
            || (plan.next_container, plan.next_pack)
                != (self.head.next_container, self.head.next_pack)
            || !orphans.is_empty();
        if is_needed {
            plan.apply(&mut self.head);
            let replaced = self.replace_dead(&plan.reclaimable, &plan.drop)?;
            self.commit()?;
            self.repository.objects.delete(&replaced)?;
        }
        let mut removed = Vec::new();
        if !plan.drop.is_empty() && !plan.rewrite.is_empty() {
            // Storage may be full: what goes makes room for what is written.
            removed = self.unnamed_by(&self.head, &plan.listing)?;
            self.remove(&removed, plan, report)?;
        }
        let tag = ObjectTag::rewritten(self.repository.objects.context.random_id());
        for batch in plan.rewrite.chunks(REWRITES_PER_COMMIT) {
            self.rewrite(batch, plan, tag, report)?;
        }
        // Last, so that an interruption before leaves only what the next run finds unnamed.
        let mut gone = self.unnamed_by(&self.head, &plan.listing)?;
        gone.retain(|place| removed.binary_search(place).is_err());
        self.remove(&gone, plan, report)?;
        report.dead_slots_left = self.head.dead.iter().map(|list| list.slots).sum();
        self.remove_old_heads()
    }

    /// Rewrites containers and commits them.
    fn rewrite(
        &mut self,
        batch: &[u32],
        plan: &Steps,
        tag: ObjectTag,
        report: &mut ReclaimReport,
    ) -> Result<()> {
        let repository = self.repository;
        let objects = &repository.objects;
        let rewriter = Rewriter::of(repository, &self.head)?;
        let dead: HashMap<u32, &[DeadRange]> = plan.reclaimable.by_container().collect();
        let mut done: HashSet<u32> = HashSet::new();
        for number in batch {
            self.keep()?;
            let Some(old) = self.head.containers.tag(*number) else { continue };
            let ranges = dead.get(number).copied().unwrap_or_default();
            let written =
                open_container(objects, self.head.series, *number, old).and_then(|container| {
                    let _place = objects.room.place(rewriting_bytes(&container));
                    let changed = Changed { dead: ranges, ..Changed::default() };
                    rewriter.rewrite(&container, tag, changed)
                });
            match written {
                Ok(bytes) => {
                    report.rewritten_bytes += bytes;
                    report.rewritten_containers += 1;
                    done.insert(*number);
                }
                Err(error) if is_damage(&error) => {
                    repository.warn(Warning::after(&error, "the container is not changed"));
                }
                Err(error) => return Err(error),
            }
            let (done, total) = (report.rewritten_bytes, Some(plan.rewrite_bytes));
            objects.context.report(Progress::bytes(Activity::Reclaim, done, total));
        }
        self.head.containers = retagged(&self.head.containers, &done, tag);
        let done: Vec<u32> = done.into_iter().collect();
        let replaced = self.replace_dead(&plan.reclaimable, &done)?;
        self.commit()?;
        self.repository.objects.delete(&replaced)
    }

    /// Writes a dead list without the slots of `reclaimed` in the containers `done`. Returns the
    /// objects that can be deleted once the head is committed.
    pub(crate) fn replace_dead(
        &mut self,
        reclaimed: &DeadSlots,
        done: &[u32],
    ) -> Result<Vec<String>> {
        let objects = &self.repository.objects;
        let series = self.head.series;
        let done: HashSet<u32> = done.iter().copied().collect();
        let before = dead::read(objects, series, &self.head.dead)?;
        let gone: HashMap<u32, &[DeadRange]> = reclaimed.by_container().collect();
        let bases =
            if self.head.delta_bases.is_empty() { DeadSlots::default() } else { self.bases()? };
        let bases: HashMap<u32, &[DeadRange]> = bases.by_container().collect();
        let mut left = before.clone();
        left.retain_containers(|number| !done.contains(&number));
        // Slots that a deleted snapshot still needs stay dead in a rewritten container.
        let mut still = Vec::new();
        for (number, ranges) in before.by_container().filter(|(number, _)| done.contains(number)) {
            let gone = gone.get(&number).copied().unwrap_or_default();
            // Of a container that was dead as a whole, bases of deltas are left.
            let is_whole = ranges == [DeadRange::whole(number)];
            let ranges =
                if is_whole { bases.get(&number).copied().unwrap_or(gone) } else { ranges };
            if gone != ranges && self.head.containers.tag(number).is_some() {
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

    /// Removes objects that the committed head does not name.
    fn remove(&mut self, gone: &[usize], plan: &Steps, report: &mut ReclaimReport) -> Result<()> {
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
}
