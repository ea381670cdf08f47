//! `silt backup --due-since`: a backup that was made already is not made again.

use serde_json::json;
use silt_format::{AHEAD_NS_MAX, Error, ErrorKind, SnapshotEntry};
use siltstone::Repository;

use super::{Failure, Session, short};
use crate::cli::Backup;
use crate::{output, snapshot_name};

/// The time of `--due-since`, in nanoseconds since 1970.
pub fn since(args: &Backup) -> Result<Option<i64>, Failure> {
    args.due_since.as_deref().map(snapshot_name::parse_since).transpose()
}

/// Whether a backup failed because another process has made it meanwhile; if so, reports that.
pub fn is_done_meanwhile(
    session: &Session<'_>,
    (repository, args): (&Repository, &Backup),
    series: &str,
    error: &Error,
) -> bool {
    let since_ns = since(args).ok().flatten().filter(|_| error.kind() == ErrorKind::Busy);
    let is_done = since_ns.map(|since_ns| is_done(session, repository, series, since_ns));
    is_done.is_some_and(|is_done| is_done.unwrap_or(false))
}

/// Whether a series has a snapshot from `since` or later; if so, reports it.
pub fn is_done(
    session: &Session<'_>,
    repository: &Repository,
    series: &str,
    since_ns: i64,
) -> Result<bool, Error> {
    let Some(head) = repository.head(repository.series_id(series))? else { return Ok(false) };
    let latest_ns = session.context.env.now_ns().saturating_add(AHEAD_NS_MAX);
    let counts = |entry: &&SnapshotEntry| (since_ns..=latest_ns).contains(&entry.time_ns);
    let counting = head.snapshots.iter().filter(counts);
    let Some(newest) = counting.max_by_key(|entry| entry.time_ns) else { return Ok(false) };
    if session.global.json {
        let value = json!({
            "series": head.shown(),
            "id": newest.id.to_string(),
            "short_id": short(newest.id),
            "time": output::rfc3339(newest.time_ns),
            "due_since": output::rfc3339(since_ns),
        });
        output::message("not_due", value);
    } else {
        output::done(&format!(
            "{} is not due: it has snapshot {} of {}",
            head.shown(),
            short(newest.id),
            output::time(newest.time_ns)
        ));
    }
    Ok(true)
}
