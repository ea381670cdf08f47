//! Takes the segments of a described volume.

use std::collections::HashMap;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::replica::{ChunkDelta, Described, ReplicaMessage, SourceMessage, Span};
use silt_format::{
    BlockReader, Chunking, Error, Fingerprint, Level, MapRoot, Recipe, Reference, Result,
    SEGMENT_BYTES, SegmentEntry, Volume, segment_count,
};
use silt_repository::objects::is_damage;

use super::arrivals::{Arrival, Arrivals, State, WANTED_BYTES_MAX, Wanting};
use super::deltas::Deltas;
use super::{ReplicaPeer, unexpected};
use crate::map_builder::MapBuilder;
use crate::parent::ParentVolume;
use crate::pipeline::Pipeline;
use crate::scan::{DraftChunk, ScanBuffers, Scanner, SegmentDraft};
use crate::session::{BackupSession, scan_jobs};

/// A described volume that is being added.
struct Adding<'v> {
    /// As it is at the source.
    volume: &'v Volume,
    segments: u64,
    /// Size of the parent's volume in bytes.
    parent_bytes: u64,
    scanner: Scanner,
    map: MapBuilder,
    arrivals: Arrivals,
    buffers: ScanBuffers,
    /// A segment's bytes, of which only new chunks are filled in.
    data: Vec<u8>,
    fingerprints: Vec<Fingerprint>,
    blocks: BlockReader,
    /// The chunks of a frame.
    frame: Vec<u8>,
    /// Once the first delta has come.
    deltas: Option<Deltas>,
    placed: u64,
    /// Whether a segment has no data that has some in the parent.
    loses_data: bool,
    /// Whether the source was told of the parent.
    is_parent_told: bool,
}

impl Adding<'_> {
    /// Size of a segment in bytes.
    fn bytes_of(&self, segment: u64) -> u64 {
        let start = segment * to_u64(SEGMENT_BYTES);
        self.volume.bytes.saturating_sub(start).min(to_u64(SEGMENT_BYTES))
    }

    /// Whether the parent's segment is as long.
    fn is_as_long_in_parent(&self, segment: u64) -> bool {
        let start = segment * to_u64(SEGMENT_BYTES);
        let theirs = self.parent_bytes.saturating_sub(start).min(to_u64(SEGMENT_BYTES));
        self.bytes_of(segment) == theirs
    }

    fn bytes_of_run(&self, first: u64, count: u64) -> u64 {
        let bytes = self.volume.bytes;
        let at = |segment: u64| segment.saturating_mul(to_u64(SEGMENT_BYTES)).min(bytes);
        at(first + count) - at(first)
    }

    /// The parent's entry, if a backup may refer to what it refers to.
    fn parent_entry(&mut self, segment: u64) -> Result<Option<(SegmentEntry, bool)>> {
        let entry = self.scanner.parent_entry(segment, &mut Vec::new())?;
        let Some(entry) = entry else { return Ok(None) };
        let is_usable = self.is_as_long_in_parent(segment)
            && self.scanner.is_usable(&entry, &mut self.buffers)?;
        Ok(Some((entry, is_usable)))
    }

    /// Takes descriptions, and returns the segments whose chunks are needed.
    fn describe(&mut self, segments: Vec<Described>) -> Result<Vec<Span>> {
        let mut needed = Vec::new();
        for described in segments {
            let at = self.arrivals.described;
            let count = match described {
                Described::Zeros(count) | Described::Parent(count) => count,
                Described::Segment(..) => 1,
            };
            if count == 0 || count > self.segments - at {
                return Err(Error::invalid("the source described segments behind the volume"));
            }
            match described {
                Described::Zeros(count) => self.arrivals.push(count, State::Zeros),
                Described::Parent(count) => self.describe_parents(count, &mut needed)?,
                Described::Segment(digest, signatures) => {
                    let parent = self.parent_entry(at)?;
                    match parent {
                        Some((entry, true)) if entry.digest == digest && digest.is_known() => {
                            self.arrivals.push(1, State::Same(entry));
                        }
                        parent => {
                            Span::push(&mut needed, at);
                            let parent = parent.map(|(entry, _)| entry);
                            self.arrivals.push(1, State::Listed(digest, signatures, parent));
                        }
                    }
                }
            }
        }
        Ok(needed)
    }

    /// Takes a frame of chunks that were asked for. Returns the first one's fingerprint.
    fn take_frame(&mut self, block: Vec<u8>) -> Result<Fingerprint> {
        if BlockReader::claimed_bytes(&block)? > WANTED_BYTES_MAX {
            return Err(Error::invalid("the source sent a frame that is too large"));
        }
        self.blocks.decode(&block, &mut self.frame)?;
        self.arrivals.take_frame(&self.frame, block)
    }

    /// The chunks of a segment that have come as deltas with other bytes than they should have.
    fn wrong_chunks(&mut self, wanting: &Wanting) -> Vec<usize> {
        if !wanting.is_doubtful() {
            return Vec::new();
        }
        let places = wanting.places();
        let fingerprinter = &self.scanner.fingerprinter;
        fingerprinter.fingerprint_many(&wanting.bytes, &places, &mut self.fingerprints);
        let found = wanting.wanted.iter().zip(&self.fingerprints);
        let is_wrong = |(number, found): &(&usize, &Fingerprint)| {
            wanting.draft.chunks[**number].fingerprint != **found
        };
        found.filter(is_wrong).map(|(number, _)| *number).collect()
    }

    /// Notes a run of segments of zeros, which may have data in the parent.
    fn note_zeros(&mut self, first: u64, count: u64) -> Result<()> {
        let Some(parent) = self.scanner.parent.as_ref().filter(|_| !self.loses_data) else {
            return Ok(());
        };
        self.loses_data = match parent.reader.next_segment(parent.root, first) {
            Ok(next) => next.is_some_and(|(segment, _)| segment - first < count),
            Err(error) if is_damage(&error) => true,
            Err(error) => return Err(error),
        };
        Ok(())
    }

    /// Takes a run of segments as in the parent; what of it is known to be damaged is asked for.
    fn describe_parents(&mut self, count: u64, needed: &mut Vec<Span>) -> Result<()> {
        if self.scanner.parent.is_none() || !self.is_parent_told {
            return Err(Error::invalid(
                "the source compared with a volume that is not the parent's",
            ));
        }
        let last = self.arrivals.described + count - 1;
        let is_beyond = last >= segment_count(self.parent_bytes);
        // Of all segments, only the last one of a volume can be shorter.
        let is_other = !is_beyond
            && !self.is_as_long_in_parent(last)
            && self.scanner.parent_entry(last, &mut Vec::new())?.is_some();
        if is_beyond || is_other {
            return Err(Error::invalid(
                "the source compared with segments of the parent that are of other sizes",
            ));
        }
        if self.scanner.avoided.is_empty() {
            self.arrivals.push(count, State::Parent);
            return Ok(());
        }
        for _ in 0..count {
            let at = self.arrivals.described;
            match self.parent_entry(at)? {
                None => self.arrivals.push(1, State::Zeros),
                Some((entry, true)) => self.arrivals.push(1, State::Same(entry)),
                Some((entry, false)) => {
                    Span::push(needed, at);
                    let state = State::Listed(entry.digest, entry.signatures, Some(entry));
                    self.arrivals.push(1, state);
                }
            }
        }
        Ok(())
    }

    /// A draft of a segment whose chunks have come as a recipe, which proves its digest.
    fn draft(&mut self, segment: u64, recipe: &[u8]) -> Result<SegmentDraft> {
        let (digest, signatures, parent) = self.arrivals.listed(segment)?;
        let recipe = Recipe::decode(recipe)?;
        let wrong = |why: &str| {
            Error::corrupt(format!("the chunks of segment {segment} that the source sent {why}"))
        };
        if u64::from(recipe.segment_bytes()) != self.bytes_of(segment) {
            return Err(wrong("do not fill it"));
        }
        if !fits(&recipe, self.volume.chunking) {
            return Err(wrong("are not cut as the volume's"));
        }
        if self.scanner.digester.digest_recipe(&recipe, digest.kind) != Some(digest) {
            return Err(wrong("do not have its digest"));
        }
        let mut start = 0;
        let chunks = recipe.chunks.iter().map(|chunk| {
            let range = start..start + chunk.length as usize;
            start = range.end;
            let found = chunk.reference.is_zero().then_some((Reference::ZERO, Level::Zero));
            DraftChunk { range, fingerprint: chunk.fingerprint, found, is_read: true, node: 0 }
        });
        Ok(SegmentDraft {
            index: segment,
            data: Vec::new(),
            chunks: chunks.collect(),
            digest,
            signatures,
            parents: parent.into_iter().collect(),
            parent_numbers: Vec::new(),
            recalled: false,
            is_large: false,
            application: crate::draft::DISKS,
        })
    }
}

/// Whether chunks are as long as a volume's chunking cuts them.
fn fits(recipe: &Recipe, chunking: Chunking) -> bool {
    match chunking {
        Chunking::FastCdc { .. } => true,
        Chunking::Fixed { bytes } => match recipe.chunks.split_last() {
            Some((last, full)) => {
                full.iter().all(|chunk| chunk.length == bytes) && last.length <= bytes
            }
            None => true,
        },
    }
}

impl BackupSession<'_> {
    /// Takes a volume's segments. Returns the root of its map, and whether a segment has no data
    /// that has some in the parent.
    pub(super) fn take_segments(
        &mut self,
        volume: &Volume,
        copy: &mut Volume,
        peer: &mut dyn ReplicaPeer,
    ) -> Result<(MapRoot, bool)> {
        let kind = std::mem::discriminant(&volume.kind);
        let is_it =
            |old: &&Volume| old.name == volume.name && std::mem::discriminant(&old.kind) == kind;
        let parent = self.parent.as_ref().and_then(|parent| parent.volumes.iter().find(is_it));
        let parent_bytes = parent.map_or(0, |old| old.bytes);
        let parent =
            parent.map(|old| ParentVolume { reader: Arc::clone(&self.reader), root: old.root });
        let mut adding = Adding {
            volume,
            segments: segment_count(volume.bytes),
            parent_bytes,
            scanner: self.scanner_beside(parent, volume.chunking)?,
            map: MapBuilder::new(),
            arrivals: Arrivals::default(),
            buffers: ScanBuffers::new(),
            data: self.repository.objects.buffers.segments.take().unwrap_or_default(),
            fingerprints: Vec::new(),
            blocks: BlockReader::default(),
            frame: Vec::new(),
            deltas: None,
            placed: 0,
            loses_data: volume.bytes < parent_bytes,
            is_parent_told: self.parent_is_trusted,
        };
        let workers = self.context.workers(self.budget.workers(scan_jobs(self.options.jobs)));
        let objects = Arc::clone(&self.repository.objects);
        let zstd_level = self.repository.config.zstd_level;
        let pipeline = Pipeline::of_packing(&objects.buffers, zstd_level, workers);
        pipeline.run(|pipeline| {
            self.converse(&mut adding, copy, pipeline, peer)?;
            self.close_containers(pipeline)
        })?;
        objects.buffers.segments.keep([std::mem::take(&mut adding.data)]);
        let parent = adding.scanner.parent.as_ref();
        Ok((adding.map.finish(volume.bytes, &mut self.packs, parent)?, adding.loses_data))
    }

    /// Takes messages until every segment is placed and the source has said that it was the last.
    fn converse(
        &mut self,
        adding: &mut Adding<'_>,
        copy: &mut Volume,
        pipeline: &Pipeline<'_>,
        peer: &mut dyn ReplicaPeer,
    ) -> Result<()> {
        let mut has_ended = false;
        loop {
            while let Some((segment, chunks)) = adding.arrivals.next_to_ask()? {
                peer.send(ReplicaMessage::Want { segment, chunks })?;
            }
            self.place_arrivals(adding, copy, pipeline, peer)?;
            if has_ended && adding.arrivals.is_empty() {
                return Ok(());
            }
            adding.arrivals.require_bounds()?;
            self.lease.keep()?;
            self.context.check_interrupted()?;
            match peer.receive()? {
                SourceMessage::Segments(segments) if !has_ended => {
                    let needed = adding.describe(segments)?;
                    peer.send(ReplicaMessage::Need(needed))?;
                }
                SourceMessage::Chunks { segment, recipe } => {
                    let mut draft = adding.draft(segment, &recipe)?;
                    self.resolve(&mut draft)?;
                    adding.arrivals.resolved(segment, draft)?;
                }
                SourceMessage::Data(bytes) => adding.arrivals.take(&bytes)?,
                SourceMessage::Frame(block) => {
                    let first = adding.take_frame(block)?;
                    // What the source has packed of single chunks is better packed anew.
                    if 2 * adding.frame.len() > self.repository.config.frame_bytes as usize {
                        self.containers.packed_frames().expect(first, adding.frame.len());
                    }
                }
                SourceMessage::Delta(delta) => self.take_delta(adding, &delta)?,
                SourceMessage::End if !has_ended => {
                    if adding.arrivals.described != adding.segments {
                        return Err(Error::invalid("the source ended a volume too early"));
                    }
                    has_ended = true;
                }
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Takes chunks that were asked for, as a delta.
    fn take_delta(&mut self, adding: &mut Adding<'_>, delta: &ChunkDelta) -> Result<()> {
        if adding.deltas.is_none() {
            let kind = std::mem::discriminant(&adding.volume.kind);
            let parent = self.parent.as_ref().filter(|_| adding.is_parent_told);
            let old = parent.and_then(|parent| {
                let mut old = parent.volumes.iter();
                let is_it = |old: &&Volume| {
                    old.name == adding.volume.name && std::mem::discriminant(&old.kind) == kind
                };
                old.find(is_it).map(|old| (parent, old))
            });
            let none = || Error::invalid("the source sent a delta from what is not the parent's");
            let (parent, old) = old.ok_or_else(none)?;
            adding.deltas = Some(Deltas::open(self.repository, self.head(), parent, old)?);
        }
        if let Some(deltas) = &mut adding.deltas {
            adding.arrivals.take_delta(deltas.decode(delta)?)?;
        }
        Ok(())
    }

    /// Places the segments that are complete, in order.
    fn place_arrivals(
        &mut self,
        adding: &mut Adding<'_>,
        copy: &mut Volume,
        pipeline: &Pipeline<'_>,
        peer: &mut dyn ReplicaPeer,
    ) -> Result<()> {
        let before = adding.placed;
        while let Some(mut arrival) = adding.arrivals.pop_complete() {
            let mut again = None;
            if let State::Draft(wanting) = &mut arrival.state {
                let wrong = adding.wrong_chunks(wanting);
                let mut lacking = Vec::new();
                if wanting.borrows() {
                    adding.arrivals.find_borrowed(wanting);
                    let received = wanting.fingerprints();
                    lacking = self.resolve_again(&mut wanting.draft, &received)?;
                }
                again = Some((lacking, wrong));
            }
            if let Some((lacking, wrong)) = again
                && !(lacking.is_empty() && wrong.is_empty())
            {
                let chunks = adding.arrivals.ask_again(&mut arrival, &lacking, &wrong);
                let segment = arrival.first;
                adding.arrivals.push_front(arrival);
                peer.send(ReplicaMessage::Want { segment, chunks })?;
                break;
            }
            adding.placed = arrival.first + arrival.count;
            self.place_arrival(adding, arrival, copy, pipeline)?;
        }
        if adding.placed > before {
            peer.send(ReplicaMessage::Placed { end: adding.placed })?;
        }
        Ok(())
    }

    fn place_arrival(
        &mut self,
        adding: &mut Adding<'_>,
        arrival: Arrival,
        copy: &mut Volume,
        pipeline: &Pipeline<'_>,
    ) -> Result<()> {
        let Arrival { first, count, state } = arrival;
        let bytes = adding.bytes_of_run(first, count);
        match state {
            State::Zeros => {
                copy.levels.add(Level::Zero, bytes);
                adding.note_zeros(first, count)?;
                adding.map.push_zeros(count, &mut self.packs, adding.scanner.parent.as_ref())
            }
            State::Parent => {
                copy.levels.add(Level::Digest, bytes);
                let parent = adding.scanner.parent.as_ref();
                let parent = parent.ok_or_else(|| Error::invalid("there is no parent"))?;
                adding.map.push_parents(first..first + count, &mut self.packs, parent)
            }
            State::Same(entry) => {
                copy.levels.add(Level::Digest, bytes);
                adding.map.push(Some(entry), &mut self.packs, adding.scanner.parent.as_ref())
            }
            State::Draft(mut wanting) => {
                fill(adding, &mut wanting)?;
                // Chunks of a frame are in this segment and in those before it: all are verified.
                for frame in wanting.frames.drain(..) {
                    self.containers.packed_frames().add(frame);
                }
                let entry = self.place(&mut wanting.draft, pipeline, copy)?;
                adding.arrivals.placed(&wanting);
                adding.data = std::mem::take(&mut wanting.draft.data);
                adding.map.push(Some(entry), &mut self.packs, adding.scanner.parent.as_ref())
            }
            State::Listed(..) => Err(Error::invalid("a segment is placed before its chunks came")),
        }
    }
}

/// Puts the bytes of every chunk that no level has found to its place in the segment, and verifies
/// them.
fn fill(adding: &mut Adding<'_>, wanting: &mut Wanting) -> Result<()> {
    let Wanting { draft, wanted, bytes, .. } = wanting;
    let (mut places, mut ranges, mut at) = (HashMap::new(), Vec::new(), 0);
    for number in &*wanted {
        let chunk = &draft.chunks[*number];
        let range = at..at + chunk.range.len();
        at = range.end;
        ranges.push(range.clone());
        places.insert(chunk.fingerprint, range);
    }
    adding.scanner.fingerprinter.fingerprint_many(bytes, &ranges, &mut adding.fingerprints);
    for (number, found) in wanted.iter().zip(&adding.fingerprints) {
        if *found != draft.chunks[*number].fingerprint {
            return Err(Error::corrupt(format!(
                "chunk {number} of segment {} that the source sent does not have its fingerprint",
                draft.index
            )));
        }
    }
    if to_u64(bytes.len()) == adding.bytes_of(draft.index) && wanted.is_sorted() {
        // All of them, one after the other.
        draft.data = std::mem::take(bytes);
        return Ok(());
    }
    let mut data = std::mem::take(&mut adding.data);
    data.resize(to_usize(adding.bytes_of(draft.index)), 0);
    for chunk in draft.chunks.iter().filter(|chunk| chunk.found.is_none()) {
        let place = places.get(&chunk.fingerprint).filter(|at| at.len() == chunk.range.len());
        let place = place.ok_or_else(|| Error::invalid("a chunk was neither found nor sent"))?;
        data[chunk.range.clone()].copy_from_slice(&bytes[place.clone()]);
    }
    draft.data = data;
    Ok(())
}
