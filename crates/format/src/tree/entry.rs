//! An entry of a directory.

use crate::codec::{Decoder, Encoder};
use crate::number::{to_u16, to_u32};
use crate::tree::{EntryKind, FileKind, Metadata, NAME_BYTES_MAX, Subtree, Timestamp};
use crate::{Result, SEGMENT_BYTES};

const HAS_EXTENTS: u8 = 1;
const HAS_SUBTREE: u8 = 2;
const HAS_CONTENT: u8 = 4;
const HAS_ALL: u8 = HAS_EXTENTS | HAS_SUBTREE | HAS_CONTENT;
/// Stands for the address of a hole.
const HOLE: u64 = u64::MAX;
/// Encoded size of an extent in bytes.
const EXTENT_BYTES: usize = 16;

/// Part of a file's content: bytes of the volume, or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Offset in the volume in bytes; `None` for a hole.
    pub address: Option<u64>,
    /// Length in bytes, at least 1.
    pub bytes: u64,
}

/// How completely an entry was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum State {
    /// Completely, and it did not change meanwhile.
    #[default]
    Whole = 0,
    /// It changed while it was read, twice: its content may be of several points in time.
    Changed = 1,
    /// Its content, or the list of a directory, could not be read completely; ranges that failed
    /// are holes.
    Unreadable = 2,
    /// Completely, but so soon after its last change that equal times do not prove equal content:
    /// the next backup reads it again.
    Fresh = 3,
}

/// An entry of a directory: a file, and where its content is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, any bytes but zero and `/`, at most 255 of them, not `.` or `..`. Only the root
    /// of a tree has an empty name.
    pub name: Vec<u8>,
    /// Its metadata.
    pub metadata: Metadata,
    /// How completely it was read.
    pub state: State,
    /// What a regular file is used for.
    pub content: FileKind,
    /// The content of a regular file in order, as many bytes as its size.
    pub extents: Vec<Extent>,
    /// The entries of a directory; `None` if it has none.
    pub subtree: Option<Subtree>,
}

/// Identifies a file with hard links within a tree: file system, inode number, size, time of the
/// last modification, and address of the content.
///
/// The inode number is not enough: if a file is removed during a backup, its number may be that of
/// another file by the time when the walk reaches that.
pub type FileId = (u16, u64, u64, Timestamp, Option<u64>);

impl Entry {
    /// Returns what the names of one file have in common, and names of others do not.
    pub fn file_id(&self) -> FileId {
        let metadata = &self.metadata;
        let address = self.extents.iter().find_map(|extent| extent.address);
        (metadata.file_system, metadata.inode, metadata.size, metadata.modified, address)
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        self.encode_to(&mut to);
        to.bytes
    }

    pub(crate) fn encode_to(&self, to: &mut Encoder) {
        let mut has = 0;
        has |= if self.extents.is_empty() { 0 } else { HAS_EXTENTS };
        has |= if self.subtree.is_none() { 0 } else { HAS_SUBTREE };
        has |= if self.content == FileKind::Other { 0 } else { HAS_CONTENT };
        to.u16(to_u16(self.name.len()));
        to.raw(&self.name);
        to.u8(has);
        to.u8(self.state as u8);
        self.metadata.encode(to);
        if has & HAS_EXTENTS != 0 {
            to.u32(to_u32(self.extents.len()));
            for extent in &self.extents {
                to.u64(extent.address.unwrap_or(HOLE));
                to.u64(extent.bytes);
            }
        }
        if let Some(subtree) = &self.subtree {
            subtree.encode(to);
        }
        if has & HAS_CONTENT != 0 {
            to.u8(self.content as u8);
        }
    }

    /// Decodes an entry that is alone, such as the root of a tree.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "tree entry");
        let entry = Self::decode_from(&mut from)?;
        from.end()?;
        Ok(entry)
    }

    pub(crate) fn decode_from(from: &mut Decoder<'_>) -> Result<Self> {
        let length = usize::from(from.u16()?);
        if length > NAME_BYTES_MAX {
            return Err(from.corrupt(format!("a name of {length} bytes")));
        }
        let name = from.take(length)?.to_vec();
        if name == b"." || name == b".." || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
            let shown = name.escape_ascii();
            return Err(from.corrupt(format!("'{shown}' is not the name of a file")));
        }
        let (has, state) = (from.u8()?, from.u8()?);
        let state = match state {
            0 => State::Whole,
            1 => State::Changed,
            2 => State::Unreadable,
            3 => State::Fresh,
            other => return Err(from.corrupt(format!("an entry in state {other}"))),
        };
        if has & !HAS_ALL != 0 {
            return Err(from.corrupt(format!("an entry with unknown fields {has:#x}")));
        }
        let metadata = Metadata::decode(from)?;
        let extents = if has & HAS_EXTENTS == 0 {
            Vec::new()
        } else {
            from.list(EXTENT_BYTES, Extent::decode)?
        };
        let subtree = if has & HAS_SUBTREE == 0 { None } else { Some(Subtree::decode(from)?) };
        let content =
            if has & HAS_CONTENT == 0 { FileKind::Other } else { FileKind::decode(from)? };
        let entry = Self { name, metadata, state, content, extents, subtree };
        entry.check(from)?;
        Ok(entry)
    }

    /// Refuses content that does not fit the kind and the size.
    fn check(&self, from: &Decoder<'_>) -> Result<()> {
        let kind = self.metadata.kind;
        let has_content = !self.extents.is_empty() || self.content != FileKind::Other;
        let misplaced = (has_content && kind != EntryKind::File)
            || (self.subtree.is_some() && kind != EntryKind::Directory);
        let bytes = self.extents.iter().try_fold(0_u64, |sum, e| sum.checked_add(e.bytes));
        if misplaced || bytes != Some(self.metadata.size) {
            let name = self.name.escape_ascii();
            return Err(from.corrupt(format!("the content of '{name}' does not fit its metadata")));
        }
        Ok(())
    }

    /// The segments of the volume that the content lies in, in the order of the content; a segment
    /// is named again where the content comes back to it.
    pub fn segments(&self) -> impl Iterator<Item = u64> {
        self.extents.iter().flat_map(|extent| {
            extent.address.map_or(0..0, |address| {
                let segment = SEGMENT_BYTES as u64;
                address / segment..(address + extent.bytes).div_ceil(segment)
            })
        })
    }
}

impl Extent {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (address, bytes) = (from.u64()?, from.u64()?);
        if bytes == 0 || (address != HOLE && address.checked_add(bytes).is_none()) {
            return Err(from.corrupt("an extent is empty or ends beyond 2^64"));
        }
        Ok(Self { address: (address != HOLE).then_some(address), bytes })
    }
}
