//! One qcow2 image without its backing file: maps ranges of the volume to bytes of the file.

use std::fs::File;
use std::path::{Path, PathBuf};

use silt_format::{Error, Result, ResultExt};

use super::tables::{Rest, TableCache};
use super::{Compression, Header, Unit, decode_l1, decode_l2, decompress, unit_at};
use crate::number::{to_usize, until_multiple};
use crate::positioned::{UncachedReads, length, read_up_to};

/// An open image.
pub(crate) struct Image {
    file: File,
    path: PathBuf,
    file_bytes: u64,
    header: Header,
    tables: TableCache,
    reads: UncachedReads,
}

/// A range of the volume in one state; its data is contiguous in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) unit: Unit,
    /// Length in bytes of the volume; at least 1.
    pub(crate) length: u64,
}

/// Which neighbours a span may include.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Joined {
    /// Those that the same read can fetch.
    ForReading,
    /// Those of the same kind, wherever they are in the file.
    ByKind,
}

impl Image {
    /// Reads and checks the header; the cache comes with `keep_tables`. `stay`: data that is read
    /// may stay in the page cache.
    pub(crate) fn open(file: File, path: &Path, stay: bool) -> Result<Self> {
        let file_bytes = length(&file, path)?;
        let mut start = vec![0; 24];
        let count = read_up_to(&file, path, 0, &mut start)?;
        let header = Header::bytes_needed(&start[..count])
            .and_then(|bytes| {
                let mut cluster = vec![0; to_usize(bytes.min(file_bytes))];
                let count = read_up_to(&file, path, 0, &mut cluster)?;
                Header::decode(&cluster[..count])
            })
            .context(|| path.display().to_string())?;
        let (tables, reads) = (TableCache::new(0), UncachedReads::new(stay));
        let image = Self { file, path: path.to_owned(), file_bytes, header, tables, reads };
        let l1_end = image.header.l1_offset.checked_add(image.header.l1_entries_needed() * 8);
        if l1_end.is_none_or(|end| end > file_bytes) {
            return Err(image.corrupt("the file is truncated: it ends before the L1 table does"));
        }
        Ok(image)
    }
    /// Keeps at most about `bytes_max` bytes of tables in memory.
    pub(crate) fn keep_tables(&mut self, bytes_max: u64) {
        self.tables = TableCache::new(bytes_max);
    }
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }
    pub(crate) fn file(&self) -> &File {
        &self.file
    }
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
    pub(crate) fn size(&self) -> u64 {
        self.header.size
    }

    /// Returns the span at `offset`, which must be in the volume, of at most `limit` bytes (at
    /// least 1). It does not extend past one block of one table.
    pub(crate) fn span(&self, offset: u64, limit: u64, joined: Joined) -> Result<Span> {
        assert!(offset < self.size() && limit > 0, "a span was asked for outside of the volume");
        let limit = limit.min(self.size() - offset);
        let table_bits = self.header.cluster_bits + self.header.l2_bits();
        let l1_at = self.header.l1_offset + (offset >> table_bits) * 8;
        let l1 = self.tables.rest_of_block(&self.file, &self.path, l1_at)?;
        let table_of = |index: u64| -> Result<Option<Option<u64>>> {
            let Some(entry) = l1.entry(index * 8, &self.path)? else { return Ok(None) };
            decode_l1(entry, &self.header).map(Some)
        };
        if let Some(table) = self.at(offset, table_of(0))?.flatten() {
            return self.span_in_table(table, offset, limit, joined);
        }
        let mut length = until_multiple(offset, 1 << table_bits);
        let mut index = 1;
        // A damaged later entry fails only reads of its own range.
        while length < limit && matches!(table_of(index), Ok(Some(None))) {
            length += 1 << table_bits;
            index += 1;
        }
        Ok(Span { unit: Unit::Unallocated, length: length.min(limit) })
    }

    fn span_in_table(&self, table: u64, offset: u64, limit: u64, joined: Joined) -> Result<Span> {
        let header = &self.header;
        let table_bits = header.cluster_bits + header.l2_bits();
        let limit = limit.min(until_multiple(offset, 1 << table_bits));
        let first = (offset >> header.cluster_bits) & ((1 << header.l2_bits()) - 1);
        let entry_at = table + first * header.l2_entry_bytes();
        let rest = self.tables.rest_of_block(&self.file, &self.path, entry_at)?;
        let Some(mut span) = self.at(offset, self.unit_span(&rest, offset, offset))? else {
            return Err(self.corrupt("an entry of a table straddles blocks"));
        };
        while span.length < limit {
            match self.unit_span(&rest, offset, offset + span.length) {
                Ok(Some(next)) if span.takes_in(next.unit, joined) => span.length += next.length,
                _ => break,
            }
        }
        Ok(Span { length: span.length.min(limit), ..span })
    }

    /// Returns the cluster or subcluster at `at`, from there on; `rest` begins with the entry of
    /// the cluster of `start`. Returns `None` past the end of `rest`.
    fn unit_span(&self, rest: &Rest, start: u64, at: u64) -> Result<Option<Span>> {
        let header = &self.header;
        let index = (at >> header.cluster_bits) - (start >> header.cluster_bits);
        let byte = index * header.l2_entry_bytes();
        let Some(entry) = rest.entry(byte, &self.path)? else { return Ok(None) };
        let bitmap = if header.extended_l2 { rest.entry(byte + 8, &self.path)? } else { None };
        let entry = decode_l2(entry, bitmap.unwrap_or(0), header)?;
        let unit_bytes = 1 << header.unit_bits();
        let within = (at & (header.cluster_bytes() - 1)) >> header.unit_bits();
        Ok(Some(match unit_at(entry, within, header) {
            unit @ Unit::Compressed { .. } => {
                Span { unit, length: until_multiple(at, header.cluster_bytes()) }
            }
            Unit::Data(from) => Span {
                unit: Unit::Data(from + (at & (unit_bytes - 1))),
                length: until_multiple(at, unit_bytes),
            },
            unit => Span { unit, length: until_multiple(at, unit_bytes) },
        }))
    }

    /// Fills `buf` with the file's bytes from `from` on. Reading past the end of the file is an
    /// error: an image contains all of its data.
    pub(crate) fn read_data(&self, from: u64, buf: &mut [u8]) -> Result<()> {
        if self.reads.read_up_to(&self.file, &self.path, from, buf)? < buf.len() {
            return Err(self.corrupt(&format!(
                "the file is truncated: it ends before the data at byte {from}"
            )));
        }
        Ok(())
    }

    /// Fills `cluster` from a compressed cluster.
    pub(crate) fn read_compressed(
        &self,
        offset: u64,
        bytes: u64,
        cluster: &mut [u8],
    ) -> Result<()> {
        // The last sector of the file may be cut short.
        let bytes = bytes.min(self.file_bytes.saturating_sub(offset));
        let mut input = vec![0; to_usize(bytes)];
        self.read_data(offset, &mut input)?;
        decompress(self.compression(), &input, cluster).context(|| {
            format!("{}: the compressed cluster at byte {offset} of the file", self.path.display())
        })
    }

    fn compression(&self) -> Compression {
        self.header.compression
    }
    fn at<T>(&self, offset: u64, result: Result<T>) -> Result<T> {
        result.context(|| format!("{}: at byte {offset} of the volume", self.path.display()))
    }
    fn corrupt(&self, why: &str) -> Error {
        Error::corrupt(format!("{}: qcow2 image: {why}", self.path.display()))
    }
}

impl Span {
    fn takes_in(&self, next: Unit, joined: Joined) -> bool {
        let by_kind = joined == Joined::ByKind;
        match (self.unit, next) {
            (Unit::Unallocated, Unit::Unallocated) | (Unit::Zero, Unit::Zero) => true,
            (Unit::Data(from), Unit::Data(next)) => by_kind || next == from + self.length,
            (Unit::Data(_) | Unit::Compressed { .. }, Unit::Compressed { .. })
            | (Unit::Compressed { .. }, Unit::Data(_)) => by_kind,
            _ => false,
        }
    }
}
