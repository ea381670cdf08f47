//! Reading files into segments.

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Entry, FileKind, Metadata, State, Timestamp};
use silt_format::{Result, SEGMENT_BYTES};
use silt_tree::{FileSource, kind_of};

use super::known::{is_doubtful, settled};

/// Returns whether a file was changed between two reads of its status.
pub(crate) fn has_changed(before: &Metadata, after: &Metadata) -> bool {
    (before.size, before.modified, before.changed) != (after.size, after.modified, after.changed)
}

/// Updates metadata with a later status of the open file.
pub(crate) fn update(metadata: &mut Metadata, now: &Metadata) {
    (metadata.size, metadata.modified, metadata.changed) = (now.size, now.modified, now.changed);
    (metadata.mode, metadata.uid, metadata.gid) = (now.mode, now.uid, now.gid);
    metadata.links = now.links;
}

/// A file that is being read piece by piece.
pub(crate) struct Reading {
    pub(crate) file: Box<dyn FileSource>,
    pub(crate) name: Vec<u8>,
    pub(crate) metadata: Metadata,
    /// Offset up to which it was read.
    pub(crate) offset: u64,
    /// End of the current range of data. Not greater than `offset` before the next range is known.
    data_end: u64,
    /// Whether this is the second attempt, because the file changed during the first.
    pub(crate) again: bool,
    /// The content's place in the parent.
    before: Before,
    /// Whether a part could not be read.
    pub(crate) failed: bool,
    /// `None` until its beginning was read.
    kind: Option<FileKind>,
    /// When it was opened. If it changed too shortly before, a further change may not be seen.
    pub(crate) opened: Timestamp,
    /// The change time with which flags and extended attributes were read.
    attributes_changed: Timestamp,
}

/// The next piece of a file.
pub(crate) enum Next {
    /// A hole of this size in bytes.
    Hole(u64),
    /// Data of this size in bytes, which was appended to the buffer.
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

    /// Returns whether a change during the reading may not show in the file's times.
    pub(crate) fn is_doubtful(&self) -> bool {
        is_doubtful(&self.metadata, self.opened)
    }

    /// Returns the kind of the file by its first bytes; by its name if nothing was read yet.
    pub(crate) fn kind(&self) -> FileKind {
        self.kind.unwrap_or_else(|| kind_of(&[], &self.name))
    }

    /// Starts again from the beginning of the file, with its current metadata.
    pub(crate) fn restart(&mut self, now: &Metadata, opened: Timestamp) {
        update(&mut self.metadata, now);
        self.opened = opened;
        (self.offset, self.data_end, self.again, self.kind) = (0, 0, true, None);
    }

    /// Appends up to `room` bytes of data to `buffer`, or skips a hole.
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

    /// Goes back by this number of bytes, so that they are read again.
    pub(crate) fn unread(&mut self, bytes: usize) {
        self.offset -= to_u64(bytes);
    }

    /// Skips the rest after a read error. Returns its size in bytes; the caller adds a hole.
    pub(crate) fn give_up(&mut self) -> u64 {
        let rest = self.metadata.size - self.offset;
        self.offset = self.metadata.size;
        self.failed = true;
        rest
    }

    /// Returns up to `most` of the parent's segments that probably hold the next content.
    pub(crate) fn candidates(&self, most: usize) -> impl Iterator<Item = u64> {
        self.before.near(self.offset).take(most)
    }

    /// Returns the address of the file's data in the parent, if that is one piece of this size.
    pub(crate) fn held(&self, bytes: usize) -> Option<u64> {
        self.before.whole.filter(|whole| whole.1 == to_u64(bytes)).map(|whole| whole.0)
    }
}

/// The place of a file's content in the parent.
#[derive(Default)]
pub(crate) struct Before {
    /// Offsets in the file in ascending order, each with the segment that holds the content there.
    segments: Vec<(u64, u64)>,
    /// Address and length of the data, if it is one piece.
    whole: Option<(u64, u64)>,
}

impl Before {
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

    /// Returns the segments from the one before `offset` on.
    fn near(&self, offset: u64) -> impl Iterator<Item = u64> {
        let behind = self.segments.partition_point(|(start, _)| *start <= offset);
        self.segments[behind.saturating_sub(2)..].iter().map(|(_, segment)| *segment)
    }
}
