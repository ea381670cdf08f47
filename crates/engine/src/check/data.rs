//! Reads containers and verifies every byte of them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use silt_chunking::Fingerprinter;
use silt_format::{Head, ObjectTag, Result, VerifiedRange, names};
use silt_repository::check_record::RecordState;
use silt_repository::chunks::ChunkReader;
use silt_repository::container_reader::ContainerReader;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::event::{Activity, Progress};
use silt_repository::found_damage::{FoundDamage, verify_container};
use silt_repository::objects::{Objects, is_damage};
use silt_repository::sync::lock;

use super::damage::Findings;
use super::{CheckOptions, CheckReport, DataCheck};
use crate::repository::Repository;
use silt_repository::jobs::jobs;

/// After how many verified containers the record is stored, so that a pass can go on there.
const SAVE_EVERY: usize = 256;

/// A container to verify.
#[derive(Clone, Copy, Debug)]
struct Item {
    number: u32,
    tag: ObjectTag,
    bytes: u64,
}

/// The result of reading one container.
struct Verified {
    item: Item,
    found: FoundDamage,
}

/// Verifies as many containers of a series as asked for, and those known to be damaged.
pub(crate) fn verify(
    repository: &Repository,
    head: &Head,
    options: &CheckOptions,
    state: &mut RecordState,
    report: &mut CheckReport,
    findings: &mut Findings,
) -> Result<()> {
    report.containers += head.containers.len();
    let (items, mut times) = plan(repository, head, options, state, report)?;
    let total_bytes: u64 = items.iter().map(|item| item.bytes).sum();
    let now_s = repository.objects.context.now_s();
    let mut done_bytes = 0;
    let mut unsaved = 0;
    let jobs = jobs(options.jobs);
    let report_done = |done_bytes| {
        let progress = Progress::bytes(Activity::Check, done_bytes, Some(total_bytes));
        repository.objects.context.report(progress);
    };
    if total_bytes > 0 {
        report_done(0);
    }
    let outcome = each_verified(repository, head, &items, jobs, &mut |verified| {
        let item = verified.item;
        state.record.damaged.retain(|slots| slots.container != item.number);
        state.record.damaged.extend(&verified.found.damaged);
        if let Some(error) = verified.found.error {
            let name = names::container(head.series, item.number, item.tag);
            findings.error(&name, &error);
        } else {
            report.verified_containers += 1;
            report.verified_bytes += item.bytes;
        }
        times.set(item.number, item.tag, now_s);
        done_bytes += item.bytes;
        report_done(done_bytes);
        unsaved += 1;
        if unsaved == SAVE_EVERY {
            unsaved = 0;
            state.record.verified = times.ranges();
            state.record.unneeded.clear();
            state.save(&repository.objects)?;
        }
        Ok(())
    });
    if !items.is_empty() {
        state.record.verified = times.ranges();
        // The structure shows again what is needed.
        state.record.unneeded.clear();
    }
    if outcome.is_ok() && options.data == DataCheck::All {
        state.record.pass_started_s = 0;
    }
    if outcome.is_err() {
        // Verifications before the interruption are kept.
        state.save(&repository.objects)?;
    }
    outcome
}

/// The containers to verify, in ascending order, and when those that are there were verified.
///
/// What is missing is the structure's matter: here counts only what is listed.
fn plan(
    repository: &Repository,
    head: &Head,
    options: &CheckOptions,
    state: &mut RecordState,
    report: &mut CheckReport,
) -> Result<(Vec<Item>, Times)> {
    let known: HashSet<u32> = state.record.damaged.iter().map(|slots| slots.container).collect();
    if options.data == DataCheck::None && known.is_empty() {
        return Ok((Vec::new(), Times::default()));
    }
    let listed = listed(&repository.objects, head)?;
    let times = Times::new(&state.record.verified, &listed);
    let all = listed.into_iter();
    let mut items: Vec<(u64, Item)> =
        all.map(|item| (times.get(item.number, item.tag), item)).collect();
    let is_known = |item: &Item| known.contains(&item.number);
    match options.data {
        DataCheck::None => items.retain(|(_, item)| is_known(item)),
        DataCheck::All => {
            let started = state.record.pass_started_s;
            if started > 0 && !options.restart {
                report.resumed = true;
                items.retain(|(time, item)| *time < started || is_known(item));
            } else {
                state.record.pass_started_s = repository.objects.context.now_s();
                // The start is stored at once, so that an interrupted pass is known as one.
                state.save(&repository.objects)?;
            }
        }
        DataCheck::Percent(percent) => {
            let total: u64 = items.iter().map(|(_, item)| item.bytes).sum();
            let wanted = share(total, percent);
            items.sort_by_key(|(time, item)| (!is_known(item), *time, item.number));
            let mut taken = 0;
            items.retain(|(_, item)| {
                let take = taken < wanted || is_known(item);
                taken += if take { item.bytes } else { 0 };
                take
            });
        }
    }
    let mut items: Vec<Item> = items.into_iter().map(|(_, item)| item).collect();
    items.sort_by_key(|item| item.number);
    Ok((items, times))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a size need not be exact, and is between 0 and the size"
)]
fn share(total: u64, percent: f64) -> u64 {
    ((total as f64) * percent.clamp(0.0, 100.0) / 100.0).ceil() as u64
}

/// The containers of a head that are in storage.
fn listed(objects: &Objects, head: &Head) -> Result<Vec<Item>> {
    let mut listed = Vec::new();
    for item in objects.names(&names::containers(head.series), None)? {
        let (name, bytes) = item?;
        if let Some((number, tag)) = names::number_and_tag(&name)
            && head.containers.tag(number) == Some(tag)
        {
            listed.push(Item { number, tag, bytes });
        }
    }
    Ok(listed)
}

/// Verifies `items` on several threads and hands each result to `take`, one at a time.
fn each_verified(
    repository: &Repository,
    head: &Head,
    items: &[Item],
    jobs: usize,
    take: &mut (dyn FnMut(Verified) -> Result<()> + Send),
) -> Result<()> {
    let objects = &repository.objects;
    let fingerprinter = Fingerprinter::new(objects.keys.fingerprint_key(head.domain, head.series));
    let next = Mutex::new(items.iter());
    let shared = Mutex::new((take, Ok(())));
    let has_deltas = !head.delta_bases.is_empty() && !items.is_empty();
    let budget = objects.context.budget(0);
    let chunks = has_deltas.then(|| ChunkReader::new(objects, head, budget)).transpose()?;
    let chunks = chunks.map(Arc::new);
    let dead = dead_of(objects, head)?;
    let work = || -> Result<()> {
        let mut reader = ContainerReader::new(objects);
        chunks.iter().for_each(|chunks| reader.read_deltas_with(Arc::clone(chunks)));
        loop {
            objects.context.check_interrupted()?;
            let Some(item) = lock(&next).next() else { return Ok(()) };
            let container = (head.series, item.number, item.tag);
            let found = verify_container(container, &fingerprinter, &mut reader, &dead)?;
            let verified = Verified { item: *item, found };
            let mut shared = lock(&shared);
            if shared.1.is_err() {
                return Ok(());
            }
            (shared.0)(verified)?;
        }
    };
    let work_or_fail = || {
        if let Err(error) = work() {
            let mut shared = lock(&shared);
            if shared.1.is_ok() {
                shared.1 = Err(error);
            }
        }
    };
    match objects.context.workers(jobs.min(items.len())) {
        0 => work_or_fail(),
        workers => std::thread::scope(|scope| {
            (0..workers).for_each(|_| drop(scope.spawn(work_or_fail)));
        }),
    }
    shared.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).1
}

/// The dead slots of a series; none if their list is damaged, which is noted elsewhere.
fn dead_of(objects: &Objects, head: &Head) -> Result<DeadSlots> {
    match dead::read(objects, head.series, &head.dead) {
        Err(error) if is_damage(&error) => Ok(DeadSlots::default()),
        other => other,
    }
}

/// When each container was verified.
#[derive(Default)]
struct Times(HashMap<(u32, ObjectTag), u64>);

impl Times {
    /// What a record says of containers that are there: its ranges may claim any number of others.
    fn new(ranges: &[VerifiedRange], listed: &[Item]) -> Self {
        let mut by_tag: HashMap<ObjectTag, Vec<VerifiedRange>> = HashMap::new();
        for range in ranges {
            by_tag.entry(range.tag).or_default().push(*range);
        }
        by_tag.values_mut().for_each(|ranges| ranges.sort_by_key(|range| range.first));
        let time = |item: &Item| {
            let ranges = by_tag.get(&item.tag)?;
            let at = ranges.partition_point(|range| range.first <= item.number).checked_sub(1)?;
            (item.number - ranges[at].first < ranges[at].count).then_some(ranges[at].time_s)
        };
        let known = |item: &Item| Some(((item.number, item.tag), time(item)?));
        Self(listed.iter().filter_map(known).collect())
    }
    fn get(&self, number: u32, tag: ObjectTag) -> u64 {
        self.0.get(&(number, tag)).copied().unwrap_or(0)
    }
    fn set(&mut self, number: u32, tag: ObjectTag, time_s: u64) {
        self.0.insert((number, tag), time_s);
    }
    /// The times as few ranges.
    fn ranges(&self) -> Vec<VerifiedRange> {
        let mut all: Vec<(u32, ObjectTag, u64)> =
            self.0.iter().map(|((number, tag), time)| (*number, *tag, *time)).collect();
        all.sort_unstable();
        let mut ranges: Vec<VerifiedRange> = Vec::new();
        for (first, tag, time_s) in all {
            match ranges.last_mut() {
                Some(last)
                    if last.first + last.count == first
                        && (last.tag, last.time_s) == (tag, time_s) =>
                {
                    last.count += 1;
                }
                _ => ranges.push(VerifiedRange { first, count: 1, tag, time_s }),
            }
        }
        ranges
    }
}
