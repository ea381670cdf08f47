//! Random access to a volume of a snapshot, from any thread: a read returns the bytes that were
//! backed up, or an error.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::number::{to_u64, to_usize};
use silt_format::{
    BlockRef, ByteSpan, Error, Fingerprint, MapRoot, Recipe, RecipeChunk, Result, ResultExt,
    SEGMENT_BYTES, SegmentEntry, SeriesId,
};

use crate::cache::WeightedCache;
use crate::chunks::{ChunkCache, ChunkReader, Cursor};
use crate::found_damage::{record_chunk, record_recipe};
use crate::map::{MapReader, PageCache};
use crate::objects::{Scratch, is_damage};
use crate::repository::{FoundVolume, Repository};
use crate::sync::lock;

/// Most buffers that are kept while nobody reads.
const IDLE_MAX: usize = 16;

/// Bytes of a reader's own pages.
const PAGES_BYTES: usize = 1 << 20;

/// The cache of volume readers. Readers of one repository that are opened with the same cache share
/// it and its memory bound.
pub struct ReadCache {
    chunks: Arc<ChunkCache>,
    pages: Arc<PageCache>,
    /// By their recipes.
    segments: Mutex<WeightedCache<(SeriesId, BlockRef), Arc<Segment>>>,
}

impl ReadCache {
    /// A cache of at most `bytes` for readers of `repository`.
    pub fn new(repository: &Repository, bytes: u64) -> Self {
        let part = |percent: u64| to_usize(bytes / 100 * percent);
        // From far away, frames are kept as they were read, together with those around them.
        let is_far = repository.objects.storage.request_bytes() > 0;
        let (frames, parts) = if is_far { (26, 46) } else { (70, 2) };
        Self {
            chunks: Arc::new(ChunkCache::new(part(12), part(frames), part(parts))),
            pages: Arc::new(PageCache::new(part(6))),
            segments: Mutex::new(WeightedCache::new(part(10))),
        }
    }

    /// A cache of the size that one operation may have.
    fn within(repository: &Repository, memory_bytes: u64) -> Self {
        let objects = &repository.objects;
        let budget = objects.context.budget(memory_bytes);
        Self {
            chunks: Arc::new(ChunkCache::within(objects, budget)),
            pages: Arc::new(PageCache::new(PAGES_BYTES)),
            segments: Mutex::new(WeightedCache::new(budget.tables_bytes())),
        }
    }
}

/// Reads a volume of a snapshot at any offset, from several threads at once.
///
/// Every byte is verified by its chunk's fingerprint before it is returned. Decoded frames,
/// container directories and recipes are cached up to the memory bound, and shared by all threads.
/// From distant storage, a read that continues the previous one also fetches the rest of its
/// segment.
///
/// Damage that a second read confirms is recorded as by a check, so that the next backup does not
/// build upon it.
///
/// Reads continue while a reclaim rewrites containers. If the snapshot was deleted and its space
/// reclaimed, they fail with `NotFound` or `Corrupt`.
pub struct VolumeReader {
    map: MapReader,
    chunks: ChunkReader,
    root: MapRoot,
    /// Whether files refer to its segments, none of which may be missing then.
    is_tree: bool,
    bytes: u64,
    /// For messages.
    name: String,
    is_far: bool,
    series: SeriesId,
    cache: Arc<ReadCache>,
    idle: Mutex<Vec<ReadBuffers>>,
    last_end: AtomicU64,
}

/// The buffers of one reading thread.
#[derive(Default)]
pub struct ReadBuffers {
    cursor: Cursor,
    scratch: Scratch,
    raw: Vec<u8>,
    /// A chunk that is wanted in part.
    chunk: Vec<u8>,
    read: Vec<usize>,
    ranges: Vec<Range<usize>>,
    found: Vec<Fingerprint>,
}

impl ReadBuffers {
    /// Returns the scratch for requests that are made ahead.
    pub fn scratch(&mut self) -> &mut Scratch {
        &mut self.scratch
    }
}

/// A range of a volume that is zeros throughout, or is not known to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeExtent {
    /// The range; it may go on with another of its kind.
    pub span: ByteSpan,
    /// Whether it is zeros, and takes no space in the repository.
    pub is_zero: bool,
}

/// A chunk, and where it lies in the segment or in a buffer.
pub type Placed = (RecipeChunk, Range<usize>);

/// The chunks of a segment in order.
struct Segment(Vec<Placed>);

impl Segment {
    fn weight(&self) -> usize {
        64 + self.0.len() * size_of::<Placed>()
    }

    /// How long the segment is.
    fn bytes(&self) -> u64 {
        to_u64(self.0.last().map_or(0, |(_, place)| place.end))
    }

    /// The chunks that overlap a range, which is not empty.
    fn overlapping(&self, range: &Range<usize>) -> &[Placed] {
        let first = self.0.partition_point(|(_, chunk)| chunk.end <= range.start);
        let end = self.0.partition_point(|(_, chunk)| chunk.start < range.end);
        &self.0[first..end]
    }
}

/// The chunks of a recipe, and where each lies in the segment.
pub fn placed(recipe: &Recipe) -> impl Iterator<Item = Placed> + '_ {
    let mut end = 0;
    recipe.chunks.iter().map(move |chunk| {
        let range = end..end + to_usize(u64::from(chunk.length));
        end = range.end;
        (*chunk, range)
    })
}

/// A segment that a file refers to: zeros of a disk are not in the map, holes of files have no
/// segment.
fn missing(index: u64) -> Error {
    Error::corrupt(format!("segment {index} of a file tree is not in its map"))
}

impl VolumeReader {
    /// Opens a volume. `memory_bytes` bounds the reader's cache; 0 stands for the context's limit.
    pub fn open(repository: &Repository, of: FoundVolume<'_>, memory_bytes: u64) -> Result<Self> {
        let cache = ReadCache::within(repository, memory_bytes);
        Self::open_sharing(repository, of, Arc::new(cache))
    }

    /// Opens a volume whose reader caches its data in `cache`, which must belong to the repository.
    pub fn open_sharing(
        repository: &Repository,
        of: FoundVolume<'_>,
        cache: Arc<ReadCache>,
    ) -> Result<Self> {
        let (objects, head) = (&repository.objects, &of.found().head);
        Ok(Self {
            map: MapReader::sharing(objects, head, Arc::clone(&cache.pages)),
            chunks: ChunkReader::sharing(objects, head, Arc::clone(&cache.chunks))?,
            root: of.volume().root,
            is_tree: of.volume().tree().is_some(),
            bytes: of.volume().bytes,
            name: of.describe(),
            is_far: objects.storage.request_bytes() > 0,
            series: head.series,
            cache,
            idle: Mutex::default(),
            last_end: AtomicU64::new(0),
        })
    }

    /// How large the volume is, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The volume's map.
    pub fn map(&self) -> &MapReader {
        &self.map
    }

    /// The volume's chunks.
    pub fn chunks(&self) -> &ChunkReader {
        &self.chunks
    }

    /// Where a segment lies in the volume.
    pub fn segment_span(&self, index: u64) -> ByteSpan {
        let offset = index * to_u64(SEGMENT_BYTES);
        let length = self.bytes.saturating_sub(offset).min(to_u64(SEGMENT_BYTES));
        ByteSpan { offset, length }
    }

    /// Returns the first segment at or after `from` that is not all zeros.
    pub fn next_segment(&self, from: u64) -> Result<Option<(u64, SegmentEntry)>> {
        self.map.next_segment(self.root, from)
    }

    /// The recipe of a segment, whose chunks fill it.
    pub fn recipe(
        &self,
        index: u64,
        entry: &SegmentEntry,
        buffers: &mut ReadBuffers,
    ) -> Result<Recipe> {
        let ReadBuffers { scratch, raw, .. } = buffers;
        let read = self.map.segment_recipe(entry, scratch, raw);
        let recipe = read.inspect_err(|error| {
            if is_damage(error) {
                record_recipe(&self.map, self.root, entry);
            }
        })?;
        self.require_length(index, u64::from(recipe.segment_bytes()))?;
        Ok(recipe)
    }

    /// Fails unless a segment's recipe is as long as the segment.
    fn require_length(&self, index: u64, found: u64) -> Result<()> {
        let length = self.segment_span(index).length;
        if found == length {
            return Ok(());
        }
        Err(Error::corrupt(format!("the recipe has {found} bytes, not {length}")))
    }

    /// Reads chunks that are not zeros to their places in `into`, and verifies them together.
    ///
    /// Calls `on_damage` for each chunk of `wanted` that cannot be read, with the error; if
    /// `on_damage` returns an error, reading ends. The bytes in place of such a chunk are
    /// undefined.
    pub fn read_chunks(
        &self,
        wanted: &[Placed],
        into: &mut [u8],
        buffers: &mut ReadBuffers,
        on_damage: &mut dyn FnMut(usize, Error) -> Result<()>,
    ) -> Result<()> {
        let ReadBuffers { cursor, scratch, read, ranges, found, .. } = buffers;
        self.chunks.expect(wanted.iter().map(|(chunk, _)| chunk.reference), scratch);
        read.clear();
        ranges.clear();
        for (number, (chunk, range)) in wanted.iter().enumerate() {
            let out = &mut into[range.clone()];
            match self.chunks.read_unverified(chunk.reference, cursor, scratch, out) {
                Ok(()) => {
                    read.push(number);
                    ranges.push(range.clone());
                }
                Err(error) => on_damage(number, self.met(chunk, error))?,
            }
        }
        self.chunks.fingerprinter().fingerprint_many(into, ranges, found);
        for (number, found) in read.iter().zip(&*found) {
            let (chunk, _) = &wanted[*number];
            if *found != chunk.fingerprint {
                on_damage(*number, self.met(chunk, self.chunks.mismatch(chunk, *found)))?;
            }
        }
        Ok(())
    }

    /// Records the damage that the error of a chunk tells of.
    fn met(&self, chunk: &RecipeChunk, error: Error) -> Error {
        if is_damage(&error) {
            record_chunk(&self.chunks, chunk);
        }
        error
    }

    /// Reads from `offset` on. Returns the number of bytes read: fewer than requested only at the
    /// end of the volume.
    ///
    /// Fails with `Corrupt` or `NotFound`, naming the object, if data is damaged or missing; the
    /// contents of `into` are then undefined.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let length = to_u64(into.len()).min(self.bytes.saturating_sub(offset));
        let into = &mut into[..to_usize(length)];
        let end = offset + length;
        let goes_on = self.last_end.swap(end, Ordering::Relaxed) == offset;
        let mut buffers = lock(&self.idle).pop().unwrap_or_default();
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let index = at / to_u64(SEGMENT_BYTES);
            let span = self.segment_span(index);
            let from = to_usize(at - span.offset);
            let here = rest.len().min(to_usize(span.length) - from);
            let (part, behind) = rest.split_at_mut(here);
            let range = from..from + here;
            self.read_part(index, range, part, goes_on, &mut buffers)
                .context(|| format!("read bytes {at}..{} of {}", at + to_u64(here), self.name))?;
            at += to_u64(here);
            rest = behind;
        }
        let mut idle = lock(&self.idle);
        idle.push(buffers);
        idle.truncate(IDLE_MAX);
        Ok(to_usize(length))
    }

    /// Reads from `offset` on if everything needed is in memory. Returns whether the bytes are all
    /// zeros. Returns `None` if something is not in memory, the range goes beyond the end, or it
    /// cannot be read; the contents of `into` are then undefined, and [`read_at`](Self::read_at)
    /// reports the reason.
    ///
    /// Every byte is verified as by `read_at`. Makes no storage request and decodes no frame.
    pub fn read_in_memory(&self, offset: u64, into: &mut [u8]) -> Option<bool> {
        if offset.checked_add(to_u64(into.len()))? > self.bytes {
            return None;
        }
        let (mut at, mut rest, mut is_zero) = (offset, into, true);
        while !rest.is_empty() {
            let index = at / to_u64(SEGMENT_BYTES);
            let span = self.segment_span(index);
            let from = to_usize(at - span.offset);
            let here = rest.len().min(to_usize(span.length) - from);
            let (part, behind) = rest.split_at_mut(here);
            match self.map.entry_in_memory(self.root, index)? {
                None if self.is_tree => return None,
                None => part.fill(0),
                Some(entry) => is_zero &= self.read_part_in_memory(index, &entry, from, part)?,
            }
            at += to_u64(here);
            rest = behind;
        }
        Some(is_zero)
    }

    fn read_part_in_memory(
        &self,
        index: u64,
        entry: &SegmentEntry,
        from: usize,
        into: &mut [u8],
    ) -> Option<bool> {
        let segment = lock(&self.cache.segments).get(&(self.series, entry.recipe))?;
        self.require_length(index, segment.bytes()).ok()?;
        let range = from..from + into.len();
        let mut is_zero = true;
        for (chunk, place) in segment.overlapping(&range) {
            let (start, end) = (place.start.max(range.start), place.end.min(range.end));
            let out = &mut into[start - range.start..end - range.start];
            if chunk.reference.is_zero() {
                out.fill(0);
                continue;
            }
            is_zero = false;
            let (frame, bytes) = self.chunks.in_memory(chunk.reference)?;
            let bytes = frame.get(bytes).filter(|bytes| bytes.len() == place.len())?;
            if self.chunks.fingerprinter().fingerprint(bytes) != chunk.fingerprint {
                return None;
            }
            out.copy_from_slice(&bytes[start - place.start..end - place.start]);
        }
        Some(is_zero)
    }

    /// The extent that `offset` lies in, from there on; `None` at the end of the volume.
    pub fn extent_at(&self, offset: u64) -> Result<Option<VolumeExtent>> {
        if offset >= self.bytes {
            return Ok(None);
        }
        let index = offset / to_u64(SEGMENT_BYTES);
        let mut buffers = ReadBuffers::default();
        let Some(segment) = self.segment(index, &mut buffers)? else {
            let next = self.next_segment(index)?.map_or(u64::MAX, |(index, _)| index);
            let end = next.saturating_mul(to_u64(SEGMENT_BYTES)).min(self.bytes);
            let span = ByteSpan { offset, length: end - offset };
            return Ok(Some(VolumeExtent { span, is_zero: true }));
        };
        let span = self.segment_span(index);
        let from = to_usize(offset - span.offset);
        let behind = segment.overlapping(&(from..to_usize(span.length)));
        let is_zero = behind.first().is_some_and(|(chunk, _)| chunk.reference.is_zero());
        let alike = behind.iter().take_while(|(chunk, _)| chunk.reference.is_zero() == is_zero);
        let end = alike.last().map_or(from, |(_, range)| range.end);
        let span = ByteSpan { offset, length: to_u64(end - from) };
        Ok(Some(VolumeExtent { span, is_zero }))
    }

    /// The chunks of a segment, `None` for zeros.
    fn segment(&self, index: u64, buffers: &mut ReadBuffers) -> Result<Option<Arc<Segment>>> {
        let Some(entry) = self.map.entry(self.root, index)? else { return Ok(None) };
        let key = (self.series, entry.recipe);
        if let Some(segment) = lock(&self.cache.segments).get(&key) {
            self.require_length(index, segment.bytes())?;
            return Ok(Some(segment));
        }
        let recipe = self.recipe(index, &entry, buffers)?;
        let segment = Arc::new(Segment(placed(&recipe).collect()));
        lock(&self.cache.segments).insert(key, Arc::clone(&segment), segment.weight());
        Ok(Some(segment))
    }

    /// Returns the chunks that overlap a range of a segment, which is not empty.
    pub fn chunks_of(
        &self,
        index: u64,
        range: &Range<usize>,
        buffers: &mut ReadBuffers,
    ) -> Result<Vec<Placed>> {
        let segment = self.segment(index, buffers)?.ok_or_else(|| missing(index))?;
        Ok(segment.overlapping(range).to_vec())
    }

    /// Reads a range of a segment.
    fn read_part(
        &self,
        index: u64,
        range: Range<usize>,
        into: &mut [u8],
        goes_on: bool,
        buffers: &mut ReadBuffers,
    ) -> Result<()> {
        let Some(segment) = self.segment(index, buffers)? else {
            if self.is_tree {
                return Err(missing(index));
            }
            into.fill(0);
            return Ok(());
        };
        if self.is_far && goes_on {
            // All that the segment still needs, in as few requests as can be.
            let rest = segment.overlapping(&(range.start..SEGMENT_BYTES));
            let data = rest.iter().filter(|(chunk, _)| !chunk.reference.is_zero());
            self.chunks.fetch(data.map(|(chunk, _)| chunk.reference), &mut buffers.scratch);
        }
        let mut whole = Vec::new();
        for (chunk, place) in segment.overlapping(&range) {
            let from = place.start.max(range.start);
            let part = from - range.start..place.end.min(range.end) - range.start;
            if chunk.reference.is_zero() {
                into[part].fill(0);
            } else if part.len() == place.len() {
                whole.push((*chunk, part));
            } else {
                let skip = from - place.start;
                self.read_some(chunk, skip, &mut into[part], buffers)?;
            }
        }
        self.read_chunks(&whole, into, buffers, &mut |_, error| Err(error))
    }

    /// Reads a part of a chunk, behind its first `skip` bytes; all of it is verified.
    fn read_some(
        &self,
        chunk: &RecipeChunk,
        skip: usize,
        into: &mut [u8],
        buffers: &mut ReadBuffers,
    ) -> Result<()> {
        let ReadBuffers { cursor, scratch, chunk: bytes, .. } = buffers;
        bytes.resize(to_usize(u64::from(chunk.length)), 0);
        let read = self.chunks.read_unverified(chunk.reference, cursor, scratch, bytes);
        read.map_err(|error| self.met(chunk, error))?;
        let found = self.chunks.fingerprinter().fingerprint(bytes);
        if found != chunk.fingerprint {
            return Err(self.met(chunk, self.chunks.mismatch(chunk, found)));
        }
        into.copy_from_slice(&bytes[skip..skip + into.len()]);
        Ok(())
    }
}
