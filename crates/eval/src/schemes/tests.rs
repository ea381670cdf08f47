//! The product on small traces, against plain sets of the same traces.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::{CONTAINER_SLOTS_MAX, Level};
use siltstone::{DetectionOptions, SharePolicy};

use super::{BLOCKS, ONE_SIGNATURE, SAME_OFFSET, chunks, dirty_chunks, run_all, unique};
use crate::fleet::Fleet;
use crate::generate::{Shape, generate};
use crate::trace::{Day, Machine, Print, SEGMENT_CHUNKS, Segment, Trace};
use silt_report::{draw, floor};

fn small() -> Trace {
    generate(&Shape { machines: 12, segments: 5, days: 3, ..Shape::default() })
}

/// Calls `each` with every segment that is not as the day before, and how it was.
fn each_dirty<'t>(machine: &'t Machine, each: &mut dyn FnMut(&'t [Print], &'t [Print])) {
    let mut disk: BTreeMap<u32, &Segment> = BTreeMap::new();
    for day in &machine.days {
        for (place, segment) in &day.changed {
            let before = disk.insert(*place, segment).map_or(&[][..], |before| before);
            if before != &**segment {
                each(segment, before);
            }
        }
    }
}

/// The different chunks of a machine, of all days.
fn different(machine: &Machine) -> BTreeSet<Print> {
    let segments = machine.days.iter().flat_map(|day| day.changed.values());
    segments.flat_map(|segment| segment.iter().copied()).filter(|print| *print != 0).collect()
}

/// Chunks by the number of machines that have them: at `n` those in `n + 1`.
fn by_machines(trace: &Trace) -> Vec<u64> {
    let mut owners: BTreeMap<Print, usize> = BTreeMap::new();
    for print in trace.machines.iter().flat_map(different) {
        *owners.entry(print).or_default() += 1;
    }
    let mut counts = vec![0; owners.values().copied().max().unwrap_or(0)];
    owners.into_values().for_each(|machines| counts[machines - 1] += 1);
    counts
}

/// Chunks that are left if the `shared` most popular are stored once, and all others once in each
/// machine that has them: no popular set of that size leaves less.
fn least_left(by_machines: &[u64], shared: u64) -> u64 {
    let (mut left, mut quota) = (0, shared);
    for (machines, chunks) in (1..=by_machines.len() as u64).rev().zip(by_machines.iter().rev()) {
        let once = quota.min(*chunks);
        quota -= once;
        left += once + (chunks - once) * machines;
    }
    left
}

#[test]
fn the_same_offset_finds_what_the_parents_segment_has() -> crate::Result<()> {
    let trace = small();
    let (mut dirty, mut left) = (0, 0);
    for machine in &trace.machines {
        each_dirty(machine, &mut |segment, before| {
            let before: BTreeSet<&Print> = before.iter().collect();
            dirty += segment.len() as u64;
            left += segment.iter().filter(|print| !before.contains(print)).count() as u64;
        });
    }
    let fleet = Fleet::backed_up(&trace, SAME_OFFSET)?;
    assert_eq!(dirty_chunks(&fleet.levels), dirty);
    assert_eq!(chunks(&fleet.levels, Level::New), left);
    assert_eq!(fleet.count()?.private_slots, left);
    Ok(())
}

#[test]
fn all_levels_find_almost_all_that_a_machine_has() -> crate::Result<()> {
    let trace = small();
    let least: usize = trace.machines.iter().map(|machine| different(machine).len()).sum();
    let stored = |detection| -> crate::Result<u64> {
        Ok(Fleet::backed_up(&trace, detection)?.count()?.private_slots - least as u64)
    };
    let (same, one) = (stored(SAME_OFFSET)?, stored(ONE_SIGNATURE)?);
    let all = stored(DetectionOptions::default())?;
    assert!(same > 1000, "{same} duplicates are elsewhere in the parent");
    assert!(one * 10 < same * 9, "one signature misses {one} of {same}");
    assert!(all * 5 < one * 4, "all levels miss {all}, one signature {one}");
    Ok(())
}

/// So many chunks of a kind.
fn prints(kind: u64, count: usize) -> Vec<Print> {
    (1..=count as u64).map(|number| kind << 32 | number).collect()
}

/// Chunks that one level has to find, and no level before it can.
#[test]
fn each_level_finds_its_own() -> crate::Result<()> {
    let sealed = |parts: &[&[Print]]| parts.concat().into_boxed_slice();
    let (first, second) = (prints(1, SEGMENT_CHUNKS), prints(2, SEGMENT_CHUNKS));
    let few = 5;
    let repeating = sealed(&[&first[..few], &prints(3, SEGMENT_CHUNKS - few)]);
    let half = SEGMENT_CHUNKS / 2;
    let edited = sealed(&[&second[..half], &prints(4, half)]);
    let zeros = vec![0; half];
    let days = [
        vec![(0, sealed(&[&first])), (1, sealed(&[&second])), (2, repeating)],
        vec![(1, edited), (3, sealed(&[&first])), (4, sealed(&[&zeros, &prints(5, half)]))],
    ];
    let days = days.into_iter().map(|changed| Day { changed: changed.into_iter().collect() });
    let machine = Machine { name: "machine".to_owned(), days: days.collect() };
    let trace = Trace { machines: vec![machine] };
    let fleet = Fleet::backed_up(&trace, DetectionOptions::default())?;
    let found = |level| chunks(&fleet.levels, level);
    assert_eq!(found(Level::Recent), few as u64, "placed by the same backup");
    assert_eq!(found(Level::SameOffset), half as u64, "left of the edited segment");
    assert_eq!(found(Level::Similar), SEGMENT_CHUNKS as u64, "moved as a whole");
    assert_eq!(found(Level::New), unique(&trace));
    assert_eq!(fleet.count()?.private_slots, unique(&trace));
    let all = DetectionOptions::default();
    for (level, off) in [
        (Level::Recent, DetectionOptions { recent: false, ..all }),
        (Level::SameOffset, DetectionOptions { same_offset: false, ..all }),
        (Level::Similar, DetectionOptions { similar_signatures: 0, ..all }),
        (Level::Similar, DetectionOptions { similar_segments: 0, ..all }),
    ] {
        let without = Fleet::backed_up(&trace, off)?.levels;
        assert_eq!(chunks(&without, level), 0, "{off:?}");
        assert_eq!(dirty_chunks(&without), dirty_chunks(&fleet.levels));
    }
    Ok(())
}

#[test]
fn a_popular_set_leaves_about_the_least_that_one_of_its_size_can() -> crate::Result<()> {
    let trace = small();
    let by_machines = by_machines(&trace);
    let different: u64 = by_machines.iter().sum();
    let fleet = Fleet::backed_up(&trace, DetectionOptions::default())?;
    let mut before = fleet.count()?;
    assert_eq!(before.chunks_by_series, by_machines);
    let missed = before.private_slots - least_left(&by_machines, 0);
    for share in [0.02, 0.1] {
        let chosen = fleet.share(SharePolicy::Popular(share))?.chosen_chunks;
        assert!((chosen as f64 - share * different as f64).abs() < 1.0, "{chosen} of {different}");
        let after = fleet.count()?;
        let stored = after.private_slots + after.shared_slots;
        let least = least_left(&by_machines, chosen);
        assert_eq!(after.shared_slots, chosen);
        assert!((least..=least + missed).contains(&stored), "{stored} for {least}");
        assert!(stored < before.private_slots + before.shared_slots);
        before = after;
    }
    Ok(())
}

#[test]
fn rounds_store_almost_every_chunk_once() -> crate::Result<()> {
    let trace = small();
    let missed = Fleet::backed_up(&trace, DetectionOptions::default())?.count()?.private_slots
        - least_left(&by_machines(&trace), 0);
    for rounds in [1, 3] {
        let fleet = Fleet::in_rounds(&trace, rounds)?;
        fleet.link()?;
        let counted = fleet.count()?;
        let stored = counted.private_slots + counted.shared_slots;
        let least = unique(&trace);
        assert!((least..=least + missed).contains(&stored), "{stored} for {least}");
    }
    Ok(())
}

#[test]
fn a_block_of_one_chunk_is_counted_for_every_chunk_of_the_last_snapshot() -> crate::Result<()> {
    // Nothing moves or repeats, so that no chunk of a machine is stored twice.
    let plain = Shape { moved: 0.0, repeated: 0.0, update_sharing: 2.0, ..Shape::default() };
    let trace = generate(&Shape { machines: 12, segments: 5, days: 3, ..plain });
    let fleet = Fleet::backed_up(&trace, DetectionOptions::default())?;
    fleet.share(SharePolicy::Duplicates)?;
    let mut owners: BTreeMap<Print, usize> = BTreeMap::new();
    for print in trace.machines.iter().flat_map(different) {
        *owners.entry(print).or_default() += 1;
    }
    let counted = fleet.blocks(1)?;
    for (machine, (own, shared)) in trace.machines.iter().zip(counted) {
        let mut disk: BTreeMap<u32, &Segment> = BTreeMap::new();
        machine.days.iter().for_each(|day| disk.extend(day.changed.iter().map(|(p, s)| (*p, s))));
        let all: BTreeSet<Print> = disk.values().flat_map(|s| s.iter().copied()).collect();
        let common = all.iter().filter(|print| owners[*print] > 1).count();
        assert_eq!((own.len(), shared.len()), (all.len() - common, common), "{}", machine.name);
    }
    Ok(())
}

/// Containers of the two sizes hold as many chunks of a trace as the sizes of [`BLOCKS`] say, up to
/// what their last ones lack.
#[test]
fn containers_hold_what_those_of_disks_do() -> crate::Result<()> {
    let base = Shape { moved: 0.0, repeated: 0.0, sharing: 1.0, days: 1, ..Shape::default() };
    let trace = generate(&Shape { machines: 1, segments: 192, ..base });
    let count =
        |fleet: Fleet<'_>| Ok::<_, crate::Error>(fleet.blocks(CONTAINER_SLOTS_MAX)?[0].0.len());
    let chunks = different(&trace.machines[0]).len();
    for (fleet, size) in [
        (Fleet::backed_up(&trace, DetectionOptions::default())?, BLOCKS[2].1),
        (Fleet::in_large_containers(&trace)?, BLOCKS[3].1),
    ] {
        let (found, wanted) = (count(fleet)? as f64, chunks as f64 / size as f64);
        // The last one is not full.
        let is_near = (found - wanted).abs() < 0.2 * wanted + 1.0;
        assert!(is_near, "{found} for {wanted} of {size} chunks");
    }
    Ok(())
}

#[test]
fn what_was_backed_up_is_the_trace() -> crate::Result<()> {
    let trace = small();
    for fleet in
        [Fleet::backed_up(&trace, DetectionOptions::default())?, Fleet::in_rounds(&trace, 2)?]
    {
        fleet.verify()?;
    }
    Ok(())
}

/// From scheme to scheme less is stored, and none stores less than is different.
#[test]
fn the_schemes_are_in_order() -> crate::Result<()> {
    let trace = small();
    let all = run_all(&trace)?.schemes;
    let of = |name: &str| all.iter().find(|found| found.name == name).map(|o| o.stored_chunks);
    let rising = [
        "dirty bits only",
        "same place in the parent",
        "similar segments, one signature",
        "all levels inside a machine",
        "popular 2 %",
        "popular 4 %",
        "all duplicates shared",
        "synchronous (perfect)",
    ];
    let stored: Vec<u64> = rising.iter().filter_map(|name| of(name)).collect();
    assert_eq!(stored.len(), rising.len());
    assert!(stored.is_sorted_by(|a, b| a >= b), "{stored:?}");
    assert_eq!(*stored.last().unwrap_or(&0), unique(&trace));
    assert!(all.iter().all(|scheme| scheme.stored_chunks >= unique(&trace)));
    Ok(())
}

/// Chunks that are left where a segment is compared with the parent's at its place, and with up to
/// ten segments, of the parent and of the same backup, whose least fingerprint is its own.
fn one_signature_left(trace: &Trace) -> u64 {
    let least = |segment: &Segment| segment.iter().map(|print| draw(*print)).min();
    let mut left = 0;
    for machine in &trace.machines {
        let mut disk: BTreeMap<u32, &Segment> = BTreeMap::new();
        for day in &machine.days {
            let mut written: Vec<&Segment> = Vec::new();
            for (place, segment) in &day.changed {
                let similar = written.iter().rev().chain(disk.values());
                let similar = similar.filter(|other| least(other) == least(segment)).take(10);
                let known: BTreeSet<Print> = similar
                    .chain(disk.get(place))
                    .flat_map(|other| other.iter().copied())
                    .collect();
                left += segment.iter().filter(|print| !known.contains(print)).count() as u64;
                written.push(segment);
            }
            disk.extend(day.changed.iter().map(|(place, segment)| (*place, segment)));
        }
    }
    left
}

/// The check of a row: it is nearer to its oracle than a third of the way to the next row's.
fn is_its_row(stored: u64, oracle: u64, next: u64) -> bool {
    stored.abs_diff(oracle) * 3 < next.abs_diff(oracle)
}

fn rows_trace() -> Trace {
    let shape = Shape { machines: 24, segments: 8, days: 4, sharing: 3.0, ..Shape::default() };
    generate(&shape)
}

#[test]
fn rows_are_at_their_oracles_and_mutations_are_not() -> crate::Result<()> {
    let trace = rows_trace();
    let stored = |detection| -> crate::Result<u64> {
        Ok(Fleet::backed_up(&trace, detection)?.count()?.private_slots)
    };
    let machines = by_machines(&trace);
    let (same, one) = (stored(SAME_OFFSET)?, one_signature_left(&trace));
    let alone = least_left(&machines, 0);
    // The honest rows.
    let (by_one, by_all) = (stored(ONE_SIGNATURE)?, stored(DetectionOptions::default())?);
    assert!(is_its_row(by_one, one, same), "{by_one} for {one}; next {same}");
    assert!(is_its_row(by_all, alone, one), "{by_all} for {alone}; next {one}");
    // Similarity off.
    let off = DetectionOptions { similar_signatures: 0, ..ONE_SIGNATURE };
    assert!(!is_its_row(stored(off)?, one, same), "similarity off passes");
    // Levels that invent nothing and are asked on every second day only.
    let halves =
        |day: usize| if day.is_multiple_of(2) { SAME_OFFSET } else { DetectionOptions::default() };
    let half = Fleet::backed_up_by(&trace, &halves)?;
    half.verify()?;
    let half = half.count()?.private_slots;
    assert!(!is_its_row(half, alone, one), "{half} for {alone}; next {one}");
    Ok(())
}

#[test]
fn an_empty_popular_set_fails_the_check_of_the_popular_row() -> crate::Result<()> {
    let trace = rows_trace();
    let machines = by_machines(&trace);
    let different: u64 = machines.iter().sum();
    let after = |share: f64| -> crate::Result<u64> {
        let fleet = Fleet::backed_up(&trace, DetectionOptions::default())?;
        fleet.share(SharePolicy::Popular(share))?;
        let counted = fleet.count()?;
        Ok(counted.private_slots + counted.shared_slots)
    };
    let oracle = |share: f64| least_left(&machines, floor(different as f64 * share) as u64);
    let [none, two, four] = [0.0, 0.02, 0.04].map(oracle);
    assert!(none > two && two > four);
    let check = |stored| is_its_row(stored, two, none);
    let honest = after(0.02)?;
    assert!(check(honest), "{honest} for {two}; none {none}, 4 % {four}");
    assert!(!check(after(0.0)?), "an empty set passes");
    Ok(())
}
