use proptest::prelude::*;
use silt_chunking::signatures;
use silt_format::{Fingerprint, Signatures};

use crate::sample::noise;

fn fingerprints(seed: u64, count: usize) -> Vec<Fingerprint> {
    noise(seed, count * 20).as_chunks().0.iter().map(|&bytes| Fingerprint(bytes)).collect()
}

/// Golden: the layout of stored signatures.
#[test]
fn signatures_of_a_hundred_fingerprints() {
    let expected = [
        0x284d_2fef,
        0x33be_4a56,
        0x1e59_0b90,
        0x1593_d9d2,
        0x4565_de5d,
        0x1329_7aee,
        0x11f1_99c6,
        0x1347_e0b4,
    ];
    assert_eq!(signatures(fingerprints(7, 100)), Signatures(expected));
}

#[test]
fn one_fingerprint_fills_one_bucket() {
    let mut bytes = [0xff; 20];
    bytes[0] = 0b1111_1101;
    bytes[4..8].copy_from_slice(&[0x78, 0x56, 0x34, 0x12]);
    let mut expected = Signatures::EMPTY;
    expected.0[5] = 0x1234_5678;
    assert_eq!(signatures([Fingerprint(bytes)]), expected);
}

#[test]
fn no_fingerprints_leave_every_bucket_empty() {
    assert_eq!(signatures(fingerprints(1, 0)), Signatures::EMPTY);
}

proptest! {
    #[test]
    fn order_and_repeats_do_not_matter(seed: u64, count in 0..60_usize, turn in 0..60_usize) {
        let once = fingerprints(seed, count);
        let mut twice = once.repeat(2);
        let turn = turn % twice.len().max(1);
        twice.rotate_left(turn);
        twice.reverse();
        prop_assert_eq!(signatures(&once), signatures(twice));
    }

    #[test]
    fn a_union_has_the_lesser_of_each_bucket(seed: u64, cut in 0..=40_usize) {
        let all = fingerprints(seed, 40);
        let (left, right) = (signatures(&all[..cut]), signatures(&all[cut..]));
        let least = std::array::from_fn(|bucket| left.0[bucket].min(right.0[bucket]));
        prop_assert_eq!(signatures(&all), Signatures(least));
    }
}
