//! How far behind the replicas are, by what this machine has recorded. No replica is asked.

use serde_json::json;
use silt_replicate::{SeriesBacklog, backlog};
use siltstone::Repository;

use super::record::{Record, Records};
use super::settings::{ReplicaSettings, of_profile};
use crate::commands::{Failure, Session};
use crate::output;

/// How far behind a replica is.
pub struct ReplicaStatus {
    /// Its name in the profile, otherwise its location.
    pub shown: String,
    name: Option<String>,
    record: Record,
    series: Vec<SeriesBacklog>,
    /// Age of the oldest snapshot that is not sent, in seconds.
    lag_s: Option<u64>,
    pub problems: Vec<&'static str>,
}

impl ReplicaStatus {
    /// What it is called, with the prefix of a replica that has no name.
    fn with_prefix(&self) -> String {
        match (&self.name, &*self.record.prefix) {
            (Some(name), _) => name.clone(),
            (None, "") => self.shown.clone(),
            (None, prefix) => format!("{} ({prefix}*)", self.shown),
        }
    }

    fn snapshots(&self) -> u64 {
        self.series.iter().map(|series| series.snapshots).sum()
    }

    fn bytes(&self) -> u64 {
        self.series.iter().map(|series| series.bytes).sum()
    }

    /// Bytes that the backups of the snapshots have stored; `None` if one of them does not tell.
    fn new_bytes(&self) -> Option<u64> {
        self.series.iter().map(|series| series.new_bytes).sum()
    }

    fn oldest_ns(&self) -> Option<i64> {
        self.series.iter().filter_map(|series| series.oldest_ns).min()
    }
}

/// The replicas of the profile, and the others that this machine has replicated to.
///
/// A replica has a problem if nothing was ever sent to it, or if a snapshot that is not sent is
/// older than `max_lag_s` or the profile's `max-lag`. Without such a limit, an attempt that failed
/// is a problem, too.
pub fn statuses(
    session: &Session<'_>,
    repository: &Repository,
    max_lag_s: Option<u64>,
) -> Result<Vec<ReplicaStatus>, Failure> {
    let records = Records::new(session, repository);
    let mut found = Vec::new();
    let of_profile = of_profile(session);
    for (&name, &settings) in &of_profile {
        let record = records.of(settings).unwrap_or_else(|| Record::new(settings));
        found.push((Some(name.to_owned()), record, settings.clone()));
    }
    for record in records.all() {
        let is = |settings: &&ReplicaSettings| {
            settings.to == record.to && settings.prefix == record.prefix
        };
        if !of_profile.values().any(is) {
            let settings = record.settings();
            found.push((None, record, settings));
        }
    }
    let status = |(name, record, settings): (Option<String>, Record, ReplicaSettings)| {
        let max_lag_s = max_lag_s.or(settings.max_lag);
        let series = backlog(repository, &settings.options(), &record.known())?;
        let shown = name.clone().unwrap_or_else(|| record.to.clone());
        let mut status =
            ReplicaStatus { shown, name, record, series, lag_s: None, problems: Vec::new() };
        let now_ns = session.context.env.now_ns();
        status.lag_s = status.oldest_ns().map(|oldest_ns| {
            u64::try_from(now_ns.saturating_sub(oldest_ns) / 1_000_000_000).unwrap_or(0)
        });
        status.problems = problems(&status, max_lag_s);
        Ok(status)
    };
    found.into_iter().map(status).collect()
}

fn problems(status: &ReplicaStatus, max_lag_s: Option<u64>) -> Vec<&'static str> {
    let mut found = Vec::new();
    if status.record.replica.is_none() && status.snapshots() > 0 {
        found.push("never replicated");
    } else if status.record.error.is_some() && max_lag_s.is_none() {
        found.push("failed");
    }
    if status.series.iter().any(|series| series.refused.is_some()) {
        found.push("refused");
    }
    if let (Some(lag_s), Some(max_lag_s)) = (status.lag_s, max_lag_s)
        && lag_s > max_lag_s
    {
        found.push("behind");
    }
    found
}

/// Prints the replicas.
pub fn print(session: &Session<'_>, all: &[ReplicaStatus]) {
    if session.global.json {
        all.iter().for_each(print_json);
    } else if !all.is_empty() {
        let rows: Vec<Vec<String>> = all.iter().map(row).collect();
        output::line("");
        let header = ["REPLICA", "STATE", "WAITING", "OLDEST", "NEW DATA", "VOLUMES", "UP TO DATE"];
        output::table(&header, &rows, &[2, 3, 4, 5]);
    }
}

/// Prints what is wrong with a replica.
pub fn explain(status: &ReplicaStatus) {
    let name = status.with_prefix();
    if let Some(error) = &status.record.error {
        output::note(&format!("silt: replica {name}: the last replication failed: {error}"));
    }
    for series in &status.series {
        // One of them is the reason for which the last replication failed.
        let is_told = |why: &String| {
            let told = status.record.error.as_ref();
            told.is_some_and(|told| *told == format!("{}: {why}", series.series))
        };
        if let Some(why) = series.refused.as_ref().filter(|why| !is_told(why)) {
            output::note(&format!("silt: replica {name}: {}: {why}", series.series));
        }
    }
}

fn row(status: &ReplicaStatus) -> Vec<String> {
    let is_waiting = status.snapshots() > 0;
    let only_if = |text: String| if is_waiting { text } else { "-".to_owned() };
    let state = match &status.problems[..] {
        [] if status.record.error.is_some() => "failed".to_owned(),
        [] if is_waiting => "waiting".to_owned(),
        [] => "ok".to_owned(),
        problems => problems.join(", "),
    };
    vec![
        status.with_prefix(),
        state,
        status.snapshots().to_string(),
        status.lag_s.map_or("-".to_owned(), crate::commands::status::age),
        only_if(status.new_bytes().map_or("?".to_owned(), output::bytes)),
        only_if(output::bytes(status.bytes())),
        status.record.last_success_ns.map_or("never".to_owned(), output::time),
    ]
}

fn print_json(status: &ReplicaStatus) {
    let series = status.series.iter().filter(|it| it.snapshots > 0 || it.refused.is_some());
    let series = series.map(|it| {
        json!({
            "series": it.series,
            "waiting": it.snapshots,
            "oldest_waiting": it.oldest_ns.map(output::rfc3339),
            "bytes": it.bytes,
            "new_bytes": it.new_bytes,
            "refused": it.refused,
        })
    });
    let record = &status.record;
    let value = json!({
        "replica": status.name,
        "destination": record.to,
        "prefix": record.prefix,
        "repository": record.replica,
        "ok": status.problems.is_empty(),
        "problems": status.problems,
        "waiting": status.snapshots(),
        "oldest_waiting": status.oldest_ns().map(output::rfc3339),
        "oldest_waiting_age_s": status.lag_s,
        "bytes": status.bytes(),
        "new_bytes": status.new_bytes(),
        "last_attempt": record.last_attempt_ns.map(output::rfc3339),
        "last_success": record.last_success_ns.map(output::rfc3339),
        "error": record.error,
        "series": series.collect::<Vec<_>>(),
    });
    output::message("replica_status", value);
}
