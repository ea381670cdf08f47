//! The entries of file trees as nodes, and listings of their directories.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{DeviceNumber, Entry, EntryKind, FileId, State};
use silt_format::{Error, ErrorKind, Result};
use siltstone::TreeVolume;

use super::protocol::{Attributes, Time};
use super::tree::{Key, Node};
use crate::catalog::{Catalog, OpenVolume, VolumeId, lock};

/// Maximum number of trees that stay open without open files.
const RECENT_MAX: usize = 8;
/// Maximum number of directory entries that a listing keeps, and their approximate size in bytes.
const PART_ENTRIES_MAX: usize = 1024;
const PART_BYTES_MAX: usize = 1 << 20;
/// This bit is set in the inode numbers of files with hard links, and in no node number.
const LINKED: u64 = 1 << 63;

/// Identifies an entry of a file tree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// The root directory.
    Root,
    /// A file with hard links.
    Linked(EntryKind, FileId),
    /// The directory's node number, and the name in it.
    Name(u64, Vec<u8>),
}

/// An entry of a file tree.
#[derive(Clone, Debug)]
pub struct Inside {
    pub volume: Arc<VolumeId>,
    pub entry: Arc<Entry>,
}

impl Inside {
    /// Returns the node of a tree's root directory.
    pub fn root(volume: VolumeId, root: &Arc<Entry>) -> Node {
        let volume = Arc::new(volume);
        let key = Key::Inside(Arc::clone(&volume), Place::Root);
        Node::inside(key, Self { volume, entry: Arc::clone(root) })
    }

    /// Returns the node of an entry in this directory, whose node number is `number`.
    fn child(&self, number: u64, entry: Entry) -> Node {
        let metadata = &entry.metadata;
        let place = if metadata.links > 1 && metadata.kind != EntryKind::Directory {
            Place::Linked(metadata.kind, entry.file_id())
        } else {
            Place::Name(number, entry.name.clone())
        };
        let volume = Arc::clone(&self.volume);
        let key = Key::Inside(Arc::clone(&volume), place);
        Node::inside(key, Self { volume, entry: Arc::new(entry) })
    }

    /// Returns type and permissions, as in `st_mode`.
    pub fn mode(&self) -> u32 {
        let kind = match self.entry.metadata.kind {
            EntryKind::File => 0o100_000,
            EntryKind::Directory => 0o040_000,
            EntryKind::Symlink => 0o120_000,
            EntryKind::Fifo => 0o010_000,
            EntryKind::Socket => 0o140_000,
            EntryKind::CharDevice => 0o020_000,
            EntryKind::BlockDevice => 0o060_000,
        };
        kind | u32::from(self.entry.metadata.mode)
    }

    /// Returns the attributes of the node with this key and number.
    pub fn attributes(&self, number: u64, key: &Key) -> Attributes {
        let metadata = &self.entry.metadata;
        let time = |time: silt_format::tree::Timestamp| Time {
            seconds: time.seconds,
            nanoseconds: time.nanoseconds,
        };
        let stored = self.entry.extents.iter().filter(|extent| extent.address.is_some());
        let bytes = match metadata.kind {
            EntryKind::Symlink => to_u64(metadata.target.len()),
            _ => metadata.size,
        };
        let is_linked = matches!(key, Key::Inside(_, Place::Linked(..)));
        Attributes {
            inode: if is_linked { linked_inode(key) } else { number },
            bytes,
            blocks: stored.map(|extent| extent.bytes).sum::<u64>().div_ceil(512),
            modified: time(metadata.modified),
            changed: time(metadata.changed),
            mode: self.mode(),
            links: metadata.links,
            uid: metadata.uid,
            gid: metadata.gid,
            device: device(metadata.device),
        }
    }

    /// Returns the offset of the next data from `offset` on; of the next hole unless `is_data`.
    /// `None` at the end. Ranges that the backup could not read count as data, so that programs
    /// read them and get the error.
    pub fn next_extent(&self, offset: u64, is_data: bool) -> Option<u64> {
        let mut start = 0;
        for extent in &self.entry.extents {
            let end = start + extent.bytes;
            let has_data = extent.address.is_some() || self.entry.state == State::Unreadable;
            if offset < end && has_data == is_data {
                return Some(offset.max(start));
            }
            start = end;
        }
        // The end of a file counts as a hole.
        (!is_data && offset < start).then_some(start)
    }

    /// Returns its name for messages.
    pub fn shown(&self) -> String {
        let (id, name) = (&self.volume, self.entry.name.escape_ascii());
        let of = format!("volume {} of snapshot {}", id.volume, id.snapshot);
        if self.entry.name.is_empty() {
            return format!("the root directory of {of}");
        }
        format!("'{name}' of {of}")
    }
}

/// Returns the inode number of a file with hard links. It stays the same as long as the folder is
/// mounted, even if the kernel forgets the file, so that programs recognise all its names.
fn linked_inode(key: &Key) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish() | LINKED
}

/// Returns a device number in the kernel's 32-bit encoding.
fn device(device: DeviceNumber) -> u32 {
    let (major, minor) = (device.major & 0xfff, device.minor & 0xf_ffff);
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

fn tree(volume: &OpenVolume) -> Result<&TreeVolume> {
    volume.tree().ok_or_else(|| Error::corrupt("a file tree has become a disk"))
}

/// The file trees that were used last. They stay open.
#[derive(Default)]
pub struct Trees {
    recent: Mutex<VecDeque<Arc<OpenVolume>>>,
}

impl Trees {
    /// Returns an open tree. Opens it if it is not among those used last.
    pub fn open(&self, catalog: &Catalog, id: &VolumeId) -> Result<Arc<OpenVolume>> {
        let mut recent = lock(&self.recent);
        if let Some(place) = recent.iter().position(|open| open.id() == id)
            && let Some(open) = recent.remove(place)
        {
            recent.push_back(Arc::clone(&open));
            return Ok(open);
        }
        drop(recent);
        let open = match catalog.open(id) {
            Err(error) if error.kind() == ErrorKind::Busy => {
                // Too many volumes are open: close the trees that have no open files.
                lock(&self.recent).clear();
                catalog.open(id)?
            }
            opened => opened?,
        };
        let mut recent = lock(&self.recent);
        recent.push_back(Arc::clone(&open));
        if recent.len() > RECENT_MAX {
            recent.pop_front();
        }
        Ok(open)
    }

    /// Returns the entry `name` of a directory, whose node number is `number`.
    pub fn look_up(
        &self,
        catalog: &Catalog,
        directory: &Inside,
        number: u64,
        name: &[u8],
    ) -> Result<Option<Node>> {
        let volume = self.open(catalog, &directory.volume)?;
        let entry = tree(&volume)?.entry_in(&directory.entry, name)?;
        Ok(entry.map(|entry| directory.child(number, entry)))
    }
}

/// A directory that is being listed. Holds one part of its entries, and the last name before each
/// part that was read, to read it again.
pub struct Directory {
    pub inside: Inside,
    volume: Arc<OpenVolume>,
    number: u64,
    read: Mutex<Read>,
}

struct Read {
    /// Position of the first entry in `entries`.
    start: u64,
    entries: Arc<Vec<Entry>>,
    /// For each part, in ascending order: the position of its first entry, and the name before it.
    marks: Vec<(u64, Vec<u8>)>,
}

impl Directory {
    /// Starts a listing at the beginning of the directory.
    pub fn new(volume: Arc<OpenVolume>, inside: Inside, number: u64) -> Self {
        let read = Read { start: 0, entries: Arc::default(), marks: vec![(0, Vec::new())] };
        Self { inside, volume, number, read: Mutex::new(read) }
    }

    /// Returns a part of the entries that contains position `from`, and the index of that position
    /// in it; no entries at the end of the directory.
    pub fn part(&self, from: u64) -> Result<(Arc<Vec<Entry>>, usize)> {
        let mut read = lock(&self.read);
        let held = read.start..read.start + to_u64(read.entries.len());
        if held.contains(&from) {
            return Ok((Arc::clone(&read.entries), to_usize(from - read.start)));
        }
        let place = read.marks.partition_point(|(start, _)| *start <= from);
        let (mut start, mut before) = read.marks[place.saturating_sub(1)].clone();
        loop {
            let tree = tree(&self.volume)?;
            let (count_max, bytes_max) = (PART_ENTRIES_MAX, PART_BYTES_MAX);
            let entry = &self.inside.entry;
            let entries = tree.entries_after(entry, &before, count_max, bytes_max)?;
            let Some(last) = entries.last() else { return Ok((Arc::default(), 0)) };
            before.clone_from(&last.name);
            let end = start + to_u64(entries.len());
            if read.marks.last().is_some_and(|(last, _)| *last < end) {
                read.marks.push((end, before.clone()));
            }
            if from < end {
                read.entries = Arc::new(entries);
                read.start = start;
                return Ok((Arc::clone(&read.entries), to_usize(from - start)));
            }
            start = end;
        }
    }

    /// Returns the node of an entry.
    pub fn node(&self, entry: &Entry) -> Node {
        self.inside.child(self.number, entry.clone())
    }
}

#[cfg(test)]
mod tests {
    use silt_format::tree::{Extent, FileKind, Metadata, Timestamp};
    use silt_format::{Id, SeriesId};

    use super::*;

    fn file(name: &[u8], address: u64) -> Entry {
        let time = Timestamp { seconds: 1, nanoseconds: 0 };
        let metadata = Metadata {
            kind: EntryKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: time,
            changed: time,
            size: 9,
            inode: 7,
            file_system: 0,
            links: 2,
            target: Vec::new(),
            device: DeviceNumber::default(),
            flags: 0,
            xattrs: Vec::new(),
        };
        Entry {
            name: name.to_vec(),
            metadata,
            state: State::Whole,
            content: FileKind::Other,
            extents: vec![Extent { address: Some(address), bytes: 9 }],
            subtree: None,
        }
    }

    /// A file that was given the number of a removed one must not share its pages in the kernel.
    #[test]
    fn files_with_one_inode_number_and_other_contents_are_different_nodes() {
        let (series, snapshot) = (SeriesId::NONE, Id(1));
        let volume = VolumeId { series, snapshot, volume: "files".to_owned() };
        let folder = Inside { volume: Arc::new(volume), entry: Arc::new(file(b"", 0)) };
        let key = |name: &[u8], address| folder.child(5, file(name, address)).key;
        assert!(key(b"a", 100) == key(b"b", 100));
        assert!(key(b"a", 100) != key(b"c", 200));
        assert_ne!(linked_inode(&key(b"a", 100)), linked_inode(&key(b"c", 200)));
    }
}
