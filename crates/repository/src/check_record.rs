//! The check record of a series: damage, and times of verification.

use crate::event::Warning;
use silt_format::names::Numbered;
use silt_format::{
    Advice, BlockRef, CheckRecord, DamagedSlots, Error, ErrorKind, FIRST_NODE, Head, MapRoot,
    ObjectKind, Result, ResultExt, SHARED_STORE, SeriesId,
};

use crate::map::MapReader;
use crate::objects::{Address, Objects, Scratch, is_damage};

/// Maximum number of records of other processes that are merged before one of ours is stored.
const MERGES_MAX: usize = 8;

impl Objects {
    /// Reads the newest check record of a series.
    pub fn check_record(&self, series: SeriesId) -> Result<(u64, CheckRecord)> {
        let newest = self.newest_name(Numbered::Check, series)?;
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
        let read = self.get_signed(&name, address).and_then(|(plain, by)| {
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
                self.context.warn(Warning::after(&error, "earlier verifications are forgotten"));
                Ok((number, CheckRecord::default()))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads the newest check records of the stores of several series that a head names, and of the
    /// shared store, by number. A node that can't be reached counts as if it had none.
    pub fn store_check_records(&self, head: &Head) -> Result<Vec<(u16, CheckRecord)>> {
        let nodes = head.stores.iter().map(|store| store.number).filter(|it| *it >= FIRST_NODE);
        let record = |number| {
            let id = self.keys.store_id(head.domain, number);
            match self.check_record(id) {
                Ok((_, record)) => Ok((number, record)),
                Err(error) if error.kind() == ErrorKind::Unavailable && number >= FIRST_NODE => {
                    Ok((number, CheckRecord::default()))
                }
                Err(error) => Err(error),
            }
        };
        std::iter::once(SHARED_STORE).chain(nodes).map(record).collect()
    }
}

/// Adds the recipes below `roots` that cannot be read to the check record of a series.
pub fn record_damaged_recipes(
    objects: &Objects,
    series: SeriesId,
    reader: &MapReader,
    roots: &[MapRoot],
) -> Result<()> {
    let mut state = RecordState::read(objects, series)?;
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    for root in roots {
        reader.walk(*root, &mut |_, entry| match reader.segment_recipe(
            entry,
            &mut scratch,
            &mut raw,
        ) {
            Err(error) if is_damage(&error) => {
                state.add_recipe(entry.recipe);
                Ok(())
            }
            other => other.map(|_| ()),
        })?;
    }
    state.save(objects).map(drop)
}

/// The check record of a series, and the version of it that is stored.
pub struct RecordState {
    series: SeriesId,
    number: u64,
    saved: CheckRecord,
    /// The current record.
    pub record: CheckRecord,
}

impl RecordState {
    /// Reads the newest record of a series.
    pub fn read(objects: &Objects, series: SeriesId) -> Result<Self> {
        let (number, record) = objects.check_record(series)?;
        Ok(Self { series, number, saved: record.clone(), record })
    }

    /// Records that snapshots may need damaged chunks again: some are about to be brought back.
    pub fn is_needed_again(objects: &Objects, series: SeriesId) -> Result<()> {
        let mut state = Self::read(objects, series)?;
        state.record.unneeded.clear();
        state.save(objects).map(drop)
    }

    /// Adds slots that are damaged.
    pub fn add_slots(&mut self, slots: DamagedSlots) {
        if !self.record.damaged.contains(&slots) {
            self.record.damaged.push(slots);
        }
        self.record.unneeded.retain(|(container, _)| *container != slots.container);
    }

    /// Adds a recipe that is damaged.
    pub fn add_recipe(&mut self, recipe: BlockRef) {
        if !self.record.damaged_blocks.contains(&recipe) {
            self.record.damaged_blocks.push(recipe);
        }
    }

    /// Stores the record if it has changed, and removes its predecessors. Damage that another
    /// process has recorded meanwhile is added. Returns whether the record is stored; if it could
    /// not be, warns that later backups do not know of the damage.
    pub fn save(&mut self, objects: &Objects) -> Result<bool> {
        if self.record == self.saved {
            return Ok(true);
        }
        let mut old = Vec::new();
        for item in objects.names(&Numbered::Check.prefix(self.series), None)? {
            let (name, _) = item?;
            // Also those that an interrupted check has left.
            if Numbered::number(&name).is_some_and(|number| number <= self.number) {
                old.push(name);
            }
        }
        let is_stored = match self.put(objects) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            // Storage is full or read-only, or a copy is out of reach; what is there is read all
            // the same.
            Err(error) => {
                objects.context.warn(self.not_stored(&error));
                false
            }
            // Where nothing may be deleted, old records stay.
            Ok(()) => objects.delete(&old).map_or_else(
                |error| if error.kind() == ErrorKind::Interrupted { Err(error) } else { Ok(true) },
                |()| Ok(true),
            )?,
        };
        self.saved = self.record.clone();
        Ok(is_stored)
    }

    fn not_stored(&self, error: &Error) -> Warning {
        if self.record.damaged.is_empty() && self.record.damaged_blocks.is_empty() {
            return Warning::after(error, "the results are not recorded");
        }
        let why = "the damage is not recorded, so the next backup does not know of it";
        Warning::after(error, why).with_advice(Advice::CheckData)
    }

    fn put(&mut self, objects: &Objects) -> Result<()> {
        let mut merges = 0;
        loop {
            self.number += 1;
            let name = Numbered::Check.name(self.series, self.number);
            let address = Address::new(ObjectKind::Check, self.series, self.number);
            match objects.put(&name, address, &self.record.encode()) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists && merges < MERGES_MAX => {
                    merges += 1;
                    let theirs = Self::read(objects, self.series)?;
                    self.number = self.number.max(theirs.number);
                    self.merge(&theirs.record);
                }
                other => return other.map(drop),
            }
        }
    }

    /// Adds the damage that `theirs` has beyond the record that both began with.
    fn merge(&mut self, theirs: &CheckRecord) {
        let saved = std::mem::take(&mut self.saved);
        for slots in theirs.damaged.iter().filter(|slots| !saved.damaged.contains(slots)) {
            self.add_slots(*slots);
        }
        let blocks = theirs.damaged_blocks.iter();
        for block in blocks.filter(|block| !saved.damaged_blocks.contains(block)) {
            self.add_recipe(*block);
        }
        self.saved = saved;
    }
}
