//! Sorted names in temporary files.
//!
//! A file consists of blocks: length of the entries in bytes (`u32`), then the entries as in a
//! batch in memory, sealed, and the tag. A run is a range of blocks whose names ascend. The files
//! have no name and end with the process, and so do their keys: names can be as secret as content.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use silt_format::number::{to_u32, to_u64};
use silt_format::{Error, ErrorKind, Result, Sealer, TAG_BYTES};

use super::{Batch, HEADER_BYTES};

/// Size of a block in bytes, without the header. The entry that exceeds it is the block's last.
const BLOCK_BYTES: usize = 32 << 10;
const BLOCK_HEADER_BYTES: usize = 4;
/// Maximum number of runs that are merged at a time. Each takes the memory of a block.
pub(super) const FAN_IN: usize = 128;

/// A temporary file, and what seals its blocks. No two are written at one place.
struct SealedFile {
    file: File,
    sealer: Sealer,
}

impl std::fmt::Debug for SealedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.file.fmt(f)
    }
}

impl SealedFile {
    /// Makes a file without a name in the system's folder for temporary files.
    fn new() -> Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key)
            .map_err(|error| failed("making", io::Error::other(error.to_string())))?;
        let sealer = Sealer::of_temporary(&key);
        let file = tempfile::tempfile().map_err(|error| failed("making", error))?;
        Ok(Self { file, sealer })
    }
}

/// A block of the sorted names.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Position of its first name.
    first: usize,
    offset: u64,
}

/// Names in order, in a temporary file.
#[derive(Debug)]
pub(super) struct Sorted {
    file: SealedFile,
    places: Vec<Place>,
    count: usize,
}

impl Sorted {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// Reads the blocks that contain the names at these positions. Returns the position of their
    /// first name, and all their names.
    pub(super) fn load(&self, range: Range<usize>) -> Result<(usize, Batch)> {
        let from = self.places.partition_point(|place| place.first <= range.start);
        let from = from.saturating_sub(1);
        let mut batch = Batch::default();
        let places = self.places[from..].iter();
        for place in places.take_while(|place| place.first < range.end.max(range.start + 1)) {
            read_block(&self.file, place.offset, &mut batch.bytes)?;
        }
        batch.index()?;
        let first = self.places.get(from).map_or(0, |place| place.first);
        if first + batch.starts.len() < range.end {
            return Err(damaged());
        }
        Ok((first, batch))
    }

    /// Reads the block that contains this name, if any does. Returns it as [`load`](Self::load)
    /// does.
    pub(super) fn find(&self, name: &[u8]) -> Result<(usize, Batch)> {
        let (mut low, mut high) = (0, self.places.len());
        while high - low > 1 {
            let middle = low.midpoint(high);
            let mut batch = Batch::default();
            read_block(&self.file, self.places[middle].offset, &mut batch.bytes)?;
            batch.index()?;
            if batch.name(0) <= name { low = middle } else { high = middle }
        }
        let first = self.places.get(low).map_or(0, |place| place.first);
        self.load(first..first)
    }
}

impl Batch {
    /// Finds the entries in `bytes`. Fails if these are not entries.
    fn index(&mut self) -> Result<()> {
        let mut at = 0;
        while at < self.bytes.len() {
            let length = self.bytes.get(at + 1).ok_or_else(damaged)?;
            self.starts.push(to_u32(at));
            at += HEADER_BYTES + usize::from(*length);
        }
        if at == self.bytes.len() { Ok(()) } else { Err(damaged()) }
    }
}

/// Runs of sorted names that are to be merged.
#[derive(Debug)]
pub(super) struct Runs {
    file: SealedFile,
    end: u64,
    places: Vec<Range<u64>>,
}

impl Runs {
    pub(super) fn new() -> Result<Self> {
        Ok(Self { file: SealedFile::new()?, end: 0, places: Vec::new() })
    }

    /// Adds a batch that is sorted and has a name.
    pub(super) fn add(&mut self, batch: &Batch) -> Result<()> {
        let mut writer = Writer::new(&self.file, self.end);
        for at in 0..batch.starts.len() {
            writer.add(batch.kind(at), batch.name(at))?;
        }
        let written = writer.end()?;
        self.note(&written);
        Ok(())
    }

    fn note(&mut self, written: &Written) {
        self.places.push(self.end..written.end);
        self.end = written.end;
    }

    /// Merges all runs into a file of its own.
    pub(super) fn merge(mut self) -> Result<Sorted> {
        while self.places.len() > FAN_IN {
            for runs in std::mem::take(&mut self.places).chunks(FAN_IN) {
                let written = merge(&self.file, runs, Writer::new(&self.file, self.end))?;
                self.note(&written);
            }
        }
        let file = SealedFile::new()?;
        let Written { places, count, .. } = merge(&self.file, &self.places, Writer::new(&file, 0))?;
        Ok(Sorted { file, places, count })
    }
}

/// Merges runs. Writes a name that is in several of them once.
fn merge(file: &SealedFile, runs: &[Range<u64>], mut to: Writer<'_>) -> Result<Written> {
    let mut readers: Vec<_> = runs.iter().map(|run| Reader::new(file, run.clone())).collect();
    let mut heads = BinaryHeap::with_capacity(readers.len());
    for (number, reader) in readers.iter_mut().enumerate() {
        let mut name = Vec::new();
        if let Some(kind) = reader.next(&mut name)? {
            heads.push(Reverse((name, number, kind)));
        }
    }
    let mut last = Vec::new();
    while let Some(mut head) = heads.peek_mut() {
        let Reverse((name, number, kind)) = &mut *head;
        // No name is empty.
        if *name != last {
            to.add(*kind, name)?;
            last.clone_from(name);
        }
        match readers[*number].next(name)? {
            Some(next) => *kind = next,
            None => drop(PeekMut::pop(head)),
        }
    }
    to.end()
}

/// Reads the names of a run.
struct Reader<'f> {
    file: &'f SealedFile,
    rest: Range<u64>,
    block: Vec<u8>,
    at: usize,
}

impl<'f> Reader<'f> {
    fn new(file: &'f SealedFile, run: Range<u64>) -> Self {
        Self { file, rest: run, block: Vec::new(), at: 0 }
    }

    /// Replaces `name` by the next name, and returns its type; `None` at the end.
    fn next(&mut self, name: &mut Vec<u8>) -> Result<Option<u8>> {
        if self.at == self.block.len() {
            if self.rest.is_empty() {
                return Ok(None);
            }
            self.block.clear();
            self.at = 0;
            self.rest.start += read_block(self.file, self.rest.start, &mut self.block)?;
        }
        let entry = &self.block[self.at..];
        let [kind, length] = *entry.first_chunk().ok_or_else(damaged)?;
        let end = HEADER_BYTES + usize::from(length);
        name.clear();
        name.extend_from_slice(entry.get(HEADER_BYTES..end).ok_or_else(damaged)?);
        self.at += end;
        Ok(Some(kind))
    }
}

/// Writes a run.
struct Writer<'f> {
    file: &'f SealedFile,
    block: Vec<u8>,
    written: Written,
}

/// The blocks of a run.
struct Written {
    places: Vec<Place>,
    count: usize,
    end: u64,
}

impl<'f> Writer<'f> {
    fn new(file: &'f SealedFile, start: u64) -> Self {
        let written = Written { places: Vec::new(), count: 0, end: start };
        Self { file, block: Vec::new(), written }
    }

    fn add(&mut self, kind: u8, name: &[u8]) -> Result<()> {
        if self.block.is_empty() {
            let place = Place { first: self.written.count, offset: self.written.end };
            self.written.places.push(place);
            self.block.resize(BLOCK_HEADER_BYTES, 0);
        }
        self.block.extend([kind, u8::try_from(name.len()).unwrap_or(u8::MAX)]);
        self.block.extend_from_slice(name);
        self.written.count += 1;
        if self.block.len() > BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        if self.block.is_empty() {
            return Ok(());
        }
        let entries = to_u32(self.block.len() - BLOCK_HEADER_BYTES);
        self.block[..BLOCK_HEADER_BYTES].copy_from_slice(&entries.to_le_bytes());
        self.file.sealer.seal(self.written.end, &mut self.block, BLOCK_HEADER_BYTES);
        self.file
            .file
            .write_all_at(&self.block, self.written.end)
            .map_err(|error| failed("writing", error))?;
        self.written.end += to_u64(self.block.len());
        self.block.clear();
        Ok(())
    }

    fn end(mut self) -> Result<Written> {
        self.flush()?;
        Ok(self.written)
    }
}

/// Appends the entries of a block to `to`. Returns the size of the block in the file.
fn read_block(from: &SealedFile, offset: u64, to: &mut Vec<u8>) -> Result<u64> {
    let mut header = [0; BLOCK_HEADER_BYTES];
    from.file.read_exact_at(&mut header, offset).map_err(|error| failed("reading", error))?;
    let bytes = u32::from_le_bytes(header) as usize;
    if bytes > BLOCK_BYTES + HEADER_BYTES + usize::from(u8::MAX) {
        return Err(damaged());
    }
    let start = to.len();
    to.resize(start + bytes + TAG_BYTES, 0);
    let behind = offset + to_u64(BLOCK_HEADER_BYTES);
    from.file.read_exact_at(&mut to[start..], behind).map_err(|error| failed("reading", error))?;
    from.sealer.open(offset, &mut to[start..]).map_err(|_| damaged())?;
    to.truncate(start + bytes);
    Ok(to_u64(BLOCK_HEADER_BYTES + bytes + TAG_BYTES))
}

fn failed(operation: &str, error: io::Error) -> Error {
    let folder = std::env::temp_dir();
    let folder = folder.display();
    // Not `NotFound`, which would mean that the directory is gone.
    Error::io(format!("{operation} a temporary file for its names in {folder}"), error)
        .with_kind(ErrorKind::Unavailable)
}

fn damaged() -> Error {
    let folder = std::env::temp_dir();
    let message = format!("a temporary file in {} is damaged", folder.display());
    Error::new(ErrorKind::Unavailable, message)
}

#[cfg(test)]
impl Sorted {
    /// All bytes of the file.
    pub(super) fn stored(&self) -> Vec<u8> {
        let bytes = self.file.file.metadata().unwrap().len();
        let mut stored = vec![0; usize::try_from(bytes).unwrap()];
        self.file.file.read_exact_at(&mut stored, 0).unwrap();
        stored
    }

    /// Changes a byte of a name in each block.
    pub(super) fn damage(&self) {
        for place in &self.places {
            let (at, mut byte) = (place.offset + 20, [0]);
            self.file.file.read_exact_at(&mut byte, at).unwrap();
            self.file.file.write_all_at(&[byte[0] ^ 1], at).unwrap();
        }
    }
}
