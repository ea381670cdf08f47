use std::ops::Range;

use proptest::prelude::*;
use silt_chunking::Fingerprinter;
use silt_format::{BLOCK_BYTES, Fingerprint};

use crate::sample::noise;

const DATA_BYTES: usize = 40 * BLOCK_BYTES;

fn many(fingerprinter: &Fingerprinter, data: &[u8], chunks: &[Range<usize>]) -> Vec<Fingerprint> {
    // What is there already must not show.
    let mut out = vec![Fingerprint([1; 20]); 3];
    fingerprinter.fingerprint_many(data, chunks, &mut out);
    out
}

/// Golden: the keyed test vectors published with BLAKE3, cut to 20 bytes.
#[test]
fn fingerprints_of_the_published_vectors() {
    let fingerprinter = Fingerprinter::new(*b"whats the Elvish word for friend");
    let data: Vec<u8> = (0..=250).cycle().take(8192).collect();
    for (length, expected) in [
        (0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3"),
        (1, "6d7878dfff2f485635d39013278ae14f1454b8c0"),
        (1025, "357dc55de0c7e382c900fd6e320acc04146be01d"),
        (4096, "befc660aea2f1718884cd8deb9902811d332f4fc"),
        (4097, "00df940cd36bb9fa7cbbc3556744e0dbc8191401"),
        (8192, "dc9637c8845a770b4cbf76b8daec0eebf7dc2eac"),
    ] {
        assert_eq!(fingerprinter.fingerprint(&data[..length]).to_string(), expected);
        for fingerprint in many(&fingerprinter, &data, &vec![0..length; 16]) {
            assert_eq!(fingerprint.to_string(), expected, "{length} bytes");
        }
    }
}

/// Golden: blocks that go through the lanes; computed by another implementation of BLAKE3.
#[test]
fn fingerprints_of_known_blocks() {
    let key = std::array::from_fn(|index| u8::try_from(index).unwrap());
    let data = noise(3, 16 * BLOCK_BYTES);
    let blocks: Vec<_> =
        (0..16).map(|index| index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES).collect();
    let fingerprints = many(&Fingerprinter::new(key), &data, &blocks);
    for (index, expected) in [
        (0, "568eb53b63e43b0e4d45a1e5e9e5701178bb333b"),
        (1, "a42ee8d40e165048c603145307ef4b77d24a8c36"),
        (15, "277096663fe3e751f0f06ec5ed954d37023f0bf4"),
    ] {
        assert_eq!(fingerprints[index].to_string(), expected, "block {index}");
    }
}

#[test]
fn debug_output_shows_no_key() {
    let shown = format!("{:?}", Fingerprinter::new([0xab; 32]));
    assert_eq!(shown, "Fingerprinter(secret)");
}

#[test]
#[should_panic(expected = "out of range")]
fn a_range_outside_the_data_is_refused() {
    many(&Fingerprinter::new([0; 32]), &[0; 10], &[Range { start: 5, end: 11 }]);
}

/// Mostly whole blocks at any offset, sometimes chunks of other lengths.
fn chunk() -> impl Strategy<Value = Range<usize>> {
    let length = prop_oneof![4 => Just(BLOCK_BYTES), 2 => 0..5 * BLOCK_BYTES];
    (length, 0..DATA_BYTES - 5 * BLOCK_BYTES).prop_map(|(length, begin)| begin..begin + length)
}

proptest! {
    #[test]
    fn many_are_what_the_hash_gives_for_each(
        key: [u8; 32],
        seed: u64,
        chunks in prop::collection::vec(chunk(), 0..80),
    ) {
        let data = noise(seed, DATA_BYTES);
        let expected: Vec<_> = chunks
            .iter()
            .map(|range| {
                let digest = blake3::keyed_hash(&key, &data[range.clone()]);
                Fingerprint(digest.as_bytes()[..20].try_into().unwrap())
            })
            .collect();
        prop_assert_eq!(many(&Fingerprinter::new(key), &data, &chunks), expected);
    }
}
