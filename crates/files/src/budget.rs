//! Bounds the bytes read of an image, because a damaged or hostile file system can lead in circles.

use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::{Context, Error, Result};

/// Read of an image beyond twice its size: tables that are read again and again.
const BYTES_BEYOND: u64 = 256 << 20;
/// Most directory entries that are looked at.
const ENTRIES_MAX: u64 = 100_000_000;

/// Bounds the work that an image can cause.
///
/// An undamaged file system keeps every block once, so reading all of it takes little more than its
/// size.
pub struct Budget {
    context: Context,
    bytes_max: u64,
    bytes: AtomicU64,
    entries_max: u64,
    entries: AtomicU64,
}

impl Budget {
    /// The budget of a disk of `disk_bytes`.
    pub fn of_disk(disk_bytes: u64, context: &Context) -> Self {
        let bytes_max = disk_bytes.saturating_mul(2).saturating_add(BYTES_BEYOND);
        Self::new(bytes_max, ENTRIES_MAX, context)
    }

    /// A budget of `bytes_max` bytes and `entries_max` directory entries.
    pub fn new(bytes_max: u64, entries_max: u64, context: &Context) -> Self {
        let (bytes, entries) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { context: context.clone(), bytes_max, bytes, entries_max, entries }
    }

    /// Counts bytes about to be read. Fails with `Interrupted` once the user has asked to stop.
    pub(crate) fn spend_bytes(&self, count: u64) -> Result<()> {
        self.context.check_interrupted()?;
        let before = self.bytes.fetch_add(count, Ordering::Relaxed);
        if before.saturating_add(count) > self.bytes_max {
            let message = format!(
                "more than {} bytes were to be read of the image: its file system refers to the \
                 same blocks again and again",
                self.bytes_max
            );
            return Err(Error::corrupt(message));
        }
        Ok(())
    }

    /// Counts a directory entry.
    pub(crate) fn spend_entry(&self) -> Result<()> {
        if self.entries.fetch_add(1, Ordering::Relaxed) >= self.entries_max {
            let message = format!("the image lists more than {} files", self.entries_max);
            return Err(Error::corrupt(message));
        }
        Ok(())
    }
}
