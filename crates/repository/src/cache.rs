//! A small cache bounded by the bytes that its values weigh.

use std::collections::HashMap;
use std::hash::Hash;

/// Of this many values, one is dropped at once.
const DROPPED_SHARE: usize = 64;

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
        while self.bytes > self.bytes_max && self.entries.len() > 1 {
            dropped = self.drop_oldest();
        }
        dropped
    }

    /// Takes the values of another cache over, under the keys that `key` tells; without one they
    /// are dropped.
    pub fn take_over(&mut self, other: Self, key: impl Fn(K) -> Option<K>) {
        let mut taken: Vec<_> = other.entries.into_iter().collect();
        taken.sort_unstable_by_key(|(_, entry)| entry.used);
        for (old, Entry { value, bytes, .. }) in taken {
            if let Some(key) = key(old) {
                self.insert(key, value, bytes);
            }
        }
    }

    /// Drops the least recently used value. All are looked at, so of many, several are dropped.
    fn drop_oldest(&mut self) -> Option<V> {
        let mut used: Vec<u64> = self.entries.values().map(|entry| entry.used).collect();
        let last = (used.len() / DROPPED_SHARE).saturating_sub(1);
        let (_, &mut last, _) = used.select_nth_unstable(last);
        let mut dropped = None;
        for (_, entry) in self.entries.extract_if(|_, entry| entry.used <= last) {
            self.bytes -= entry.bytes;
            dropped = Some(entry.value);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_values_that_were_used_last_stay() {
        let mut cache = WeightedCache::new(100);
        for key in 0..10 {
            assert_eq!(cache.insert(key, key, 10), None);
        }
        assert_eq!(cache.get(&0), Some(0));
        assert_eq!(cache.insert(10, 10, 10), Some(1), "the oldest alone");
        assert!(cache.contains(&0) && cache.contains(&2) && !cache.contains(&1));
        cache.insert(11, 11, 1000);
        assert_eq!((cache.get(&10), cache.get(&11)), (None, Some(11)), "one value always stays");
        assert_eq!(cache.bytes, 1000);
    }

    #[test]
    fn values_that_are_taken_over_keep_their_order() {
        let mut before = WeightedCache::new(100);
        (0..10).for_each(|key| assert_eq!(before.insert(key, key, 10), None));
        before.get(&0);
        let mut cache = WeightedCache::new(30);
        cache.take_over(before, |key| (key != 9).then_some(key + 100));
        assert_eq!([100, 108, 107].map(|key| cache.get(&key)), [Some(0), Some(8), Some(7)]);
        assert_eq!((cache.entries.len(), cache.bytes), (3, 30));
    }

    #[test]
    fn of_many_values_several_are_dropped_at_once() {
        let mut cache = WeightedCache::new(6400);
        for key in 0..6400 {
            cache.insert(key, key, 1);
        }
        assert!(cache.insert(6400, 6400, 1).is_some());
        assert_eq!((cache.entries.len(), cache.bytes), (6301, 6301));
        assert!(cache.contains(&100) && !cache.contains(&99));
        for key in 0..10_000 {
            cache.insert(key, key, 1);
        }
        assert_eq!((cache.entries.len(), cache.bytes), (cache.bytes, cache.entries.len()));
        assert!((6300..=6400).contains(&cache.bytes), "{}", cache.bytes);
    }
}
