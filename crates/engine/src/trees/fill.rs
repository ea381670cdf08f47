//! Comparing and writing the content of files on several threads.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, PoisonError};

use silt_chunking::is_zero;
use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, Extent, State as EntryState};
use silt_format::{Error, Result, SEGMENT_BYTES};
use silt_repository::env::Context;
use silt_repository::sync::lock;
use silt_repository::tree::TreeVolume;
use silt_tree::{NewFile, OpenFile, PresentFile};

use super::amend::Amender;

/// Maximum number of bytes that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// A file, and its entry in the snapshot.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) entry: Entry,
}

/// The work on a file.
pub(super) enum Task {
    /// Writes a new file.
    Write(NewFile),
    /// Writes a new file that takes the place of an existing one. Reads from the repository only
    /// the chunks that differ.
    Rewrite(NewFile, OpenFile),
    /// Compares an existing file, without reading from the repository.
    Compare(PresentFile),
}

/// The result of a job.
pub(super) enum Filled {
    /// A new file was written, or could not be.
    Written { file: NewFile, bytes: u64, result: Result<()> },
    /// An existing file has the content of the snapshot.
    Same { file: PresentFile, bytes: u64 },
    /// An existing file differs, or cannot be compared.
    Differs(PresentFile, Box<Entry>),
}

/// The buffers of a thread.
struct Buffers<'a> {
    bytes: Vec<u8>,
    amender: Amender<'a>,
}

#[derive(Default)]
struct State {
    batches: VecDeque<Vec<Job>>,
    filled: Vec<Filled>,
    /// Number of files that were passed to [`Filling::push`] and not yet returned by
    /// [`Filling::take`].
    running: usize,
    ended: bool,
    has_panicked: bool,
}

/// The queues to and from the threads that write files.
pub(super) struct Filling<'a> {
    context: &'a Context,
    volume: &'a TreeVolume,
    /// Number of threads. With 0, `push` writes the files itself.
    workers: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl<'a> Filling<'a> {
    pub(super) fn new(context: &'a Context, volume: &'a TreeVolume, workers: usize) -> Self {
        Self { context, volume, workers, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Passes files to the threads.
    pub(super) fn push(&self, batch: Vec<Job>) {
        let mut state = lock(&self.state);
        state.running += batch.len();
        if self.workers > 0 {
            state.batches.push_back(batch);
            self.changed.notify_all();
            return;
        }
        drop(state);
        let mut buffers = self.buffers();
        let filled: Vec<_> = batch.into_iter().map(|job| self.fill(job, &mut buffers)).collect();
        lock(&self.state).filled.extend(filled);
    }

    /// Waits until at most `running_max` files are not finished, and returns all finished ones.
    /// Fails if a thread has panicked.
    pub(super) fn take(&self, running_max: usize) -> Result<Vec<Filled>> {
        let mut state = lock(&self.state);
        while state.running - state.filled.len() > running_max && !state.has_panicked {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.has_panicked {
            return Err(Error::invalid("a thread that restores files panicked"));
        }
        state.running -= state.filled.len();
        Ok(std::mem::take(&mut state.filled))
    }

    /// Tells the threads to end once the queue is empty.
    pub(super) fn end(&self) {
        lock(&self.state).ended = true;
        self.changed.notify_all();
    }

    /// Runs a thread: writes files until [`end`](Self::end) was called and the queue is empty.
    pub(super) fn work(&self) {
        let _noted = NoteOnPanic(self);
        let mut buffers = self.buffers();
        loop {
            let mut state = lock(&self.state);
            let batch = loop {
                match state.batches.pop_front() {
                    Some(batch) => break batch,
                    None if state.ended => return,
                    None => {
                        state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            };
            drop(state);
            for job in batch {
                let filled = self.fill(job, &mut buffers);
                lock(&self.state).filled.push(filled);
                self.changed.notify_all();
            }
        }
    }

    fn buffers(&self) -> Buffers<'a> {
        Buffers { bytes: Vec::new(), amender: Amender::new(self.volume.content()) }
    }

    fn fill(&self, job: Job, buffers: &mut Buffers<'_>) -> Filled {
        let Job { task, entry } = job;
        let bytes = entry.metadata.size;
        match task {
            Task::Write(file) => {
                let result = self.copy(&entry, &file, &mut buffers.bytes);
                Filled::Written { file, bytes, result }
            }
            Task::Rewrite(file, old) => {
                let result = self.rewrite(&entry, &file, &old, buffers);
                Filled::Written { file, bytes, result }
            }
            // What cannot be compared is written again, and that reports the error.
            Task::Compare(file) => match self.is_same(&entry, file.file(), buffers) {
                Ok(true) if file.is_current() => Filled::Same { file, bytes },
                _ => Filled::Differs(file, Box::new(entry)),
            },
        }
    }

    fn copy(&self, entry: &Entry, file: &NewFile, buffer: &mut Vec<u8>) -> Result<()> {
        // A range that the backup could not read is a hole, and the entry is marked.
        for (_, place) in placed(entry).filter(|(extent, _)| extent.address.is_some()) {
            let mut at = place.start;
            while at < place.end {
                self.context.check_interrupted()?;
                let wanted = (place.end - at).min(READ_BYTES);
                buffer.resize(to_usize(wanted), 0);
                let read = self.volume.read_at(entry, at, buffer)?;
                file.write_at(at, &buffer[..read])?;
                at += to_u64(read);
            }
        }
        Ok(())
    }

    /// Writes a new file from an existing one and the chunks that differ. Verifies each byte that
    /// the new file gets, as the existing one may change meanwhile.
    fn rewrite(
        &self,
        entry: &Entry,
        file: &NewFile,
        old: &OpenFile,
        Buffers { bytes: buffer, amender }: &mut Buffers<'_>,
    ) -> Result<()> {
        let holes = placed(entry).filter(|(extent, _)| extent.address.is_none());
        let is_shared = file.share_with(old, &mut holes.map(|(_, place)| place))?;
        for (address, place) in pieces(entry) {
            self.context.check_interrupted()?;
            buffer.clear();
            buffer.resize(to_usize(place.end - place.start), 0);
            // What cannot be read is taken for zeros, and thereby differs.
            if is_shared {
                file.read_at(place.start, buffer)?;
            } else {
                let _ = old.read_at(place.start, buffer);
            }
            let differing = amender.amend(address, buffer)?;
            if !is_shared {
                file.write_at(place.start, buffer)?;
                continue;
            }
            for range in differing {
                file.write_at(place.start + to_u64(range.start), &buffer[range])?;
            }
        }
        Ok(())
    }

    /// Returns whether an existing file of the same size has the content of an entry.
    fn is_same(
        &self,
        entry: &Entry,
        file: &OpenFile,
        Buffers { bytes: buffer, amender }: &mut Buffers<'_>,
    ) -> Result<bool> {
        if entry.state == EntryState::Unreadable {
            return Ok(false);
        }
        for (_, hole) in placed(entry).filter(|(extent, _)| extent.address.is_none()) {
            if !is_empty(file, hole, buffer)? {
                return Ok(false);
            }
        }
        for (address, place) in pieces(entry) {
            self.context.check_interrupted()?;
            buffer.resize(to_usize(place.end - place.start), 0);
            if file.read_at(place.start, buffer)? < buffer.len()
                || !amender.has_at(address, buffer)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns the extents of a file with the ranges of the file that they are.
fn placed(entry: &Entry) -> impl Iterator<Item = (&Extent, Range<u64>)> {
    let mut end = 0;
    entry.extents.iter().map(move |extent| {
        let start = end;
        end = start + extent.bytes;
        (extent, start..end)
    })
}

/// Returns the data of a file in pieces that are each in one segment, so that no chunk is in two of
/// them: the address of each, and its range in the file.
fn pieces(entry: &Entry) -> impl Iterator<Item = (u64, Range<u64>)> {
    let data = placed(entry).filter_map(|(extent, place)| Some((extent.address?, place)));
    data.flat_map(|(address, place)| {
        let segment_bytes = to_u64(SEGMENT_BYTES);
        let mut at = place.start;
        std::iter::from_fn(move || {
            let address = address + (at - place.start);
            let bytes = (segment_bytes - address % segment_bytes).min(place.end - at);
            at += bytes;
            (bytes > 0).then(|| (address, at - bytes..at))
        })
    })
}

/// Returns whether a range of a file is zeros. Does not read its holes.
fn is_empty(file: &OpenFile, range: Range<u64>, buffer: &mut Vec<u8>) -> Result<bool> {
    let mut at = range.start;
    while let Some(data) = file.next_data(at, range.end)? {
        let wanted = (data.end - data.start).min(READ_BYTES);
        buffer.resize(to_usize(wanted), 0);
        if file.read_at(data.start, buffer)? < buffer.len() || !is_zero(buffer) {
            return Ok(false);
        }
        at = data.start + wanted;
    }
    Ok(true)
}

/// Wakes the waiting thread if a writing thread panics.
struct NoteOnPanic<'f, 'a>(&'f Filling<'a>);

impl Drop for NoteOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            lock(&self.0.state).has_panicked = true;
            self.0.changed.notify_all();
        }
    }
}
