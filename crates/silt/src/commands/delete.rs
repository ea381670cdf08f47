//! `silt delete`, `silt undelete`, `silt protect` and `silt unprotect`.

use std::collections::BTreeMap;

use serde_json::json;
use silt_format::Id;
use siltstone::{DeleteMethod, DeleteReport, Found, Repository, Warning};

use super::reclaim::{self, Space};
use super::{Failure, Session, short};
use crate::cli::{Delete, SomeSnapshots, Undelete};
use crate::{output, snapshot_name};

/// Snapshots of one series.
pub struct FoundInSeries {
    /// The series' own name, for operations.
    pub own_name: String,
    /// Its name for people.
    pub shown: String,
    pub ids: Vec<Id>,
}

/// Finds the named snapshots, by series.
pub fn find(repository: &Repository, names: &[String]) -> Result<Vec<FoundInSeries>, Failure> {
    let mut found: BTreeMap<String, FoundInSeries> = BTreeMap::new();
    for name in names {
        let Found { head, snapshot, .. } = repository.find(&snapshot_name::parse(name)?)?;
        let shown = head.shown().to_owned();
        let new = || FoundInSeries { own_name: head.name.clone(), shown, ids: Vec::new() };
        let ids = &mut found.entry(head.name.clone()).or_insert_with(new).ids;
        if !ids.contains(&snapshot.id) {
            ids.push(snapshot.id);
        }
    }
    Ok(found.into_values().collect())
}

pub fn run(session: &Session<'_>, args: &Delete) -> Result<u8, Failure> {
    let repository = session.repository_to_change(args.dry_run)?;
    let method = if args.exact { DeleteMethod::Exact } else { DeleteMethod::Approximate };
    for FoundInSeries { own_name, shown, ids } in find(&repository, &args.snapshots)? {
        let report = repository.delete(&own_name, &ids, method)?;
        let space = args.dry_run.then(|| space(session, &repository, &own_name));
        print(session, &shown, &report, space);
    }
    Ok(0)
}

/// What reclaiming a series would free after a dry run has deleted from it. A failure gives a
/// warning.
pub fn space(session: &Session<'_>, repository: &Repository, series: &str) -> Space {
    let space = reclaim::space(repository, series, &reclaim::defaults(session));
    session.reporter.finish();
    space.unwrap_or_else(|error| {
        let consequence = "the space that this would free is not known";
        session.context.warn(Warning::after(&error, consequence));
        Space::default()
    })
}

/// Prints the result of a deletion in one series; a dry run says what it would free.
pub fn print(session: &Session<'_>, series: &str, report: &DeleteReport, space: Option<Space>) {
    let dry_run = space.is_some();
    if session.global.json {
        let ids: Vec<String> = report.deleted.iter().map(ToString::to_string).collect();
        let value = json!({
            "series": series,
            "deleted": ids,
            "dry_run": dry_run,
            "segments_read": report.segments,
            "references_checked": report.references,
            "dead_chunks": report.dead_chunks,
            "all_dead": report.is_all_dead,
            "leaked_chunks": report.leaked_chunks,
            "leak_share": report.leak_share,
            "freed_now_bytes": space.map(|space| space.now_bytes),
            "freed_later_bytes": space.map(|space| space.later_bytes),
        });
        output::message("deleted", value);
        return;
    }
    let ids: Vec<String> = report.deleted.iter().map(|id| short(*id)).collect();
    let verb = if dry_run { "Would delete" } else { "Deleted" };
    let dead = if report.is_all_dead {
        "all chunks of the series are now dead".to_owned()
    } else {
        let dead = output::count(report.dead_chunks, "chunk");
        format!("{dead} now dead, perhaps about {:.1} more", report.leaked_chunks)
    };
    let count = output::count(ids.len(), "snapshot");
    output::outcome(dry_run, &format!("{verb} {count} of {series}: {}; {dead}", ids.join(", ")));
    if let Some(Space { now_bytes, later_bytes }) = space {
        let later = if later_bytes > 0 {
            let later = output::bytes(later_bytes);
            format!(", and {later} more once deleted snapshots can no longer be brought back")
        } else {
            String::new()
        };
        let now = output::bytes(now_bytes);
        output::line(&format!("  `silt reclaim` would then free {now}{later}"));
    }
}

pub fn undelete(session: &Session<'_>, args: &Undelete) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    for id in &args.ids {
        let (head, entry) = repository.find_deleted(id)?;
        repository.undelete(&head.name, entry.id)?;
        if session.global.json {
            let value = json!({"series": head.shown(), "id": entry.id.to_string()});
            output::message("undeleted", value);
        } else {
            output::done(&format!("Brought back snapshot {} of {}", short(entry.id), head.shown()));
        }
    }
    Ok(0)
}

pub fn protect(
    session: &Session<'_>,
    args: &SomeSnapshots,
    is_protected: bool,
) -> Result<u8, Failure> {
    let repository = session.repository_to_change(false)?;
    for FoundInSeries { own_name, shown, ids } in find(&repository, &args.snapshots)? {
        for id in ids {
            if is_protected {
                repository.protect(&own_name, id)?;
            } else {
                repository.unprotect(&own_name, id)?;
            }
            if session.global.json {
                let value =
                    json!({"series": shown, "id": id.to_string(), "protected": is_protected});
                output::message("protection", value);
            } else {
                let what = if is_protected { "is protected" } else { "is no longer protected" };
                output::done(&format!("Snapshot {} of {shown} {what}", short(id)));
            }
        }
    }
    Ok(0)
}
