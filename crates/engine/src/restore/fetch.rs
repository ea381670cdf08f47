//! Plans what a restore needs in separate threads, and reads it before: distant storage responds
//! slowly, but serves many requests concurrently.
//!
//! Segments are planned far ahead. So it is known which frames are needed together, which opens
//! their containers, and which chunks of a frame are needed again later.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::Scope;

use silt_format::number::to_u64;
use silt_format::{Result, SEGMENT_BYTES, SegmentEntry};
use silt_repository::jobs::jobs;
use silt_repository::sync::lock;
use silt_repository::volume_reader::{ReadBuffers, placed};
use silt_storage::planned::Run;

use super::{Restore, part};

/// Number of threads that plan and read from storage that is far away, each of which mostly waits
/// for an answer.
const FETCHERS_FAR: usize = 24;
const FETCHERS_NEAR_MIN: usize = 4;
/// Storage that notes no answers is far away if planning a segment takes longer and asks it for
/// something, until what was read tells.
const SOON_NS: u64 = 20_000_000;
/// Most segments that are planned.
const PLANNED_MAX: usize = 256;
/// Segments that are planned before anything is read, so that it is known what is needed together.
const PLANNED_FIRST: usize = 24;

/// Number of threads that plan and read from near: a few can wait for the storage's disks. More
/// would only take memory.
pub(super) fn fetchers_near() -> usize {
    (jobs(0) / 2).max(FETCHERS_NEAR_MIN)
}

/// How far the restore is, and how far the planning.
pub(super) struct Turns {
    state: Mutex<FetchState>,
    changed: Condvar,
    /// Whether there are as many threads as for storage that is far away.
    are_many: AtomicBool,
}

#[derive(Default)]
struct FetchState {
    /// The restore goes on here.
    next: u64,
    /// Planning goes on here.
    planned: u64,
    /// The segments that are planned or being planned, and not yet restored.
    segments: BTreeSet<u64>,
    ended: bool,
}

/// What a thread does next.
enum Task {
    Plan(u64, SegmentEntry),
    Read(Run),
}

/// Ends the planning when dropped; each restoring thread holds one.
pub(super) struct EndOnDrop<'t>(&'t Turns);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

impl Turns {
    /// Nothing is planned yet.
    pub(super) fn new(first_segment: u64) -> Self {
        let state = FetchState { next: first_segment, ..FetchState::default() };
        Self { state: Mutex::new(state), changed: Condvar::new(), are_many: AtomicBool::default() }
    }

    pub(super) fn end_on_drop(&self) -> EndOnDrop<'_> {
        EndOnDrop(self)
    }

    /// The next segment that somebody will begin to restore.
    pub(super) fn goes_on_at(&self, next_segment: u64) {
        lock(&self.state).next = next_segment;
        self.changed.notify_one();
    }
}

impl Restore<'_> {
    /// Plans and reads until the restore ends. What can't be read is left to it.
    pub(super) fn fetch<'s>(&'s self, scope: &'s Scope<'s, '_>) -> Result<()> {
        let (mut buffers, chunks) = (ReadBuffers::default(), self.reader.chunks());
        let storage = &chunks.objects().storage;
        while let Some(task) = self.next_task()? {
            let mut is_late = false;
            match task {
                Task::Plan(index, entry) => {
                    let (begun_ns, asked) = (self.context.env.now_ns(), storage.usage());
                    // The restoring thread meets the error, too.
                    drop(self.plan(index, &entry, &mut buffers));
                    is_late = begun_ns.abs_diff(self.context.env.now_ns()) > SOON_NS
                        && (asked.is_none() || asked != storage.usage());
                }
                Task::Read(run) => chunks.read(run),
            }
            let is_far = chunks.is_far().unwrap_or(is_late);
            if is_far && !self.turns.are_many.swap(true, Ordering::Relaxed) {
                for _ in fetchers_near()..FETCHERS_FAR {
                    scope.spawn(move || self.fetch(scope).ok());
                }
            }
        }
        Ok(())
    }

    /// Plans the chunks that a segment needs.
    fn plan(&self, index: u64, entry: &SegmentEntry, buffers: &mut ReadBuffers) -> Result<()> {
        let recipe = self.reader.recipe(index, entry, buffers)?;
        let span = self.reader.segment_span(index);
        let wanted = placed(&recipe).filter(|(chunk, range)| {
            !chunk.reference.is_zero() && self.clip(part(span, range)).is_some()
        });
        self.reader.chunks().plan(index, wanted.map(|(chunk, _)| chunk.reference));
        if !lock(&self.turns.state).segments.contains(&index) {
            // It was restored meanwhile.
            self.reader.chunks().restored(index);
        }
        Ok(())
    }

    /// A segment is restored.
    pub(super) fn restored(&self, index: u64) {
        // First here, so that who plans it now finds that it is over.
        lock(&self.turns.state).segments.remove(&index);
        self.reader.chunks().restored(index);
        // Who is about to wait has looked before.
        drop(lock(&self.turns.state));
        self.turns.changed.notify_one();
    }

    /// What to do next, once the restore is near enough; `None` when it has ended.
    ///
    /// Whoever finds something wakes one more, so that each change wakes one thread in vain and not
    /// all of them.
    fn next_task(&self) -> Result<Option<Task>> {
        let mut state = lock(&self.turns.state);
        while !state.ended {
            if let Some(task) = self.find_task(&mut state)? {
                self.turns.changed.notify_one();
                return Ok(Some(task));
            }
            state = self.turns.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(None)
    }

    fn find_task(&self, state: &mut FetchState) -> Result<Option<Task>> {
        if let Some((index, entry)) = self.next_segment(state, PLANNED_FIRST)? {
            return Ok(Some(Task::Plan(index, entry)));
        }
        if let Some(run) = self.reader.chunks().next_run() {
            return Ok(Some(Task::Read(run)));
        }
        let next = self.next_segment(state, PLANNED_MAX)?;
        Ok(next.map(|(index, entry)| Task::Plan(index, entry)))
    }

    /// The next segment to plan, if the restore needs it soon and fewer than `planned_max` are
    /// planned.
    fn next_segment(
        &self,
        state: &mut FetchState,
        planned_max: usize,
    ) -> Result<Option<(u64, SegmentEntry)>> {
        let from = state.planned.max(state.next);
        let end = self.range.offset + self.range.length;
        let is_over = |index: u64| index.saturating_mul(to_u64(SEGMENT_BYTES)) >= end;
        if is_over(from) || state.segments.len() >= planned_max {
            return Ok(None);
        }
        // Nobody goes on if this fails.
        state.planned = u64::MAX;
        let found = self.reader.next_segment(from)?.filter(|(index, _)| !is_over(*index));
        if let Some((index, _)) = found {
            state.planned = index + 1;
            state.segments.insert(index);
        }
        Ok(found)
    }
}
