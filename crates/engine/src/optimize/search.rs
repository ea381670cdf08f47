//! Finds the chunks that resemble others, and computes their deltas.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::{Delta, Head, PRIVATE_STORE, Reference, Result};
use silt_repository::chunks::{ChunkCache, ChunkReader, Container, Cursor};
use silt_repository::dead::{self, DeadSlots};
use silt_repository::objects::{Scratch, is_damage};
use silt_repository::recompression::{Recompression, Sampled};
use silt_similarity::{
    Candidate, DeltaCoder, SUPER_FEATURES, Sketch, SketchIndex, SketchParameters, Sketcher,
    XdeltaCoder,
};

use super::{OptimizeOptions, share};
use crate::deletion::{NewDelta, Rewriter};
use crate::repository::Repository;

/// How many chunks with equal super-features are looked at.
const CANDIDATES_MAX: usize = 4;
/// Of how many of them a delta is computed.
const TRIALS_MAX: usize = 2;
/// How many bases are read ahead.
const OFFERED_AT_ONCE: usize = 512;
/// About what a delta takes in a directory, compressed.
const ENTRY_BYTES: u64 = 20;
/// Most chunks of a container.
const CONTAINER_CHUNKS_MAX: u64 = 1 << 16;

/// The whole chunks met so far, and the way to their bytes.
pub(super) struct Search<'r> {
    repository: &'r Repository,
    options: OptimizeOptions,
    recompression: Option<Recompression>,
    sketcher: Sketcher,
    index: SketchIndex,
    coder: XdeltaCoder,
    cache: Arc<ChunkCache>,
    bases: Arc<ChunkReader>,
    cursor: Cursor,
    scratch: Scratch,
    candidates: Vec<Candidate>,
    base: Vec<u8>,
    /// Number of whole chunks that were looked at.
    pub(super) chunks: u64,
}

/// Chunks of one container that are smaller as deltas.
#[derive(Default)]
pub(super) struct Found {
    pub(super) deltas: Vec<NewDelta>,
    /// About what they save, in bytes.
    pub(super) saved_bytes: u64,
    /// What a higher level of compression would do.
    pub(super) sampled: Sampled,
    sketches: Vec<(Sketch, Reference)>,
}

impl Found {
    /// The chunks that the deltas are applied to.
    pub(super) fn bases(&self) -> impl Iterator<Item = u64> + '_ {
        self.deltas.iter().map(|new| new.delta.base.bits())
    }

    /// Bytes of the chunks that become deltas.
    pub(super) fn chunk_bytes(&self) -> u64 {
        self.deltas.iter().map(|new| u64::from(new.delta.chunk_bytes)).sum()
    }
}

impl<'r> Search<'r> {
    pub(super) fn new(
        repository: &'r Repository,
        head: &Head,
        options: &OptimizeOptions,
    ) -> Result<Self> {
        // Half for sketches; the rest for frames, directories, and the container that is written.
        let bytes = options.memory_bytes;
        let most = bytes / 2 / to_u64(SketchIndex::BYTES_PER_CHUNK);
        let chunks = most.min(head.containers.len().saturating_mul(CONTAINER_CHUNKS_MAX));
        let chunks = 1 << chunks.max(1).ilog2();
        let part = |share: u64| to_usize(bytes / share);
        let cache = Arc::new(ChunkCache::new(part(16), part(4), part(16)));
        Ok(Self {
            repository,
            options: *options,
            recompression: options.compression().map(Recompression::new).transpose()?,
            sketcher: Sketcher::new(SketchParameters::default()),
            index: SketchIndex::new(chunks, SUPER_FEATURES),
            coder: XdeltaCoder::new(None),
            bases: Arc::new(ChunkReader::sharing(&repository.objects, head, Arc::clone(&cache))?),
            cache,
            cursor: Cursor::default(),
            scratch: Scratch::default(),
            candidates: Vec::new(),
            base: Vec::new(),
            chunks: 0,
        })
    }

    /// Makes chunks of the series bases of what comes, if they are whole and in containers below
    /// number `first`, which this run does not rewrite; of a delta its base.
    pub(super) fn offer(&mut self, chunks: BTreeSet<u64>, first: u32) -> Result<()> {
        let mut whole = BTreeSet::new();
        for reference in chunks.into_iter().map(Reference::from_bits) {
            let is_ours = reference.store() == PRIVATE_STORE;
            let base = match self.bases.base(reference) {
                _ if !is_ours => continue,
                Err(error) if is_damage(&error) => continue,
                other => other?,
            };
            let base = base.unwrap_or(reference);
            if base.container() < first {
                whole.insert(base.bits());
            }
        }
        let whole: Vec<Reference> = whole.into_iter().map(Reference::from_bits).collect();
        for part in whole.chunks(OFFERED_AT_ONCE) {
            self.repository.objects.context.check_interrupted()?;
            self.bases.expect(part.iter().copied(), &mut self.scratch);
            for base in part {
                let sketch = self.read_base(*base)?.then(|| self.sketcher.sketch(&self.base));
                sketch.flatten().into_iter().for_each(|it| self.index.add(&it, base.bits()));
            }
        }
        Ok(())
    }

    /// From now on reads the containers that this head lists.
    pub(super) fn follow(&mut self, head: &Head) -> Result<()> {
        let objects = &self.repository.objects;
        self.bases = Arc::new(ChunkReader::sharing(objects, head, Arc::clone(&self.cache))?);
        self.cursor = Cursor::default();
        Ok(())
    }

    /// Rewrites containers of the series, and reads the bases of their deltas as this does.
    pub(super) fn rewriter(&self, head: &Head) -> Result<Rewriter<'r>> {
        let rewriter = Rewriter::of(self.repository, head)?;
        let compression = self.options.compression().unwrap_or(rewriter.compression);
        let enlarges_frames = self.recompression.is_some();
        let chunks = Some(Arc::clone(&self.bases));
        Ok(Rewriter { compression, enlarges_frames, chunks, ..rewriter })
    }

    /// Finds the chunks of a container that are smaller as deltas. All others can be bases from now
    /// on.
    ///
    /// Fails with `Corrupt` if a living chunk is damaged.
    pub(super) fn container(
        &mut self,
        rewriter: &Rewriter<'_>,
        container: &Container,
        dead: &DeadSlots,
        bases: &DeadSlots,
    ) -> Result<Found> {
        let number = container.number;
        let (dead, bases) = (dead.of_container(number), bases.of_container(number));
        let directory = &container.directory;
        let mut found = Found::default();
        let mut reader = rewriter.reader();
        reader.expect(container, |_| true);
        for (slot, place) in directory.slots() {
            if dead::holds(dead, slot) || directory.delta(slot).is_some() {
                continue;
            }
            let chunk = reader.verified(container, slot, &rewriter.fingerprinter)?;
            self.chunks += 1;
            let reference = Reference::new(PRIVATE_STORE, number, slot);
            let Some(sketch) = self.sketcher.sketch(chunk.bytes) else { continue };
            let frame = directory.frames[usize::from(place.frame)];
            let packed = (u64::from(frame.sealed_bytes), u64::from(frame.raw_bytes).max(1));
            let must_stay = dead::holds(bases, slot);
            let new = if must_stay { None } else { self.smaller(&sketch, chunk.bytes, packed)? };
            let Some((base, stored, saved_bytes)) = new else {
                self.index.add(&sketch, reference.bits());
                continue;
            };
            let delta = Delta { slot, chunk_bytes: to_u32(chunk.bytes.len()), base };
            found.deltas.push(NewDelta { delta, stored });
            found.saved_bytes += saved_bytes;
            found.sketches.push((sketch, reference));
        }
        if let Some(recompression) = &mut self.recompression {
            found.sampled = recompression.sample(rewriter.config, &mut reader, container)?;
        }
        Ok(found)
    }

    /// Takes back that chunks become deltas.
    pub(super) fn keep_whole(&mut self, found: &Found) {
        for (sketch, reference) in &found.sketches {
            self.index.add(sketch, reference.bits());
        }
    }

    /// The smallest delta of a chunk, its base, and about what it saves in a frame that is
    /// compressed from `packed.1` to `packed.0` bytes; `None` if that is not enough.
    fn smaller(
        &mut self,
        sketch: &Sketch,
        chunk: &[u8],
        packed: (u64, u64),
    ) -> Result<Option<(Reference, Vec<u8>, u64)>> {
        let mut candidates = std::mem::take(&mut self.candidates);
        self.index.candidates(sketch, CANDIDATES_MAX, &mut candidates);
        let (mut best, mut trials): (Option<(Reference, Vec<u8>)>, usize) = (None, 0);
        for candidate in &candidates {
            if trials == TRIALS_MAX {
                break;
            }
            let base = Reference::from_bits(candidate.base);
            if !self.read_base(base)? {
                continue;
            }
            trials += 1;
            let mut delta = Vec::new();
            self.coder.encode(&self.base, chunk, &mut delta)?;
            if best.as_ref().is_none_or(|(_, best)| delta.len() < best.len()) {
                let mut result = vec![0; chunk.len()];
                self.coder.decode(&self.base, &delta, &mut result)?;
                assert!(result == chunk, "a delta makes the chunk that it was computed from");
                best = Some((base, delta));
            }
        }
        self.candidates = candidates;
        let Some((base, delta)) = best else { return Ok(None) };
        let whole = to_u64(chunk.len()) * packed.0 / packed.1;
        // A delta is compressed like the rest of its frame, but less so.
        let length = to_u64(delta.len());
        let stored = (length * packed.0 / packed.1).max(length / 2) + ENTRY_BYTES;
        let saved = whole.saturating_sub(stored);
        let is_enough = saved > 0 && saved >= share(whole, self.options.saved_share_min);
        Ok(is_enough.then_some((base, delta, saved)))
    }

    /// Reads a base and verifies it; whether it can be one.
    fn read_base(&mut self, base: Reference) -> Result<bool> {
        let (cursor, scratch) = (&mut self.cursor, &mut self.scratch);
        let read = self.bases.content(base).and_then(|content| {
            let Some((fingerprint, bytes)) = content else { return Ok(None) };
            self.base.resize(bytes as usize, 0);
            self.bases.read_unverified(base, cursor, scratch, &mut self.base)?;
            Ok(Some(fingerprint))
        });
        match read {
            Ok(None) => Ok(false),
            Ok(Some(fingerprint)) => {
                Ok(self.bases.fingerprinter().fingerprint(&self.base) == fingerprint)
            }
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
