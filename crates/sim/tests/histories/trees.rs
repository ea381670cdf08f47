//! Histories of file trees, besides most of the others.

use silt_sim::{Plan, play};

use crate::play_drawn;

const TREES_HISTORIES: u64 = 600;

/// Every series has a tree, some change while they are backed up, and the same seed gives the same
/// events.
#[test]
fn every_series_has_trees_that_change_and_are_cut_in_other_ways() {
    let (mut shapes, mut ticks, mut events) = (Vec::new(), 0, String::new());
    for seed in 0..60 {
        let plan = Plan::draw_with_trees(seed);
        assert!(plan.shapes.iter().all(|shape| shape.trees() > 0), "{plan:#?}");
        shapes.extend(plan.shapes);
        ticks += u32::from(plan.tick_ms > 0);
        let outcome = play(&plan, true);
        assert!(outcome.violations.is_empty(), "seed {seed}: {:#?}", outcome.violations);
        if seed < 8 {
            assert_eq!(outcome.digest, play(&plan, false).digest, "seed {seed}");
        }
        events.extend(outcome.events);
    }
    let kinds = [silt_sim::Shape::Tree, silt_sim::Shape::Both, silt_sim::Shape::Trees];
    assert!(kinds.iter().all(|kind| shapes.contains(kind)));
    assert!(shapes.contains(&silt_sim::Shape::Varied) && ticks > 8, "{ticks}");
    for action in ["Backup", "Tune", "Delete", "Reclaim", "Restore", "Sweep"] {
        assert!(events.contains(&format!("has done {action}")), "{action}");
    }
}

#[test]
fn histories_of_file_trees_lose_nothing() {
    play_drawn(TREES_HISTORIES, Plan::draw_with_trees);
}
