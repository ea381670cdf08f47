//! Bytes to try things on.

use proptest::prelude::*;

/// The output of SplitMix64 begun at `seed`, as little-endian words; golden vectors use it.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed;
    let words = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    });
    words.flatten().take(length).collect()
}

/// Runs of noise, of one byte (often zero) and of a short period, of up to `total` bytes together.
pub fn mixed_data(total: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece =
        (0..4_u8, 0..=total / 3, any::<u64>()).prop_map(|(kind, length, seed)| match kind {
            0 => vec![0; length],
            1 => vec![seed.to_le_bytes()[0]; length],
            2 => noise(seed, 7).repeat(length / 7),
            _ => noise(seed, length),
        });
    prop::collection::vec(piece, 0..8).prop_map(move |pieces| {
        let mut data = pieces.concat();
        data.truncate(total);
        data
    })
}
