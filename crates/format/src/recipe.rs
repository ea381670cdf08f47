//! Recipes: the chunks of a segment and their locations.

use crate::codec::{Decoder, Encoder, unsupported};
use crate::number::{to_u16, to_u32};
use crate::{Chunking, Error, Fingerprint, Reference, Result, SEGMENT_BYTES};

const LAYOUT: u8 = 1;
const FIXED: u8 = 1;
const FAST_CDC: u8 = 2;
const EXTENT_ZERO: u8 = 0;
const EXTENT_STORED: u8 = 1;
/// Maximum number of chunks in a segment: the smallest FastCDC chunk is 256 bytes.
const CHUNKS_MAX: usize = SEGMENT_BYTES / 256;

/// One chunk of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecipeChunk {
    /// Its location, or [`Reference::ZERO`].
    pub reference: Reference,
    /// Its size in bytes.
    pub length: u32,
    /// Its fingerprint; all zeros for a chunk of zeros.
    pub fingerprint: Fingerprint,
}

/// A segment's chunks in order. Their lengths add up to the segment's length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// The chunks.
    pub chunks: Vec<RecipeChunk>,
}

impl Recipe {
    /// Size of the segment in bytes.
    pub fn segment_bytes(&self) -> u32 {
        self.chunks.iter().map(|chunk| chunk.length).sum()
    }

    /// The stored form; chunks of fixed size need no lengths.
    pub fn encode(&self, chunking: Chunking) -> Vec<u8> {
        let mut to = Encoder::default();
        to.u8(LAYOUT);
        encode_chunking(chunking, &mut to);
        to.u32(self.segment_bytes());
        if matches!(chunking, Chunking::FastCdc { .. }) {
            to.u16(to_u16(self.chunks.len()));
            self.chunks.iter().for_each(|chunk| to.u32(chunk.length));
        }
        let extents = self.extents();
        to.u16(to_u16(extents.len()));
        for (count, first) in extents {
            to.u16(count);
            to.u8(if first.is_zero() { EXTENT_ZERO } else { EXTENT_STORED });
            to.u8(0);
            to.u64(if first.is_zero() { 0 } else { first.bits() });
        }
        let stored = self.chunks.iter().filter(|chunk| !chunk.reference.is_zero());
        stored.for_each(|chunk| to.raw(&chunk.fingerprint.0));
        to.bytes
    }

    /// Runs of zero chunks or of chunks in consecutive slots, as count and first reference.
    fn extents(&self) -> Vec<(u16, Reference)> {
        let mut extents: Vec<(u16, Reference)> = Vec::new();
        let mut previous = None;
        for chunk in &self.chunks {
            let joins = match previous {
                Some(Reference::ZERO) => chunk.reference.is_zero(),
                Some(previous) => {
                    !chunk.reference.is_zero() && Reference::precedes(previous, chunk.reference)
                }
                None => false,
            };
            match extents.last_mut() {
                Some(last) if joins => last.0 += 1,
                _ => extents.push((1, chunk.reference)),
            }
            previous = Some(chunk.reference);
        }
        extents
    }

    /// Decodes a recipe and checks its lengths against the chunking and the segment.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "recipe");
        let layout = from.u8()?;
        if layout != LAYOUT {
            return Err(unsupported("recipe", &format!("layout {layout}")));
        }
        let chunking = decode_chunking(&mut from)?;
        let segment_bytes = from.u32()? as usize;
        if segment_bytes > SEGMENT_BYTES {
            return Err(from.corrupt(format!("a segment of {segment_bytes} bytes")));
        }
        let mut recipe = Self { chunks: decode_lengths(&mut from, chunking, segment_bytes)? };
        let extents = from.u16()?;
        let mut at = 0;
        for _ in 0..extents {
            let (count, kind, flags) = (usize::from(from.u16()?), from.u8()?, from.u8()?);
            let first = from.u64()?;
            if kind > EXTENT_STORED || flags != 0 {
                return Err(unsupported("recipe", &format!("extent kind {kind}/{flags}")));
            }
            let chunks = recipe.chunks.get_mut(at..at + count);
            let chunks = chunks.ok_or_else(|| from.corrupt("extents go past its chunks"))?;
            at += count;
            if kind == EXTENT_STORED {
                let last = Reference::from_bits(first).slot().checked_add(to_u16(count.max(1)) - 1);
                if last.is_none() || first == u64::MAX {
                    return Err(from.corrupt("an extent goes past its container"));
                }
                for (i, chunk) in (0_u64..).zip(chunks) {
                    chunk.reference = Reference::from_bits(first + i);
                }
            }
        }
        if at != recipe.chunks.len() {
            return Err(from.corrupt("extents do not cover its chunks"));
        }
        for chunk in recipe.chunks.iter_mut().filter(|chunk| !chunk.reference.is_zero()) {
            chunk.fingerprint = Fingerprint(from.array()?);
        }
        from.end()?;
        Ok(recipe)
    }
}

fn decode_lengths(
    from: &mut Decoder<'_>,
    chunking: Chunking,
    segment_bytes: usize,
) -> Result<Vec<RecipeChunk>> {
    let blank = |length: usize| RecipeChunk {
        reference: Reference::ZERO,
        length: to_u32(length),
        fingerprint: Fingerprint([0; 20]),
    };
    match chunking {
        Chunking::Fixed { bytes } => {
            let bytes = bytes as usize;
            let starts = (0..segment_bytes).step_by(bytes);
            Ok(starts.map(|start| blank(bytes.min(segment_bytes - start))).collect())
        }
        Chunking::FastCdc { .. } => {
            let count = usize::from(from.u16()?);
            if count > CHUNKS_MAX || count * size_of::<u32>() > from.rest_len() {
                return Err(from.corrupt(format!("{count} chunks in a segment")));
            }
            let mut chunks = Vec::with_capacity(count);
            let mut rest = segment_bytes;
            for _ in 0..count {
                let length = from.u32()? as usize;
                if length == 0 || length > rest {
                    return Err(from.corrupt("chunk lengths do not fit the segment"));
                }
                rest -= length;
                chunks.push(blank(length));
            }
            if rest != 0 {
                return Err(from.corrupt("chunk lengths do not fill the segment"));
            }
            Ok(chunks)
        }
    }
}

/// Writes chunking parameters: a tag and three sizes.
pub(crate) fn encode_chunking(chunking: Chunking, to: &mut Encoder) {
    let (tag, sizes) = match chunking {
        Chunking::Fixed { bytes } => (FIXED, [bytes, 0, 0]),
        Chunking::FastCdc { min, avg, max } => (FAST_CDC, [min, avg, max]),
    };
    to.u8(tag);
    sizes.into_iter().for_each(|size| to.u32(size));
}

/// Reads chunking parameters and checks their bounds.
pub(crate) fn decode_chunking(from: &mut Decoder<'_>) -> Result<Chunking> {
    let (tag, first, avg, max) = (from.u8()?, from.u32()?, from.u32()?, from.u32()?);
    let chunking = match tag {
        FIXED => Chunking::Fixed { bytes: first },
        FAST_CDC => Chunking::FastCdc { min: first, avg, max },
        other => return Err(unsupported("chunking", &format!("kind {other}"))),
    };
    chunking.validate().map_err(|error| Error::corrupt("chunking").with_source(error))
}
