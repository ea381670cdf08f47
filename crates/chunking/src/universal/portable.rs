//! POLYVAL bit by bit: the definition, which the other ways must equal.

use super::{ELEMENT_BYTES, Group, Powers};

/// `x^127 + x^126 + x^121 + 1`: the polynomial of the field without `x^128`, divided by `x`. RFC
/// 8452, section 3: the field's polynomial is `x^128 + x^127 + x^126 + x^121 + 1`.
const DIVIDED: u128 = 1 << 127 | 1 << 126 | 1 << 125 | 1 << 120;

/// `dot(a, b)` of RFC 8452: `a * b * x^-128`. Bit `i` is the coefficient of `x^i`.
pub(super) fn multiply(a: u128, b: u128) -> u128 {
    (0..128).fold(0, |sum: u128, bit| {
        let sum = if a >> bit & 1 == 1 { sum ^ b } else { sum };
        // Division by x; the polynomial is added first where the lowest coefficient is one.
        if sum & 1 == 1 { sum >> 1 ^ DIVIDED } else { sum >> 1 }
    })
}

/// Continues with `groups` behind blocks whose POLYVAL is `sum`.
pub(super) fn add(powers: &Powers, sum: u128, groups: &[Group]) -> u128 {
    let [.., key] = powers.powers;
    let (blocks, _) = groups.as_flattened().as_chunks::<ELEMENT_BYTES>();
    blocks.iter().fold(sum, |sum, block| multiply(sum ^ u128::from_le_bytes(*block), key))
}
