//! Adopts containers of an interrupted backup: finds them, offers them to detection, and verifies
//! them when a chunk matches.
//!
//! They may be incomplete, because their writer may have died between two places, or before a
//! folder was durable. Frames may be damaged, and directories may be written by a host that cannot
//! read data. So before a reference points to a container, the backup reads all of it and compares
//! every chunk with its fingerprint. Before a head names it, every place gets it. A write-only
//! host, which cannot open frames, adopts nothing.

use std::collections::BTreeSet;

use silt_chunking::{Fingerprinter, signatures};
use silt_format::{Head, ObjectTag, PRIVATE_STORE, Reference, Result, ResultExt, SeriesId, names};
use silt_repository::chunks::{Container, open_container};
use silt_repository::container_reader::ContainerReader;
use silt_repository::objects::{Objects, is_damage, key};

use super::signature_index::{Candidate, SignatureIndex};

/// Number of consecutive chunks of a container that are treated as a segment in the signature
/// index.
const GROUP_CHUNKS: usize = 512;

/// Left-over containers that were verified and are durable in every place, so that a head may name
/// them (I-5).
#[derive(Default)]
pub(crate) struct AdoptedContainers(Vec<(u32, ObjectTag)>);

impl AdoptedContainers {
    pub(crate) fn into_numbers(self) -> Vec<(u32, ObjectTag)> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A left-over container whose chunks were all compared with their fingerprints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Proven {
    number: u32,
    tag: ObjectTag,
}

impl Proven {
    /// Reads a container and verifies all its chunks. Fails with `Corrupt` if anything differs from
    /// its directory.
    pub(crate) fn read(
        objects: &Objects,
        series: SeriesId,
        (number, tag): (u32, ObjectTag),
        fingerprinter: &Fingerprinter,
    ) -> Result<(Self, Container)> {
        let container = open_container(objects, series, number, tag)?;
        objects.require_beginning(&container.object)?;
        let mut reader = ContainerReader::new(objects);
        reader.expect(&container, |_| true);
        for (slot, _) in container.directory.slots() {
            reader.verified(&container, slot, fingerprinter)?;
        }
        Ok((Self { number, tag }, container))
    }
}

/// The objects in storage that the head does not name.
pub(crate) struct Orphans {
    containers: BTreeSet<u32>,
    used: BTreeSet<u32>,
    /// The first unused container number.
    pub(crate) next_container: u32,
    /// The first unused pack number.
    pub(crate) next_pack: u32,
}

impl Orphans {
    /// Lists the containers and packs after those of the head, and adds readable containers to the
    /// index.
    pub(crate) fn find(objects: &Objects, head: &Head, index: &mut SignatureIndex) -> Result<Self> {
        let mut orphans = Self {
            containers: BTreeSet::new(),
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
            if objects.keys.is_write_only() {
                continue;
            }
            match open_container(objects, series, number, tag) {
                Ok(container) => {
                    for group in container.directory.fingerprints.chunks(GROUP_CHUNKS) {
                        let candidate = Candidate::Container(number, tag);
                        index.insert(&signatures(group.iter()), candidate);
                    }
                    orphans.containers.insert(number);
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
        if ours && self.containers.contains(&reference.container()) {
            self.used.insert(reference.container());
        }
    }

    /// Adopts the containers that the new snapshot refers to: makes them durable in every place.
    pub(crate) fn adopt(
        self,
        objects: &Objects,
        series: SeriesId,
        proven: &BTreeSet<Proven>,
    ) -> Result<AdoptedContainers> {
        let adopted: Vec<&Proven> =
            proven.iter().filter(|proven| self.used.contains(&proven.number)).collect();
        assert_eq!(adopted.len(), self.used.len(), "no reference leads to what is not proven");
        let mut settled = Vec::new();
        for Proven { number, tag } in adopted {
            let name = names::container(series, *number, *tag);
            let durable = objects.storage.settle(&key(&name)?);
            durable.context(|| format!("use container {name} of an interrupted backup"))?;
            settled.push((*number, *tag));
        }
        Ok(AdoptedContainers(settled))
    }
}

/// Returns the objects below `prefix` with numbers from `next` on, in ascending order. Of several
/// objects with one number, returns the first that is listed. `first` is a name with number `next`.
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
        numbers.extend(names::number_and_tag(&name).filter(|(number, _)| *number >= next));
    }
    numbers.dedup_by_key(|(number, _)| *number);
    Ok(numbers)
}
