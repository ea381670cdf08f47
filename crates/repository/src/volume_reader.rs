//! Random access to a volume of a snapshot: any thread reads any range, and gets what was backed up
//! or an error.

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
use crate::map::{MapReader, PageCache};
use crate::objects::Scratch;
use crate::repository::{FoundVolume, Repository};
use crate::sync::lock;

/// Most buffers that are kept while nobody reads.
const IDLE_MAX: usize = 16;

/// Bytes of a reader's own pages.
const PAGES_BYTES: usize = 1 << 20;

/// What readers of volumes keep in memory. Readers of one repository that are opened with the same
/// cache share it, and together keep no more than it holds.
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
/// Every byte is verified by its chunk's fingerprint before it is given out. Frames that were
/// decoded, container directories and recipes are kept in memory up to the bound that it was
/// opened with, and shared by all threads. Of storage that is far away, what the rest of a segment
/// needs is read together where a read goes on at the last one's end.
///
/// A reclaim that rewrites containers meanwhile is followed. Once the snapshot was deleted and its
/// space reclaimed, reads fail as `NotFound` or `Corrupt`.
pub struct VolumeReader {
    map: MapReader,
    chunks: ChunkReader,
    root: MapRoot,
    bytes: u64,
    /// For messages.
    name: String,
    is_far: bool,
    series: SeriesId,
    cache: Arc<ReadCache>,
    idle: Mutex<Vec<ReadBuffers>>,
    last_end: AtomicU64,
}

/// What one thread reads with.
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
    /// What requests that are made ahead go through.
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

impl VolumeReader {
    /// Opens a volume; `memory_bytes` bounds what is kept, 0 for what the repository's context
    /// says.
    pub fn open(repository: &Repository, of: FoundVolume<'_>, memory_bytes: u64) -> Result<Self> {
        let cache = ReadCache::within(repository, memory_bytes);
        Self::open_sharing(repository, of, Arc::new(cache))
    }

    /// Opens a volume whose reader keeps what it has read in `cache`, which is the repository's.
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

    /// The first segment at or behind `from` that is not all zeros.
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
        let recipe = self.map.segment_recipe(entry, scratch, raw)?;
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
    /// `on_damage` is told which of `wanted` can't be had and why; its error ends the reading. What
    /// is in the place of such a chunk is undefined.
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
                Err(error) => on_damage(number, error)?,
            }
        }
        self.chunks.fingerprinter().fingerprint_many(into, ranges, found);
        for (number, found) in read.iter().zip(&*found) {
            let (chunk, _) = &wanted[*number];
            if *found != chunk.fingerprint {
                on_damage(*number, self.chunks.mismatch(chunk, *found))?;
            }
        }
        Ok(())
    }

    /// Reads from `offset` on; the answer is how many bytes, fewer than asked for only at the end
    /// of the volume.
    ///
    /// `Corrupt` or `NotFound` names the object where data is damaged or missing; what is in `into`
    /// is undefined then.
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
        self.chunks.read_unverified(chunk.reference, cursor, scratch, bytes)?;
        let found = self.chunks.fingerprinter().fingerprint(bytes);
        if found != chunk.fingerprint {
            return Err(self.chunks.mismatch(chunk, found));
        }
        into.copy_from_slice(&bytes[skip..skip + into.len()]);
        Ok(())
    }
}
