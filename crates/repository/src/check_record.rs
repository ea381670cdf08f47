//! The check record of a series: damage, and times of verification.

use std::collections::{HashMap, HashSet};

use crate::event::Warning;
use silt_format::names::Numbered;
use silt_format::{
    BlockRef, CheckRecord, Error, ErrorKind, Head, MapRoot, ObjectKind, PRIVATE_STORE, Reference,
    Result, ResultExt, SHARED_STORE, SeriesId,
};

use crate::map::MapReader;
use crate::objects::{Address, Scratch, is_damage};
use crate::repository::Repository;

/// Slots and recipes that are known to be damaged and must not be referred to again.
#[derive(Default)]
pub struct Avoided {
    slots: HashMap<(u16, u32), Vec<(u16, u16)>>,
    recipes: HashSet<BlockRef>,
}

impl Avoided {
    /// Combines the check records of a series and of the shared store.
    pub fn new(record: &CheckRecord, shared: &CheckRecord) -> Self {
        let mut slots: HashMap<(u16, u32), Vec<(u16, u16)>> = HashMap::new();
        for (store, record) in [(PRIVATE_STORE, record), (SHARED_STORE, shared)] {
            for range in &record.damaged {
                let place = (store, range.container);
                slots.entry(place).or_default().push((range.first, range.last));
            }
        }
        Self { slots, recipes: record.damaged_blocks.iter().copied().collect() }
    }
    /// Whether nothing is to be avoided.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.recipes.is_empty()
    }
    /// Whether a recipe is damaged.
    pub fn has_recipe(&self, recipe: BlockRef) -> bool {
        self.recipes.contains(&recipe)
    }
    /// Whether the chunk of a slot is damaged.
    pub fn has(&self, reference: Reference) -> bool {
        let place = (reference.store(), reference.container());
        let Some(ranges) = self.slots.get(&place) else { return false };
        ranges.iter().any(|(first, last)| (*first..=*last).contains(&reference.slot()))
    }
}

impl Repository {
    /// Reads the newest check record of a series.
    pub fn check_record(&self, series: SeriesId) -> Result<(u64, CheckRecord)> {
        let newest = self.objects.newest_name(Numbered::Check, series)?;
        self.read_check_record(series, newest)
    }

    /// The same, where the name of the newest is known.
    pub fn read_check_record(
        &self,
        series: SeriesId,
        newest: Option<String>,
    ) -> Result<(u64, CheckRecord)> {
        let Some(name) = newest else { return Ok((0, CheckRecord::default())) };
        let number = Numbered::number(&name)
            .ok_or_else(|| Error::corrupt(format!("{name} is not the name of a check record")))?;
        let address = Address::new(ObjectKind::Check, series, number);
        let read = self.objects.get_signed(&name, address).and_then(|(plain, by)| {
            let mut record = CheckRecord::decode(&plain)?;
            if !by.is_full() {
                // Who can't read data may have met damage, but has verified nothing.
                (record.pass_started_s, record.verified) = (0, Vec::new());
            }
            Ok(record)
        });
        match read.context(|| format!("read check record {name}")) {
            Ok(record) => Ok((number, record)),
            Err(error) if is_damage(&error) => {
                self.warn(Warning::after(&error, "earlier verifications are forgotten"));
                Ok((number, CheckRecord::default()))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the newest check record of a domain's shared store.
    pub fn shared_check_record(&self, domain: u32) -> Result<CheckRecord> {
        let id = self.objects.keys.shared_store_id(domain);
        Ok(self.check_record(id)?.1)
    }
}

/// Adds the recipes below `roots` that cannot be read to the check record of a series.
pub fn record_damaged_recipes(
    repository: &Repository,
    head: &Head,
    reader: &MapReader,
    roots: &[MapRoot],
) -> Result<()> {
    let (number, record) = repository.check_record(head.series)?;
    let mut state = RecordState::new(number, record);
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    for root in roots {
        reader.walk(*root, &mut |_, entry| match reader.segment_recipe(
            entry,
            &mut scratch,
            &mut raw,
        ) {
            Err(error) if is_damage(&error) => {
                let damaged = &mut state.record.damaged_blocks;
                if !damaged.contains(&entry.recipe) {
                    damaged.push(entry.recipe);
                }
                Ok(())
            }
            other => other.map(|_| ()),
        })?;
    }
    state.save(repository, head)
}

/// The check record of a series, and the version of it that is stored.
pub struct RecordState {
    number: u64,
    saved: CheckRecord,
    /// The current record.
    pub record: CheckRecord,
}

impl RecordState {
    /// The record of this number as it was read.
    pub fn new(number: u64, record: CheckRecord) -> Self {
        Self { number, saved: record.clone(), record }
    }

    /// Stores the record if it has changed, and removes its predecessors.
    pub fn save(&mut self, repository: &Repository, head: &Head) -> Result<()> {
        if self.record == self.saved {
            return Ok(());
        }
        let objects = &repository.objects;
        let mut old = Vec::new();
        for item in objects.names(&Numbered::Check.prefix(head.series), None)? {
            let (name, _) = item?;
            // Also those that an interrupted check has left.
            if Numbered::number(&name).is_some_and(|number| number <= self.number) {
                old.push(name);
            }
        }
        self.number += 1;
        let name = Numbered::Check.name(head.series, self.number);
        let address = Address::new(ObjectKind::Check, head.series, self.number);
        let written = objects.put(&name, address, &self.record.encode());
        self.saved = self.record.clone();
        match written.and_then(|_| objects.delete(&old)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => Err(error),
            // Storage is full or read-only, or a copy is out of reach; what is there is checked all
            // the same.
            Err(error) => {
                repository.warn(Warning::after(&error, "the results are not recorded"));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }
}
