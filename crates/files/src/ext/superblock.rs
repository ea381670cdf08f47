//! The superblock, and where group descriptors are.

use siltstone::{Error, ErrorKind, Result};

use super::crc32c::crc32c;
use crate::little_endian::{u16_at, u32_at};

pub const SUPERBLOCK_OFFSET: u64 = 1024;
pub const SUPERBLOCK_BYTES: usize = 1024;

const INCOMPAT_FILETYPE: u32 = 0x2;
const INCOMPAT_RECOVER: u32 = 0x4;
const INCOMPAT_META_BG: u32 = 0x10;
const INCOMPAT_64BIT: u32 = 0x80;
const INCOMPAT_CSUM_SEED: u32 = 0x2000;
/// Extents, multiple mount protection, flexible groups, attributes in inodes, large directories,
/// data in inodes, encryption, names without case.
const INCOMPAT_HARMLESS: u32 = 0x40 | 0x100 | 0x200 | 0x400 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000;
const INCOMPAT_KNOWN: u32 = INCOMPAT_FILETYPE
    | INCOMPAT_RECOVER
    | INCOMPAT_META_BG
    | INCOMPAT_64BIT
    | INCOMPAT_CSUM_SEED
    | INCOMPAT_HARMLESS;
const RO_COMPAT_SPARSE_SUPER: u32 = 0x1;
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;
const COMPAT_HAS_JOURNAL: u32 = 0x4;
const COMPAT_SPARSE_SUPER2: u32 = 0x200;

/// The fields of a superblock.
#[derive(Clone, Debug)]
pub struct Superblock {
    pub block_bytes: u64,
    pub blocks: u64,
    pub inodes: u32,
    pub inode_bytes: u64,
    pub inodes_per_group: u32,
    pub descriptor_bytes: u64,
    pub label: String,
    /// The seed of metadata's checksums, if there are any.
    pub checksum_seed: Option<u32>,
    /// The inode of a journal that was not emptied.
    pub dirty_journal: Option<u32>,
    first_data_block: u64,
    blocks_per_group: u64,
    compat: u32,
    incompat: u32,
    ro_compat: u32,
    first_meta_group: u64,
    backup_groups: [u32; 2],
}

impl Superblock {
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let word = |at| u32_at(bytes, at);
        let (compat, incompat, ro_compat) = (word(0x5c), word(0x60), word(0x64));
        if u16_at(bytes, 0x38) != 0xef53 {
            return Err(Error::corrupt("the superblock has no magic number"));
        }
        let unknown = incompat & !INCOMPAT_KNOWN;
        if unknown != 0 {
            let message = format!("the file system uses features that are not read: {unknown:#x}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let has_checksums = ro_compat & RO_COMPAT_METADATA_CSUM != 0;
        if has_checksums && crc32c(!0, &bytes[..0x3fc]) != word(0x3fc) {
            return Err(Error::corrupt("the superblock fails its checksum"));
        }
        let seed = if incompat & INCOMPAT_CSUM_SEED == 0 {
            crc32c(!0, &bytes[0x68..0x78])
        } else {
            word(0x270)
        };
        let is_64bit = incompat & INCOMPAT_64BIT != 0;
        let has_journal = compat & COMPAT_HAS_JOURNAL != 0 && incompat & INCOMPAT_RECOVER != 0;
        let inode_bytes = if word(0x4c) == 0 { 128 } else { u16_at(bytes, 0x58) };
        let label = bytes[0x78..0x88].split(|byte| *byte == 0).next().unwrap_or_default();
        let superblock = Self {
            block_bytes: 1024_u64.checked_shl(word(0x18)).unwrap_or(0),
            blocks: u64::from(word(0x4)) | if is_64bit { u64::from(word(0x150)) << 32 } else { 0 },
            inodes: word(0),
            inode_bytes: u64::from(inode_bytes),
            inodes_per_group: word(0x28),
            descriptor_bytes: if is_64bit { u64::from(u16_at(bytes, 0xfe)) } else { 32 },
            label: String::from_utf8_lossy(label).into_owned(),
            checksum_seed: has_checksums.then_some(seed),
            dirty_journal: has_journal.then_some(word(0xe0)),
            first_data_block: u64::from(word(0x14)),
            blocks_per_group: u64::from(word(0x20)),
            compat,
            incompat,
            ro_compat,
            first_meta_group: u64::from(word(0x104)),
            backup_groups: [word(0x24c), word(0x250)],
        };
        superblock.validate()?;
        Ok(superblock)
    }

    fn validate(&self) -> Result<()> {
        let powers = self.inode_bytes.is_power_of_two() && self.descriptor_bytes.is_power_of_two();
        let sizes = (1024..=65536).contains(&self.block_bytes)
            && (128..=self.block_bytes).contains(&self.inode_bytes)
            && (32..=1024).contains(&self.descriptor_bytes)
            && (self.incompat & INCOMPAT_64BIT == 0 || self.descriptor_bytes >= 64);
        let counts = self.blocks_per_group > 0
            && self.inodes_per_group > 0
            && self.blocks.checked_mul(self.block_bytes).is_some()
            && self.first_data_block <= 1;
        if powers && sizes && counts {
            return Ok(());
        }
        Err(Error::corrupt("the superblock contradicts itself"))
    }

    pub fn is_64bit(&self) -> bool {
        self.incompat & INCOMPAT_64BIT != 0
    }

    /// Returns the offset of a group's descriptor, in bytes.
    pub fn descriptor_offset(&self, group: u64) -> u64 {
        let per_block = self.block_bytes / self.descriptor_bytes;
        let (index, within) = (group / per_block, group % per_block * self.descriptor_bytes);
        let is_meta = self.incompat & INCOMPAT_META_BG != 0 && index >= self.first_meta_group;
        let block = if is_meta {
            let first = index * per_block;
            let start = first.saturating_mul(self.blocks_per_group);
            let start = start.saturating_add(self.first_data_block);
            let is_behind_boot =
                self.block_bytes == 1024 && first == 0 && self.first_data_block == 0;
            start.saturating_add(u64::from(self.has_superblock(first)) + u64::from(is_behind_boot))
        } else {
            // The superblock is in the block that holds byte 1024.
            SUPERBLOCK_OFFSET / self.block_bytes + 1 + index
        };
        block.saturating_mul(self.block_bytes).saturating_add(within)
    }

    /// Whether a group begins with a copy of the superblock.
    fn has_superblock(&self, group: u64) -> bool {
        let is_power_of = |base: u64| {
            let mut power = base;
            while power < group {
                power = power.saturating_mul(base);
            }
            power == group
        };
        if group == 0 {
            return true;
        }
        if self.compat & COMPAT_SPARSE_SUPER2 != 0 {
            return self.backup_groups.iter().any(|backup| u64::from(*backup) == group);
        }
        let is_sparse = self.ro_compat & RO_COMPAT_SPARSE_SUPER != 0;
        !is_sparse || group == 1 || is_power_of(3) || is_power_of(5) || is_power_of(7)
    }
}
