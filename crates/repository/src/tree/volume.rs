//! A file tree of a snapshot, open for reading.

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, EntryKind, State, Tree};
use silt_format::{Error, ErrorKind, Result, VolumeKind};

use super::cursor::Cursor;
use super::reader::TreeReader;
use crate::repository::{FoundVolume, Repository};
use crate::volume_reader::VolumeReader;

/// A file tree of a snapshot: its entries, and the content of its files. Any number of threads may
/// use it.
pub struct TreeVolume {
    reader: TreeReader,
    content: VolumeReader,
    tree: Tree,
}

impl TreeVolume {
    /// Opens a volume with at most this many bytes of caches, 0 for the context's share.
    ///
    /// `Invalid` if it is a disk.
    pub fn open(repository: &Repository, of: FoundVolume<'_>, memory_bytes: u64) -> Result<Self> {
        let VolumeKind::Tree(tree) = &of.volume().kind else {
            let message = format!("{} is a disk, not a file tree", of.describe());
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        Ok(Self {
            reader: TreeReader::new(&repository.objects, &of.found().head),
            content: VolumeReader::open(repository, of, memory_bytes)?,
            tree: (**tree).clone(),
        })
    }

    /// The root directory, the names of owners, and sums.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The entry at a path below the root; `/` and the empty path are the root.
    ///
    /// `NotFound` if there is none.
    pub fn find(&self, path: &[u8]) -> Result<Entry> {
        self.reader.find(&self.tree.root, path)
    }

    /// The entries of a directory in byte order of their names; take them with
    /// [`next`](Self::next).
    pub fn entries(&self, directory: &Entry) -> Cursor {
        self.reader.entries(directory)
    }

    /// The next entry of a directory; `None` at its end.
    pub fn next(&self, entries: &mut Cursor) -> Result<Option<Entry>> {
        entries.next(&self.reader)
    }

    /// Reads content of a file from `offset` on and returns the number of bytes, fewer than asked
    /// for only at the end of the file. Every byte is verified.
    ///
    /// `Unavailable` where the backup could not read the file.
    pub fn read_at(&self, file: &Entry, offset: u64, into: &mut [u8]) -> Result<usize> {
        if file.metadata.kind != EntryKind::File {
            let name = file.name.escape_ascii();
            return Err(Error::invalid(format!("'{name}' is not a regular file")));
        }
        let wanted = to_u64(into.len()).min(file.metadata.size.saturating_sub(offset));
        let (mut start, mut done) = (0, 0);
        for extent in &file.extents {
            let end = start + extent.bytes;
            let at = offset + to_u64(done);
            if end > at && to_usize(wanted) > done {
                let bytes = to_usize((end - at).min(wanted - to_u64(done)));
                let part = &mut into[done..done + bytes];
                match extent.address {
                    Some(address) => self.read_fully(address + (at - start), part)?,
                    None if file.state == State::Unreadable => {
                        let name = file.name.escape_ascii();
                        let message = format!("'{name}' could not be read when it was backed up");
                        return Err(Error::new(ErrorKind::Unavailable, message));
                    }
                    None => part.fill(0),
                }
                done += bytes;
            }
            start = end;
        }
        Ok(done)
    }

    fn read_fully(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let read = self.content.read_at(address, into)?;
        if read < into.len() {
            return Err(Error::corrupt("an extent of a file ends behind its volume"));
        }
        Ok(())
    }
}
