//! What is known to be damaged or lost, so that nothing refers to it again.

use std::collections::{HashMap, HashSet};

use silt_format::{BlockRef, CheckRecord, ErrorKind, PRIVATE_STORE, Reference};
use silt_repository::Repository;
use silt_repository::event::Warning;

/// Slots, recipes and whole stores that are known to be damaged or lost and must not be referred to
/// again.
#[derive(Default)]
pub struct Avoided {
    slots: HashMap<(u16, u32), Vec<(u16, u16)>>,
    recipes: HashSet<BlockRef>,
    stores: HashSet<u16>,
}

impl Avoided {
    /// Combines the check records of a series and of the stores that it refers to, by number.
    pub fn new(record: &CheckRecord, stores: &[(u16, CheckRecord)]) -> Self {
        let mut slots: HashMap<(u16, u32), Vec<(u16, u16)>> = HashMap::new();
        let stores = stores.iter().map(|(number, record)| (*number, record));
        for (store, record) in std::iter::once((PRIVATE_STORE, record)).chain(stores) {
            for range in &record.damaged {
                let place = (store, range.container);
                slots.entry(place).or_default().push((range.first, range.last));
            }
        }
        let recipes = record.damaged_blocks.iter().copied().collect();
        Self { slots, recipes, stores: HashSet::new() }
    }

    /// The same, and all that these stores had, by number.
    #[must_use]
    pub fn and_stores(self, stores: impl IntoIterator<Item = u16>) -> Self {
        Self { stores: stores.into_iter().collect(), ..self }
    }

    /// Whether nothing is to be avoided.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.recipes.is_empty() && self.stores.is_empty()
    }

    /// Whether a recipe is damaged.
    pub fn has_recipe(&self, recipe: BlockRef) -> bool {
        self.recipes.contains(&recipe)
    }

    /// Whether the chunk of a slot is damaged or lost.
    pub fn has(&self, reference: Reference) -> bool {
        if self.stores.contains(&reference.store()) {
            return true;
        }
        let place = (reference.store(), reference.container());
        let Some(ranges) = self.slots.get(&place) else { return false };
        ranges.iter().any(|(first, last)| (*first..=*last).contains(&reference.slot()))
    }
}

/// Whether the storage shows a store as it was before `known`, a generation of its head: its index
/// may have chunks that were deleted since, and it may have lost others. Warns of it.
pub fn is_older(repository: &Repository, known: u64, number: u16, generation: u64) -> bool {
    if generation < known {
        warn_of_older(repository, known, number, generation);
    }
    generation < known
}

/// Warns that a store is not used, because it has not got the head `known`.
pub fn warn_of_older(repository: &Repository, known: u64, number: u16, generation: u64) {
    let shown = repository.store(number).shown;
    let message = format!(
        "the storage shows {shown} as it was before (head {generation}, without the head {known} \
         that series rely on); it is not used"
    );
    repository.warn(Warning::new(ErrorKind::Corrupt, message));
}
