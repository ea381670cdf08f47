//! Which snapshots a replica lacks.

use std::collections::{HashMap, HashSet, VecDeque};

use silt_format::replica::{KnownSnapshot, Origin};
use silt_format::{Error, ErrorKind, Result};
use silt_format::{Head, Id, RepositoryId, Snapshot, SnapshotEntry, Volume};
use silt_repository::find::Selector;
use silt_repository::{Found, Repository};

use super::backlog::SeriesKnown;
use super::{Moved, Outcome, ReplicateOptions, ReplicateReport, SnapshotOutcome};

/// A snapshot that will be sent.
pub(super) struct Planned {
    pub series: String,
    pub to: String,
    pub snapshot: Id,
    pub time_ns: i64,
    pub bytes: u64,
    /// Bytes that its backup stored, together with those of the snapshots before it that are left
    /// out; `None` if that is not known.
    pub new_bytes: Option<u64>,
    pub origin: Origin,
}

impl Planned {
    pub fn outcome(
        self,
        bytes: u64,
        Moved { sent: sent_bytes, in_deltas: delta_bytes, reread: reread_bytes }: Moved,
        outcome: Outcome,
    ) -> SnapshotOutcome {
        let Self { series, to, snapshot, time_ns, new_bytes, .. } = self;
        SnapshotOutcome {
            series,
            to,
            snapshot,
            time_ns,
            bytes,
            new_bytes,
            sent_bytes,
            delta_bytes,
            reread_bytes,
            outcome,
        }
    }
}

/// The name of a series at the replica.
pub(super) fn replica_name(options: &ReplicateOptions, head: &Head) -> String {
    format!("{}{}", options.prefix, head.name)
}

/// The snapshot that a snapshot of `repository` is a copy of, or itself.
fn origin_of(repository: &Repository, snapshot: &Snapshot) -> Origin {
    let itself = Origin { repository: repository.id(), snapshot: snapshot.id };
    snapshot.origin.unwrap_or(itself)
}

/// Plans the snapshots of a series that are newer than the newest one that the replica has, too.
///
/// The replica may have deleted older ones, also if the newest common one is no longer here: so
/// nothing is sent that is older than a snapshot of the same repository which only the replica has.
/// Snapshots that are dated in the future don't count: after a wrong clock was set right, later
/// snapshots must still be sent.
pub(super) fn plan(
    (repository, head): (&Repository, &Head),
    known: &[KnownSnapshot],
    options: &ReplicateOptions,
    (planned, report): (&mut VecDeque<Planned>, &mut ReplicateReport),
) -> Result<()> {
    let now_ns = repository.objects.context.env.now_ns();
    report.known.push(SeriesKnown::new(&head.name, known, now_ns));
    let there: HashSet<Origin> = known.iter().map(|known| known.origin).collect();
    let (mut lacked, mut has_common) = (Vec::new(), known.is_empty());
    // Snapshots that the others may have been compared with.
    let mut parents: HashSet<Id> = HashSet::new();
    let mut seen = HashSet::new();
    // From the newest on, since the newest common one ends the search.
    for entry in head.snapshots.iter().rev() {
        let snapshot = match repository.snapshot(head.series, entry) {
            Ok(snapshot) => snapshot,
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                let why = format!("snapshot {}: {error}", entry.id);
                report.refused.push((head.name.clone(), why));
                continue;
            }
            // It was deleted since the head was read.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let origin = origin_of(repository, &snapshot);
        parents.insert(snapshot.id);
        seen.insert(origin);
        if there.contains(&origin) {
            report.present += 1;
            has_common = true;
            if entry.time_ns <= now_ns {
                break;
            }
            continue;
        }
        lacked.push((entry, snapshot, origin));
    }
    let may_refuse = !has_common && !lacked.is_empty();
    let theirs: HashSet<_> = known.iter().map(|known| known.origin.repository).collect();
    let is_related = lacked.iter().any(|(.., origin)| theirs.contains(&origin.repository));
    lacked.retain(|_| has_common || is_related);
    let what =
        if lacked.is_empty() { "snapshots of another source" } else { "only later snapshots" };
    let newest = newest_only_there(known, &seen, now_ns);
    lacked.retain(|(_, snapshot, origin)| {
        newest.get(&origin.repository).is_none_or(|time_ns| *time_ns < snapshot.time_ns)
    });
    if may_refuse && lacked.is_empty() {
        let to = replica_name(options, head);
        let why = format!("the replica's series '{to}' holds {what}; choose a prefix");
        report.refused.push((head.name.clone(), why));
        return Ok(());
    }
    let wanted = lacked.iter().filter(|(entry, ..)| is_wanted(entry, options));
    let wanted: HashSet<Id> =
        wanted.take(options.newest.unwrap_or(usize::MAX)).map(|(entry, ..)| entry.id).collect();
    let mut new_bytes = Some(0);
    for (entry, snapshot, origin) in lacked.into_iter().rev() {
        // What a deleted snapshot has stored is not counted in those that are left.
        let is_counted = snapshot.parent.is_none_or(|parent| parents.contains(&parent));
        let stored = is_counted.then(|| snapshot.stored_bytes());
        new_bytes = new_bytes.and_then(|bytes: u64| bytes.checked_add(stored?));
        if !wanted.contains(&entry.id) {
            continue;
        }
        planned.push_back(Planned {
            series: head.name.clone(),
            to: replica_name(options, head),
            snapshot: entry.id,
            time_ns: snapshot.time_ns,
            bytes: size_of(&snapshot),
            new_bytes: new_bytes.replace(0),
            origin,
        });
    }
    Ok(())
}

/// By the repository where the backup was made, when the newest snapshot was made that only the
/// replica has, and that is not dated in the future.
fn newest_only_there(
    known: &[KnownSnapshot],
    seen: &HashSet<Origin>,
    now_ns: i64,
) -> HashMap<RepositoryId, i64> {
    let mut newest = HashMap::new();
    let only_there = known.iter().filter(|known| !seen.contains(&known.origin));
    for known in only_there.filter(|known| known.time_ns <= now_ns) {
        let time_ns = newest.entry(known.origin.repository).or_insert(known.time_ns);
        *time_ns = known.time_ns.max(*time_ns);
    }
    newest
}

fn is_wanted(entry: &SnapshotEntry, options: &ReplicateOptions) -> bool {
    options.tags.is_empty() || entry.labels.iter().any(|label| options.tags.contains(label))
}

/// Size of a snapshot's disks and files in bytes.
pub(super) fn size_of(snapshot: &Snapshot) -> u64 {
    snapshot.volumes.iter().map(Volume::logical_bytes).sum()
}

/// The snapshot as it is now; `NotFound` if it was deleted.
pub(super) fn find(repository: &Repository, planned: &Planned) -> Result<Found> {
    repository.find(&Selector::Id(planned.snapshot.to_string()))
}

/// The snapshot of a series that is, or is a copy of, `origin`; `None` if there is none, or if it
/// can't be read.
pub(super) fn find_origin(
    repository: &Repository,
    head: &Head,
    origin: Origin,
) -> Result<Option<Found>> {
    for entry in head.snapshots.iter().rev() {
        let snapshot = match repository.snapshot(head.series, entry) {
            Err(error) if is_lost(&error) => continue,
            snapshot => snapshot?,
        };
        if origin_of(repository, &snapshot) == origin {
            return match repository.find(&Selector::Id(entry.id.to_string())) {
                Err(error) if is_lost(&error) => Ok(None),
                found => found.map(Some),
            };
        }
    }
    Ok(None)
}

fn is_lost(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}
