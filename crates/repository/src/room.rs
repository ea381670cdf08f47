//! Memory that operations on several series share.

use std::sync::{Condvar, Mutex, PoisonError};

use crate::sync::lock;

/// Memory that tasks share: those wait for whom there is no room.
pub struct Room {
    bytes: u64,
    left: Mutex<u64>,
    changed: Condvar,
}

/// Memory that a task holds until it is dropped.
pub struct Place<'r> {
    room: &'r Room,
    bytes: u64,
}

impl Room {
    /// Room for tasks that need at most `bytes` together.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, left: Mutex::new(bytes), changed: Condvar::new() }
    }

    /// Waits until there is room for `bytes`, or for all that there is if that is less. A task that
    /// holds some must not ask for more.
    pub fn place(&self, bytes: u64) -> Place<'_> {
        let bytes = bytes.min(self.bytes);
        let mut left = lock(&self.left);
        while *left < bytes {
            left = self.changed.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        *left -= bytes;
        Place { room: self, bytes }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *lock(&self.room.left) += self.bytes;
        self.room.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn what_finds_no_room_waits_and_gets_all_at_most() {
        let room = Room::new(10);
        let (first, most) = (room.place(7), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _all = room.place(1000);
                most.fetch_add(1, Ordering::SeqCst);
            });
            drop(room.place(3));
            assert_eq!(most.load(Ordering::SeqCst), 0);
            drop(first);
        });
        assert_eq!(most.load(Ordering::SeqCst), 1);
        assert_eq!(*lock(&room.left), 10);
    }
}
