//! A cache of chunks that deltas are applied to.
//!
//! Bases lie in many frames, and deltas need a few chunks of each. So of each frame that is
//! decoded, this keeps the chunks that deltas of the containers opened last need, rather than all.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};

use silt_format::{Directory, PRIVATE_STORE, Reference, SeriesId};
use silt_storage::retained::Picked;

use crate::cache::WeightedCache;
use crate::container::ContainerKey;
use crate::sync::lock;

/// The most bases of containers with deltas that are known, about twenty bytes each.
const WANTED_MAX: usize = 128 << 10;

/// A frame's container and number.
pub(crate) type FrameKey = (ContainerKey, u16);

/// Bases by the frames that they are in; any number of readers can share them.
pub(crate) struct BaseCache {
    frames: Mutex<WeightedCache<FrameKey, Arc<Picked>>>,
    wanted: Mutex<Wanted>,
}

/// A chunk that a delta is applied to.
pub(crate) enum Base {
    /// Kept here.
    Kept(Arc<Picked>, Range<usize>),
    /// In a decoded frame.
    InFrame(Arc<Vec<u8>>, Range<usize>),
}

impl Deref for Base {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Kept(picked, range) => &picked.bytes()[range.clone()],
            Self::InFrame(frame, range) => &frame[range.clone()],
        }
    }
}

/// The bases of the deltas of containers that were opened last.
#[derive(Default)]
struct Wanted {
    /// The bases of each container's deltas, ascending.
    bases: VecDeque<(ContainerKey, Vec<Reference>)>,
    /// The number of all bases.
    count: usize,
    /// The slots that are bases, by series and container, with the number of containers whose
    /// deltas need them.
    slots: HashMap<(SeriesId, u32), BTreeMap<u16, u32>>,
}

impl BaseCache {
    /// Holds at most about this many bytes of bases.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { frames: Mutex::new(WeightedCache::new(bytes)), wanted: Mutex::default() }
    }

    /// The bases of this container's deltas will be needed.
    pub(crate) fn want(&self, container: ContainerKey, directory: &Directory) {
        let bases = directory.deltas.iter().map(|delta| delta.base);
        let mut bases: Vec<Reference> =
            bases.filter(|base| base.store() == PRIVATE_STORE).collect();
        bases.sort_unstable();
        bases.dedup();
        lock(&self.wanted).add(container, bases);
    }

    /// Whether there are deltas.
    pub(crate) fn are_wanted(&self) -> bool {
        lock(&self.wanted).count > 0
    }

    /// Whether the chunk of a slot of this frame is here.
    pub(crate) fn has(&self, frame: FrameKey, slot: u16) -> bool {
        self.get(frame, slot).is_some()
    }

    /// The chunk of a slot of this frame, if it is here.
    pub(crate) fn get(&self, frame: FrameKey, slot: u16) -> Option<Base> {
        let picked = lock(&self.frames).get(&frame)?;
        let range = picked.range(slot)?;
        Some(Base::Kept(picked, range))
    }

    /// Keeps what deltas need of a decoded frame, which is of the container with this directory.
    pub(crate) fn pick(&self, frame: FrameKey, directory: &Directory, raw: &[u8]) {
        let slots = lock(&self.wanted).slots(frame, directory);
        let held = lock(&self.frames).get(&frame);
        let is_held = |slot: &u16| held.as_ref().is_some_and(|held| held.range(*slot).is_some());
        if slots.iter().all(is_held) {
            return;
        }
        let picked = Picked::of(slots, |slot| chunk_of(directory, raw, slot));
        let bytes = picked.weight();
        lock(&self.frames).insert(frame, Arc::new(picked), bytes);
    }
}

/// The bytes of a slot of a frame.
pub(crate) fn chunk_of<'r>(directory: &Directory, raw: &'r [u8], slot: u16) -> Option<&'r [u8]> {
    let place = directory.slot(slot)?;
    let start = place.offset as usize;
    raw.get(start..start + place.length as usize)
}

impl Wanted {
    /// Adds the bases of a container's deltas, unless they are known, and forgets the oldest.
    fn add(&mut self, container: ContainerKey, bases: Vec<Reference>) {
        if self.bases.iter().any(|(key, _)| *key == container) {
            return;
        }
        for base in &bases {
            let slots = self.slots.entry((container.0, base.container())).or_default();
            *slots.entry(base.slot()).or_default() += 1;
        }
        self.count += bases.len();
        self.bases.push_back((container, bases));
        while self.count > WANTED_MAX && self.bases.len() > 1 {
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(((series, ..), bases)) = self.bases.pop_front() else { return };
        self.count -= bases.len();
        for base in bases {
            let key = (series, base.container());
            let Some(slots) = self.slots.get_mut(&key) else { continue };
            if let Some(users) = slots.get_mut(&base.slot()) {
                *users -= 1;
                if *users == 0 {
                    slots.remove(&base.slot());
                }
            }
            if slots.is_empty() {
                self.slots.remove(&key);
            }
        }
    }

    /// The slots of a frame that are bases, ascending.
    fn slots(&self, ((series, number, _), frame): FrameKey, directory: &Directory) -> Vec<u16> {
        let Some(slots) = self.slots.get(&(series, number)) else { return Vec::new() };
        let runs = directory.runs.iter().filter(|run| run.frame == frame && run.count > 0);
        let of_runs = runs.flat_map(|run| slots.range(run.first..=run.first + (run.count - 1)));
        of_runs.map(|(slot, _)| *slot).collect()
    }
}

#[cfg(test)]
mod tests {
    use silt_format::{Delta, Fingerprint, ObjectTag, SeriesId};

    use super::*;

    const SERIES: SeriesId = SeriesId([1; 12]);

    fn key(series: SeriesId, number: u32) -> ContainerKey {
        (series, number, ObjectTag::NONE)
    }

    /// Container 7: two frames of four chunks each, with three bytes of the slot's number.
    fn holder() -> (Directory, [Vec<u8>; 2]) {
        let (mut directory, mut frames) = (Directory::default(), [Vec::new(), Vec::new()]);
        for slot in 0..8_u8 {
            let frame = slot / 4;
            directory.push(u16::from(slot), u16::from(frame), 3, Fingerprint([slot; 20]));
            frames[usize::from(frame)].extend([slot; 3]);
        }
        (directory, frames)
    }

    /// Deltas of these slots of container 7.
    fn deltas(bases: &[u16]) -> Directory {
        let mut directory = Directory::default();
        for (slot, base) in (0..).zip(bases) {
            let base = Reference::new(PRIVATE_STORE, 7, *base);
            let delta = Delta { slot, chunk_bytes: 3, base };
            directory.push_delta(delta, 0, 1, Fingerprint([0; 20]));
        }
        directory
    }

    fn here(cache: &BaseCache, frame: u16) -> Vec<u16> {
        (0..8).filter(|slot| cache.has((key(SERIES, 7), frame), *slot)).collect()
    }

    #[test]
    fn of_a_frame_the_bases_of_all_open_containers_are_kept() {
        let (cache, (directory, frames)) = (BaseCache::new(1 << 20), holder());
        cache.want(key(SERIES, 8), &deltas(&[6, 1, 1]));
        cache.want(key(SERIES, 9), &deltas(&[3]));
        cache.want(key(SeriesId([2; 12]), 9), &deltas(&[2]));
        cache.pick((key(SERIES, 7), 0), &directory, &frames[0]);
        assert_eq!(here(&cache, 0), [1, 3], "slot 2 is a base in another series");
        assert!(here(&cache, 1).is_empty(), "the frame was not decoded");
        cache.pick((key(SERIES, 7), 1), &directory, &frames[1]);
        assert_eq!(*cache.get((key(SERIES, 7), 1), 6).unwrap(), [6; 3]);
        assert!(cache.get((key(SERIES, 7), 1), 5).is_none());
        cache.want(key(SERIES, 10), &deltas(&[0]));
        cache.pick((key(SERIES, 7), 0), &directory, &frames[0]);
        assert_eq!(here(&cache, 0), [0, 1, 3], "a container that was opened later needs more");
    }

    #[test]
    fn the_oldest_bases_and_containers_are_forgotten() {
        let (cache, (directory, frames)) = (BaseCache::new(300), holder());
        cache.want(key(SERIES, 8), &deltas(&[0, 4]));
        cache.pick((key(SERIES, 7), 0), &directory, &frames[0]);
        cache.pick((key(SERIES, 7), 1), &directory, &frames[1]);
        assert_eq!((here(&cache, 0), here(&cache, 1)), (Vec::new(), vec![4]));
        let many: Vec<u16> = (0..50_000).collect();
        for number in 9..12 {
            cache.want(key(SERIES, number), &deltas(&many));
            cache.want(key(SERIES, number), &deltas(&many));
        }
        let wanted = lock(&cache.wanted);
        let known: Vec<u32> = wanted.bases.iter().map(|((_, number, _), _)| *number).collect();
        assert_eq!(known, [10, 11]);
        assert_eq!(wanted.count, 2 * many.len());
        let slots = &wanted.slots[&(SERIES, 7)];
        assert_eq!(slots.len(), many.len());
        assert!(slots.values().all(|users| *users == 2));
    }
}
