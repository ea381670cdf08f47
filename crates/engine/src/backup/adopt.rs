//! Containers that an interrupted backup has left: found, offered to detection, and adopted when used.

use std::collections::BTreeSet;

use silt_chunking::signatures;
use silt_format::{Head, PRIVATE_STORE, Reference, Result, names};

use super::signature_index::{Candidate, SignatureIndex};
use crate::chunks::open_container;
use crate::objects::{Objects, is_damage};

/// How many consecutive chunks of a container stand for a segment in the index of signatures.
const GROUP_CHUNKS: usize = 512;

/// What storage holds beyond what the head names.
pub(crate) struct Orphans {
    containers: BTreeSet<u32>,
    used: BTreeSet<u32>,
    /// The first container number that nobody has used.
    pub(crate) next_container: u32,
    /// The first pack number that nobody has used.
    pub(crate) next_pack: u32,
}

impl Orphans {
    /// Lists what lies behind the head's numbers; readable containers join the index.
    pub(crate) fn find(objects: &Objects, head: &Head, index: &mut SignatureIndex) -> Result<Self> {
        let mut orphans = Self {
            containers: BTreeSet::new(),
            used: BTreeSet::new(),
            next_container: head.next_container,
            next_pack: head.next_pack,
        };
        let series = head.series;
        let behind = names::container(series, head.next_container, 0);
        for number in
            behind_head(objects, &names::containers(series), &behind, head.next_container)?
        {
            orphans.next_container = number.saturating_add(1);
            match open_container(objects, series, number, 0) {
                Ok(container) => {
                    for group in container.directory.fingerprints.chunks(GROUP_CHUNKS) {
                        index.insert(&signatures(group.iter()), Candidate::Container(number));
                    }
                    orphans.containers.insert(number);
                }
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let behind = names::pack(series, head.next_pack, 0);
        for number in behind_head(objects, &names::recipes(series), &behind, head.next_pack)? {
            orphans.next_pack = number.saturating_add(1);
        }
        Ok(orphans)
    }

    /// Remembers that a reference into a left-over container was placed.
    pub(crate) fn used(&mut self, reference: Reference) {
        let ours = reference.store() == PRIVATE_STORE;
        if ours && self.containers.contains(&reference.container()) {
            self.used.insert(reference.container());
        }
    }

    /// The containers that the new snapshot refers to.
    pub(crate) fn into_used(self) -> Vec<u32> {
        self.used.into_iter().collect()
    }
}

/// The numbers of objects below `prefix` from `next` on, ascending; `first` is the name of `next`.
fn behind_head(objects: &Objects, prefix: &str, first: &str, next: u32) -> Result<Vec<u32>> {
    // The listing leaves out its start, so it starts at the name right before: without revision.
    let after = first.rsplit_once('.').map(|(number, _)| number);
    let mut numbers = Vec::new();
    for item in objects.names(prefix, after)? {
        let (name, _) = item?;
        if let Some((number, _)) = names::number_and_revision(&name)
            && number >= next
        {
            numbers.push(number);
        }
    }
    numbers.dedup();
    Ok(numbers)
}
