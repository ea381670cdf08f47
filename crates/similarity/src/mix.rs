//! Numbers without structure, the same on every machine.

/// SplitMix64's finaliser.
pub(crate) fn mix(value: u64) -> u64 {
    let mixed = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The number at a place of SplitMix64's sequence.
pub(crate) fn drawn(seed: u64, place: u64) -> u64 {
    mix(seed.wrapping_add((place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}
