//! A cache of chunks that deltas are applied to.
//!
//! Bases lie in many frames, and deltas need a few chunks of each. So of each frame that is
//! decoded, this keeps the chunks that deltas of the containers opened last need, rather than all.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use silt_format::{Directory, PRIVATE_STORE, Reference};

use crate::cache::WeightedCache;
use crate::container::ContainerKey;
use crate::sync::lock;

/// The most bases of containers with deltas that are known, eight bytes each.
const WANTED_MAX: usize = 128 << 10;

/// A frame's container and number.
type FrameKey = (ContainerKey, u16);

/// Bases by the frames that they are in; any number of readers can share them.
pub(crate) struct BaseCache {
    frames: Mutex<WeightedCache<FrameKey, Arc<Picked>>>,
    wanted: Mutex<Wanted>,
}

/// Some chunks of a frame.
struct Picked {
    /// Their slots, ascending, and where each is in the bytes.
    slots: Vec<(u16, Range<usize>)>,
    bytes: Vec<u8>,
}

/// The bases of the deltas of containers that were opened last.
#[derive(Default)]
struct Wanted {
    /// Sorted, with the container of the deltas.
    bases: VecDeque<(ContainerKey, Vec<Reference>)>,
    /// The number of all bases.
    count: usize,
}

impl BaseCache {
    /// Holds at most about this many bytes of bases.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { frames: Mutex::new(WeightedCache::new(bytes)), wanted: Mutex::default() }
    }

    /// The bases of this container's deltas will be needed.
    pub(crate) fn want(&self, container: ContainerKey, directory: &Directory) {
        let deltas = directory.deltas.iter();
        let mut bases: Vec<Reference> = deltas.map(|delta| delta.base).collect();
        bases.sort_unstable();
        bases.dedup();
        let mut wanted = lock(&self.wanted);
        if wanted.bases.iter().any(|(key, _)| *key == container) {
            return;
        }
        wanted.count += bases.len();
        wanted.bases.push_back((container, bases));
        while wanted.count > WANTED_MAX && wanted.bases.len() > 1 {
            let oldest = wanted.bases.pop_front();
            wanted.count -= oldest.map_or(0, |(_, bases)| bases.len());
        }
    }

    /// Whether the chunk of a slot of this frame is here.
    pub(crate) fn has(&self, frame: FrameKey, slot: u16) -> bool {
        let picked = lock(&self.frames).get(&frame);
        picked.is_some_and(|picked| picked.chunk(slot).is_some())
    }

    /// Appends the chunk of a slot of this frame, if it is here.
    pub(crate) fn add_to(&self, to: &mut Vec<u8>, frame: FrameKey, slot: u16) -> bool {
        let picked = lock(&self.frames).get(&frame);
        let Some(chunk) = picked.as_ref().and_then(|picked| picked.chunk(slot)) else {
            return false;
        };
        to.extend_from_slice(chunk);
        true
    }

    /// Keeps what deltas need of a decoded frame, which is of the container with this directory.
    pub(crate) fn pick(&self, frame: FrameKey, directory: &Directory, raw: &[u8]) {
        let slots = lock(&self.wanted).slots(frame, directory);
        if slots.is_empty() {
            return;
        }
        let chunk = |slot: u16| {
            let place = directory.slot(slot)?;
            let start = place.offset as usize;
            Some((slot, raw.get(start..start + place.length as usize)?))
        };
        let chunks: Vec<(u16, &[u8])> = slots.into_iter().filter_map(chunk).collect();
        let bytes = chunks.iter().map(|(_, chunk)| chunk.len()).sum();
        let mut picked =
            Picked { slots: Vec::with_capacity(chunks.len()), bytes: Vec::with_capacity(bytes) };
        for (slot, chunk) in chunks {
            let start = picked.bytes.len();
            picked.bytes.extend_from_slice(chunk);
            picked.slots.push((slot, start..picked.bytes.len()));
        }
        let bytes = picked.weight();
        lock(&self.frames).insert(frame, Arc::new(picked), bytes);
    }
}

impl Picked {
    fn chunk(&self, slot: u16) -> Option<&[u8]> {
        let at = self.slots.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        self.bytes.get(self.slots.get(at)?.1.clone())
    }

    fn weight(&self) -> usize {
        // What the cache itself takes for each value.
        128 + self.bytes.len() + self.slots.len() * size_of::<(u16, Range<usize>)>()
    }
}

impl Wanted {
    /// The slots of a frame that are bases, ascending.
    fn slots(
        &self,
        ((series, number, _), frame): FrameKey,
        directory: &Directory,
    ) -> BTreeSet<u16> {
        let mut found = BTreeSet::new();
        if self.bases.is_empty() {
            return found;
        }
        for run in directory.runs.iter().filter(|run| run.frame == frame) {
            let reference = |slot| Reference::new(PRIVATE_STORE, number, slot);
            let (first, last) = (reference(run.first), reference(run.first + (run.count - 1)));
            for (_, bases) in self.bases.iter().filter(|((of, ..), _)| *of == series) {
                let from = bases.partition_point(|base| *base < first);
                let of_run = bases[from..].iter().take_while(|base| **base <= last);
                found.extend(of_run.map(|base| base.slot()));
            }
        }
        found
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
        let mut base = b"x".to_vec();
        assert!(cache.add_to(&mut base, (key(SERIES, 7), 1), 6));
        assert_eq!(base, b"x\x06\x06\x06");
        assert!(!cache.add_to(&mut base, (key(SERIES, 7), 1), 5));
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
    }
}
