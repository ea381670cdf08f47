//! Disks in memory, and their random changes.

use std::sync::{Mutex, PoisonError};

use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, Result};
use silt_source::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource, VolumeTarget};

use crate::random::Random;

const BLOCK: usize = 4096;
/// Size of a disk in blocks: enough for several containers of the minimum size.
const BLOCKS: usize = 40;

/// A disk to back up.
pub struct Source(pub Vec<u8>);

impl VolumeSource for Source {
    fn info(&self) -> SourceInfo {
        let size = Some(to_u64(self.0.len()));
        SourceInfo {
            description: "memory".to_owned(),
            format: SourceFormat::Raw,
            size,
            backing: Vec::new(),
        }
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        Ok(Extent { offset, length: to_u64(self.0.len()) - offset, kind: ExtentKind::Data })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let rest = self.0.get(to_usize(offset)..).unwrap_or_default();
        let length = buf.len().min(rest.len());
        buf[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// A disk to restore to.
pub struct Target(Mutex<Vec<u8>>);

impl Target {
    /// Returns a disk of zeros.
    pub fn new(bytes: u64) -> Self {
        Self(Mutex::new(vec![0; to_usize(bytes)]))
    }

    /// Returns the restored bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn range(&self, offset: u64, length: usize, with: impl FnOnce(&mut [u8])) -> Result<()> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let start = to_usize(offset);
        let range = bytes.get_mut(start..start + length);
        with(range.ok_or_else(|| Error::invalid("a range past the end of a disk"))?);
        Ok(())
    }
}

impl VolumeTarget for Target {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.range(offset, data.len(), |range| range.copy_from_slice(data))
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.range(offset, to_usize(length), |range| range.fill(0))
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.range(offset, buf.len(), |range| buf.copy_from_slice(range))
    }
    fn can_read(&self) -> bool {
        true
    }
    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Returns a new disk of zeros, equal blocks and random blocks.
pub fn image(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![0; BLOCKS * BLOCK];
    for block in bytes.chunks_mut(BLOCK) {
        match random.below(6) {
            0 => {}
            1 => block.fill(1),
            _ => random.fill(block),
        }
    }
    bytes
}

/// Changes a disk as in a day: writes, zeroes, copies and touches some blocks, or none.
pub fn change(bytes: &mut [u8], random: &mut Random) {
    for _ in 0..random.below(12) {
        let at = random.below(BLOCKS) * BLOCK;
        match random.below(7) {
            0 => bytes[at..at + BLOCK].fill(0),
            1 => {
                let from = random.below(BLOCKS) * BLOCK;
                bytes.copy_within(from..from + BLOCK, at);
            }
            // What is left resembles what was there.
            2..=4 => {
                let start = at + random.below(BLOCK - 16);
                random.fill(&mut bytes[start..start + 16]);
            }
            _ => random.fill(&mut bytes[at..at + BLOCK]),
        }
    }
}
