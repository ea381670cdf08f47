//! Writing the content of files on several threads.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::Entry;
use silt_format::{Error, Result};
use silt_repository::sync::lock;
use silt_repository::tree::TreeVolume;
use silt_tree::NewFile;

/// Maximum number of bytes that are read at a time.
const READ_BYTES: u64 = 1 << 20;

/// A new file whose content is to be written.
pub(super) struct Job {
    pub(super) file: NewFile,
    pub(super) entry: Entry,
}

/// A file whose content was written, or could not be.
pub(super) struct Filled {
    pub(super) file: NewFile,
    pub(super) bytes: u64,
    pub(super) result: Result<()>,
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
    volume: &'a TreeVolume,
    /// Number of threads. With 0, `push` writes the files itself.
    workers: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl<'a> Filling<'a> {
    pub(super) fn new(volume: &'a TreeVolume, workers: usize) -> Self {
        Self { volume, workers, state: Mutex::default(), changed: Condvar::new() }
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
        let mut buffer = Vec::new();
        let filled: Vec<_> = batch.into_iter().map(|job| self.fill(job, &mut buffer)).collect();
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
        let mut buffer = Vec::new();
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
                let filled = self.fill(job, &mut buffer);
                lock(&self.state).filled.push(filled);
                self.changed.notify_all();
            }
        }
    }

    fn fill(&self, job: Job, buffer: &mut Vec<u8>) -> Filled {
        let Job { file, entry } = job;
        let result = self.copy(&entry, &file, buffer);
        Filled { file, bytes: entry.metadata.size, result }
    }

    fn copy(&self, entry: &Entry, file: &NewFile, buffer: &mut Vec<u8>) -> Result<()> {
        let mut at = 0;
        for extent in &entry.extents {
            let end = at + extent.bytes;
            // A range that the backup could not read is a hole, and the entry is marked.
            while extent.address.is_some() && at < end {
                let wanted = (end - at).min(READ_BYTES);
                buffer.resize(to_usize(wanted), 0);
                let read = self.volume.read_at(entry, at, buffer)?;
                file.write_at(at, &buffer[..read])?;
                at += to_u64(read);
            }
            at = end;
        }
        Ok(())
    }
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
