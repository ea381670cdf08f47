//! A new qcow2 image: version 3, clusters of 64 KiB, no backing file.
//!
//! Clusters are allocated in the order of the first write to each and never freed, so that every
//! cluster of the file has exactly one reference and the reference counts can be written last. A
//! cluster that was never written is unallocated, which reads as zeros. The file is published only
//! after all tables are written, so their order does not matter.

mod layout;

use std::sync::Mutex;

use silt_format::{Error, Result};

use self::layout::{Layout, Run};
use super::partial::Partial;
use super::zeroing::zero_range;
use super::{VolumeTarget, check_range, unreadable};
use crate::number::{lock, to_usize};
use crate::positioned::{Medium, write_all};

/// The largest volume, in bytes: its L1 table is as large as QEMU reads.
const SIZE_MAX: u64 = 2 << 50;

pub(super) struct Qcow2Target {
    partial: Partial,
    size: u64,
    layout: Mutex<Layout>,
}

impl Qcow2Target {
    pub(super) fn new(partial: Partial, size: u64) -> Result<Self> {
        if size > SIZE_MAX {
            return Err(Error::invalid(format!(
                "a volume of {size} bytes is too large for a qcow2 image; restore as raw"
            )));
        }
        Ok(Self { partial, size, layout: Mutex::new(Layout::new(size)) })
    }
}

impl VolumeTarget for Qcow2Target {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range(offset, data.len() as u64, self.size)?;
        let (file, path) = (self.partial.file(), self.partial.path());
        let (mut offset, mut data) = (offset, data);
        while !data.is_empty() {
            let run = lock(&self.layout).allocate(file, path, offset, data.len() as u64)?;
            let (part, rest) = data.split_at(to_usize(run.length));
            write_all(file, path, run.file_offset, part)?;
            offset += run.length;
            data = rest;
        }
        Ok(())
    }

    /// Nothing to do where nothing was written.
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        check_range(offset, length, self.size)?;
        let (file, path) = (self.partial.file(), self.partial.path());
        let (mut offset, end) = (offset, offset + length);
        while offset < end {
            let found = lock(&self.layout).find(file, path, offset, end - offset)?;
            if let Some(Run { file_offset, length }) = found.run {
                zero_range(file, path, Medium::File, file_offset, length)?;
            }
            offset += found.length;
        }
        Ok(())
    }

    fn read_at(&self, _offset: u64, _buf: &mut [u8]) -> Result<()> {
        Err(unreadable(self.partial.target().display()))
    }

    fn can_read(&self) -> bool {
        false
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { partial, layout, .. } = *self;
        lock(&layout).write_tables(partial.file(), partial.path())?;
        partial.publish()
    }
}
