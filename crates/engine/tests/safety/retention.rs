//! Retention policies decide as restic does, asked itself.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use silt_format::{ContentHash, Id, Period, RetentionPolicy, SnapshotEntry};
use siltstone::{Candidate, apply_policy};

use crate::kit::Random;

const SNAPSHOTS: usize = 26;

fn restic(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("restic");
    command.env("RESTIC_REPOSITORY", folder.join("repository")).env("RESTIC_PASSWORD", "x");
    command.env("TZ", "UTC").arg("--no-cache").args(args).current_dir(folder);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Times in seconds: some minutes, hours, days, weeks and months apart.
fn times(random: &mut Random) -> Vec<i64> {
    let steps = [600, 3600, 5 * 3600, 86_400, 2 * 86_400, 9 * 86_400, 40 * 86_400, 200 * 86_400];
    // The end of a leap year's February.
    let mut at = 1_709_164_799;
    let mut times = Vec::new();
    for _ in 0..SNAPSHOTS {
        times.push(at);
        at -= steps[random.below(steps.len())] + i64::try_from(random.below(300)).unwrap();
    }
    times
}

fn policies() -> Vec<(Vec<&'static str>, RetentionPolicy)> {
    let none = RetentionPolicy::default;
    let days = |days| Period { days, ..Period::default() };
    vec![
        (vec!["--keep-last", "3"], RetentionPolicy { last: 3, ..none() }),
        (vec!["--keep-hourly", "5"], RetentionPolicy { hourly: 5, ..none() }),
        (vec!["--keep-daily", "4"], RetentionPolicy { daily: 4, ..none() }),
        (vec!["--keep-weekly", "6"], RetentionPolicy { weekly: 6, ..none() }),
        (vec!["--keep-monthly", "40"], RetentionPolicy { monthly: 40, ..none() }),
        (vec!["--keep-yearly", "2"], RetentionPolicy { yearly: 2, ..none() }),
        (vec!["--keep-within", "90d"], RetentionPolicy { within: days(90), ..none() }),
        (
            vec!["--keep-within", "1y1m3d5h", "--keep-last", "1"],
            RetentionPolicy {
                within: Period { years: 1, months: 1, days: 3, hours: 5 },
                last: 1,
                ..none()
            },
        ),
        (
            vec!["--keep-daily", "3", "--keep-weekly", "3", "--keep-monthly", "3"],
            RetentionPolicy { daily: 3, weekly: 3, monthly: 3, ..none() },
        ),
        (
            vec!["--keep-tag", "keep", "--keep-yearly", "1"],
            RetentionPolicy { tags: vec!["keep".to_owned()], yearly: 1, ..none() },
        ),
    ]
}

/// The times that restic keeps.
fn kept_by_restic(folder: &Path, policy: &[&str]) -> BTreeSet<i64> {
    let args = ["forget", "--dry-run", "--json", "--group-by", ""];
    let output = restic(folder, &args).args(policy).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let json = text.lines().find(|line| line.starts_with('[')).unwrap();
    let groups: Value = serde_json::from_str(json).unwrap();
    let kept = groups[0]["keep"].as_array().unwrap().iter();
    kept.map(|snapshot| {
        let time: Timestamp = snapshot["time"].as_str().unwrap().parse().unwrap();
        time.as_second()
    })
    .collect()
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "whether a test may be skipped is the tester's choice"
)]
fn policies_keep_what_restic_keeps() {
    if Command::new("restic").arg("version").output().is_err() {
        let required = std::env::var("SILT_TESTS_REQUIRED").unwrap_or_default();
        assert!(!required.contains("restic"), "restic is required here and not installed");
        eprintln!("SKIPPED: restic is not installed; scripts/setup.sh installs it");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    assert!(restic(folder.path(), &["init", "-q"]).status().unwrap().success());
    std::fs::write(folder.path().join("file"), b"x").unwrap();
    let times = times(&mut Random(11));
    for pair in times.chunks(2) {
        let started: Vec<_> = pair
            .iter()
            .map(|time| {
                let at = Timestamp::from_second(*time).unwrap();
                let at = at.strftime("%Y-%m-%d %H:%M:%S").to_string();
                let mut command = restic(folder.path(), &["backup", "-q", "file", "--time", &at]);
                if time % 7 == 0 {
                    command.args(["--tag", "keep"]);
                }
                command.spawn().unwrap()
            })
            .collect();
        assert!(started.into_iter().all(|mut backup| backup.wait().unwrap().success()));
    }
    let candidates: Vec<Candidate> = (1_u64..)
        .zip(&times)
        .map(|(id, time)| {
            let labels = if time % 7 == 0 { vec!["keep".to_owned()] } else { Vec::new() };
            Candidate::new(&entry(id, time * 1_000_000_000, labels), None)
        })
        .collect();
    let now_ns = 1_790_000_000 * 1_000_000_000;
    // Versions before 0.16 do not keep the oldest of a period that is not full; this one is asked.
    let oldest = *times.last().unwrap();
    let keeps_oldest = kept_by_restic(folder.path(), &["--keep-monthly", "1000"]).contains(&oldest);
    assert!(times[SNAPSHOTS - 2] - oldest < 7 * 3600, "the two oldest are of one day");
    for (args, policy) in policies() {
        let decided = apply_policy(&policy, &candidates, now_ns, &TimeZone::UTC).unwrap();
        let counts = |reason: &&str| keeps_oldest || *reason != "oldest";
        let kept = decided.iter().filter(|kept| kept.reasons.iter().any(&counts));
        let ours: BTreeSet<i64> =
            kept.map(|kept| times[usize::try_from(kept.id.0).unwrap() - 1]).collect();
        assert_eq!(ours, kept_by_restic(folder.path(), &args), "{args:?}");
    }
}

fn entry(id: u64, time_ns: i64, labels: Vec<String>) -> SnapshotEntry {
    SnapshotEntry { id: Id(id), time_ns, flags: 0, hash: ContentHash([0; 16]), labels }
}

/// What a policy keeps of snapshots that are so many seconds old, by their number.
fn kept(policy: &RetentionPolicy, ages_s: &[i64], change: impl Fn(&mut [Candidate])) -> Vec<u64> {
    let now_s = 1_790_000_000;
    let mut candidates: Vec<Candidate> = (0..)
        .zip(ages_s)
        .map(|(id, age)| {
            let time_ns = (now_s - age) * 1_000_000_000;
            Candidate::new(&entry(id, time_ns, Vec::new()), Some(1_000_000))
        })
        .collect();
    change(&mut candidates);
    let now_ns = now_s * 1_000_000_000;
    let decided = apply_policy(policy, &candidates, now_ns, &TimeZone::UTC).unwrap();
    let kept = decided.iter().filter(|kept| !kept.reasons.is_empty()).map(|kept| kept.id.0);
    let kept: BTreeSet<u64> = kept.collect();
    kept.into_iter().collect()
}

#[test]
fn snapshots_of_the_future_are_kept_and_do_not_count() {
    let policy = RetentionPolicy { last: 2, ..RetentionPolicy::default() };
    assert_eq!(kept(&policy, &[-500_000, -400, 10, 20, 30], |_| {}), [0, 1, 2, 3]);
    let days = Period { hours: 1, ..Period::default() };
    let policy = RetentionPolicy { within: days, ..RetentionPolicy::default() };
    assert_eq!(kept(&policy, &[-500_000, 10, 3600, 3700], |_| {}), [0, 1, 2]);
}

#[test]
fn a_flood_of_new_snapshots_pushes_out_nothing_that_is_young_or_protected() {
    // Three good ones of the last days; then a host adds a hundred within minutes, some dated back.
    let mut ages = vec![86_400, 2 * 86_400, 3 * 86_400];
    ages.extend((0..100).map(|n| n * 10));
    let policy = RetentionPolicy { last: 3, ..RetentionPolicy::default() };
    assert_eq!(kept(&policy, &ages, |_| {}), [3, 4, 5], "counting alone does not help");
    let within = Period { days: 30, ..Period::default() };
    let guarded = RetentionPolicy { within, ..policy.clone() };
    assert!(kept(&guarded, &ages, |_| {}).starts_with(&[0, 1, 2]));
    let guarded = RetentionPolicy { age_min_s: 7 * 86_400, ..policy.clone() };
    let held = |candidates: &mut [Candidate]| {
        candidates.iter_mut().for_each(|candidate| candidate.age_s = Some(86_400));
    };
    assert!(kept(&guarded, &ages, held).starts_with(&[0, 1, 2]));
    let protect = |candidates: &mut [Candidate]| candidates[1].is_protected = true;
    assert_eq!(kept(&policy, &ages, protect), [1, 3, 4, 5]);
}
