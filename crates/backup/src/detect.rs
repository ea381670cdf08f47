//! The levels of duplicate detection that look at chunks.
//!
//! A level may miss a duplicate but never invents one (I-6): it returns only references that were
//! stored with exactly the requested fingerprint.

use silt_format::number::to_u32;
use silt_format::{BlockRef, Fingerprint, Level, Reference, Result, Signatures};
use silt_repository::packs::PackWriter;
use silt_repository::table::Entry;

use super::known::Known;
use super::options::DetectionOptions;
use super::places::StoreLookup;
use super::scan::SegmentDraft;
use super::signature_index::{Candidate, SignatureIndex};

/// One level: fills in references for chunks that no level before it has found.
pub(crate) trait Detector: Send {
    /// The level's name in reports.
    fn level(&self) -> Level;
    /// Looks for the draft's unresolved chunks.
    fn resolve(
        &mut self,
        draft: &mut SegmentDraft,
        known: &mut Known,
        packs: &PackWriter,
    ) -> Result<()>;
    /// Returns where a chunk of this length was placed shortly before. Called for each chunk just
    /// before it would be stored.
    fn recall(&self, _fingerprint: &Fingerprint, _bytes: usize) -> Option<Reference> {
        None
    }
    /// Called for every chunk that was placed.
    fn placed(&mut self, _fingerprint: &Fingerprint, _bytes: usize, _reference: Reference) {}
    /// Called for every segment whose recipe was written.
    fn written(&mut self, _signatures: &Signatures, _recipe: BlockRef) {}
}

/// Returns the levels that are switched on, in the order in which they are tried.
pub(crate) fn levels(
    options: &DetectionOptions,
    index: SignatureIndex,
    shared: Option<StoreLookup>,
) -> Vec<Box<dyn Detector>> {
    let mut levels: Vec<Box<dyn Detector>> = Vec::new();
    if options.same_offset {
        levels.push(Box::new(SameOffset));
    }
    if options.recent {
        levels.push(Box::new(Recent::default()));
    }
    if !index.is_off() {
        levels.push(Box::new(Similar { index }));
    }
    if let Some(lookup) = shared {
        levels.push(Box::new(SharedLevel { lookup }));
    }
    levels
}

/// Looks up a draft's unresolved chunks in one candidate.
fn resolve_in(
    draft: &mut SegmentDraft,
    candidate: Candidate,
    level: Level,
    known: &mut Known,
    packs: &PackWriter,
) -> Result<()> {
    let table = known.table(candidate, packs)?;
    for chunk in draft.chunks.iter_mut().filter(|chunk| chunk.found.is_none()) {
        let found = table.get(&chunk.fingerprint, chunk.range.len());
        chunk.found = found.map(|reference| (reference, level));
    }
    Ok(())
}

/// Looks in the parent's segments at the same offset of a disk, or with the same files of a tree.
struct SameOffset;

impl Detector for SameOffset {
    fn level(&self) -> Level {
        Level::SameOffset
    }
    fn resolve(
        &mut self,
        draft: &mut SegmentDraft,
        known: &mut Known,
        packs: &PackWriter,
    ) -> Result<()> {
        for parent in std::mem::take(&mut draft.parents) {
            if draft.unresolved() == 0 {
                break;
            }
            resolve_in(draft, Candidate::Recipe(parent.recipe), self.level(), known, packs)?;
        }
        Ok(())
    }
}

/// Looks in segments with equal signatures: those of the parent, earlier ones of this backup, and
/// containers that an interrupted backup has left.
struct Similar {
    index: SignatureIndex,
}

impl Detector for Similar {
    fn level(&self) -> Level {
        Level::Similar
    }
    fn resolve(
        &mut self,
        draft: &mut SegmentDraft,
        known: &mut Known,
        packs: &PackWriter,
    ) -> Result<()> {
        if draft.unresolved() == 0 {
            return Ok(());
        }
        for candidate in self.index.search(&draft.signatures) {
            let level = match candidate {
                Candidate::Recipe(_) => self.level(),
                Candidate::Container(..) => Level::Adopted,
            };
            resolve_in(draft, candidate, level, known, packs)?;
            if draft.unresolved() == 0 {
                break;
            }
        }
        Ok(())
    }
    fn written(&mut self, signatures: &Signatures, recipe: BlockRef) {
        self.index.insert(signatures, Candidate::Recipe(recipe));
    }
}

/// Looks in the shared store.
struct SharedLevel {
    lookup: StoreLookup,
}

impl Detector for SharedLevel {
    fn level(&self) -> Level {
        Level::Shared
    }
    fn resolve(
        &mut self,
        draft: &mut SegmentDraft,
        _known: &mut Known,
        _packs: &PackWriter,
    ) -> Result<()> {
        // For a recalled segment, a worker has already searched the shared store.
        if draft.recalled {
            return Ok(());
        }
        let open = draft.chunks.iter_mut().filter(|chunk| chunk.found.is_none());
        self.lookup.resolve(&mut open.collect::<Vec<_>>())
    }
}

/// Looks among the chunks placed last: a hash table in which a newer chunk replaces an older one.
#[derive(Default)]
struct Recent {
    /// Its length is a power of two, or zero. It grows with the number of placed chunks: most
    /// backups place few. Where nothing is, a chunk of no bytes.
    places: Vec<Entry>,
    placed: usize,
}

impl Recent {
    const NOTHING: Entry = (Fingerprint([0; 20]), 0, Reference::ZERO);
    const PLACES_MIN: usize = 1 << 10;
    /// 2 MiB.
    const PLACES_MAX: usize = 1 << 16;

    fn place(&self, fingerprint: &Fingerprint) -> usize {
        let bytes = &fingerprint.0;
        usize::from(u16::from_le_bytes([bytes[16], bytes[17]])) & (self.places.len() - 1)
    }

    fn grow(&mut self) {
        let places = (self.places.len() * 8).clamp(Self::PLACES_MIN, Self::PLACES_MAX);
        let before = std::mem::replace(&mut self.places, vec![Self::NOTHING; places]);
        for held in before.into_iter().filter(|(_, bytes, _)| *bytes > 0) {
            let place = self.place(&held.0);
            self.places[place] = held;
        }
    }
}

impl Detector for Recent {
    fn level(&self) -> Level {
        Level::Recent
    }
    fn resolve(
        &mut self,
        draft: &mut SegmentDraft,
        _known: &mut Known,
        _packs: &PackWriter,
    ) -> Result<()> {
        for chunk in draft.chunks.iter_mut().filter(|chunk| chunk.found.is_none()) {
            let found = self.recall(&chunk.fingerprint, chunk.range.len());
            chunk.found = found.map(|found| (found, Level::Recent));
        }
        Ok(())
    }
    fn recall(&self, fingerprint: &Fingerprint, bytes: usize) -> Option<Reference> {
        if self.places.is_empty() {
            return None;
        }
        let (held, length, reference) = &self.places[self.place(fingerprint)];
        (held == fingerprint && *length as usize == bytes).then_some(*reference)
    }
    fn placed(&mut self, fingerprint: &Fingerprint, bytes: usize, reference: Reference) {
        if self.placed >= self.places.len() / 4 && self.places.len() < Self::PLACES_MAX {
            self.grow();
        }
        self.placed += 1;
        let place = self.place(fingerprint);
        self.places[place] = (*fingerprint, to_u32(bytes), reference);
    }
}

const _: () = assert!(Recent::PLACES_MAX * size_of::<Entry>() == 2 << 20);
