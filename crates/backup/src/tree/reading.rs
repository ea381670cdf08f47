//! Reading files into segments.

use silt_format::number::to_u64;
use silt_format::tree::{Metadata, Timestamp};
use silt_format::{Result, SEGMENT_BYTES};
use silt_tree::FileSource;

use super::known::is_doubtful;

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
    /// Segments of the parent that hold the file, in its order.
    pub(crate) before: Vec<u64>,
    /// Ranges that could not be read.
    pub(crate) failed: bool,
    pub(crate) way: super::cuts::Way,
    /// When reading began: what changed too shortly before may change again unseen.
    pub(crate) opened: Timestamp,
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
        before: Vec<u64>,
        (way, opened): (super::cuts::Way, Timestamp),
    ) -> Self {
        let (offset, data_end, again, failed) = (0, 0, false, false);
        Self { file, name, metadata, offset, data_end, again, before, failed, way, opened }
    }

    /// Whether its times may not show a change while it was read.
    pub(crate) fn is_doubtful(&self) -> bool {
        is_doubtful(&self.metadata, self.opened)
    }

    /// Begins anew with the metadata as it is now.
    pub(crate) fn restart(&mut self, now: &Metadata, opened: Timestamp) {
        update(&mut self.metadata, now);
        self.opened = opened;
        (self.offset, self.data_end, self.again) = (0, 0, true);
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
        buffer.resize(at + silt_format::number::to_usize(wanted), 0);
        let read = self.file.read_at(self.offset, &mut buffer[at..])?;
        buffer.truncate(at + read);
        if read == 0 {
            // It became shorter while it was read.
            self.metadata.size = self.offset;
            return Ok(Next::End);
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

    /// Where the parent may hold what comes next: about the same part of the file.
    pub(crate) fn candidates(&self, most: usize) -> impl Iterator<Item = u64> {
        let about = silt_format::number::to_usize(self.offset) / SEGMENT_BYTES;
        let first = about.saturating_sub(1).min(self.before.len());
        self.before[first..].iter().take(most).copied()
    }
}
