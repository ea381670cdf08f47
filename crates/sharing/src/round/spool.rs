//! A volume's changed segments in a temporary file, so that the volume can be released.

use std::sync::{Mutex, PoisonError};

use silt_format::number::{to_u64, to_usize};
use silt_format::{ByteSpan, Error, ErrorKind, Result, SEGMENT_BYTES};
use silt_repository::temporary::{TemporaryFile, TemporaryReader};
use silt_source::{Extent, ExtentKind, SourceInfo, VolumeSource};

/// Where a segment is.
#[derive(Clone, Copy)]
struct SpooledSegment {
    index: u64,
    start: u64,
    bytes: usize,
}

/// Segments on their way to the spool.
pub(super) struct SpoolWriter {
    file: TemporaryFile,
    places: Vec<SpooledSegment>,
    buffer: Vec<u8>,
}

impl SpoolWriter {
    pub(super) fn new(file: TemporaryFile) -> Self {
        Self { file, places: Vec::new(), buffer: Vec::new() }
    }

    /// Adds a segment; their numbers must rise.
    pub(super) fn push(&mut self, index: u64, data: &[u8]) -> Result<()> {
        self.buffer.clear();
        self.buffer.extend_from_slice(data);
        let start = self.file.append(&mut self.buffer)?;
        self.places.push(SpooledSegment { index, start, bytes: data.len() });
        Ok(())
    }

    /// Bytes written.
    pub(super) fn bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// The volume as a survey saw it. What is not in the spool is zeros, except for segments that
    /// are as in the parent: those must not be read.
    pub(super) fn finish(self, info: SourceInfo, unreadable: Vec<ByteSpan>) -> SpooledVolume {
        let reader = self.file.reader();
        let last = Mutex::new((u64::MAX, Vec::new()));
        SpooledVolume { info, places: self.places, unreadable, reader, last }
    }
}

/// A volume whose changed data is in a spool.
pub(super) struct SpooledVolume {
    info: SourceInfo,
    places: Vec<SpooledSegment>,
    unreadable: Vec<ByteSpan>,
    reader: Option<TemporaryReader>,
    /// The segment of which a part was read last.
    last: Mutex<(u64, Vec<u8>)>,
}

impl SpooledVolume {
    fn place(&self, index: u64) -> Option<SpooledSegment> {
        let at = self.places.binary_search_by_key(&index, |place| place.index).ok()?;
        Some(self.places[at])
    }

    fn is_unreadable(&self, start: u64, end: u64) -> bool {
        self.unreadable.iter().any(|span| span.offset < end && start < span.offset + span.length)
    }

    /// Fills `buf` from `start` of segment `index` on.
    fn read_segment(&self, index: u64, start: usize, buf: &mut [u8]) -> Result<()> {
        let (Some(place), Some(reader)) = (self.place(index), &self.reader) else {
            buf.fill(0);
            return Ok(());
        };
        if buf.len() == place.bytes {
            let mut sealed = Vec::new();
            buf.copy_from_slice(reader.read(place.start, place.bytes, &mut sealed)?);
            return Ok(());
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.0 != index {
            last.0 = u64::MAX;
            reader.read(place.start, place.bytes, &mut last.1)?;
            last.0 = index;
        }
        let data = last.1.get(start..start + buf.len());
        let data =
            data.ok_or_else(|| Error::invalid("a read past the end of a segment of the spool"))?;
        buf.copy_from_slice(data);
        Ok(())
    }
}

impl VolumeSource for SpooledVolume {
    fn info(&self) -> SourceInfo {
        self.info.clone()
    }

    fn is_sequential(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let segment = to_u64(SEGMENT_BYTES);
        let size = self.info.size.unwrap_or(0);
        let index = offset / segment;
        let at = self.places.partition_point(|place| place.index < index);
        let next = self.places.get(at).map(|place| place.index * segment);
        let next_unreadable =
            self.unreadable.iter().filter(|span| span.offset + span.length > offset);
        let next_unreadable = next_unreadable.map(|span| span.offset / segment * segment).min();
        let data = [next, next_unreadable].into_iter().flatten().min().unwrap_or(size);
        if data <= offset {
            let end = ((index + 1) * segment).min(size);
            return Ok(Extent { offset, length: end - offset, kind: ExtentKind::Data });
        }
        Ok(Extent { offset, length: data.min(size) - offset, kind: ExtentKind::Zero })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let size = self.info.size.unwrap_or(0);
        let wanted = to_usize(size.saturating_sub(offset)).min(buf.len());
        let (mut done, segment) = (0, to_u64(SEGMENT_BYTES));
        if self.is_unreadable(offset, offset + to_u64(wanted)) {
            let message = format!("{}: it could not be read at {offset}", self.info.description);
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        while done < wanted {
            let at = offset + to_u64(done);
            let start = to_usize(at % segment);
            let length = (SEGMENT_BYTES - start).min(wanted - done);
            self.read_segment(at / segment, start, &mut buf[done..done + length])?;
            done += length;
        }
        Ok(done)
    }
}
