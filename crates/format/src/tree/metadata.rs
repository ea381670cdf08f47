//! The metadata of a file.

use crate::codec::{Decoder, Encoder};
use crate::number::{to_u16, to_u32};
use crate::tree::{TARGET_BYTES_MAX, XATTR_BYTES_MAX, XATTRS_BYTES_MAX};
use crate::{Error, Result};

/// The permission bits of a mode, with set-user-id, set-group-id and sticky.
const MODE_BITS: u16 = 0o7777;
const NANOSECONDS: u32 = 1_000_000_000;

/// Which fields of the encoding are present; required fields come first.
const HAS_LINK: u8 = 1;
const HAS_FLAGS: u8 = 2;
const HAS_XATTRS: u8 = 4;
const HAS_ALL: u8 = HAS_LINK | HAS_FLAGS | HAS_XATTRS;

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum EntryKind {
    /// A regular file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A Unix socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

impl EntryKind {
    /// All kinds.
    pub const ALL: [Self; 7] = [
        Self::File,
        Self::Directory,
        Self::Symlink,
        Self::Fifo,
        Self::Socket,
        Self::CharDevice,
        Self::BlockDevice,
    ];
}

/// A point in time of a file system: any date, to the nanosecond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds after the second, below 10⁹.
    pub nanoseconds: u32,
}

/// The major and minor number of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device of the driver.
    pub minor: u32,
}

/// An extended attribute, as the kernel gives it. POSIX ACLs and capabilities are attributes of
/// the namespaces `system.` and `security.`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Xattr {
    /// The name with its namespace, such as `user.comment`.
    pub name: Vec<u8>,
    /// The value, at most 64 KiB.
    pub value: Vec<u8>,
}

/// The metadata of a file: everything except its name and content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The type of the file.
    pub kind: EntryKind,
    /// Permissions, set-user-id, set-group-id and sticky: the lowest 12 bits of `st_mode`.
    pub mode: u16,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// When the content last changed (`st_mtim`).
    pub modified: Timestamp,
    /// When content or metadata last changed (`st_ctim`); it is compared and never restored.
    pub changed: Timestamp,
    /// The size of a regular file in bytes; 0 for all others.
    pub size: u64,
    /// The inode number.
    pub inode: u64,
    /// The number of its file system: 0 is that of the root, others count from 1 in the order in
    /// which the walk met them.
    pub file_system: u16,
    /// Number of names that the file has (`st_nlink`); 1 for directories.
    pub links: u32,
    /// The target of a symbolic link; otherwise empty.
    pub target: Vec<u8>,
    /// The number of a device file; otherwise zeros.
    pub device: DeviceNumber,
    /// The inode flags of `FS_IOC_GETFLAGS` that can be set, such as immutable.
    pub flags: u32,
    /// Extended attributes in the order of their names.
    pub xattrs: Vec<Xattr>,
}

impl Metadata {
    pub(crate) fn encode(&self, to: &mut Encoder) {
        let mut has = 0;
        has |= if self.links == 1 { 0 } else { HAS_LINK };
        has |= if self.flags == 0 { 0 } else { HAS_FLAGS };
        has |= if self.xattrs.is_empty() { 0 } else { HAS_XATTRS };
        to.u8(self.kind as u8);
        to.u8(has);
        to.u16(self.mode & MODE_BITS);
        to.u32(self.uid);
        to.u32(self.gid);
        self.modified.encode(to);
        self.changed.encode(to);
        to.u64(self.inode);
        to.u16(self.file_system);
        match self.kind {
            EntryKind::File => to.u64(self.size),
            EntryKind::Symlink => {
                to.u16(to_u16(self.target.len()));
                to.raw(&self.target);
            }
            EntryKind::CharDevice | EntryKind::BlockDevice => {
                to.u32(self.device.major);
                to.u32(self.device.minor);
            }
            EntryKind::Directory | EntryKind::Fifo | EntryKind::Socket => {}
        }
        if has & HAS_LINK != 0 {
            to.u32(self.links);
        }
        if has & HAS_FLAGS != 0 {
            to.u32(self.flags);
        }
        if has & HAS_XATTRS != 0 {
            to.u16(to_u16(self.xattrs.len()));
            for xattr in &self.xattrs {
                to.u8(u8::try_from(xattr.name.len()).unwrap_or(u8::MAX));
                to.raw(&xattr.name);
                to.u32(to_u32(xattr.value.len()));
                to.raw(&xattr.value);
            }
        }
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let number = from.u8()?;
        let kind = EntryKind::ALL.into_iter().find(|kind| *kind as u8 == number);
        let kind = kind.ok_or_else(|| from.corrupt(format!("a file of kind {number}")))?;
        let (has, mode) = (from.u8()?, from.u16()?);
        if has & !HAS_ALL != 0 || mode & !MODE_BITS != 0 {
            return Err(from.corrupt(format!("unknown fields {has:#x} or mode {mode:#o}")));
        }
        let mut metadata = Self {
            kind,
            mode,
            uid: from.u32()?,
            gid: from.u32()?,
            modified: Timestamp::decode(from)?,
            changed: Timestamp::decode(from)?,
            inode: from.u64()?,
            file_system: from.u16()?,
            size: 0,
            links: 1,
            target: Vec::new(),
            device: DeviceNumber::default(),
            flags: 0,
            xattrs: Vec::new(),
        };
        match kind {
            EntryKind::File => metadata.size = from.u64()?,
            EntryKind::Symlink => {
                let length = usize::from(from.u16()?);
                if length > TARGET_BYTES_MAX {
                    return Err(from.corrupt(format!("a link's target of {length} bytes")));
                }
                metadata.target = from.take(length)?.to_vec();
            }
            EntryKind::CharDevice | EntryKind::BlockDevice => {
                metadata.device = DeviceNumber { major: from.u32()?, minor: from.u32()? };
            }
            EntryKind::Directory | EntryKind::Fifo | EntryKind::Socket => {}
        }
        if has & HAS_LINK != 0 {
            metadata.links = from.u32()?;
        }
        if has & HAS_FLAGS != 0 {
            metadata.flags = from.u32()?;
        }
        if has & HAS_XATTRS != 0 {
            metadata.xattrs = decode_xattrs(from)?;
        }
        Ok(metadata)
    }
}

fn decode_xattrs(from: &mut Decoder<'_>) -> Result<Vec<Xattr>> {
    let (count, mut xattrs) = (from.u16()?, Vec::new());
    let mut bytes = 0;
    for _ in 0..count {
        let length = usize::from(from.u8()?);
        let name = from.take(length)?.to_vec();
        let length = from.u32()? as usize;
        bytes += name.len() + length;
        if length > XATTR_BYTES_MAX || bytes > XATTRS_BYTES_MAX {
            return Err(from.corrupt(format!("extended attributes of {bytes} bytes")));
        }
        xattrs.push(Xattr { name, value: from.take(length)?.to_vec() });
    }
    if xattrs.windows(2).any(|pair| pair[0].name >= pair[1].name) {
        return Err(from.corrupt("extended attributes are not in order"));
    }
    Ok(xattrs)
}

impl Timestamp {
    fn encode(self, to: &mut Encoder) {
        to.i64(self.seconds);
        to.u32(self.nanoseconds);
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let found = Self { seconds: from.i64()?, nanoseconds: from.u32()? };
        if found.nanoseconds >= NANOSECONDS {
            return Err(Error::corrupt("a time has more than 999,999,999 nanoseconds"));
        }
        Ok(found)
    }
}
