//! Workers that scan segments and seal frames. Of a tree, one worker at a time reads.
//!
//! One thread, the committer, makes all decisions. It takes scanned segments in the volume's order,
//! so the stored objects do not depend on the scheduling of the workers. Every queue is bounded:
//! segments by the number of buffers, frames by the limits below. Without workers, the committer
//! does a task itself whenever it would have to wait.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use silt_format::number::to_u64;
use silt_format::{BlockWriter, Compression, Error, Result, SEGMENT_BYTES, Sealer};
use silt_repository::buffers::Buffers;
use silt_repository::event::Warning;
use silt_repository::sync::lock;
use silt_source::VolumeSource;

use super::feed::{Claim, Feed, SegmentClaim, read_or_mark};
use super::recorded::RecordedTree;
use super::scan::{Outcome, ScanBuffers, Scanned, Scanner, SegmentDraft, source_error};
use super::tree::{Cutter, OldSegments, TreeClaim, TreeFeed};

/// Maximum number of frames that are being sealed at once.
pub(crate) const FRAMES_IN_FLIGHT: usize = 8;
/// Maximum number of large frames that are being sealed at once; smaller ones together are as much.
pub(crate) const LARGE_FRAMES_IN_FLIGHT: usize = 2;
/// Buffers of more bytes are kept for large frames.
const SMALL_BUFFER_BYTES: usize = 512 << 10;
/// Maximum number of claims ahead of the committer.
const CLAIMS_AHEAD: u64 = 256;

/// A frame to compress and seal.
pub(crate) struct FrameJob {
    pub(crate) ticket: u64,
    pub(crate) number: u16,
    pub(crate) sealer: Arc<Sealer>,
    pub(crate) raw: Vec<u8>,
    /// The same bytes as a block that is compressed already.
    pub(crate) packed: Option<Vec<u8>>,
}

#[derive(Default)]
struct PipelineState {
    buffers: Vec<Vec<u8>>,
    frames: VecDeque<FrameJob>,
    /// The ticket of the next frame; several writers of containers share a pipeline.
    next_ticket: u64,
    sealed: HashMap<u64, Vec<u8>>,
    outcomes: HashMap<u64, Outcome>,
    claimed: u64,
    committed: u64,
    /// Whether a worker is reading a part of a tree. Others seal frames meanwhile instead of
    /// waiting for the next part.
    reading: bool,
    /// Whether a claim includes reading, so that one worker at a time can claim.
    reads_alone: bool,
    ended: bool,
    failure: Option<Error>,
    stop: bool,
}

enum Task {
    Seal(FrameJob),
    Scan(Vec<u8>),
}

impl PipelineState {
    /// Returns a task that can be done now.
    fn next_task(&mut self) -> Option<Task> {
        // Frames first: the committer may be waiting for them, never for a claim not yet made.
        if let Some(job) = self.frames.pop_front() {
            return Some(Task::Seal(job));
        }
        if self.ended || self.reading || self.claimed - self.committed >= CLAIMS_AHEAD {
            return None;
        }
        let buffer = self.buffers.pop()?;
        self.reading = self.reads_alone;
        self.claimed += 1;
        Some(Task::Scan(buffer))
    }
}

/// The volume that is scanned.
enum Scan<'a> {
    Disk(Disk<'a>),
    Tree(Box<Tree<'a>>),
    Recorded(Box<RecordedTree<'a>>),
}

/// A file tree that is scanned.
struct Tree<'a> {
    feed: Mutex<(TreeFeed<'a>, u64)>,
    old: &'a OldSegments,
    cutter: Cutter,
    scanner: &'a Scanner,
}

/// A disk that is scanned.
struct Disk<'a> {
    feed: Mutex<(Feed<'a>, u64)>,
    source: &'a dyn VolumeSource,
    scanner: &'a Scanner,
}

/// The result of a worker's step.
enum Step {
    /// There is no claim left.
    End(Vec<u8>),
    /// A claim's place in the order, its outcome, and the buffer unless a draft keeps it.
    Done(u64, Outcome, Option<Vec<u8>>),
}

/// A part of a tree that was read.
struct Claimed {
    order: u64,
    claim: TreeClaim,
    warnings: Vec<Warning>,
}

impl Tree<'_> {
    /// Claims the next part and reads it into `buffer`; `None` at the end.
    fn claim(&self, buffer: &mut Vec<u8>) -> Result<Option<Claimed>> {
        let mut feed = lock(&self.feed);
        let Some(claim) = feed.0.claim(buffer)? else { return Ok(None) };
        let order = feed.1;
        feed.1 += 1;
        Ok(Some(Claimed { order, claim, warnings: feed.0.take_warnings() }))
    }

    /// Scans a part that was read.
    fn scan(&self, claimed: Claimed, buffer: Vec<u8>, buffers: &mut ScanBuffers) -> Result<Step> {
        let Claimed { order, claim, warnings } = claimed;
        let parts = (&self.cutter, self.old);
        let (scanned, buffer) = self.scanner.scan_tree(claim, buffer, parts, buffers)?;
        let outcome = Outcome { warnings, ..Outcome::of(scanned) };
        Ok(Step::Done(order, outcome, buffer))
    }
}

impl Disk<'_> {
    /// Claims the next part and scans it.
    fn step(&self, mut buffer: Vec<u8>, buffers: &mut ScanBuffers) -> Result<Step> {
        let (order, claim) = {
            let mut feed = lock(&self.feed);
            let claim = feed.0.claim(&mut buffer)?;
            let order = feed.1;
            feed.1 += u64::from(!matches!(claim, Claim::End));
            (order, claim)
        };
        let (outcome, buffer) = match claim {
            Claim::End => return Ok(Step::End(buffer)),
            Claim::Zeros { segments, bytes } => {
                (Outcome::of(Scanned::Zeros { segments, bytes }), Some(buffer))
            }
            Claim::Clean { first, segments, bytes } => {
                (Outcome::of(Scanned::Clean { first, segments, bytes }), Some(buffer))
            }
            Claim::Segment(segment) => self.scan(segment, buffer, buffers)?,
        };
        Ok(Step::Done(order, outcome, buffer))
    }

    /// Reads and scans a segment, or as much of it as a record leaves; hands `buffer` back unless a
    /// draft keeps it.
    fn scan(
        &self,
        segment: SegmentClaim,
        mut buffer: Vec<u8>,
        buffers: &mut ScanBuffers,
    ) -> Result<(Outcome, Option<Vec<u8>>)> {
        let SegmentClaim { index, bytes, filled, recorded } = segment;
        let offset = index * to_u64(SEGMENT_BYTES);
        let (mut unreadable, mut warnings) = (Vec::new(), Vec::new());
        buffer.resize(bytes, 0);
        if let Some(recorded) = recorded {
            if recorded.is_zero() {
                let scanned = Scanned::Zeros { segments: 1, bytes: to_u64(bytes) };
                return Ok((Outcome::of(scanned), Some(buffer)));
            }
            let place = (self.source, offset);
            let draft =
                self.scanner.recall(recorded, place, &mut buffer, buffers, &mut warnings)?;
            if let Some(draft) = draft {
                let scanned = Scanned::Draft(Box::new(draft));
                return Ok((Outcome { unreadable, warnings, ..Outcome::of(scanned) }, None));
            }
        }
        if !filled
            && let Some(error) = read_or_mark(self.source, offset, &mut buffer, &mut unreadable)
        {
            // Unreadable ranges of a disk become zeros, but not those of a disk that is gone.
            self.source.failure().map_or(Ok(()), Err)?;
            warnings.push(Warning::from(&error));
        }
        let scanned = self.scanner.scan(index, buffer, buffers);
        let (outcome, buffer) = scanned.map_err(|error| source_error(error, offset))?;
        warnings.extend(outcome.warnings);
        Ok((Outcome { unreadable, warnings, ..outcome }, buffer))
    }
}

/// The buffers and writers of one thread.
struct Tools {
    writer: BlockWriter,
    buffers: ScanBuffers,
}

impl Tools {
    fn new(compression: Compression) -> Result<Self> {
        Ok(Self { writer: compression.writer()?, buffers: ScanBuffers::new() })
    }
}

/// The state that the threads of one volume's backup share.
pub struct Pipeline<'a> {
    state: Mutex<PipelineState>,
    changed: Condvar,
    /// The volume to scan; `None` if the pipeline only seals frames.
    scanned: Option<Scan<'a>>,
    /// The pool of buffers.
    kept: &'a Buffers,
    compression: Compression,
    workers: usize,
    /// The committer's own, where it does all work.
    tools: Mutex<Option<Tools>>,
}

impl<'a> Pipeline<'a> {
    /// Returns a pipeline with this many workers; without workers, the waiting thread does all
    /// work.
    pub(crate) fn new(
        feed: Feed<'a>,
        source: &'a dyn VolumeSource,
        scanner: &'a Scanner,
        kept: &'a Buffers,
        zstd_level: i32,
        workers: usize,
        buffers: usize,
    ) -> Self {
        let buffers = (0..buffers).map(|_| kept.segments.take().unwrap_or_default()).collect();
        let state = PipelineState { buffers, ..PipelineState::default() };
        let disk = Disk { feed: Mutex::new((feed, 0)), source, scanner };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            scanned: Some(Scan::Disk(disk)),
            kept,
            compression: Compression::of_disk(zstd_level),
            workers,
            tools: Mutex::default(),
        }
    }

    /// Returns a pipeline that scans a file tree. `zstd_level` is that of disks.
    pub(crate) fn of_tree(
        (feed, old, cutter): (TreeFeed<'a>, &'a OldSegments, Cutter),
        scanner: &'a Scanner,
        kept: &'a Buffers,
        zstd_level: i32,
        workers: usize,
        buffers: usize,
    ) -> Self {
        let feed = Mutex::new((feed, 0));
        let tree = Scan::Tree(Box::new(Tree { feed, old, cutter, scanner }));
        Self::of_files(tree, kept, zstd_level, workers, buffers)
    }

    /// Returns a pipeline for a file tree that a survey has recorded.
    pub(crate) fn of_recorded_tree(
        tree: RecordedTree<'a>,
        kept: &'a Buffers,
        zstd_level: i32,
        workers: usize,
        buffers: usize,
    ) -> Self {
        Self::of_files(Scan::Recorded(Box::new(tree)), kept, zstd_level, workers, buffers)
    }

    fn of_files(
        scanned: Scan<'a>,
        kept: &'a Buffers,
        zstd_level: i32,
        workers: usize,
        buffers: usize,
    ) -> Self {
        let mut pipeline = Self::of_packing(kept, zstd_level, workers);
        {
            let mut state = pipeline.state();
            (state.ended, state.reads_alone) = (false, matches!(scanned, Scan::Tree(_)));
            state.buffers =
                (0..buffers).map(|_| kept.segments.take().unwrap_or_default()).collect();
        }
        pipeline.compression = Compression::of_tree(zstd_level);
        pipeline.scanned = Some(scanned);
        pipeline
    }

    /// Returns a pipeline that scans nothing and only seals frames.
    pub fn of_packing(kept: &'a Buffers, zstd_level: i32, workers: usize) -> Self {
        let state = Mutex::new(PipelineState { ended: true, ..PipelineState::default() });
        let (changed, tools) = (Condvar::new(), Mutex::default());
        let compression = Compression::of_disk(zstd_level);
        Self { state, changed, scanned: None, kept, compression, workers, tools }
    }

    /// Runs `commit` with the threads beside it, and ends them when it returns.
    pub fn run<T>(&self, commit: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        std::thread::scope(|scope| {
            for _ in 0..self.workers {
                scope.spawn(|| {
                    let _fail = FailOnPanic(self);
                    self.fail_on_error(self.work());
                });
            }
            let _stop = StopOnDrop(self);
            commit(self)
        })
    }

    /// Returns the volume's size, once its end was reached.
    pub(crate) fn volume_bytes(&self) -> u64 {
        match &self.scanned {
            Some(Scan::Disk(disk)) => lock(&disk.feed).0.bytes,
            _ => 0,
        }
    }

    /// Returns how many bytes of files there were so far in a tree that was recorded.
    pub(crate) fn seen_bytes(&self) -> u64 {
        match &self.scanned {
            Some(Scan::Recorded(tree)) => tree.seen_bytes(),
            _ => 0,
        }
    }

    /// Returns the number of entries of a tree that were left out by rules, of those that were
    /// removed before the walk reached them, and of those that it could not reach.
    pub(crate) fn left_out(&self) -> (u64, u64, u64) {
        match &self.scanned {
            Some(Scan::Tree(tree)) => {
                let feed = &lock(&tree.feed).0;
                (feed.excluded, feed.vanished(), feed.failed)
            }
            _ => (0, 0, 0),
        }
    }

    /// Returns the outcome of the next claim in order; `None` at the volume's end.
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
            state = self.await_work(state)?;
        }
    }

    /// Reads and scans the segment of a draft as a whole, without the record of a scan.
    pub(crate) fn rescan(&self, draft: SegmentDraft) -> Result<Outcome> {
        let Some(Scan::Disk(disk)) = &self.scanned else {
            return Err(Error::invalid("there is no volume to read a segment from"));
        };
        let (index, bytes) = (draft.index, draft.data.len());
        let segment = SegmentClaim { index, bytes, filled: false, recorded: None };
        let (outcome, buffer) = disk.scan(segment, draft.data, &mut ScanBuffers::new())?;
        if let Some(buffer) = buffer {
            self.recycle(buffer);
        }
        Ok(outcome)
    }

    /// Gives back a segment's buffer.
    pub(crate) fn recycle(&self, buffer: Vec<u8>) {
        self.state().buffers.push(buffer);
        self.changed.notify_all();
    }

    /// Returns a buffer for a frame of about `bytes` bytes.
    pub(crate) fn frame_buffer(&self, bytes: usize) -> Vec<u8> {
        let kept = if bytes > SMALL_BUFFER_BYTES {
            self.kept.large_frames.take()
        } else {
            self.kept.frames.take().or_else(|| self.kept.large_frames.take())
        };
        kept.unwrap_or_default()
    }

    /// Gives back a frame's buffer.
    pub(crate) fn recycle_frame(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let is_small = buffer.capacity() <= SMALL_BUFFER_BYTES;
        let kept = if is_small { &self.kept.frames } else { &self.kept.large_frames };
        kept.keep([buffer]);
    }

    /// Hands a frame to the workers; returns the ticket by which it is fetched.
    pub(crate) fn seal(&self, mut job: FrameJob) -> u64 {
        let ticket = {
            let mut state = self.state();
            job.ticket = state.next_ticket;
            state.next_ticket += 1;
            let ticket = job.ticket;
            state.frames.push_back(job);
            ticket
        };
        self.changed.notify_all();
        ticket
    }

    /// Waits for the sealed frame of a ticket, and returns it.
    pub(crate) fn sealed(&self, ticket: u64) -> Result<Vec<u8>> {
        let mut state = self.state();
        loop {
            check(&mut state)?;
            if let Some(sealed) = state.sealed.remove(&ticket) {
                return Ok(sealed);
            }
            state = self.await_work(state)?;
        }
    }

    fn state(&self) -> MutexGuard<'_, PipelineState> {
        lock(&self.state)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, PipelineState>) -> MutexGuard<'s, PipelineState> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a worker has done something; without workers, does the next task.
    fn await_work<'s>(
        &'s self,
        mut state: MutexGuard<'s, PipelineState>,
    ) -> Result<MutexGuard<'s, PipelineState>> {
        if self.workers > 0 {
            return Ok(self.wait(state));
        }
        let task = state.next_task();
        drop(state);
        let task = task.ok_or_else(|| Error::invalid("a pipeline waits for what nobody does"))?;
        let mut tools = lock(&self.tools);
        let tools = match &mut *tools {
            Some(tools) => tools,
            none => none.insert(Tools::new(self.compression)?),
        };
        self.carry_out(task, tools)?;
        Ok(self.state())
    }

    fn fail_on_error(&self, result: Result<()>) {
        if let Err(error) = result {
            let mut state = self.state();
            state.failure.get_or_insert(error);
            state.stop = true;
            self.changed.notify_all();
        }
    }

    /// Waits for a worker's next task, and returns it; `None` at the end.
    fn task(&self) -> Option<Task> {
        let mut state = self.state();
        loop {
            if state.stop {
                return None;
            }
            if let Some(task) = state.next_task() {
                return Some(task);
            }
            state = self.wait(state);
        }
    }

    fn work(&self) -> Result<()> {
        let mut tools = Tools::new(self.compression)?;
        while let Some(task) = self.task() {
            self.carry_out(task, &mut tools)?;
        }
        Ok(())
    }

    fn carry_out(&self, task: Task, tools: &mut Tools) -> Result<()> {
        match task {
            Task::Seal(job) => {
                let mut sealed = self.frame_buffer(job.raw.len());
                let position = u64::from(job.number);
                if let Some(packed) = &job.packed {
                    BlockWriter::append_packed(&job.sealer, position, packed, &mut sealed);
                } else {
                    tools.writer.set_level(self.compression.level(&job.raw))?;
                    tools.writer.append(&job.sealer, position, &job.raw, &mut sealed);
                }
                self.recycle_frame(job.raw);
                self.state().sealed.insert(job.ticket, sealed);
                self.changed.notify_all();
                Ok(())
            }
            Task::Scan(buffer) => self.scan(buffer, &mut tools.buffers),
        }
    }

    fn scan(&self, mut buffer: Vec<u8>, buffers: &mut ScanBuffers) -> Result<()> {
        let step = match &self.scanned {
            None => return Ok(()),
            Some(Scan::Disk(disk)) => disk.step(buffer, buffers)?,
            Some(Scan::Recorded(tree)) => match tree.step(buffer, buffers)? {
                Err(buffer) => Step::End(buffer),
                Ok((order, outcome, buffer)) => Step::Done(order, outcome, buffer),
            },
            Some(Scan::Tree(tree)) => match tree.claim(&mut buffer)? {
                None => Step::End(buffer),
                Some(claimed) => {
                    self.state().reading = false;
                    self.changed.notify_all();
                    tree.scan(claimed, buffer, buffers)?
                }
            },
        };
        let mut state = self.state();
        match step {
            Step::End(buffer) => {
                state.ended = true;
                state.claimed -= 1;
                state.buffers.push(buffer);
            }
            Step::Done(order, outcome, buffer) => {
                state.outcomes.insert(order, outcome);
                state.buffers.extend(buffer);
            }
        }
        self.changed.notify_all();
        Ok(())
    }
}

/// The next user reuses the buffers.
impl Drop for Pipeline<'_> {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut self.state().buffers);
        self.kept.segments.keep(buffers);
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

/// Lets the committer go on when a worker panics, so that the panic surfaces and no thread waits
/// forever.
struct FailOnPanic<'p, 'a>(&'p Pipeline<'a>);

impl Drop for FailOnPanic<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail_on_error(Err(Error::invalid("a thread that scans panicked")));
        }
    }
}

fn check(state: &mut PipelineState) -> Result<()> {
    state.failure.take().map_or(Ok(()), Err)
}
