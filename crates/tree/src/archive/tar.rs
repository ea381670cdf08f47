//! Tar archives in the pax format of POSIX.1-2001, with the extensions of GNU tar and star for
//! sparse files and extended attributes.
//!
//! The available libraries cannot write sparse files that are not on disk, nor names that are not
//! UTF-8, so this is an implementation of its own.

use std::io::Write;

use silt_format::number::to_u64;
use silt_format::tree::{EntryKind, Timestamp, Xattr};
use silt_format::{Error, ErrorKind, Result};

use super::ArchiveEntry;
use crate::acl::{ACCESS_ACL, AclOwner, DEFAULT_ACL, acl_text};

const BLOCK_BYTES: usize = 512;
/// Length of the header fields for the name and for a link's target, in bytes.
const NAME_BYTES: usize = 100;
/// Length of the header fields for the names of user and group, in bytes.
const OWNER_BYTES: usize = 32;
/// The largest numbers that octal fields of eight and of twelve bytes can hold.
const OCTAL_8_MAX: u64 = 0o777_7777;
const OCTAL_12_MAX: u64 = 0o777_7777_7777;
/// Archives are padded to a multiple of this size, as by tar.
const RECORD_BYTES: u64 = 20 * 512;

/// Writes a tar archive.
pub struct TarWriter<W: Write> {
    out: W,
    /// Bytes written so far.
    written: u64,
    /// Bytes of the current entry's content that are still to be written.
    left: u64,
}

impl<W: Write> TarWriter<W> {
    /// Starts an archive that is written to `out`.
    pub fn new(out: W) -> Self {
        Self { out, written: 0, left: 0 }
    }

    /// Begins an entry. For a regular file that is not a link, the caller then passes the bytes of
    /// the data ranges to [`data`](Self::data). Returns `false` and writes nothing for a socket: an
    /// archive cannot contain sockets. Fails if the entry before lacks content.
    pub fn begin(&mut self, entry: &ArchiveEntry<'_>) -> Result<bool> {
        self.end_content()?;
        let metadata = entry.metadata;
        let kind = match (entry.link_to, metadata.kind) {
            (_, EntryKind::Socket) => return Ok(false),
            (Some(_), _) => b'1',
            (None, EntryKind::File) => b'0',
            (None, EntryKind::Symlink) => b'2',
            (None, EntryKind::CharDevice) => b'3',
            (None, EntryKind::BlockDevice) => b'4',
            (None, EntryKind::Directory) => b'5',
            (None, EntryKind::Fifo) => b'6',
        };
        let mut path = if entry.path.is_empty() { b".".to_vec() } else { entry.path.to_vec() };
        if kind == b'5' {
            path.push(b'/');
        }
        let target = entry.link_to.unwrap_or(&metadata.target);
        let data_bytes: u64 = entry.data.iter().map(|range| range.end - range.start).sum();
        let is_sparse = kind == b'0' && data_bytes != metadata.size;
        let map = if is_sparse { sparse_map(entry) } else { Vec::new() };
        let size = if kind == b'0' { to_u64(map.len()) + data_bytes } else { 0 };

        let mut records = Records::default();
        if is_sparse {
            records.add(b"GNU.sparse.major", b"1");
            records.add(b"GNU.sparse.minor", b"0");
            records.add(b"GNU.sparse.name", &path);
            records.add(b"GNU.sparse.realsize", metadata.size.to_string().as_bytes());
            path = sparse_name(&path);
        } else if path.len() > NAME_BYTES {
            records.add(b"path", &path);
        }
        if target.len() > NAME_BYTES {
            records.add(b"linkpath", target);
        }
        let plain_time = plain_seconds(metadata.modified);
        add_records(&mut records, entry, size);
        if kind != b'1' {
            // A hard link shares the attributes of its file.
            metadata.xattrs.iter().for_each(|xattr| records.add_attribute(xattr));
        }
        let mut header = Header::new(&path, target, kind);
        header.number(100, 8, u64::from(metadata.mode));
        header.number(108, 8, u64::from(metadata.uid).min(OCTAL_8_MAX));
        header.number(116, 8, u64::from(metadata.gid).min(OCTAL_8_MAX));
        header.number(124, 12, size.min(OCTAL_12_MAX));
        header.number(136, 12, plain_time.unwrap_or(0));
        header.text(265, OWNER_BYTES - 1, entry.user.unwrap_or_default());
        header.text(297, OWNER_BYTES - 1, entry.group.unwrap_or_default());
        header.number(329, 8, u64::from(metadata.device.major).min(OCTAL_8_MAX));
        header.number(337, 8, u64::from(metadata.device.minor).min(OCTAL_8_MAX));
        if !records.bytes.is_empty() {
            self.extended(&records.bytes)?;
        }
        self.write(&header.finished())?;
        self.write(&map)?;
        self.left = if kind == b'0' { data_bytes } else { 0 };
        Ok(true)
    }

    /// Appends content to the current entry. Fails with `Invalid` beyond the end of its data.
    pub fn data(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(left) = self.left.checked_sub(to_u64(bytes.len())) else {
            return Err(Error::invalid("more content than the entry has"));
        };
        self.left = left;
        self.write(bytes)
    }

    /// Returns the number of bytes of the current entry's content that are still to be written.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Ends the archive and returns the writer. Fails if the last entry lacks content.
    pub fn finish(mut self) -> Result<W> {
        self.end_content()?;
        self.write(&[0; 2 * BLOCK_BYTES])?;
        while !self.written.is_multiple_of(RECORD_BYTES) {
            self.write(&[0; BLOCK_BYTES])?;
        }
        self.out.flush().map_err(|error| Error::io("writing the archive", error))?;
        Ok(self.out)
    }

    /// Writes the extended header of the entry that follows.
    fn extended(&mut self, records: &[u8]) -> Result<()> {
        let mut header = Header::new(b"././@PaxHeader", b"", b'x');
        header.number(100, 8, 0o644);
        for at in [108, 116] {
            header.number(at, 8, 0);
        }
        header.number(124, 12, to_u64(records.len()));
        header.number(136, 12, 0);
        self.write(&header.finished())?;
        self.write(records)?;
        self.pad()
    }

    fn end_content(&mut self) -> Result<()> {
        if self.left > 0 {
            return Err(Error::new(ErrorKind::Invalid, "the entry before lacks content"));
        }
        self.pad()
    }

    fn pad(&mut self) -> Result<()> {
        let behind = silt_format::number::to_usize(self.written) % BLOCK_BYTES;
        let padding = (BLOCK_BYTES - behind) % BLOCK_BYTES;
        self.write(&[0; BLOCK_BYTES][..padding])
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes).map_err(|error| Error::io("writing the archive", error))?;
        self.written += to_u64(bytes.len());
        Ok(())
    }
}

/// Returns the seconds of a time if they fit into a plain header.
fn plain_seconds(time: Timestamp) -> Option<u64> {
    u64::try_from(time.seconds).ok().filter(|seconds| *seconds <= OCTAL_12_MAX)
}

/// Adds records for numbers, owners and times that do not fit into a plain header.
fn add_records(records: &mut Records, entry: &ArchiveEntry<'_>, size: u64) {
    let metadata = entry.metadata;
    for (name, number, max) in [
        (&b"size"[..], size, OCTAL_12_MAX),
        (b"uid", u64::from(metadata.uid), OCTAL_8_MAX),
        (b"gid", u64::from(metadata.gid), OCTAL_8_MAX),
        (b"SCHILY.devmajor", u64::from(metadata.device.major), OCTAL_8_MAX),
        (b"SCHILY.devminor", u64::from(metadata.device.minor), OCTAL_8_MAX),
    ] {
        if number > max {
            records.add(name, number.to_string().as_bytes());
        }
    }
    for (name, owner) in [(&b"uname"[..], entry.user), (b"gname", entry.group)] {
        if let Some(owner) = owner.filter(|owner| owner.len() >= OWNER_BYTES) {
            records.add(name, owner);
        }
    }
    let time = metadata.modified;
    if time.nanoseconds != 0 || plain_seconds(time).is_none() {
        records.add(b"mtime", decimal(time).as_bytes());
    }
}

/// Returns the map of a sparse file in version 1.0 of GNU tar's format: the number of ranges, then
/// start and length of each, as decimal lines padded to a block. The last range ends at the end of
/// the file.
fn sparse_map(entry: &ArchiveEntry<'_>) -> Vec<u8> {
    let size = entry.metadata.size;
    let ends_in_hole = entry.data.last().is_none_or(|last| last.end < size);
    let count = entry.data.len() + usize::from(ends_in_hole);
    let mut map = format!("{count}\n").into_bytes();
    for range in entry.data {
        map.extend(format!("{}\n{}\n", range.start, range.end - range.start).bytes());
    }
    if ends_in_hole {
        map.extend(format!("{size}\n0\n").bytes());
    }
    map.resize(map.len().next_multiple_of(BLOCK_BYTES), 0);
    map
}

/// Returns the name under which a program without support for sparse files extracts map and data.
fn sparse_name(path: &[u8]) -> Vec<u8> {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    let (folder, name) = path.split_at(slash.map_or(0, |slash| slash + 1));
    [folder, b"GNUSparseFile.0/", name].concat()
}

/// Returns a POSIX ACL in its text form, with numeric ids. `None` if `value` is not in the layout
/// of Linux. Programs that read archives accept only the text form.
fn numeric_acl(value: &[u8]) -> Option<String> {
    let number = |of| match of {
        AclOwner::User(id) | AclOwner::Group(id) => id.to_string(),
    };
    Some(acl_text(value, &number)?.join(","))
}

/// Returns the record key of an extended attribute. `=` is escaped: it would end the key.
fn xattr_key(name: &[u8]) -> Vec<u8> {
    let mut key = b"SCHILY.xattr.".to_vec();
    for byte in name {
        match byte {
            b'%' => key.extend(b"%25"),
            b'=' => key.extend(b"%3D"),
            byte => key.push(*byte),
        }
    }
    key
}

/// Formats a time as a decimal number of seconds.
fn decimal(time: Timestamp) -> String {
    let nanoseconds = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let (seconds, rest) =
        (nanoseconds.unsigned_abs() / 1_000_000_000, nanoseconds.unsigned_abs() % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}");
    }
    let digits = format!("{rest:09}");
    format!("{sign}{seconds}.{}", digits.trim_end_matches('0'))
}

/// The records of an extended header. Each begins with its own length, including that number.
#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
}

impl Records {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        // The space, "=" and the newline.
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length != rest + length.to_string().len() {
            length = rest + length.to_string().len();
        }
        let line = [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat();
        self.bytes.extend(line);
    }

    fn add_attribute(&mut self, xattr: &Xattr) {
        let key: Option<&[u8]> = match xattr.name.as_slice() {
            ACCESS_ACL => Some(b"SCHILY.acl.access"),
            DEFAULT_ACL => Some(b"SCHILY.acl.default"),
            _ => None,
        };
        match key.and_then(|key| Some((key, numeric_acl(&xattr.value)?))) {
            Some((key, text)) => self.add(key, text.as_bytes()),
            None => self.add(&xattr_key(&xattr.name), &xattr.value),
        }
    }
}

struct Header([u8; BLOCK_BYTES]);

impl Header {
    /// Returns a header. Names that are too long are cut; the extended header has them in full.
    fn new(path: &[u8], target: &[u8], kind: u8) -> Self {
        let mut header = Self([0; BLOCK_BYTES]);
        header.text(0, NAME_BYTES, path);
        header.text(157, NAME_BYTES, target);
        header.0[156] = kind;
        header.text(257, 8, b"ustar\x0000");
        header
    }

    fn text(&mut self, at: usize, bytes_max: usize, text: &[u8]) {
        let bytes = text.len().min(bytes_max);
        self.0[at..at + bytes].copy_from_slice(&text[..bytes]);
    }

    /// Writes an octal number that ends with a zero byte.
    fn number(&mut self, at: usize, bytes: usize, number: u64) {
        let digits = format!("{number:0width$o}", width = bytes - 1);
        self.text(at, bytes - 1, digits.as_bytes());
    }

    fn finished(mut self) -> [u8; BLOCK_BYTES] {
        self.text(148, 8, b"        ");
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        self.text(148, 8, format!("{sum:06o}\0 ").as_bytes());
        self.0
    }
}
