//! Calls that wait for others, made side by side.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Does the same for each item, for at most `at_once` of them at a time, and returns what came of
/// each, in their order. So what waits for one host delays no other.
pub fn side_by_side<T: Sync, R: Send>(
    items: &[T],
    at_once: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    if at_once < 2 || items.len() < 2 {
        return items.iter().map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..at_once.min(items.len()) {
            scope.spawn(|| {
                while let Some((number, item)) = {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    items.get(number).map(|item| (number, item))
                } {
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}
