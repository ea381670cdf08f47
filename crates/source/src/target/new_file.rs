//! A new raw file, sparse where the volume has zeros.

use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::Result;
use silt_storage::DirectFile;

use super::partial::Partial;
use super::zeroing::zero_range;
use super::{VolumeTarget, check_range, unreadable};
use crate::number::to_usize;
use crate::positioned::{Medium, set_length, write_past_cache};

pub(super) struct NewFileTarget {
    partial: Partial,
    direct: Option<DirectFile>,
    size: u64,
    written: WrittenGrains,
}

impl NewFileTarget {
    pub(super) fn new(partial: Partial, size: u64) -> Result<Self> {
        set_length(partial.file(), partial.path(), size)?;
        let direct = DirectFile::open(partial.file());
        Ok(Self { partial, direct, size, written: WrittenGrains::new(size) })
    }
}

impl VolumeTarget for NewFileTarget {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range(offset, data.len() as u64, self.size)?;
        self.written.mark(offset, data.len() as u64);
        let (file, path) = (self.partial.file(), self.partial.path());
        write_past_cache(file, self.direct.as_ref(), path, offset, data)
    }

    /// Nothing to do where nothing was written: the file is a hole there.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        check_range(offset, length, self.size)?;
        if !self.written.any(offset, length) {
            return Ok(());
        }
        zero_range(self.partial.file(), self.partial.path(), Medium::File, offset, length)
    }

    fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(unreadable(self.partial.target().display()))
    }

    fn can_read(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.partial.publish()
    }
}

/// The written parts of a volume: a bit for each of at most 65,536 equal parts.
struct WrittenGrains {
    grain_bits: u32,
    words: Vec<AtomicU64>,
}

impl WrittenGrains {
    const GRAINS_MAX: u64 = 1 << 16;
    const GRAIN_BITS_MIN: u32 = 21;

    fn new(size: u64) -> Self {
        let grain = size.div_ceil(Self::GRAINS_MAX).max(1 << Self::GRAIN_BITS_MIN);
        let grain_bits = 64 - (grain - 1).leading_zeros();
        let grains = size.div_ceil(1 << grain_bits);
        let words = (0..grains.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { grain_bits, words }
    }

    fn grains(&self, offset: u64, length: u64) -> std::ops::Range<u64> {
        if length == 0 {
            return 0..0;
        }
        offset >> self.grain_bits..((offset + length - 1) >> self.grain_bits) + 1
    }

    fn mark(&self, offset: u64, length: u64) {
        for grain in self.grains(offset, length) {
            self.words[to_usize(grain / 64)].fetch_or(1 << (grain % 64), Ordering::Relaxed);
        }
    }

    fn any(&self, offset: u64, length: u64) -> bool {
        self.grains(offset, length).any(|grain| {
            self.words[to_usize(grain / 64)].load(Ordering::Relaxed) >> (grain % 64) & 1 != 0
        })
    }
}
