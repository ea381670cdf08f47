//! Inodes: what a file is, and where its data are.

use siltstone::{Error, ErrorKind, Result};

use super::crc32c::crc32c;
use crate::little_endian::{u16_at, u32_at};

const FLAG_ENCRYPTED: u32 = 0x800;
const FLAG_COMPRESSED: u32 = 0x4;
const FLAG_INDEX: u32 = 0x1000;
const FLAG_EXTENTS: u32 = 0x8_0000;
const FLAG_INLINE: u32 = 0x1000_0000;
/// Where the fields begin that not every inode has, and the words of the block map.
const EXTRA: usize = 128;
const MAP: usize = 0x28;
const MAP_BYTES: usize = 60;
const ATTRIBUTES_MAGIC: u32 = 0xea02_0000;
/// The attribute that holds data which did not fit into the block map: `system.data`.
const SYSTEM_NAMESPACE: u8 = 7;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device of characters.
    CharacterDevice,
    /// A device of blocks.
    BlockDevice,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl Kind {
    fn of_mode(mode: u16) -> Option<Self> {
        Some(match mode >> 12 {
            0x8 => Self::File,
            0x4 => Self::Directory,
            0xa => Self::Symlink,
            0x2 => Self::CharacterDevice,
            0x6 => Self::BlockDevice,
            0x1 => Self::Fifo,
            0xc => Self::Socket,
            _ => return None,
        })
    }
}

/// A time, in seconds since 1970 and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// The seconds; negative before 1970.
    pub seconds: i64,
    /// Nanoseconds after the second.
    pub nanoseconds: u32,
}

impl Time {
    /// In nanoseconds since 1970, as far as they fit.
    pub fn nanoseconds_since_1970(self) -> i64 {
        self.seconds.saturating_mul(1_000_000_000).saturating_add(i64::from(self.nanoseconds))
    }
}

/// A range of a file that has data on the disk. Between ranges there are zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Offset in the file system, in bytes.
    pub at: u64,
}

/// A file, directory, link or device.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Its number.
    pub number: u32,
    /// Its type.
    pub kind: Kind,
    /// Permissions, with the bits for setuid, setgid and sticky.
    pub mode: u16,
    /// The number of its owner.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// Its size.
    pub bytes: u64,
    /// How many names it has.
    pub links: u16,
    /// When it was last read.
    pub accessed: Time,
    /// When its data last changed.
    pub modified: Time,
    /// For checksums of its blocks, if there are any.
    pub(super) checksum_seed: Option<u32>,
    pub(super) has_extents: bool,
    /// Whether the first block of a directory is the root of a hash tree.
    pub(super) has_index: bool,
    /// The block map or the root of the extents.
    pub(super) map: [u8; MAP_BYTES],
    /// Data that are in the inode itself.
    pub(super) inline: Option<Vec<u8>>,
}

impl Inode {
    /// Decodes an inode, and verifies it where `seed` is that of checksums.
    pub(super) fn decode(number: u32, bytes: &[u8], seed: Option<u32>) -> Result<Self> {
        let checksum_seed = seed.map(|seed| {
            let seed = crc32c(seed, &number.to_le_bytes());
            crc32c(seed, &bytes[0x64..0x68])
        });
        let extra = if bytes.len() > EXTRA { usize::from(u16_at(bytes, EXTRA)) } else { 0 };
        if EXTRA + extra > bytes.len() {
            return Err(Error::corrupt(format!("inode {number} contradicts itself")));
        }
        if checksum_seed.is_some_and(|seed| !is_right(bytes, extra, seed)) {
            return Err(Error::corrupt(format!("inode {number} fails its checksum")));
        }
        let mode = u16_at(bytes, 0);
        let kind = Kind::of_mode(mode)
            .ok_or_else(|| Error::corrupt(format!("inode {number} is of no known type")))?;
        let flags = u32_at(bytes, 0x20);
        let half = |at| u32::from(u16_at(bytes, at));
        let mut map = [0; MAP_BYTES];
        map.copy_from_slice(&bytes[MAP..MAP + MAP_BYTES]);
        let size = u64::from(u32_at(bytes, 0x4)) | u64::from(u32_at(bytes, 0x6c)) << 32;
        let unread = match flags {
            _ if flags & FLAG_ENCRYPTED != 0 => Some("encrypted"),
            _ if flags & FLAG_COMPRESSED != 0 => Some("compressed"),
            _ => None,
        };
        if let Some(unread) = unread.filter(|_| kind != Kind::Directory || size > 0) {
            let message = format!("inode {number} is {unread} by its file system");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let inline = (flags & FLAG_INLINE != 0).then(|| inline(bytes, extra, size)).transpose()?;
        Ok(Self {
            number,
            kind,
            mode: mode & 0o7777,
            uid: half(0x2) | half(0x78) << 16,
            gid: half(0x18) | half(0x7a) << 16,
            bytes: size,
            links: u16_at(bytes, 0x1a),
            accessed: time(bytes, 0x8, 0x8c, extra),
            modified: time(bytes, 0x10, 0x88, extra),
            checksum_seed,
            has_extents: flags & FLAG_EXTENTS != 0,
            has_index: flags & FLAG_INDEX != 0,
            map,
            inline,
        })
    }

    /// The error for an inode that is not right.
    pub(super) fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!("inode {} {what}", self.number))
    }

    /// The target of a link that is so short that it fits into the block map.
    pub(super) fn short_target(&self) -> Option<&[u8]> {
        let length = usize::try_from(self.bytes).ok().filter(|length| *length < MAP_BYTES)?;
        (self.inline.is_none() && !self.has_extents).then(|| &self.map[..length])
    }
}

/// Two bits of the second word go on with the seconds, the others are nanoseconds.
fn time(bytes: &[u8], at: usize, more_at: usize, extra: usize) -> Time {
    let low = i64::from(u32_at(bytes, at).cast_signed());
    if more_at + 4 > EXTRA + extra {
        return Time { seconds: low, nanoseconds: 0 };
    }
    let more = u32_at(bytes, more_at);
    let nanoseconds = (more >> 2).min(999_999_999);
    Time { seconds: low + (i64::from(more & 3) << 32), nanoseconds }
}

fn is_right(bytes: &[u8], extra: usize, seed: u32) -> bool {
    const LOW: usize = 0x7c;
    const HIGH: usize = 0x82;
    let mut sum = crc32c(seed, &bytes[..LOW]);
    sum = crc32c(sum, &[0; 2]);
    sum = crc32c(sum, &bytes[LOW + 2..EXTRA]);
    let has_high = extra >= 4;
    if bytes.len() > EXTRA {
        sum = crc32c(sum, &bytes[EXTRA..HIGH]);
        sum = crc32c(sum, if has_high { &[0; 2] } else { &bytes[HIGH..HIGH + 2] });
        sum = crc32c(sum, &bytes[HIGH + 2..]);
    }
    let high = if has_high { u32::from(u16_at(bytes, HIGH)) } else { sum >> 16 };
    sum == (u32::from(u16_at(bytes, LOW)) | high << 16)
}

/// The data in an inode: the first 60 bytes in place of the block map, the others in an attribute.
fn inline(bytes: &[u8], extra: usize, size: u64) -> Result<Vec<u8>> {
    let wrong = || Error::corrupt("data in an inode contradict themselves");
    let mut data = bytes[MAP..MAP + MAP_BYTES].to_vec();
    let attributes = &bytes[EXTRA + extra..];
    if attributes.len() >= 4 && u32_at(attributes, 0) == ATTRIBUTES_MAGIC {
        let entries = &attributes[4..];
        let mut at = 0;
        while entries.len() >= at + 16 && u32_at(entries, at) != 0 {
            let (name_bytes, namespace) = (usize::from(entries[at]), entries[at + 1]);
            let name = entries.get(at + 16..at + 16 + name_bytes).ok_or_else(wrong)?;
            if namespace == SYSTEM_NAMESPACE && name == b"data" {
                let from = usize::from(u16_at(entries, at + 2));
                let length = usize::try_from(u32_at(entries, at + 8)).unwrap_or(usize::MAX);
                let value = entries.get(from..).and_then(|behind| behind.get(..length));
                data.extend_from_slice(value.ok_or_else(wrong)?);
                break;
            }
            at += 16 + name_bytes.next_multiple_of(4);
        }
    }
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    if size > data.len() {
        return Err(wrong());
    }
    data.truncate(size);
    Ok(data)
}
