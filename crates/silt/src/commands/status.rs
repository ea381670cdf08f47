//! `silt status`: what a monitoring system asks for.

use serde_json::json;
use siltstone::SeriesStatus;

use super::{Failure, Session, replicas, short};
use crate::cli::Status;
use crate::{output, snapshot_name};

/// The exit status where a series is too old or damaged.
const NOT_PROTECTED: u8 = 20;

/// What is wrong with a series.
fn problems(
    status: &SeriesStatus,
    age_s: Option<u64>,
    max_age_s: Option<u64>,
) -> Vec<&'static str> {
    let mut found = Vec::new();
    if status.damage.is_some() || status.damaged_objects > 0 {
        found.push("damaged");
    }
    if !status.missing_volumes.is_empty()
        || status.unreadable_bytes > 0
        || status.unreadable_entries > 0
    {
        found.push("incomplete");
    }
    match (age_s, max_age_s) {
        (None, _) => found.push("no good snapshot"),
        (Some(age_s), Some(max_age_s)) if age_s > max_age_s => found.push("too old"),
        _ => {}
    }
    found
}

pub fn run(session: &Session<'_>, args: &Status) -> Result<u8, Failure> {
    let max_age_s = args.max_age.as_deref().map(snapshot_name::parse_seconds).transpose()?;
    let max_lag_s = args.max_lag.as_deref().map(snapshot_name::parse_seconds).transpose()?;
    let repository = session.repository()?;
    let all = repository.status(&args.series)?;
    // With named series, only they are asked about.
    let is_about_all = args.series.is_empty();
    let replicas = if is_about_all {
        replicas::statuses(session, &repository, max_lag_s)?
    } else {
        Vec::new()
    };
    session.reporter.finish();
    let now_ns = session.context.env.now_ns();
    let mut rows = Vec::new();
    let mut failing: Vec<&str> = Vec::new();
    for status in &all {
        let age_s = status.newest_good.map(|newest| {
            u64::try_from(now_ns.saturating_sub(newest.time_ns) / 1_000_000_000).unwrap_or(0)
        });
        // One that was removed on purpose is no reason for an alarm, unless it is asked for.
        let is_gone = status.is_removed && args.series.is_empty() && status.damage.is_none();
        let problems = if is_gone { Vec::new() } else { problems(status, age_s, max_age_s) };
        if !problems.is_empty() {
            failing.push(&status.series);
        }
        if session.global.json {
            print_json(status, age_s, &problems);
        } else {
            rows.push(row(status, age_s, &problems));
        }
    }
    let behind: Vec<&str> = replicas
        .iter()
        .filter(|replica| !replica.problems.is_empty())
        .map(|replica| replica.shown.as_str())
        .collect();
    if session.global.json {
        replicas::print(session, &replicas);
        let value = json!({
            "series": all.len(),
            "failing": failing,
            "replicas": replicas.len(),
            "failing_replicas": behind,
        });
        output::message("summary", value);
    } else if rows.is_empty() {
        output::line("No series yet. `silt backup SERIES PATH` makes one.");
    } else {
        let header = ["SERIES", "STATE", "NEWEST", "AGE", "ID", "SNAPSHOTS", "VERIFIED", "MAP"];
        output::table(&header, &rows, &[3, 5]);
        replicas::print(session, &replicas);
    }
    if !session.global.json {
        replicas.iter().for_each(replicas::explain);
    }
    if failing.is_empty() && behind.is_empty() {
        return Ok(0);
    }
    if !session.global.json {
        let failing_ones = all.iter().filter(|status| failing.contains(&status.series.as_str()));
        failing_ones.for_each(explain);
        if !failing.is_empty() {
            output::note(&format!("silt: not protected: {}", failing.join(", ")));
        }
        if !behind.is_empty() {
            output::note(&format!("silt: replicas not up to date: {}", behind.join(", ")));
        }
    }
    Ok(NOT_PROTECTED)
}

/// Prints what is wrong with a series beyond its age, and the command that helps.
fn explain(status: &SeriesStatus) {
    let name = &status.series;
    if status.damage.is_some() {
        output::note(&format!(
            "silt: {name}: the newest head cannot be read; `silt recover {name}` goes on with the \
             one before"
        ));
    }
    if status.damaged_objects > 0 {
        output::note(&format!(
            "silt: {name}: {} objects are damaged; once they are healed, or the snapshots that \
             need them are deleted, `silt check` proves it and clears this state",
            status.damaged_objects
        ));
    }
    if !status.missing_volumes.is_empty() {
        output::note(&format!(
            "silt: {name}: the newest snapshot lacks volumes that the one before has: {}",
            status.missing_volumes.join(", ")
        ));
    }
    if status.unreadable_bytes > 0 || status.unreadable_entries > 0 {
        output::note(&format!(
            "silt: {name}: {} of disks, and {} files or directories, could not be read for the \
             newest snapshot",
            output::bytes(status.unreadable_bytes),
            status.unreadable_entries
        ));
    }
}

fn row(status: &SeriesStatus, age_s: Option<u64>, problems: &[&str]) -> Vec<String> {
    let newest = status.newest_good;
    let since = |time_s: u64| {
        i64::try_from(time_s.saturating_mul(1_000_000_000)).map_or("-".to_owned(), output::time)
    };
    vec![
        status.series.clone(),
        match problems {
            [] if status.is_removed => "removed".to_owned(),
            [] => "ok".to_owned(),
            problems => problems.join(", "),
        },
        newest.map_or("-".to_owned(), |newest| output::time(newest.time_ns)),
        age_s.map_or("-".to_owned(), age),
        newest.map_or("-".to_owned(), |newest| short(newest.id)),
        status.snapshots.to_string(),
        status.verified_since_s.map_or("never".to_owned(), since),
        status.proven_since_ns.map_or("-".to_owned(), output::time),
    ]
}

/// `3d 4h`, `5h 10m` or `12m`.
pub fn age(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes}m"),
        (0, _) => format!("{hours}h {minutes}m"),
        _ => format!("{days}d {hours}h"),
    }
}

fn print_json(status: &SeriesStatus, age_s: Option<u64>, problems: &[&str]) {
    let time =
        |time_s: u64| i64::try_from(time_s.saturating_mul(1_000_000_000)).map(output::rfc3339);
    let value = json!({
        "series": status.series,
        "ok": problems.is_empty(),
        "problems": problems,
        "snapshots": status.snapshots,
        "removed": status.is_removed,
        "newest_good": status.newest_good.map(|newest| newest.id.to_string()),
        "newest_good_time": status.newest_good.map(|newest| output::rfc3339(newest.time_ns)),
        "age_s": age_s,
        "newer_bad_snapshots": status.newer_bad,
        "missing_volumes": status.missing_volumes,
        "unreadable_bytes": status.unreadable_bytes,
        "unreadable_entries": status.unreadable_entries,
        "verified_since": status.verified_since_s.and_then(|time_s| time(time_s).ok()),
        "map_proven_since": status.proven_since_ns.map(output::rfc3339),
        "damaged_objects": status.damaged_objects,
        "damage": status.damage,
    });
    output::message("series_status", value);
}
