//! The chunks of one candidate as a table, and a bounded cache of such tables.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_chunking::Fingerprinter;
use silt_format::number::{to_u32, to_usize};
use silt_format::{Fingerprint, PRIVATE_STORE, Recipe, Reference, Result, SeriesId};

use super::adopt::Proven;
use super::packs::PackWriter;
use super::scan::Avoided;
use super::signature_index::Candidate;
use crate::cache::WeightedCache;
use crate::map::MapReader;
use crate::objects::{Objects, Scratch, is_damage};

/// Fingerprints with their references; looked up by the fingerprint's own bits, which are random.
pub(crate) struct Table {
    entries: Vec<(Fingerprint, Reference)>,
    /// Open addressing: the entry's number plus one, 0 where empty.
    places: Vec<u32>,
}

impl Table {
    pub(crate) fn new(entries: Vec<(Fingerprint, Reference)>) -> Self {
        let mut table = Self { places: vec![0; (entries.len() * 2).next_power_of_two()], entries };
        for number in 0..table.entries.len() {
            let place = table.place(&table.entries[number].0);
            table.places[place] = to_u32(number + 1);
        }
        table
    }

    /// Where a fingerprint is, or where it belongs.
    fn place(&self, fingerprint: &Fingerprint) -> usize {
        let mask = self.places.len() - 1;
        let mut bits = [0; 8];
        bits.copy_from_slice(&fingerprint.0[8..16]);
        let mut place = to_usize(u64::from_le_bytes(bits)) & mask;
        // The table is at most half full, so an empty place comes soon.
        while let Some(number) = self.places[place].checked_sub(1) {
            if self.entries[number as usize].0 == *fingerprint {
                break;
            }
            place = (place + 1) & mask;
        }
        place
    }

    pub(crate) fn get(&self, fingerprint: &Fingerprint) -> Option<Reference> {
        let number = self.places[self.place(fingerprint)].checked_sub(1)?;
        Some(self.entries[number as usize].1)
    }

    fn weight(&self) -> usize {
        64 + self.entries.len() * size_of::<(Fingerprint, Reference)>() + self.places.len() * 4
    }
}

/// Tables of the candidates used last.
pub(crate) struct Known {
    objects: Arc<Objects>,
    series: SeriesId,
    reader: Arc<MapReader>,
    avoided: Arc<Avoided>,
    tables: WeightedCache<Candidate, Arc<Table>>,
    fingerprinter: Fingerprinter,
    /// The left-over containers that were found whole.
    pub(crate) proven: BTreeSet<Proven>,
    scratch: Scratch,
    raw: Vec<u8>,
}

impl Known {
    pub(crate) fn new(
        objects: &Arc<Objects>,
        series: SeriesId,
        reader: &Arc<MapReader>,
        avoided: &Arc<Avoided>,
        fingerprinter: Fingerprinter,
        tables_bytes: usize,
    ) -> Self {
        Self {
            objects: Arc::clone(objects),
            series,
            reader: Arc::clone(reader),
            avoided: Arc::clone(avoided),
            tables: WeightedCache::new(tables_bytes),
            fingerprinter,
            proven: BTreeSet::new(),
            scratch: Scratch::default(),
            raw: Vec::new(),
        }
    }

    /// The chunks of a candidate, none with a warning if it is damaged: a duplicate is missed then.
    pub(crate) fn table(&mut self, candidate: Candidate, packs: &PackWriter) -> Result<Arc<Table>> {
        if let Some(table) = self.tables.get(&candidate) {
            return Ok(table);
        }
        let entries = match self.load(candidate, packs) {
            Ok(entries) => entries,
            Err(error) if is_damage(&error) => {
                let message = format!("{error}; what it holds is stored again");
                self.objects.context.observer.warning(&message);
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let table = Arc::new(Table::new(entries));
        self.tables.insert(candidate, Arc::clone(&table), table.weight());
        Ok(table)
    }

    fn load(
        &mut self,
        candidate: Candidate,
        packs: &PackWriter,
    ) -> Result<Vec<(Fingerprint, Reference)>> {
        let avoided = Arc::clone(&self.avoided);
        match candidate {
            Candidate::Recipe(block) => {
                let recipe = match packs.pending(block)? {
                    Some(raw) => Recipe::decode(&raw)?,
                    None => self.reader.recipe(block, &mut self.scratch, &mut self.raw)?,
                };
                let chunks = recipe.chunks.into_iter();
                let usable = chunks
                    .filter(|chunk| !chunk.reference.is_zero() && !avoided.has(chunk.reference));
                Ok(usable.map(|chunk| (chunk.fingerprint, chunk.reference)).collect())
            }
            Candidate::Container(number, tag) => {
                let (proven, container) = Proven::read(
                    &self.objects,
                    self.series,
                    (number, tag),
                    &self.fingerprinter,
                    &mut self.scratch,
                )?;
                self.proven.insert(proven);
                let directory = &container.directory;
                let entry = |(slot, place): (u16, silt_format::Slot)| {
                    let reference = Reference::new(PRIVATE_STORE, number, slot);
                    (directory.fingerprints[place.index as usize], reference)
                };
                Ok(directory.slots().map(entry).collect())
            }
        }
    }
}
