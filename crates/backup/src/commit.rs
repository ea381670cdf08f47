//! Committing a backup.

use silt_format::{Hashed, Head, ObjectKind, Result, Snapshot, SnapshotEntry, names};
use silt_repository::heads;
use silt_repository::objects::{Address, Objects};
use silt_repository::packs::DurablePacks;
use silt_repository::summary::DurableSummary;

use super::adopt::AdoptedContainers;
use super::container::DurableContainers;

/// Everything that a new head names and its predecessor did not, each with the proof that it is
/// durable (I-5): the parts can only be had from the writers that waited for storage.
pub(crate) struct Commit {
    pub(crate) containers: DurableContainers,
    /// Containers of an interrupted backup that this one refers to.
    pub(crate) adopted: AdoptedContainers,
    pub(crate) next_container: u32,
    pub(crate) packs: DurablePacks,
    pub(crate) next_pack: u32,
    /// A summary vector of its own, or `None` for its parent's or none.
    pub(crate) summary: Option<DurableSummary>,
    pub(crate) snapshot: Snapshot,
    pub(crate) labels: Vec<String>,
    pub(crate) session: [u8; 16],
}

/// The result of a commit.
pub(crate) struct Committed {
    pub(crate) snapshot: Snapshot,
    pub(crate) generation: u64,
    /// Bytes of the snapshot object and the head.
    pub(crate) stored_bytes: u64,
}

/// Writes the snapshot, then the series' next head.
///
/// Fails with `Busy` if another process has committed since `head` was read.
pub(crate) fn commit(objects: &Objects, mut head: Head, commit: Commit) -> Result<Committed> {
    let mut snapshot = commit.snapshot;
    if let Some(summary) = &commit.summary {
        snapshot.summary = Some(summary.summary);
        head.summary = Some(summary.summary.geometry);
    }
    let name = names::snapshot(head.series, snapshot.id);
    let address = Address::new(ObjectKind::Snapshot, head.series, snapshot.id.0);
    let plain = snapshot.encode();
    let hash = objects.keys.content_hash(Hashed::Snapshot, &plain);
    let mut stored_bytes = objects.put(&name, address, &plain)?;

    let mut containers = commit.containers.0;
    containers.extend(commit.adopted.into_numbers());
    containers.sort_unstable();
    containers.into_iter().for_each(|(number, tag)| head.containers.push(number, tag));
    commit.packs.into_numbers().into_iter().for_each(|(number, tag)| head.packs.push(number, tag));
    head.next_container = head.next_container.max(commit.next_container);
    head.next_pack = head.next_pack.max(commit.next_pack);
    let (id, time_ns) = (snapshot.id, snapshot.time_ns);
    head.snapshots.push(SnapshotEntry { id, time_ns, flags: 0, hash, labels: commit.labels });
    head.snapshots.sort_by_key(|entry| entry.time_ns);
    stored_bytes += heads::commit(objects, &mut head, commit.session, None)?;
    Ok(Committed { snapshot, generation: head.generation, stored_bytes })
}
