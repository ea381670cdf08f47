//! Sorting more records than memory holds: sorted spills in a temporary file, merged.

use std::path::Path;

use silt_format::number::{to_u64, to_usize};
use silt_format::{
    RECORD_BYTES, RUN_BLOCK_RECORDS_MAX, Record, Result, decode_records, encode_records,
};

use crate::merge::{Records, Stream, merge};
use silt_repository::objects::Objects;
use silt_repository::temporary::{TemporaryFile, TemporaryReader};

/// Most spills that are merged at once; each takes a block's memory.
const FAN_IN_MAX: usize = 64;

/// Collects records and returns them in order, within a memory budget.
///
/// Records that do not fit into memory go to a file without a name, sealed with a key that ends
/// with the process.
pub struct Sorter {
    records_max: usize,
    held: Vec<Record>,
    file: TemporaryFile,
    spills: Vec<Spill>,
}

/// Sorted records: blocks of the spool, one behind the other.
#[derive(Clone, Copy)]
struct Spill {
    start: u64,
    records: u64,
}

impl Sorter {
    /// A sorter that holds `memory_bytes` of records and spills to a file in `folder`.
    pub fn new(objects: &Objects, folder: &Path, memory_bytes: usize) -> Self {
        let file = TemporaryFile::new(objects, folder);
        let records_max = (memory_bytes / RECORD_BYTES).max(RUN_BLOCK_RECORDS_MAX);
        Self { records_max, held: Vec::new(), file, spills: Vec::new() }
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) -> Result<()> {
        if self.held.len() == self.records_max {
            self.spill()?;
        }
        if self.held.is_empty() {
            // Growing by doubling would take half as much again as the budget.
            self.held.reserve_exact(self.records_max.min(RUN_BLOCK_RECORDS_MAX));
        } else if self.held.len() == self.held.capacity() {
            let more = self.held.len().min(self.records_max - self.held.len());
            self.held.reserve_exact(more);
        }
        self.held.push(record);
        Ok(())
    }

    /// Ends the collection.
    pub fn finish(mut self) -> Result<Sorted> {
        if !self.spills.is_empty() {
            self.spill()?;
            self.held = Vec::new();
        }
        self.held.sort_unstable();
        while self.spills.len() > FAN_IN_MAX {
            let first: Vec<Spill> = self.spills.drain(..FAN_IN_MAX).collect();
            let mut merged = merge(streams(&self.file, &first));
            let spill = write(&mut self.file, &mut merged)?;
            self.spills.push(spill);
        }
        Ok(Sorted { held: self.held, file: self.file, spills: self.spills })
    }

    /// Adds records that are in order. They go to the file and take no memory.
    pub fn push_sorted(&mut self, records: &mut Stream<'_>) -> Result<()> {
        let spill = write(&mut self.file, records)?;
        self.spills.extend((spill.records > 0).then_some(spill));
        Ok(())
    }

    fn spill(&mut self) -> Result<()> {
        if self.held.is_empty() {
            return Ok(());
        }
        self.held.sort_unstable();
        let spill = write_sorted(&mut self.file, &self.held)?;
        self.held.clear();
        self.spills.push(spill);
        Ok(())
    }
}

/// All records of any number of streams, of which so many are read at once at most: their records
/// go to the file of `sorter`, so that memory does not grow with the number of streams.
pub fn gather<'a>(streams: Vec<Stream<'a>>, at_once: usize, mut sorter: Sorter) -> Result<Sorted> {
    let mut streams = streams.into_iter();
    loop {
        let group: Vec<Stream<'a>> = streams.by_ref().take(at_once.max(1)).collect();
        if group.is_empty() {
            return sorter.finish();
        }
        sorter.push_sorted(&mut merge(group))?;
    }
}

fn write_sorted(file: &mut TemporaryFile, records: &[Record]) -> Result<Spill> {
    let mut spill = Spill { start: file.bytes(), records: 0 };
    for block in records.chunks(RUN_BLOCK_RECORDS_MAX) {
        write_block(file, block)?;
        spill.records += to_u64(block.len());
    }
    Ok(spill)
}

fn write(file: &mut TemporaryFile, stream: &mut Stream<'_>) -> Result<Spill> {
    let mut spill = Spill { start: file.bytes(), records: 0 };
    let mut block = Vec::with_capacity(RUN_BLOCK_RECORDS_MAX);
    loop {
        block.clear();
        while block.len() < RUN_BLOCK_RECORDS_MAX {
            let Some(record) = stream.next()? else { break };
            block.push(record);
        }
        if block.is_empty() {
            return Ok(spill);
        }
        write_block(file, &block)?;
        spill.records += to_u64(block.len());
    }
}

fn write_block(file: &mut TemporaryFile, records: &[Record]) -> Result<()> {
    let mut bytes = Vec::new();
    encode_records(records, &mut bytes);
    file.append(&mut bytes).map(drop)
}

fn streams(file: &TemporaryFile, spills: &[Spill]) -> Vec<Stream<'static>> {
    let reader = file.reader();
    let each = reader.iter().flat_map(|reader| spills.iter().map(move |spill| (reader, spill)));
    each.map(|(reader, spill)| {
        let (reader, sealed) = (reader.clone(), Vec::new());
        Stream::new(SpillReader { reader, at: spill.start, left: spill.records, sealed })
    })
    .collect()
}

/// Sorted records, to be read as often as needed.
pub struct Sorted {
    held: Vec<Record>,
    file: TemporaryFile,
    spills: Vec<Spill>,
}

impl Sorted {
    /// All records in order.
    pub fn stream(&self) -> Stream<'_> {
        if self.spills.is_empty() {
            return Stream::new(Held { rest: &self.held });
        }
        merge(streams(&self.file, &self.spills))
    }

    /// How many there are.
    pub fn records(&self) -> u64 {
        self.spills.iter().map(|spill| spill.records).sum::<u64>() + to_u64(self.held.len())
    }
}

/// Records that fit in memory.
struct Held<'a> {
    rest: &'a [Record],
}

impl Records for Held<'_> {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        let (now, later) = self.rest.split_at(self.rest.len().min(RUN_BLOCK_RECORDS_MAX));
        batch.clear();
        batch.extend_from_slice(now);
        self.rest = later;
        Ok(())
    }
}

struct SpillReader {
    reader: TemporaryReader,
    at: u64,
    left: u64,
    sealed: Vec<u8>,
}

impl Records for SpillReader {
    fn next_batch(&mut self, batch: &mut Vec<Record>) -> Result<()> {
        batch.clear();
        let count = self.left.min(to_u64(RUN_BLOCK_RECORDS_MAX));
        if count == 0 {
            return Ok(());
        }
        let bytes = RECORD_BYTES * to_usize(count);
        decode_records(self.reader.read(self.at, bytes, &mut self.sealed)?, batch)?;
        self.at += to_u64(self.sealed.len());
        self.left -= count;
        Ok(())
    }
}
