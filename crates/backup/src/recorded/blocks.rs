//! Records as blocks of a temporary file, which are read from the first to the last.

use silt_format::Result;
use silt_repository::temporary::{TemporaryFile, TemporaryReader};

/// Records are collected up to this many bytes and sealed as one block.
const BLOCK_BYTES: usize = 64 << 10;

/// Writes records to the end of a file, which may hold those of several writers.
pub(super) struct BlockWriter<'f> {
    file: &'f mut TemporaryFile,
    /// The records of the next block. The caller appends to it.
    pub(super) buffer: Vec<u8>,
    blocks: Vec<(u64, usize)>,
}

impl<'f> BlockWriter<'f> {
    pub(super) fn new(file: &'f mut TemporaryFile) -> Self {
        Self { file, buffer: Vec::new(), blocks: Vec::new() }
    }

    /// Ends a record. Only here does a block end.
    pub(super) fn end_record(&mut self) -> Result<()> {
        if self.buffer.len() >= BLOCK_BYTES { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        let bytes = self.buffer.len();
        let start = self.file.append(&mut self.buffer)?;
        self.blocks.push((start, bytes));
        self.buffer.clear();
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Blocks> {
        if !self.buffer.is_empty() {
            self.end_block()?;
        }
        Ok(Blocks { file: self.file.reader(), blocks: self.blocks })
    }
}

/// The records of one writer.
#[derive(Default)]
pub(super) struct Blocks {
    file: Option<TemporaryReader>,
    /// Where each block begins, and its bytes.
    pub(super) blocks: Vec<(u64, usize)>,
}

/// Reads records from the first to the last.
pub(super) struct BlockReader<'b> {
    of: &'b Blocks,
    next_block: usize,
    /// A block, and how much of it was read.
    buffer: Vec<u8>,
    at: usize,
}

impl<'b> BlockReader<'b> {
    pub(super) fn new(of: &'b Blocks) -> Self {
        Self { of, next_block: 0, buffer: Vec::new(), at: 0 }
    }

    /// Returns the next record, as `decode` takes it from the beginning of a block's rest; `None`
    /// after the last.
    pub(super) fn next<T>(
        &mut self,
        decode: impl FnOnce(&mut &[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        if self.at == self.buffer.len() {
            let next = self.of.blocks.get(self.next_block);
            let (Some((start, bytes)), Some(file)) = (next, &self.of.file) else {
                return Ok(None);
            };
            file.read(*start, *bytes, &mut self.buffer)?;
            self.buffer.truncate(*bytes);
            (self.next_block, self.at) = (self.next_block + 1, 0);
        }
        let mut rest = &self.buffer[self.at..];
        let record = decode(&mut rest)?;
        self.at = self.buffer.len() - rest.len();
        Ok(Some(record))
    }
}
