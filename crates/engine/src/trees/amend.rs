//! Comparing bytes with the content of files by fingerprints, to read only the chunks that differ.

use std::ops::Range;

use silt_chunking::is_zero;
use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, RecipeChunk, Result, SEGMENT_BYTES};
use silt_repository::VolumeReader;
use silt_repository::volume_reader::ReadBuffers;

/// Compares and reads the chunks of a volume. For one thread.
pub(super) struct Amender<'a> {
    reader: &'a VolumeReader,
    buffers: ReadBuffers,
}

/// A chunk that differs, or a part of one.
struct Differing {
    chunk: RecipeChunk,
    /// Number of bytes of the chunk in front of the part.
    skip: usize,
    /// The place of the part in the bytes that were compared.
    place: Range<usize>,
}

impl Differing {
    fn is_whole(&self) -> bool {
        self.place.len() == self.chunk.length as usize
    }
}

impl<'a> Amender<'a> {
    pub(super) fn new(reader: &'a VolumeReader) -> Self {
        Self { reader, buffers: ReadBuffers::default() }
    }

    /// Returns whether the volume has these bytes at an address. They must be in one segment. Reads
    /// only chunks of which the range contains just a part.
    pub(super) fn has_at(&mut self, address: u64, bytes: &[u8]) -> Result<bool> {
        Ok(self.differing(address, bytes)?.is_empty())
    }

    /// Makes `bytes`, whose content may be out of date, the volume's bytes at an address. They must
    /// be in one segment. Reads only the chunks that differ, and those of which the range contains
    /// just a part. Returns the ranges of `bytes` that differed, in ascending order.
    pub(super) fn amend(&mut self, address: u64, bytes: &mut [u8]) -> Result<Vec<Range<usize>>> {
        let differing = self.differing(address, bytes)?;
        let mut whole = Vec::new();
        for part in &differing {
            if part.chunk.reference.is_zero() {
                bytes[part.place.clone()].fill(0);
            } else if part.is_whole() {
                whole.push((part.chunk, part.place.clone()));
            } else {
                let stored = self.read(&part.chunk)?;
                let end = part.skip + part.place.len();
                bytes[part.place.clone()].copy_from_slice(&stored[part.skip..end]);
            }
        }
        self.reader.read_chunks(&whole, bytes, &mut self.buffers, &mut |_, error| Err(error))?;
        let mut places: Vec<_> = differing.into_iter().map(|part| part.place).collect();
        places.dedup_by(|next, last| {
            let joins = last.end == next.start;
            if joins {
                last.end = next.end;
            }
            joins
        });
        Ok(places)
    }

    fn differing(&mut self, address: u64, bytes: &[u8]) -> Result<Vec<Differing>> {
        let (index, from) = (address / to_u64(SEGMENT_BYTES), address % to_u64(SEGMENT_BYTES));
        let range = to_usize(from)..to_usize(from) + bytes.len();
        let span = self.reader.segment_span(index);
        if to_u64(range.end) > span.length {
            return Err(Error::corrupt("an extent of a file goes beyond the end of its volume"));
        }
        let (mut parts, mut ranges, mut found) = (Vec::new(), Vec::new(), Vec::new());
        for (chunk, stored) in self.reader.chunks_of(index, &range, &mut self.buffers)? {
            let (start, end) = (stored.start.max(range.start), stored.end.min(range.end));
            let place = start - range.start..end - range.start;
            ranges.push(place.clone());
            parts.push(Differing { chunk, skip: start - stored.start, place });
        }
        self.reader.chunks().fingerprinter().fingerprint_many(bytes, &ranges, &mut found);
        let mut differing = Vec::new();
        for (part, found) in parts.into_iter().zip(found) {
            let here = &bytes[part.place.clone()];
            let is_same = if part.chunk.reference.is_zero() {
                is_zero(here)
            } else if part.is_whole() {
                found == part.chunk.fingerprint
            } else {
                self.read(&part.chunk)?[part.skip..].starts_with(here)
            };
            if !is_same {
                differing.push(part);
            }
        }
        Ok(differing)
    }

    fn read(&mut self, chunk: &RecipeChunk) -> Result<Vec<u8>> {
        let mut bytes = vec![0; chunk.length as usize];
        let wanted = [(*chunk, 0..bytes.len())];
        self.reader
            .read_chunks(&wanted, &mut bytes, &mut self.buffers, &mut |_, error| Err(error))?;
        Ok(bytes)
    }
}
