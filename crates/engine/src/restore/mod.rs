//! Restoring a volume: every byte verified before it is written.

mod fetch;

use std::ops::Range;
use std::sync::Mutex;

use silt_chunking::{DigestedBlocks, SegmentDigester, is_zero};
use silt_format::number::{to_u64, to_usize};
use silt_format::{
    ByteSpan, Error, ErrorKind, Id, Recipe, RecipeChunk, Result, SEGMENT_BYTES, SegmentDigest,
    SegmentEntry, SeriesId,
};
use silt_repository::FoundVolume;
use silt_repository::env::Context;
use silt_repository::event::{Activity, Progress, Warning};
use silt_repository::map::digester;
use silt_repository::objects::is_damage;
use silt_repository::sync::lock;
use silt_repository::volume_reader::{ReadBuffers, VolumeReader, placed};
use silt_source::{Order, Turn, VolumeTarget};
use silt_storage::AlignedBuffer;

use self::fetch::{Turns, fetchers_near};
use crate::repository::Repository;
use silt_repository::jobs::jobs;

/// How a volume is restored.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(None, When::Latest))?;
/// # let container = storage.list("containers/", None)?.objects.remove(0).0;
/// storage.damage(&container, |bytes| bytes[100] ^= 1)?;
/// let target = StreamTarget::new(Box::new(Vec::new()), 100_000);
/// let options = RestoreOptions { salvage: true, jobs: 1, ..RestoreOptions::default() };
/// let report = repository.restore(found.volume("root")?, &target, options)?;
/// assert!(!report.damaged.is_empty(), "these ranges are zeros now");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct RestoreOptions {
    /// The part of the volume to restore, written to the target from offset 0. The whole volume by
    /// default.
    pub range: Option<ByteSpan>,
    /// Reads the target and writes only the bytes that differ.
    pub in_place: bool,
    /// Writes zeros for damaged data and reports the ranges, instead of failing.
    pub salvage: bool,
    /// The number of threads; 0 for two per core, or fewer if the target is sequential.
    pub jobs: usize,
    /// The memory limit in bytes; 0 for the context's.
    pub memory_bytes: u64,
}

/// The result of a restore.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let target = StreamTarget::new(Box::new(Vec::new()), 100_000);
/// let options = RestoreOptions { jobs: 1, ..RestoreOptions::default() };
/// let report = repository.restore(found.volume("root")?, &target, options)?;
/// assert_eq!(report.written_bytes, 100_000);
/// assert!(report.unreadable.is_empty() && report.damaged.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct RestoreReport {
    /// Bytes of the volume, or of the range.
    pub bytes: u64,
    /// Bytes written to the target, without zeros that it held already.
    pub written_bytes: u64,
    /// Ranges that the backup could not read; they are zeros.
    pub unreadable: Vec<ByteSpan>,
    /// Ranges that are damaged in the repository; they are zeros. Empty without `salvage`.
    pub damaged: Vec<ByteSpan>,
}

struct Restore<'a> {
    context: &'a Context,
    reader: VolumeReader,
    digester: SegmentDigester,
    target: &'a dyn VolumeTarget,
    options: RestoreOptions,
    range: ByteSpan,
    state: Mutex<RestoreState>,
    turns: Turns,
    /// File systems let one thread at a time write to a file; waiting here costs no processor time.
    writing: Mutex<()>,
    /// The turns of parts, if the target is sequential.
    order: Option<Order>,
}

struct RestoreState {
    next_segment: u64,
    /// Parts that were claimed.
    parts: u64,
    done_bytes: u64,
    report: RestoreReport,
    failure: Option<Error>,
    warnings: usize,
    last_warning: String,
}

enum NextPart {
    Zeros(ByteSpan),
    Segment(u64, SegmentEntry),
    End,
}

/// One worker's buffers.
struct RestoreBuffers {
    read: ReadBuffers,
    data: AlignedBuffer,
    current: Vec<u8>,
    blocks: DigestedBlocks,
}

impl Repository {
    /// Restores a volume of a snapshot into `target`, which the caller finishes afterwards.
    ///
    /// Fails with `Corrupt` on damage, before any wrong byte is written, unless `salvage` is set.
    pub fn restore(
        &self,
        of: FoundVolume<'_>,
        target: &dyn VolumeTarget,
        options: RestoreOptions,
    ) -> Result<RestoreReport> {
        let (found, volume) = (of.found(), of.volume());
        of.require_disk()?;
        let range = options.range.unwrap_or(ByteSpan { offset: 0, length: volume.bytes });
        let end = range.offset.checked_add(range.length);
        if end.is_none_or(|end| end > volume.bytes) {
            return Err(Error::invalid(format!(
                "the range {}+{} exceeds volume '{}', which has {} bytes",
                range.offset, range.length, volume.name, volume.bytes
            )));
        }
        let budget = self.objects.context.budget(options.memory_bytes);
        let first_segment = range.offset / to_u64(SEGMENT_BYTES);
        let restore = Restore {
            context: &self.objects.context,
            reader: VolumeReader::open(self, of, options.memory_bytes)?,
            digester: digester(&self.objects, &found.head),
            target,
            options,
            range,
            state: Mutex::new(RestoreState {
                next_segment: first_segment,
                parts: 0,
                done_bytes: 0,
                report: RestoreReport::default(),
                failure: None,
                warnings: 0,
                last_warning: String::new(),
            }),
            turns: Turns::new(first_segment),
            writing: Mutex::new(()),
            order: target.is_sequential().then(Order::default),
        };
        restore.context.report(Progress::bytes(Activity::Restore, 0, Some(range.length)));
        // In place, what is needed is only known once the target was compared.
        let plans = self.objects.storage.request_bytes() > 0 && !options.in_place;
        let fetchers = if plans { fetchers_near() } else { 0 };
        let work = || {
            let _end = restore.turns.end_on_drop();
            if let Err(error) = restore.work() {
                lock(&restore.state).failure.get_or_insert(error);
            }
        };
        let wanted = threads(options.jobs, target.is_sequential(), plans);
        let workers = self.objects.context.workers(budget.workers(wanted));
        if workers == 0 {
            work();
        }
        std::thread::scope(|scope| {
            (0..workers).for_each(|_| drop(scope.spawn(work)));
            for _ in 0..if workers > 0 { fetchers } else { 0 } {
                // The restoring thread meets the error too, and reports the range.
                scope.spawn(|| restore.fetch(scope).ok());
            }
        });
        let state = restore.state.into_inner();
        let state = state.unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(error) = state.failure {
            return Err(self
                .of_missing(error, found.head.series, found.snapshot.id)?
                .context(format!("restore {}", of.describe())));
        }
        let mut report = state.report;
        report.bytes = range.length;
        report.unreadable.clone_from(&volume.unreadable);
        report.damaged.sort_by_key(|span| span.offset);
        report.damaged.dedup_by(|next, last| {
            let follows = last.offset + last.length == next.offset;
            last.length += if follows { next.length } else { 0 };
            follows
        });
        Ok(report)
    }
}

impl Repository {
    /// The error of a missing object: the snapshot was deleted meanwhile, or the repository is
    /// damaged.
    fn of_missing(&self, error: Error, series: SeriesId, id: Id) -> Result<Error> {
        if error.kind() != ErrorKind::NotFound {
            return Ok(error);
        }
        if self.is_living(series, id)? {
            return Ok(error.with_kind(ErrorKind::Corrupt));
        }
        let why = "the snapshot was deleted and its space reclaimed while it was restored";
        Ok(error.context(why))
    }

    /// Whether the newest head of a series lists a snapshot.
    fn is_living(&self, series: SeriesId, id: Id) -> Result<bool> {
        let head = self.head(series)?;
        Ok(head.is_some_and(|head| head.snapshots.iter().any(|entry| entry.id == id)))
    }
}

impl Restore<'_> {
    fn work(&self) -> Result<()> {
        let mut buffers = RestoreBuffers {
            read: ReadBuffers::default(),
            data: AlignedBuffer::new(to_usize(self.reader.bytes().min(to_u64(SEGMENT_BYTES)))),
            current: Vec::new(),
            blocks: DigestedBlocks::default(),
        };
        loop {
            self.context.check_interrupted()?;
            let (claim, number) = self.claim()?;
            if matches!(claim, NextPart::End) {
                return Ok(());
            }
            let turn = self.order.as_ref().map(|order| order.turn(number));
            if let Err(error) = self.restore(&claim, turn.as_ref(), &mut buffers) {
                // Before the turn ends: the threads that wait for it fail, too.
                lock(&self.state).failure.get_or_insert(error);
                return Ok(());
            }
            turn.map_or(Ok(()), Turn::written)?;
        }
    }

    /// Restores one part of the range.
    fn restore(
        &self,
        claim: &NextPart,
        turn: Option<&Turn<'_>>,
        buffers: &mut RestoreBuffers,
    ) -> Result<()> {
        let (span, written) = match claim {
            NextPart::End => return Ok(()),
            NextPart::Zeros(span) => (*span, self.write_zeros(*span, turn, buffers)?),
            NextPart::Segment(index, entry) => {
                let span = self.reader.segment_span(*index);
                self.reader.chunks().begin(*index);
                let written = self.segment(*index, entry, turn, buffers)?;
                self.restored(*index);
                (self.clip(span).unwrap_or(span), written)
            }
        };
        let mut state = lock(&self.state);
        state.done_bytes += span.length;
        state.report.written_bytes += written;
        let total = Some(self.range.length);
        let mut progress = Progress::bytes(Activity::Restore, state.done_bytes, total);
        progress.new_bytes = state.report.written_bytes;
        self.context.report(progress);
        Ok(())
    }

    /// The next part of the range, in order, and its number.
    fn claim(&self) -> Result<(NextPart, u64)> {
        let mut state = lock(&self.state);
        let claim = self.next_part(&mut state)?;
        let number = state.parts;
        state.parts += 1;
        Ok((claim, number))
    }

    fn next_part(&self, state: &mut RestoreState) -> Result<NextPart> {
        let first = state.next_segment;
        let start = first.saturating_mul(to_u64(SEGMENT_BYTES));
        let end = self.range.offset + self.range.length;
        if start >= end || state.failure.is_some() {
            return Ok(NextPart::End);
        }
        let found = match self.reader.next_segment(first) {
            Err(error) if self.options.salvage && is_damage(&error) => {
                // The map itself is damaged here; go on behind the segment that it failed at.
                state.next_segment = first + 1;
                let span = self.reader.segment_span(first);
                let span = self.clip(span).unwrap_or(span);
                state.report.damaged.push(span);
                return Ok(NextPart::Zeros(span));
            }
            other => other?,
        };
        let (next, claim) = match found {
            Some((index, entry)) if index == first => (index + 1, NextPart::Segment(index, entry)),
            Some((index, _)) => (index, NextPart::End),
            None => (u64::MAX, NextPart::End),
        };
        state.next_segment = next;
        self.turns.goes_on_at(next);
        if let NextPart::Segment(..) = claim {
            return Ok(claim);
        }
        let until = next.saturating_mul(to_u64(SEGMENT_BYTES)).min(end);
        let from = start.max(self.range.offset);
        Ok(NextPart::Zeros(ByteSpan { offset: from, length: until - from }))
    }

    /// The part of a span that lies in the range.
    fn clip(&self, span: ByteSpan) -> Option<ByteSpan> {
        let offset = span.offset.max(self.range.offset);
        let end = (span.offset + span.length).min(self.range.offset + self.range.length);
        (offset < end).then(|| ByteSpan { offset, length: end - offset })
    }

    fn write_zeros(
        &self,
        span: ByteSpan,
        turn: Option<&Turn<'_>>,
        buffers: &mut RestoreBuffers,
    ) -> Result<u64> {
        turn.map_or(Ok(()), Turn::wait)?;
        let offset = span.offset - self.range.offset;
        if !self.options.in_place {
            self.target.write_zeroes(offset, span.length)?;
            return Ok(0);
        }
        let (mut at, mut written) = (0, 0);
        while at < span.length {
            let zeros = self.target.zeros_until(offset + at) - (offset + at);
            if zeros > 0 {
                at += zeros.min(span.length - at);
                continue;
            }
            let length = (span.length - at).min(to_u64(SEGMENT_BYTES));
            buffers.current.resize(to_usize(length), 0);
            self.target.read_at(offset + at, &mut buffers.current)?;
            if !is_zero(&buffers.current) {
                self.target.write_zeroes(offset + at, length)?;
                written += length;
            }
            at += length;
        }
        Ok(written)
    }

    /// Restores one segment; returns how many bytes were written.
    fn segment(
        &self,
        index: u64,
        entry: &SegmentEntry,
        turn: Option<&Turn<'_>>,
        buffers: &mut RestoreBuffers,
    ) -> Result<u64> {
        let span = self.reader.segment_span(index);
        let recipe = match self.reader.recipe(index, entry, &mut buffers.read) {
            Ok(recipe) => recipe,
            Err(error) => return self.salvage(span, error, turn, buffers),
        };
        if self.options.in_place {
            buffers.current.resize(to_usize(span.length), 0);
            if self.target.zeros_until(span.offset) < span.offset + span.length {
                self.target.read_at(span.offset, &mut buffers.current)?;
            } else {
                buffers.current.fill(0);
            }
            // Only now that the digest is known to be of this recipe.
            let RestoreBuffers { current, blocks, .. } = &mut *buffers;
            if entry.digest.kind == SegmentDigest::OF_BLOCKS
                && self.digester.digest(current, blocks) == entry.digest
            {
                return Ok(0);
            }
        }
        self.write_chunks(&recipe, span, turn, buffers)
    }

    /// Zeros for a span that is damaged, if the user wants that; else the error.
    fn salvage(
        &self,
        span: ByteSpan,
        error: Error,
        turn: Option<&Turn<'_>>,
        buffers: &mut RestoreBuffers,
    ) -> Result<u64> {
        if !self.options.salvage || !is_damage(&error) {
            let end = span.offset + span.length;
            return Err(error.context(format!("bytes {}..{end}", span.offset)));
        }
        self.context.warn(&error);
        let Some(span) = self.clip(span) else { return Ok(0) };
        lock(&self.state).report.damaged.push(span);
        self.write_zeros(span, turn, buffers)
    }

    /// Verifies a segment's chunks together, then writes runs of data as whole pieces and runs of
    /// zeros as holes.
    fn write_chunks(
        &self,
        recipe: &Recipe,
        span: ByteSpan,
        turn: Option<&Turn<'_>>,
        buffers: &mut RestoreBuffers,
    ) -> Result<u64> {
        let mut pieces: Vec<(Piece, Range<usize>)> = Vec::with_capacity(recipe.chunks.len());
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        for (chunk, range) in placed(recipe) {
            let piece = self.piece(&chunk, &range, span, buffers);
            if piece == Piece::Data {
                wanted.push((chunk, range.clone()));
                places.push(pieces.len());
            }
            pieces.push((piece, range));
        }
        let RestoreBuffers { read, data, .. } = &mut *buffers;
        self.reader.read_chunks(&wanted, data, read, &mut |number, error| {
            let (piece, range) = &mut pieces[places[number]];
            *piece = self.zeros_for_damage(error, span, range)?;
            Ok(())
        })?;
        pieces.dedup_by(|next, last| {
            let joins = next.0 == last.0;
            if joins {
                last.1.end = next.1.end;
            }
            joins
        });
        turn.map_or(Ok(()), Turn::wait)?;
        let mut written = 0;
        for (piece, range) in pieces {
            let Some(part) = self.clip(part(span, &range)) else { continue };
            let offset = part.offset - self.range.offset;
            match piece {
                Piece::Skip => {}
                Piece::Zeros if self.options.in_place => {
                    self.target.write_zeroes(offset, part.length)?;
                    written += part.length;
                }
                Piece::Zeros => self.target.write_zeroes(offset, part.length)?,
                Piece::Data => {
                    let start = to_usize(part.offset - span.offset);
                    let data = &buffers.data[start..start + to_usize(part.length)];
                    let _writing = lock(&self.writing);
                    self.target.write_at(offset, data)?;
                    written += part.length;
                }
            }
        }
        Ok(written)
    }

    /// What is to be done for a chunk.
    fn piece(
        &self,
        chunk: &RecipeChunk,
        range: &Range<usize>,
        span: ByteSpan,
        buffers: &RestoreBuffers,
    ) -> Piece {
        if self.clip(part(span, range)).is_none() {
            return Piece::Skip;
        }
        if self.options.in_place && self.is_there(chunk, &buffers.current[range.clone()]) {
            return Piece::Skip;
        }
        if chunk.reference.is_zero() { Piece::Zeros } else { Piece::Data }
    }

    /// Zeros in place of a damaged chunk, if the user wants that; else the error with its range.
    fn zeros_for_damage(
        &self,
        error: Error,
        span: ByteSpan,
        range: &Range<usize>,
    ) -> Result<Piece> {
        let here = part(span, range);
        if !self.options.salvage || !is_damage(&error) {
            let end = here.offset + here.length;
            return Err(error.context(format!("bytes {}..{end}", here.offset)));
        }
        let mut state = lock(&self.state);
        let text = error.to_string();
        if state.last_warning != text {
            match state.warnings {
                0..WARNINGS_MAX => self.context.warn(&error),
                WARNINGS_MAX => self.context.warn(Warning::new(
                    ErrorKind::Corrupt,
                    "more ranges are damaged; all are listed at the end",
                )),
                _ => {}
            }
            state.warnings += 1;
            // A damaged object has many chunks, and is named once.
            state.last_warning = text;
        }
        state.report.damaged.extend(self.clip(here));
        Ok(Piece::Zeros)
    }

    /// Whether the target holds a chunk already.
    fn is_there(&self, chunk: &RecipeChunk, current: &[u8]) -> bool {
        if chunk.reference.is_zero() {
            return is_zero(current);
        }
        self.reader.chunks().fingerprinter().fingerprint(current) == chunk.fingerprint
    }
}

/// Damaged chunks that are named one by one.
const WARNINGS_MAX: usize = 10;

/// Number of restoring threads: two per core by default, because they wait for reads and writes.
/// Those that write a stream wait for each other as well, and where others plan and read for them,
/// these and the network need half of the processors.
fn threads(wanted: usize, is_sequential: bool, plans: bool) -> usize {
    match wanted {
        0 if is_sequential && plans => (jobs(0) / 2).max(1),
        0 if is_sequential => jobs(0),
        0 => jobs(0) * 2,
        _ => jobs(wanted),
    }
}

/// A part of a segment as a part of its volume.
fn part(segment: ByteSpan, range: &Range<usize>) -> ByteSpan {
    ByteSpan { offset: segment.offset + to_u64(range.start), length: to_u64(range.len()) }
}

/// The action of a restore for a part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    /// Nothing: outside the range, or there already.
    Skip,
    Zeros,
    Data,
}
