//! Chunks that planned segments need of frames that are decoded before: a few of each frame are
//! kept, so that it is not decoded again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use silt_format::number::to_u64;

/// What a segment needs of a frame.
pub struct Needed<K, P> {
    /// Tells the frame from others.
    pub key: K,
    /// Where it is read.
    pub place: P,
    /// Ascending.
    pub slots: Vec<u16>,
}

/// Some chunks of a frame.
pub struct Picked {
    /// Their slots, ascending, and where each is in the bytes.
    slots: Vec<(u16, Range<usize>)>,
    bytes: Vec<u8>,
}

impl Picked {
    /// The chunks of these slots, ascending, as `chunk` tells them.
    pub fn of<'r>(slots: Vec<u16>, chunk: impl Fn(u16) -> Option<&'r [u8]>) -> Self {
        let found = |slot: u16| Some((slot, chunk(slot)?));
        let chunks: Vec<(u16, &[u8])> = slots.into_iter().filter_map(found).collect();
        let bytes = chunks.iter().map(|(_, chunk)| chunk.len()).sum();
        let mut picked =
            Self { slots: Vec::with_capacity(chunks.len()), bytes: Vec::with_capacity(bytes) };
        for (slot, chunk) in chunks {
            let start = picked.bytes.len();
            picked.bytes.extend_from_slice(chunk);
            picked.slots.push((slot, start..picked.bytes.len()));
        }
        picked
    }

    /// All chunks, one behind the other.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Where the chunk of a slot is in the bytes.
    pub fn range(&self, slot: u16) -> Option<Range<usize>> {
        let at = self.slots.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(self.slots[at].1.clone())
    }

    /// The lowest slot, which no other group of the same frame has.
    fn first_slot(&self) -> u16 {
        self.slots.first().map_or(u16::MAX, |(slot, _)| *slot)
    }

    /// Bytes that it takes in a cache.
    pub fn weight(&self) -> usize {
        // What the cache itself takes for each value.
        128 + self.bytes.len() + self.slots.len() * size_of::<(u16, Range<usize>)>()
    }
}

/// The chunks that planned segments need; any number of threads can share them.
///
/// `K` tells frames from each other, and `P` where a frame is read.
pub struct Retained<K, P> {
    state: Mutex<State<K, P>>,
}

struct State<K, P> {
    frames: HashMap<K, Frame<P>>,
    /// The frames that segments need.
    segments: HashMap<u64, Vec<K>>,
    /// The last segment that has begun.
    begun: u64,
    kept: HashMap<K, Vec<Group>>,
    /// What the kept groups weigh, their frames and first slots, by the segment that needs them
    /// first.
    weights: BTreeMap<u64, BTreeSet<(usize, K, u16)>>,
    /// What all kept chunks weigh, and may weigh.
    bytes: usize,
    bytes_max: usize,
}

/// What segments that are not restored need of a frame.
struct Frame<P> {
    place: P,
    /// Ascending by segment.
    needs: Vec<Need>,
}

struct Need {
    segment: u64,
    slots: Vec<u16>,
    has_begun: bool,
}

impl Need {
    /// The slots of a frame by the segment that needs them first.
    fn by_segment<'n>(needs: impl Iterator<Item = &'n Self>) -> Vec<(u64, Vec<u16>)> {
        let (mut seen, mut groups) = (Vec::new(), Vec::new());
        for need in needs {
            let is_new = |slot: &u16| seen.binary_search(slot).is_err();
            let slots: Vec<u16> = need.slots.iter().copied().filter(is_new).collect();
            if slots.is_empty() {
                continue;
            }
            seen.extend_from_slice(&slots);
            seen.sort_unstable();
            groups.push((need.segment, slots));
        }
        groups
    }
}

/// Kept chunks of a frame, and the segment that needs them first.
struct Group {
    segment: u64,
    picked: Arc<Picked>,
}

impl<K: Copy + Hash + Ord, P: Clone> Retained<K, P> {
    /// Keeps at most about so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        let state = State {
            frames: HashMap::new(),
            segments: HashMap::new(),
            begun: 0,
            kept: HashMap::new(),
            weights: BTreeMap::new(),
            bytes: 0,
            bytes_max,
        };
        Self { state: Mutex::new(state) }
    }

    /// Keeps at most about so many bytes from now on; what is kept already stays.
    pub fn limit(&self, bytes_max: usize) {
        self.state().bytes_max = bytes_max;
    }

    fn state(&self) -> MutexGuard<'_, State<K, P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment to come needs these chunks.
    pub fn plan(&self, segment: u64, needed: Vec<Needed<K, P>>) {
        let state = &mut *self.state();
        let keys = state.segments.entry(segment).or_default();
        for Needed { key, place, slots } in needed {
            keys.push(key);
            let frame =
                state.frames.entry(key).or_insert_with(|| Frame { place, needs: Vec::new() });
            let before = frame.needs.partition_point(|need| need.segment <= segment);
            frame.needs.insert(before, Need { segment, slots, has_begun: false });
        }
    }

    /// A segment is restored now: what is decoded from now on is not kept for it.
    pub fn begin(&self, segment: u64) {
        let State { frames, segments, begun, .. } = &mut *self.state();
        *begun = segment.max(*begun);
        for key in segments.get(&segment).into_iter().flatten() {
            let Some(frame) = frames.get_mut(key) else { continue };
            let needs = frame.needs.iter_mut().filter(|need| need.segment == segment);
            needs.for_each(|need| need.has_begun = true);
        }
    }

    /// A segment needs its chunks no longer.
    pub fn restored(&self, segment: u64) {
        let state = &mut *self.state();
        for key in state.segments.remove(&segment).unwrap_or_default() {
            let Some(frame) = state.frames.get_mut(&key) else { continue };
            frame.needs.retain(|need| need.segment != segment);
            if frame.needs.is_empty() {
                state.frames.remove(&key);
            }
            state.regroup(key, segment);
        }
    }

    /// The chunk of a slot, if it is kept.
    pub fn get(&self, frame: K, slot: u16) -> Option<(Arc<Picked>, Range<usize>)> {
        let state = self.state();
        state.kept.get(&frame)?.iter().find_map(|group| {
            let range = group.picked.range(slot)?;
            Some((Arc::clone(&group.picked), range))
        })
    }

    /// Keeps what segments that have not begun need of a decoded frame, whose chunks `chunk` tells.
    ///
    /// Without room, what takes the most memory for the longest time is dropped, of this frame and
    /// of others. Returns where the frames are that segments will have to decode again.
    pub fn pick<'r>(&self, key: K, chunk: impl Fn(u16) -> Option<&'r [u8]>) -> Vec<P> {
        let groups = {
            let state = self.state();
            let Some(frame) = state.frames.get(&key) else { return Vec::new() };
            Need::by_segment(frame.needs.iter().filter(|need| !need.has_begun))
        };
        if groups.is_empty() {
            return Vec::new();
        }
        let picked = |(segment, slots)| Group { segment, picked: Picked::of(slots, &chunk).into() };
        let mut groups: Vec<Group> = groups.into_iter().map(picked).collect();
        let state = &mut *self.state();
        // Meanwhile segments may have been restored.
        groups.retain(|it| !it.picked.slots.is_empty() && state.segments.contains_key(&it.segment));
        if !groups.is_empty() {
            state.replace(key, groups);
        }
        state.make_room()
    }
}

impl<K: Copy + Hash + Ord, P: Clone> State<K, P> {
    /// Keeps these chunks of a frame and no others.
    fn replace(&mut self, key: K, groups: Vec<Group>) {
        for group in self.kept.remove(&key).unwrap_or_default() {
            self.forget(key, &group);
        }
        for Group { segment, picked } in &groups {
            self.bytes += picked.weight();
            let weights = self.weights.entry(*segment).or_default();
            weights.insert((picked.weight(), key, picked.first_slot()));
        }
        if !groups.is_empty() {
            self.kept.insert(key, groups);
        }
    }

    /// A group of a frame is not kept any more.
    fn forget(&mut self, key: K, Group { segment, picked }: &Group) {
        self.bytes -= picked.weight();
        let Some(weights) = self.weights.get_mut(segment) else { return };
        weights.remove(&(picked.weight(), key, picked.first_slot()));
        if weights.is_empty() {
            self.weights.remove(segment);
        }
    }

    /// What was kept for a segment is kept for the next ones that need it.
    fn regroup(&mut self, key: K, segment: u64) {
        let Some(kept) = self.kept.get(&key) else { return };
        if kept.iter().all(|group| group.segment != segment) {
            return;
        }
        let needs = self.frames.get(&key).map_or(&[][..], |frame| &frame.needs);
        let needs = Need::by_segment(needs.iter());
        let mut groups = Vec::new();
        for Group { segment: first, picked } in kept {
            if *first != segment {
                groups.push(Group { segment: *first, picked: Arc::clone(picked) });
                continue;
            }
            for (segment, slots) in &needs {
                let here = |slot: &u16| picked.range(*slot).is_some();
                let slots: Vec<u16> = slots.iter().copied().filter(here).collect();
                let picked = match slots.len() {
                    0 => continue,
                    all if all == picked.slots.len() => Arc::clone(picked),
                    _ => Arc::new(Picked::of(slots, |slot| {
                        picked.range(slot).map(|range| &picked.bytes[range])
                    })),
                };
                groups.push(Group { segment: *segment, picked });
            }
        }
        self.replace(key, groups);
    }

    /// Drops chunks until the others have room; returns where their frames are.
    fn make_room(&mut self) -> Vec<P> {
        let mut dropped = Vec::new();
        while self.bytes > self.bytes_max {
            let begun = self.begun;
            let heaviest = |(segment, weights): (&u64, &BTreeSet<(usize, K, u16)>)| {
                let (weight, key, slot) = *weights.last()?;
                Some((to_u64(weight) * segment.saturating_sub(begun), key, slot))
            };
            let costly = self.weights.iter().filter_map(heaviest).max_by_key(|(cost, ..)| *cost);
            let Some((_, key, slot)) = costly else { break };
            let Some(groups) = self.kept.get_mut(&key) else { break };
            let first = |group: &Group| group.picked.first_slot() == slot;
            let Some(at) = groups.iter().position(first) else { break };
            let group = groups.swap_remove(at);
            if groups.is_empty() {
                self.kept.remove(&key);
            }
            self.forget(key, &group);
            dropped.extend(self.frames.get(&key).map(|frame| frame.place.clone()));
        }
        dropped
    }
}

#[cfg(test)]
mod tests;
