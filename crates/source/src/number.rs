//! Integer conversions and locks that only a bug could make fail.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// `value` as `usize`. Panics if it does not fit: callers have bounded it.
pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit in memory"))
}

/// The big-endian number at `at`. Panics past the end: callers have bounded it.
pub(crate) fn be_u64(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_be_bytes(number)
}

/// The big-endian number at `at`. Panics past the end: callers have bounded it.
pub(crate) fn be_u32(bytes: &[u8], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_be_bytes(number)
}

/// Locks `mutex`. Ignores poisoning: every critical section of this crate makes its changes last,
/// so a panic leaves no half-made state.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes from `offset` to the next multiple of `unit`, a power of two.
pub(crate) fn until_multiple(offset: u64, unit: u64) -> u64 {
    unit - (offset & (unit - 1))
}
