//! Workers that scan segments and seal frames, and the threads that upload containers.
//!
//! One thread, the committer, owns all decisions: it takes scanned segments in the volume's order, so
//! what is stored does not depend on how the workers were scheduled. Every queue is bounded: segments by
//! the number of buffers, frames and uploads by the limits below.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use silt_format::number::to_u64;
use silt_format::{BlockWriter, Error, ObjectKind, Result, SEGMENT_BYTES, Sealer};
use silt_source::VolumeSource;
use silt_storage::AlignedBuffer;

use super::feed::{Claim, Feed, read_or_mark};
use super::scan::{Outcome, ScanBuffers, Scanned, Scanner, source_error};
use super::session::jobs;
use crate::budget::Budget;
use crate::map::lock;
use crate::objects::Objects;

/// Most frames that are being sealed at once.
pub(crate) const FRAMES_IN_FLIGHT: usize = 8;
/// Most claims that are ahead of the committer.
const CLAIMS_AHEAD: u64 = 256;

/// A frame to compress and seal.
pub(crate) struct FrameJob {
    pub(crate) ticket: u64,
    pub(crate) number: u16,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) raw: Vec<u8>,
}

/// A finished container on its way to storage.
pub(crate) struct Upload {
    pub(crate) name: String,
    pub(crate) number: u32,
    /// Header and frames.
    pub(crate) body: AlignedBuffer,
    /// Directory and footer.
    pub(crate) end: Vec<u8>,
}

/// A container's buffer, lent to the storage while it is being sent.
struct Lent(Arc<AlignedBuffer>);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// How many threads do what.
#[derive(Clone, Copy)]
pub(crate) struct Threads {
    /// Those that scan and seal.
    pub(crate) workers: usize,
    /// Those that upload: so many containers are on their way at once, and one more is being filled.
    pub(crate) uploads: usize,
}

impl Threads {
    /// As many as are asked for, the storage makes use of, and the memory allows.
    pub(crate) fn new(objects: &Objects, budget: Budget, wanted: usize) -> Self {
        Self {
            workers: budget.workers(jobs(wanted)),
            uploads: budget.uploads(objects.storage.uploads()),
        }
    }
}

#[derive(Default)]
struct State {
    buffers: Vec<Vec<u8>>,
    frames: VecDeque<FrameJob>,
    sealed: HashMap<u64, Vec<u8>>,
    /// Buffers of frames, raw and sealed, that nobody uses.
    spare: Vec<Vec<u8>>,
    /// Buffers of containers that nobody uses.
    spare_bodies: Vec<AlignedBuffer>,
    outcomes: HashMap<u64, Outcome>,
    claimed: u64,
    committed: u64,
    ended: bool,
    uploads: VecDeque<Upload>,
    uploading: usize,
    uploaded: Vec<u32>,
    failure: Option<Error>,
    stop: bool,
}

enum Task {
    Seal(FrameJob),
    Scan(Vec<u8>),
    Exit,
}

/// The volume that is scanned.
struct Volume<'a> {
    feed: Mutex<(Feed<'a>, u64)>,
    source: &'a dyn VolumeSource,
    scanner: &'a Scanner,
}

/// What the threads of one volume's backup share.
pub(crate) struct Pipeline<'a> {
    state: Mutex<State>,
    changed: Condvar,
    /// None where only what is handed in is packed.
    volume: Option<Volume<'a>>,
    objects: &'a Objects,
    zstd_level: i32,
    threads: Threads,
}

impl<'a> Pipeline<'a> {
    pub(crate) fn new(
        feed: Feed<'a>,
        source: &'a dyn VolumeSource,
        scanner: &'a Scanner,
        objects: &'a Objects,
        zstd_level: i32,
        threads: Threads,
        buffers: usize,
    ) -> Self {
        let buffers = (0..buffers).map(|_| Vec::new()).collect();
        let state = State { buffers, ..State::default() };
        let volume = Some(Volume { feed: Mutex::new((feed, 0)), source, scanner });
        Self::with(state, volume, objects, zstd_level, threads)
    }

    /// A pipeline that scans nothing, and packs what it is given.
    pub(crate) fn of_packing(objects: &'a Objects, zstd_level: i32, threads: Threads) -> Self {
        let state = State { ended: true, ..State::default() };
        Self::with(state, None, objects, zstd_level, threads)
    }

    fn with(
        state: State,
        volume: Option<Volume<'a>>,
        objects: &'a Objects,
        zstd_level: i32,
        threads: Threads,
    ) -> Self {
        let (state, changed) = (Mutex::new(state), Condvar::new());
        Self { state, changed, volume, objects, zstd_level, threads }
    }

    /// Runs `commit` with the threads beside it, and ends them when it returns.
    pub(crate) fn run<T>(&self, commit: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        std::thread::scope(|scope| {
            for _ in 0..self.threads.workers.max(1) {
                scope.spawn(|| self.fail_on_error(self.work()));
            }
            for _ in 0..self.threads.uploads.max(1) {
                scope.spawn(|| self.fail_on_error(self.upload()));
            }
            let _stop = StopOnDrop(self);
            commit(self)
        })
    }

    /// The volume's size, once its end was reached.
    pub(crate) fn volume_bytes(&self) -> u64 {
        self.volume.as_ref().map_or(0, |volume| lock(&volume.feed).0.bytes)
    }

    /// The outcome of the next claim in order, or `None` at the volume's end.
    pub(crate) fn next(&self) -> Result<Option<Outcome>> {
        let mut state = self.state();
        loop {
            check(&mut state)?;
            let at = state.committed;
            if let Some(outcome) = state.outcomes.remove(&at) {
                state.committed += 1;
                self.changed.notify_all();
                return Ok(Some(outcome));
            }
            if state.ended && state.committed == state.claimed {
                return Ok(None);
            }
            state = self.wait(state);
        }
    }

    /// Gives back a segment's buffer.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        self.state().buffers.push(buffer);
        self.changed.notify_all();
    }

    /// A frame buffer to fill.
    pub(crate) fn frame_buffer(&self) -> Vec<u8> {
        self.state().spare.pop().unwrap_or_default()
    }

    /// Gives back a frame's buffer.
    pub(crate) fn recycle_frame(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        self.state().spare.push(buffer);
    }

    /// A container's buffer to fill, empty.
    pub(crate) fn body_buffer(&self, capacity: usize) -> AlignedBuffer {
        let spare = self.state().spare_bodies.pop();
        spare.unwrap_or_else(|| AlignedBuffer::with_capacity(capacity))
    }

    /// Hands a frame to the workers.
    pub(crate) fn seal(&self, job: FrameJob) {
        self.state().frames.push_back(job);
        self.changed.notify_all();
    }

    /// The sealed frame of a ticket; waits for it.
    pub(crate) fn sealed(&self, ticket: u64) -> Result<Vec<u8>> {
        let mut state = self.state();
        loop {
            check(&mut state)?;
            if let Some(sealed) = state.sealed.remove(&ticket) {
                return Ok(sealed);
            }
            state = self.wait(state);
        }
    }

    /// Hands a container to the upload threads; waits while all of them are busy.
    pub(crate) fn submit(&self, upload: Upload) -> Result<()> {
        let mut state = self.state();
        while state.uploads.len() + state.uploading >= self.threads.uploads.max(1) {
            check(&mut state)?;
            state = self.wait(state);
        }
        state.uploads.push_back(upload);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until every container handed over is durable; the answer is their numbers.
    pub(crate) fn drain(&self) -> Result<Vec<u32>> {
        let mut state = self.state();
        while !state.uploads.is_empty() || state.uploading > 0 {
            check(&mut state)?;
            state = self.wait(state);
        }
        check(&mut state)?;
        Ok(std::mem::take(&mut state.uploaded))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn fail_on_error(&self, result: Result<()>) {
        if let Err(error) = result {
            let mut state = self.state();
            state.failure.get_or_insert(error);
            state.stop = true;
            self.changed.notify_all();
        }
    }

    fn task(&self) -> Task {
        let mut state = self.state();
        loop {
            if state.stop {
                return Task::Exit;
            }
            // Frames first: the committer may be waiting for them, never for a claim not yet made.
            if let Some(job) = state.frames.pop_front() {
                return Task::Seal(job);
            }
            let ahead = state.claimed - state.committed;
            if !state.ended
                && ahead < CLAIMS_AHEAD
                && let Some(buffer) = state.buffers.pop()
            {
                state.claimed += 1;
                return Task::Scan(buffer);
            }
            state = self.wait(state);
        }
    }

    fn work(&self) -> Result<()> {
        let mut writer = BlockWriter::new(self.zstd_level)?;
        let mut buffers = ScanBuffers::new()?;
        loop {
            match self.task() {
                Task::Exit => return Ok(()),
                Task::Seal(mut job) => {
                    let mut sealed = self.frame_buffer();
                    let position = u64::from(job.number);
                    writer.append(&job.sealer, position, &job.raw, &mut sealed);
                    job.raw.clear();
                    let mut state = self.state();
                    state.sealed.insert(job.ticket, sealed);
                    state.spare.push(job.raw);
                    self.changed.notify_all();
                }
                Task::Scan(buffer) => self.scan(buffer, &mut buffers)?,
            }
        }
    }

    fn scan(&self, mut buffer: Vec<u8>, buffers: &mut ScanBuffers) -> Result<()> {
        let Some(volume) = &self.volume else { return Ok(()) };
        let (order, claim) = {
            let mut feed = lock(&volume.feed);
            let claim = feed.0.claim(&mut buffer)?;
            let order = feed.1;
            feed.1 += u64::from(!matches!(claim, Claim::End));
            (order, claim)
        };
        let (mut unreadable, mut warnings) = (Vec::new(), Vec::new());
        let (scanned, buffer) = match claim {
            Claim::End => {
                let mut state = self.state();
                state.ended = true;
                state.claimed -= 1;
                state.buffers.push(buffer);
                self.changed.notify_all();
                return Ok(());
            }
            Claim::Zeros { segments, bytes } => (Scanned::Zeros { segments, bytes }, Some(buffer)),
            Claim::Clean { first, segments, bytes } => {
                (Scanned::Clean { first, segments, bytes }, Some(buffer))
            }
            Claim::Segment { index, bytes, filled } => {
                let offset = index * to_u64(SEGMENT_BYTES);
                if !filled {
                    buffer.resize(bytes, 0);
                    let spans = &mut unreadable;
                    if let Some(error) = read_or_mark(volume.source, offset, &mut buffer, spans) {
                        warnings.push(error.to_string());
                    }
                }
                volume
                    .scanner
                    .scan(index, buffer, buffers, &mut warnings)
                    .map_err(|error| source_error(error, offset))?
            }
        };
        let mut state = self.state();
        state.outcomes.insert(order, Outcome { scanned, unreadable, warnings });
        state.buffers.extend(buffer);
        self.changed.notify_all();
        Ok(())
    }

    fn upload(&self) -> Result<()> {
        loop {
            let upload = {
                let mut state = self.state();
                loop {
                    if state.stop {
                        return Ok(());
                    }
                    if let Some(upload) = state.uploads.pop_front() {
                        state.uploading += 1;
                        break upload;
                    }
                    state = self.wait(state);
                }
            };
            self.changed.notify_all();
            let Upload { name, number, body, end } = upload;
            let body = Arc::new(body);
            let pieces = [Bytes::from_owner(Lent(Arc::clone(&body))), end.into()];
            self.objects.put_numbered(&name, ObjectKind::Container, &pieces)?;
            drop(pieces);
            // A buffer that is still being sent, after a lost answer, is not used again.
            let spare = Arc::try_unwrap(body).ok().map(|mut body| {
                body.clear();
                body
            });
            let mut state = self.state();
            state.spare_bodies.extend(spare);
            state.uploading -= 1;
            state.uploaded.push(number);
            self.changed.notify_all();
        }
    }
}

/// Ends the threads whichever way the committer ends.
struct StopOnDrop<'p, 'a>(&'p Pipeline<'a>);

impl Drop for StopOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.state().stop = true;
        self.0.changed.notify_all();
    }
}

fn check(state: &mut State) -> Result<()> {
    state.failure.take().map_or(Ok(()), Err)
}
