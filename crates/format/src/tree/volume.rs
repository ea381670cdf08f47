//! A file tree as a volume of a snapshot.

use crate::codec::{Decoder, Encoder};
use crate::number::to_u16;
use crate::tree::{Entry, EntryKind, FileKind, KindCounts};
use crate::{Result, number::to_u32};

/// Maximum number of owners and groups whose names are kept; the others have numbers only.
pub const NAMES_MAX: usize = 65_536;
/// Maximum number of segments that a snapshot notes as sparse.
pub const SPARSE_SEGMENTS_MAX: usize = 65_536;

/// Counts of entries of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeCounts {
    /// Regular files.
    pub files: u64,
    /// Directories, with the root.
    pub directories: u64,
    /// Symbolic links, pipes, sockets and devices.
    pub others: u64,
    /// Entries whose content, directory or status could not be read, and those that the backup was
    /// asked for by their paths and that did not exist.
    pub unreadable: u64,
    /// Files that changed while they were read.
    pub changed: u64,
    /// Entries that the backup's rules exclude, without the entries below them.
    pub excluded: u64,
    /// Entries that were removed after their directory was listed, before they were read.
    pub vanished: u64,
}

/// The name of an owner or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerName {
    /// The number, as in [`Metadata`](super::Metadata).
    pub id: u32,
    /// The name on the host that was backed up.
    pub name: Vec<u8>,
}

/// The file tree of a volume: its root directory, and data about the whole tree.
///
/// The content of files is in the volume's bytes, at the addresses in extents. A segment holds a
/// part of one large file, or small files one after the other. A backup adds segments with new
/// numbers and changes none of its parent's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The root, a directory without a name.
    pub root: Entry,
    /// Names of owners, in ascending order of their numbers.
    pub users: Vec<OwnerName>,
    /// Names of groups, in ascending order of their numbers.
    pub groups: Vec<OwnerName>,
    /// Sums over the tree.
    pub counts: TreeCounts,
    /// Regular files by kind, at the place of each kind's number.
    pub kinds: [KindCounts; FileKind::ALL.len()],
    /// Segments of small files of which little is still referred to, in ascending order. The next
    /// backup reads their remaining files and stores them together with others.
    pub sparse_segments: Vec<u64>,
}

impl Tree {
    pub(crate) fn encode(&self, to: &mut Encoder) {
        self.root.encode_to(to);
        for names in [&self.users, &self.groups] {
            to.count(names.len());
            for owner in names {
                to.u32(owner.id);
                to.u16(to_u16(owner.name.len()));
                to.raw(&owner.name);
            }
        }
        let counts = self.counts;
        for count in [counts.files, counts.directories, counts.others] {
            to.u64(count);
        }
        for count in [counts.unreadable, counts.changed, counts.excluded, counts.vanished] {
            to.u64(count);
        }
        to.u32(to_u32(self.sparse_segments.len()));
        self.sparse_segments.iter().for_each(|segment| to.u64(*segment));
        to.count(self.kinds.len());
        for kind in self.kinds {
            to.u64(kind.files);
            to.u64(kind.bytes);
        }
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let root = Entry::decode_from(from)?;
        if root.metadata.kind != EntryKind::Directory || !root.name.is_empty() {
            return Err(from.corrupt("the root of a file tree is not a directory"));
        }
        let users = decode_names(from)?;
        let groups = decode_names(from)?;
        let counts = TreeCounts {
            files: from.u64()?,
            directories: from.u64()?,
            others: from.u64()?,
            unreadable: from.u64()?,
            changed: from.u64()?,
            excluded: from.u64()?,
            vanished: from.u64()?,
        };
        let sparse_segments = from.list(8, Decoder::u64)?;
        let in_order = sparse_segments.windows(2).all(|pair| pair[0] < pair[1]);
        if !in_order || sparse_segments.len() > SPARSE_SEGMENTS_MAX {
            return Err(from.corrupt("its sparse segments are not in order"));
        }
        let kinds =
            from.list(16, |item| Ok(KindCounts { files: item.u64()?, bytes: item.u64()? }))?;
        let kinds = kinds.try_into().map_err(|_| from.corrupt("it has other kinds of files"))?;
        Ok(Self { root, users, groups, counts, kinds, sparse_segments })
    }
}

fn decode_names(from: &mut Decoder<'_>) -> Result<Vec<OwnerName>> {
    let names = from.list(6, |from| {
        let id = from.u32()?;
        let length = usize::from(from.u16()?);
        Ok(OwnerName { id, name: from.take(length)?.to_vec() })
    })?;
    if names.len() > NAMES_MAX || names.windows(2).any(|pair| pair[0].id >= pair[1].id) {
        return Err(from.corrupt("the names of its owners are not in order"));
    }
    Ok(names)
}
