//! Min-hash signatures of segments.

use std::borrow::Borrow;

use silt_format::{Fingerprint, SIGNATURES, Signatures};

// A bucket is chosen by the low bits of a byte.
const _: () = assert!(SIGNATURES.is_power_of_two() && SIGNATURES <= 256);

/// The one-permutation min-hash of a segment's fingerprints, given by value or by reference.
///
/// The bucket is byte 0 modulo [`SIGNATURES`], the value bytes 4 to 7 as a little-endian integer;
/// each bucket keeps its least value. The order and the number of times a fingerprint occurs do not
/// matter. A real value of `u32::MAX` looks like an empty bucket, which costs one missed likeness.
pub fn signatures(fingerprints: impl IntoIterator<Item: Borrow<Fingerprint>>) -> Signatures {
    let mut least = Signatures::EMPTY;
    for fingerprint in fingerprints {
        let bytes = &fingerprint.borrow().0;
        let value = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let bucket = &mut least.0[usize::from(bytes[0]) % SIGNATURES];
        *bucket = value.min(*bucket);
    }
    least
}
