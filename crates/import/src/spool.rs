//! The temporary file with an archive's content.

use std::path::Path;

use silt_format::number::{to_u64, to_usize};
use silt_format::{Result, TAG_BYTES};
use silt_repository::objects::Objects;
use silt_repository::temporary::{TemporaryFile, TemporaryReader};

/// Content is sealed in blocks of this size; the last block of a range is smaller.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;

/// Content and entries on their way to the temporary file.
pub(crate) struct Spool(TemporaryFile);

/// Reads what was put into the file before.
#[derive(Clone)]
pub(crate) struct SpoolReader(Option<TemporaryReader>);

impl Spool {
    pub(crate) fn new(objects: &Objects, folder: &Path) -> Self {
        Self(TemporaryFile::new(objects, folder))
    }

    /// Where the next block begins.
    pub(crate) fn end(&self) -> u64 {
        self.0.bytes()
    }

    /// Appends a block, which is sealed in place and then cleared.
    pub(crate) fn append(&mut self, block: &mut Vec<u8>) -> Result<u64> {
        let start = self.0.append(block)?;
        block.clear();
        Ok(start)
    }

    pub(crate) fn reader(&self) -> SpoolReader {
        SpoolReader(self.0.reader())
    }
}

impl SpoolReader {
    /// A whole block of `bytes` bytes.
    pub(crate) fn block<'b>(
        &self,
        start: u64,
        bytes: usize,
        buffer: &'b mut Vec<u8>,
    ) -> Result<&'b [u8]> {
        match &self.0 {
            Some(reader) => reader.read(start, bytes, buffer),
            None => Err(silt_format::Error::invalid("a read from an empty temporary file")),
        }
    }

    /// Fills `to` from a range of `range_bytes` that begins with the block at `start`, `offset`
    /// bytes behind its beginning. The caller has made sure that the range is long enough.
    pub(crate) fn read(
        &self,
        (start, range_bytes): (u64, u64),
        offset: u64,
        to: &mut [u8],
    ) -> Result<()> {
        let (size, mut block) = (to_u64(BLOCK_BYTES), Vec::new());
        let (mut at, mut done) = (offset, 0);
        while done < to.len() {
            let number = at / size;
            let sealed = start + number * (size + to_u64(TAG_BYTES));
            let bytes = to_usize(size.min(range_bytes - number * size));
            let plain = self.block(sealed, bytes, &mut block)?;
            let rest = &plain[to_usize(at % size)..];
            let count = rest.len().min(to.len() - done);
            to[done..done + count].copy_from_slice(&rest[..count]);
            done += count;
            at += to_u64(count);
        }
        Ok(())
    }
}
