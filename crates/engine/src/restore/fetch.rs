//! Prefetches data for a restore in separate threads: distant storage responds slowly, but serves
//! many requests concurrently.
//!
//! Segments are planned far ahead, which opens the containers that they need; parts of containers
//! are read as memory allows, and are held until their segment is restored.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Condvar, Mutex, PoisonError};

use silt_format::number::to_u64;
use silt_format::{Result, SEGMENT_BYTES, SegmentEntry};
use silt_repository::sync::lock;
use silt_repository::volume_reader::{ReadBuffers, placed};
use silt_storage::ahead::{HeldPart, PartPlace, WantedParts};

use super::{Restore, part};

/// Number of prefetching threads, each of which mostly waits for an answer.
pub(super) const FETCHERS: usize = 24;
/// Most segments that are planned or fetched.
const PLANNED_MAX: usize = 96;
/// Segments that are planned before anything is read, so that it is known what is needed of a part.
const PLANNED_FIRST: usize = 12;
/// Parts that are read at once from a storage that is near: as many keep a few processors busy, and
/// each needs a buffer of its connection.
const READ_NEAR_MAX: usize = 8;
/// A storage is near if more than a quarter of the parts were read in less time.
const SOON_NS: u64 = 8_000_000;

/// How far the restore is, and how far the fetching.
pub(super) struct Turns {
    state: Mutex<FetchState>,
    changed: Condvar,
    /// Memory for parts.
    parts_bytes: u64,
}

#[derive(Default)]
struct FetchState {
    /// The restore goes on here.
    next: u64,
    /// Planning goes on here.
    planned: u64,
    /// What is planned and not yet restored.
    segments: BTreeMap<u64, PlannedSegment>,
    /// For how many segments each part is held or being read.
    users: HashMap<PartPlace, usize>,
    /// Memory of these parts.
    held_bytes: u64,
    /// How many parts are being read.
    reading: usize,
    /// How many parts were read, and how many of them soon.
    read: u64,
    read_soon: u64,
    ended: bool,
}

/// A segment that is fetched.
#[derive(Default)]
struct PlannedSegment {
    unread: VecDeque<PartPlace>,
    /// What is read or being read.
    used: Vec<PartPlace>,
    held: Vec<HeldPart>,
    /// What other segments have read of it is kept.
    wanted: Option<WantedParts>,
}

/// What a prefetching thread does next.
enum Task {
    Plan(u64, SegmentEntry),
    Read(u64, PartPlace),
}

impl FetchState {
    /// The next part to read, of the segment that is restored first, if there is memory for it.
    ///
    /// Held are at most three quarters of the memory for parts; where answers come soon, a third,
    /// so that more of what later segments need again is kept.
    fn next_part(&mut self, parts_bytes: u64) -> Option<(u64, PartPlace)> {
        // Some are read from a local cache.
        let is_near = self.read_soon > self.read / 4;
        let held_bytes_max = if is_near { parts_bytes / 3 } else { parts_bytes / 4 * 3 };
        if is_near && self.reading >= READ_NEAR_MAX {
            return None;
        }
        let mut segments = self.segments.iter_mut();
        let (index, segment) = segments.find(|(_, segment)| !segment.unread.is_empty())?;
        let place = segment.unread.front()?;
        let users = self.users.get(place).copied().unwrap_or(0);
        let room = if users == 0 { place.room() } else { 0 };
        if self.held_bytes > 0 && self.held_bytes + room > held_bytes_max {
            return None;
        }
        let place = segment.unread.pop_front()?;
        segment.used.push(place.clone());
        self.users.insert(place.clone(), users + 1);
        self.held_bytes += room;
        self.reading += 1;
        Some((*index, place))
    }

    /// Lets go of a segment's parts.
    fn forget(&mut self, index: u64) {
        let used = self.segments.remove(&index).map_or_else(Vec::new, |segment| segment.used);
        for place in used {
            let Some(users) = self.users.get_mut(&place) else { continue };
            *users -= 1;
            if *users == 0 {
                self.held_bytes -= place.room();
                self.users.remove(&place);
            }
        }
    }
}

/// Ends the prefetching when dropped; each restoring thread holds one.
pub(super) struct EndOnDrop<'t>(&'t Turns);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
        self.0.changed.notify_all();
    }
}

impl Turns {
    /// Nothing is fetched yet; readers keep `parts_bytes` of parts.
    pub(super) fn new(parts_bytes: usize, first_segment: u64) -> Self {
        let state = FetchState { next: first_segment, ..FetchState::default() };
        let parts_bytes = to_u64(parts_bytes);
        Self { state: Mutex::new(state), changed: Condvar::new(), parts_bytes }
    }

    pub(super) fn end_on_drop(&self) -> EndOnDrop<'_> {
        EndOnDrop(self)
    }

    /// The next segment that somebody will begin to restore.
    pub(super) fn goes_on_at(&self, next_segment: u64) {
        lock(&self.state).next = next_segment;
        self.changed.notify_one();
    }

    /// A segment is restored.
    pub(super) fn restored(&self, segment: u64) {
        lock(&self.state).forget(segment);
        self.changed.notify_one();
    }
}

impl Restore<'_> {
    /// Plans and reads until the restore ends. What can't be read is left to it.
    pub(super) fn fetch(&self) -> Result<()> {
        let mut buffers = ReadBuffers::default();
        while let Some(task) = self.next_task()? {
            match task {
                Task::Plan(index, entry) => {
                    let places = self.places(index, &entry, &mut buffers).unwrap_or_default();
                    let wanted = self.reader.chunks().want(&places);
                    if let Some(segment) = lock(&self.turns.state).segments.get_mut(&index) {
                        segment.unread = places.into();
                        segment.wanted = Some(wanted);
                    }
                }
                Task::Read(index, place) => {
                    let env = &self.context.env;
                    let begun_ns = env.now_ns();
                    let held = self.reader.chunks().hold(&place);
                    let took_ns = begun_ns.abs_diff(env.now_ns());
                    let mut state = lock(&self.turns.state);
                    state.reading -= 1;
                    if held.as_ref().is_some_and(|held| held.was_read) {
                        state.read += 1;
                        state.read_soon += u64::from(took_ns < SOON_NS);
                    }
                    if let Some(segment) = state.segments.get_mut(&index) {
                        segment.held.extend(held);
                    }
                }
            }
        }
        Ok(())
    }

    /// The parts of containers that a segment needs.
    fn places(
        &self,
        index: u64,
        entry: &SegmentEntry,
        buffers: &mut ReadBuffers,
    ) -> Result<Vec<PartPlace>> {
        let recipe = self.reader.recipe(index, entry, buffers)?;
        let span = self.reader.segment_span(index);
        let wanted = placed(&recipe).filter(|(chunk, range)| {
            !chunk.reference.is_zero() && self.clip(part(span, range)).is_some()
        });
        let wanted = wanted.map(|(chunk, _)| chunk.reference);
        Ok(self.reader.chunks().places(wanted, buffers.scratch()))
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
        if let Some((index, place)) = state.next_part(self.turns.parts_bytes) {
            return Ok(Some(Task::Read(index, place)));
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
            state.segments.insert(index, PlannedSegment::default());
        }
        Ok(found)
    }
}
