use proptest::prelude::*;
use silt_chunking::{DigestedBlocks, Fingerprinter, SegmentDigester};
use silt_format::{
    BLOCK_BYTES, Fingerprint, Recipe, RecipeChunk, Reference, SEGMENT_BYTES, SegmentDigest,
};

use crate::sample::{mixed_data, noise};

fn key() -> [u8; 32] {
    std::array::from_fn(|index| u8::try_from(index).unwrap())
}

fn digester(key: [u8; 32]) -> SegmentDigester {
    SegmentDigester::new(key, Fingerprinter::new([9; 32]))
}

fn digest(segment: &[u8]) -> SegmentDigest {
    digester(key()).digest(segment, &mut DigestedBlocks::default())
}

/// The definition, word for word.
fn plain_digest(segment: &[u8]) -> SegmentDigest {
    let mut message = Vec::new();
    let mut bitmap = vec![0; segment.chunks(BLOCK_BYTES).count().div_ceil(8)];
    for (index, block) in segment.chunks(BLOCK_BYTES).enumerate() {
        if block.iter().any(|&byte| byte != 0) {
            message.extend_from_slice(&blake3::keyed_hash(&[9; 32], block).as_bytes()[..20]);
            bitmap[index / 8] |= 1 << (index % 8);
        }
    }
    message.extend(bitmap);
    message.extend(u32::try_from(segment.len()).unwrap().to_le_bytes());
    let digest = blake3::keyed_hash(&key(), &message);
    SegmentDigest {
        kind: SegmentDigest::OF_BLOCKS,
        bytes: digest.as_bytes()[..16].try_into().unwrap(),
    }
}

/// Ten blocks and a short one; four of the ten are zero.
fn holey_segment() -> Vec<u8> {
    let mut segment = noise(5, 10 * BLOCK_BYTES + 100);
    for block in [1, 2, 5, 9] {
        segment[block * BLOCK_BYTES..][..BLOCK_BYTES].fill(0);
    }
    segment
}

/// Golden: stored digests; computed by another implementation of BLAKE3.
#[test]
fn digests_of_known_segments() {
    let hex = |segment: &[u8]| digest(segment).to_string();
    assert_eq!(hex(&[]), "389622daf9ae5af5623171172a1f243b");
    assert_eq!(hex(&vec![0; SEGMENT_BYTES]), "fb6ddcc5cf722749f8440cd14cf5ea28");
    let mut segment = holey_segment();
    assert_eq!(hex(&segment), "11628b16a4cefbeae4d449a7f4660900");
    segment.push(0);
    assert_eq!(hex(&segment), "1b2ded1dcdab3f3593fa4b350c822e6c");
}

#[test]
fn moving_a_block_past_zeros_changes_the_digest() {
    let mut segment = holey_segment();
    let before = digest(&segment);
    segment.copy_within(4 * BLOCK_BYTES..5 * BLOCK_BYTES, 5 * BLOCK_BYTES);
    segment[4 * BLOCK_BYTES..5 * BLOCK_BYTES].fill(0);
    assert_ne!(digest(&segment), before);
}

#[test]
fn another_key_gives_another_digest() {
    let segment = holey_segment();
    let digests = [[1; 32], [2; 32]]
        .map(|key| digester(key).digest(&segment, &mut DigestedBlocks::default()));
    assert_ne!(digests[0], digests[1]);
}

#[test]
#[should_panic(expected = "too long")]
fn more_than_a_segment_is_refused() {
    digest(&vec![0; SEGMENT_BYTES + 1]);
}

#[test]
fn debug_output_shows_no_key() {
    let shown = format!("{:?}", digester([0xab; 32]));
    assert_eq!(shown, "SegmentDigester(secret)");
}

proptest! {
    #[test]
    fn digests_are_as_defined(segment in mixed_data(40 * BLOCK_BYTES)) {
        prop_assert_eq!(digest(&segment), plain_digest(&segment));
    }
}

#[test]
fn a_full_segment_is_digested_as_defined() {
    let mut segment = noise(11, SEGMENT_BYTES);
    for block in segment.chunks_mut(BLOCK_BYTES).skip(3).step_by(7) {
        block.fill(0);
    }
    assert_eq!(digest(&segment), plain_digest(&segment));
}

/// What the digest was made of serves as chunks and fingerprints, also after a longer segment.
#[test]
fn digested_blocks_are_the_stored_ones() {
    let (segment, mut blocks) = (holey_segment(), DigestedBlocks::default());
    digester(key()).digest(&noise(7, SEGMENT_BYTES), &mut blocks);
    digester(key()).digest(&segment, &mut blocks);
    let fingerprinter = Fingerprinter::new([9; 32]);
    let stored = [0, 3, 4, 6, 7, 8, 10].map(|block| {
        let range = block * BLOCK_BYTES..((block + 1) * BLOCK_BYTES).min(segment.len());
        (range.clone(), fingerprinter.fingerprint(&segment[range]))
    });
    assert_eq!(blocks.stored().collect::<Vec<_>>(), stored);
}

/// A recipe has the digest of the segment that it restores, and no other.
#[test]
fn a_recipe_proves_the_digest_of_its_segment() {
    let segment = holey_segment();
    let fingerprinter = Fingerprinter::new([9; 32]);
    let recipe_of = |bytes: usize| {
        let chunks = segment.chunks(bytes).map(|chunk| {
            let is_zero = chunk.iter().all(|&byte| byte == 0);
            let reference = if is_zero { Reference::ZERO } else { Reference::new(0, 1, 2) };
            let length = u32::try_from(chunk.len()).unwrap();
            let fingerprint =
                if is_zero { Fingerprint([0; 20]) } else { fingerprinter.fingerprint(chunk) };
            RecipeChunk { reference, length, fingerprint }
        });
        Recipe { chunks: chunks.collect() }
    };
    let (blocks, large) = (recipe_of(BLOCK_BYTES), recipe_of(3 * BLOCK_BYTES));
    let by = |recipe: &Recipe, kind: u8| digester(key()).digest_recipe(recipe, kind);
    assert_eq!(by(&blocks, SegmentDigest::OF_BLOCKS), Some(digest(&segment)));
    assert_eq!(by(&large, SegmentDigest::OF_BLOCKS), None);
    assert_eq!(by(&large, 3), None);
    let of_chunks = by(&large, SegmentDigest::OF_CHUNKS).unwrap();
    assert_ne!(of_chunks.bytes, digest(&segment).bytes);
    for change in 0..3 {
        let (mut blocks, mut large) = (blocks.clone(), large.clone());
        for recipe in [&mut blocks, &mut large] {
            match change {
                0 => recipe.chunks.swap(0, 2),
                1 => recipe.chunks[0].fingerprint.0[19] ^= 1,
                _ => recipe.chunks[0].reference = Reference::ZERO,
            }
        }
        assert_ne!(by(&blocks, SegmentDigest::OF_BLOCKS), Some(digest(&segment)));
        assert_ne!(by(&large, SegmentDigest::OF_CHUNKS), Some(of_chunks));
    }
    assert_eq!(by(&Recipe { chunks: Vec::new() }, SegmentDigest::OF_BLOCKS), None);
}
