//! Comparing bytes with those of a volume by their fingerprints, to read only the chunks that
//! differ.

use std::ops::Range;

use silt_chunking::is_zero;
use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, RecipeChunk, Result, ResultExt, SEGMENT_BYTES};

use super::{IDLE_MAX, Placed, ReadBuffers, VolumeReader, missing};
use crate::sync::lock;

/// The parts of a range of a volume that differ from the bytes of a buffer.
#[derive(Default)]
struct Differing {
    /// Parts of the buffer that are to be zeros.
    zeros: Vec<Range<usize>>,
    /// Whole chunks, and their places in the buffer.
    whole: Vec<Placed>,
    /// Parts of chunks: the number of bytes of the chunk in front of the part, and its place.
    parts: Vec<(RecipeChunk, usize, Range<usize>)>,
}

impl Differing {
    fn is_empty(&self) -> bool {
        self.zeros.is_empty() && self.whole.is_empty() && self.parts.is_empty()
    }

    /// Returns the places in the buffer in ascending order. Adjacent ones become one.
    fn places(&self) -> Vec<Range<usize>> {
        let whole = self.whole.iter().map(|(_, place)| place);
        let parts = self.parts.iter().map(|(_, _, place)| place);
        let mut places: Vec<_> = self.zeros.iter().chain(whole).chain(parts).cloned().collect();
        places.sort_unstable_by_key(|place| place.start);
        places.dedup_by(|next, last| {
            let joins = last.end == next.start;
            if joins {
                last.end = next.end;
            }
            joins
        });
        places
    }
}

impl VolumeReader {
    /// Returns whether the volume has these bytes from `offset` on. Compares fingerprints. Reads
    /// only chunks of which the range contains just a part.
    ///
    /// Fails with `Corrupt` or `NotFound` if the map or a recipe is damaged or missing, or if the
    /// range goes beyond the end of the volume.
    pub fn has_at(&self, offset: u64, bytes: &[u8]) -> Result<bool> {
        self.with_buffers(offset, bytes.len(), |buffers| {
            Ok(self.differing(offset, bytes, buffers)?.is_empty())
        })
    }

    /// Makes `bytes`, whose content may be out of date, the volume's bytes from `offset` on.
    /// Compares fingerprints, and reads only the chunks that differ, and those of which the range
    /// contains just a part. Returns the ranges of `bytes` that differed, in ascending order.
    ///
    /// Fails as [`read_at`](Self::read_at) does, and with `Corrupt` if the range goes beyond the
    /// end of the volume; `bytes` are then undefined.
    pub fn amend(&self, offset: u64, bytes: &mut [u8]) -> Result<Vec<Range<usize>>> {
        self.with_buffers(offset, bytes.len(), |buffers| {
            let differing = self.differing(offset, bytes, buffers)?;
            self.read_chunks(&differing.whole, bytes, buffers, &mut |_, error| Err(error))?;
            for (chunk, skip, place) in &differing.parts {
                self.read_some(chunk, *skip, &mut bytes[place.clone()], buffers)?;
            }
            differing.zeros.iter().for_each(|place| bytes[place.clone()].fill(0));
            Ok(differing.places())
        })
    }

    /// Calls `act` on a range of the volume with the buffers of a reading thread.
    fn with_buffers<T>(
        &self,
        offset: u64,
        length: usize,
        act: impl FnOnce(&mut ReadBuffers) -> Result<T>,
    ) -> Result<T> {
        let end = offset.checked_add(to_u64(length)).filter(|end| *end <= self.bytes);
        let Some(end) = end else {
            let message = format!("{length} bytes at {offset} go beyond the end of {}", self.name);
            return Err(Error::corrupt(message));
        };
        let mut buffers = lock(&self.idle).pop().unwrap_or_default();
        let result =
            act(&mut buffers).context(|| format!("compare bytes {offset}..{end} of {}", self.name));
        let mut idle = lock(&self.idle);
        idle.push(buffers);
        idle.truncate(IDLE_MAX);
        result
    }

    /// Compares bytes with the volume's from `offset` on.
    fn differing(&self, offset: u64, bytes: &[u8], buffers: &mut ReadBuffers) -> Result<Differing> {
        let mut differing = Differing::default();
        let mut candidates = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + to_u64(done);
            let index = at / to_u64(SEGMENT_BYTES);
            let span = self.segment_span(index);
            let from = to_usize(at - span.offset);
            let here = (bytes.len() - done).min(to_usize(span.length) - from);
            let range = from..from + here;
            let Some(segment) = self.segment(index, buffers)? else {
                if self.is_tree {
                    return Err(missing(index));
                }
                compare_zeros(done..done + here, bytes, &mut differing);
                done += here;
                continue;
            };
            for (chunk, place) in segment.overlapping(&range) {
                let (start, end) = (place.start.max(range.start), place.end.min(range.end));
                let part = start - from + done..end - from + done;
                if chunk.reference.is_zero() {
                    compare_zeros(part, bytes, &mut differing);
                } else if part.len() == place.len() {
                    candidates.push((*chunk, part));
                } else {
                    let mut stored = vec![0; part.len()];
                    self.read_some(chunk, start - place.start, &mut stored, buffers)?;
                    if stored != bytes[part.clone()] {
                        differing.parts.push((*chunk, start - place.start, part));
                    }
                }
            }
            done += here;
        }
        let ReadBuffers { ranges, found, .. } = buffers;
        ranges.clear();
        ranges.extend(candidates.iter().map(|(_, part)| part.clone()));
        self.chunks.fingerprinter().fingerprint_many(bytes, ranges, found);
        let differs = |(chunk, _): &Placed, found| chunk.fingerprint != found;
        let compared = candidates.into_iter().zip(found.iter());
        differing.whole =
            compared.filter(|(it, found)| differs(it, **found)).map(|it| it.0).collect();
        Ok(differing)
    }
}

fn compare_zeros(part: Range<usize>, bytes: &[u8], differing: &mut Differing) {
    if !is_zero(&bytes[part.clone()]) {
        differing.zeros.push(part);
    }
}
