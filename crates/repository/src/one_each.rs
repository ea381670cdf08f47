//! Of several threads that want the same thing, one gets it, and the others wait for it.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::{Condvar, Mutex, PoisonError};

use crate::sync::lock;

/// The things that threads are getting now.
pub struct OneEach<K: Hash + Eq + Copy> {
    wanted: Mutex<HashSet<K>>,
    changed: Condvar,
}

/// A thread's turn, which ends when it is dropped.
pub struct Turn<'t, K: Hash + Eq + Copy> {
    of: &'t OneEach<K>,
    key: K,
}

impl<K: Hash + Eq + Copy> Default for OneEach<K> {
    fn default() -> Self {
        Self { wanted: Mutex::default(), changed: Condvar::new() }
    }
}

impl<K: Hash + Eq + Copy> OneEach<K> {
    /// Returns what `held` finds of a thing, or the turn to get it: once another thread's turn has
    /// ended, `held` is asked again.
    pub fn get<V>(&self, key: K, held: impl Fn() -> Option<V>) -> Result<V, Turn<'_, K>> {
        let mut wanted = lock(&self.wanted);
        loop {
            if let Some(value) = held() {
                return Ok(value);
            }
            if wanted.insert(key) {
                return Err(Turn { of: self, key });
            }
            wanted = self.changed.wait(wanted).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<K: Hash + Eq + Copy> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        lock(&self.of.wanted).remove(&self.key);
        self.of.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn one_thread_gets_it_and_all_have_it() {
        let (each, held, got) = (OneEach::default(), Mutex::new(None), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let value = each.get(7, || *lock(&held)).unwrap_or_else(|_turn| {
                        got.fetch_add(1, Ordering::SeqCst);
                        (0..1000).for_each(|_| std::thread::yield_now());
                        *lock(&held).insert(49)
                    });
                    assert_eq!(value, 49);
                });
            }
        });
        assert_eq!(got.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn after_a_failure_the_next_one_tries() {
        let (each, tries) = (OneEach::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let turn = each.get("x", || None::<()>);
                    assert!(turn.is_err());
                    tries.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(tries.load(Ordering::SeqCst), 4);
    }
}
