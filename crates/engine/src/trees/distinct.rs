//! How many bytes the distinct ones of a stream of chunks have, however many there are.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, Result};

/// Chunks that are kept in memory before they are written: 48 KiB.
const BUFFERED: usize = 4096;
/// Maximum number of chunks that are compared at a time: 32 MiB.
const COMPARED_MAX: u64 = 2 << 20;
/// A chunk in the file: the beginning of its fingerprint and its length.
const RECORD_BYTES: usize = 12;

/// The chunks of a stream, in a temporary file without a name once there are more than a few
/// thousand. Fingerprints are of a key that ends with the process, so the file is not encrypted.
pub struct Distinct {
    folder: PathBuf,
    buffer: Vec<u8>,
    file: Option<File>,
    written: u64,
}

impl Distinct {
    /// No chunks; their file will be in `folder`.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), buffer: Vec::new(), file: None, written: 0 }
    }

    /// Adds a chunk. `key` is the beginning of its fingerprint.
    pub fn add(&mut self, key: u64, length: u32) -> Result<()> {
        self.buffer.extend_from_slice(&key.to_le_bytes());
        self.buffer.extend_from_slice(&length.to_le_bytes());
        if self.buffer.len() >= BUFFERED * RECORD_BYTES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> Result<()> {
        let failed = |error| {
            Error::io(format!("write to a temporary file in {}", self.folder.display()), error)
        };
        if self.file.is_none() {
            self.file = Some(tempfile::tempfile_in(&self.folder).map_err(failed)?);
        }
        if let Some(file) = &mut self.file {
            file.write_all(&self.buffer).map_err(failed)?;
        }
        self.written += to_u64(self.buffer.len());
        self.buffer.clear();
        Ok(())
    }

    /// The sum of the lengths of the distinct chunks.
    ///
    /// Reads the file once for every 2 Mi chunks; uses at most about 32 MiB.
    pub fn bytes(mut self) -> Result<u64> {
        let Some(mut file) = self.file.take() else {
            return Ok(sum(records(&self.buffer).collect()));
        };
        let total = (self.written + to_u64(self.buffer.len())) / to_u64(RECORD_BYTES);
        let parts = total.div_ceil(COMPARED_MAX).next_power_of_two();
        let failed = |error| Error::io("read a temporary file", error);
        let mut bytes = 0;
        for part in 0..parts {
            let is_of_part = |(key, _): &(u64, u32)| key % parts == part;
            let mut found: Vec<(u64, u32)> = records(&self.buffer).filter(is_of_part).collect();
            file.seek(SeekFrom::Start(0)).map_err(failed)?;
            let mut reader = BufReader::new(&file);
            let mut block = vec![0; BUFFERED * RECORD_BYTES];
            let mut left = self.written;
            while left > 0 {
                let read = to_usize(left.min(to_u64(block.len())));
                reader.read_exact(&mut block[..read]).map_err(failed)?;
                found.extend(records(&block[..read]).filter(is_of_part));
                left -= to_u64(read);
            }
            bytes += sum(found);
        }
        Ok(bytes)
    }
}

fn records(block: &[u8]) -> impl Iterator<Item = (u64, u32)> + '_ {
    let (records, _) = block.as_chunks::<RECORD_BYTES>();
    records.iter().map(|record| {
        let key = record.first_chunk().copied().unwrap_or_default();
        let length = record.last_chunk().copied().unwrap_or_default();
        (u64::from_le_bytes(key), u32::from_le_bytes(length))
    })
}

/// The sum of the lengths of different chunks.
fn sum(mut chunks: Vec<(u64, u32)>) -> u64 {
    chunks.sort_unstable();
    chunks.dedup_by_key(|(key, _)| *key);
    chunks.iter().map(|(_, length)| u64::from(*length)).sum()
}

#[cfg(test)]
#[path = "distinct/tests.rs"]
mod tests;
