#![expect(clippy::cast_precision_loss, reason = "numbers here are small")]

use std::collections::HashSet;

use super::*;

/// Bytes without structure.
fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    (0_u64..).flat_map(|place| drawn(seed, place).to_le_bytes()).take(bytes).collect()
}

const ALL: [SketchParameters; 3] = [
    SketchParameters { scheme: Scheme::Odess, super_features: 4, features: 1, sampling_bits: 5 },
    SketchParameters::ODESS,
    SketchParameters::NEPTUNE,
];

#[test]
fn a_sketch_follows_the_content_and_nothing_else() {
    for parameters in ALL {
        let sketcher = Sketcher::new(parameters);
        let (mut alike, mut unlike) = (0, 0);
        for seed in 0..100 {
            let chunk = noise(seed, 8192);
            let sketch = sketcher.sketch(&chunk).unwrap();
            assert_eq!(sketch.values().len(), parameters.super_features);
            assert_eq!(sketcher.sketch(&chunk.clone()), Some(sketch));
            let mut edited = chunk.clone();
            edited.splice(4000..4010, noise(seed + 1000, 30));
            alike += usize::from(sketcher.sketch(&edited).unwrap().equal(&sketch) > 0);
            let other = sketcher.sketch(&noise(seed + 2000, 8192)).unwrap();
            unlike += other.equal(&sketch);
        }
        assert!(alike >= 98, "{parameters:?} misses {} edited chunks", 100 - alike);
        assert_eq!(unlike, 0, "{parameters:?}");
    }
}

#[test]
fn a_shifted_chunk_has_the_same_windows() {
    let sketcher = Sketcher::new(SketchParameters::NEPTUNE);
    let chunk = noise(7, 8192);
    let same = (1..100).filter(|shift| {
        let shifted = sketcher.sketch(&chunk[*shift..]).unwrap();
        shifted.equal(&sketcher.sketch(&chunk).unwrap()) > 0
    });
    assert!(same.count() >= 97);
}

#[test]
fn chunks_without_windows_have_no_sketch() {
    for parameters in ALL {
        assert_eq!(Sketcher::new(parameters).sketch(&[]), None);
    }
    assert_eq!(Sketcher::new(SketchParameters::NEPTUNE).sketch(&[1; 31]), None);
    assert!(Sketcher::new(SketchParameters::NEPTUNE).sketch(&[1; 32]).is_some());
}

/// The share of windows that two chunks have in common, by comparing all of them.
fn resemblance(one: &[u8], other: &[u8]) -> f64 {
    let windows = |chunk: &[u8]| chunk.windows(WINDOW).map(<[u8]>::to_vec).collect::<HashSet<_>>();
    let (one, other) = (windows(one), windows(other));
    one.intersection(&other).count() as f64 / one.union(&other).count() as f64
}

/// P(a super-feature is equal) = r^features, within what as many draws scatter.
#[test]
fn super_features_are_equal_as_often_as_chunks_resemble_each_other() {
    for features in [1, 2, 4] {
        let parameters =
            SketchParameters { super_features: 4, features, ..SketchParameters::NEPTUNE };
        let sketcher = Sketcher::new(parameters);
        let (mut equal, mut expected, mut variance) = (0.0, 0.0, 0.0);
        for seed in 0..300 {
            let chunk = noise(seed, 1024);
            let mut edited = chunk.clone();
            // From few to most of the windows.
            let length = 20 + usize::try_from(seed).unwrap() * 2;
            edited[..length].copy_from_slice(&noise(seed + 1000, length));
            let same = resemblance(&chunk, &edited).powi(i32::try_from(features).unwrap());
            expected += 4.0 * same;
            variance += 4.0 * same * (1.0 - same);
            let sketches = (sketcher.sketch(&chunk).unwrap(), sketcher.sketch(&edited).unwrap());
            equal += sketches.0.equal(&sketches.1) as f64;
        }
        let off = (equal - expected) / f64::sqrt(variance);
        assert!(off.abs() < 4.0, "{features} features: {equal} instead of {expected:.0}");
    }
}

#[test]
fn a_rabin_fingerprint_depends_on_its_window_alone() {
    let sketcher = Sketcher::new(SketchParameters::NEPTUNE);
    let push = |hash: u64, byte: u8| {
        ((hash << 8) | u64::from(byte)) ^ sketcher.table[usize::from((hash >> 56) as u8)]
    };
    let bytes = noise(3, 100);
    let fresh = |at: usize| bytes[at..at + WINDOW].iter().fold(0, |hash, byte| push(hash, *byte));
    let mut rolled = fresh(0);
    for at in 0..60 {
        let leaving = sketcher.leaving[usize::from(bytes[at])];
        rolled = push(rolled ^ leaving, bytes[at + WINDOW]);
        assert_eq!(rolled, fresh(at + 1));
    }
}
