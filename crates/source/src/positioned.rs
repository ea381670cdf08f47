//! Reads and writes files at given offsets; errors name the path and the offset.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{Advice, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use silt_format::{Error, Result};
use silt_storage::DirectFile;

use crate::number::to_usize;

/// `RWF_DONTCACHE` of Linux 6.14.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Fills `buf` from `offset` on; the count is short only at the end of the file.
pub(crate) fn read_up_to(file: &File, path: &Path, offset: u64, buf: &mut [u8]) -> Result<usize> {
    fill(path, offset, buf, &|buf, at| file.read_at(buf, at))
}

/// Reads large parts of a file and leaves the page cache as it was: cached pages are used, and
/// others are dropped after the read, so that a backup does not evict pages of guests and other
/// programs. Allocating fresh pages for data read only once also costs more than reading.
#[derive(Debug)]
pub(crate) struct UncachedReads {
    /// Whether pages may stay: the caller asked for it, or the kernel (before Linux 6.14) or the
    /// file system does not support otherwise.
    stay: AtomicBool,
}

impl UncachedReads {
    /// If `stay` is set, data that is read stays in the page cache as usual.
    pub(crate) fn new(stay: bool) -> Self {
        Self { stay: AtomicBool::new(stay) }
    }

    /// As [`read_up_to`] does.
    pub(crate) fn read_up_to(
        &self,
        file: &File,
        path: &Path,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        fill(path, offset, buf, &|buf, at| {
            if !self.stay.load(Ordering::Relaxed) {
                match rustix::io::preadv2(file, &mut [io::IoSliceMut::new(buf)], at, DONTCACHE) {
                    Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                        self.stay.store(true, Ordering::Relaxed);
                    }
                    read => return Ok(read?),
                }
            }
            file.read_at(buf, at)
        })
    }
}

fn fill(
    path: &Path,
    offset: u64,
    buf: &mut [u8],
    read: &dyn Fn(&mut [u8], u64) -> io::Result<usize>,
) -> Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        match read(&mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let at = offset + done as u64;
                return Err(Error::io(format!("reading {} at byte {at}", path.display()), error));
            }
        }
    }
    Ok(done)
}

/// Disables the kernel's read-ahead: reads are large already, and read-ahead would fill the page
/// cache with zeros of holes.
pub(crate) fn read_what_is_asked_for(file: &File) {
    // Only advice: files that do not support it can be read anyway.
    let _ = rustix::fs::fadvise(file, 0, None, Advice::Random);
}

/// Writes all of `data` at `offset`.
pub(crate) fn write_all(file: &File, path: &Path, offset: u64, data: &[u8]) -> Result<()> {
    file.write_all_at(data, offset)
        .map_err(|error| Error::io(format!("writing {} at byte {offset}", path.display()), error))
}

/// Writes all of `data` at `offset`, bypassing the page cache if possible.
pub(crate) fn write_past_cache(
    file: &File,
    direct: Option<&DirectFile>,
    path: &Path,
    offset: u64,
    data: &[u8],
) -> Result<()> {
    let Some(direct) = direct else { return write_all(file, path, offset, data) };
    match direct.write_all_at(data, offset) {
        Ok(true) => Ok(()),
        Ok(false) => write_all(file, path, offset, data),
        Err(error) => Err(Error::io(format!("writing {} at byte {offset}", path.display()), error)),
    }
}

/// Returns the end of the hole at `offset`; the end of the file ends a hole. Returns `offset` if
/// there is no hole.
pub(crate) fn hole_until(file: &File, offset: u64) -> u64 {
    // Seeking is safe: all reads and writes are positioned.
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data.max(offset),
        Err(Errno::NXIO) => u64::MAX,
        Err(_) => offset,
    }
}

/// Returns the end of the data at `offset`.
pub(crate) fn data_until(file: &File, offset: u64) -> u64 {
    rustix::fs::seek(file, SeekFrom::Hole(offset)).map_or(u64::MAX, |hole| hole.max(offset))
}

/// Writes `length` bytes of zeros at `offset`.
pub(crate) fn write_zeros(file: &File, path: &Path, offset: u64, length: u64) -> Result<()> {
    let (mut at, end) = (offset, offset + length);
    while at < end {
        let count = (end - at).min(ZEROS.len() as u64);
        write_all(file, path, at, &ZEROS[..to_usize(count)])?;
        at += count;
    }
    Ok(())
}

/// Calls `each` with zeros of `length` bytes in all.
pub(crate) fn each_zeros(length: u64, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut rest = length;
    while rest > 0 {
        let count = rest.min(ZEROS.len() as u64);
        each(&ZEROS[..to_usize(count)])?;
        rest -= count;
    }
    Ok(())
}

/// The kind of file at a path that may hold a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Medium {
    File,
    Device,
}

/// Returns the kind of file at `path`, following links. Fails without opening it (a named pipe
/// would block) if it cannot hold a volume.
pub(crate) fn medium(path: &Path) -> Result<Medium> {
    let metadata = std::fs::metadata(path)
        .map_err(|error| Error::io(format!("opening {}", path.display()), error))?;
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(Medium::File);
    }
    if kind.is_block_device() {
        return Ok(Medium::Device);
    }
    let (what, way) = if kind.is_dir() {
        ("a directory", "name a disk image or a block device")
    } else {
        ("neither a file nor a block device", "pipe it through standard input or output instead")
    };
    Err(Error::invalid(format!("{} is {what}; {way}", path.display())))
}

/// Returns the size of an open file or block device in bytes.
pub(crate) fn length(file: &File, path: &Path) -> Result<u64> {
    rustix::fs::seek(file, SeekFrom::End(0))
        .map_err(|error| Error::io(format!("finding the size of {}", path.display()), error.into()))
}

/// Sets a file's length.
pub(crate) fn set_length(file: &File, path: &Path, length: u64) -> Result<()> {
    file.set_len(length).map_err(|error| {
        Error::io(format!("setting the length of {} to {length} bytes", path.display()), error)
    })
}
