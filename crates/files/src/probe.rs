//! Recognises file systems and other contents of partitions by their magic numbers.

use std::fmt;

use siltstone::Result;

use crate::disk::Region;
use crate::little_endian::{u16_at, u32_at};

/// The content of a partition or disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext2, ext3 or ext4, which this crate reads.
    Ext,
    /// Another known content, by name.
    Other(&'static str),
    /// Nothing but zeros where file systems begin.
    Empty,
    /// Nothing that is known.
    Unknown,
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext => "ext2/3/4",
            Self::Other(name) => name,
            Self::Empty => "empty",
            Self::Unknown => "unknown",
        })
    }
}

/// How much is looked at: btrfs has its magic behind 64 KiB.
const PROBE_BYTES: usize = 68 << 10;

/// Magic bytes, where they are, and of what.
const MAGIC: [(usize, &[u8], &str); 19] = [
    (0, b"XFSB", "XFS"),
    (0x1_0040, b"_BHRfS_M", "btrfs"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (3, b"ReFS\0\0\0\0", "ReFS"),
    (3, b"-FVE-FS-", "BitLocker"),
    (0, b"LUKS\xba\xbe", "LUKS, an encrypted container"),
    (0, b"LABELONE", "a physical volume of LVM"),
    (512, b"LABELONE", "a physical volume of LVM"),
    (1024, b"LABELONE", "a physical volume of LVM"),
    (1536, b"LABELONE", "a physical volume of LVM"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID"),
    (4086, b"SWAPSPACE2", "swap space"),
    (82, b"FAT32   ", "FAT"),
    (54, b"FAT16   ", "FAT"),
    (54, b"FAT12   ", "FAT"),
    (0, b"hsqs", "squashfs"),
    (0x8001, b"CD001", "ISO 9660"),
    (1024, b"\x10\x20\xf5\xf2", "F2FS"),
];

impl FileSystem {
    /// Returns the content of a region.
    pub fn of(region: &Region) -> Result<Self> {
        let bytes = region.beginning(PROBE_BYTES)?;
        let known = MAGIC.iter().find(|(at, magic, _)| {
            bytes.get(*at..).is_some_and(|behind| behind.starts_with(magic))
        });
        if let Some((_, _, name)) = known {
            return Ok(Self::Other(name));
        }
        // Two bytes are no proof: the number of blocks and their size must make sense, too.
        let is_ext = bytes.len() >= 2048
            && u16_at(&bytes, 1024 + 0x38) == 0xef53
            && u32_at(&bytes, 1024 + 0x4) != 0
            && u32_at(&bytes, 1024 + 0x18) <= 6;
        Ok(match bytes.iter().all(|byte| *byte == 0) {
            _ if is_ext => Self::Ext,
            true => Self::Empty,
            false => Self::Unknown,
        })
    }
}
