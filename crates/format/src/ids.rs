//! Small identifiers and digests used in other layouts.

use std::fmt;

use crate::{Error, Result};

/// Size of a segment in bytes: the fixed range of a volume that one recipe describes.
pub const SEGMENT_BYTES: usize = 2 << 20;
/// Size of a block in bytes: the unit of zero detection and the default size of fixed chunks.
pub const BLOCK_BYTES: usize = 4096;
/// Number of min-hash signatures of a segment.
pub const SIGNATURES: usize = 8;

/// The name of a chunk: the first 20 bytes of BLAKE3 keyed with the domain's fingerprint key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(pub [u8; 20]);

/// The tag of the session that wrote an object, part of the object's name: 64 random bits. The
/// lowest bit is set if the object rewrites an earlier one under the same number; only such a
/// container may hold links.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectTag(u64);

impl ObjectTag {
    /// The tag in headers of objects whose names have none.
    pub const NONE: Self = Self(0);
    const REWRITTEN: u64 = 1;

    /// Returns the tag of a session that writes objects under new numbers.
    pub const fn first(random: u64) -> Self {
        Self(random & !Self::REWRITTEN)
    }
    /// Returns the tag of a session that rewrites objects under their old numbers.
    pub const fn rewritten(random: u64) -> Self {
        Self(random | Self::REWRITTEN)
    }
    /// Whether the object rewrites an earlier one.
    pub const fn is_rewritten(self) -> bool {
        self.0 & Self::REWRITTEN != 0
    }
    /// The tag from its stored form.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// The stored form.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

impl fmt::Display for ObjectTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0.to_be_bytes())
    }
}

impl fmt::Debug for ObjectTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0.to_be_bytes())
    }
}

/// The content hash of a piece of metadata: a keyed hash of its kind and plain bytes, 16 bytes
/// long.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContentHash(pub [u8; 16]);

/// The kind of metadata that a [`ContentHash`] covers. The numbers are part of the hashed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Hashed {
    /// A recipe.
    Recipe = 1,
    /// A map page.
    Page = 2,
    /// A partition of a summary vector.
    SummaryPartition = 3,
    /// A summary vector: the hashes of its partitions, one behind the other.
    Summary = 4,
    /// A snapshot.
    Snapshot = 5,
    /// A part of a dead list.
    DeadPart = 6,
    /// A dead list: the hashes of its parts, one behind the other.
    DeadList = 7,
    /// A block of a run.
    RunBlock = 8,
    /// The filter of a partition of a run.
    RunFilter = 9,
    /// The directory of a partition of a run.
    RunDirectory = 10,
    /// A page of a directory of a file tree.
    TreePage = 11,
    /// A name that hosts of a repository give each other on a bus. It is in no object.
    BusName = 12,
}

/// A digest of a whole segment. Equal digests of a known kind mean equal bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SegmentDigest {
    /// How it was computed: [`OF_BLOCKS`](Self::OF_BLOCKS), [`OF_CHUNKS`](Self::OF_CHUNKS), or a
    /// kind of a later version.
    pub kind: u8,
    /// The digest.
    pub bytes: [u8; 16],
}

impl SegmentDigest {
    /// Keyed BLAKE3 of the fingerprints of a segment's blocks, where its chunks are blocks.
    pub const OF_BLOCKS: u8 = 1;
    /// Keyed BLAKE3 of the lengths and fingerprints of a segment's chunks.
    pub const OF_CHUNKS: u8 = 2;

    /// Whether this version knows the kind. A digest of an unknown kind proves nothing, even if it
    /// equals another one.
    pub const fn is_known(&self) -> bool {
        matches!(self.kind, Self::OF_BLOCKS | Self::OF_CHUNKS)
    }
}

impl fmt::Display for SegmentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_known() {
            write!(f, "{}:", self.kind)?;
        }
        write_hex(f, &self.bytes)
    }
}

impl fmt::Debug for SegmentDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// One-permutation min-hash of a segment's fingerprints: the least value in each of eight buckets,
/// `u32::MAX` where a bucket is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signatures(pub [u32; SIGNATURES]);

impl Signatures {
    /// The signatures of a segment without chunks.
    pub const EMPTY: Self = Self([u32::MAX; SIGNATURES]);
}

/// How a volume's segments are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunking {
    /// Chunks of this many bytes each (the segment's last one may be shorter).
    Fixed {
        /// Size of a chunk in bytes: a power of two from 4 KiB to 1 MiB.
        bytes: u32,
    },
    /// FastCDC (2020, normalisation level 2) inside each segment.
    FastCdc {
        /// Minimum size of a chunk in bytes.
        min: u32,
        /// Target size of a chunk in bytes: a power of two.
        avg: u32,
        /// Maximum size of a chunk in bytes.
        max: u32,
    },
}

impl Chunking {
    /// Fails with `Invalid` if a parameter is out of the format's bounds.
    pub fn validate(self) -> Result<Self> {
        let ok = match self {
            Self::Fixed { bytes } => bytes.is_power_of_two() && (4096..=1 << 20).contains(&bytes),
            Self::FastCdc { min, avg, max } => {
                avg.is_power_of_two()
                    && (1024..=256 << 10).contains(&avg)
                    && min >= 256
                    && min <= avg
                    && max >= avg
                    && max <= 1 << 20
            }
        };
        if ok {
            return Ok(self);
        }
        Err(Error::invalid(format!(
            "chunking {self} is out of bounds: fixed sizes are powers of two from 4 KiB to 1 MiB; \
             FastCDC needs 256 <= min <= avg <= max <= 1 MiB with avg a power of two from 1 to 256 \
             KiB"
        )))
    }
}

impl fmt::Display for Chunking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed { bytes } => write!(f, "fixed:{bytes}"),
            Self::FastCdc { min, avg, max } => write!(f, "fastcdc:{min}/{avg}/{max}"),
        }
    }
}

/// Writes bytes as lower-case hexadecimal digits.
pub(crate) fn write_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut digits = [0; 2 * WRITTEN_BYTES_MAX];
    for bytes in bytes.chunks(WRITTEN_BYTES_MAX) {
        for (two, byte) in digits.chunks_exact_mut(2).zip(bytes) {
            two[0] = DIGITS[usize::from(byte >> 4)];
            two[1] = DIGITS[usize::from(byte & 15)];
        }
        f.write_str(std::str::from_utf8(&digits[..2 * bytes.len()]).unwrap_or_default())?;
    }
    Ok(())
}

/// Whether a text consists of this many digits as [`write_hex`] writes them.
pub(crate) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Number of bytes written at once.
const WRITTEN_BYTES_MAX: usize = 32;

macro_rules! hex_display {
    ($($name:ty),*) => {$(
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write_hex(f, &self.0)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write_hex(f, &self.0)
            }
        }
    )*};
}
pub(crate) use hex_display;
hex_display!(Fingerprint, ContentHash);
