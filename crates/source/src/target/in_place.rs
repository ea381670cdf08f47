//! A block device, or a file restored in place: overwritten directly, its first block last.
//!
//! A half-restored disk must not boot. So a marker durably replaces the first block before anything
//! else changes, and the true first block is written only after everything else is durable.
//! Unchanged ranges are not written.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use silt_format::{Error, Result, ResultExt};
use silt_storage::{DirectFile, durable};

use super::zeroing::zero_range;
use super::{VolumeTarget, check_range, unreadable};
use crate::number::{lock, to_usize};
use crate::positioned::{
    Medium, data_until, hole_until, length, read_up_to, read_what_is_asked_for, set_length,
    write_all, write_past_cache,
};

/// The beginning of the first block of an unfinished target; the rest of the block is zeros.
pub const MARKER_TEXT: &str = "SILTSTONE: RESTORE NOT FINISHED. The data on this disk are \
                               incomplete; run the restore again.\n";

const FIRST_BLOCK_BYTES: u64 = 4096;

pub(super) struct InPlaceTarget {
    file: File,
    direct: Option<DirectFile>,
    path: PathBuf,
    medium: Medium,
    size: u64,
    /// Size of the file or device when it was opened, in bytes.
    old_size: u64,
    readable: bool,
    /// Whether the marker is durable. Set under the lock of `first`.
    marked: AtomicBool,
    first: Mutex<FirstBlock>,
}

struct FirstBlock {
    /// The original contents, without this run's marker.
    original: Vec<u8>,
    /// The contents after `finish`.
    bytes: Vec<u8>,
    /// Whether all of it was written in one call.
    replaced: bool,
}

impl InPlaceTarget {
    pub(super) fn new(
        file: File,
        path: &Path,
        medium: Medium,
        size: u64,
        readable: bool,
    ) -> Result<Self> {
        let old_size = length(&file, path)?;
        read_what_is_asked_for(&file);
        let mut original = vec![0; to_usize(size.min(FIRST_BLOCK_BYTES))];
        read_up_to(&file, path, 0, &mut original)?;
        let bytes = original.clone();
        Ok(Self {
            direct: DirectFile::open(&file),
            file,
            path: path.to_owned(),
            medium,
            size,
            old_size,
            readable,
            marked: AtomicBool::new(false),
            first: Mutex::new(FirstBlock { original, bytes, replaced: false }),
        })
    }

    /// Returns how many of `length` bytes at `offset` are in the first block.
    fn in_first(&self, offset: u64, length: u64) -> u64 {
        length.min(self.size.min(FIRST_BLOCK_BYTES).saturating_sub(offset))
    }

    /// Changes the future contents of the first block; writes nothing yet.
    fn change_first(&self, offset: u64, length: u64, change: impl FnOnce(&mut [u8])) {
        if length == 0 {
            return;
        }
        let mut first = lock(&self.first);
        let at = to_usize(offset);
        let range = &mut first.bytes[at..at + to_usize(length)];
        change(range);
        first.replaced |= range_is_all(length, self.size);
    }

    /// Makes the marker durable before anything else changes.
    fn mark(&self) -> Result<()> {
        if self.marked.load(Ordering::Acquire) {
            return Ok(());
        }
        let first = lock(&self.first);
        if self.marked.load(Ordering::Acquire) {
            return Ok(());
        }
        write_all(&self.file, &self.path, 0, &marker(first.bytes.len()))?;
        self.sync()?;
        if self.medium == Medium::File && self.old_size < self.size {
            set_length(&self.file, &self.path, self.size)?;
        }
        self.marked.store(true, Ordering::Release);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        durable::sync_file(&self.file).context(|| format!("restoring {}", self.path.display()))
    }

    /// Reads data and fills in holes; bytes past the end of the file are zeros.
    fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let left = (buf.len() - done) as u64;
            let (zeros, data) = match self.medium {
                Medium::Device => (0, left),
                Medium::File => (hole_until(&self.file, at) - at, data_until(&self.file, at) - at),
            };
            if zeros > 0 {
                let part = to_usize(zeros.min(left));
                buf[done..done + part].fill(0);
                done += part;
                continue;
            }
            // If the file changes meanwhile, reading still makes progress.
            let part = if data == 0 { left } else { data.min(left) };
            let part = &mut buf[done..done + to_usize(part)];
            let count = read_up_to(&self.file, &self.path, at, part)?;
            part[count..].fill(0);
            done += part.len();
        }
        Ok(())
    }

    fn must_resize(&self) -> bool {
        self.medium == Medium::File && self.old_size != self.size
    }
}

impl VolumeTarget for InPlaceTarget {
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        check_range(offset, data.len() as u64, self.size)?;
        let head = self.in_first(offset, data.len() as u64);
        let (first, rest) = data.split_at(to_usize(head));
        self.change_first(offset, head, |range| range.copy_from_slice(first));
        if rest.is_empty() {
            return Ok(());
        }
        self.mark()?;
        write_past_cache(&self.file, self.direct.as_ref(), &self.path, offset + head, rest)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        check_range(offset, length, self.size)?;
        let head = self.in_first(offset, length);
        self.change_first(offset, head, |range| range.fill(0));
        if head == length {
            return Ok(());
        }
        self.mark()?;
        zero_range(&self.file, &self.path, self.medium, offset + head, length - head)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if !self.readable {
            return Err(unreadable(self.path.display()));
        }
        check_range(offset, buf.len() as u64, self.size)?;
        let head = to_usize(self.in_first(offset, buf.len() as u64));
        let (first, rest) = buf.split_at_mut(head);
        if !first.is_empty() {
            let at = to_usize(offset);
            first.copy_from_slice(&lock(&self.first).bytes[at..at + head]);
        }
        self.read_data(offset + head as u64, rest)
    }

    fn can_read(&self) -> bool {
        self.readable
    }

    fn zeros_until(&self, offset: u64) -> u64 {
        // The first block may differ from the file's.
        if !self.readable || self.medium == Medium::Device || offset < FIRST_BLOCK_BYTES {
            return offset;
        }
        hole_until(&self.file, offset).min(self.size)
    }

    /// Fails with Invalid if the target had the marker of an earlier run in place of its first
    /// block and nothing was written there.
    fn finish(self: Box<Self>) -> Result<()> {
        if self.must_resize() {
            self.mark()?;
            set_length(&self.file, &self.path, self.size)?;
        }
        let marked = self.marked.load(Ordering::Acquire);
        let first = lock(&self.first);
        let was_marked = is_marker(&first.original);
        if was_marked && !first.replaced && is_marker(&first.bytes) {
            return Err(Error::invalid(format!(
                "the first block of {} is missing: an earlier restore did not finish, and this one \
                 did not write it; restore the whole volume",
                self.path.display()
            )));
        }
        if !marked && first.bytes == first.original {
            return Ok(());
        }
        if marked {
            self.sync()?;
        }
        write_all(&self.file, &self.path, 0, &first.bytes)?;
        self.sync()
    }
}

fn range_is_all(length: u64, size: u64) -> bool {
    length == size.min(FIRST_BLOCK_BYTES)
}

fn marker(length: usize) -> Vec<u8> {
    let mut block = MARKER_TEXT.as_bytes().to_vec();
    block.resize(length, 0);
    block
}

fn is_marker(block: &[u8]) -> bool {
    !block.is_empty() && block.starts_with(&marker(block.len().min(MARKER_TEXT.len())))
}
