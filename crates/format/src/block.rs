//! Blocks: the unit that is compressed and sealed. A frame of chunks is a block, so is a recipe.

use zstd::bulk::{Compressor, Decompressor};

use crate::codec::{Decoder, unsupported};
use crate::number::to_u32;
use crate::seal::{Sealer, TAG_BYTES};
use crate::{Error, Result};

/// Most bytes that a block may have before compression.
pub const BLOCK_RAW_BYTES_MAX: usize = 64 << 20;
/// Bytes that a block has on top of its payload: codec, raw length and tag.
pub const BLOCK_OVERHEAD_BYTES: usize = PREFIX_BYTES + TAG_BYTES;
/// The position of an object's directory; frame numbers and offsets never reach it.
pub const DIRECTORY_POSITION: u64 = u64::MAX;

const PREFIX_BYTES: usize = 5;
const CODEC_STORED: u8 = 0;
const CODEC_ZSTD: u8 = 1;

/// Compresses and seals blocks; reuses its context and buffers.
pub struct BlockWriter {
    compressor: Compressor<'static>,
}

impl BlockWriter {
    /// A writer that compresses at zstd's `level`.
    pub fn new(level: i32) -> Result<Self> {
        let compressor = Compressor::new(level)
            .map_err(|source| Error::io(format!("set up zstd level {level}"), source))?;
        Ok(Self { compressor })
    }

    /// Appends `raw`, compressed if that saves anything and sealed at `position`, to `out`;
    /// the answer is the number of bytes appended.
    pub fn append(
        &mut self,
        sealer: &Sealer,
        position: u64,
        raw: &[u8],
        out: &mut Vec<u8>,
    ) -> usize {
        assert!(raw.len() <= BLOCK_RAW_BYTES_MAX, "a block of {} bytes", raw.len());
        let from = out.len();
        out.reserve(raw.len() + BLOCK_OVERHEAD_BYTES);
        out.push(CODEC_ZSTD);
        out.extend_from_slice(&to_u32(raw.len()).to_le_bytes());
        // Room for one byte less than the raw bytes: zstd fails when it would save nothing.
        let room = raw.len().saturating_sub(1);
        let payload = out.len();
        out.resize(payload + room, 0);
        match self.compressor.compress_to_buffer(raw, &mut out[payload..]) {
            Ok(length) if !raw.is_empty() => out.truncate(payload + length),
            _ => {
                out.truncate(payload);
                out[from] = CODEC_STORED;
                out.extend_from_slice(raw);
            }
        }
        sealer.seal(position, out, from);
        out.len() - from
    }
}

/// Opens and decompresses blocks; reuses its context.
pub struct BlockReader {
    decompressor: Decompressor<'static>,
}

impl BlockReader {
    /// A reader.
    pub fn new() -> Result<Self> {
        let decompressor =
            Decompressor::new().map_err(|source| Error::io("set up zstd", source))?;
        Ok(Self { decompressor })
    }

    /// Replaces `raw` by the bytes of the block that `sealed` holds; `sealed` is overwritten.
    ///
    /// Fails as `Corrupt` unless it was sealed at `position` of the sealer's object.
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
            CODEC_ZSTD => {
                raw.reserve(length);
                self.decompressor
                    .decompress_to_buffer(payload, raw)
                    .map_err(|source| Error::corrupt("block: zstd fails").with_source(source))?;
            }
            other => return Err(unsupported("block", &format!("codec {other}"))),
        }
        if raw.len() != length {
            return Err(Error::corrupt("block: its length is not what it says"));
        }
        Ok(())
    }
}
