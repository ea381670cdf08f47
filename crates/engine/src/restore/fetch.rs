//! Prefetches data for a restore in separate threads: distant storage responds slowly, but serves
//! many requests concurrently.

use std::sync::{Condvar, Mutex, PoisonError};

use silt_format::number::to_u64;
use silt_format::{Result, SEGMENT_BYTES, SegmentEntry};
use silt_repository::sync::lock;
use silt_repository::volume_reader::{ReadBuffers, placed};

use super::{Restore, part};

/// Bytes that a segment's chunks take as they are read: what they lie in, and what lies beside
/// them.
const SEGMENT_PARTS_BYTES: usize = 4 << 20;

/// How far the restore is, and how far the fetching.
pub(super) struct Turns {
    state: Mutex<FetchState>,
    changed: Condvar,
    /// Maximum number of segments to prefetch.
    ahead: usize,
}

#[derive(Default)]
struct FetchState {
    restored: u64,
    fetched: u64,
    ended: bool,
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
    /// Nothing is fetched yet; what is may take `parts_bytes`.
    pub(super) fn new(parts_bytes: usize) -> Self {
        let ahead = (parts_bytes / SEGMENT_PARTS_BYTES).max(1);
        Self { state: Mutex::default(), changed: Condvar::new(), ahead }
    }

    /// Number of prefetching threads: one per segment.
    pub(super) fn fetchers(&self) -> usize {
        self.ahead
    }

    pub(super) fn end_on_drop(&self) -> EndOnDrop<'_> {
        EndOnDrop(self)
    }

    /// The restore goes on at this segment.
    pub(super) fn restored(&self, next_segment: u64) {
        lock(&self.state).restored = next_segment;
        self.changed.notify_all();
    }
}

impl Restore<'_> {
    /// Fetches segment by segment until the restore ends. What can't be read is left to it.
    pub(super) fn fetch(&self) -> Result<()> {
        let mut buffers = ReadBuffers::default();
        while let Some((index, entry)) = self.next_to_fetch()? {
            let recipe = self.reader.recipe(index, &entry, &mut buffers)?;
            let span = self.reader.segment_span(index);
            let wanted = placed(&recipe).filter(|(chunk, range)| {
                !chunk.reference.is_zero() && self.clip(part(span, range)).is_some()
            });
            let wanted = wanted.map(|(chunk, _)| chunk.reference);
            self.reader.chunks().fetch(wanted, buffers.scratch());
        }
        Ok(())
    }

    /// The next segment to fetch, once the restore is near; `None` behind the last.
    fn next_to_fetch(&self) -> Result<Option<(u64, SegmentEntry)>> {
        let mut state = lock(&self.turns.state);
        loop {
            if state.ended {
                return Ok(None);
            }
            let from = state.fetched.max(state.restored);
            let end = self.range.offset + self.range.length;
            if from.saturating_mul(to_u64(SEGMENT_BYTES)) >= end {
                return Ok(None);
            }
            if from <= state.restored.saturating_add(to_u64(self.turns.ahead)) {
                state.fetched = u64::MAX;
                let found = self.reader.next_segment(from)?;
                let found = found.filter(|(index, _)| index * to_u64(SEGMENT_BYTES) < end);
                state.fetched = found.as_ref().map_or(u64::MAX, |(index, _)| index + 1);
                return Ok(found);
            }
            state = self.turns.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
