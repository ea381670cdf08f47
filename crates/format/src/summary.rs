//! Summary vectors: a Bloom filter of the private references that a snapshot uses.
//!
//! All vectors of one geometry can be OR-ed. A vector is cut into partitions of at most 1 MiB, and
//! a reference lives in one of them, so that a vector of any size can be built and read in bounded
//! memory. Bits per reference and hash count follow the standard formulas: with m bits, n
//! references and k hashes the false positive rate is (1 - (1 - 1/m)^(kn))^k; 9.59 bits and 7
//! hashes give 1 %.

use crate::codec::{Decoder, Encoder};
use crate::number::to_usize;
use crate::{Error, Reference, Result};

/// Number of partitions in one object of a summary vector; only the last object may hold fewer.
pub const PARTITIONS_PER_PART: u32 = 4;
/// Maximum size of a partition in bytes.
pub const PARTITION_BYTES_MAX: u32 = 1 << 20;
const HASHES: u8 = 7;
const HASHES_MAX: u8 = 32;
/// Bits per reference for one false positive in a hundred, in hundredths.
const CENTIBITS_PER_REFERENCE: u64 = 959;
/// Reserve for later snapshots of a series: ten that change 2.5 % each.
const GROWTH_PERCENT: u64 = 125;
const PARTITION_BYTES_MIN: u64 = 64;

/// The size and hash functions of a summary vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SummaryGeometry {
    /// Number of partitions, at least one.
    pub partitions: u32,
    /// Size of each partition in bytes: at least 64, at most 1 MiB.
    pub partition_bytes: u32,
    /// Number of bits that a reference sets.
    pub hashes: u8,
}

impl SummaryGeometry {
    /// The geometry for a series whose next snapshot has `references` references: sized for the
    /// union of the snapshots that a series usually keeps.
    pub fn for_references(references: u64) -> Self {
        let held = references.saturating_mul(GROWTH_PERCENT) / 100;
        let bytes = (held.saturating_mul(CENTIBITS_PER_REFERENCE) / 800).max(PARTITION_BYTES_MIN);
        let partitions = bytes.div_ceil(u64::from(PARTITION_BYTES_MAX));
        let partition_bytes = bytes.div_ceil(partitions).next_multiple_of(PARTITION_BYTES_MIN);
        let fits = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        Self {
            partitions: fits(partitions),
            partition_bytes: fits(partition_bytes).min(PARTITION_BYTES_MAX),
            hashes: HASHES,
        }
    }

    /// Number of references that it holds at one false positive in a hundred.
    pub fn capacity(&self) -> u64 {
        self.bytes().saturating_mul(800) / CENTIBITS_PER_REFERENCE
    }

    /// Size of the whole vector in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.partitions) * u64::from(self.partition_bytes)
    }

    /// Number of objects that hold the vector.
    pub fn parts(&self) -> u32 {
        self.partitions.div_ceil(PARTITIONS_PER_PART)
    }

    /// The partitions that part `part` holds.
    pub fn partitions_of(&self, part: u32) -> std::ops::Range<u32> {
        let first = part * PARTITIONS_PER_PART;
        first..first.saturating_add(PARTITIONS_PER_PART).min(self.partitions)
    }

    /// Returns the partition of `reference`, and the hash that selects its bits.
    pub fn place(&self, reference: Reference) -> (u32, u64) {
        let first = mix(reference.bits());
        let partition = (u128::from(first) * u128::from(self.partitions)) >> 64;
        (u32::try_from(partition).unwrap_or(0), mix(first))
    }

    fn bits(self, drawn: u64) -> impl Iterator<Item = usize> {
        let bits = u128::from(self.partition_bytes) * 8;
        let step = mix(drawn) | 1;
        (0..u64::from(self.hashes)).map(move |i| {
            let hash = drawn.wrapping_add(i.wrapping_mul(step));
            to_usize(u64::try_from((u128::from(hash) * bits) >> 64).unwrap_or(0))
        })
    }

    /// Sets the bits of a reference, selected by [`place`](Self::place), in its partition.
    pub fn insert(self, drawn: u64, partition: &mut [u8]) {
        self.bits(drawn).for_each(|bit| partition[bit / 8] |= 1 << (bit % 8));
    }

    /// Returns whether its partition may hold a reference; never `false` for an inserted one.
    pub fn contains(self, drawn: u64, partition: &[u8]) -> bool {
        self.bits(drawn).all(|bit| partition[bit / 8] & 1 << (bit % 8) != 0)
    }

    pub(crate) fn encode(self, to: &mut Encoder) {
        to.u32(self.partitions);
        to.u32(self.partition_bytes);
        to.u8(self.hashes);
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let geometry =
            Self { partitions: from.u32()?, partition_bytes: from.u32()?, hashes: from.u8()? };
        let sizes = u32::try_from(PARTITION_BYTES_MIN).unwrap_or(1)..=PARTITION_BYTES_MAX;
        let ok = geometry.partitions > 0
            && sizes.contains(&geometry.partition_bytes)
            && (1..=HASHES_MAX).contains(&geometry.hashes);
        if ok {
            return Ok(geometry);
        }
        Err(Error::corrupt("summary vector: its geometry is out of bounds"))
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
