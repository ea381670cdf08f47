//! Choosing what is shared, and copying it to the shared store: the popular data set of the papers.
//!
//! Every chunk of every series is sorted by fingerprint; in how many series each occurs is counted as
//! they pass by. The most popular are sorted again, by where they are, and copied in that order, so that
//! containers are read once and neighbours stay neighbours.

use std::path::PathBuf;
use std::sync::Arc;

use silt_format::number::{to_u32, to_u64};
use silt_format::{Fingerprint, Head, Record, Reference, Result, RunRef, RunUse, SeriesId};

use super::copy::{Source, StoreWriter, open_or_warn};
use super::record::{Owner, SharedRecord, by_place, place_of};
use super::references::each_shared_reference;
use crate::deletion::{Edit, dead};
use crate::env::Progress;
use crate::objects::Objects;
use crate::repository::{DEFAULT_DOMAIN, Repository};
use crate::runs::{DurableRun, RunReader, RunWriter, Sorted, Sorter, Stream, merge};

/// Memory of a build unless told otherwise, in bytes.
const MEMORY_BYTES_DEFAULT: u64 = 48 << 20;
/// Most runs of an index; when there are more, they are merged into one.
const RUNS_MAX: usize = 4;
/// The owner number of the shared store itself.
const STORE: u32 = u32::MAX;

/// Which chunks are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SharePolicy {
    /// Those in most series, at most this share of all unique chunks, from 0 to 1.
    Popular(f64),
    /// All that occur in two or more series.
    Duplicates,
}

/// How the popular data set is made.
#[derive(Clone, Debug)]
pub struct PopularOptions {
    /// Which chunks.
    pub policy: SharePolicy,
    /// A folder for temporary files, which take about 32 bytes a stored chunk.
    pub spool: PathBuf,
    /// Bytes of memory to sort in, 0 for the default.
    pub memory_bytes: u64,
    /// Only count.
    pub dry_run: bool,
}

/// What the counting found and the building did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PopularReport {
    /// Series that were looked at.
    pub series: u64,
    /// Different chunks in all of them together.
    pub unique_chunks: u64,
    /// Chunks by the number of series that have them: at `n` those in `n + 1` series.
    pub chunks_by_series: Vec<u64>,
    /// Slots that hold chunks in the series' own containers.
    pub private_slots: u64,
    /// Slots that hold chunks in the shared store.
    pub shared_slots: u64,
    /// Chunks that the policy chooses.
    pub chosen_chunks: u64,
    /// In at least so many series each of them occurs.
    pub series_min: u32,
    /// Chosen chunks that were in the shared store already.
    pub present_chunks: u64,
    /// Chunks copied to the shared store.
    pub copied_chunks: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// Bytes written to storage.
    pub stored_bytes: u64,
}

impl PopularReport {
    /// Chunks stored when each series stores its own once: what sharing nothing would leave.
    pub fn private_chunks(&self) -> u64 {
        (1..).zip(&self.chunks_by_series).map(|(series, chunks): (u64, _)| series * chunks).sum()
    }
}

impl PopularReport {
    /// How many chunks are to be copied if all of them can be read.
    fn copied_chunks_max(&self) -> u64 {
        self.chosen_chunks.saturating_sub(self.present_chunks)
    }
}

/// A series and its head when the counting began.
struct Member {
    id: SeriesId,
    head: Head,
}

/// What is known of one fingerprint.
#[derive(Default)]
struct Group {
    series: u32,
    /// A private slot that holds the chunk.
    source: Option<Owner>,
    is_present: bool,
}

/// Which groups are chosen: all in more series than `limit`, and `at_limit` of those in as many.
#[derive(Clone, Copy)]
struct Choice {
    limit: u32,
    at_limit: u64,
}

impl Repository {
    /// Counts in how many series each chunk occurs, and copies those that the policy chooses to the
    /// shared store. Private copies stay until [`repoint`](Self::repoint).
    ///
    /// `Busy` while another process changes the shared store.
    pub fn build_popular(&self, options: &PopularOptions) -> Result<PopularReport> {
        let mut edit = Edit::begin_shared(self, DEFAULT_DOMAIN)?;
        let bytes =
            if options.memory_bytes == 0 { MEMORY_BYTES_DEFAULT } else { options.memory_bytes };
        let builder = Builder {
            repository: self,
            options,
            sort_bytes: silt_format::number::to_usize(bytes / 3),
            members: members(self)?,
        };
        let report = builder.build(&mut edit)?;
        edit.finish()?;
        Ok(report)
    }
}

/// All series that have a head.
fn members(repository: &Repository) -> Result<Vec<Member>> {
    let mut members = Vec::new();
    for (id, _) in repository.series()? {
        if let Some(head) = repository.head(id)? {
            members.push(Member { id, head });
        }
    }
    Ok(members)
}

struct Builder<'a> {
    repository: &'a Repository,
    options: &'a PopularOptions,
    /// What one of up to three sortings at a time may hold.
    sort_bytes: usize,
    members: Vec<Member>,
}

impl Builder<'_> {
    fn objects(&self) -> &Arc<Objects> {
        &self.repository.objects
    }

    fn sorter(&self) -> Sorter {
        Sorter::new(self.objects(), &self.options.spool, self.sort_bytes)
    }

    fn build(&self, edit: &mut Edit<'_>) -> Result<PopularReport> {
        let mut report = PopularReport { series: to_u64(self.members.len()), ..Default::default() };
        let owners = self.owners(edit, &mut report)?;
        each_group(&mut owners.stream(), &mut |_, group| {
            report.unique_chunks += u64::from(group.series > 0);
            if let Some(at) = (group.series as usize).checked_sub(1) {
                let counts = &mut report.chunks_by_series;
                counts.resize(counts.len().max(at + 1), 0);
                counts[at] += 1;
            }
            Ok(())
        })?;
        let mut choice = self.choose(&mut report);
        let sources = self.sources(&owners, &mut choice, &mut report)?;
        drop(owners);
        if self.options.dry_run || sources.records() == 0 {
            return Ok(report);
        }
        self.copy(edit, &sources, choice.at_limit, &mut report)?;
        Ok(report)
    }

    /// Who has which chunk: all living slots of all series, and the shared store's.
    fn owners(&self, edit: &mut Edit<'_>, report: &mut PopularReport) -> Result<Sorted> {
        let mut owners = self.sorter();
        for (series, member) in (0..).zip(&self.members) {
            edit.keep()?;
            let dead = dead::read(self.objects(), member.id, &member.head.dead)?;
            let dead: std::collections::HashMap<_, _> = dead.by_container().collect();
            for (container, revision) in member.head.containers.iter() {
                self.objects().context.check_interrupted()?;
                let opened = open_or_warn(self.repository, member.id, container, revision)?;
                let Some(opened) = opened else { continue };
                let gone = dead.get(&container).copied().unwrap_or_default();
                let directory = &opened.directory;
                let chunks = directory
                    .slots()
                    .map(|(slot, place)| (slot, directory.fingerprints[place.index as usize]));
                for (slot, fingerprint) in chunks.filter(|(slot, _)| !dead::holds(gone, *slot)) {
                    let owner = Owner { series, container, slot, is_shared: false };
                    report.private_slots += 1;
                    owners.push(owner.encode(fingerprint))?;
                }
                for link in directory.links.iter().filter(|link| !dead::holds(gone, link.slot)) {
                    owners.push(shared_owner(series, link.target).encode(link.fingerprint))?;
                }
            }
            each_shared_reference(self.repository, &member.head, &mut |chunk| {
                let owner = shared_owner(series, chunk.reference);
                owners.push(owner.encode(chunk.fingerprint))
            })?;
        }
        for run in shared_runs(&edit.head) {
            let mut stream = Stream::new(RunReader::new(self.objects(), edit.head.series, run)?);
            while let Some(record) = stream.next()? {
                let found = SharedRecord::decode(&record).reference;
                report.shared_slots += 1;
                owners.push(shared_owner(STORE, found).encode(record.fingerprint))?;
            }
        }
        owners.finish()
    }

    /// Finds where the line is drawn: the most popular first, as many as the policy allows.
    fn choose(&self, report: &mut PopularReport) -> Choice {
        let mut left = match self.options.policy {
            SharePolicy::Duplicates => u64::MAX,
            SharePolicy::Popular(share) => quota(report.unique_chunks, share),
        };
        let counts: Vec<(u32, u64)> =
            (1..).zip(report.chunks_by_series.iter().copied()).skip(1).collect();
        let mut choice = Choice { limit: u32::MAX, at_limit: 0 };
        for (series, chunks) in counts.into_iter().rev() {
            if left == 0 {
                break;
            }
            let taken = left.min(chunks);
            left -= taken;
            report.chosen_chunks += taken;
            report.series_min = series;
            choice = Choice { limit: series, at_limit: taken };
        }
        choice
    }

    /// Where the chosen chunks that have to be copied are, in the order of their places. The payload
    /// says which of them are at the limit; of those, what is shared already comes before all others.
    fn sources(
        &self,
        owners: &Sorted,
        choice: &mut Choice,
        report: &mut PopularReport,
    ) -> Result<Sorted> {
        let mut sources = self.sorter();
        each_group(&mut owners.stream(), &mut |_, group| {
            if group.series < choice.limit.max(2) {
                return Ok(());
            }
            let is_at_limit = group.series == choice.limit;
            if group.is_present && !(is_at_limit && choice.at_limit == 0) {
                report.present_chunks += 1;
                choice.at_limit -= u64::from(is_at_limit);
            }
            let at_limit = [u8::from(is_at_limit); 12];
            match group.source.filter(|_| !group.is_present) {
                Some(owner) => sources.push(by_place(owner, at_limit)),
                None => Ok(()),
            }
        })?;
        sources.finish()
    }

    /// Copies chunks to new containers of the shared store, and commits them with their index.
    fn copy(
        &self,
        edit: &mut Edit<'_>,
        sources: &Sorted,
        mut at_limit: u64,
        report: &mut PopularReport,
    ) -> Result<()> {
        let mut writer = StoreWriter::new(self.repository, &edit.head)?;
        let mut placed = self.sorter();
        let mut source = Source::new(self.repository)?;
        let mut stream = sources.stream();
        while let Some(record) = stream.next()? {
            if record.payload[0] != 0 {
                if at_limit == 0 {
                    continue;
                }
                at_limit -= 1;
            }
            let place = place_of(&record);
            let member = &self.members[place.series as usize];
            let Some((fingerprint, chunk)) = source.read(&member.head, place)? else { continue };
            let reference = writer.append(chunk, fingerprint)?;
            let chunk_bytes = to_u32(chunk.len());
            placed.push(SharedRecord { reference, chunk_bytes }.encode(fingerprint))?;
            report.copied_chunks += 1;
            report.copied_bytes += to_u64(chunk.len());
            if report.copied_chunks.is_multiple_of(1024) {
                edit.keep()?;
                let (done_bytes, all) = (report.copied_bytes, report.copied_chunks);
                let total_bytes = done_bytes / all * report.copied_chunks_max();
                let progress = Progress { done_bytes, total_bytes, ..Progress::default() };
                self.objects().context.observer.progress("popular", progress);
            }
        }
        let containers = writer.finish()?;
        report.stored_bytes += containers.stored_bytes;
        let run = self.index(edit, &placed.finish()?)?;
        report.stored_bytes += run.stored_bytes;
        containers.numbers.iter().for_each(|number| edit.head.containers.push(*number, 0));
        edit.head.next_container = containers.next_number;
        edit.commit()
    }

    /// Adds the new chunks to the index: as a run of their own, or merged with all there are.
    fn index(&self, edit: &mut Edit<'_>, placed: &Sorted) -> Result<DurableRun> {
        let before: Vec<RunRef> = shared_runs(&edit.head).collect();
        let store = edit.head.series;
        let mut streams = vec![placed.stream()];
        let mut records = placed.records();
        if before.len() >= RUNS_MAX {
            for run in before {
                streams.push(Stream::new(RunReader::new(self.objects(), store, run)?));
                records += run.records;
            }
            edit.head.runs.retain(|run| run.use_ != RunUse::Shared);
        }
        let mut merged = merge(streams);
        let mut writer = RunWriter::new(self.objects(), store, RunUse::Shared, records)?;
        while let Some(record) = merged.next()? {
            writer.push(record)?;
        }
        let run = writer.finish()?;
        edit.head.runs.push(run.run);
        Ok(run)
    }
}

/// The runs of a shared store's head that say where its chunks are.
pub(super) fn shared_runs(head: &Head) -> impl Iterator<Item = RunRef> + '_ {
    head.runs.iter().filter(|run| run.use_ == RunUse::Shared).copied()
}

fn shared_owner(series: u32, target: Reference) -> Owner {
    Owner { series, container: target.container(), slot: target.slot(), is_shared: true }
}

/// Calls `each` with every fingerprint of a stream of owners.
fn each_group(
    stream: &mut Stream<'_>,
    each: &mut dyn FnMut(&Fingerprint, Group) -> Result<()>,
) -> Result<()> {
    let mut open: Option<(Record, Group)> = None;
    while let Some(record) = stream.next()? {
        let owner = Owner::decode(&record);
        let is_same = |last: &Record| last.fingerprint == record.fingerprint;
        let (last, mut group) = match open.take() {
            Some((last, group)) if is_same(&last) => (Some(last), group),
            Some((last, group)) => {
                each(&last.fingerprint, group)?;
                (None, Group::default())
            }
            None => (None, Group::default()),
        };
        let is_new = last.is_none_or(|last| Owner::decode(&last).series != owner.series);
        group.series += u32::from(is_new && owner.series != STORE);
        group.is_present |= owner.series == STORE;
        if !owner.is_shared {
            group.source = group.source.or(Some(owner));
        }
        open = Some((record, group));
    }
    match open {
        Some((last, group)) => each(&last.fingerprint, group),
        None => Ok(()),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a share of a count need not be exact, and is between 0 and the count"
)]
fn quota(unique: u64, share: f64) -> u64 {
    (unique as f64 * share.clamp(0.0, 1.0)).round() as u64
}
