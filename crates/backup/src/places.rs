//! Where chunks of stores are that several series use: somebody may know it sooner than the
//! storage tells it.

use std::sync::Arc;

use silt_format::number::to_u32;
use silt_format::{Level, Reference, Result};
pub use silt_runs::asked::{HELD_REPRESENTATIVES, NodeAnswers, SharedPlaces, Wanted};
use silt_runs::shared_index::SharedLookup;

use crate::draft::DraftChunk;

/// Who is asked before the storage.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    /// About the shared store.
    pub(crate) places: Option<&'a Arc<dyn SharedPlaces>>,
    /// About storage nodes.
    pub(crate) nodes: Option<&'a Arc<dyn NodeAnswers>>,
}

/// Looks chunks up in a store of several series: asks somebody who knows for many chunks at once,
/// or reads the index from the storage.
#[derive(Clone)]
pub(crate) struct StoreLookup {
    pub(crate) index: SharedLookup,
    places: Option<Arc<dyn SharedPlaces>>,
}

impl StoreLookup {
    /// A look-up that asks `places` first.
    pub(crate) fn new(index: SharedLookup, places: Option<Arc<dyn SharedPlaces>>) -> Self {
        Self { index, places }
    }

    /// Looks these chunks up, and enters the places of those that the store has.
    pub(crate) fn resolve(&self, chunks: &mut [&mut DraftChunk]) -> Result<()> {
        if let Some(places) = self.places.as_ref().filter(|_| !chunks.is_empty())
            && let Some(found) = places.find(&wanted(chunks))
        {
            self.enter(chunks, found);
            return Ok(());
        }
        self.read(chunks)
    }

    /// Enters places that somebody has told, as far as the store's head allows them.
    pub(crate) fn enter(&self, chunks: &mut [&mut DraftChunk], found: Vec<Option<Reference>>) {
        for (chunk, place) in chunks.iter_mut().zip(found) {
            let place = place.filter(|place| self.index.allows(*place));
            chunk.found = place.map(|place| (place, Level::Shared));
        }
    }

    /// Looks these chunks up in the storage.
    pub(crate) fn read(&self, chunks: &mut [&mut DraftChunk]) -> Result<()> {
        let found = self.index.find(&wanted(chunks))?;
        for (chunk, place) in chunks.iter_mut().zip(found) {
            chunk.found = place.map(|place| (place, Level::Shared));
        }
        Ok(())
    }
}

/// What is asked of chunks.
pub(crate) fn wanted(chunks: &[&mut DraftChunk]) -> Vec<Wanted> {
    chunks.iter().map(|chunk| (chunk.fingerprint, to_u32(chunk.range.len()))).collect()
}
