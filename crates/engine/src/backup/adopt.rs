//! Containers that an interrupted backup has left: found, offered to detection, and adopted when used.

use std::collections::{BTreeMap, BTreeSet};

use silt_chunking::signatures;
use silt_format::{Head, ObjectTag, PRIVATE_STORE, Reference, Result, names};

use super::signature_index::{Candidate, SignatureIndex};
use crate::chunks::open_container;
use crate::objects::{Objects, is_damage};

/// How many consecutive chunks of a container stand for a segment in the index of signatures.
const GROUP_CHUNKS: usize = 512;

/// What storage holds beyond what the head names.
pub(crate) struct Orphans {
    containers: BTreeMap<u32, ObjectTag>,
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
            containers: BTreeMap::new(),
            used: BTreeSet::new(),
            next_container: head.next_container,
            next_pack: head.next_pack,
        };
        let series = head.series;
        let behind = names::container(series, head.next_container, ObjectTag::NONE);
        for (number, tag) in
            behind_head(objects, &names::containers(series), &behind, head.next_container)?
        {
            orphans.next_container = number.saturating_add(1);
            match open_container(objects, series, number, tag) {
                Ok(container) => {
                    for group in container.directory.fingerprints.chunks(GROUP_CHUNKS) {
                        let candidate = Candidate::Container(number, tag);
                        index.insert(&signatures(group.iter()), candidate);
                    }
                    orphans.containers.insert(number, tag);
                }
                Err(error) if is_damage(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let behind = names::pack(series, head.next_pack, ObjectTag::NONE);
        for (number, _) in behind_head(objects, &names::recipes(series), &behind, head.next_pack)? {
            orphans.next_pack = number.saturating_add(1);
        }
        Ok(orphans)
    }

    /// Remembers that a reference into a left-over container was placed.
    pub(crate) fn used(&mut self, reference: Reference) {
        let ours = reference.store() == PRIVATE_STORE;
        if ours && self.containers.contains_key(&reference.container()) {
            self.used.insert(reference.container());
        }
    }

    /// The containers that the new snapshot refers to.
    pub(crate) fn into_used(self) -> Vec<(u32, ObjectTag)> {
        let used = |(number, _): &(u32, ObjectTag)| self.used.contains(number);
        self.containers.into_iter().filter(used).collect()
    }
}

/// The objects below `prefix` from the number `next` on, ascending, one of each number: the first that
/// is listed. `first` is a name that `next` has.
fn behind_head(
    objects: &Objects,
    prefix: &str,
    first: &str,
    next: u32,
) -> Result<Vec<(u32, ObjectTag)>> {
    // The listing leaves out its start, so it starts at the name right before: without a tag.
    let after = first.rsplit_once('.').map(|(number, _)| number);
    let mut numbers = Vec::new();
    for item in objects.names(prefix, after)? {
        let (name, _) = item?;
        if let Some((number, tag)) = names::number_and_tag(&name)
            && number >= next
        {
            numbers.push((number, tag));
        }
    }
    numbers.dedup_by_key(|(number, _)| *number);
    Ok(numbers)
}
