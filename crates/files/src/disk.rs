//! Disks, and parts of them.

use std::sync::Arc;

use siltstone::{Error, Result, VolumeReader};

use crate::budget::Budget;

/// An image that can be read at any offset.
pub trait Disk: Send + Sync {
    /// Its size in bytes.
    fn bytes(&self) -> u64;

    /// Reads from `offset` on. Returns the number of bytes read, which is less than requested only
    /// at the end.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize>;
}

impl Disk for VolumeReader {
    fn bytes(&self) -> u64 {
        Self::bytes(self)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        Self::read_at(self, offset, into)
    }
}

/// An image in memory.
impl Disk for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let length = into.len().min(self.len() - start);
        into[..length].copy_from_slice(&self[start..start + length]);
        Ok(length)
    }
}

impl Disk for std::fs::File {
    fn bytes(&self) -> u64 {
        self.metadata().map_or(0, |found| found.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < into.len() {
            let at = offset.saturating_add(done as u64);
            let read = std::os::unix::fs::FileExt::read_at(self, &mut into[done..], at);
            match read.map_err(|error| Error::io("read the image", error))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }
}

/// A part of a disk: a partition, or all of it.
#[derive(Clone)]
pub struct Region {
    disk: Arc<dyn Disk>,
    budget: Arc<Budget>,
    start: u64,
    bytes: u64,
}

impl Region {
    /// All of a disk.
    pub fn whole(disk: Arc<dyn Disk>, budget: Arc<Budget>) -> Self {
        let bytes = disk.bytes();
        Self { disk, budget, start: 0, bytes }
    }

    /// The part of this region from `start` on, `bytes` long, cut off at its end.
    #[must_use]
    pub fn part(&self, start: u64, bytes: u64) -> Self {
        let start = start.min(self.bytes);
        let bytes = bytes.min(self.bytes - start);
        Self { start: self.start + start, bytes, ..self.clone() }
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Fills `into` from `offset` on; `Corrupt` where the region ends before.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let length = into.len() as u64;
        if offset.checked_add(length).is_none_or(|end| end > self.bytes) {
            let end = self.bytes;
            let message =
                format!("{length} bytes at {offset} lie behind the end of the partition, {end}");
            return Err(Error::corrupt(message));
        }
        self.budget.spend_bytes(length)?;
        if self.disk.read_at(self.start + offset, into)? != into.len() {
            return Err(Error::corrupt("the disk ends before its size"));
        }
        Ok(())
    }

    /// The first `count` bytes, or all if there are fewer.
    pub(crate) fn beginning(&self, count: usize) -> Result<Vec<u8>> {
        let length = usize::try_from(self.bytes).unwrap_or(usize::MAX).min(count);
        let mut bytes = vec![0; length];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }
}
