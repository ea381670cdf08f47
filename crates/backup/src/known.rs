//! A bounded cache of tables that find the chunks of a candidate by fingerprint.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_chunking::Fingerprinter;
use silt_format::{PRIVATE_STORE, Recipe, Reference, Result, SeriesId};
use silt_repository::cache::WeightedCache;
use silt_repository::event::Warning;
use silt_repository::map::MapReader;
use silt_repository::objects::{Objects, Scratch, is_damage};
use silt_repository::packs::PackWriter;
use silt_repository::table::{Entry, Table};
use silt_runs::avoided::Avoided;

use super::adopt::Proven;
use super::signature_index::Candidate;

/// The tables of the candidates that were used last.
pub(crate) struct Known {
    objects: Arc<Objects>,
    series: SeriesId,
    reader: Arc<MapReader>,
    avoided: Arc<Avoided>,
    tables: WeightedCache<Candidate, Arc<Table>>,
    fingerprinter: Fingerprinter,
    /// Containers of an interrupted backup that were verified completely.
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

    /// Returns the chunks of a candidate by fingerprint. If the candidate is damaged, warns and
    /// returns an empty table: the backup then only misses duplicates.
    pub(crate) fn table(&mut self, candidate: Candidate, packs: &PackWriter) -> Result<Arc<Table>> {
        if let Some(table) = self.tables.get(&candidate) {
            return Ok(table);
        }
        let entries = match self.load(candidate, packs) {
            Ok(entries) => entries,
            Err(error) if is_damage(&error) => {
                self.objects.context.warn(Warning::after(&error, "its chunks are stored again"));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let table = Arc::new(Table::new(entries));
        self.tables.insert(candidate, Arc::clone(&table), table.weight());
        Ok(table)
    }

    fn load(&mut self, candidate: Candidate, packs: &PackWriter) -> Result<Vec<Entry>> {
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
                Ok(usable.map(|chunk| (chunk.fingerprint, chunk.length, chunk.reference)).collect())
            }
            Candidate::Container(number, tag) => {
                let (proven, container) =
                    Proven::read(&self.objects, self.series, (number, tag), &self.fingerprinter)?;
                self.proven.insert(proven);
                let directory = &container.directory;
                let entry = |(slot, place): (u16, silt_format::Slot)| {
                    let reference = Reference::new(PRIVATE_STORE, number, slot);
                    (directory.fingerprints[place.index as usize], place.length, reference)
                };
                Ok(directory.slots().map(entry).collect())
            }
        }
    }
}
