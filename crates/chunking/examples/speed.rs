//! Measures this crate on one core against doing the same by the crates it follows.
//!
//! `cargo run --release -p silt-chunking --example speed`

#![expect(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a benchmark reads the clock and prints"
)]

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant};

use fastcdc::v2020::{FastCDC, Normalization};
use silt_chunking::{
    Chunker, DigestedBlocks, Fingerprinter, HashWay, SegmentDigester, SegmentHasher, is_zero,
};
use silt_format::{BLOCK_BYTES, Chunking, Result, SEGMENT_BYTES};

/// Each figure is that of the fastest of this many rounds.
const ROUNDS: usize = 200;

fn main() -> Result<()> {
    let data = noise(SEGMENT_BYTES);
    zero_scan();
    fingerprints(&data);
    digests(&data);
    hashes(&data);
    cuts(&data)
}

/// Bytes without structure: the output of SplitMix64.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0_u64;
    let word = std::iter::repeat_with(|| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)).to_le_bytes()
    });
    word.flatten().take(length).collect()
}

fn report(what: &str, bytes: usize, mut work: impl FnMut()) {
    let mut least = Duration::MAX;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        work();
        least = least.min(begin.elapsed());
    }
    let bytes = u32::try_from(bytes).map_or(f64::INFINITY, f64::from);
    println!("{what:50} {:7.2} GB/s", bytes / least.as_secs_f64() / 1e9);
}

fn zero_scan() {
    for (place, length) in [("in cache", 256 << 10), ("in memory", 256 << 20)] {
        // Copied, so that its pages are real ones.
        let zeros = black_box(vec![0; length]).repeat(1);
        report(&format!("zero scan, {place}"), length, || {
            assert!(black_box(&zeros).chunks(BLOCK_BYTES).all(is_zero));
        });
    }
}

fn fingerprints(data: &[u8]) {
    let fingerprinter = Fingerprinter::new([7; 32]);
    let mut out = Vec::new();
    for length in [BLOCK_BYTES, 8192, 65536] {
        report(&format!("fingerprints one by one, {length} bytes"), data.len(), || {
            for chunk in black_box(data).chunks(length) {
                black_box(fingerprinter.fingerprint(chunk));
            }
        });
    }
    for length in [1500, 3000, 5000, 8192, 10_000, 15_000] {
        let begins = (0..data.len() - length).step_by(length);
        let ranges: Vec<Range<usize>> = begins.map(|begin| begin..begin + length).collect();
        let bytes = ranges.len() * length;
        report(&format!("fingerprints one by one, {length} bytes"), bytes, || {
            for range in black_box(&ranges) {
                black_box(fingerprinter.fingerprint(&data[range.clone()]));
            }
        });
        report(&format!("fingerprints together, {length} bytes"), bytes, || {
            fingerprinter.fingerprint_many(black_box(data), black_box(&ranges), &mut out);
        });
    }
    for together in [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, SEGMENT_BYTES / BLOCK_BYTES] {
        let ranges: Vec<Range<usize>> =
            (0..together).map(|index| index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES).collect();
        let bytes = together * BLOCK_BYTES;
        report(&format!("fingerprints of {together} blocks together"), bytes, || {
            fingerprinter.fingerprint_many(black_box(data), black_box(&ranges), &mut out);
        });
    }
}

fn digests(data: &[u8]) {
    let digester = SegmentDigester::new([7; 32], Fingerprinter::new([8; 32]));
    let mut blocks = DigestedBlocks::default();
    let mut half = data.to_vec();
    for block in half.chunks_mut(BLOCK_BYTES).step_by(2) {
        block.fill(0);
    }
    for (what, segment) in
        [("no", data), ("every other", &half), ("every", &vec![0; SEGMENT_BYTES])]
    {
        report(&format!("segment digest, {what} block zero"), segment.len(), || {
            black_box(digester.digest(black_box(segment), &mut blocks));
        });
    }
}

fn hashes(data: &[u8]) {
    for way in HashWay::ALL.into_iter().filter(|way| way.is_supported()) {
        let hasher = SegmentHasher::by(way, [7; 16]);
        report(&format!("segment hash, {way:?}"), data.len(), || {
            black_box(hasher.hash(black_box(data)));
        });
    }
}

fn cuts(data: &[u8]) -> Result<()> {
    let mut lengths = Vec::new();
    for (min, avg, max) in [(1024, 4096, 16384), (2048, 8192, 65536), (16384, 65536, 262_144)] {
        let chunker = Chunker::new(Chunking::FastCdc { min, avg, max })?;
        report(&format!("cuts of {min}/{avg}/{max}"), data.len(), || {
            chunker.cut(black_box(data), &mut lengths);
            black_box(&lengths);
        });
        let sizes = [min, avg, max].map(|size| size as usize);
        let mut others = Vec::new();
        report(&format!("cuts of {min}/{avg}/{max}, fastcdc crate"), data.len(), || {
            let [min, avg, max] = sizes;
            let chunks = FastCDC::with_level(black_box(data), min, avg, max, Normalization::Level2);
            others.clear();
            others.extend(chunks.map(|chunk| chunk.length));
            black_box(&others);
        });
        assert!(lengths.iter().map(|length| *length as usize).eq(others));
    }
    Ok(())
}
