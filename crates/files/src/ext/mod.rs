//! Reading ext2, ext3 and ext4, after *The ext4 data structures and algorithms* of the kernel's
//! documentation.

mod blocks;
mod crc32c;
mod directory;
mod extents;
mod inode;
mod journal;
mod superblock;

use std::collections::VecDeque;

use siltstone::{Error, ErrorKind, Result};

pub use directory::Entry;
pub use inode::{Inode, Kind, Run, Time};

use crate::disk::Region;
use crate::little_endian::u32_at;
use blocks::Blocks;
use crc32c::crc32c;
use journal::{Log, Replay};
use superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};

const ROOT: u32 = 2;
/// Most symbolic links on the way to a file, as Linux has it.
const SYMLINKS_MAX: usize = 40;
/// Longest target of a symbolic link, and longest path while it is followed.
const PATH_BYTES_MAX: usize = 64 << 10;
/// Most ranges of the journal's file.
const JOURNAL_RUNS_MAX: usize = 1 << 16;

/// A file system of ext2, ext3 or ext4, as it is once its journal is replayed.
pub struct Ext {
    superblock: Superblock,
    blocks: Blocks,
}

impl Ext {
    /// Opens the file system in a region. If its journal was not emptied, replays it in memory.
    ///
    /// Fails with `Unsupported` if the file system uses a feature that this reader lacks, and with
    /// `Corrupt` if it contradicts itself.
    pub fn open(region: Region) -> Result<Self> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        region.read(SUPERBLOCK_OFFSET, &mut bytes)?;
        let superblock = Superblock::decode(&bytes)?;
        let blocks = Blocks::new(region, superblock.block_bytes, Replay::default());
        let unreplayed = Self { superblock, blocks };
        let Some(journal) = unreplayed.superblock.dirty_journal else { return Ok(unreplayed) };
        let replay = unreplayed.replay(journal)?;
        let blocks = unreplayed.blocks.replayed(replay);
        // The superblock itself may have been logged.
        blocks.read(SUPERBLOCK_OFFSET, &mut bytes)?;
        Ok(Self { superblock: Superblock::decode(&bytes)?, blocks })
    }

    fn replay(&self, journal: u32) -> Result<Replay> {
        let inode = self.inode(journal)?;
        let mut runs = Vec::new();
        extents::data(&self.blocks, &inode, &mut |run| {
            runs.push(run);
            let is_bounded = runs.len() <= JOURNAL_RUNS_MAX;
            is_bounded.then_some(()).ok_or_else(|| inode.corrupt("has too many extents"))
        })?;
        let read = |offset: u64, into: &mut [u8]| self.blocks.read(offset, into);
        Log::open(runs, self.superblock.block_bytes, &read)?.replay()
    }

    /// The name that the file system was given.
    pub fn label(&self) -> &str {
        &self.superblock.label
    }

    /// How large it is, in bytes.
    pub fn bytes(&self) -> u64 {
        self.superblock.blocks * self.superblock.block_bytes
    }

    /// The root directory.
    pub fn root(&self) -> Result<Inode> {
        self.inode(ROOT)
    }

    /// The inode of a number.
    pub fn inode(&self, number: u32) -> Result<Inode> {
        let of = &self.superblock;
        if number == 0 || number > of.inodes {
            return Err(Error::corrupt(format!("there is no inode {number}")));
        }
        let (group, index) =
            ((number - 1) / of.inodes_per_group, (number - 1) % of.inodes_per_group);
        let table = self.inode_table(group)?;
        let offset = table
            .checked_mul(of.block_bytes)
            .and_then(|start| start.checked_add(u64::from(index) * of.inode_bytes))
            .ok_or_else(|| Error::corrupt("an inode table's block is too large"))?;
        let block = self.blocks.shared_block(offset / of.block_bytes)?;
        let within = usize::try_from(offset % of.block_bytes).unwrap_or(0);
        let length = usize::try_from(of.inode_bytes).unwrap_or(0);
        Inode::decode(number, &block[within..within + length], of.checksum_seed)
    }

    /// The first block of a group's inode table.
    fn inode_table(&self, group: u32) -> Result<u64> {
        let of = &self.superblock;
        let offset = of.descriptor_offset(u64::from(group));
        let block = self.blocks.shared_block(offset / of.block_bytes)?;
        let within = usize::try_from(offset % of.block_bytes).unwrap_or(0);
        let length = usize::try_from(of.descriptor_bytes).unwrap_or(0);
        let descriptor = &block[within..within + length];
        if let Some(seed) = of.checksum_seed {
            let sum = crc32c(seed, &group.to_le_bytes());
            let sum = crc32c(crc32c(sum, &descriptor[..0x1e]), &[0; 2]);
            let sum = crc32c(sum, &descriptor[0x20..]).to_le_bytes();
            if sum[..2] != descriptor[0x1e..0x20] {
                let message = format!("the descriptor of block group {group} fails its checksum");
                return Err(Error::corrupt(message));
            }
        }
        let high = if of.is_64bit() { u64::from(u32_at(descriptor, 0x28)) } else { 0 };
        Ok(u64::from(u32_at(descriptor, 0x8)) | high << 32)
    }

    /// Gives the entries of a directory in the order they are stored in, without `.` and `..`.
    pub fn entries(
        &self,
        directory: &Inode,
        visit: &mut dyn FnMut(Entry) -> Result<()>,
    ) -> Result<()> {
        if directory.kind != Kind::Directory {
            return Err(Error::invalid("not a directory"));
        }
        let budget = self.blocks.region().budget();
        let mut counted = |entry| {
            budget.spend_entry()?;
            visit(entry)
        };
        if let Some(inline) = &directory.inline {
            // The parent's number comes first; what is behind the block map is a block of its own.
            let (first, more) = inline.split_at(inline.len().min(60));
            let first = first.get(4..).unwrap_or_default();
            directory::entries(first, directory, &mut counted)?;
            return directory::entries(more, directory, &mut counted);
        }
        let block_bytes = self.superblock.block_bytes;
        extents::data(&self.blocks, directory, &mut |run| {
            let end = run.length.min(directory.bytes.saturating_sub(run.offset));
            for index in 0..end.div_ceil(block_bytes) {
                let block = self.blocks.block(run.at / block_bytes + index)?;
                let is_first = run.offset == 0 && index == 0;
                if !(directory.has_index && is_first) {
                    directory::verify(&block, directory)?;
                }
                directory::entries(&block, directory, &mut counted)?;
            }
            Ok(())
        })
    }

    /// Gives the ranges of a file that have data, in order, up to its size. Between them are zeros.
    ///
    /// Data in the inode itself are no range: [`Self::read_all`] gives them too.
    fn data(&self, inode: &Inode, visit: &mut dyn FnMut(Run) -> Result<()>) -> Result<()> {
        extents::data(&self.blocks, inode, &mut |run| {
            let length = run.length.min(inode.bytes.saturating_sub(run.offset));
            if length == 0 { Ok(()) } else { visit(Run { length, ..run }) }
        })
    }

    /// Reads a file in pieces of at most `buffer`'s size: `visit` is given an offset and the bytes
    /// there, in order. Ranges that are left out are zeros up to the file's size.
    pub fn read(
        &self,
        inode: &Inode,
        buffer: &mut [u8],
        visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        if !matches!(inode.kind, Kind::File | Kind::Symlink) {
            return Err(Error::invalid("not a regular file"));
        }
        if let Some(inline) = &inode.inline {
            return visit(0, inline);
        }
        self.data(inode, &mut |run| {
            let mut done = 0;
            while done < run.length {
                let length = usize::try_from(run.length - done).unwrap_or(usize::MAX);
                let length = length.min(buffer.len());
                self.blocks.read(run.at + done, &mut buffer[..length])?;
                visit(run.offset + done, &buffer[..length])?;
                done += length as u64;
            }
            Ok(())
        })
    }

    /// The target of a symbolic link.
    pub fn target(&self, link: &Inode) -> Result<Vec<u8>> {
        if link.kind != Kind::Symlink {
            return Err(Error::invalid("not a symbolic link"));
        }
        if let Some(target) = link.short_target() {
            return Ok(target.to_vec());
        }
        let length = usize::try_from(link.bytes).ok().filter(|length| *length <= PATH_BYTES_MAX);
        let length = length.ok_or_else(|| link.corrupt("is too long a link"))?;
        let (mut target, mut buffer) = (vec![0; length], vec![0; 4096]);
        self.read(link, &mut buffer, &mut |offset, bytes| {
            let offset = usize::try_from(offset).unwrap_or(usize::MAX);
            let place = target.get_mut(offset..).and_then(|rest| rest.get_mut(..bytes.len()));
            place.ok_or_else(|| link.corrupt("is longer than its size"))?.copy_from_slice(bytes);
            Ok(())
        })?;
        Ok(target)
    }

    /// The inode of a name in a directory.
    fn look_up(&self, directory: &Inode, name: &[u8]) -> Result<Option<Inode>> {
        let mut found = None;
        self.entries(directory, &mut |entry| {
            if entry.name == name && found.is_none() {
                found = Some(entry.inode);
            }
            Ok(())
        })?;
        found.map(|number| self.inode(number)).transpose()
    }

    /// Returns the inode at a path from the root. Symbolic links in the path are followed within
    /// the file system; one in the last part only if `follows` is set.
    pub fn find(&self, path: &[u8], follows: bool) -> Result<Inode> {
        let shown = String::from_utf8_lossy(path).into_owned();
        let fails = |kind, what: &str| Error::new(kind, format!("{shown}: {what}"));
        let parts = |path: &[u8]| -> VecDeque<Vec<u8>> {
            path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect()
        };
        let mut todo = parts(path);
        let mut way = vec![self.root()?];
        let mut followed = 0;
        while let Some(name) = todo.pop_front() {
            let here = &way[way.len() - 1];
            match name.as_slice() {
                b"" | b"." => continue,
                b".." => {
                    way.truncate((way.len() - 1).max(1));
                    continue;
                }
                _ if here.kind != Kind::Directory => {
                    return Err(fails(ErrorKind::NotFound, "there is no such file in the image"));
                }
                _ => {}
            }
            let Some(found) = self.look_up(here, &name)? else {
                return Err(fails(ErrorKind::NotFound, "there is no such file in the image"));
            };
            let is_last = todo.iter().all(Vec::is_empty);
            if found.kind != Kind::Symlink || (is_last && !follows) {
                way.push(found);
                continue;
            }
            followed += 1;
            let target = self.target(&found)?;
            let bytes: usize = todo.iter().map(|part| part.len() + 1).sum();
            if followed > SYMLINKS_MAX || bytes + target.len() > PATH_BYTES_MAX {
                return Err(fails(ErrorKind::Invalid, "too many symbolic links"));
            }
            if target.starts_with(b"/") {
                way.truncate(1);
            }
            let mut next = parts(&target);
            next.append(&mut todo);
            todo = next;
        }
        way.pop().ok_or_else(|| fails(ErrorKind::NotFound, "there is no such file in the image"))
    }
}
