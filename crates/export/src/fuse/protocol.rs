//! The messages of `fuse.h`, protocol 7.31, that a read-only file system needs.
//!
//! Numbers are in the byte order of the machine. Lengths are checked, although the kernel should
//! send only valid messages.

use std::io::{IoSlice, Write};
use std::ops::Range;
use std::sync::Arc;

/// The major version of the protocol, and the lowest and highest supported minor version.
pub const MAJOR: u32 = 7;
pub const MINOR_MIN: u32 = 28;
pub const MINOR_MAX: u32 = 31;

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const READLINK: u32 = 5;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const GETXATTR: u32 = 22;
pub const LISTXATTR: u32 = 23;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const INTERRUPT: u32 = 36;
pub const DESTROY: u32 = 38;
pub const BATCH_FORGET: u32 = 42;
pub const READDIRPLUS: u32 = 44;
pub const LSEEK: u32 = 46;

const ASYNC_READ: u32 = 1;
const DO_READDIRPLUS: u32 = 1 << 13;
const READDIRPLUS_AUTO: u32 = 1 << 14;
const ASYNC_DIO: u32 = 1 << 15;
const PARALLEL_DIROPS: u32 = 1 << 18;
const POSIX_ACL: u32 = 1 << 20;
const MAX_PAGES: u32 = 1 << 22;

/// Reply to `OPEN`: the kernel may keep the pages that it has cached of this file.
pub const FOPEN_KEEP_CACHE: u32 = 1 << 1;

pub const SEEK_DATA: u32 = 3;
pub const SEEK_HOLE: u32 = 4;

/// Maximum size of a message from the kernel in bytes. There are no writes, so it is small.
pub const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Maximum size of a read in bytes.
pub const READ_BYTES_MAX: usize = 1 << 20;
/// Maximum number of the kernel's read-ahead requests at a time.
const BACKGROUND_MAX: u16 = 64;
const PAGE_BYTES: usize = 4096;

const IN_HEADER: usize = 40;
pub const OUT_HEADER: usize = 16;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    pub opcode: u32,
    pub unique: u64,
    pub node: u64,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Decodes a message; `None` if it is too short.
    pub fn decode(message: &'a [u8]) -> Option<Self> {
        if message.len() < IN_HEADER {
            return None;
        }
        let (header, body) = message.split_at(IN_HEADER);
        let of = Self { opcode: 0, unique: 0, node: 0, body: header };
        Some(Self { opcode: of.word(4)?, unique: of.long(8)?, node: of.long(16)?, body })
    }

    /// Returns the 32-bit number at offset `at` of the body.
    pub fn word(&self, at: usize) -> Option<u32> {
        self.body.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Returns the 64-bit number at offset `at` of the body.
    pub fn long(&self, at: usize) -> Option<u64> {
        self.body.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
    }

    /// Returns the name at offset `at` of the body, without the zero at its end.
    pub fn name(&self, at: usize) -> Option<&'a [u8]> {
        let name = self.body.get(at..)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        Some(&name[..end])
    }
}

/// A reply that is being built.
pub struct Reply {
    /// The header and the first part of the body.
    head: Vec<u8>,
    /// The rest of the body, which is sent without a copy.
    tail: Option<(Arc<Vec<u8>>, Range<usize>)>,
}

impl Reply {
    pub fn new() -> Self {
        Self { head: vec![0; OUT_HEADER], tail: None }
    }

    /// Makes the reply empty.
    pub fn clear(&mut self) {
        self.head.truncate(OUT_HEADER);
        self.tail = None;
    }

    /// Returns the length of the body in bytes, without the tail.
    pub fn body_bytes(&self) -> usize {
        self.head.len() - OUT_HEADER
    }

    pub fn word(&mut self, value: u32) -> &mut Self {
        self.head.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn half(&mut self, value: u16) -> &mut Self {
        self.head.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn long(&mut self, value: u64) -> &mut Self {
        self.head.extend_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.head.extend_from_slice(bytes);
        self
    }

    /// Sets the length of the body to `length` bytes, and returns it to be filled.
    pub fn body(&mut self, length: usize) -> &mut [u8] {
        self.head.resize(OUT_HEADER + length, 0);
        &mut self.head[OUT_HEADER..]
    }

    /// Shortens the body to `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.head.truncate(OUT_HEADER + length);
    }

    /// Adds a part of `bytes` after the body, without a copy.
    pub fn tail(&mut self, bytes: Arc<Vec<u8>>, range: Range<usize>) {
        self.tail = Some((bytes, range));
    }

    /// Sends the reply with its header. A reply with an error has no body.
    pub fn finish(
        &mut self,
        unique: u64,
        error: Option<rustix::io::Errno>,
        mut device: impl Write,
    ) -> std::io::Result<()> {
        if error.is_some() {
            self.clear();
        }
        let tail = self.tail.as_ref().map_or(&[][..], |(bytes, range)| &bytes[range.clone()]);
        let bytes = self.head.len() + tail.len();
        let length = u32::try_from(bytes).unwrap_or(u32::MAX);
        let code = error.map_or(0, |error| -error.raw_os_error());
        self.head[..4].copy_from_slice(&length.to_ne_bytes());
        self.head[4..8].copy_from_slice(&code.to_ne_bytes());
        self.head[8..16].copy_from_slice(&unique.to_ne_bytes());
        // The kernel accepts a message completely or not at all.
        let sent = device.write_vectored(&[IoSlice::new(&self.head), IoSlice::new(tail)])?;
        self.tail = None;
        if sent == bytes { Ok(()) } else { Err(std::io::ErrorKind::WriteZero.into()) }
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug)]
pub struct Time {
    /// Since 1970.
    pub seconds: i64,
    pub nanoseconds: u32,
}

impl Time {
    pub fn of_ns(time_ns: i64) -> Self {
        let nanoseconds = u32::try_from(time_ns.rem_euclid(1_000_000_000)).unwrap_or(0);
        Self { seconds: time_ns.div_euclid(1_000_000_000), nanoseconds }
    }
}

/// The attributes of a file.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// The inode number that programs see.
    pub inode: u64,
    pub bytes: u64,
    /// Number of blocks of 512 bytes. Programs look for holes only if this is less than the size.
    pub blocks: u64,
    pub modified: Time,
    pub changed: Time,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of a device: the major number in bits 8 to 19, the minor number in the others.
    pub device: u32,
}

impl Attributes {
    fn encode(&self, reply: &mut Reply) {
        // There are no access times: the modification time takes their place.
        let times = [self.modified, self.modified, self.changed];
        reply.long(self.inode).long(self.bytes).long(self.blocks);
        for time in times {
            reply.long(time.seconds.cast_unsigned());
        }
        for time in times {
            reply.word(time.nanoseconds);
        }
        reply.word(self.mode).word(self.links).word(self.uid).word(self.gid);
        reply.word(self.device).word(4096).word(0);
    }

    /// Writes `fuse_attr_out`, which the kernel may cache for `valid_s` seconds.
    pub fn reply(&self, valid_s: u64, reply: &mut Reply) {
        reply.long(valid_s).word(0).word(0);
        self.encode(reply);
    }

    /// Writes `fuse_entry_out` of the node with this number, which the kernel may cache for
    /// `valid_s` seconds.
    pub fn entry(&self, node: u64, valid_s: u64, reply: &mut Reply) {
        reply.long(node).long(0).long(valid_s).long(valid_s).word(0).word(0);
        self.encode(reply);
    }
}

/// Size of `fuse_entry_out` in bytes.
pub const ENTRY_BYTES: usize = 128;
/// Size of the fixed part of `fuse_dirent` in bytes.
pub const DIRENT_BYTES: usize = 24;

/// Writes `fuse_dirent`. `next` is the offset at which the listing continues.
pub fn dirent(inode: u64, next: u64, mode: u32, name: &[u8], reply: &mut Reply) {
    let length = u32::try_from(name.len()).unwrap_or(0);
    reply.long(inode).long(next).word(length).word(mode >> 12).bytes(name);
    let padding = name.len().next_multiple_of(8) - name.len();
    reply.bytes(&[0; 8][..padding]);
}

/// Answers `INIT`. Returns `None` if the kernel is too old. With `checks_access`, the kernel checks
/// permissions, including ACLs.
pub fn init(request: &Request<'_>, checks_access: bool, reply: &mut Reply) -> Option<()> {
    let (major, minor) = (request.word(0)?, request.word(4)?);
    let (read_ahead, offered) = (request.word(8)?, request.word(12)?);
    if major != MAJOR || minor < MINOR_MIN {
        return None;
    }
    let acls = if checks_access { POSIX_ACL } else { 0 };
    let wanted = acls
        | ASYNC_READ
        | DO_READDIRPLUS
        | READDIRPLUS_AUTO
        | ASYNC_DIO
        | PARALLEL_DIROPS
        | MAX_PAGES;
    reply.word(MAJOR).word(minor.min(MINOR_MAX)).word(read_ahead.max(1 << 20));
    reply.word(offered & wanted);
    reply.half(BACKGROUND_MAX).half(BACKGROUND_MAX / 4 * 3);
    // The maximum size of a write. There are no writes, but the kernel requires at least a page.
    reply.word(4096).word(1);
    let pages = u16::try_from(READ_BYTES_MAX / PAGE_BYTES).unwrap_or(u16::MAX);
    reply.half(pages).half(0);
    reply.bytes(&[0; 32]);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_have_the_sizes_of_the_kernels_structures() {
        let mut reply = Reply::new();
        let modified = Time::of_ns(-1);
        let of = Attributes {
            inode: 1,
            bytes: 2,
            blocks: 1,
            modified,
            changed: modified,
            mode: 3,
            links: 4,
            uid: 5,
            gid: 6,
            device: 7,
        };
        assert_eq!((modified.seconds, modified.nanoseconds), (-1, 999_999_999));
        of.entry(1, 1, &mut reply);
        assert_eq!(reply.body_bytes(), ENTRY_BYTES);
        reply.clear();
        of.reply(1, &mut reply);
        assert_eq!(reply.body_bytes(), 104);
        reply.clear();
        dirent(1, 2, 0o040_000, b"123456789", &mut reply);
        assert_eq!(reply.body_bytes(), DIRENT_BYTES + 16);
        let header = [0_u8; IN_HEADER];
        let mut message = header.to_vec();
        for word in [7_u32, 40, 4096, u32::MAX] {
            message.extend_from_slice(&word.to_ne_bytes());
        }
        reply.clear();
        init(&Request::decode(&message).unwrap(), true, &mut reply).unwrap();
        assert_eq!(reply.body_bytes(), 64);
        assert!(Request::decode(&message[..39]).is_none());
        message[IN_HEADER + 4] = 27;
        assert!(init(&Request::decode(&message).unwrap(), true, &mut reply).is_none());
    }
}
