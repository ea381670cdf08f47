//! Reading files into segments.

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, FileKind, Metadata, State, Timestamp};
use silt_format::{Result, SEGMENT_BYTES};
use silt_tree::{FileSource, kind_of};

use super::known::{is_doubtful, settled};

/// Whether a file changed between two looks at its status.
pub(crate) fn has_changed(before: &Metadata, after: &Metadata) -> bool {
    (before.size, before.modified, before.changed) != (after.size, after.modified, after.changed)
}

/// Takes over what a later look at the status of an open file says.
pub(crate) fn update(metadata: &mut Metadata, now: &Metadata) {
    (metadata.size, metadata.modified, metadata.changed) = (now.size, now.modified, now.changed);
    (metadata.mode, metadata.uid, metadata.gid) = (now.mode, now.uid, now.gid);
    metadata.links = now.links;
}

/// A large file whose content is being read, part by part.
pub(crate) struct Reading {
    pub(crate) file: Box<dyn FileSource>,
    pub(crate) name: Vec<u8>,
    pub(crate) metadata: Metadata,
    /// Up to where it was read.
    pub(crate) offset: u64,
    /// Up to where there is data before the next hole; behind `offset` while in data.
    data_end: u64,
    /// Whether it was read from its start again because it changed.
    pub(crate) again: bool,
    /// Where the parent has the content.
    before: Before,
    /// Ranges that could not be read.
    pub(crate) failed: bool,
    /// Known once its beginning was read.
    kind: Option<FileKind>,
    /// When reading began: what changed too shortly before may change again unseen.
    pub(crate) opened: Timestamp,
    /// The change time with which flags and extended attributes were read.
    attributes_changed: Timestamp,
}

/// What comes next of a large file.
pub(crate) enum Next {
    Hole(u64),
    /// This many bytes were appended to the buffer.
    Data(usize),
    End,
}

impl Reading {
    pub(crate) fn new(
        file: Box<dyn FileSource>,
        name: Vec<u8>,
        metadata: Metadata,
        before: Before,
        opened: Timestamp,
    ) -> Self {
        let (offset, data_end, again, failed, kind) = (0, 0, false, false, None);
        let attributes_changed = metadata.changed;
        Self {
            file,
            name,
            metadata,
            offset,
            data_end,
            again,
            before,
            failed,
            kind,
            opened,
            attributes_changed,
        }
    }

    /// The state of a file that was read whole. If it changed after its attributes were read, they
    /// may be older than its times, and are read again next time.
    pub(crate) fn settled(&self) -> State {
        if self.metadata.changed != self.attributes_changed {
            return State::Fresh;
        }
        settled(&self.metadata, self.opened)
    }

    /// Whether its times may not show a change while it was read.
    pub(crate) fn is_doubtful(&self) -> bool {
        is_doubtful(&self.metadata, self.opened)
    }

    /// The kind of the file by what was read of it; by its name if that is nothing.
    pub(crate) fn kind(&self) -> FileKind {
        self.kind.unwrap_or_else(|| kind_of(&[], &self.name))
    }

    /// Begins anew with the metadata as it is now.
    pub(crate) fn restart(&mut self, now: &Metadata, opened: Timestamp) {
        update(&mut self.metadata, now);
        self.opened = opened;
        (self.offset, self.data_end, self.again, self.kind) = (0, 0, true, None);
    }

    /// Appends up to `room` bytes of data to `buffer`, or passes over a hole.
    pub(crate) fn next(&mut self, buffer: &mut Vec<u8>, room: usize) -> Result<Next> {
        let size = self.metadata.size;
        if self.offset >= size {
            return Ok(Next::End);
        }
        if self.offset >= self.data_end {
            let data = self.file.next_data(self.offset, size)?;
            let start = data.as_ref().map_or(size, |data| data.start);
            self.data_end = data.map_or(size, |data| data.end);
            if start > self.offset {
                let hole = start - self.offset;
                self.offset = start;
                return Ok(Next::Hole(hole));
            }
        }
        let wanted = to_u64(room).min(self.data_end - self.offset);
        let at = buffer.len();
        buffer.resize(at + to_usize(wanted), 0);
        let read = self.file.read_at(self.offset, &mut buffer[at..])?;
        buffer.truncate(at + read);
        if read == 0 {
            // It became shorter while it was read.
            self.metadata.size = self.offset;
            return Ok(Next::End);
        }
        if self.offset == 0 {
            self.kind = Some(kind_of(&buffer[at..], &self.name));
        }
        self.offset += to_u64(read);
        Ok(Next::Data(read))
    }

    /// Gives back the last bytes that were read, so that they are read again.
    pub(crate) fn unread(&mut self, bytes: usize) {
        self.offset -= to_u64(bytes);
    }

    /// Passes over the rest, which can't be read: it becomes a hole.
    pub(crate) fn give_up(&mut self) -> u64 {
        let rest = self.metadata.size - self.offset;
        self.offset = self.metadata.size;
        self.failed = true;
        rest
    }

    /// Segments of the parent that may hold what comes next, at most this many.
    pub(crate) fn candidates(&self, most: usize) -> impl Iterator<Item = u64> {
        self.before.near(self.offset).take(most)
    }

    /// Where the parent has this many bytes of data one after the other, if they are all that the
    /// file had.
    pub(crate) fn held(&self, bytes: usize) -> Option<u64> {
        self.before.whole.filter(|whole| whole.1 == to_u64(bytes)).map(|whole| whole.0)
    }
}

/// Where the parent has the content of a file.
#[derive(Default)]
pub(crate) struct Before {
    /// Offsets in the file in ascending order, and the segment of the parent from there on.
    segments: Vec<(u64, u64)>,
    /// Address and length of the data, if it is in one piece.
    whole: Option<(u64, u64)>,
}

impl Before {
    /// That of an entry of the parent.
    pub(crate) fn of(entry: &Entry) -> Self {
        let segment_bytes = to_u64(SEGMENT_BYTES);
        let (mut before, mut offset, mut is_whole) = (Self::default(), 0, true);
        for extent in &entry.extents {
            if let Some(address) = extent.address {
                let end = address + extent.bytes;
                for segment in address / segment_bytes..end.div_ceil(segment_bytes) {
                    let skipped = (segment * segment_bytes).saturating_sub(address);
                    before.segments.push((offset + skipped, segment));
                }
                let (first, bytes) = before.whole.unwrap_or((address, 0));
                is_whole &= first + bytes == address;
                before.whole = Some((first, bytes + extent.bytes));
            }
            offset += extent.bytes;
        }
        before.whole = before.whole.filter(|_| is_whole);
        before
    }

    /// The segments from shortly before an offset on.
    fn near(&self, offset: u64) -> impl Iterator<Item = u64> {
        let behind = self.segments.partition_point(|(start, _)| *start <= offset);
        self.segments[behind.saturating_sub(2)..].iter().map(|(_, segment)| *segment)
    }
}
