use fastcdc::v2020::{FastCDC, Normalization};
use proptest::prelude::*;
use silt_chunking::Chunker;
use silt_format::{Chunking, ErrorKind, SEGMENT_BYTES};

use crate::sample::{mixed_data, noise};

fn fastcdc(min: u32, avg: u32, max: u32) -> Chunking {
    Chunking::FastCdc { min, avg, max }
}

fn cut(chunking: Chunking, segment: &[u8]) -> Vec<u32> {
    // What is there already must not show.
    let mut lengths = vec![1, 2, 3];
    Chunker::new(chunking).unwrap().cut(segment, &mut lengths);
    lengths
}

/// The cut points of the widely used implementation; its lengths must be even.
fn oracle_cut((min, avg, max): (u32, u32, u32), segment: &[u8]) -> Vec<u32> {
    let [min, avg, max] = [min, avg, max].map(|bytes| bytes as usize);
    FastCDC::with_level(segment, min, avg, max, Normalization::Level2)
        .map(|chunk| u32::try_from(chunk.length).unwrap())
        .collect()
}

/// Golden: stored cut points; computed by another implementation.
#[test]
fn fastcdc_cuts_known_data() {
    let lengths = cut(fastcdc(2048, 8192, 65536), &noise(1, 256 << 10));
    let expected = [
        9128, 12320, 6680, 8779, 8682, 10011, 6767, 7368, 12030, 9678, 11070, 8892, 4273, 9782,
        8200, 10707, 7693, 8515, 10203, 9825, 9196, 3004, 11300, 23484, 5252, 8720, 6832, 9886,
        3867,
    ];
    assert_eq!(lengths, expected);

    let lengths = cut(fastcdc(16384, 65536, 262_144), &noise(2, SEGMENT_BYTES));
    let expected = [
        67327, 40881, 69625, 85589, 70177, 98312, 74608, 94839, 103_598, 66480, 76226, 66387,
        82251, 129_818, 49683, 85816, 73832, 121_359, 67525, 87055, 71295, 31336, 80099, 92196,
        66805, 66556, 77477,
    ];
    assert_eq!(lengths, expected);
}

/// Golden: the least and the greatest of the masks.
#[test]
fn fastcdc_cuts_known_data_with_extreme_parameters() {
    let lengths = cut(fastcdc(256, 1024, 1 << 20), &noise(2, 32 << 10));
    let expected = [
        1130, 1554, 1026, 1103, 1048, 1205, 1226, 394, 1034, 1093, 1496, 1105, 1301, 1184, 1405,
        2956, 1232, 1045, 1659, 547, 1188, 1110, 1083, 1073, 1315, 1031, 1225,
    ];
    assert_eq!(lengths, expected);

    let lengths = cut(fastcdc(256, 256 << 10, 1 << 20), &noise(4, SEGMENT_BYTES));
    let expected = [303_581, 273_311, 271_577, 299_653, 328_272, 439_672, 181_086];
    assert_eq!(lengths, expected);
}

/// Golden: odd parameters and an odd segment, for which pairs of bytes matter.
#[test]
fn fastcdc_cuts_known_data_with_odd_parameters() {
    let lengths = cut(fastcdc(1001, 4096, 9999), &noise(1, 60_001));
    let expected =
        [4823, 4305, 4482, 6046, 4417, 4055, 4359, 4231, 4665, 4206, 4972, 4483, 4521, 436];
    assert_eq!(lengths, expected);
    assert_eq!(cut(fastcdc(1001, 4096, 9999), &vec![0; 20_001]), [9999, 9999, 3]);
}

#[test]
fn fixed_chunks_are_equal_but_the_last() {
    let chunking = Chunking::Fixed { bytes: 4096 };
    assert_eq!(cut(chunking, &noise(1, 10_000)), [4096, 4096, 1808]);
    assert_eq!(cut(chunking, &noise(1, 8192)), [4096, 4096]);
    assert_eq!(cut(Chunking::Fixed { bytes: 1 << 20 }, &vec![1; SEGMENT_BYTES]), [1 << 20; 2]);
}

#[test]
fn an_empty_segment_has_no_chunks() {
    assert_eq!(cut(Chunking::Fixed { bytes: 4096 }, &[]), []);
    assert_eq!(cut(fastcdc(2048, 8192, 65536), &[]), []);
}

#[test]
fn parameters_out_of_bounds_are_refused() {
    for chunking in
        [Chunking::Fixed { bytes: 5000 }, fastcdc(64, 8192, 65536), fastcdc(2048, 8000, 65536)]
    {
        assert_eq!(Chunker::new(chunking).unwrap_err().kind(), ErrorKind::Invalid);
    }
}

#[test]
#[should_panic(expected = "too long")]
fn more_than_a_segment_is_refused() {
    cut(Chunking::Fixed { bytes: 4096 }, &vec![0; SEGMENT_BYTES + 1]);
}

#[test]
fn a_full_segment_is_cut_as_by_the_oracle() {
    for logarithm in 10..=18_u32 {
        let avg = 1 << logarithm;
        let parameters = ((avg / 4).max(256), avg, (avg * 8).min(1 << 20));
        let segment = noise(u64::from(logarithm), SEGMENT_BYTES);
        let (min, avg, max) = parameters;
        assert_eq!(cut(fastcdc(min, avg, max), &segment), oracle_cut(parameters, &segment));
    }
}

/// Parameters inside the format's bounds, odd ones among them, as they are allowed.
fn parameters() -> impl Strategy<Value = (u32, u32, u32)> {
    (10..=18_u32).prop_flat_map(|logarithm| {
        let avg = 1 << logarithm;
        (256..=avg, Just(avg), avg..=1 << 20)
    })
}

proptest! {
    #[test]
    fn cuts_equal_those_of_the_oracle(
        (min, avg, max) in parameters(),
        segment in mixed_data(300_000),
    ) {
        let (min, max) = (min & !1, max & !1);
        let lengths = cut(fastcdc(min, avg, max), &segment);
        prop_assert_eq!(lengths, oracle_cut((min, avg, max), &segment));
    }

    #[test]
    fn lengths_are_in_bounds_and_cover_the_segment(
        (min, avg, max) in parameters(),
        segment in mixed_data(100_000),
    ) {
        let lengths = cut(fastcdc(min, avg, max), &segment);
        let total: u32 = lengths.iter().sum();
        prop_assert_eq!(total as usize, segment.len());
        let Some((last, others)) = lengths.split_last() else {
            return Ok(());
        };
        prop_assert!(others.iter().all(|length| (min..=max).contains(length)));
        prop_assert!((1..=max).contains(last));
    }
}
