//! Sorting more records than memory holds: sorted spills in a temporary file, merged.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::{
    Error, ObjectKind, RECORD_BYTES, RUN_BLOCK_RECORDS_MAX, Record, Result, Sealer, SeriesId,
    decode_records, encode_records,
};

use super::merge::{Records, Stream, merge};
use crate::objects::{Address, Objects};

/// Most spills that are merged at once; each takes a block's memory.
const FAN_IN_MAX: usize = 64;

/// Collects records and gives them back in order, within a budget of memory.
///
/// What does not fit goes to a file that has no name, sealed with a key that ends with the process.
pub(crate) struct Sorter {
    records_max: usize,
    held: Vec<Record>,
    spool: Spool,
    spills: Vec<Spill>,
}

/// The file that spills go to, shared with those who read them.
struct Spool {
    folder: std::path::PathBuf,
    file: Option<Arc<File>>,
    sealer: Arc<Sealer>,
    end: u64,
}

/// Sorted records: blocks of the spool, one behind the other.
#[derive(Clone, Copy)]
struct Spill {
    start: u64,
    records: u64,
}

impl Sorter {
    /// A sorter that holds `memory_bytes` of records and spills to a file in `folder`.
    pub(crate) fn new(objects: &Objects, folder: &Path, memory_bytes: usize) -> Self {
        let header = objects.new_header(Address::new(ObjectKind::Run, SeriesId::NONE, 0));
        let spool = Spool {
            folder: folder.to_owned(),
            file: None,
            sealer: Arc::new(objects.sealer(&header)),
            end: 0,
        };
        let records_max = (memory_bytes / RECORD_BYTES).max(RUN_BLOCK_RECORDS_MAX);
        Self { records_max, held: Vec::new(), spool, spills: Vec::new() }
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: Record) -> Result<()> {
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
    pub(crate) fn finish(mut self) -> Result<Sorted> {
        if !self.spills.is_empty() {
            self.spill()?;
            self.held = Vec::new();
        }
        self.held.sort_unstable();
        while self.spills.len() > FAN_IN_MAX {
            let first: Vec<Spill> = self.spills.drain(..FAN_IN_MAX).collect();
            let mut merged = merge(self.spool.streams(&first));
            let spill = self.spool.write(&mut merged)?;
            self.spills.push(spill);
        }
        Ok(Sorted { held: self.held, spool: self.spool, spills: self.spills })
    }

    fn spill(&mut self) -> Result<()> {
        self.held.sort_unstable();
        let spill = self.spool.write_sorted(&self.held)?;
        self.held.clear();
        self.spills.push(spill);
        Ok(())
    }
}

impl Spool {
    fn file(&mut self) -> Result<Arc<File>> {
        if let Some(file) = &self.file {
            return Ok(Arc::clone(file));
        }
        let file = tempfile::tempfile_in(&self.folder).map_err(|error| {
            Error::io(format!("make a temporary file in {}", self.folder.display()), error)
        })?;
        Ok(Arc::clone(self.file.insert(Arc::new(file))))
    }

    fn write_sorted(&mut self, records: &[Record]) -> Result<Spill> {
        let mut spill = Spill { start: self.end, records: 0 };
        for block in records.chunks(RUN_BLOCK_RECORDS_MAX) {
            self.write_block(block)?;
            spill.records += to_u64(block.len());
        }
        Ok(spill)
    }

    fn write(&mut self, stream: &mut Stream<'_>) -> Result<Spill> {
        let mut spill = Spill { start: self.end, records: 0 };
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
            self.write_block(&block)?;
            spill.records += to_u64(block.len());
        }
    }

    /// Appends a block, sealed at the position where it begins.
    fn write_block(&mut self, records: &[Record]) -> Result<()> {
        let mut bytes = Vec::new();
        encode_records(records, &mut bytes);
        self.sealer.seal(self.end, &mut bytes, 0);
        self.file()?.write_all_at(&bytes, self.end).map_err(|error| {
            Error::io(format!("write to a temporary file in {}", self.folder.display()), error)
        })?;
        self.end += to_u64(bytes.len());
        Ok(())
    }

    fn streams(&self, spills: &[Spill]) -> Vec<Stream<'static>> {
        let file = self.file.iter();
        let each = file.flat_map(|file| spills.iter().map(move |spill| (file, spill)));
        each.map(|(file, spill)| {
            Stream::new(SpillReader {
                file: Arc::clone(file),
                sealer: Arc::clone(&self.sealer),
                at: spill.start,
                left: spill.records,
                sealed: Vec::new(),
            })
        })
        .collect()
    }
}

/// Sorted records, to be read as often as needed.
pub(crate) struct Sorted {
    held: Vec<Record>,
    spool: Spool,
    spills: Vec<Spill>,
}

impl Sorted {
    /// All records in order.
    pub(crate) fn stream(&self) -> Stream<'_> {
        if self.spills.is_empty() {
            return Stream::new(Held { rest: &self.held });
        }
        merge(self.spool.streams(&self.spills))
    }

    /// How many there are.
    pub(crate) fn records(&self) -> u64 {
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
    file: Arc<File>,
    sealer: Arc<Sealer>,
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
        self.sealed.resize(bytes + silt_format::TAG_BYTES, 0);
        self.file
            .read_exact_at(&mut self.sealed, self.at)
            .map_err(|error| Error::io("read a temporary file", error))?;
        let plain = self.sealer.open(self.at, &mut self.sealed)?;
        decode_records(plain, batch)?;
        self.at += to_u64(self.sealed.len());
        self.left -= count;
        Ok(())
    }
}
