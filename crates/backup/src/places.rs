//! Where chunks of stores are that several series use: somebody may know it sooner than the
//! storage tells it.

use std::fmt;
use std::sync::Arc;

use silt_format::number::to_u32;
use silt_format::{ErrorKind, Fingerprint, Head, Level, Reference, Result};
use silt_repository::Repository;
use silt_repository::event::Warning;
use silt_runs::shared_index::SharedLookup;

use crate::draft::DraftChunk;

/// Knows the places of chunks in the shared store.
pub trait SharedPlaces: fmt::Debug + Send + Sync {
    /// The places of chunks by fingerprint and length in bytes, `None` where it knows none. A
    /// backup uses only those that the shared store's head allows.
    ///
    /// Returns `None` if the index in the storage is to be used instead.
    fn find(&self, wanted: &[(Fingerprint, u32)]) -> Option<Vec<Option<Reference>>>;
}

/// Knows what storage nodes have: the way to a process beside each node.
///
/// Each question is about one application, by its number in the nodes' heads, and several nodes, by
/// theirs. The answers come in the same order; `None` says that the node's index in the storage is
/// to be used instead.
pub trait NodeAnswers: fmt::Debug + Send + Sync {
    /// How many representatives of each handprint a node has. A handprint is the eight smallest
    /// fingerprints of a super-chunk, by their first eight bytes.
    fn similar(&self, application: u16, asked: &[(u16, Vec<Vec<u64>>)]) -> Vec<Option<Vec<usize>>>;

    /// The places of chunks in a node, by fingerprint and length in bytes, `None` where it knows
    /// none. They come in the order of their volume. A backup uses only places that the node's
    /// head allows.
    fn find(
        &self,
        application: u16,
        asked: &[(u16, Vec<Wanted>)],
    ) -> Vec<Option<Vec<Option<Reference>>>>;
}

/// Representatives that a process beside a node holds of a super-chunk as it lies in a container.
/// Backups ask for eight, of which the smallest are these: what both have in common is found nearly
/// as often, for half the memory.
pub const HELD_REPRESENTATIVES: usize = 4;

/// A chunk that is looked up: its fingerprint, and its length in bytes.
pub type Wanted = (Fingerprint, u32);

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

/// Whether the storage shows a store as it was before the series' head was written: its index may
/// have chunks that were deleted since. Warns of it.
pub(crate) fn is_older(repository: &Repository, head: &Head, number: u16, generation: u64) -> bool {
    let (known, shown) = (head.seen(number), repository.store(number).shown);
    if generation >= known {
        return false;
    }
    let message = format!(
        "the storage shows {shown} as it was before (generation {generation} instead of {known}); \
         it is not used"
    );
    repository.warn(Warning::new(ErrorKind::Corrupt, message));
    true
}
