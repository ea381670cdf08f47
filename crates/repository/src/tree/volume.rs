//! A file tree of a snapshot, open for reading.

use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, EntryKind, Extent, State, Tree};
use silt_format::{Error, ErrorKind, Result, SEGMENT_BYTES, SeriesId, VolumeKind};

use super::cursor::Cursor;
use super::pages::PageCache;
use super::reader::TreeReader;
use crate::repository::{FoundVolume, Repository};
use crate::volume_reader::{ReadCache, VolumeReader};

/// A file tree of a snapshot: its entries, and the content of its files. Any number of threads may
/// use it.
pub struct TreeVolume {
    pub(super) reader: TreeReader,
    pub(super) pages: PageCache,
    content: VolumeReader,
    tree: Tree,
    series: SeriesId,
}

impl TreeVolume {
    /// Opens a volume with at most this many bytes of caches, 0 for the context's share.
    ///
    /// `Invalid` if it is a disk.
    pub fn open(repository: &Repository, of: FoundVolume<'_>, memory_bytes: u64) -> Result<Self> {
        Self::with_content(repository, of, |of| VolumeReader::open(repository, of, memory_bytes))
    }

    /// Opens a volume whose content is cached in `cache`, which must belong to the repository.
    ///
    /// `Invalid` if it is a disk.
    pub fn open_sharing(
        repository: &Repository,
        of: FoundVolume<'_>,
        cache: Arc<ReadCache>,
    ) -> Result<Self> {
        Self::with_content(repository, of, |of| VolumeReader::open_sharing(repository, of, cache))
    }

    fn with_content<'f>(
        repository: &Repository,
        of: FoundVolume<'f>,
        open: impl FnOnce(FoundVolume<'f>) -> Result<VolumeReader>,
    ) -> Result<Self> {
        let VolumeKind::Tree(tree) = &of.volume().kind else {
            let message = format!("{} is a disk, not a file tree", of.describe());
            return Err(Error::new(ErrorKind::Invalid, message));
        };
        Ok(Self {
            reader: TreeReader::new(&repository.objects, &of.found().head),
            pages: PageCache::new(),
            tree: (**tree).clone(),
            series: of.found().head.series,
            content: open(of)?,
        })
    }

    /// The series that the tree belongs to.
    pub fn series(&self) -> SeriesId {
        self.series
    }

    /// The reader of the volume's bytes, in which the content of all files lies.
    pub fn content(&self) -> &VolumeReader {
        &self.content
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

    /// The entry at a path below the root; `None` if there is none, or if something on the way is
    /// not a directory.
    pub fn look_up(&self, path: &[u8]) -> Result<Option<Entry>> {
        self.reader.look_up(&self.tree.root, path)
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

    /// Fails with `Corrupt` if the content of a file ends behind the volume.
    pub fn check_extents(&self, file: &Entry) -> Result<()> {
        let end = |extent: &Extent| extent.address.map_or(0, |address| address + extent.bytes);
        if file.extents.iter().any(|extent| end(extent) > self.content.bytes()) {
            return Err(Error::corrupt("an extent of a file ends behind its volume"));
        }
        Ok(())
    }

    /// Passes over entries that two directories have in common, as far as it can be told without
    /// reading them.
    pub fn skip_same(
        &self,
        entries: &mut Cursor,
        other: &Self,
        other_entries: &mut Cursor,
    ) -> Result<()> {
        entries.skip_same(&self.reader, other_entries, &other.reader)
    }

    /// The number of bytes from `offset` on that two files are known to have in common, without
    /// reading them: what lies in the same segment of one series, or is a hole of both.
    pub fn known_same(
        &self,
        file: &Entry,
        other: &Self,
        other_file: &Entry,
        offset: u64,
    ) -> Result<u64> {
        let (here, there) = (place(file, offset), place(other_file, offset));
        let (Some((here, bytes)), Some((there, other_bytes))) = (here, there) else { return Ok(0) };
        let bytes = bytes.min(other_bytes);
        let (Some(here), Some(there)) = (here, there) else {
            return Ok(if here == there { bytes } else { 0 });
        };
        let segment_bytes = to_u64(SEGMENT_BYTES);
        let within = here % segment_bytes;
        if self.series != other.series || within != there % segment_bytes {
            return Ok(0);
        }
        let at = |volume: &Self, index| {
            let next = volume.content.next_segment(index)?;
            Ok::<_, Error>(next.filter(|(found, _)| *found == index).map(|(_, entry)| entry))
        };
        let here = at(self, here / segment_bytes)?;
        let there = at(other, there / segment_bytes)?;
        let is_same = match (here, there) {
            (Some(here), Some(there)) => {
                here.recipe == there.recipe
                    || (here.digest.is_known() && here.digest == there.digest)
            }
            (here, there) => here.is_none() && there.is_none(),
        };
        Ok(if is_same { bytes.min(segment_bytes - within) } else { 0 })
    }

    fn read_fully(&self, address: u64, into: &mut [u8]) -> Result<()> {
        let read = self.content.read_at(address, into)?;
        if read < into.len() {
            return Err(Error::corrupt("an extent of a file ends behind its volume"));
        }
        Ok(())
    }
}

/// Where the byte at `offset` of a file is, `None` for a hole, and the bytes up to the end of that
/// extent.
fn place(file: &Entry, offset: u64) -> Option<(Option<u64>, u64)> {
    let mut start = 0;
    for extent in &file.extents {
        let end = start + extent.bytes;
        if offset < end {
            let address = extent.address.map(|address| address + (offset - start));
            return Some((address, end - offset));
        }
        start = end;
    }
    None
}
