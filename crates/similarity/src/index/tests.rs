use super::*;
use crate::mix::drawn;

/// A sketch whose super-features are drawn from a few values each, so that many are equal.
fn sketch(seed: u64, few: u64) -> Sketch {
    let values: Vec<u64> = (0..4).map(|place| drawn(place, drawn(seed, place) % few)).collect();
    Sketch::of(&values).unwrap()
}

#[test]
fn the_best_candidate_is_that_of_comparing_all() {
    let mut index = SketchIndex::new(1 << 17, 4);
    let all: Vec<Sketch> = (0..2000).map(|seed| sketch(seed, 1000)).collect();
    (0..).zip(&all).for_each(|(base, sketch)| index.add(sketch, base));
    let (mut found, mut hits) = (Vec::new(), 0);
    for seed in 5000..6000 {
        let wanted = sketch(seed, 1000);
        index.candidates(&wanted, 6, &mut found);
        let best = all.iter().map(|sketch| sketch.equal(&wanted)).max().unwrap();
        assert_eq!(found.first().map_or(0, |first| first.equal), best);
        for candidate in &found {
            let kept = &all[usize::try_from(candidate.base).unwrap()];
            assert_eq!(kept.equal(&wanted), candidate.equal);
        }
        assert!(found.is_sorted_by(|one, other| one.equal >= other.equal));
        assert!(found.len() <= 6);
        hits += usize::from(best > 0);
    }
    assert!(hits > 500, "{hits}");
}

#[test]
fn the_newest_of_equal_candidates_come_first() {
    let mut index = SketchIndex::new(64, 4);
    for base in 0..4 {
        index.add(&sketch(1, 1), base);
    }
    let mut found = Vec::new();
    index.candidates(&sketch(2, 1), 3, &mut found);
    assert_eq!(found.iter().map(|it| it.base).collect::<Vec<_>>(), [3, 2, 1]);
}

#[test]
fn memory_is_bounded_and_the_oldest_are_forgotten() {
    let mut index = SketchIndex::new(1000, 4);
    let before = index.bytes();
    assert!(before < 1024 * 40, "{before}");
    (0..5000).for_each(|seed| index.add(&sketch(seed, u64::MAX), seed));
    assert_eq!((index.len(), index.bytes()), (1024, before));
    let mut found = Vec::new();
    index.candidates(&sketch(0, u64::MAX), 4, &mut found);
    assert!(found.is_empty());
    let newest = (4100..5000).filter(|seed| {
        index.candidates(&sketch(*seed, u64::MAX), 1, &mut found);
        found.first().is_some_and(|first| first.base == *seed)
    });
    assert!(newest.count() > 890, "buckets that are full forget few");
}
