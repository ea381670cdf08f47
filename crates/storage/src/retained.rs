//! Chunks that planned segments need of frames that are decoded before: a few of each frame are
//! kept, so that it is not decoded again.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a segment needs of a frame: its key, and slots, ascending.
pub type Needed<K> = (K, Vec<u16>);

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

    /// Bytes that it takes in a cache.
    pub fn weight(&self) -> usize {
        // What the cache itself takes for each value.
        128 + self.bytes.len() + self.slots.len() * size_of::<(u16, Range<usize>)>()
    }
}

/// The chunks that planned segments need; any number of threads can share them.
///
/// `K` tells frames from each other.
pub struct Retained<K> {
    state: Mutex<State<K>>,
}

struct State<K> {
    frames: HashMap<K, Frame>,
    /// What segments need, and whether they have begun.
    segments: HashMap<u64, (Vec<Needed<K>>, bool)>,
    /// What all kept chunks weigh, and may weigh.
    bytes: usize,
    bytes_max: usize,
}

#[derive(Default)]
struct Frame {
    /// Ascending.
    slots: Vec<Wanted>,
    kept: Option<Arc<Picked>>,
}

/// How many segments need a slot, and how many of them have not begun.
struct Wanted {
    slot: u16,
    users: u32,
    waiting: u32,
}

impl Frame {
    fn change(&mut self, slot: u16, change: impl Fn(&mut Wanted)) {
        if let Ok(at) = self.slots.binary_search_by_key(&slot, |wanted| wanted.slot) {
            change(&mut self.slots[at]);
        }
    }

    fn want(&mut self, slot: u16) {
        match self.slots.binary_search_by_key(&slot, |wanted| wanted.slot) {
            Ok(at) => {
                self.slots[at].users += 1;
                self.slots[at].waiting += 1;
            }
            Err(at) => self.slots.insert(at, Wanted { slot, users: 1, waiting: 1 }),
        }
    }
}

impl<K: Copy + Eq + Hash> Retained<K> {
    /// Keeps at most about so many bytes.
    pub fn new(bytes_max: usize) -> Self {
        let (frames, segments) = (HashMap::new(), HashMap::new());
        Self { state: Mutex::new(State { frames, segments, bytes: 0, bytes_max }) }
    }

    /// Keeps at most about so many bytes from now on; what is kept already stays.
    pub fn limit(&self, bytes_max: usize) {
        self.state().bytes_max = bytes_max;
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment to come needs these chunks.
    pub fn plan(&self, segment: u64, needed: Vec<Needed<K>>) {
        let state = &mut *self.state();
        for (frame, slots) in &needed {
            let frame = state.frames.entry(*frame).or_default();
            slots.iter().for_each(|slot| frame.want(*slot));
        }
        state.segments.insert(segment, (needed, false));
    }

    /// A segment is restored now: what is decoded from now on is not kept for it.
    pub fn begin(&self, segment: u64) {
        let State { frames, segments, .. } = &mut *self.state();
        let Some((needed, has_begun)) = segments.get_mut(&segment) else { return };
        if std::mem::replace(has_begun, true) {
            return;
        }
        for (frame, slots) in needed {
            let Some(frame) = frames.get_mut(frame) else { continue };
            slots.iter().for_each(|slot| frame.change(*slot, |wanted| wanted.waiting -= 1));
        }
    }

    /// A segment needs its chunks no longer.
    pub fn restored(&self, segment: u64) {
        let state = &mut *self.state();
        let Some((needed, has_begun)) = state.segments.remove(&segment) else { return };
        for (key, slots) in needed {
            let Some(frame) = state.frames.get_mut(&key) else { continue };
            for slot in slots {
                frame.change(slot, |wanted| {
                    wanted.users -= 1;
                    wanted.waiting -= u32::from(!has_begun);
                });
            }
            frame.slots.retain(|wanted| wanted.users > 0);
            if frame.slots.is_empty() {
                let kept = state.frames.remove(&key).and_then(|frame| frame.kept);
                state.bytes -= kept.map_or(0, |kept| kept.weight());
            }
        }
    }

    /// The chunk of a slot, if it is kept.
    pub fn get(&self, frame: K, slot: u16) -> Option<(Arc<Picked>, Range<usize>)> {
        let state = self.state();
        let kept = state.frames.get(&frame)?.kept.as_ref()?;
        Some((Arc::clone(kept), kept.range(slot)?))
    }

    /// Keeps what segments that have not begun need of a decoded frame, whose chunks `chunk` tells.
    /// Returns whether such a segment will have to decode it again.
    pub fn pick<'r>(&self, key: K, chunk: impl Fn(u16) -> Option<&'r [u8]>) -> bool {
        let slots: Vec<u16> = {
            let state = self.state();
            let Some(frame) = state.frames.get(&key) else { return false };
            frame.slots.iter().filter(|it| it.waiting > 0).map(|it| it.slot).collect()
        };
        if slots.is_empty() {
            return false;
        }
        let picked = Picked::of(slots, chunk);
        let bytes = picked.weight();
        let state = &mut *self.state();
        // Meanwhile the segments may have been restored.
        let Some(frame) = state.frames.get_mut(&key) else { return false };
        let before = frame.kept.as_ref().map_or(0, |kept| kept.weight());
        if state.bytes - before + bytes > state.bytes_max {
            return true;
        }
        state.bytes = state.bytes - before + bytes;
        frame.kept = Some(Arc::new(picked));
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u8 = 7;
    /// Chunks of 100 bytes of the slot's number.
    static CHUNKS: [[u8; 100]; 8] =
        [[0; 100], [1; 100], [2; 100], [3; 100], [4; 100], [5; 100], [6; 100], [7; 100]];

    fn chunk(slot: u16) -> Option<&'static [u8]> {
        Some(CHUNKS.get(usize::from(slot))?)
    }

    fn kept(retained: &Retained<u8>) -> Vec<u16> {
        (0..8).filter(|slot| retained.get(FRAME, *slot).is_some()).collect()
    }

    #[test]
    fn what_segments_to_come_need_is_kept_until_they_are_restored() {
        let retained = Retained::new(1 << 20);
        for (segment, slots) in [(3, vec![0, 1]), (5, vec![1, 6]), (9, vec![7])] {
            retained.plan(segment, vec![(FRAME, slots)]);
        }
        retained.begin(3);
        assert!(!retained.pick(FRAME, chunk));
        assert_eq!(kept(&retained), [1, 6, 7], "the first segment has the frame now");
        let (picked, range) = retained.get(FRAME, 6).unwrap();
        assert_eq!(picked.bytes()[range], [6; 100]);
        retained.restored(3);
        for segment in [5, 9] {
            retained.begin(segment);
            assert_eq!(kept(&retained), [1, 6, 7]);
            retained.restored(segment);
        }
        assert!(kept(&retained).is_empty());
        let state = retained.state();
        assert!(state.frames.is_empty() && state.segments.is_empty());
        assert_eq!(state.bytes, 0);
    }

    #[test]
    fn without_room_the_frame_is_decoded_again() {
        let retained = Retained::new(500);
        retained.plan(1, vec![(FRAME, (0..8).collect())]);
        assert!(retained.pick(FRAME, chunk));
        assert!(kept(&retained).is_empty());
        assert!(!retained.pick(8, chunk), "nobody needs this one");
        retained.restored(1);
        retained.plan(2, vec![(FRAME, vec![2, 3])]);
        assert!(!retained.pick(FRAME, chunk));
        assert_eq!(kept(&retained), [2, 3]);
        retained.restored(2);
        let state = retained.state();
        assert!(state.frames.is_empty() && state.bytes == 0, "neither has begun");
    }
}
