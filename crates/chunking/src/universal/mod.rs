//! A fast hash of segments under a secret key, by which a machine recognizes bytes that it has read
//! before.
//!
//! It is POLYVAL (RFC 8452, section 3): the blocks of 16 bytes are the coefficients of a polynomial
//! over GF(2^128), which is evaluated at the key. Two different segments have the same hash for at
//! most `2^17 + 1` of the `2^128` keys, as their polynomials differ by one whose degree is the
//! number of blocks of a segment and of the length. So they collide with a probability of
//! `(2^17 + 1) / 2^128`, if nobody chooses segments who knows the key or hashes under it (Shoup,
//! "On Fast and Provably Secure Message Authentication Based on Universal Hashing", CRYPTO 1996).
//! The hash proves nothing to someone else, and must not be stored in a repository.

mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;

use silt_format::SEGMENT_BYTES;
use silt_format::number::to_u64;

/// Bytes of a block, which is an element of the field.
const ELEMENT_BYTES: usize = 16;
/// Blocks whose products are added before they are reduced.
const GROUP: usize = 64;
const GROUP_BYTES: usize = GROUP * ELEMENT_BYTES;

/// The blocks of a group.
type Group = [u8; GROUP_BYTES];

/// How the products are computed. All ways give the same hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HashWay {
    /// Bit by bit, on any processor: far slower than BLAKE3.
    Portable,
    /// With `PCLMULQDQ` of x86, a block at a time.
    Clmul,
    /// With `VPCLMULQDQ` of x86, two blocks at a time.
    WideClmul,
    /// With `VPCLMULQDQ` and AVX-512 of x86, four blocks at a time.
    WidestClmul,
}

impl HashWay {
    /// All ways, the slowest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Clmul, Self::WideClmul, Self::WidestClmul];

    /// Returns whether this processor has the instructions.
    pub fn is_supported(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return match self {
            Self::Portable => true,
            Self::Clmul => x86::has_clmul(),
            Self::WideClmul => x86::has_wide_clmul(),
            Self::WidestClmul => x86::has_widest_clmul(),
        };
        #[cfg(not(target_arch = "x86_64"))]
        return self == Self::Portable;
    }
}

/// The powers of a key by which the blocks of a group are multiplied.
#[derive(Clone)]
struct Powers {
    /// The highest power first, as are the blocks.
    powers: [u128; GROUP],
    /// Of each power, the sum of its halves in each half, for Karatsuba's multiplication.
    sums: [u128; GROUP],
}

impl Powers {
    fn new(key: u128) -> Self {
        let mut powers = [key; GROUP];
        for index in (0..GROUP - 1).rev() {
            powers[index] = portable::multiply(powers[index + 1], key);
        }
        let sums = powers.map(|power| power ^ power.rotate_left(64));
        Self { powers, sums }
    }
}

/// Computes the hashes of segments under one key.
#[derive(Clone)]
pub struct SegmentHasher {
    powers: Box<Powers>,
    way: HashWay,
}

impl SegmentHasher {
    /// A hasher under `key`, which must be random and secret, in the fastest way of this processor.
    pub fn new(key: [u8; ELEMENT_BYTES]) -> Self {
        let fastest = HashWay::ALL.into_iter().rfind(|way| way.is_supported());
        Self::by(fastest.unwrap_or(HashWay::Portable), key)
    }

    /// A hasher that computes in this way; panics if the processor cannot, which is a bug.
    pub fn by(way: HashWay, key: [u8; ELEMENT_BYTES]) -> Self {
        assert!(way.is_supported(), "this processor lacks the instructions for {way:?}");
        Self { powers: Box::new(Powers::new(u128::from_le_bytes(key))), way }
    }

    /// Returns whether the hash is faster than the segment's digest.
    pub fn is_fast(&self) -> bool {
        self.way != HashWay::Portable
    }

    /// Returns the hash of a segment of at most [`SEGMENT_BYTES`]; panics if it is longer, which is
    /// a bug.
    ///
    /// The hash is POLYVAL of the segment, filled up with zeros to a multiple of 16 bytes, and one
    /// more block: eight zeros, and the segment's length in bits as a little-endian `u64`. That is
    /// what RFC 8452 computes of a plaintext without additional data.
    pub fn hash(&self, segment: &[u8]) -> [u8; ELEMENT_BYTES] {
        assert!(segment.len() <= SEGMENT_BYTES, "a segment of {} bytes is too long", segment.len());
        let (groups, rest) = segment.as_chunks::<GROUP_BYTES>();
        let sum = self.add(0, groups);
        // The rest and the length are the end of two groups that begin with zeros, which add
        // nothing.
        let mut last = [0; 2 * GROUP_BYTES];
        let blocks = rest.len().div_ceil(ELEMENT_BYTES) + 1;
        let start = last.len() - blocks * ELEMENT_BYTES;
        last[start..start + rest.len()].copy_from_slice(rest);
        let bits = 8 * to_u64(segment.len());
        last[2 * GROUP_BYTES - 8..].copy_from_slice(&bits.to_le_bytes());
        for (byte, sum) in last[start..].iter_mut().zip(sum.to_le_bytes()) {
            *byte ^= sum;
        }
        self.add(0, last.as_chunks().0).to_le_bytes()
    }

    /// Continues with `groups` behind blocks whose POLYVAL is `sum`.
    fn add(&self, sum: u128, groups: &[Group]) -> u128 {
        match self.way {
            HashWay::Portable => portable::add(&self.powers, sum, groups),
            #[cfg(target_arch = "x86_64")]
            HashWay::Clmul => x86::add(&self.powers, sum, groups),
            #[cfg(target_arch = "x86_64")]
            HashWay::WideClmul => x86::add_wide(&self.powers, sum, groups),
            #[cfg(target_arch = "x86_64")]
            HashWay::WidestClmul => x86::add_widest(&self.powers, sum, groups),
            #[cfg(not(target_arch = "x86_64"))]
            HashWay::Clmul | HashWay::WideClmul | HashWay::WidestClmul => {
                portable::add(&self.powers, sum, groups)
            }
        }
    }
}

/// Shows no key.
impl fmt::Debug for SegmentHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SegmentHasher(secret)")
    }
}
