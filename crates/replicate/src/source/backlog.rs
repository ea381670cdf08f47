//! What a replica still lacks, by what it said last.

use std::collections::VecDeque;

use silt_format::replica::KnownSnapshot;
use silt_format::{Error, ErrorKind, Head, Result};
use silt_repository::Repository;

use super::{ReplicateOptions, ReplicateReport, plan};

/// Snapshots of a series that a replica holds, of those with the newest times: at most this many,
/// and as many that are dated in the future.
const KNOWN_MAX: usize = 8;

/// What a replica holds of a series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesKnown {
    /// The series' own name at the source.
    pub series: String,
    /// The newest snapshots, the oldest first. Fewer than the replica holds: they are enough to
    /// tell which snapshots are sent next, and if they are lost, more of them seem to be missing.
    pub newest: Vec<KnownSnapshot>,
}

impl SeriesKnown {
    pub(super) fn new(series: &str, known: &[KnownSnapshot], now_ns: i64) -> Self {
        let mut this = Self { series: series.to_owned(), newest: known.to_vec() };
        this.shorten(now_ns);
        this
    }

    /// Adds a snapshot that was sent.
    pub(super) fn add(&mut self, sent: KnownSnapshot, now_ns: i64) {
        self.newest.push(sent);
        self.shorten(now_ns);
    }

    fn shorten(&mut self, now_ns: i64) {
        self.newest.sort_by_key(|known| known.time_ns);
        let (mut past, mut future): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.newest).into_iter().partition(|it| it.time_ns <= now_ns);
        past.drain(..past.len().saturating_sub(KNOWN_MAX));
        future.truncate(KNOWN_MAX);
        past.append(&mut future);
        self.newest = past;
    }
}

/// Snapshots of a series that the next replication sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeriesBacklog {
    /// The series' own name.
    pub series: String,
    /// Number of snapshots.
    pub snapshots: u64,
    /// When the oldest of them was made, in nanoseconds since 1970.
    pub oldest_ns: Option<i64>,
    /// Size of their disks and files in bytes.
    pub bytes: u64,
    /// Bytes that their backups stored, compressed; `None` if that is not known. The replica may
    /// have some of them from other series.
    pub new_bytes: Option<u64>,
    /// Why snapshots that the replica lacks are not sent.
    pub refused: Option<String>,
}

/// Finds out what a replication with these options would send to a replica that holds `known`. Asks
/// nobody: the replica may hold more by now.
///
/// A name in the options that no series has stands for no snapshots.
pub fn backlog(
    repository: &Repository,
    options: &ReplicateOptions,
    known: &[SeriesKnown],
) -> Result<Vec<SeriesBacklog>> {
    let mut all = Vec::new();
    for head in selected(repository, &options.series)? {
        let there = known.iter().find(|known| known.series == head.name);
        let there = there.map_or(&[][..], |known| &known.newest);
        let (mut planned, mut report) = (VecDeque::new(), ReplicateReport::default());
        plan::plan((repository, &head), there, options, (&mut planned, &mut report))?;
        all.push(SeriesBacklog {
            series: head.name.clone(),
            snapshots: silt_format::number::to_u64(planned.len()),
            oldest_ns: planned.iter().map(|planned| planned.time_ns).min(),
            bytes: planned.iter().map(|planned| planned.bytes).sum(),
            new_bytes: planned.iter().map(|planned| planned.new_bytes).sum(),
            refused: report.refused.pop().map(|(_, why)| why),
        });
    }
    Ok(all)
}

/// Whether a series is among `names`: names, and beginnings of names followed by `*`.
fn is_among(head: &Head, names: &[String]) -> bool {
    let is = |name: &str, pattern: &str| match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    };
    names.is_empty() || names.iter().any(|it| is(&head.name, it) || is(head.shown(), it))
}

/// The heads of the series that `names` select, of those that exist.
fn selected(repository: &Repository, names: &[String]) -> Result<Vec<Head>> {
    let mut heads = repository.heads(&[])?;
    heads.retain(|head| is_among(head, names));
    Ok(heads)
}

/// The heads of the series that the options select.
///
/// Fails with `NotFound` if a name belongs to no series, unless it may be absent.
pub(super) fn heads(repository: &Repository, options: &ReplicateOptions) -> Result<Vec<Head>> {
    if options.may_be_absent {
        return selected(repository, &options.series);
    }
    let (beginnings, plain): (Vec<_>, Vec<_>) =
        options.series.iter().cloned().partition(|name| name.ends_with('*'));
    if beginnings.is_empty() {
        return repository.heads(&plain);
    }
    let mut heads = selected(repository, &beginnings)?;
    let of = |name: &str, heads: &[Head]| {
        let name = [name.to_owned()];
        heads.iter().any(|head| is_among(head, &name))
    };
    if let Some(name) = beginnings.iter().find(|name| !of(name, &heads)) {
        let message = format!("there is no series '{name}' with a snapshot");
        return Err(Error::new(ErrorKind::NotFound, message));
    }
    if !plain.is_empty() {
        let others = repository.heads(&plain)?.into_iter();
        heads.extend(others.filter(|head| !is_among(head, &beginnings)));
    }
    Ok(heads)
}
