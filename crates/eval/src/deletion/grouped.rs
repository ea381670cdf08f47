//! Grouped mark-and-sweep (Guo and Efstathopoulos, ATC 2011) over the product's recipes: marks of
//! groups of snapshots that have not changed are used again, and only containers that a group has
//! lost snapshots in are swept.

use std::collections::{BTreeMap, BTreeSet};

use silt_format::{Head, Id, SHARED_STORE, SeriesId, SnapshotEntry};
use silt_repository::chunks::open_container;
use silt_repository::edit::read_snapshots;
use silt_repository::map::MapReader;
use silt_repository::objects::Scratch;
use silt_repository::series::DEFAULT_DOMAIN;
use silt_sharing::references::each_unshared;
use siltstone::Repository;

use crate::Result;

/// A container: its store and its number there.
type Container = (SeriesId, u32);
/// The slots that are referred to, a bit each.
type Marks = BTreeMap<Container, Vec<u64>>;
/// A slot that nothing refers to.
pub type DeadSlot = (SeriesId, u32, u16);

/// Bytes of a container in stored marks, but for its bits: store, number, length.
const MARKED_BYTES: usize = 12 + 4 + 2;

/// What a sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Groups whose recipes were read.
    pub marked: u64,
    /// Groups whose stored marks were used again.
    pub reused: u64,
    pub recipes: u64,
    /// Bytes of stored marks that were read, and written.
    pub marks_read: u64,
    pub marks_written: u64,
    /// Bytes of all marks.
    pub marks_held: u64,
    /// Containers that were swept.
    pub containers: u64,
}

/// Snapshots of one series, in the order in which they were first seen.
#[derive(Default)]
struct Group {
    members: Vec<Id>,
    /// Those that lived when the marks were made, and the marks.
    marked: Option<(BTreeSet<Id>, Marks)>,
}

/// The groups of all series, with their marks.
pub struct Groups {
    /// Snapshots of a group at most.
    size: usize,
    all: BTreeMap<SeriesId, Vec<Group>>,
}

impl Groups {
    pub fn of(size: usize) -> Self {
        Self { size, all: BTreeMap::new() }
    }

    /// Marks what groups that have changed refer to, and returns the dead slots of containers that
    /// a deleted snapshot may have referred to; the first time, those of all containers.
    pub fn sweep(&mut self, repository: &Repository) -> Result<(BTreeSet<DeadSlot>, Work)> {
        let mut work = Work::default();
        let is_first = self.all.is_empty();
        let mut suspects: BTreeSet<Container> = BTreeSet::new();
        let shared = repository.objects.keys.shared_store_id(DEFAULT_DOMAIN);
        let mut heads = BTreeMap::new();
        for id in repository.series_ids()? {
            if let Some(head) = repository.head(id)? {
                heads.insert(id, head);
            }
        }
        if let Some(head) = repository.head(shared)? {
            heads.insert(shared, head);
        }
        for (id, head) in heads.iter().filter(|(id, _)| **id != shared) {
            let groups = self.all.entry(*id).or_default();
            assign(groups, &head.snapshots, self.size);
            for group in groups {
                mark(repository, (head, shared), group, &mut suspects, &mut work)?;
            }
        }
        if is_first {
            let all = heads
                .iter()
                .flat_map(|(id, head)| head.containers.iter().map(|(number, _)| (*id, number)));
            suspects.extend(all);
        }
        let dead = self.dead(repository, &heads, &suspects, &mut work)?;
        let marks = self.all.values().flatten().filter_map(|group| group.marked.as_ref());
        work.marks_held = marks.flat_map(|(_, marks)| marks.values()).map(|bits| size(bits)).sum();
        Ok((dead, work))
    }

    /// The slots of these containers that no group has marked.
    fn dead(
        &self,
        repository: &Repository,
        heads: &BTreeMap<SeriesId, Head>,
        suspects: &BTreeSet<Container>,
        work: &mut Work,
    ) -> Result<BTreeSet<DeadSlot>> {
        let mut dead = BTreeSet::new();
        for container in suspects {
            let (store, number) = *container;
            let tag = heads.get(&store).and_then(|head| head.containers.tag(number));
            let Some(tag) = tag else { continue };
            let opened = open_container(&repository.objects, store, number, tag)?;
            let mut marks: Vec<&Vec<u64>> = Vec::new();
            for group in self.all.values().flatten() {
                let bits = group.marked.as_ref().and_then(|(_, marks)| marks.get(container));
                marks.extend(bits);
            }
            work.containers += 1;
            work.marks_read += marks.iter().map(|bits| size(bits)).sum::<u64>();
            let is_marked = |slot: u16| {
                let (word, bit) = (usize::from(slot / 64), slot % 64);
                marks.iter().any(|bits| bits.get(word).is_some_and(|word| word >> bit & 1 == 1))
            };
            let slots = opened.directory.slot_numbers().filter(|slot| !is_marked(*slot));
            dead.extend(slots.map(|slot| (store, number, slot)));
        }
        Ok(dead)
    }
}

/// Bytes that the marks of a container take when they are stored.
fn size(bits: &[u64]) -> u64 {
    (MARKED_BYTES + size_of_val(bits)) as u64
}

/// Adds snapshots that no group has to the last one, or to another if that is full.
fn assign(groups: &mut Vec<Group>, snapshots: &[SnapshotEntry], size: usize) {
    let known: BTreeSet<Id> =
        groups.iter().flat_map(|group| group.members.iter().copied()).collect();
    for snapshot in snapshots.iter().filter(|snapshot| !known.contains(&snapshot.id)) {
        match groups.last_mut() {
            Some(last) if last.members.len() < size => last.members.push(snapshot.id),
            _ => groups.push(Group { members: vec![snapshot.id], marked: None }),
        }
    }
}

/// Marks anew what a group refers to, if it has changed.
fn mark(
    repository: &Repository,
    (head, shared): (&Head, SeriesId),
    group: &mut Group,
    suspects: &mut BTreeSet<Container>,
    work: &mut Work,
) -> Result<()> {
    let members = |entry: &&SnapshotEntry| group.members.contains(&entry.id);
    let living: Vec<SnapshotEntry> = head.snapshots.iter().filter(members).cloned().collect();
    let ids: BTreeSet<Id> = living.iter().map(|entry| entry.id).collect();
    if let Some((before, marks)) = &group.marked {
        if *before == ids {
            work.reused += 1;
            return Ok(());
        }
        if !before.is_subset(&ids) {
            suspects.extend(marks.keys().copied());
        }
    }
    let snapshots = read_snapshots(repository, head.series, &living)?;
    let reader = MapReader::new(&repository.objects, head);
    let (mut scratch, mut raw, mut marks) = (Scratch::default(), Vec::new(), Marks::new());
    each_unshared(&reader, &snapshots, &mut |_| {}, &mut |block| {
        work.recipes += 1;
        for chunk in reader.recipe(block, &mut scratch, &mut raw)?.chunks {
            let reference = chunk.reference;
            if reference.is_zero() {
                continue;
            }
            let store = if reference.store() == SHARED_STORE { shared } else { head.series };
            let bits = marks.entry((store, reference.container())).or_default();
            let word = usize::from(reference.slot() / 64);
            bits.resize(bits.len().max(word + 1), 0);
            bits[word] |= 1 << (reference.slot() % 64);
        }
        Ok(())
    })?;
    work.marked += 1;
    work.marks_written += marks.values().map(|bits| size(bits)).sum::<u64>();
    group.marked = Some((ids, marks));
    Ok(())
}
