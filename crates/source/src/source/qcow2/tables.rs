//! Entries of L1 and L2 tables, and the table cache.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};

use silt_format::{Error, Result};

use super::Header;
use crate::number::{be_u64, lock, to_usize};
use crate::positioned::read_up_to;

const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const ZERO: u64 = 1;
const COMPRESSED: u64 = 1 << 62;
const SECTOR_BYTES: u64 = 512;

/// Returns the offset of the L2 table of an L1 entry; `None` if it has none.
///
/// Fails with Corrupt if the table does not begin at a cluster.
pub fn decode_l1(entry: u64, header: &Header) -> Result<Option<u64>> {
    aligned(entry & OFFSET_MASK, header, "an L2 table")
}

/// A decoded L2 entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum L2Entry {
    /// All of the cluster is in one state.
    Whole(Unit),
    /// Subclusters, each by its bit.
    Subclusters {
        /// Offset of the cluster in the file, if allocated.
        offset: Option<u64>,
        /// Which subclusters are in the file.
        allocated: u32,
        /// Which subclusters are zeros.
        zero: u32,
    },
}

/// The state of a cluster or subcluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Unallocated: reads from the backing file; zeros without one.
    Unallocated,
    /// Zeros.
    Zero,
    /// In the file, at this offset.
    Data(u64),
    /// In the file, as a compressed cluster.
    Compressed {
        /// Offset of the compressed bytes in the file.
        offset: u64,
        /// Maximum length of the compressed bytes.
        bytes: u64,
    },
}

/// Decodes an L2 entry; `bitmap` is its second half if the image has subclusters, otherwise 0.
///
/// Fails with Corrupt if it contradicts itself or the header.
pub fn decode_l2(entry: u64, bitmap: u64, header: &Header) -> Result<L2Entry> {
    if entry & COMPRESSED != 0 {
        return Ok(L2Entry::Whole(decode_compressed(entry, header)));
    }
    let offset = aligned(entry & OFFSET_MASK, header, "a data cluster")?;
    if header.extended_l2 {
        let halves = bitmap.to_be_bytes();
        let (zero, allocated) = (be_half(halves, 0), be_half(halves, 4));
        if zero & allocated != 0 || (offset.is_none() && allocated != 0) {
            return Err(Error::corrupt(
                "qcow2 image: the state bits of a cluster's subclusters contradict each other",
            ));
        }
        return Ok(L2Entry::Subclusters { offset, allocated, zero });
    }
    if entry & ZERO != 0 {
        if header.version < 3 {
            return Err(Error::corrupt("qcow2 image: version 2 has no zero clusters"));
        }
        return Ok(L2Entry::Whole(Unit::Zero));
    }
    Ok(L2Entry::Whole(offset.map_or(Unit::Unallocated, Unit::Data)))
}

/// Returns the unit with index `index` in its cluster (always 0 without subclusters).
pub fn unit_at(entry: L2Entry, index: u64, header: &Header) -> Unit {
    match entry {
        L2Entry::Whole(unit) => unit,
        L2Entry::Subclusters { offset, allocated, zero } => {
            if zero >> index & 1 != 0 {
                Unit::Zero
            } else if allocated >> index & 1 != 0 {
                offset
                    .map_or(Unit::Unallocated, |at| Unit::Data(at + (index << header.unit_bits())))
            } else {
                Unit::Unallocated
            }
        }
    }
}

fn decode_compressed(entry: u64, header: &Header) -> Unit {
    let offset_bits = 62 - (header.cluster_bits - 8);
    let offset = entry & ((1 << offset_bits) - 1);
    let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
    let bytes = (sectors + 1) * SECTOR_BYTES - offset % SECTOR_BYTES;
    Unit::Compressed { offset, bytes }
}

fn aligned(offset: u64, header: &Header, what: &str) -> Result<Option<u64>> {
    if offset & (header.cluster_bytes() - 1) != 0 {
        return Err(Error::corrupt(format!(
            "qcow2 image: {what} at byte {offset} does not begin at a cluster"
        )));
    }
    Ok((offset != 0).then_some(offset))
}

fn be_half(bytes: [u8; 8], at: usize) -> u32 {
    crate::number::be_u32(&bytes, at)
}

/// Size of a cache block in bytes. Entries never straddle blocks, because tables begin at clusters
/// and the smallest cluster holds a whole number of entries.
const BLOCK_BYTES: u64 = 4096;

/// A file's tables, read in blocks; keeps a bounded number of the blocks used last.
pub(crate) struct TableCache {
    blocks_max: usize,
    generations: Mutex<Generations>,
}

/// New and reused blocks go into `young`. At half of the limit, `young` becomes `old`, and the
/// previous `old` is dropped.
#[derive(Default)]
struct Generations {
    young: HashMap<u64, Arc<[u8]>>,
    old: HashMap<u64, Arc<[u8]>>,
}

impl TableCache {
    /// Returns a cache of at most `bytes_max` bytes of tables, but at least a few blocks.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let blocks_max = to_usize(bytes_max / BLOCK_BYTES).max(8);
        Self { blocks_max, generations: Mutex::default() }
    }

    /// Returns the rest of the block that holds byte `offset` of the file, from that byte on.
    pub(crate) fn rest_of_block(&self, file: &File, path: &Path, offset: u64) -> Result<Rest> {
        let at = to_usize(offset % BLOCK_BYTES);
        let block = self.block(file, path, offset / BLOCK_BYTES)?;
        Ok(Rest { block, at })
    }

    fn block(&self, file: &File, path: &Path, number: u64) -> Result<Arc<[u8]>> {
        if let Some(block) = self.cached(number) {
            return Ok(block);
        }
        let mut bytes = vec![0; to_usize(BLOCK_BYTES)];
        let count = read_up_to(file, path, number * BLOCK_BYTES, &mut bytes)?;
        bytes.truncate(count);
        let block: Arc<[u8]> = bytes.into();
        self.keep(number, &block);
        Ok(block)
    }

    fn cached(&self, number: u64) -> Option<Arc<[u8]>> {
        let mut generations = lock(&self.generations);
        if let Some(block) = generations.young.get(&number) {
            return Some(Arc::clone(block));
        }
        let block = generations.old.remove(&number)?;
        drop(generations);
        self.keep(number, &block);
        Some(block)
    }

    fn keep(&self, number: u64, block: &Arc<[u8]>) {
        let mut generations = lock(&self.generations);
        if generations.young.len() >= self.blocks_max / 2 {
            generations.old = std::mem::take(&mut generations.young);
        }
        generations.young.insert(number, Arc::clone(block));
    }
}

/// Table entries from some byte to the end of their block.
pub(crate) struct Rest {
    block: Arc<[u8]>,
    at: usize,
}

impl Rest {
    /// The number `byte` bytes after the first entry; `None` past the end of the block. Fails with
    /// Corrupt if the file ends before it.
    pub(crate) fn entry(&self, byte: u64, path: &Path) -> Result<Option<u64>> {
        let at = self.at + to_usize(byte);
        if at + 8 > to_usize(BLOCK_BYTES) {
            return Ok(None);
        }
        if at + 8 > self.block.len() {
            return Err(Error::corrupt(format!(
                "{}: qcow2 image: the file is truncated: it ends inside a table",
                path.display()
            )));
        }
        Ok(Some(be_u64(&self.block, at)))
    }
}
