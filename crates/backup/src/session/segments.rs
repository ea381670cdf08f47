//! Processes a changed segment: looks up its chunks, stores new ones, and writes its recipe.

use std::collections::HashSet;

use silt_format::number::{to_u32, to_u64};
use silt_format::{
    BlockKind, Fingerprint, Level, PRIVATE_STORE, Recipe, RecipeChunk, Reference, Result,
    SegmentEntry, Volume,
};
use silt_repository::objects::is_damage;
use silt_routing::Application;

use super::BackupSession;
use crate::adopt::Orphans;
use crate::detect::{Detector, levels};
use crate::pipeline::Pipeline;
use crate::scan::{DraftChunk, SegmentDraft};
use crate::signature_index::{Candidate, SignatureIndex};

/// The levels that look for chunks, and the containers that an interrupted backup has left.
pub(super) struct Detection {
    levels: Vec<Box<dyn Detector>>,
    pub(super) orphans: Orphans,
}

impl Detection {
    /// Asks every level for a chunk that may have been placed since the segment was scanned.
    fn recall(&self, chunk: &DraftChunk) -> Option<(Reference, Level)> {
        let (fingerprint, bytes) = (&chunk.fingerprint, chunk.range.len());
        let mut levels = self.levels.iter();
        levels
            .find_map(|level| level.recall(fingerprint, bytes).map(|found| (found, level.level())))
    }
}

impl BackupSession<'_> {
    /// Asks the levels for the chunks of a segment.
    pub(crate) fn resolve(&mut self, draft: &mut SegmentDraft) -> Result<()> {
        let mut detection = self.take_detection()?;
        let mut levels = detection.levels.iter_mut();
        let resolved =
            levels.try_for_each(|level| level.resolve(draft, &mut self.known, &self.packs));
        self.detection = Some(detection);
        self.note_failure(resolved)
    }

    /// Looks again for chunks that no level has found and that are not among `received`: they were
    /// on their way for an earlier segment. Returns the numbers of those that are not found, one of
    /// each fingerprint.
    pub(crate) fn resolve_again(
        &mut self,
        draft: &mut SegmentDraft,
        received: &HashSet<Fingerprint>,
    ) -> Result<Vec<usize>> {
        let detection = self.take_detection()?;
        let (mut lacking, mut seen) = (Vec::new(), HashSet::new());
        for (number, chunk) in draft.chunks.iter_mut().enumerate() {
            if chunk.found.is_some() || received.contains(&chunk.fingerprint) {
                continue;
            }
            chunk.found = detection.recall(chunk);
            if chunk.found.is_none() && seen.insert(chunk.fingerprint) {
                lacking.push(number);
            }
        }
        self.detection = Some(detection);
        Ok(lacking)
    }

    /// Stores what is new of a segment, and writes its recipe. All chunks of the draft are found
    /// then.
    pub(crate) fn place(
        &mut self,
        draft: &mut SegmentDraft,
        pipeline: &Pipeline<'_>,
        volume: &mut Volume,
    ) -> Result<SegmentEntry> {
        let placed = self.place_all(draft, pipeline, volume);
        self.note_failure(placed)
    }

    fn place_all(
        &mut self,
        draft: &mut SegmentDraft,
        pipeline: &Pipeline<'_>,
        volume: &mut Volume,
    ) -> Result<SegmentEntry> {
        let mut detection = self.take_detection()?;
        let mut recipe = Recipe { chunks: Vec::with_capacity(draft.chunks.len()) };
        self.containers.set_large_frames(draft.is_large);
        let new = draft.chunks.iter().filter(|chunk| chunk.found.is_none());
        let nodes = new.map(|chunk| chunk.node).collect();
        self.node_writers.prepare(self.repository, &self.lease, &nodes)?;
        for chunk in &mut draft.chunks {
            let found = chunk.found.or_else(|| detection.recall(chunk));
            let (reference, level) = if let Some(found) = found {
                found
            } else {
                let bytes = (&draft.data[chunk.range.clone()], chunk.fingerprint);
                let to = (chunk.node, draft.application, draft.is_large);
                (self.append(pipeline, to, bytes)?, Level::New)
            };
            chunk.found = Some((reference, level));
            // The padding after small files belongs to no file and is not counted.
            if chunk.range.end <= draft.data.len() {
                volume.levels.add(level, to_u64(chunk.range.len()));
            }
            let (length, mut fingerprint) = (to_u32(chunk.range.len()), chunk.fingerprint);
            if reference.is_zero() {
                fingerprint = Fingerprint([0; 20]);
            } else {
                self.note(reference, &mut detection, chunk);
            }
            recipe.chunks.push(RecipeChunk { reference, length, fingerprint });
        }
        let raw = recipe.encode(volume.chunking);
        let block = self.packs.append(BlockKind::Recipe, &raw)?;
        let (digest, signatures) = (draft.digest, draft.signatures);
        detection.levels.iter_mut().for_each(|level| level.written(&signatures, block));
        self.detection = Some(detection);
        Ok(SegmentEntry { recipe: block, digest, signatures })
    }

    /// Stores a chunk in the node with this number, or if that is 0 or takes none now, in the
    /// series' own store.
    fn append(
        &mut self,
        pipeline: &Pipeline<'_>,
        to: (u16, Application, bool),
        (chunk, fingerprint): (&[u8], Fingerprint),
    ) -> Result<Reference> {
        if to.0 != PRIVATE_STORE {
            let placed = self.node_writers.append(
                self.repository,
                &self.lease,
                pipeline,
                to,
                (chunk, fingerprint),
            )?;
            if let Some(reference) = placed {
                return Ok(reference);
            }
        }
        self.containers.append(pipeline, chunk, fingerprint)
    }

    /// Tells the levels about a placed chunk, and remembers which left-over containers are used.
    fn note(&mut self, reference: Reference, detection: &mut Detection, chunk: &DraftChunk) {
        self.added_references += u64::from(reference.store() == PRIVATE_STORE);
        detection.orphans.used(reference);
        let (fingerprint, bytes) = (&chunk.fingerprint, chunk.range.len());
        let levels = detection.levels.iter_mut();
        levels.for_each(|level| level.placed(fingerprint, bytes, reference));
    }

    pub(super) fn take_detection(&mut self) -> Result<Detection> {
        self.detection.take().map_or_else(|| self.begin_detection(), Ok)
    }

    /// Finds the containers that an interrupted backup has left, and indexes the parent's segments.
    fn begin_detection(&mut self) -> Result<Detection> {
        let options = &self.options.detection;
        let mut index = SignatureIndex::new(self.budget.signature_places(), options);
        let objects = &self.repository.objects;
        let orphans = Orphans::find(objects, &self.head, &mut index)?;
        self.containers.start_at(orphans.next_container);
        self.packs.start_at(orphans.next_pack);
        let parent = self.parent.as_ref().filter(|_| !index.is_off());
        for volume in parent.map_or(&[][..], |parent| &parent.volumes) {
            let indexed = self.reader.walk(volume.root, &mut |_, entry| {
                index.insert(&entry.signatures, Candidate::Recipe(entry.recipe));
                Ok(())
            });
            match indexed {
                // The scan reports the damage when it reaches it.
                Err(error) if is_damage(&error) => {}
                other => other?,
            }
        }
        let mut levels = levels(&self.options.detection, index, self.shared.clone());
        levels.extend(self.nodes.level(&self.repository.objects));
        Ok(Detection { levels, orphans })
    }
}
