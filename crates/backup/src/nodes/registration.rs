//! Registers what a backup has written to a storage node.
//!
//! A commit of the node's head names the containers and an index of what they hold; only then may
//! the backup's series refer to them. A sweep of the node takes the reservations of backups away
//! that have ended. One that only slept finds its reservation gone, can register nothing, and does
//! not commit.

use std::sync::Arc;
use std::thread::JoinHandle;

use silt_format::number::to_u64;
use silt_format::{
    Error, ErrorKind, Head, ObjectSet, ObjectTag, Record, Result, RunRef, RunUse, SeriesId,
    StoreWriter,
};
use silt_repository::Repository;
use silt_repository::beside::Beside;
use silt_repository::edit::Edit;
use silt_repository::event::Warning;
use silt_repository::lease::SharedLease;
use silt_repository::operation::CancelToken;
use silt_routing::Application;
use silt_runs::{Records, RunReader, RunWriter, Stream, merge};

use super::Node;
use crate::container::ContainerWriter;

/// Number of runs of an index from which on new ones are merged with the smallest.
const RUNS_MAX: usize = 8;
/// Bytes that are read at once of all runs that are merged.
const MERGED_READ_BYTES: u64 = 1 << 20;
/// How often a commit is tried while other backups change the node's head.
const TRIES_MAX: u32 = 50;
/// How long registering waits for a sweep of the node.
const PATIENCE_NS: u64 = 3600 * 1_000_000_000;
const PAUSE_NS: u64 = 1_000_000_000;

/// A range that is full of chunks takes this part of them more, to fill its last container.
const RECORDS_OVER: usize = 4;

/// A backup, as nodes know it: its session, and its series.
pub(crate) type Own = ([u8; 16], SeriesId);

/// A range of container numbers that a backup has reserved.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) first: u32,
    /// Behind the last one.
    end: u32,
}

/// The containers that a backup writes into a range of a node.
pub(super) struct Writing {
    pub(super) containers: ContainerWriter,
    range: Range,
    placed: Vec<Record>,
    applications: Vec<u16>,
}

impl Writing {
    /// `containers` begin at the range's first number.
    pub(super) fn new(containers: ContainerWriter, range: Range) -> Self {
        Self { containers, range, placed: Vec::new(), applications: Vec::new() }
    }

    /// Whether nothing may be added: there is no number for the container that `begins`, or there
    /// are `records_max` chunks. Then a container that is being filled is filled first, unless it
    /// has so many chunks that they would take too much memory.
    pub(super) fn is_full(&self, begins: bool, records_max: usize) -> bool {
        let (next, records) = (self.containers.next_number(), self.placed.len());
        let ends = next >= self.range.end || records >= records_max;
        begins && ends || records >= records_max + records_max / RECORDS_OVER
    }

    /// Notes a chunk that was added to the containers.
    pub(super) fn add(&mut self, placed: Record, application: Application) {
        assert!(self.containers.next_number() <= self.range.end, "containers are in their range");
        self.placed.push(placed);
        if !self.applications.contains(&application.0) {
            self.applications.push(application.0);
        }
    }

    /// Waits until all of it is durable.
    fn finish(self) -> Result<Written> {
        let mut placed = self.placed;
        placed.sort_unstable();
        let containers = self.containers.finish()?.0;
        Ok(Written { first: self.range.first, containers, placed, applications: self.applications })
    }
}

/// What is durable in a node and not named by its head.
struct Written {
    /// The first number of their range.
    first: u32,
    containers: Vec<(u32, ObjectTag)>,
    placed: Vec<Record>,
    applications: Vec<u16>,
}

impl Written {
    /// Whether a head names all of it.
    fn is_named_by(&self, head: &Head) -> bool {
        self.containers.iter().all(|(number, tag)| head.containers.tag(*number) == Some(*tag))
    }
}

/// What is to be registered.
pub(super) struct Registration {
    pub(super) lease: SharedLease,
    pub(super) node: Arc<Node>,
    pub(super) own: Own,
    pub(super) writing: Writing,
    /// The range that stays reserved.
    pub(super) kept: Option<Range>,
    /// Numbers that are reserved besides.
    pub(super) more: u32,
}

impl Registration {
    /// Waits until all of it is durable, and commits it; returns the new range. From then on, the
    /// backup knows what others have registered.
    pub(super) fn run(self, repository: &Repository) -> Result<Option<Range>> {
        let Self { lease, node, own, writing, kept, more } = self;
        let written = writing.finish()?;
        let counts: Vec<u32> = (more > 0).then_some(more).into_iter().collect();
        let change = Change { written: Some(&written), kept, counts: &counts };
        let (reserved, head) = commit(repository, &lease, &node, own, change)?;
        if more > 0 {
            renew(repository, &node, &head)?;
        }
        Ok(reserved.first().copied())
    }
}

/// A registration that has begun.
pub(super) enum Registering {
    /// On a thread.
    Beside(Background),
    /// On the caller's thread, when somebody waits for it.
    Later(Box<(Repository, Registration)>),
}

/// A thread that registers. Dropped, it is stopped, and waited for.
pub(super) struct Background {
    thread: Option<JoinHandle<Result<Option<Range>>>>,
    cancel: CancelToken,
}

impl Registering {
    pub(super) fn begin(repository: &Repository, registration: Registration) -> Self {
        let context = repository.objects.context.operation_beside();
        let cancel = context.cancel.clone();
        let own = repository.beside(context);
        if own.objects.context.env.is_single_threaded() {
            return Self::Later(Box::new((own, registration)));
        }
        let thread = Some(std::thread::spawn(move || registration.run(&own)));
        Self::Beside(Background { thread, cancel })
    }

    /// What stops it; `None` if it has not begun.
    pub(super) fn token(&self) -> Option<CancelToken> {
        match self {
            Self::Beside(background) => Some(background.cancel.clone()),
            Self::Later(_) => None,
        }
    }

    /// Waits for it; returns the range that it has reserved.
    pub(super) fn finish(self) -> Result<Option<Range>> {
        match self {
            Self::Later(later) => later.1.run(&later.0),
            Self::Beside(mut background) => match background.thread.take().map(JoinHandle::join) {
                Some(Ok(done)) => done,
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                None => Ok(None),
            },
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.cancel.cancel();
            // The backup has failed already, and reports why.
            let _ = thread.join();
        }
    }
}

/// Reserves two ranges in a node that this backup has written nothing to.
pub(super) fn reserve(
    repository: &Repository,
    lease: &SharedLease,
    node: &Node,
    own: Own,
    counts: [u32; 2],
) -> Result<[Range; 2]> {
    let change = Change { written: None, kept: None, counts: &counts };
    let (reserved, head) = commit(repository, lease, node, own, change)?;
    renew(repository, node, &head)?;
    <[Range; 2]>::try_from(reserved).map_err(|_| is_gone(node))
}

/// Gives the ranges of a node back that were not used. If that fails, a sweep does it.
pub(super) fn give_back(
    repository: &Repository,
    lease: &SharedLease,
    node: &Node,
    own: Own,
) -> Result<()> {
    let change = Change { written: None, kept: None, counts: &[] };
    match commit(repository, lease, node, own, change) {
        Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// Takes over what other backups have registered, if it can be read.
fn renew(repository: &Repository, node: &Node, head: &Head) -> Result<()> {
    match node.renew(repository, head) {
        Err(error) if error.kind() != ErrorKind::Interrupted => {
            let consequence = "what others have stored there meanwhile is stored again";
            repository.warn(Warning::after(&error, consequence));
            Ok(())
        }
        renewed => renewed,
    }
}

/// How a backup changes a node's head.
#[derive(Clone, Copy)]
struct Change<'c> {
    /// What is registered; its range is given back.
    written: Option<&'c Written>,
    /// The range that stays reserved.
    kept: Option<Range>,
    /// How many numbers are reserved, for each range.
    counts: &'c [u32],
}

/// Records in memory, in order.
struct Placed<'a>(&'a [Record]);

impl Records for Placed<'_> {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        batch.clear();
        batch.extend(std::mem::take(&mut self.0));
        Ok(())
    }
}

/// Changes the node's head; returns the ranges that are reserved newly.
///
/// Other backups commit meanwhile, so it is tried again. What a failed try has written of the index
/// is not used again: a sweep may have found that nothing names it, and removed it.
fn commit(
    repository: &Repository,
    lease: &SharedLease,
    node: &Node,
    own: Own,
    change: Change<'_>,
) -> Result<(Vec<Range>, Head)> {
    let env = &repository.objects.context.env;
    let (mut tries, mut waited_ns) = (0, 0);
    loop {
        lease.keep()?;
        match change.make(repository, node, own, tries == 0) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                let is_swept = error.advice().is_some();
                tries += u32::from(!is_swept);
                // Nothing is lost if these chunks are stored elsewhere.
                let may_wait = change.written.is_some() && waited_ns < PATIENCE_NS;
                if tries > TRIES_MAX || is_swept && !may_wait {
                    return Err(error);
                }
                if waited_ns == 0 && is_swept {
                    repository.warn(Warning::after(&error, "waiting"));
                }
                repository.objects.context.check_interrupted()?;
                let pause_ns = if is_swept { PAUSE_NS } else { pause_ns(repository, tries) };
                env.sleep_ns(pause_ns);
                waited_ns += if is_swept { pause_ns } else { 0 };
            }
            other => return other,
        }
    }
}

impl Change<'_> {
    /// Commits it; `Busy` if others have changed the head meanwhile.
    fn make(
        self,
        repository: &Repository,
        node: &Node,
        (session, series): Own,
        may_merge: bool,
    ) -> Result<(Vec<Range>, Head)> {
        let mut edit = Edit::begin_store_brief(repository, node.number)?;
        let is_kept = |it: &StoreWriter| {
            self.kept.is_some_and(|kept| (it.first, it.end) == (kept.first, kept.end))
        };
        let all = edit.head.store_writers.iter();
        let own: Vec<StoreWriter> = all.filter(|it| it.session == session).copied().collect();
        if let Some(written) = self.written {
            if written.is_named_by(&edit.head) {
                // The answer to an earlier try was lost.
                let new = own.into_iter().filter(|it| !is_kept(it));
                return Ok((new.map(Range::of).collect(), edit.head));
            }
            if !own.iter().any(|it| it.first == written.first) {
                return Err(is_gone(node));
            }
            add(repository, &mut edit.head, written, may_merge)?;
        }
        // What an earlier try has reserved, whose answer was lost, is not used either.
        edit.head.store_writers.retain(|it| it.session != session || is_kept(it));
        let counts = self.counts.iter();
        let new = counts.map(|count| reserve_in(&mut edit.head, (session, series), *count));
        let new = new.collect::<Result<_>>()?;
        edit.commit()?;
        Ok((new, edit.head))
    }
}

/// A random pause that grows with the number of tries, at most half a second.
fn pause_ns(repository: &Repository, tries: u32) -> u64 {
    let random: [u8; 16] = repository.objects.context.random();
    let share = u64::from(u16::from_le_bytes([random[0], random[1]]));
    (u64::from(tries.min(50)) * 10_000_000) * share / u64::from(u16::MAX)
}

fn is_gone(node: &Node) -> Error {
    let message = format!(
        "the backup took longer than its lease, and a sweep of {} has taken its reservation away; \
         nothing was committed; run it again",
        node.shown
    );
    Error::new(ErrorKind::Conflict, message)
}

impl Range {
    fn of(writer: StoreWriter) -> Self {
        Self { first: writer.first, end: writer.end }
    }
}

fn reserve_in(head: &mut Head, (session, series): Own, count: u32) -> Result<Range> {
    let first = head.next_container;
    let end = first.checked_add(count).ok_or_else(|| {
        Error::invalid("a storage node has used all 2^32 container numbers; add another node")
    })?;
    head.next_container = end;
    let writer = StoreWriter { session, series, first, end };
    head.store_writers.push(writer);
    // A sweep deletes nothing while one of these is missing.
    if let Err(place) = head.users.binary_search(&series) {
        head.users.insert(place, series);
    }
    Ok(Range::of(writer))
}

/// Adds containers and the index of what they hold to a head.
fn add(repository: &Repository, head: &mut Head, written: &Written, may_merge: bool) -> Result<()> {
    // Other backups may have registered containers with higher numbers.
    let mut containers: Vec<_> = head.containers.iter().chain(written.containers.clone()).collect();
    containers.sort_unstable_by_key(|(number, _)| *number);
    head.containers = ObjectSet::default();
    containers.into_iter().for_each(|(number, tag)| head.containers.push(number, tag));
    for application in &written.applications {
        if !head.applications.contains(application) {
            head.applications.push(*application);
        }
    }
    if written.placed.is_empty() {
        return Ok(());
    }
    let (objects, store) = (&repository.objects, head.series);
    let merged =
        if may_merge { smallest(&mut head.runs, written.placed.len()) } else { Vec::new() };
    let records = merged.iter().map(|run| run.records).sum::<u64>() + to_u64(written.placed.len());
    let mut writer = RunWriter::new(objects, store, RunUse::Shared, records)?;
    // Each run that is merged has buffers, and so have those of other nodes at the same time.
    let read_bytes = MERGED_READ_BYTES / to_u64(merged.len().max(1));
    let reader = |run: &RunRef| RunReader::new(objects, store, *run).reading(read_bytes);
    let readers = merged.iter().map(|run| Stream::new(reader(run)));
    let own = Stream::new(Placed(&written.placed));
    let mut all = merge(readers.chain([own]).collect());
    while let Some(record) = all.next()? {
        writer.push(record)?;
    }
    head.runs.push(writer.finish()?.run);
    Ok(())
}

/// Takes the runs out that are to be merged with one of so many records: the newest ones, while the
/// next older one is at most twice as large as those behind it together.
fn smallest(runs: &mut Vec<RunRef>, records: usize) -> Vec<RunRef> {
    if runs.len() < RUNS_MAX {
        return Vec::new();
    }
    let (mut sum, mut first) = (to_u64(records), runs.len());
    while first > 0 && runs[first - 1].records <= sum.saturating_mul(2) {
        first -= 1;
        sum += runs[first].records;
    }
    runs.split_off(first)
}
