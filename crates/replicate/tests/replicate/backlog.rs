//! What a replica lacks is counted as the next replication would send it, without asking it.

use silt_replicate::{Outcome, ReplicateOptions, SeriesKnown, backlog};
use siltstone::{BackupOptions, DeleteMethod};

use crate::kit::{SEGMENT, Site, back_up_with, noise, replica_of, send_by, site};

fn back_up(here: &Site, series: &str, seed: u64, tags: &[&str]) {
    let tags = tags.iter().map(|&tag| tag.to_owned()).collect();
    let options = BackupOptions { tags, ..BackupOptions::default() };
    back_up_with(here, series, &noise(seed, SEGMENT), options);
}

/// Asserts that the backlog is the plan of a replication; returns the number of snapshots.
#[track_caller]
fn compared(here: &Site, there: &Site, options: &ReplicateOptions, known: &[SeriesKnown]) -> u64 {
    let plan = send_by(here, there, ReplicateOptions { dry_run: true, ..options.clone() });
    let lacked = backlog(&here.repository, options, known).unwrap();
    let count: u64 = lacked.iter().map(|series| series.snapshots).sum();
    assert_eq!(count, plan.snapshots.len() as u64, "{lacked:?}\n{plan:?}");
    let oldest = lacked.iter().filter_map(|series| series.oldest_ns).min();
    assert_eq!(oldest, plan.snapshots.iter().map(|planned| planned.time_ns).min());
    let new: Option<u64> = lacked.iter().map(|series| series.new_bytes).sum();
    assert_eq!(new, plan.snapshots.iter().map(|planned| planned.new_bytes).sum());
    let refused = lacked.iter().filter(|series| series.refused.is_some()).count();
    assert_eq!(refused, plan.refused.len());
    count
}

fn delete(at: &Site, series: &str, number: usize) {
    let heads = at.repository.heads(&[]).unwrap();
    let head = heads.iter().find(|head| head.name == series).unwrap();
    let id = head.snapshots[number].id;
    at.repository.delete(series, &[id], DeleteMethod::Exact).unwrap();
}

#[test]
fn a_backlog_is_the_plan_of_the_next_replication() {
    let here = site();
    let there = replica_of(&here);
    for seed in 1..=4 {
        back_up(&here, "web1", seed, &["nightly"]);
    }
    back_up(&here, "db1", 9, &[]);
    let all = ReplicateOptions::default();
    assert_eq!(compared(&here, &there, &all, &[]), 5);
    let newest = ReplicateOptions { newest: Some(1), ..all.clone() };
    assert_eq!(compared(&here, &there, &newest, &[]), 2);
    let known = send_by(&here, &there, newest.clone()).known;
    // Older snapshots that were left out are not sent later.
    assert_eq!(compared(&here, &there, &all, &known), 0);
    back_up(&here, "web1", 5, &["nightly"]);
    back_up(&here, "web1", 6, &[]);
    assert_eq!(compared(&here, &there, &all, &known), 2);
    let tagged = ReplicateOptions { tags: vec!["nightly".to_owned()], ..all.clone() };
    assert_eq!(compared(&here, &there, &tagged, &known), 1);
    let some = ReplicateOptions { series: vec!["d*".to_owned()], ..all.clone() };
    assert_eq!(compared(&here, &there, &some, &known), 0);
    // The one before the oldest that waits, which both have, is deleted here.
    delete(&here, "web1", 3);
    assert_eq!(compared(&here, &there, &all, &known), 2);
    assert_eq!(backlog(&here.repository, &all, &known).unwrap()[1].new_bytes, None);
    // The replica deletes what it has: that does not come back.
    let known = send_by(&here, &there, all.clone()).known;
    delete(&there, "web1", 1);
    assert_eq!(compared(&here, &there, &all, &known), 0);
    here.repository.rename("web1", "www").unwrap();
    back_up(&here, "web1", 7, &[]);
    assert_eq!(compared(&here, &there, &all, &known), 1);
    // What was lost is counted again.
    let lost = backlog(&here.repository, &all, &[]).unwrap();
    assert!(lost.iter().map(|series| series.snapshots).sum::<u64>() > 1);
}

#[test]
fn a_series_that_the_replica_refuses_is_told() {
    let here = site();
    let there = replica_of(&here);
    back_up(&there, "web1", 1, &[]);
    back_up(&here, "web1", 2, &[]);
    let all = ReplicateOptions::default();
    let report = send_by(&here, &there, all.clone());
    assert_eq!(report.refused.len(), 1);
    compared(&here, &there, &all, &report.known);
    let lacked = backlog(&here.repository, &all, &report.known).unwrap();
    assert!(lacked[0].refused.is_some());
}

#[test]
fn a_time_that_is_over_sends_nothing_and_the_rest_follows() {
    let here = site();
    let there = replica_of(&here);
    back_up(&here, "web1", 1, &[]);
    back_up(&here, "db1", 2, &[]);
    let options = ReplicateOptions { until_ns: Some(0), ..ReplicateOptions::default() };
    let report = send_by(&here, &there, options);
    assert!(report.is_complete() && report.is_postponed());
    let is_postponed = |outcome: &Outcome| matches!(outcome, Outcome::Postponed);
    assert!(report.snapshots.iter().all(|snapshot| is_postponed(&snapshot.outcome)));
    assert_eq!(compared(&here, &there, &ReplicateOptions::default(), &report.known), 2);
    let report = send_by(&here, &there, ReplicateOptions::default());
    assert!(report.snapshots.len() == 2 && !report.is_postponed());
}

#[test]
fn a_name_of_no_series_is_refused_unless_it_may_be_absent() {
    let here = site();
    let there = replica_of(&here);
    for series in ["db1", "db2", "web1"] {
        back_up(&here, series, 1, &[]);
    }
    let series = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let send = |names: &[&str], may_be_absent| {
        let options =
            ReplicateOptions { series: series(names), may_be_absent, ..Default::default() };
        let options = ReplicateOptions { dry_run: true, ..options };
        let here = &here.repository;
        silt_replicate::replicate(here, &there.repository, options, BackupOptions::default())
    };
    assert_eq!(send(&["db*", "db1", "web1"], false).unwrap().snapshots.len(), 3);
    assert_eq!(send(&["db*", "mail"], true).unwrap().snapshots.len(), 2);
    let error = send(&["db*", "mail"], false).unwrap_err();
    assert_eq!(error.kind(), silt_format::ErrorKind::NotFound);
    let error = send(&["db*", "x*"], false).unwrap_err();
    assert!(error.to_string().contains("'x*'"), "{error}");
    assert_eq!(send(&["x*"], true).unwrap().snapshots.len(), 0);
}
