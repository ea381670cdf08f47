//! The entries of directories. Hash trees are read like lists: their nodes look like empty blocks.

use siltstone::{Error, Result};

use super::crc32c::crc32c;
use super::inode::Inode;
use crate::little_endian::{u16_at, u32_at};

const HEADER: usize = 8;
/// An entry at the end of a block that holds its checksum.
const TAIL_BYTES: usize = 12;
const TAIL_TYPE: u8 = 0xde;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, as it is stored: an image may hold any bytes.
    pub name: Vec<u8>,
    /// The number of the inode.
    pub inode: u32,
}

impl Entry {
    /// Whether the name could be that of a file: it isn't where an image is damaged or hostile.
    pub fn is_sound(&self) -> bool {
        let has = |wanted: u8| self.name.contains(&wanted);
        !self.name.is_empty() && !has(b'/') && !has(0) && self.name != b"." && self.name != b".."
    }
}

/// Gives the entries in a block of a directory, without `.` and `..`.
pub fn entries(
    block: &[u8],
    directory: &Inode,
    visit: &mut dyn FnMut(Entry) -> Result<()>,
) -> Result<()> {
    let wrong = || Error::corrupt(format!("directory {} is damaged", directory.number));
    let mut at = 0;
    while at + HEADER <= block.len() {
        let inode = u32_at(block, at);
        let length = match usize::from(u16_at(block, at + 4)) {
            // Blocks of 64 KiB have no room for their size.
            0 | 65_535 => block.len() - at,
            length => length,
        };
        let name_bytes = usize::from(block[at + 6]);
        if length < HEADER || at + length > block.len() || HEADER + name_bytes > length {
            return Err(wrong());
        }
        let name = &block[at + HEADER..at + HEADER + name_bytes];
        if inode != 0 && name != b"." && name != b".." {
            visit(Entry { name: name.to_vec(), inode })?;
        }
        at += length;
    }
    Ok(())
}

/// Verifies the checksum of a block with entries; nodes of a hash tree have theirs elsewhere.
pub fn verify(block: &[u8], directory: &Inode) -> Result<()> {
    let (Some(seed), Some(at)) = (directory.checksum_seed, block.len().checked_sub(TAIL_BYTES))
    else {
        return Ok(());
    };
    let tail = &block[at..];
    let is_tail = u32_at(tail, 0) == 0 && u16_at(tail, 4) == 12 && tail[7] == TAIL_TYPE;
    if is_tail && crc32c(seed, &block[..at]) != u32_at(tail, 8) {
        let message = format!("directory {} fails its checksum", directory.number);
        return Err(Error::corrupt(message));
    }
    Ok(())
}
