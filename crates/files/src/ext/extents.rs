//! Where the data of a file are: extents, or the block map of ext2 and ext3.

use siltstone::Result;

use super::blocks::Blocks;
use super::crc32c::crc32c;
use super::inode::{Inode, Run};
use crate::little_endian::{u16_at, u32_at};

const EXTENT_MAGIC: u16 = 0xf30a;
const EXTENT_BYTES: usize = 12;
const DEPTH_MAX: u16 = 5;
/// Longer extents are blocks that were allocated and never written: they read as zeros.
const WRITTEN_MAX: u32 = 32_768;
const DIRECT: usize = 12;

/// Gives ranges of data in the order of their offsets, each as long as can be.
struct Runs<'a> {
    inode: &'a Inode,
    block_bytes: u64,
    /// The range that may go on.
    last: Option<Run>,
    /// Where the next one may begin, as a block's number.
    next: u64,
    visit: &'a mut dyn FnMut(Run) -> Result<()>,
}

impl Runs<'_> {
    /// Notes blocks of the file from `logical` on; those at 0 are a hole.
    fn add(&mut self, logical: u64, count: u64, physical: u64) -> Result<()> {
        if logical < self.next {
            return Err(self.inode.corrupt("has two blocks for one place"));
        }
        self.next = logical.saturating_add(count);
        if physical == 0 {
            return Ok(());
        }
        let bytes = |blocks: u64| blocks.checked_mul(self.block_bytes);
        let (Some(offset), Some(length), Some(at)) =
            (bytes(logical), bytes(count), bytes(physical))
        else {
            return Err(self.inode.corrupt("has a block whose number is too large"));
        };
        match &mut self.last {
            Some(last) if last.offset + last.length == offset && last.at + last.length == at => {
                last.length += length;
            }
            last => {
                if let Some(done) = last.replace(Run { offset, length, at }) {
                    (self.visit)(done)?;
                }
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.last.take().map_or(Ok(()), |run| (self.visit)(run))
    }
}

/// Gives the ranges of a file that have data, in the order of their offsets; they may go beyond its
/// size to the end of a block.
pub fn data(
    blocks: &Blocks,
    inode: &Inode,
    visit: &mut dyn FnMut(Run) -> Result<()>,
) -> Result<()> {
    let block_bytes = blocks.block_bytes();
    let mut runs = Runs { inode, block_bytes, last: None, next: 0, visit };
    if inode.has_extents {
        node(blocks, &inode.map, DEPTH_MAX + 1, &mut runs)?;
        return runs.finish();
    }
    let end = inode.bytes.div_ceil(block_bytes);
    let mut logical = 0;
    for slot in 0..DIRECT + 3 {
        let pointer = u64::from(u32_at(&inode.map, slot * 4));
        let depth = (slot + 1).saturating_sub(DIRECT);
        indirect(blocks, pointer, depth, &mut logical, end, &mut runs)?;
    }
    runs.finish()
}

/// Walks a node of extents, which must be less deep than `above`.
fn node(blocks: &Blocks, node: &[u8], above: u16, runs: &mut Runs<'_>) -> Result<()> {
    let (count, depth) = (u16_at(node, 2), u16_at(node, 6));
    let fits = (usize::from(count) + 1) * EXTENT_BYTES <= node.len();
    if u16_at(node, 0) != EXTENT_MAGIC || depth >= above || !fits {
        return Err(runs.inode.corrupt("has a broken tree of extents"));
    }
    for index in 1..=usize::from(count) {
        let entry = &node[index * EXTENT_BYTES..(index + 1) * EXTENT_BYTES];
        if depth > 0 {
            let child = u64::from(u32_at(entry, 4)) | u64::from(u16_at(entry, 8)) << 32;
            let bytes = blocks.block(child)?;
            verify(&bytes, runs.inode)?;
            // Depths fall by one from the root, so the recursion ends.
            self::node(blocks, &bytes, depth, runs)?;
            continue;
        }
        let logical = u64::from(u32_at(entry, 0));
        let length = u32::from(u16_at(entry, 4));
        let start = u64::from(u32_at(entry, 8)) | u64::from(u16_at(entry, 6)) << 32;
        if length > WRITTEN_MAX {
            runs.add(logical, u64::from(length - WRITTEN_MAX), 0)?;
        } else if start == 0 {
            return Err(runs.inode.corrupt("has data in the boot sector"));
        } else {
            runs.add(logical, u64::from(length), start)?;
        }
    }
    Ok(())
}

fn verify(node: &[u8], inode: &Inode) -> Result<()> {
    let Some(seed) = inode.checksum_seed else { return Ok(()) };
    let end = (usize::from(u16_at(node, 4)) + 1) * EXTENT_BYTES;
    if end + 4 > node.len() || crc32c(seed, &node[..end]) != u32_at(node, end) {
        return Err(inode.corrupt("has extents that fail their checksum"));
    }
    Ok(())
}

/// Walks a pointer of the block map; one of depth 0 is a block of data.
fn indirect(
    blocks: &Blocks,
    pointer: u64,
    depth: usize,
    logical: &mut u64,
    end: u64,
    runs: &mut Runs<'_>,
) -> Result<()> {
    if *logical >= end {
        return Ok(());
    }
    let per_block = blocks.block_bytes() / 4;
    let covered = per_block.pow(u32::try_from(depth).unwrap_or(0));
    if pointer == 0 || depth == 0 {
        runs.add(*logical, covered, pointer)?;
        *logical += covered;
        return Ok(());
    }
    let table = blocks.block(pointer)?;
    for entry in table.chunks_exact(4) {
        indirect(blocks, u64::from(u32_at(entry, 0)), depth - 1, logical, end, runs)?;
    }
    Ok(())
}
