//! Blocks: the unit of compression and sealing. A frame of chunks is a block, and so is a recipe.

use std::io;
use std::sync::{Mutex, PoisonError};

use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{self, ResetDirective};

use crate::codec::{Decoder, unsupported};
use crate::number::to_u32;
use crate::seal::{Sealer, TAG_BYTES};
use crate::{Error, Result};

/// Maximum size of a block before compression, in bytes.
pub const BLOCK_RAW_BYTES_MAX: usize = 64 << 20;
/// Bytes that a block adds to its payload: codec, raw length and tag.
pub const BLOCK_OVERHEAD_BYTES: usize = PREFIX_BYTES + TAG_BYTES;

const PREFIX_BYTES: usize = 5;
/// Size of the sample of a long block that is compressed on trial if it looks random, and the
/// number of places that it comes from.
const SAMPLE_BYTES: usize = 8 << 10;
const SAMPLE_PIECES: usize = 8;
/// A block is sampled if it is at least this many times as long as the sample.
const SAMPLE_SHARE: usize = 8;
/// The trial must save at least one byte in this many.
const SAMPLE_SAVING: usize = 50;
/// Maximum expansion factor of zstd: a block of 4 bytes repeats a byte 128 Ki times (RFC 8878,
/// 3.1.1.2).
const ZSTD_RATIO_MAX: usize = 32 << 10;
const CODEC_STORED: u8 = 0;
const CODEC_ZSTD: u8 = 1;

/// Idle contexts, for reuse. Creating one runs `cpuid`, which traps to the host in a virtual
/// machine and takes longer than compressing most blocks.
struct Idle<Context>(Mutex<Vec<Context>>);

impl<Context> Idle<Context> {
    /// Maximum number of idle contexts.
    const MOST: usize = 8;

    fn take(&self, is_right: impl Fn(&Context) -> bool) -> Option<Context> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let place = idle.iter().position(is_right)?;
        Some(idle.swap_remove(place))
    }

    fn give_back(&self, context: Option<Context>) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < Self::MOST {
            idle.extend(context);
        }
    }
}

/// Contexts with their levels: zstd does not change the level of a context whose last block did not
/// get smaller.
static COMPRESSORS: Idle<(i32, Compressor<'static>)> = Idle(Mutex::new(Vec::new()));
static DECOMPRESSORS: Idle<Decompressor<'static>> = Idle(Mutex::new(Vec::new()));

/// Compresses and seals blocks; reuses its context and buffers.
pub struct BlockWriter {
    /// The context with its level; present until the writer is dropped.
    compressor: Option<(i32, Compressor<'static>)>,
    sample: Vec<u8>,
    trial: Vec<u8>,
}

impl Drop for BlockWriter {
    fn drop(&mut self) {
        COMPRESSORS.give_back(self.compressor.take());
    }
}

impl BlockWriter {
    /// Returns a writer that compresses at zstd's `level`.
    pub fn new(level: i32) -> Result<Self> {
        let compressor = match COMPRESSORS.take(|(of, _)| *of == level) {
            Some(idle) => idle,
            None => Compressor::new(level)
                .map(|new| (level, new))
                .map_err(|source| Error::io(format!("set up zstd level {level}"), source))?,
        };
        Ok(Self { compressor: Some(compressor), sample: Vec::new(), trial: Vec::new() })
    }

    /// Compresses further blocks at zstd's `level`.
    pub fn set_level(&mut self, level: i32) -> Result<()> {
        let Some((of, compressor)) = self.compressor.as_mut().filter(|(of, _)| *of != level) else {
            return Ok(());
        };
        // A context whose last block did not get smaller is still at that block.
        let reset = compressor.context_mut().reset(ResetDirective::SessionOnly);
        reset
            .map_err(|code| io::Error::other(zstd_safe::get_error_name(code)))
            .and_then(|_| compressor.set_compression_level(level))
            .map_err(|source| Error::io(format!("set up zstd level {level}"), source))?;
        *of = level;
        Ok(())
    }

    /// Appends `raw`, compressed if that saves anything and sealed at `position`, to `out`; returns
    /// the number of bytes appended.
    pub fn append(
        &mut self,
        sealer: &Sealer,
        position: u64,
        raw: &[u8],
        out: &mut Vec<u8>,
    ) -> usize {
        let from = out.len();
        self.pack(raw, out);
        sealer.seal(position, out, from);
        out.len() - from
    }

    /// Appends `raw`, compressed if that saves anything and not sealed, to `out`.
    pub fn pack(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        assert!(raw.len() <= BLOCK_RAW_BYTES_MAX, "a block of {} bytes", raw.len());
        if self.saves_nothing(raw) {
            return append_stored(raw, out);
        }
        let from = out.len();
        out.reserve(raw.len() + BLOCK_OVERHEAD_BYTES);
        out.push(CODEC_ZSTD);
        out.extend_from_slice(&to_u32(raw.len()).to_le_bytes());
        // Room for one byte less than the raw bytes: zstd fails when it would save nothing.
        let room = raw.len().saturating_sub(1);
        let payload = out.len();
        out.resize(payload + room, 0);
        match compress(&mut self.compressor, raw, &mut out[payload..]) {
            Some(length) if !raw.is_empty() => out.truncate(payload + length),
            _ => {
                out.truncate(from);
                append_stored(raw, out);
            }
        }
    }

    /// Appends a block that is compressed already, sealed at `position`, to `out`; returns the
    /// number of bytes appended.
    pub fn append_packed(
        sealer: &Sealer,
        position: u64,
        packed: &[u8],
        out: &mut Vec<u8>,
    ) -> usize {
        let from = out.len();
        out.reserve(packed.len() + TAG_BYTES);
        out.extend_from_slice(packed);
        sealer.seal(position, out, from);
        out.len() - from
    }

    /// Returns whether a long block is incompressible, judged by a sample.
    ///
    /// Counts the sample's bytes first, which is cheap, and compresses the sample only if it looks
    /// random.
    fn saves_nothing(&mut self, raw: &[u8]) -> bool {
        if raw.len() < SAMPLE_BYTES * SAMPLE_SHARE {
            return false;
        }
        let step = raw.len() / SAMPLE_PIECES;
        let pieces = raw.chunks_exact(step).map(|part| &part[..SAMPLE_BYTES / SAMPLE_PIECES]);
        self.sample.clear();
        pieces.take(SAMPLE_PIECES).for_each(|piece| self.sample.extend_from_slice(piece));
        if !looks_random(&self.sample) {
            return false;
        }
        self.trial.resize(SAMPLE_BYTES - SAMPLE_BYTES / SAMPLE_SAVING, 0);
        compress(&mut self.compressor, &self.sample, &mut self.trial).is_none()
    }
}

/// Compresses `raw` into `out`; returns the compressed size, or `None` if it does not fit.
fn compress(
    with: &mut Option<(i32, Compressor<'static>)>,
    raw: &[u8],
    out: &mut [u8],
) -> Option<usize> {
    with.as_mut().and_then(|(_, compressor)| compressor.compress_to_buffer(raw, out).ok())
}

/// Appends `raw` uncompressed.
fn append_stored(raw: &[u8], out: &mut Vec<u8>) {
    out.reserve(raw.len() + BLOCK_OVERHEAD_BYTES);
    out.push(CODEC_STORED);
    out.extend_from_slice(&to_u32(raw.len()).to_le_bytes());
    out.extend_from_slice(raw);
}

/// Returns whether every byte occurs about as often as in random data. Uses the probability that
/// two bytes of the sample are equal: 1/256 for random data, much more for structured data.
fn looks_random(sample: &[u8]) -> bool {
    let mut counts = [0_u64; 256];
    sample.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let equal: u64 = counts.iter().map(|count| count * count).sum();
    let length = sample.len() as u64;
    // Random bytes come to length * length / 256 + length; half as much again still looks random.
    2 * equal < 3 * (length * length / 256 + length)
}

/// Opens and decompresses blocks; reuses its context.
#[derive(Default)]
pub struct BlockReader {
    /// Created with the first compressed block.
    decompressor: Option<Decompressor<'static>>,
}

impl Drop for BlockReader {
    fn drop(&mut self) {
        DECOMPRESSORS.give_back(self.decompressor.take());
    }
}

impl BlockReader {
    /// Decompresses `payload` into `raw`, which has enough room.
    fn decompress(&mut self, payload: &[u8], raw: &mut Vec<u8>) -> io::Result<usize> {
        let decompressor = match &mut self.decompressor {
            Some(decompressor) => decompressor,
            none => {
                let idle = DECOMPRESSORS.take(|_| true);
                none.insert(idle.map_or_else(Decompressor::new, Ok)?)
            }
        };
        decompressor.decompress_to_buffer(payload, raw)
    }

    /// Replaces `raw` with the decoded bytes of the block in `sealed`; overwrites `sealed`.
    ///
    /// Fails with `Corrupt` unless it was sealed at `position` of the sealer's object.
    pub fn read(
        &mut self,
        sealer: &Sealer,
        position: u64,
        sealed: &mut [u8],
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let plain = sealer.open(position, sealed)?;
        self.decode(plain, raw)
    }

    /// The size that an opened block claims to have when it is decoded, in bytes.
    pub fn claimed_bytes(plain: &[u8]) -> Result<usize> {
        let mut from = Decoder::new(plain, "block");
        from.u8()?;
        Ok(from.u32()? as usize)
    }

    /// Decompresses an opened block into `raw`, allocating at most [`BLOCK_RAW_BYTES_MAX`].
    pub fn decode(&mut self, plain: &[u8], raw: &mut Vec<u8>) -> Result<()> {
        let mut from = Decoder::new(plain, "block");
        let (codec, length) = (from.u8()?, from.u32()? as usize);
        if length > BLOCK_RAW_BYTES_MAX {
            return Err(from.corrupt(format!("it claims {length} bytes")));
        }
        let payload = from.take(from.rest_len())?;
        raw.clear();
        match codec {
            CODEC_STORED => raw.extend_from_slice(payload),
            CODEC_ZSTD if length > payload.len().saturating_mul(ZSTD_RATIO_MAX) => {
                return Err(from.corrupt(format!("it claims {length} bytes")));
            }
            CODEC_ZSTD => {
                if raw.capacity() < length {
                    // Growing would copy what is not needed, and take more than that.
                    *raw = Vec::with_capacity(length);
                }
                self.decompress(payload, raw)
                    .map_err(|source| Error::corrupt("block: zstd fails").with_source(source))?;
            }
            other => return Err(unsupported("block", &format!("codec {other}"))),
        }
        if raw.len() != length {
            return Err(Error::corrupt("block: its length does not match its header"));
        }
        Ok(())
    }
}
