//! A cache of sketches that streams warm, in place of an index of all of them.
//!
//! Backups repeat each other: the neighbours of a chunk that was found resemble the neighbours of
//! the one that looks for it. So sketches are kept by container, and come into memory together when
//! a chunk of the container is found.

use std::collections::{HashMap, VecDeque};
use std::mem::size_of;

use crate::index::Candidate;
use crate::sketch::Sketch;

/// Sketches of the containers that were used last, up to a number of chunks.
pub struct SketchCache {
    chunks_max: usize,
    chunks: usize,
    /// The sketches and bases of each container.
    containers: HashMap<u64, Vec<(Sketch, u64)>>,
    /// Containers and the times of their uses, the oldest first; only a container's last counts.
    uses: VecDeque<(u64, u64)>,
    last_use: HashMap<u64, u64>,
    clock: u64,
    /// Chunks by super-feature and its place among the super-features.
    by_feature: HashMap<(u8, u64), Vec<(u64, u32)>>,
}

impl SketchCache {
    /// A cache of at most this many chunks; one container may have more.
    pub fn new(chunks_max: usize) -> Self {
        Self {
            chunks_max,
            chunks: 0,
            containers: HashMap::new(),
            uses: VecDeque::new(),
            last_use: HashMap::new(),
            clock: 0,
            by_feature: HashMap::new(),
        }
    }

    /// Number of chunks in memory.
    pub fn len(&self) -> usize {
        self.chunks
    }

    /// Memory in bytes of the sketches and of what they are found by, without what the allocator
    /// adds.
    pub fn bytes(&self) -> usize {
        let sketches = self.chunks * size_of::<(Sketch, u64)>();
        let slot = size_of::<((u8, u64), Vec<(u64, u32)>)>() + 1;
        let places: usize = self.by_feature.values().map(|places| places.capacity() * 16).sum();
        sketches + self.by_feature.capacity() * slot + places
    }

    /// Whether it has no chunk.
    pub fn is_empty(&self) -> bool {
        self.chunks == 0
    }

    /// Notes that a chunk of a container was found. If the container is not in memory, `read`
    /// provides the sketches and bases of its chunks, and others that were used longer ago make
    /// room. Returns whether it was read.
    pub fn warm<E>(
        &mut self,
        container: u64,
        read: impl FnOnce() -> Result<Vec<(Sketch, u64)>, E>,
    ) -> Result<bool, E> {
        let is_new = !self.containers.contains_key(&container);
        if is_new {
            self.insert(container, read()?);
        }
        self.clock += 1;
        self.uses.push_back((container, self.clock));
        self.last_use.insert(container, self.clock);
        if self.uses.len() > 2 * self.containers.len() + 16 {
            let last_use = &self.last_use;
            self.uses.retain(|(container, time)| last_use.get(container) == Some(time));
        }
        self.shrink(container);
        Ok(is_new)
    }

    fn insert(&mut self, container: u64, chunks: Vec<(Sketch, u64)>) {
        self.chunks += chunks.len();
        for (number, (sketch, _)) in (0_u32..).zip(&chunks) {
            for (place, value) in (0_u8..).zip(sketch.values()) {
                let places = self.by_feature.entry((place, *value)).or_default();
                places.push((container, number));
            }
        }
        self.containers.insert(container, chunks);
    }

    /// Forgets the containers that were used longest ago, except `kept`.
    fn shrink(&mut self, kept: u64) {
        while self.chunks > self.chunks_max && self.containers.len() > 1 {
            let Some((container, time)) = self.uses.pop_front() else { return };
            if container == kept || self.last_use.get(&container) != Some(&time) {
                continue;
            }
            self.last_use.remove(&container);
            let chunks = self.containers.remove(&container).unwrap_or_default();
            self.chunks -= chunks.len();
            for (place, value) in chunks.iter().flat_map(|(it, _)| (0_u8..).zip(it.values())) {
                if let Some(places) = self.by_feature.get_mut(&(place, *value)) {
                    places.retain(|(other, _)| *other != container);
                    if places.is_empty() {
                        self.by_feature.remove(&(place, *value));
                    }
                }
            }
        }
    }

    /// The chunks in memory that have most super-features in common with `sketch`, at most `count`.
    pub fn candidates(&self, sketch: &Sketch, count: usize) -> Vec<Candidate> {
        let mut equal: HashMap<(u64, u32), usize> = HashMap::new();
        for (place, value) in (0_u8..).zip(sketch.values()) {
            for chunk in self.by_feature.get(&(place, *value)).into_iter().flatten() {
                *equal.entry(*chunk).or_default() += 1;
            }
        }
        let mut found: Vec<_> = equal.into_iter().collect();
        found.sort_unstable_by_key(|(chunk, equal)| (usize::MAX - equal, *chunk));
        let found = found.into_iter().take(count).filter_map(|((container, number), equal)| {
            let (_, base) = self.containers.get(&container)?.get(number as usize)?;
            Some(Candidate { base: *base, equal })
        });
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::drawn;

    fn sketch(seed: u64) -> Option<Sketch> {
        Sketch::of(&[drawn(seed, 0), drawn(seed, 1), drawn(seed, 2)])
    }

    /// A container of ten chunks, of which each has its number as its base.
    fn container(number: u64) -> Result<Vec<(Sketch, u64)>, ()> {
        let chunks = (number * 10..number * 10 + 10).map(|base| Some((sketch(base)?, base)));
        chunks.collect::<Option<_>>().ok_or(())
    }

    fn bases(cache: &SketchCache, seed: u64) -> Vec<u64> {
        let found = sketch(seed).map(|sketch| cache.candidates(&sketch, 4)).unwrap_or_default();
        found.iter().map(|found| found.base).collect()
    }

    #[test]
    fn a_chunk_that_is_found_brings_its_neighbours() -> Result<(), ()> {
        let mut cache = SketchCache::new(100);
        assert!(bases(&cache, 37).is_empty());
        assert!(cache.warm(3, || container(3))?);
        assert!(!cache.warm(3, || Err(()))?, "it is in memory");
        assert_eq!(bases(&cache, 37), [37]);
        assert_eq!(bases(&cache, 47), []);
        assert!(cache.warm(4, || Err(())).is_err());
        assert_eq!(cache.len(), 10);
        assert!(cache.bytes() > 10 * 48 + 30 * 41, "{}", cache.bytes());
        Ok(())
    }

    #[test]
    fn what_was_used_longest_ago_makes_room() -> Result<(), ()> {
        let mut cache = SketchCache::new(30);
        for number in [1, 2, 3, 1, 4] {
            cache.warm(number, || container(number))?;
        }
        assert_eq!(cache.len(), 30);
        assert_eq!((bases(&cache, 15), bases(&cache, 25)), (vec![15], vec![]));
        for number in 5..1000 {
            cache.warm(number, || container(number))?;
            cache.warm(number, || container(number))?;
            assert!(cache.len() <= 30 && cache.by_feature.len() <= 90);
            assert!(cache.uses.len() <= 40 && cache.last_use.len() == cache.containers.len());
        }
        Ok(())
    }
}
