//! Writes past the page cache.
//!
//! Data written by a backup or restore is not read again soon. Through the page cache it would cost
//! a copy and evict pages that guests need. If the file system does not support direct writes, or
//! the bytes are not aligned, callers write normally.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use rustix::io::{Errno, pwritev};

/// Address, offset and length must be multiples of this, in bytes: the largest logical block size.
pub const DIRECT_ALIGNMENT: usize = 4096;

/// Maximum number of pieces per write call: the kernel's limit (`IOV_MAX`).
pub(crate) const PIECES_PER_WRITE_MAX: usize = 1024;

/// Bytes whose address is a multiple of [`DIRECT_ALIGNMENT`].
#[derive(Debug)]
pub struct AlignedBuffer {
    /// Grown only by `reserve`, so that the address of its bytes does not change.
    bytes: Vec<u8>,
    start: usize,
}

impl AlignedBuffer {
    /// `length` zeros.
    pub fn new(length: usize) -> Self {
        // Zeroed by the system: untouched pages use no memory.
        let mut bytes = vec![0; length + DIRECT_ALIGNMENT];
        let start = aligned_start(&bytes);
        bytes.truncate(start + length);
        Self { bytes, start }
    }

    /// Returns an empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(capacity + DIRECT_ALIGNMENT);
        let start = aligned_start(&bytes);
        bytes.resize(start, 0);
        Self { bytes, start }
    }

    /// The capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity() - self.start
    }

    /// Appends bytes; reallocates if there is no room for them.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        if self.bytes.capacity() - self.bytes.len() < bytes.len() {
            let mut larger = Self::with_capacity((self.len() + bytes.len()) * 2);
            larger.bytes.extend_from_slice(self);
            *self = larger;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Removes the bytes and keeps the allocation.
    pub fn clear(&mut self) {
        self.bytes.truncate(self.start);
    }
}

/// Index of the first aligned byte.
fn aligned_start(bytes: &[u8]) -> usize {
    let start = bytes.as_ptr().align_offset(DIRECT_ALIGNMENT);
    assert!(start < DIRECT_ALIGNMENT, "the address of bytes can be aligned");
    start
}

impl Deref for AlignedBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..]
    }
}

/// A second handle of a file, for aligned writes past the page cache.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    works: AtomicBool,
}

impl DirectFile {
    /// Opens `file` once more.
    ///
    /// Returns `None` if the file system does not support it; callers then write normally.
    pub fn open(file: &File) -> Option<Self> {
        let mut options = OpenOptions::new();
        options.write(true).custom_flags(OFlags::DIRECT.bits().cast_signed());
        // By its descriptor, because its name may be another file's by now.
        let file = options.open(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
        Some(Self { file, works: AtomicBool::new(true) })
    }

    /// Writes all of `data` at `offset`. Returns `false` if it is not aligned, or if the file
    /// system refuses; the caller then writes normally.
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<bool> {
        self.write_pieces_at(&[data], offset)
    }

    /// The same for pieces, one behind the other.
    pub fn write_pieces_at(&self, pieces: &[&[u8]], mut offset: u64) -> io::Result<bool> {
        let is_aligned = offset.is_multiple_of(DIRECT_ALIGNMENT as u64)
            && pieces.iter().all(|piece| piece.len().is_multiple_of(DIRECT_ALIGNMENT))
            && pieces.iter().all(|piece| piece.as_ptr().align_offset(DIRECT_ALIGNMENT) == 0);
        if !is_aligned || !self.works.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let pieces = pieces.iter().filter(|piece| !piece.is_empty());
        let mut slices: Vec<IoSlice<'_>> = pieces.map(|piece| IoSlice::new(piece)).collect();
        let mut rest = slices.as_mut_slice();
        while !rest.is_empty() {
            let now = &rest[..rest.len().min(PIECES_PER_WRITE_MAX)];
            match pwritev(&self.file, now, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    offset += count as u64;
                    IoSlice::advance_slices(&mut rest, count);
                }
                Err(Errno::INTR) => {}
                Err(Errno::INVAL) => {
                    // The caller writes the already written part again, with the same bytes.
                    self.works.store(false, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_whatever_their_length() {
        for length in [0, 1, 4095, 4096, 1 << 20] {
            let mut buffer = AlignedBuffer::new(length);
            assert_eq!(buffer.len(), length);
            assert_eq!(buffer.as_ptr().align_offset(DIRECT_ALIGNMENT), 0);
            buffer.fill(7);
        }
    }

    #[test]
    fn a_buffer_that_grows_stays_aligned_and_keeps_its_bytes() {
        let mut buffer = AlignedBuffer::with_capacity(10);
        let rounds = (0..=250_u8).cycle().take(1000);
        for round in rounds.clone() {
            buffer.extend_from_slice(&[round; 37]);
            assert_eq!(buffer.as_ptr().align_offset(DIRECT_ALIGNMENT), 0);
        }
        assert!(buffer.chunks(37).zip(rounds).all(|(part, round)| part == [round; 37]));
        let place = buffer.as_ptr();
        buffer.clear();
        assert!(buffer.is_empty());
        buffer.extend_from_slice(b"again");
        assert_eq!((&*buffer, buffer.as_ptr()), (&b"again"[..], place));
    }

    #[test]
    fn aligned_bytes_are_written_and_others_left_to_the_caller() -> io::Result<()> {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
        let path = folder.path().join("file");
        std::fs::write(&path, vec![1; 3 * DIRECT_ALIGNMENT])?;
        // Some file systems do not support such writes; then only that is tested.
        let Some(direct) = DirectFile::open(&File::open(&path)?) else { return Ok(()) };
        let mut buffer = AlignedBuffer::new(DIRECT_ALIGNMENT);
        buffer.fill(2);
        assert!(!direct.write_all_at(&buffer[..100], 0)?);
        assert!(!direct.write_all_at(&buffer, 1)?);
        let written = direct.write_all_at(&buffer, 4096)?;
        let found = std::fs::read(&path)?;
        assert_eq!(found.len(), 3 * DIRECT_ALIGNMENT);
        assert!(found[4096..8192].iter().all(|byte| *byte == if written { 2 } else { 1 }));
        assert!(found[..4096].iter().chain(&found[8192..]).all(|byte| *byte == 1));
        Ok(())
    }

    #[test]
    fn more_pieces_than_one_call_takes_are_written() -> io::Result<()> {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR"))?;
        let path = folder.path().join("file");
        let file = File::create(&path)?;
        let Some(direct) = DirectFile::open(&file) else { return Ok(()) };
        let mut block = AlignedBuffer::new(DIRECT_ALIGNMENT);
        block.fill(3);
        let mut pieces: Vec<&[u8]> = vec![&block; PIECES_PER_WRITE_MAX + 7];
        pieces.insert(5, &[]);
        let written = direct.write_pieces_at(&pieces, 4096)?;
        let found = std::fs::read(&path)?;
        let wanted = if written { (PIECES_PER_WRITE_MAX + 8) * DIRECT_ALIGNMENT } else { 0 };
        assert_eq!(found.len(), wanted);
        assert!(found.iter().skip(DIRECT_ALIGNMENT).all(|byte| *byte == 3));
        assert!(!direct.write_pieces_at(&[&block, &block[..100]], 0)?);
        Ok(())
    }
}
