//! Segments on their way, from their description to their place in the map.

#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use silt_format::number::to_u64;
use silt_format::replica::Span;
use silt_format::{
    Error, Fingerprint, Level, Reference, Result, SegmentDigest, SegmentEntry, Signatures,
};

use crate::packed_frames::PackedFrame;
use crate::scan::SegmentDraft;

/// Maximum size of chunks that are asked for and not placed, in bytes; one segment may be more.
pub(super) const WANTED_BYTES_MAX: usize = 8 << 20;

/// Maximum number of segments whose chunks are asked for at once.
const SEGMENTS_ASKED_MAX: usize = 512;
/// Maximum number of segments and runs that are described and not placed: far more than a source
/// describes ahead.
const ARRIVALS_MAX: usize = 32_768;
/// Maximum number of segments whose chunks were listed and not asked for.
const UNASKED_MAX: usize = 1024;

/// A run of segments, or a segment, that is not in the map yet.
pub(super) struct Arrival {
    /// The first segment's number.
    pub first: u64,
    /// Number of segments; more than one only of zeros and of those as in the parent.
    pub count: u64,
    pub state: State,
}

pub(super) enum State {
    Zeros,
    /// As in the parent.
    Parent,
    /// The parent has the same segment.
    Same(SegmentEntry),
    /// Its chunks are asked for.
    Listed(SegmentDigest, Signatures, Option<SegmentEntry>),
    /// Its chunks are known.
    Draft(Box<Wanting>),
}

/// A segment whose new chunks are on their way.
pub(super) struct Wanting {
    pub draft: SegmentDraft,
    /// Numbers of the chunks that were asked for, in the order in which their bytes come.
    pub wanted: Vec<usize>,
    /// Their bytes, as far as they have come.
    pub bytes: Vec<u8>,
    /// How many bytes they have.
    pub wanted_bytes: usize,
    /// Whether they were asked for.
    is_asked: bool,
    /// The fingerprints of chunks that are on their way for this or an earlier segment.
    borrowed: Vec<Fingerprint>,
    /// Frames that end in this segment.
    pub frames: Vec<PackedFrame>,
    /// Whether bytes of it have come as deltas, so that they may be wrong for no fault of the
    /// source's.
    has_deltas: bool,
    /// Whether some of its chunks were asked for once more.
    is_asked_again: bool,
}

/// A chunk that is on its way.
#[derive(Default)]
struct Coming {
    /// How many chunks wait for it beside the one that was asked for.
    borrowers: usize,
    /// Where it was placed.
    placed: Option<Reference>,
}

impl Wanting {
    /// Whether some of its chunks are not found and were not asked for: they are on their way for
    /// an earlier segment, or were.
    pub fn borrows(&self) -> bool {
        !self.borrowed.is_empty()
    }

    /// The fingerprints of the chunks that were asked for.
    pub fn fingerprints(&self) -> HashSet<Fingerprint> {
        self.wanted.iter().map(|number| self.draft.chunks[*number].fingerprint).collect()
    }

    /// Whether its chunks are to be compared with their fingerprints before they are needed, and
    /// asked for once more otherwise.
    pub fn is_doubtful(&self) -> bool {
        self.has_deltas && !self.is_asked_again
    }

    /// Where the chunks that were asked for are in the bytes that have come.
    pub fn places(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let place = |number: &usize| {
            let start = end;
            end += self.draft.chunks[*number].range.len();
            start..end
        };
        self.wanted.iter().map(place).collect()
    }

    /// Forgets chunks that have come, and that were asked for.
    fn forget(&mut self, wrong: &[usize]) {
        let mut kept = Vec::with_capacity(self.bytes.len());
        let places = self.places();
        for (number, place) in self.wanted.iter().zip(places) {
            if !wrong.contains(number) {
                kept.extend_from_slice(&self.bytes[place]);
            }
        }
        self.wanted.retain(|number| !wrong.contains(number));
        self.wanted_bytes = kept.len();
        self.bytes = kept;
    }

    pub fn is_complete(&self) -> bool {
        self.is_asked && self.bytes.len() == self.wanted_bytes
    }
}

/// The segments on their way, in the order of the volume.
#[derive(Default)]
pub(super) struct Arrivals {
    waiting: VecDeque<Arrival>,
    /// Segments whose chunks were asked for, once for each time.
    expected: VecDeque<u64>,
    /// Segments whose chunks are to be asked for.
    unasked: VecDeque<u64>,
    /// Bytes that were asked for, of segments that are not placed.
    asked_bytes: usize,
    /// Chunks that are on their way, or were placed and others wait for them.
    coming: HashMap<Fingerprint, Coming>,
    /// The number of the next segment that is described.
    pub described: u64,
}

impl Arrivals {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds what comes next in the volume.
    pub fn push(&mut self, count: u64, state: State) {
        self.waiting.push_back(Arrival { first: self.described, count, state });
        self.described += count;
    }

    /// Fails with `Invalid` if the source is further ahead than it may be.
    pub fn require_bounds(&self) -> Result<()> {
        if self.waiting.len() <= ARRIVALS_MAX && self.unasked.len() <= UNASKED_MAX {
            return Ok(());
        }
        Err(Error::invalid("the source describes more than it may at once"))
    }

    /// The next one, if it can be placed now.
    pub fn pop_complete(&mut self) -> Option<Arrival> {
        let is_complete = match &self.waiting.front()?.state {
            State::Listed(..) => false,
            State::Draft(wanting) => wanting.is_complete(),
            _ => true,
        };
        if is_complete { self.waiting.pop_front() } else { None }
    }

    /// Puts back what could not be placed.
    pub fn push_front(&mut self, arrival: Arrival) {
        self.waiting.push_front(arrival);
    }

    /// The place of the segment of this number, which must be described and not placed.
    fn position(&self, segment: u64) -> Result<usize> {
        let place = self.waiting.partition_point(|arrival| arrival.first < segment);
        let found = self.waiting.get(place).filter(|arrival| arrival.first == segment);
        found
            .map(|_| place)
            .ok_or_else(|| Error::invalid(format!("nobody asked for segment {segment}")))
    }

    fn find(&mut self, segment: u64) -> Result<&mut Arrival> {
        let place = self.position(segment)?;
        Ok(&mut self.waiting[place])
    }

    /// The digest of a segment whose chunks were asked for, and the parent's entry beside it.
    pub fn listed(
        &mut self,
        segment: u64,
    ) -> Result<(SegmentDigest, Signatures, Option<SegmentEntry>)> {
        match &self.find(segment)?.state {
            State::Listed(digest, signatures, parent) => Ok((*digest, *signatures, *parent)),
            _ => Err(Error::invalid(format!("the chunks of segment {segment} came unasked"))),
        }
    }

    /// Notes the chunks of a segment. Those that no level has found, and that are not on their way
    /// already, are to be asked for.
    pub fn resolved(&mut self, segment: u64, draft: SegmentDraft) -> Result<()> {
        let mut wanting = Wanting {
            draft,
            wanted: Vec::new(),
            bytes: Vec::new(),
            wanted_bytes: 0,
            is_asked: false,
            borrowed: Vec::new(),
            frames: Vec::new(),
            has_deltas: false,
            is_asked_again: false,
        };
        for (number, chunk) in wanting.draft.chunks.iter().enumerate() {
            if chunk.found.is_some() {
                continue;
            }
            match self.coming.entry(chunk.fingerprint) {
                Entry::Occupied(mut coming) => {
                    coming.get_mut().borrowers += 1;
                    wanting.borrowed.push(chunk.fingerprint);
                }
                Entry::Vacant(none) => {
                    none.insert(Coming::default());
                    wanting.wanted.push(number);
                    wanting.wanted_bytes += chunk.range.len();
                }
            }
        }
        self.find(segment)?.state = State::Draft(Box::new(wanting));
        self.unasked.push_back(segment);
        Ok(())
    }

    /// The next chunks to ask for, if there is room for them.
    pub fn next_to_ask(&mut self) -> Result<Option<(u64, Vec<Span>)>> {
        let Some(&segment) = self.unasked.front() else { return Ok(None) };
        let (asked_bytes, asked) = (self.asked_bytes, self.expected.len());
        let State::Draft(wanting) = &mut self.find(segment)?.state else { return Ok(None) };
        let bytes = wanting.wanted_bytes;
        let is_full = asked_bytes > 0 && asked_bytes + bytes > WANTED_BYTES_MAX;
        if is_full || (bytes > 0 && asked >= SEGMENTS_ASKED_MAX) {
            return Ok(None);
        }
        wanting.is_asked = true;
        let mut spans = Vec::new();
        wanting.wanted.iter().for_each(|number| Span::push(&mut spans, to_u64(*number)));
        self.unasked.pop_front();
        if bytes > 0 {
            self.expected.push_back(segment);
            self.asked_bytes += bytes;
        }
        Ok(Some((segment, spans)))
    }

    /// Asks for chunks of a segment that were expected to be known by now, and for those that have
    /// come with `wrong` bytes.
    pub fn ask_again(
        &mut self,
        arrival: &mut Arrival,
        lacking: &[usize],
        wrong: &[usize],
    ) -> Vec<Span> {
        let State::Draft(wanting) = &mut arrival.state else { return Vec::new() };
        let before = wanting.wanted_bytes;
        wanting.forget(wrong);
        wanting.is_asked_again = true;
        self.asked_bytes -= before - wanting.wanted_bytes;
        let mut all: Vec<usize> = lacking.iter().chain(wrong).copied().collect();
        all.sort_unstable();
        let mut spans = Vec::new();
        for number in &all {
            let bytes = wanting.draft.chunks[*number].range.len();
            wanting.wanted.push(*number);
            wanting.wanted_bytes += bytes;
            self.asked_bytes += bytes;
            Span::push(&mut spans, to_u64(*number));
        }
        self.expected.push_back(arrival.first);
        spans
    }

    /// Takes bytes of chunks in the order in which they were asked for.
    pub fn take(&mut self, bytes: &[u8]) -> Result<()> {
        self.take_from(bytes, false)
    }

    /// Takes bytes that a delta decodes to.
    ///
    /// Fails with `Invalid` unless they are whole chunks.
    pub fn take_delta(&mut self, bytes: &[u8]) -> Result<()> {
        let is_before = self.is_between_chunks()?;
        self.take_from(bytes, true)?;
        if is_before && self.is_between_chunks()? {
            return Ok(());
        }
        Err(Error::invalid("the source sent a delta that is not of whole chunks"))
    }

    fn take_from(&mut self, mut bytes: &[u8], is_delta: bool) -> Result<()> {
        while !bytes.is_empty() {
            let unasked = || Error::invalid("the source sent data that nobody asked for");
            let segment = *self.expected.front().ok_or_else(unasked)?;
            let State::Draft(wanting) = &mut self.find(segment)?.state else {
                return Err(unasked());
            };
            wanting.has_deltas |= is_delta;
            let left = wanting.wanted_bytes - wanting.bytes.len();
            let part = bytes.len().min(left);
            wanting.bytes.reserve_exact(left);
            wanting.bytes.extend_from_slice(&bytes[..part]);
            let is_whole = wanting.bytes.len() == wanting.wanted_bytes;
            bytes = &bytes[part..];
            if is_whole {
                self.expected.pop_front();
            }
        }
        Ok(())
    }

    /// Takes a frame that decodes to the next chunks. Returns the first one's fingerprint.
    ///
    /// Fails with `Invalid` unless it stands for whole chunks that were asked for.
    pub fn take_frame(&mut self, raw: &[u8], block: Vec<u8>) -> Result<Fingerprint> {
        let wrong = || Error::invalid("the source sent a frame that is not of whole chunks");
        let (mut chunks, mut bytes, mut last) = (Vec::new(), 0, None);
        for segment in &self.expected {
            let State::Draft(wanting) = &self.waiting[self.position(*segment)?].state else {
                return Err(wrong());
            };
            let mut end = 0;
            for number in &wanting.wanted {
                let chunk = &wanting.draft.chunks[*number];
                let start = end;
                end += chunk.range.len();
                if start < wanting.bytes.len() || bytes >= raw.len() {
                    continue;
                }
                bytes += chunk.range.len();
                chunks.push(chunk.fingerprint);
                last = Some(*segment);
            }
            if bytes >= raw.len() {
                break;
            }
        }
        let (Some(last), Some(first)) = (last, chunks.first().copied()) else {
            return Err(wrong());
        };
        if bytes != raw.len() || !self.is_between_chunks()? {
            return Err(wrong());
        }
        self.take(raw)?;
        if let State::Draft(wanting) = &mut self.find(last)?.state {
            wanting.frames.push(PackedFrame { chunks, block });
        }
        Ok(first)
    }

    /// Whether the bytes that have come end with a chunk.
    fn is_between_chunks(&self) -> Result<bool> {
        let Some(segment) = self.expected.front() else { return Ok(true) };
        let State::Draft(wanting) = &self.waiting[self.position(*segment)?].state else {
            return Ok(true);
        };
        let mut end = 0;
        for number in &wanting.wanted {
            if end >= wanting.bytes.len() {
                break;
            }
            end += wanting.draft.chunks[*number].range.len();
        }
        Ok(end == wanting.bytes.len())
    }

    /// Finds chunks of a segment that an earlier one has brought.
    pub fn find_borrowed(&self, wanting: &mut Wanting) {
        let unfound = wanting.draft.chunks.iter_mut().filter(|chunk| chunk.found.is_none());
        for chunk in unfound {
            let coming = self.coming.get(&chunk.fingerprint);
            let placed = coming.and_then(|coming| coming.placed);
            chunk.found = placed.map(|reference| (reference, Level::Recent));
        }
    }

    /// Keeps the places of a segment's new chunks for those that wait for them, and forgets the
    /// others. The segment was placed, so all of its chunks are found.
    pub fn placed(&mut self, wanting: &Wanting) {
        self.asked_bytes -= wanting.wanted_bytes;
        for number in &wanting.wanted {
            let chunk = &wanting.draft.chunks[*number];
            if let Entry::Occupied(mut coming) = self.coming.entry(chunk.fingerprint) {
                coming.get_mut().placed = chunk.found.map(|(reference, _)| reference);
                if coming.get().borrowers == 0 {
                    coming.remove();
                }
            }
        }
        for fingerprint in &wanting.borrowed {
            if let Entry::Occupied(mut coming) = self.coming.entry(*fingerprint) {
                coming.get_mut().borrowers -= 1;
                if coming.get().borrowers == 0 {
                    coming.remove();
                }
            }
        }
    }
}
