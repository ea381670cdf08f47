//! Locks that a panic of another thread does not break.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, whether or not a thread has panicked while it held it.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
