//! Reads chunks that become shared for a second time: chunks that are adjacent in one volume with
//! one read.

use std::ops::Range;

use silt_chunking::Fingerprinter;
use silt_format::number::to_u64;
use silt_format::{Fingerprint, Record};

use super::place::{NewChunk, fingerprint_of};
use super::volume::Volume;

/// Maximum number of bytes read at once.
const BATCH_BYTES: u64 = 1 << 20;

/// Chosen chunks that lie in one volume, one behind the other.
#[derive(Default)]
pub(super) struct Batch {
    /// Offset of the first chunk, and total size of all.
    place: Option<(NewChunk, u64)>,
    chunks: Vec<(Range<usize>, Fingerprint)>,
    data: Vec<u8>,
    ranges: Vec<Range<usize>>,
    fingerprints: Vec<Fingerprint>,
}

impl Batch {
    /// Takes a chunk, unless it lies elsewhere or the batch is full.
    pub(super) fn takes(&mut self, record: &Record) -> bool {
        let next = NewChunk::decode(&record.fingerprint.0);
        let (first, bytes) = *self.place.get_or_insert((next, 0));
        let follows = (next.member, next.volume) == (first.member, first.volume)
            && next.offset == first.offset + bytes
            && (bytes == 0 || bytes + u64::from(next.chunk_bytes) <= BATCH_BYTES);
        if follows {
            let start = self.chunks.last().map_or(0, |(range, _)| range.end);
            let range = start..start + next.chunk_bytes as usize;
            self.place = Some((first, to_u64(range.end)));
            self.chunks.push((range, fingerprint_of(record)));
        }
        follows
    }

    /// Where its first chunk is.
    pub(super) fn place(&self) -> Option<NewChunk> {
        self.place.map(|(place, _)| place)
    }

    /// Forgets its chunks; the buffers stay.
    pub(super) fn clear(&mut self) {
        self.place = None;
        self.chunks.clear();
    }

    /// Reads the chunks from their volume.
    pub(super) fn read(&mut self, volume: &Volume<'_>, fingerprinter: &Fingerprinter) {
        let (offset, bytes) = self.place.map_or((0, 0), |(place, _)| {
            (place.offset, self.chunks.last().map_or(0, |(range, _)| range.end))
        });
        self.data.resize(bytes, 0);
        let read = volume.read_again(offset, &mut self.data).unwrap_or(0);
        self.chunks.retain(|(range, _)| range.end <= read);
        self.ranges.clear();
        self.ranges.extend(self.chunks.iter().map(|(range, _)| range.clone()));
        fingerprinter.fingerprint_many(&self.data, &self.ranges, &mut self.fingerprints);
    }

    /// The chunks that were read and are unchanged. Those that changed or cannot be read are not
    /// shared.
    pub(super) fn unchanged(&self) -> impl Iterator<Item = (&[u8], Fingerprint)> {
        let found = self.chunks.iter().zip(&self.fingerprints);
        found
            .filter(|((_, wanted), found)| found == &wanted)
            .map(|((range, wanted), _)| (&self.data[range.clone()], *wanted))
    }
}
