//! A raw file or a block device: the volume's bytes, unchanged.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use silt_format::Result;

use super::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};
use crate::positioned::{Medium, UncachedReads, length, read_what_is_asked_for};

/// A raw file or a block device, with its size when it was opened.
pub(crate) struct RawSource {
    file: File,
    path: PathBuf,
    medium: Medium,
    size: u64,
    reads: UncachedReads,
}

impl RawSource {
    /// `stay`: data that is read may stay in the page cache.
    pub(crate) fn new(file: File, path: &Path, medium: Medium, stay: bool) -> Result<Self> {
        let size = length(&file, path)?;
        read_what_is_asked_for(&file);
        let reads = UncachedReads::new(stay);
        Ok(Self { file, path: path.to_owned(), medium, size, reads })
    }
    pub(crate) fn size(&self) -> u64 {
        self.size
    }
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kind at `offset` and its end. Concurrent seeks are safe: all reads are
    /// positioned, and each seek returns its own result.
    fn kind_until(&self, offset: u64) -> Result<(ExtentKind, u64)> {
        let seek = |to| rustix::fs::seek(&self.file, to);
        match seek(SeekFrom::Data(offset)) {
            Ok(data) if data > offset => Ok((ExtentKind::Zero, data)),
            Ok(_) => Ok((ExtentKind::Data, seek(SeekFrom::Hole(offset)).unwrap_or(self.size))),
            // A hole up to the end, unless the file shrank; then a read finds out.
            Err(Errno::NXIO) if length(&self.file, &self.path)? >= self.size => {
                Ok((ExtentKind::Zero, self.size))
            }
            // The file system does not know; reading finds out.
            Err(_) => Ok((ExtentKind::Data, self.size)),
        }
    }
}

impl VolumeSource for RawSource {
    fn info(&self) -> SourceInfo {
        let format = match self.medium {
            Medium::File => SourceFormat::Raw,
            Medium::Device => SourceFormat::Block,
        };
        let description = self.path.display().to_string();
        SourceInfo { description, format, size: Some(self.size), backing: Vec::new() }
    }

    fn is_sequential(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        assert!(offset < self.size, "an extent was asked for past the end of the volume");
        let (kind, end) = match self.medium {
            Medium::File => self.kind_until(offset)?,
            Medium::Device => (ExtentKind::Data, self.size),
        };
        // If the file changes meanwhile, the end may be before `offset`.
        let end = if end > offset { end.min(self.size) } else { self.size };
        Ok(Extent { offset, length: end - offset, kind })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let count = left.min(buf.len());
        let buf = &mut buf[..count];
        let mut done = 0;
        while done < count {
            let at = offset + done as u64;
            let extent = self.extent_at(at)?;
            let part = usize::try_from(extent.length).unwrap_or(usize::MAX).min(count - done);
            let part = &mut buf[done..done + part];
            if extent.kind == ExtentKind::Zero {
                // Reading a hole would fill the page cache with zeros.
                part.fill(0);
            } else {
                let read = self.reads.read_up_to(&self.file, &self.path, at, part)?;
                if read < part.len() {
                    return Ok(done + read);
                }
            }
            done += part.len();
        }
        Ok(done)
    }
}
