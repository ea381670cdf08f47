use polyval::Polyval;
use polyval::universal_hash::UniversalHash;
use proptest::prelude::*;
use silt_chunking::{HashWay, SegmentHasher};
use silt_format::SEGMENT_BYTES;

use crate::sample::{mixed_data, noise};

fn ways(key: [u8; 16]) -> impl Iterator<Item = SegmentHasher> {
    let supported = HashWay::ALL.into_iter().filter(|way| way.is_supported());
    supported.map(move |way| SegmentHasher::by(way, key))
}

fn hex(bytes: &str) -> [u8; 16] {
    u128::from_str_radix(bytes, 16).unwrap().to_be_bytes()
}

/// The definition, by another implementation of POLYVAL.
fn plain_hash(key: [u8; 16], segment: &[u8]) -> [u8; 16] {
    let mut polyval = Polyval::new(&key.into());
    polyval.update_padded(segment);
    let bits = 8 * u64::try_from(segment.len()).unwrap();
    let length = (u128::from(bits) << 64).to_le_bytes();
    polyval.update(&[length.into()]);
    polyval.finalize().into()
}

/// RFC 8452, appendix C.1: the results of POLYVAL of plaintexts without additional data.
#[test]
fn hashes_are_those_of_the_rfc() {
    let cases = [
        (0, "00000000000000000000000000000000"),
        (8, "eb93b7740962c5e49d2a90a7dc5cec74"),
        (12, "48eb6c6c5a2dbe4a1dde508fee06361b"),
        (16, "20806c26e3c1de019e111255708031d6"),
    ];
    for (length, expected) in cases {
        let mut plaintext = vec![0; length];
        plaintext.iter_mut().take(1).for_each(|byte| *byte = 1);
        for hasher in ways(hex("d9b360279694941ac5dbc6987ada7377")) {
            assert_eq!(hasher.hash(&plaintext), hex(expected), "{length} bytes");
        }
    }
}

#[test]
fn every_length_up_to_some_groups_is_hashed_as_defined() {
    let (key, data) = (hex("ff0123456789abcdef0123456789abcd"), noise(3, 3500));
    let hashers: Vec<_> = ways(key).collect();
    for length in 0..data.len() {
        let expected = plain_hash(key, &data[..length]);
        for hasher in hashers.iter().filter(|it| it.is_fast() || length % 97 == 0) {
            assert_eq!(hasher.hash(&data[..length]), expected, "{length} bytes");
        }
    }
}

#[test]
fn a_full_segment_is_hashed_as_defined() {
    let (key, segment) = (hex("00112233445566778899aabbccddeeff"), noise(5, SEGMENT_BYTES));
    for length in [SEGMENT_BYTES, SEGMENT_BYTES - 1, SEGMENT_BYTES - 1024, SEGMENT_BYTES - 1025] {
        let expected = plain_hash(key, &segment[..length]);
        for hasher in ways(key) {
            assert_eq!(hasher.hash(&segment[..length]), expected, "{length} bytes");
        }
    }
}

#[test]
#[should_panic(expected = "too long")]
fn a_longer_segment_is_a_bug() {
    SegmentHasher::new([1; 16]).hash(&vec![0; SEGMENT_BYTES + 1]);
}

#[test]
fn a_hasher_shows_no_key() {
    assert_eq!(format!("{:?}", SegmentHasher::new([7; 16])), "SegmentHasher(secret)");
}

/// Zeros at the end, and every bit, change the hash.
#[test]
fn length_and_every_bit_count() {
    let hasher = SegmentHasher::new(noise(1, 16).try_into().unwrap());
    let segment = noise(9, 1100);
    let hash = hasher.hash(&segment);
    for length in 1101..1200 {
        let mut longer = segment.clone();
        longer.resize(length, 0);
        assert_ne!(hasher.hash(&longer), hash, "{length} bytes");
    }
    for bit in 0..8 * segment.len() {
        let mut other = segment.clone();
        other[bit / 8] ^= 1 << (bit % 8);
        assert_ne!(hasher.hash(&other), hash, "bit {bit}");
    }
}

proptest! {
    #[test]
    fn hashes_are_as_defined(
        key: [u8; 16],
        data in mixed_data(40_000),
        begin in 0..70_usize,
        end in 0..70_usize,
    ) {
        // Any alignment.
        let begin = begin.min(data.len());
        let data = &data[begin..data.len().max(begin + end) - end];
        for hasher in ways(key) {
            prop_assert_eq!(hasher.hash(data), plain_hash(key, data));
        }
    }
}
