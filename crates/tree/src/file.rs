//! Regular files that are open for reading.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use silt_format::tree::Metadata;
use silt_format::{Error, Result};

use crate::status::status_of;

/// A regular file that is open for reading. It stays the same file if its name is moved or removed.
#[derive(Debug)]
pub struct OpenFile {
    file: File,
}

impl OpenFile {
    pub(crate) fn new(file: OwnedFd) -> Self {
        Self { file: file.into() }
    }

    pub(crate) fn into_fd(self) -> OwnedFd {
        self.file.into()
    }

    /// Reads at an offset in bytes. Returns the number of bytes read, which is less than the length
    /// of `buffer` only at the end of the file.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_fully(&self.file, offset, buffer)
    }

    /// Returns the current metadata of the file, without flags, extended attributes and number of
    /// the file system. If size, `modified` or `changed` differ from before, the file was changed
    /// meanwhile.
    pub fn status(&self) -> Result<Metadata> {
        let status = status_of(&self.file).map_err(|error| Error::io("status", error.into()))?;
        Ok(status.metadata)
    }

    /// Returns the next range with data at or after `offset`, cut at `size`; `None` if only a hole
    /// follows. If the file system cannot report holes, the whole rest is data.
    pub fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        if offset >= size {
            return Ok(None);
        }
        let start = match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(None),
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(Some(offset..size)),
            Err(error) => return Err(Error::io("looking for data", error.into())),
        };
        if start >= size {
            return Ok(None);
        }
        // The file may have become shorter meanwhile. The range then ends at `size`.
        let end = match seek(&self.file, SeekFrom::Hole(start)) {
            Ok(end) if end > start => end.min(size),
            Ok(_) | Err(Errno::NXIO) => size,
            Err(error) => return Err(Error::io("looking for holes", error.into())),
        };
        Ok(Some(start..end))
    }
}

impl AsFd for OpenFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Reads at an offset in bytes, until `buffer` is full or the file ends. Returns the number of
/// bytes read.
pub(crate) fn read_fully(file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io("reading", error)),
        }
    }
    Ok(filled)
}
