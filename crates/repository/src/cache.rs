//! A small cache bounded by the bytes that its values weigh.

use std::collections::HashMap;
use std::hash::Hash;

/// Keeps the values used most recently, as many as weigh at most a given number of bytes.
pub struct WeightedCache<K, V> {
    entries: HashMap<K, Entry<V>>,
    /// What all values weigh at most; may change.
    pub bytes_max: usize,
    bytes: usize,
    clock: u64,
}

struct Entry<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Hash + Eq + Copy, V: Clone> WeightedCache<K, V> {
    /// Returns an empty cache of at most `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { entries: HashMap::new(), bytes_max, bytes: 0, clock: 0 }
    }

    /// The value of a key, which counts as used just now.
    pub fn get(&mut self, key: &K) -> Option<V> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(entry.value.clone())
    }

    /// Whether a value is there, which does not count as a use.
    pub fn contains(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// Forgets a value.
    pub fn remove(&mut self, key: &K) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.bytes;
        }
    }

    /// Adds a value of `bytes` bytes, and drops the least recently used values that no longer fit.
    /// Returns one dropped value, so that the caller can reuse its memory.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) -> Option<V> {
        self.clock += 1;
        let entry = Entry { value, bytes, used: self.clock };
        if let Some(old) = self.entries.insert(key, entry) {
            self.bytes -= old.bytes;
        }
        let mut dropped = None;
        self.bytes += bytes;
        // The caches hold tens of values, so looking at all of them is cheaper than a list.
        while self.bytes > self.bytes_max && self.entries.len() > 1 {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let oldest = oldest.map(|(key, _)| *key)?;
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes;
                dropped = Some(entry.value);
            }
        }
        dropped
    }
}
