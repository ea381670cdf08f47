//! Fingerprints as numbers, and tables of them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// The first eight bytes of a chunk's fingerprint.
///
/// Two chunks of a trace of 2^27 share them with a probability of 2^-11. A product that decides
/// what to store by them compares whole fingerprints as well.
pub type Print = u64;

/// A number that depends on every bit of `value`: the finaliser of SplitMix64.
pub fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `print` modulo `count`, which is not 0.
pub(crate) fn remainder(print: Print, count: usize) -> usize {
    usize::try_from(print % count as u64).unwrap_or(0)
}

/// Hashes fingerprints, which are random already, by one multiplication.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrintHasher(u64);

impl Hasher for PrintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(self.0 << 8 | u64::from(*byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        let product = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// A table by fingerprint.
pub type PrintMap<V> = HashMap<Print, V, BuildHasherDefault<PrintHasher>>;
/// A set of fingerprints.
pub type PrintSet = HashSet<Print, BuildHasherDefault<PrintHasher>>;
