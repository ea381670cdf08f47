//! Finds bases for chunks in the parent's volume, which both ends have, and encodes deltas.
//!
//! Nothing is asked for that: the source has the parent, too, so it sketches the parent's chunks
//! itself, and names bases by their place.

use std::ops::Range;

use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::replica::{
    ChunkDelta, DELTA_BASE_BYTES_MAX, DELTA_BASES_MAX, DELTA_BYTES_MAX, DeltaBase,
};
use silt_format::{Error, MapRoot, Result, SEGMENT_BYTES, segment_count};
use silt_repository::objects::is_damage;
use silt_repository::repository::FoundVolume;
use silt_repository::volume_reader::{Placed, ReadBuffers, placed};
use silt_repository::{Repository, VolumeReader};
use silt_similarity::{
    Candidate, DeltaCoder, PrefixCoder, Sketch, SketchIndex, SketchParameters, Sketcher,
};

/// Memory limit of the cache of the parent's data, in bytes.
const CACHE_BYTES: u64 = 32 << 20;
/// The smallest mean size of chunks that is expected, in bytes.
const CHUNK_BYTES_MIN: u64 = 4 << 10;
/// Bytes of the parent that are read for sketches before the first chunk is sent, and for each byte
/// of chunks that is sent later: what is read far away costs.
const READ_NEAR: (u64, u64) = (1 << 30, 64);
const READ_FAR: (u64, u64) = (64 << 20, 4);
/// Bases of a chunk.
const BASES_OF_CHUNK: usize = 2;
/// Bytes before and behind a base that belong to it, too: chunks are cut otherwise there.
const AROUND_BYTES: u64 = 2048;
/// A delta is made if bases were found for one in this many bytes.
const BASED_SHARE: usize = 8;
/// Threads that read the parent, at most. Each holds a segment.
const WORKERS_MAX: usize = 4;

/// What is read and sketched of one segment: sketches and places of its chunks, and bytes.
type Sketched = (Vec<(Sketch, u64)>, u64);

/// Finds bases in a volume of the parent.
pub(super) struct Deltas {
    parent: VolumeReader,
    root: MapRoot,
    segments: u64,
    sketcher: Sketcher,
    /// Once the first chunk is sent.
    index: Option<SketchIndex>,
    index_chunks: usize,
    coder: PrefixCoder,
    /// One for each thread that reads.
    buffers: Vec<ReadBuffers>,
    /// The next segment that is read for its sketches.
    next: u64,
    /// Bytes that may be read for sketches now.
    granted: u64,
    granted_per_byte: u64,
    base: Vec<u8>,
}

impl Deltas {
    /// Prepares to find bases in a volume.
    pub fn open(
        repository: &Repository,
        of: FoundVolume<'_>,
        level: i32,
        (jobs, memory_bytes): (usize, u64),
    ) -> Result<Self> {
        let parent = VolumeReader::open(repository, of, CACHE_BYTES)?;
        let is_far = repository.objects.storage.request_bytes() > 0;
        let (granted, granted_per_byte) = if is_far { READ_FAR } else { READ_NEAR };
        let parameters = SketchParameters::default();
        let context = &repository.objects.context;
        let most = context.budget(memory_bytes).sketches_bytes() / SketchIndex::BYTES_PER_CHUNK;
        // An index holds a power of two of them.
        let chunks = (parent.bytes() / CHUNK_BYTES_MIN).min(1 << most.max(1).ilog2());
        let workers = silt_repository::jobs::jobs(jobs).min(WORKERS_MAX);
        let workers = context.workers(workers).max(1);
        Ok(Self {
            root: of.volume().root,
            segments: segment_count(parent.bytes()),
            sketcher: Sketcher::new(parameters),
            index: None,
            index_chunks: to_usize(chunks),
            coder: PrefixCoder::new(level),
            buffers: (0..workers).map(|_| ReadBuffers::default()).collect(),
            next: 0,
            granted,
            granted_per_byte,
            base: Vec::new(),
            parent,
        })
    }

    /// The delta of `chunks`, which lie one after the other in `bytes`; `None` if too little of
    /// them resembles something in the parent.
    pub fn encode(&mut self, bytes: &[u8], chunks: &[Range<usize>]) -> Result<Option<ChunkDelta>> {
        self.granted += to_u64(bytes.len()) * self.granted_per_byte;
        let super_features = self.sketcher.parameters().super_features;
        let index = self.index.take();
        let mut index =
            index.unwrap_or_else(|| SketchIndex::new(self.index_chunks, super_features));
        let read = self.read_on(&mut index);
        let (bases, based) = self.find(&index, bytes, chunks);
        self.index = Some(index);
        read?;
        let is_worth_it = based * BASED_SHARE >= bytes.len() && based > 0;
        if !is_worth_it || bytes.len() > to_usize(u64::from(DELTA_BYTES_MAX)) {
            return Ok(None);
        }
        let bases = merged(bases);
        self.base.clear();
        for base in &bases {
            let start = self.base.len();
            self.base.resize(start + to_usize(u64::from(base.length)), 0);
            match self.parent.read_at(base.offset, &mut self.base[start..]) {
                Ok(_) => {}
                // Damage is reported by a check. The chunks can be sent without it.
                Err(error) if is_damage(&error) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let mut frame = Vec::new();
        self.coder.encode(&self.base, bytes, &mut frame)?;
        Ok(Some(ChunkDelta { bytes: to_u32(bytes.len()), bases, frame }))
    }

    /// Places of bases, and the bytes of the chunks that they are for.
    fn find(
        &self,
        index: &SketchIndex,
        bytes: &[u8],
        chunks: &[Range<usize>],
    ) -> (Vec<Range<u64>>, usize) {
        let (mut bases, mut based, mut found) = (Vec::new(), 0, Vec::new());
        for chunk in chunks {
            let Some(sketch) = self.sketcher.sketch(&bytes[chunk.clone()]) else { continue };
            index.candidates(&sketch, BASES_OF_CHUNK, &mut found);
            if !found.is_empty() {
                based += chunk.len();
            }
            bases.extend(found.iter().map(|found| self.span(found, chunk.len())));
        }
        (bases, based)
    }

    /// Where the base of a chunk of `length` bytes lies.
    fn span(&self, found: &Candidate, length: usize) -> Range<u64> {
        let end = found.base.saturating_add(to_u64(length) + AROUND_BYTES);
        found.base.saturating_sub(AROUND_BYTES)..end.min(self.parent.bytes())
    }

    /// Sketches segments of the parent, as many as may be read by now.
    fn read_on(&mut self, index: &mut SketchIndex) -> Result<()> {
        while self.granted > 0 {
            let mut wanted = Vec::new();
            while wanted.len() < self.buffers.len()
                && let Some((segment, _)) = self.next_segment()?
            {
                wanted.push(segment);
                self.next = segment + 1;
            }
            if wanted.is_empty() {
                return Ok(());
            }
            for (sketches, bytes) in self.sketched(&wanted)? {
                sketches.iter().for_each(|(sketch, place)| index.add(sketch, *place));
                self.granted = self.granted.saturating_sub(bytes);
            }
        }
        Ok(())
    }

    /// The next segment that is not zeros; what can't be read of the map is left out.
    fn next_segment(&self) -> Result<Option<(u64, silt_format::SegmentEntry)>> {
        if self.next >= self.segments {
            return Ok(None);
        }
        match self.parent.next_segment(self.next) {
            Err(error) if is_damage(&error) => Ok(None),
            found => found,
        }
    }

    /// Reads segments, one in each thread.
    fn sketched(&mut self, segments: &[u64]) -> Result<Vec<Sketched>> {
        let (parent, root, sketcher) = (&self.parent, self.root, &self.sketcher);
        let mut all: Vec<Result<Sketched>> = segments.iter().map(|_| Ok((Vec::new(), 0))).collect();
        std::thread::scope(|scope| {
            let mut work = all.iter_mut().zip(segments).zip(&mut self.buffers);
            let own = work.next();
            for ((sketched, segment), buffers) in work {
                scope
                    .spawn(move || *sketched = sketch((parent, root), *segment, sketcher, buffers));
            }
            if let Some(((sketched, segment), buffers)) = own {
                *sketched = sketch((parent, root), *segment, sketcher, buffers);
            }
        });
        all.into_iter().collect()
    }
}

/// Reads a segment and sketches its chunks; those that are damaged are left out.
fn sketch(
    (parent, root): (&VolumeReader, MapRoot),
    segment: u64,
    sketcher: &Sketcher,
    buffers: &mut ReadBuffers,
) -> Result<Sketched> {
    let nothing = |error: Error| if is_damage(&error) { Ok((Vec::new(), 0)) } else { Err(error) };
    let recipe = match parent.map().entry(root, segment) {
        Ok(Some(entry)) => parent.recipe(segment, &entry, buffers),
        Ok(None) => return Ok((Vec::new(), 0)),
        Err(error) => return nothing(error),
    };
    let recipe = match recipe {
        Ok(recipe) => recipe,
        Err(error) => return nothing(error),
    };
    let stored = placed(&recipe).filter(|(chunk, _)| !chunk.reference.is_zero());
    let stored: Vec<Placed> = stored.collect();
    let mut data = vec![0; recipe.segment_bytes() as usize];
    let mut damaged = Vec::new();
    parent.read_chunks(&stored, &mut data, buffers, &mut |number, error| {
        if is_damage(&error) {
            damaged.push(number);
            return Ok(());
        }
        Err(error)
    })?;
    let start = segment * to_u64(SEGMENT_BYTES);
    let sound = (0..).zip(&stored).filter(|(number, _)| !damaged.contains(number));
    let sketches = sound.filter_map(|(_, (_, place))| {
        let sketch = sketcher.sketch(&data[place.clone()])?;
        Some((sketch, start + to_u64(place.start)))
    });
    let bytes = stored.iter().map(|(_, place)| to_u64(place.len())).sum();
    Ok((sketches.collect(), bytes))
}

/// Ranges in ascending order that do not overlap, as many as a delta may have.
fn merged(mut spans: Vec<Range<u64>>) -> Vec<DeltaBase> {
    spans.sort_unstable_by_key(|span| (span.start, span.end));
    let mut all: Vec<DeltaBase> = Vec::new();
    let (mut end, mut bytes) = (0, 0);
    for span in spans {
        let is_joined = span.start <= end && !all.is_empty();
        let start = if is_joined { end } else { span.start };
        let length = span.end.saturating_sub(start);
        if length == 0 {
            continue;
        }
        let is_full = bytes + length > u64::from(DELTA_BASE_BYTES_MAX)
            || (!is_joined && all.len() == DELTA_BASES_MAX);
        if is_full {
            break;
        }
        let Ok(length) = u32::try_from(length) else { break };
        match all.last_mut().filter(|_| is_joined) {
            Some(last) => last.length += length,
            None => all.push(DeltaBase { offset: start, length }),
        }
        (end, bytes) = (span.end, bytes + u64::from(length));
    }
    all
}
