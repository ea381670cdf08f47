//! The clusters of a new image, and their tables.

use std::fs::File;
use std::path::Path;

use silt_format::Result;

use crate::number::{be_u64, to_usize, until_multiple};
use crate::positioned::{read_up_to, set_length, write_all};
use crate::source::qcow2::MAGIC;

const CLUSTER_BITS: u32 = 16;
const CLUSTER_BYTES: u64 = 1 << CLUSTER_BITS;
/// Number of entries in an L2 table.
const TABLE_ENTRIES: u64 = CLUSTER_BYTES / 8;
/// Bytes of the volume covered by an L2 table.
const TABLE_SPAN: u64 = TABLE_ENTRIES * CLUSTER_BYTES;
/// Number of 16-bit reference counts in a cluster.
const COUNTS_PER_BLOCK: u64 = CLUSTER_BYTES / 2;
/// The cluster is referenced once and may be written in place.
const COPIED: u64 = 1 << 63;
/// Maximum number of L2 tables in memory, 64 KiB each.
const TABLES_MAX: usize = 32;
const VERSION: u32 = 3;
const HEADER_BYTES: u32 = 104;
/// Reference counts have 2^4 bits.
const COUNT_ORDER: u32 = 4;
/// QEMU counts in sectors; the last one of a volume is filled with zeros.
const SECTOR_BYTES: u64 = 512;

/// A range of the volume that is contiguous in the file.
pub(super) struct Run {
    pub(super) file_offset: u64,
    pub(super) length: u64,
}

/// The state of a range of the volume at its start.
pub(super) struct Found {
    /// Its offset in the file; `None` if nothing was written.
    pub(super) run: Option<Run>,
    /// Number of bytes of the volume in this state; at least 1.
    pub(super) length: u64,
}

/// The image's tables. The L1 table is in memory (8 bytes for each 512 MiB of the volume), and so
/// are the L2 tables used last; the others are in the file, each in its own cluster.
pub(super) struct Layout {
    size: u64,
    l1: Vec<u64>,
    next_cluster: u64,
    tables: Vec<Table>,
    uses: u64,
}

struct Table {
    index: usize,
    entries: Vec<u64>,
    changed: bool,
    last_use: u64,
}

impl Layout {
    pub(super) fn new(size: u64) -> Self {
        let size = size.next_multiple_of(SECTOR_BYTES);
        let l1 = vec![0; to_usize(size.div_ceil(TABLE_SPAN).max(1))];
        let l1_clusters = (l1.len() as u64 * 8).div_ceil(CLUSTER_BYTES);
        Self { size, l1, next_cluster: 1 + l1_clusters, tables: Vec::new(), uses: 0 }
    }

    /// Returns the file range to write bytes from `offset` on to; at most `limit` bytes, perhaps
    /// fewer.
    pub(super) fn allocate(
        &mut self,
        file: &File,
        path: &Path,
        offset: u64,
        limit: u64,
    ) -> Result<Run> {
        let limit = limit.min(until_multiple(offset, TABLE_SPAN));
        let index = to_usize(offset / TABLE_SPAN);
        let at = self.load(file, path, index)?;
        let Self { tables, next_cluster, .. } = self;
        let table = &mut tables[at];
        let mut file_offset_of = |offset: u64| {
            let entry = &mut table.entries[to_usize(offset % TABLE_SPAN / CLUSTER_BYTES)];
            if *entry == 0 {
                *entry = (*next_cluster * CLUSTER_BYTES) | COPIED;
                *next_cluster += 1;
                table.changed = true;
            }
            (*entry & !COPIED) + offset % CLUSTER_BYTES
        };
        let file_offset = file_offset_of(offset);
        let mut length = until_multiple(offset, CLUSTER_BYTES);
        while length < limit && file_offset_of(offset + length) == file_offset + length {
            length += CLUSTER_BYTES;
        }
        Ok(Run { file_offset, length: length.min(limit) })
    }

    /// Returns the state from `offset` on; of at most `limit` bytes, perhaps fewer.
    pub(super) fn find(
        &mut self,
        file: &File,
        path: &Path,
        offset: u64,
        limit: u64,
    ) -> Result<Found> {
        let index = to_usize(offset / TABLE_SPAN);
        if self.l1[index] == 0 {
            let length = limit.min(until_multiple(offset, TABLE_SPAN));
            return Ok(Found { run: None, length });
        }
        let at = self.load(file, path, index)?;
        let entry = self.tables[at].entries[to_usize(offset % TABLE_SPAN / CLUSTER_BYTES)];
        let length = limit.min(until_multiple(offset, CLUSTER_BYTES));
        let file_offset = (entry & !COPIED) + offset % CLUSTER_BYTES;
        Ok(Found { run: (entry != 0).then_some(Run { file_offset, length }), length })
    }

    /// Returns the index in `tables` of L2 table `index`; allocates or reads it if necessary.
    fn load(&mut self, file: &File, path: &Path, index: usize) -> Result<usize> {
        self.uses += 1;
        if let Some(at) = self.tables.iter().position(|table| table.index == index) {
            self.tables[at].last_use = self.uses;
            return Ok(at);
        }
        if self.tables.len() == TABLES_MAX {
            self.evict(file, path)?;
        }
        let entries = if self.l1[index] == 0 {
            self.l1[index] = (self.next_cluster * CLUSTER_BYTES) | COPIED;
            self.next_cluster += 1;
            vec![0; to_usize(TABLE_ENTRIES)]
        } else {
            let mut bytes = vec![0; to_usize(CLUSTER_BYTES)];
            read_up_to(file, path, self.l1[index] & !COPIED, &mut bytes)?;
            (0..bytes.len()).step_by(8).map(|at| be_u64(&bytes, at)).collect()
        };
        self.tables.push(Table { index, entries, changed: false, last_use: self.uses });
        Ok(self.tables.len() - 1)
    }

    fn evict(&mut self, file: &File, path: &Path) -> Result<()> {
        let oldest = self.tables.iter().enumerate().min_by_key(|(_, table)| table.last_use);
        if let Some((at, table)) = oldest {
            self.write_table(file, path, table)?;
            self.tables.swap_remove(at);
        }
        Ok(())
    }

    fn write_table(&self, file: &File, path: &Path, table: &Table) -> Result<()> {
        if !table.changed {
            return Ok(());
        }
        write_all(file, path, self.l1[table.index] & !COPIED, &numbers(&table.entries))
    }

    /// Writes all metadata, and sets the file's final length.
    pub(super) fn write_tables(&mut self, file: &File, path: &Path) -> Result<()> {
        for table in &self.tables {
            self.write_table(file, path, table)?;
        }
        write_all(file, path, CLUSTER_BYTES, &numbers(&self.l1))?;
        let counts = Counts::after(self.next_cluster);
        counts.write(file, path)?;
        write_all(file, path, 0, &self.header(&counts))?;
        set_length(file, path, counts.clusters * CLUSTER_BYTES)
    }

    fn header(&self, counts: &Counts) -> Vec<u8> {
        let mut header = vec![0; to_usize(CLUSTER_BYTES)];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &MAGIC);
        put(4, &VERSION.to_be_bytes());
        // Bytes 8 to 19: no backing file. Bytes 32 to 35: not encrypted.
        put(20, &CLUSTER_BITS.to_be_bytes());
        put(24, &self.size.to_be_bytes());
        put(36, &to_u32(self.l1.len() as u64).to_be_bytes());
        put(40, &CLUSTER_BYTES.to_be_bytes());
        put(48, &(counts.table_cluster() * CLUSTER_BYTES).to_be_bytes());
        put(56, &to_u32(counts.table_clusters).to_be_bytes());
        // Bytes 60 to 95: no snapshots, no features.
        put(96, &COUNT_ORDER.to_be_bytes());
        put(100, &HEADER_BYTES.to_be_bytes());
        // Zeros after the header end the list of its extensions.
        header
    }
}

/// The reference counts: blocks of counts at the end, followed by the table of these blocks.
struct Counts {
    first_block: u64,
    blocks: u64,
    table_clusters: u64,
    /// Clusters of the whole file; each is referenced once.
    clusters: u64,
}

impl Counts {
    /// Counts for `used` clusters and for the clusters of the counts themselves.
    fn after(used: u64) -> Self {
        let mut counts = Self { first_block: used, blocks: 0, table_clusters: 0, clusters: used };
        loop {
            let blocks = counts.clusters.div_ceil(COUNTS_PER_BLOCK);
            let table_clusters = (blocks * 8).div_ceil(CLUSTER_BYTES);
            let clusters = used + blocks + table_clusters;
            if clusters == counts.clusters {
                return counts;
            }
            counts = Self { blocks, table_clusters, clusters, ..counts };
        }
    }

    fn table_cluster(&self) -> u64 {
        self.first_block + self.blocks
    }

    fn write(&self, file: &File, path: &Path) -> Result<()> {
        let ones: Vec<u8> = [0, 1].repeat(to_usize(COUNTS_PER_BLOCK));
        for block in 0..self.blocks {
            let counted = (self.clusters - block * COUNTS_PER_BLOCK).min(COUNTS_PER_BLOCK);
            let at = (self.first_block + block) * CLUSTER_BYTES;
            write_all(file, path, at, &ones[..to_usize(counted * 2)])?;
        }
        for part in 0..self.table_clusters {
            let first = part * TABLE_ENTRIES;
            let last = (first + TABLE_ENTRIES).min(self.blocks);
            let entries: Vec<u64> =
                (first..last).map(|block| (self.first_block + block) * CLUSTER_BYTES).collect();
            let at = (self.table_cluster() + part) * CLUSTER_BYTES;
            write_all(file, path, at, &numbers(&entries))?;
        }
        Ok(())
    }
}

fn numbers(entries: &[u64]) -> Vec<u8> {
    entries.iter().flat_map(|entry| entry.to_be_bytes()).collect()
}

/// `value` as `u32`. Panics if it does not fit: the size of a volume is bounded.
fn to_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or_else(|_| panic!("{value} does not fit in 32 bits"))
}
