//! Reading a file tree of a snapshot.

use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, EntryKind, Extent, State, Tree};
use silt_format::{Error, ErrorKind, Result, SEGMENT_BYTES, SeriesId, VolumeKind};

use super::cursor::Cursor;
use super::pages::PageCache;
use super::reader::TreeReader;
use crate::repository::{FoundVolume, Repository};
use crate::volume_reader::{ReadCache, VolumeReader};

/// A file tree of a snapshot: its entries, and the content of its files. Several threads may use it
/// at the same time.
pub struct TreeVolume {
    pub(super) reader: TreeReader,
    pub(super) pages: PageCache,
    content: VolumeReader,
    tree: Tree,
    series: SeriesId,
}

impl TreeVolume {
    /// Opens a volume with caches of at most `memory_bytes` bytes; 0 for the context's limit.
    ///
    /// Fails with `Invalid` if the volume is a disk.
    pub fn open(repository: &Repository, of: FoundVolume<'_>, memory_bytes: u64) -> Result<Self> {
        Self::with_content(repository, of, |of| VolumeReader::open(repository, of, memory_bytes))
    }

    /// Opens a volume whose content is cached in `cache`, which must belong to the repository.
    ///
    /// Fails with `Invalid` if the volume is a disk.
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

    /// Returns the series that the tree belongs to.
    pub fn series(&self) -> SeriesId {
        self.series
    }

    /// Returns the reader of the volume's bytes, which contain the content of all files.
    pub fn content(&self) -> &VolumeReader {
        &self.content
    }

    /// Returns the root directory, the names of users and groups, and the counts of entries.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Returns the entry at a path below the root; `/` and the empty path are the root.
    ///
    /// Fails with `NotFound` if there is none, and with `Invalid` if a component before the last is
    /// not a directory.
    pub fn find(&self, path: &[u8]) -> Result<Entry> {
        self.reader.find(&self.tree.root, path)
    }

    /// Returns the entry at a path below the root; `None` if there is none, or if a component
    /// before the last is not a directory.
    pub fn look_up(&self, path: &[u8]) -> Result<Option<Entry>> {
        self.reader.look_up(&self.tree.root, path)
    }

    /// Returns a cursor over the entries of a directory in byte order of their names, for
    /// [`next`](Self::next).
    pub fn entries(&self, directory: &Entry) -> Cursor {
        self.reader.entries(directory)
    }

    /// Returns the next entry of a directory; `None` at its end.
    pub fn next(&self, entries: &mut Cursor) -> Result<Option<Entry>> {
        entries.next(&self.reader)
    }

    /// Reads a file's content from `offset` on. Returns the number of bytes read, which is less
    /// than the length of `into` only at the end of the file. Verifies every byte.
    ///
    /// Fails with `Unavailable` in a range that the backup could not read, and with `Invalid` if
    /// the entry is not a regular file.
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

    /// Fails with `Corrupt` if an extent of a file goes beyond the end of the volume.
    pub fn check_extents(&self, file: &Entry) -> Result<()> {
        let end = |extent: &Extent| extent.address.map_or(0, |address| address + extent.bytes);
        if file.extents.iter().any(|extent| end(extent) > self.content.bytes()) {
            return Err(Error::corrupt("an extent of a file goes beyond the end of its volume"));
        }
        Ok(())
    }

    /// Skips the next entries of two directories as long as they are in the same pages. Does not
    /// read the skipped pages.
    pub fn skip_same(
        &self,
        entries: &mut Cursor,
        other: &Self,
        other_entries: &mut Cursor,
    ) -> Result<()> {
        entries.skip_same(&self.reader, other_entries, &other.reader)
    }

    /// Returns the number of bytes from `offset` on that are known to be equal in two files without
    /// reading them: they are in equal segments of one series, or a hole in both.
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
            return Err(Error::corrupt("an extent of a file goes beyond the end of its volume"));
        }
        Ok(())
    }
}

/// Returns the address of the byte at `offset` of a file, which is `None` in a hole, and the number
/// of bytes up to the end of its extent. Returns `None` at the end of the file.
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
