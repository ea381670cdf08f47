//! Lists the objects of a series that a head names.

use std::collections::HashSet;

use silt_format::{Head, Id, ObjectSet, ObjectTag, Result, Snapshot, SnapshotEntry, names};
use silt_repository::edit::read_snapshots;
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;

use crate::edit::Edit;
use crate::repository::Repository;

/// An object of a series.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) name: String,
    pub(super) bytes: u64,
}

impl Edit<'_> {
    /// The objects of a listing that a head names neither itself nor by its snapshots, and that no
    /// backup can come to use.
    pub(super) fn unnamed_by(&self, head: &Head, listing: &[Listed]) -> Result<Vec<usize>> {
        let series = head.series;
        let deleted = head.deleted.iter().map(|deleted| &deleted.entry);
        let entries: Vec<SnapshotEntry> = head.snapshots.iter().chain(deleted).cloned().collect();
        let snapshots = read_readable(self.repository, head, &entries)?;
        let Some(snapshots) = snapshots else { return Ok(Vec::new()) };
        let vectors: HashSet<Id> =
            snapshots.iter().filter_map(|snapshot| snapshot.summary).map(|s| s.id).collect();
        let set = |set: &ObjectSet, next: u32, name: &str| {
            names::number_and_tag(name)
                .is_none_or(|(number, tag)| number >= next || set.tag(number) == Some(tag))
        };
        let id = |name: &str| name.rsplit('/').next().and_then(Id::from_hex);
        // A backup that still runs writes these to a storage node, and will register them.
        let is_reserved = |name: &str| {
            names::number_and_tag(name).is_some_and(|(number, _)| {
                head.store_writers.iter().any(|it| (it.first..it.end).contains(&number))
            })
        };
        let is_named = |name: &str| {
            if name.starts_with(&names::containers(series)) {
                set(&head.containers, head.next_container, name) || is_reserved(name)
            } else if name.starts_with(&names::recipes(series)) {
                set(&head.packs, head.next_pack, name)
            } else if name.starts_with(&names::snapshots(series)) {
                id(name).is_none_or(|id| entries.iter().any(|entry| entry.id == id))
            } else if name.starts_with(&names::summaries(series)) {
                names::id_and_part(name).is_none_or(|(id, _)| vectors.contains(&id))
            } else if name.starts_with(&names::runs(series)) {
                names::id_and_part(name)
                    .is_none_or(|(id, _)| head.runs.iter().any(|run| run.id == id))
            } else {
                let mut lists = head.dead.iter().chain(&head.condemned).chain(&head.delta_bases);
                names::id_and_part(name).is_none_or(|(id, _)| lists.any(|list| list.id == id))
            }
        };
        let unnamed = listing.iter().enumerate().filter(|(_, listed)| !is_named(&listed.name));
        Ok(unnamed.map(|(place, _)| place).collect())
    }
}

/// The same containers, of which those in `done` were rewritten under `tag`.
pub(crate) fn retagged(set: &ObjectSet, done: &HashSet<u32>, tag: ObjectTag) -> ObjectSet {
    let mut containers = ObjectSet::default();
    for (number, old) in set.iter() {
        containers.push(number, if done.contains(&number) { tag } else { old });
    }
    containers
}

/// The snapshots of a head; `None` with a warning if one can't be read, since what it names is then
/// not known.
fn read_readable(
    repository: &Repository,
    head: &Head,
    entries: &[SnapshotEntry],
) -> Result<Option<Vec<Snapshot>>> {
    match read_snapshots(repository, head.series, entries) {
        Ok(snapshots) => Ok(Some(snapshots)),
        Err(error) if is_damage(&error) => {
            repository.warn(Warning::after(&error, "unreferenced objects are not removed"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The same objects without those in `gone`, ascending.
pub(super) fn without(set: &ObjectSet, gone: &[u32]) -> ObjectSet {
    let mut left = ObjectSet::default();
    for (number, tag) in set.iter().filter(|(number, _)| gone.binary_search(number).is_err()) {
        left.push(number, tag);
    }
    left
}
