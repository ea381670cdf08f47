//! Finds chunks that resemble a chunk, among those that were added last.

use std::mem::size_of;

use crate::sketch::{SUPER_FEATURES, Sketch};

#[cfg(test)]
mod tests;

/// Slots of a bucket.
const WAYS: usize = 4;
/// An empty slot.
const NONE: u32 = u32::MAX;

/// A chunk that was added.
#[derive(Clone, Copy)]
struct Kept {
    base: u64,
    /// The top bits of its super-features; the low halves are the places in the tables.
    tags: [u16; SUPER_FEATURES],
}

/// A chunk that resembles another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// As it was added.
    pub base: u64,
    /// Number of super-features that are equal.
    pub equal: usize,
}

/// The sketches of the newest chunks, up to a fixed number of them.
///
/// Takes at most 32 bytes a chunk, all of them at once. If more chunks are added, the oldest are
/// forgotten; of chunks with an equal super-feature, the newest four are found by it. One candidate
/// in some thousands has nothing in common.
pub struct SketchIndex {
    kept: Vec<Kept>,
    /// The next to be replaced.
    next: usize,
    len: usize,
    /// For each super-feature, buckets of places in `kept`, the newest first.
    tables: Vec<Vec<[u32; WAYS]>>,
}

impl SketchIndex {
    /// Memory of an index in bytes for each chunk that it holds at most.
    pub const BYTES_PER_CHUNK: usize = size_of::<Kept>() + SUPER_FEATURES * size_of::<u32>();

    /// An index of at most `chunks` chunks, rounded up to a power of two between 64 and 2^30, with
    /// this many super-features each.
    pub fn new(chunks: usize, super_features: usize) -> Self {
        let chunks = chunks.clamp(64, 1 << 30).next_power_of_two();
        let super_features = super_features.clamp(1, SUPER_FEATURES);
        let empty = Kept { base: 0, tags: [0; SUPER_FEATURES] };
        Self {
            kept: vec![empty; chunks],
            next: 0,
            len: 0,
            tables: vec![vec![[NONE; WAYS]; chunks / WAYS]; super_features],
        }
    }

    /// Number of chunks.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no chunk was added.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> usize {
        let tables: usize = self.tables.iter().map(|table| table.len() * 4 * WAYS).sum();
        self.kept.len() * size_of::<Kept>() + tables
    }

    /// Adds a chunk.
    pub fn add(&mut self, sketch: &Sketch, base: u64) {
        let place = self.next;
        self.next = (place + 1) % self.kept.len();
        self.len = (self.len + 1).min(self.kept.len());
        let kept = &mut self.kept[place];
        kept.base = base;
        for (tag, value) in kept.tags.iter_mut().zip(sketch.values()) {
            *tag = tag_of(*value);
        }
        let place = u32::try_from(place).unwrap_or(NONE);
        for (table, value) in self.tables.iter_mut().zip(sketch.values()) {
            let number = bucket_of(*value, table.len());
            let bucket = &mut table[number];
            // Of chunks that are forgotten, and of the oldest one otherwise.
            let free = bucket.iter().position(|old| *old == place).unwrap_or(WAYS - 1);
            bucket[..=free].rotate_right(1);
            bucket[0] = place;
        }
    }

    /// The chunks that have most super-features in common with `sketch`, at most `count`; of equal
    /// ones, those that were added last.
    pub fn candidates(&self, sketch: &Sketch, count: usize, into: &mut Vec<Candidate>) {
        into.clear();
        let mut found: [(u32, usize); WAYS * SUPER_FEATURES] = [(NONE, 0); WAYS * SUPER_FEATURES];
        let mut len = 0;
        for (number, (table, value)) in self.tables.iter().zip(sketch.values()).enumerate() {
            for place in table[bucket_of(*value, table.len())] {
                let kept = self.kept.get(place as usize);
                if kept.is_none_or(|kept| kept.tags[number] != tag_of(*value)) {
                    continue;
                }
                let mut known = found[..len].iter_mut();
                if let Some((_, equal)) = known.find(|(known, _)| *known == place) {
                    *equal += 1;
                } else {
                    found[len] = (place, 1);
                    len += 1;
                }
            }
        }
        let age = |place: u32| {
            let place = place as usize;
            (self.next + self.kept.len() - 1 - place) % self.kept.len()
        };
        found[..len].sort_by_key(|(place, equal)| (usize::MAX - equal, age(*place)));
        let found = found[..len].iter().take(count);
        into.extend(found.map(|(place, equal)| Candidate {
            base: self.kept[*place as usize].base,
            equal: *equal,
        }));
    }
}

fn tag_of(value: u64) -> u16 {
    let bytes = value.to_le_bytes();
    u16::from_le_bytes([bytes[6], bytes[7]])
}

/// The bucket of a table of this many, a power of two.
fn bucket_of(value: u64, buckets: usize) -> usize {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) as usize & (buckets - 1)
}
