//! Describes the segments of a volume, and sends chunks that the replica asks for.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use silt_format::number::{to_u16, to_u64, to_usize};
use silt_format::replica::{Described, SEGMENTS_PER_MESSAGE_MAX, SourceMessage, Span};
use silt_format::{
    BlockWriter, Chunking, MapRoot, PAGE_ENTRIES, Page, Recipe, RecipeChunk, Reference,
    SEGMENT_BYTES, SegmentEntry, segment_count,
};
use silt_format::{Error, Result};
use silt_repository::chunks::PlaceInFrame;
use silt_repository::volume_reader::{Placed, ReadBuffers, placed};
use silt_repository::{Repository, VolumeReader};

use super::deltas::Deltas;
use super::translation::Translation;
use super::{Current, FrameUse};

/// How far descriptions go ahead of what the replica has placed, in segments.
const SEGMENTS_AHEAD: u64 = 8192;
/// Messages with descriptions that are not answered yet.
const UNANSWERED_MAX: usize = 4;
/// Size of recipes that were sent and not answered yet, in bytes.
const RECIPES_AHEAD_BYTES: usize = 2 << 20;
/// Maximum number of them.
const RECIPES_AHEAD_MAX: usize = 256;
/// Maximum size of chunks that were asked for and not sent, in bytes: four times what a replica
/// asks for at once.
const WANTED_BYTES_MAX: usize = 40 << 20;
/// Size of a message with data, in bytes: once it has as many, it is sent.
const DATA_BYTES: usize = 256 << 10;

/// A segment whose chunks the replica has asked for.
struct Wanted {
    segment: u64,
    /// The chunks, and where they lie in the segment.
    chunks: VecDeque<Placed>,
    /// Whether chunks of the segment were asked for before.
    is_again: bool,
}

/// A frame that holds the chunks that were asked for next, and nothing else.
struct WholeFrame {
    place: PlaceInFrame,
    count: usize,
}

/// The volume that is being sent.
pub(super) struct VolumeSource {
    reader: VolumeReader,
    root: MapRoot,
    /// The map of the parent's volume.
    parent: Option<MapRoot>,
    chunking: Chunking,
    segments: u64,
    described: u64,
    placed: u64,
    /// The segments of the descriptions that are not answered.
    unanswered: VecDeque<Range<u64>>,
    has_ended: bool,
    needed: VecDeque<Span>,
    /// Recipes that were sent and not answered, and their encoded sizes.
    recipes: HashMap<u64, (Recipe, usize)>,
    recipes_bytes: usize,
    /// Number of recipes that were sent, and of answers to them.
    listed: u64,
    answers: u64,
    wanted: VecDeque<Wanted>,
    wanted_bytes: usize,
    buffers: ReadBuffers,
    is_far: bool,
    packer: BlockWriter,
    /// For a replica with another secret.
    translation: Option<Translation>,
    /// Where bases of deltas are, if there may be any.
    deltas: Option<Deltas>,
    /// Bytes of chunks that went as deltas.
    delta_bytes: u64,
}

/// How chunks are sent.
pub(super) struct Sending {
    /// For a replica with another secret.
    pub translation: Option<Translation>,
    /// The zstd level of deltas, if they are sent.
    pub delta_level: Option<i32>,
    pub jobs: usize,
    pub memory_bytes: u64,
}

impl VolumeSource {
    pub fn open(
        repository: &Repository,
        current: &Current,
        Sending { translation, delta_level, jobs, memory_bytes }: Sending,
    ) -> Result<Self> {
        let volume = &current.found.snapshot.volumes[current.volume];
        let of = current.found.volume(&volume.name)?;
        let kind = std::mem::discriminant(&volume.kind);
        let parent = current.parent.as_ref().and_then(|parent| {
            parent.volumes().find(|old| {
                let old = old.volume();
                old.name == volume.name && std::mem::discriminant(&old.kind) == kind
            })
        });
        let deltas = match (parent, delta_level) {
            (Some(parent), Some(level)) => {
                Some(Deltas::open(repository, parent, level, (jobs, memory_bytes))?)
            }
            _ => None,
        };
        Ok(Self {
            reader: VolumeReader::open(repository, of, memory_bytes)?,
            root: volume.root,
            parent: parent.map(|parent| parent.volume().root),
            chunking: volume.chunking,
            segments: segment_count(volume.bytes),
            described: 0,
            placed: 0,
            unanswered: VecDeque::new(),
            has_ended: false,
            needed: VecDeque::new(),
            recipes: HashMap::new(),
            recipes_bytes: 0,
            listed: 0,
            answers: 0,
            wanted: VecDeque::new(),
            wanted_bytes: 0,
            buffers: ReadBuffers::default(),
            is_far: repository.objects.storage.request_bytes() > 0,
            packer: BlockWriter::new(repository.config.zstd_level)?,
            translation,
            deltas,
            delta_bytes: 0,
        })
    }

    /// Bytes of chunks that went as deltas since this was called last.
    pub fn take_delta_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.delta_bytes)
    }

    /// Bytes that were read for their fingerprints in the replica, since this was called last.
    pub fn take_reread_bytes(&mut self) -> u64 {
        self.translation.as_mut().map_or(0, Translation::take_reread_bytes)
    }

    /// Whether the replica has placed every segment.
    pub fn is_placed(&self) -> bool {
        self.has_ended && self.placed == self.segments
    }

    /// Bytes that the replica has placed, and bytes of the volume.
    pub fn progress(&self) -> (u64, u64) {
        let bytes = self.reader.bytes();
        (self.placed.saturating_mul(to_u64(SEGMENT_BYTES)).min(bytes), bytes)
    }

    /// Bytes of chunks that were asked for and not sent.
    pub fn wanted_bytes(&self) -> usize {
        self.wanted_bytes
    }

    /// Takes the answer to the oldest unanswered description.
    pub fn need(&mut self, segments: Vec<Span>) -> Result<()> {
        let unasked = || Error::invalid("the replica needs segments that were not described");
        let described = self.unanswered.pop_front().ok_or_else(unasked)?;
        let is_behind = segments.last().is_some_and(|last| last.numbers().end > described.end);
        let is_before = segments.first().is_some_and(|first| first.first < described.start);
        if is_behind || is_before {
            return Err(unasked());
        }
        self.needed.extend(segments);
        Ok(())
    }

    /// Takes the numbers of the chunks of a segment that the replica lacks.
    pub fn want(&mut self, segment: u64, chunks: &[Span]) -> Result<()> {
        if segment < self.placed || segment >= self.described {
            return Err(Error::invalid(
                "the replica wants chunks of a segment that is not described",
            ));
        }
        // A replica asks once more for chunks that it expected to have by then.
        self.answers += 1;
        if self.answers > self.listed * 2 {
            return Err(Error::invalid("the replica asks again and again for the same chunks"));
        }
        let (recipe, is_again) = match self.recipes.remove(&segment) {
            Some((recipe, bytes)) => {
                self.recipes_bytes -= bytes;
                (recipe, false)
            }
            // It was answered before, and is asked for again.
            None => (self.recipe(segment)?, true),
        };
        let mut wanted = Wanted { segment, chunks: VecDeque::new(), is_again };
        let all: Vec<Placed> = placed(&recipe).collect();
        for number in chunks.iter().flat_map(Span::numbers) {
            let chunk = all.get(to_usize(number));
            let chunk = chunk.filter(|(chunk, _)| !chunk.reference.is_zero());
            let chunk = chunk.ok_or_else(|| {
                Error::invalid(format!("the replica wants chunk {number} of segment {segment}"))
            })?;
            wanted.chunks.push_back(chunk.clone());
            self.wanted_bytes += chunk.1.len();
        }
        if self.wanted_bytes > WANTED_BYTES_MAX {
            return Err(Error::invalid("the replica wants too much at once"));
        }
        if !wanted.chunks.is_empty() {
            self.wanted.push_back(wanted);
        }
        Ok(())
    }

    /// Takes the number of segments that are in the replica.
    pub fn placed(&mut self, end: u64) -> Result<()> {
        if end <= self.placed || end > self.described {
            return Err(Error::invalid("the replica placed segments that were not described"));
        }
        self.placed = end;
        if let Some(translation) = &mut self.translation {
            translation.placed(end);
        }
        Ok(())
    }

    /// The next message; `None` if the replica has to say something first.
    ///
    /// Frames that are stored are sent if all of their chunks were asked for and the storage is
    /// near: from far away, frames are read together with those around them.
    pub fn produce(&mut self, frames: FrameUse) -> Result<Option<SourceMessage>> {
        if !self.wanted.is_empty() {
            return self.data(frames).map(Some);
        }
        if self.recipes_bytes < RECIPES_AHEAD_BYTES
            && self.recipes.len() < RECIPES_AHEAD_MAX
            && let Some(segment) = self.next_needed()
        {
            return self.chunks(segment).map(Some);
        }
        let is_far_ahead = self.described - self.placed >= SEGMENTS_AHEAD
            || self.unanswered.len() >= UNANSWERED_MAX;
        if self.described < self.segments && !is_far_ahead {
            return self.describe().map(Some);
        }
        if self.described == self.segments && !self.has_ended {
            self.has_ended = true;
            return Ok(Some(SourceMessage::End));
        }
        Ok(None)
    }

    fn next_needed(&mut self) -> Option<u64> {
        let span = self.needed.front_mut()?;
        let segment = span.first;
        (span.first, span.count) = (segment + 1, span.count - 1);
        if span.count == 0 {
            self.needed.pop_front();
        }
        Some(segment)
    }

    fn recipe(&mut self, segment: u64) -> Result<Recipe> {
        let entry = self.reader.map().entry(self.root, segment)?;
        let entry = entry.ok_or_else(|| {
            Error::invalid(format!("the replica needs segment {segment}, which is all zeros"))
        })?;
        self.reader.recipe(segment, &entry, &mut self.buffers)
    }

    /// The chunks of a segment, with their places in it for references.
    fn chunks(&mut self, segment: u64) -> Result<SourceMessage> {
        let recipe = self.recipe(segment)?;
        let mut sent = recipe.clone();
        for (number, chunk) in sent.chunks.iter_mut().enumerate() {
            if !chunk.reference.is_zero() {
                chunk.reference = Reference::new(0, 0, to_u16(number));
            }
        }
        if let Some(translation) = &mut self.translation {
            translation.rewrite((&self.reader, self.root), segment, &mut sent)?;
        }
        let bytes = sent.encode(self.chunking);
        self.recipes_bytes += bytes.len();
        self.listed += 1;
        self.recipes.insert(segment, (recipe, bytes.len()));
        Ok(SourceMessage::Chunks { segment, recipe: bytes })
    }

    /// Bytes of the chunks that were asked for, verified, or a delta of them; or a whole frame of
    /// them as it is stored, which the replica verifies. What is asked for again goes as it is.
    fn data(&mut self, frames: FrameUse) -> Result<SourceMessage> {
        let mut chunks: Vec<Placed> = Vec::new();
        let mut bytes = Vec::new();
        let is_compressed = frames == FrameUse::Never;
        let is_again = self.wanted.front().is_some_and(|wanted| wanted.is_again);
        while bytes.len() < DATA_BYTES
            && let Some((segment, (chunk, place))) = self.next_wanted()
            && self.wanted.front().is_some_and(|wanted| wanted.is_again == is_again)
        {
            if frames != FrameUse::Never
                && !self.is_far
                && let Some(frame) = self.whole_frame()
            {
                if !bytes.is_empty() {
                    break;
                }
                if let Some(message) = self.frame(&frame) {
                    return Ok(message);
                }
            }
            let start = bytes.len();
            let translation = self.translation.as_ref();
            if let Some(held) = translation.and_then(|it| it.bytes(segment, place.clone())) {
                bytes.extend_from_slice(held);
            } else {
                bytes.resize(start + place.len(), 0);
                chunks.push((chunk, start..bytes.len()));
            }
            self.skip_wanted(1);
        }
        self.wanted_bytes -= bytes.len();
        let damaged = &mut |_, error| Err(error);
        self.reader.read_chunks(&chunks, &mut bytes, &mut self.buffers, damaged)?;
        if let Some(deltas) = self.deltas.as_mut().filter(|_| !is_again && is_compressed) {
            let ranges: Vec<_> = chunks.into_iter().map(|(_, range)| range).collect();
            if let Some(delta) = deltas.encode(&bytes, &ranges)? {
                self.delta_bytes += u64::from(delta.bytes);
                return Ok(SourceMessage::Delta(delta));
            }
        }
        if frames != FrameUse::Always {
            return Ok(SourceMessage::Data(bytes));
        }
        let mut packed = Vec::new();
        self.packer.pack(&bytes, &mut packed);
        Ok(SourceMessage::Frame(packed))
    }

    /// The next chunk that was asked for, with its segment.
    fn next_wanted(&self) -> Option<(u64, Placed)> {
        let wanted = self.wanted.front()?;
        Some((wanted.segment, wanted.chunks.front()?.clone()))
    }

    fn skip_wanted(&mut self, mut count: usize) {
        while let Some(wanted) = self.wanted.front_mut() {
            let here = count.min(wanted.chunks.len());
            wanted.chunks.drain(..here);
            count -= here;
            if !wanted.chunks.is_empty() {
                return;
            }
            self.wanted.pop_front();
        }
    }

    /// The frame whose chunks, all of them, were asked for next.
    fn whole_frame(&self) -> Option<WholeFrame> {
        let mut wanted =
            self.wanted.iter().flat_map(|wanted| &wanted.chunks).map(|(chunk, _)| chunk);
        let chunks = self.reader.chunks();
        // What can't be read here is read, and reported, chunk by chunk.
        let place = |chunk: &RecipeChunk| chunks.place_in_frame(chunk.reference).ok().flatten();
        let first = place(wanted.next()?).filter(|first| first.offset == 0)?;
        let (mut end, mut count) = (first.length, 1);
        while end < first.frame_bytes {
            let next = place(wanted.next()?)?;
            let follows = Arc::ptr_eq(&next.container, &first.container)
                && (next.frame, next.offset) == (first.frame, end);
            if !follows {
                return None;
            }
            (end, count) = (end + next.length, count + 1);
        }
        (end == first.frame_bytes).then_some(WholeFrame { place: first, count })
    }

    /// A frame as it is stored; `None` if it can't be read.
    fn frame(&mut self, frame: &WholeFrame) -> Option<SourceMessage> {
        let mut packed = Vec::new();
        let scratch = self.buffers.scratch();
        self.reader.chunks().read_packed(&frame.place, scratch, &mut packed).ok()?;
        self.skip_wanted(frame.count);
        self.wanted_bytes -= frame.place.frame_bytes as usize;
        Some(SourceMessage::Frame(packed))
    }

    /// Describes the next segments.
    fn describe(&mut self) -> Result<SourceMessage> {
        let mut all: Vec<Described> = Vec::new();
        let from = self.described;
        let translation = self.translation.as_ref();
        let most = translation.map_or(SEGMENTS_PER_MESSAGE_MAX, Translation::segments_max);
        while all.len() < most
            && self.described < self.segments
            && self.described - from < SEGMENTS_AHEAD
        {
            let at = self.described;
            if at.is_multiple_of(to_u64(PAGE_ENTRIES))
                && let Some(run) = self.page_run(at)?
            {
                self.described += count_of(&run);
                join(&mut all, run);
                continue;
            }
            let entry = self.reader.map().entry(self.root, at)?;
            let old = self.parent.and_then(|parent| self.parent_entry(parent, at));
            let described = match (entry, old) {
                (None, _) => Described::Zeros(1),
                (Some(entry), Some(old)) if is_same(&entry, &old) => Described::Parent(1),
                (Some(entry), _) => Described::Segment(entry.digest, entry.signatures),
            };
            self.described += 1;
            join(&mut all, described);
        }
        if let Some(translation) = &mut self.translation {
            translation.describe((&self.reader, self.root), from, &mut all)?;
        }
        self.unanswered.push_back(from..self.described);
        Ok(SourceMessage::Segments(all))
    }

    /// The segments of a leaf page that is empty, or the same as the parent's.
    fn page_run(&self, at: u64) -> Result<Option<Described>> {
        let index = at / to_u64(PAGE_ENTRIES);
        let count = to_u64(PAGE_ENTRIES).min(self.segments - at);
        let map = self.reader.map();
        let Some(page) = map.page_ref(self.root, 0, index)? else {
            return Ok(Some(Described::Zeros(count)));
        };
        let Some(parent) = self.parent else { return Ok(None) };
        // A parent that can't be read has nothing in common.
        let old = map.page_ref(parent, 0, index).ok().flatten();
        if old != Some(page) {
            return Ok(None);
        }
        // The last page of the parent may be shorter.
        let is_whole = match &*map.page(page, 0)? {
            Page::Leaf(entries) => to_u64(entries.len()) >= count,
            Page::Branch(..) => false,
        };
        Ok(is_whole.then_some(Described::Parent(count)))
    }

    /// The parent's entry; a parent that can't be read has none.
    fn parent_entry(&self, parent: MapRoot, at: u64) -> Option<SegmentEntry> {
        self.reader.map().entry(parent, at).ok().flatten()
    }
}

fn is_same(entry: &SegmentEntry, old: &SegmentEntry) -> bool {
    entry.recipe == old.recipe && entry.digest == old.digest
}

fn count_of(run: &Described) -> u64 {
    match run {
        Described::Zeros(count) | Described::Parent(count) => *count,
        Described::Segment(..) => 1,
    }
}

/// Appends a run, to the last one if it is of the same kind.
fn join(all: &mut Vec<Described>, run: Described) {
    match (all.last_mut(), run) {
        (Some(Described::Zeros(last)), Described::Zeros(count))
        | (Some(Described::Parent(last)), Described::Parent(count)) => *last += count,
        (_, run) => all.push(run),
    }
}
