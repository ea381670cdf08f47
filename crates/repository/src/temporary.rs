//! Temporary files: without a name, and sealed with a key that ends with the process.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use silt_format::number::to_u64;
use silt_format::{Error, ObjectKind, Result, Sealer, SeriesId, TAG_BYTES};

use crate::objects::{Address, Objects};

/// A file of blocks, made when the first one is written.
pub struct TemporaryFile {
    folder: PathBuf,
    file: Option<Arc<File>>,
    sealer: Arc<Sealer>,
    end: u64,
}

/// Reads blocks that were written before or after the reader was created.
#[derive(Clone)]
pub struct TemporaryReader {
    file: Arc<File>,
    sealer: Arc<Sealer>,
}

impl TemporaryFile {
    /// Temporary files in `folder`, sealed with a key of their own.
    pub fn new(objects: &Objects, folder: &Path) -> Self {
        let header = objects.new_header(Address::new(ObjectKind::Run, SeriesId::NONE, 0));
        let sealer = Arc::new(objects.sealer(&header));
        Self { folder: folder.to_owned(), file: None, sealer, end: 0 }
    }

    /// How long the file is: where the next block begins.
    pub fn bytes(&self) -> u64 {
        self.end
    }

    /// Appends a block, which is sealed in place; returns its offset.
    pub fn append(&mut self, block: &mut Vec<u8>) -> Result<u64> {
        let start = self.end;
        self.sealer.seal(start, block, 0);
        self.file()?.write_all_at(block, start).map_err(|error| {
            Error::io(format!("write to a temporary file in {}", self.folder.display()), error)
        })?;
        self.end += to_u64(block.len());
        Ok(start)
    }

    /// Returns a reader; `None` before the first block.
    pub fn reader(&self) -> Option<TemporaryReader> {
        let file = self.file.as_ref()?;
        Some(TemporaryReader { file: Arc::clone(file), sealer: Arc::clone(&self.sealer) })
    }

    fn file(&mut self) -> Result<Arc<File>> {
        if let Some(file) = &self.file {
            return Ok(Arc::clone(file));
        }
        let file = tempfile::tempfile_in(&self.folder).map_err(|error| {
            Error::io(format!("make a temporary file in {}", self.folder.display()), error)
        })?;
        Ok(Arc::clone(self.file.insert(Arc::new(file))))
    }
}

impl TemporaryReader {
    /// The block of `bytes` bytes that begins at `start`, in `buffer`.
    pub fn read<'b>(&self, start: u64, bytes: usize, buffer: &'b mut Vec<u8>) -> Result<&'b [u8]> {
        buffer.resize(bytes + TAG_BYTES, 0);
        self.file
            .read_exact_at(buffer, start)
            .map_err(|error| Error::io("read a temporary file", error))?;
        self.sealer.open(start, buffer)
    }
}
