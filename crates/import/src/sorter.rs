//! Sorting more entries than memory holds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::Path;
use std::sync::Arc;

use silt_format::number::{to_u16, to_u32, to_u64, to_usize};
use silt_format::{Error, Result};
use silt_repository::objects::Objects;
use silt_repository::temporary::{TemporaryFile, TemporaryReader};

/// Memory of the items that are sorted at once.
const BUFFER_BYTES: usize = 8 << 20;
/// Runs are read in blocks of about this size; an item is in one block.
const BLOCK_BYTES: usize = 64 << 10;
/// Maximum number of runs that are merged at once: 4 MiB of blocks.
const RUNS_MAX: usize = 64;
/// Bytes of an item besides its key and its payload.
const HEADER_BYTES: usize = 4 + 8 + 2;

/// A key with its number and its payload; items ascend by key, then by number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record {
    pub(crate) key: Vec<u8>,
    pub(crate) number: u64,
    pub(crate) payload: Vec<u8>,
}

/// A sorted run: where its blocks begin, and their sizes.
type Run = Vec<(u64, u32)>;

/// Collects items, and sorts them in runs in a temporary file.
pub(crate) struct Sorter {
    file: TemporaryFile,
    buffer: Vec<u8>,
    /// Where the items in the buffer begin.
    starts: Vec<u32>,
    runs: Vec<Run>,
}

/// Sorted items, which can be read several times.
#[derive(Clone)]
pub(crate) struct Sorted {
    reader: Option<TemporaryReader>,
    runs: Arc<Vec<Run>>,
}

impl Sorter {
    pub(crate) fn new(objects: &Objects, folder: &Path) -> Self {
        let file = TemporaryFile::new(objects, folder);
        Self { file, buffer: Vec::new(), starts: Vec::new(), runs: Vec::new() }
    }

    /// Adds an item. Keys have less than 256 KiB, and payloads less than 64 KiB.
    pub(crate) fn add(&mut self, key: &[u8], number: u64, payload: &[u8]) -> Result<()> {
        let bytes = HEADER_BYTES + key.len() + payload.len();
        let used = self.buffer.len() + self.starts.len() * size_of::<u32>();
        if used + bytes > BUFFER_BYTES && !self.starts.is_empty() {
            self.end_run()?;
        }
        self.starts.push(to_u32(self.buffer.len()));
        write(&mut self.buffer, key, number, payload);
        Ok(())
    }

    /// Sorts the items.
    pub(crate) fn finish(mut self) -> Result<Sorted> {
        self.end_run()?;
        Ok(self.sorted())
    }

    fn sorted(&self) -> Sorted {
        Sorted { reader: self.file.reader(), runs: Arc::new(self.runs.clone()) }
    }

    fn end_run(&mut self) -> Result<()> {
        if self.starts.is_empty() {
            return Ok(());
        }
        let buffer = std::mem::take(&mut self.buffer);
        let mut starts = std::mem::take(&mut self.starts);
        let order = |start: &u32| {
            let (key, number, _, _) = parts(&buffer[to_usize(u64::from(*start))..]);
            (key, number)
        };
        starts.sort_unstable_by(|a, b| order(a).cmp(&order(b)));
        let mut writer = RunWriter::default();
        for start in starts {
            let item = &buffer[to_usize(u64::from(start))..];
            let bytes = parts(item).3;
            writer.add(&item[..bytes], &mut self.file)?;
        }
        let run = writer.finish(&mut self.file)?;
        self.runs.push(run);
        if self.runs.len() == RUNS_MAX {
            self.merge_runs()?;
        }
        Ok(())
    }

    /// Merges all runs into one.
    fn merge_runs(&mut self) -> Result<()> {
        let mut merge = self.sorted().merge()?;
        let (mut writer, mut item) = (RunWriter::default(), Vec::new());
        while let Some(Record { key, number, payload }) = merge.next()? {
            item.clear();
            write(&mut item, &key, number, &payload);
            writer.add(&item, &mut self.file)?;
        }
        self.runs = vec![writer.finish(&mut self.file)?];
        Ok(())
    }
}

fn write(to: &mut Vec<u8>, key: &[u8], number: u64, payload: &[u8]) {
    to.extend(to_u32(key.len()).to_le_bytes());
    to.extend(number.to_le_bytes());
    to.extend(to_u16(payload.len()).to_le_bytes());
    to.extend_from_slice(key);
    to.extend_from_slice(payload);
}

/// Key, number, payload and size of the item at the beginning of `bytes`. They are read back as
/// they were written: blocks are sealed.
fn parts(bytes: &[u8]) -> (&[u8], u64, &[u8], usize) {
    let key_bytes = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[4..12]);
    let payload_bytes = usize::from(u16::from_le_bytes([bytes[12], bytes[13]]));
    let key_end = HEADER_BYTES + to_usize(u64::from(key_bytes));
    let end = key_end + payload_bytes;
    (&bytes[HEADER_BYTES..key_end], u64::from_le_bytes(number), &bytes[key_end..end], end)
}

#[derive(Default)]
struct RunWriter {
    block: Vec<u8>,
    run: Run,
}

impl RunWriter {
    fn add(&mut self, item: &[u8], file: &mut TemporaryFile) -> Result<()> {
        if !self.block.is_empty() && self.block.len() + item.len() > BLOCK_BYTES {
            self.end_block(file)?;
        }
        self.block.extend_from_slice(item);
        Ok(())
    }

    fn end_block(&mut self, file: &mut TemporaryFile) -> Result<()> {
        let bytes = to_u32(self.block.len());
        let start = file.append(&mut self.block)?;
        self.run.push((start, bytes));
        self.block.clear();
        Ok(())
    }

    fn finish(mut self, file: &mut TemporaryFile) -> Result<Run> {
        if !self.block.is_empty() {
            self.end_block(file)?;
        }
        Ok(self.run)
    }
}

impl Sorted {
    /// Reads the items in their order.
    pub(crate) fn merge(&self) -> Result<Merge> {
        let cursors = vec![Cursor::default(); self.runs.len()];
        let mut merge = Merge { sorted: self.clone(), cursors, heap: BinaryHeap::new() };
        for run in 0..self.runs.len() {
            merge.advance(run)?;
        }
        Ok(merge)
    }
}

/// A place in a run.
#[derive(Clone, Default)]
struct Cursor {
    /// Number of the next block.
    next: usize,
    block: Vec<u8>,
    at: usize,
}

/// Reads sorted items.
pub(crate) struct Merge {
    sorted: Sorted,
    cursors: Vec<Cursor>,
    /// The next item of each run.
    heap: BinaryHeap<Reverse<(Record, usize)>>,
}

impl Merge {
    /// The next item; `None` behind the last.
    pub(crate) fn next(&mut self) -> Result<Option<Record>> {
        let Some(Reverse((item, run))) = self.heap.pop() else { return Ok(None) };
        self.advance(run)?;
        Ok(Some(item))
    }

    fn advance(&mut self, run: usize) -> Result<()> {
        let cursor = &mut self.cursors[run];
        if cursor.at == cursor.block.len() {
            let Some((start, bytes)) = self.sorted.runs[run].get(cursor.next) else {
                return Ok(());
            };
            let Some(reader) = &self.sorted.reader else {
                return Err(Error::invalid("a run without a temporary file"));
            };
            let bytes = to_usize(u64::from(*bytes));
            reader.read(*start, bytes, &mut cursor.block)?;
            cursor.block.truncate(bytes);
            cursor.next += 1;
            cursor.at = 0;
        }
        let (key, number, payload, bytes) = parts(&cursor.block[cursor.at..]);
        let item = Record { key: key.to_vec(), number, payload: payload.to_vec() };
        cursor.at += bytes;
        self.heap.push(Reverse((item, run)));
        Ok(())
    }
}

const _: () = assert!(to_u64(BUFFER_BYTES) < u32::MAX as u64);
