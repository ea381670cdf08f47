//! The shared store as backups use it: finds the chunk with a given fingerprint.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use silt_format::number::to_u32;
use silt_format::{
    ALONE, DeadRange, Fingerprint, Head, ObjectSet, Record, Reference, Result, RunRef, RunUse,
    SeriesId, StoreEntry,
};
use silt_repository::beside::each_beside;
use silt_repository::event::Warning;

use crate::avoided::Avoided;
use crate::lookup::RunLookup;
use crate::shared_record::SharedRecord;
use silt_repository::container::{Container, open_container};
use silt_repository::dead;
use silt_repository::heads;
use silt_repository::objects::{Objects, is_damage};
use silt_repository::stores::store_name;
use silt_repository::sync::lock;
use silt_repository::table::Table;

/// Number of containers whose fingerprints are held, of about 100 KiB each. Chunks that were shared
/// together are mostly found together, so one look-up in the index finds a whole neighbourhood; but
/// several hosts may have stored what belongs together.
const NEIGHBOURHOODS: usize = 24;
/// Chunks of those that belong together by which the containers that have them are found.
const SAMPLE: usize = 16;
/// Chunks that belong together at most: about as many as a super-chunk has.
const TOGETHER: usize = 256;

/// Looks fingerprints up in a store of several series, as of its head when this was opened.
pub struct SharedIndex {
    objects: Arc<Objects>,
    number: u16,
    store: SeriesId,
    generation: u64,
    runs: Vec<RunRef>,
    lookup: Option<RunLookup>,
    /// The containers found last, most recent first.
    near: Vec<(u32, Table)>,
    near_max: usize,
    containers: Arc<ObjectSet>,
    /// Dead and condemned slots, to which no new reference may point.
    barred: Arc<HashMap<u32, Vec<DeadRange>>>,
}

impl SharedIndex {
    /// Opens the shared store, if there is one, or that of a node; at most about `memory_bytes` of
    /// its index are held. With it the name of its newest check record.
    pub fn open(
        objects: &Arc<Objects>,
        (domain, number): (u32, u16),
        memory_bytes: usize,
    ) -> Result<Option<(Self, Option<String>)>> {
        let Some((head, check)) = newest_head(objects, (domain, number))? else { return Ok(None) };
        let index = Self::of_head(objects, number, &head, memory_bytes)?;
        Ok(Some((index, check)))
    }

    /// The index of a store with this number, as its `head` names it.
    pub fn of_head(
        objects: &Arc<Objects>,
        number: u16,
        head: &Head,
        memory_bytes: usize,
    ) -> Result<Self> {
        let store = head.series;
        let runs: Vec<_> =
            head.runs.iter().filter(|run| run.use_ == RunUse::Shared).copied().collect();
        let lists: Vec<_> = head.dead.iter().chain(&head.condemned).copied().collect();
        let barred = dead::read(objects, store, &lists)?;
        let barred = barred.by_container().map(|(number, ranges)| (number, ranges.to_vec()));
        Ok(Self {
            objects: Arc::clone(objects),
            number,
            store,
            generation: head.generation,
            lookup: lookup(objects, store, &runs, memory_bytes),
            runs,
            near: Vec::new(),
            near_max: NEIGHBOURHOODS,
            barred: Arc::new(barred.collect()),
            containers: Arc::new(head.containers.clone()),
        })
    }

    /// The same index, for somebody who does not wait for those who use this one: with caches of
    /// its own, and memory for about `memory_bytes` of the index.
    #[must_use]
    pub fn another(&self, memory_bytes: usize) -> Self {
        Self {
            objects: Arc::clone(&self.objects),
            lookup: lookup(&self.objects, self.store, &self.runs, memory_bytes),
            runs: self.runs.clone(),
            near: Vec::new(),
            barred: Arc::clone(&self.barred),
            containers: Arc::clone(&self.containers),
            ..*self
        }
    }

    /// Holds the fingerprints of so many containers, at least 1.
    #[must_use]
    pub fn holding(mut self, containers: usize) -> Self {
        self.near_max = containers.max(1);
        self
    }

    /// Takes over what an index of the same store holds, as of another head: objects do not change.
    /// The other one reads them again if it needs them.
    pub fn take_over(&mut self, other: &mut Self) {
        if (other.store, other.number) != (self.store, self.number) {
            return;
        }
        let of_both = |number| {
            let same_slots = self.barred.get(&number) == other.barred.get(&number);
            let tag = self.containers.tag(number);
            same_slots && tag.is_some() && tag == other.containers.tag(number)
        };
        let mut near = std::mem::take(&mut other.near);
        near.retain(|(number, _)| of_both(*number) && !self.holds(*number));
        self.near.append(&mut near);
        self.near.truncate(self.near_max);
        if let (Some(own), Some(other)) = (&mut self.lookup, &mut other.lookup) {
            own.take_over(other);
        }
    }

    /// The containers of the store.
    pub fn containers(&self) -> &ObjectSet {
        &self.containers
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.lookup.is_none()
    }

    /// The generation of the store's head that this was opened with.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Adds the store to a series' head, with the generation that its next commit knows.
    pub fn name_in(&self, head: &mut Head) {
        name_store(head, (self.number, self.store), self.generation);
    }

    /// Returns the chunk's reference, if the store has it with this length, and new references to
    /// it are allowed.
    ///
    /// A damaged index gives one warning and then finds nothing.
    pub fn get(&mut self, fingerprint: &Fingerprint, bytes: usize) -> Result<Option<Reference>> {
        if let Some(reference) = self.get_near(fingerprint, bytes) {
            return Ok(Some(reference));
        }
        match self.look_up(fingerprint, bytes) {
            Ok(found) => Ok(found),
            Err(error) if is_damage(&error) => {
                self.objects
                    .context
                    .warn(Warning::after(&error, "chunks of the shared store are stored again"));
                self.lookup = None;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The same, but looks only in the containers that are held.
    pub fn get_near(&mut self, fingerprint: &Fingerprint, bytes: usize) -> Option<Reference> {
        let near = self.near.iter().enumerate();
        let mut found = near.map(|(place, (_, table))| (place, table.get(fingerprint, bytes)));
        let (place, reference) = found.find(|(_, found)| found.is_some())?;
        self.near[..=place].rotate_right(1);
        reference
    }

    /// The places of chunks that belong together, as far as the containers that are held have them:
    /// of those that have a chunk, the one that has most of all, or was stored first. Containers
    /// that have few of them may be overlooked.
    pub fn find_near(&mut self, wanted: &[(Fingerprint, u32)]) -> Vec<Option<Reference>> {
        let step = wanted.len().div_ceil(SAMPLE).max(1);
        let mut held = Vec::new();
        for (number, table) in &self.near {
            let place =
                |(fingerprint, bytes): &(Fingerprint, u32)| table.get(fingerprint, *bytes as usize);
            if wanted.iter().step_by(step).any(|chunk| place(chunk).is_some()) {
                held.push((*number, wanted.iter().map(place).collect()));
            }
        }
        let (found, used) = of_few(held, wanted.len());
        for number in used.into_iter().rev() {
            self.bring_forward(number);
        }
        found
    }

    /// Whether the fingerprints of a container are held, which are used from now on.
    fn bring_forward(&mut self, number: u32) -> bool {
        let place = self.near.iter().position(|(held, _)| *held == number);
        place.inspect(|place| self.near[..=*place].rotate_right(1)).is_some()
    }

    /// Holds the fingerprints of a container of the store from now on, in place of those that were
    /// used least recently; and of some behind it, if those of the container before it are held.
    pub fn fetch(&mut self, number: u32) -> Result<()> {
        if self.bring_forward(number) {
            return Ok(());
        }
        let Some(tag) = self.containers.tag(number) else { return Ok(()) };
        let mut wanted = vec![(number, tag)];
        if self.holds(number.wrapping_sub(1)) {
            // Chunks are found in the order in which they were stored.
            let next = (1..=self.near_max.div_ceil(8).min(self.near_max - 1))
                .map(|next| number.saturating_add(to_u32(next)));
            let next = next.filter(|next| *next > number && !self.holds(*next));
            wanted.extend(next.filter_map(|next| Some((next, self.containers.tag(next)?))));
        }
        let store = self.store;
        let open = |objects: &Arc<Objects>, (number, tag)| {
            (number, open_container(objects, store, number, tag))
        };
        let objects = Arc::clone(&self.objects);
        let mut opened = Vec::new();
        each_beside(&objects, wanted, open, |(number, container)| {
            match container {
                Ok(container) => opened.push((number, self.table_of(number, &container))),
                // Of the others, who needs one is told.
                Err(error) if opened.is_empty() => return Err(error),
                Err(_) => {}
            }
            Ok(())
        })?;
        self.near.truncate(self.near_max.saturating_sub(opened.len()));
        // What may be needed must not displace what is.
        let ahead = opened.split_off(opened.len().min(1));
        self.near.splice(0..0, opened);
        let place = self.near.len().min(self.near_max / 2);
        self.near.splice(place..place, ahead);
        Ok(())
    }

    /// Whether the fingerprints of a container are held.
    fn holds(&self, number: u32) -> bool {
        self.near.iter().any(|(held, _)| *held == number)
    }

    /// The chunks of a container to which new references may point.
    fn table_of(&self, number: u32, container: &Container) -> Table {
        let (directory, store) = (&container.directory, self.number);
        let chunks = directory.slots().map(|(slot, place)| {
            let reference = Reference::new(store, number, slot);
            (directory.fingerprints[place.index as usize], place.length, reference)
        });
        let open = chunks.filter(|(_, _, reference)| self.is_open(*reference));
        Table::new(open.collect())
    }

    /// Searches the runs, and caches the neighbourhood of a found chunk.
    fn look_up(&mut self, fingerprint: &Fingerprint, bytes: usize) -> Result<Option<Reference>> {
        // A chunk may exist twice: condemned, and stored again.
        let (containers, barred) = (&*self.containers, &*self.barred);
        let is_wanted = |record: &Record| {
            let SharedRecord { reference, chunk_bytes } = SharedRecord::decode(record);
            chunk_bytes as usize == bytes && is_open(containers, barred, reference)
        };
        let Some(lookup) = &mut self.lookup else { return Ok(None) };
        let Some(record) = lookup.find(fingerprint, &is_wanted)? else { return Ok(None) };
        let reference = SharedRecord::decode(&record).reference;
        self.fetch(reference.container())?;
        Ok(Some(reference))
    }

    /// Whether new references may lead there.
    pub fn is_open(&self, reference: Reference) -> bool {
        is_open(&self.containers, &self.barred, reference)
    }
}

/// Look-ups in runs, if there are any.
fn lookup(
    objects: &Arc<Objects>,
    store: SeriesId,
    runs: &[RunRef],
    memory_bytes: usize,
) -> Option<RunLookup> {
    (!runs.is_empty()).then(|| RunLookup::new(objects, store, runs.to_vec(), memory_bytes))
}

/// The newest head of the shared store or of a node, which is made durable, and the name of its
/// newest check record. `None` if it has none.
pub fn newest_head(
    objects: &Arc<Objects>,
    (domain, number): (u32, u16),
) -> Result<Option<(Head, Option<String>)>> {
    if domain == ALONE || !objects.keys.has_domain(domain) {
        return Ok(None);
    }
    let store = objects.keys.store_id(domain, number);
    let state = heads::state(objects, store)?;
    let Some(head) = state.head else { return Ok(None) };
    let empty = || Head::empty(store, domain, &store_name(number));
    let head = heads::base(objects, store, &head, empty)?;
    Ok(Some((head, state.check)))
}

/// Places of so many chunks from few containers, and which these are, the one with most of the
/// chunks first. `held` has the places in each container, by its number.
fn of_few(
    mut held: Vec<(u32, Vec<Option<Reference>>)>,
    chunks: usize,
) -> (Vec<Option<Reference>>, Vec<u32>) {
    let (mut found, mut used) = (vec![None; chunks], Vec::new());
    loop {
        let new = |(number, places): &(u32, Vec<Option<Reference>>)| {
            let both = places.iter().zip(&found);
            let new = both.filter(|(place, found)| place.is_some() && found.is_none());
            (new.count(), Reverse(*number))
        };
        let counts = held.iter().map(new).enumerate();
        let most = counts.max_by_key(|(_, most)| *most).filter(|(_, (count, _))| *count > 0);
        let Some((at, _)) = most else { return (found, used) };
        let (number, places) = held.swap_remove(at);
        found.iter_mut().zip(places).for_each(|(found, place)| *found = found.or(place));
        used.push(number);
    }
}

fn is_open(
    containers: &ObjectSet,
    barred: &HashMap<u32, Vec<DeadRange>>,
    reference: Reference,
) -> bool {
    let ranges = barred.get(&reference.container());
    containers.tag(reference.container()).is_some()
        && !ranges.is_some_and(|ranges| dead::holds(ranges, reference.slot()))
}

/// The shared index for the threads of a backup; it never returns a chunk that is to be avoided.
#[derive(Clone)]
pub struct SharedLookup {
    index: Arc<Mutex<SharedIndex>>,
    avoided: Arc<Avoided>,
}

impl SharedLookup {
    /// A look-up that skips damaged chunks.
    pub fn new(index: SharedIndex, avoided: &Arc<Avoided>) -> Self {
        Self { index: Arc::new(Mutex::new(index)), avoided: Arc::clone(avoided) }
    }

    /// A look-up in the same store, as of another head, that takes over what this one holds.
    #[must_use]
    pub fn renewed(&self, mut index: SharedIndex) -> Self {
        index.take_over(&mut lock(&self.index));
        Self::new(index, &self.avoided)
    }

    /// Whether a new reference may lead there.
    pub fn allows(&self, reference: Reference) -> bool {
        let index = lock(&self.index);
        reference.store() == index.number
            && index.is_open(reference)
            && !self.avoided.has(reference)
    }

    /// Looks up chunks that belong together; `None` for those that the store lacks.
    pub fn find(&self, wanted: &[(Fingerprint, u32)]) -> Result<Vec<Option<Reference>>> {
        let mut index = lock(&self.index);
        let mut found = Vec::with_capacity(wanted.len());
        for piece in wanted.chunks(TOGETHER) {
            let near = index.find_near(piece);
            for ((fingerprint, bytes), near) in piece.iter().zip(near) {
                let allowed = |it: &Reference| !self.avoided.has(*it);
                let place = match near.filter(allowed) {
                    None => index.get(fingerprint, *bytes as usize)?,
                    near => near,
                };
                found.push(place.filter(allowed));
            }
        }
        Ok(found)
    }

    /// Looks up several chunks by fingerprint and length; `None` for those that the store lacks.
    pub fn begin(&self) -> impl FnMut(&Fingerprint, usize) -> Result<Option<Reference>> {
        let mut index = lock(&self.index);
        move |fingerprint, bytes| {
            let found = index.get(fingerprint, bytes)?;
            Ok(found.filter(|reference| !self.avoided.has(*reference)))
        }
    }
}

/// Lets a series' head name a store, by its number and id, as it was in `generation`.
pub fn name_store(head: &mut Head, (number, store): (u16, SeriesId), generation: u64) {
    let place = head.stores.iter().position(|entry| entry.number == number);
    let place = place.unwrap_or_else(|| {
        head.stores.push(StoreEntry::new(number, StoreEntry::kind_of(number), store));
        head.stores.len() - 1
    });
    let entry = &mut head.stores[place];
    entry.seen = entry.seen.max(generation);
}

#[cfg(test)]
mod tests {
    use silt_format::Reference;

    use super::of_few;

    /// The places of the chunks with these numbers in a container.
    fn held(container: u32, has: &[usize]) -> (u32, Vec<Option<Reference>>) {
        let place = |slot: u16| Reference::new(2, container, slot);
        let places = (0..8).map(|slot| has.contains(&usize::from(slot)).then(|| place(slot)));
        (container, places.collect())
    }

    #[test]
    fn the_container_that_has_most_comes_first() {
        let all = vec![held(3, &[0, 1]), held(5, &[0, 1, 2, 3, 4]), held(6, &[4, 5, 6])];
        let (found, used) = of_few(all, 8);
        assert_eq!(used, [5, 6]);
        let containers = found.iter().map(|place| place.map(Reference::container));
        let expected = [Some(5), Some(5), Some(5), Some(5), Some(5), Some(6), Some(6), None];
        assert_eq!(containers.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn of_equal_ones_the_older_comes_first() {
        assert_eq!(of_few(vec![held(9, &[1, 2]), held(4, &[1, 2])], 8).1, [4]);
        assert_eq!(of_few(Vec::new(), 3), (vec![None; 3], Vec::new()));
    }
}
