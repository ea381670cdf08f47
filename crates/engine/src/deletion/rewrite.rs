//! Rewrites a container under the same references, without its dead slots.

use std::collections::BTreeSet;
use std::sync::Arc;

use silt_chunking::Fingerprinter;
use silt_format::{Compression, Config, DeadRange, Delta, Head, Link, ObjectTag, Result, SeriesId};
use silt_repository::chunks::{ChunkReader, Container};
use silt_repository::container_reader::ContainerReader;
use silt_repository::dead::holds;
use silt_repository::draft::ContainerDraft;
use silt_repository::objects::Objects;

use crate::repository::Repository;

/// State for rewriting one series' containers.
pub(crate) struct Rewriter<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) series: SeriesId,
    pub(crate) fingerprinter: Fingerprinter,
    pub(crate) config: &'a Config,
    /// How its frames are compressed.
    pub(crate) compression: Compression,
    /// Whether frames of small files become as large as those of large ones.
    pub(crate) enlarges_frames: bool,
    /// Reads the series' deltas, if it has any.
    pub(crate) chunks: Option<Arc<ChunkReader>>,
}

/// A chunk that becomes a delta.
pub(crate) struct NewDelta {
    pub(crate) delta: Delta,
    pub(crate) stored: Vec<u8>,
}

/// The slots of a container that change when it is rewritten.
#[derive(Clone, Copy, Default)]
pub(crate) struct Changed<'c> {
    /// Those that go.
    pub(crate) dead: &'c [DeadRange],
    /// Links in place of chunks, ascending.
    pub(crate) links: &'c [Link],
    /// Deltas in place of whole chunks, ascending.
    pub(crate) deltas: &'c [NewDelta],
}

impl<'a> Rewriter<'a> {
    /// Rewrites containers of the series of a head.
    pub(crate) fn of(repository: &'a Repository, head: &Head) -> Result<Self> {
        let objects = &repository.objects;
        let has_deltas = !head.delta_bases.is_empty();
        let budget = objects.context.budget(0);
        let chunks = has_deltas.then(|| ChunkReader::new(objects, head, budget)).transpose()?;
        let key = objects.keys.fingerprint_key(head.domain, head.series);
        Ok(Self {
            objects,
            series: head.series,
            fingerprinter: Fingerprinter::new(key),
            config: &repository.config,
            // Of disks, too: what is still needed after some time is likely to stay.
            compression: Compression::of_tree(repository.config.zstd_level),
            enlarges_frames: false,
            chunks: chunks.map(Arc::new),
        })
    }

    /// Writes a container anew under `tag`, durable on return: without the dead slots, and with
    /// links and deltas in place of the chunks that they stand for.
    ///
    /// Returns its size in bytes. Fails with `Corrupt` if a chunk that stays does not match its
    /// fingerprint.
    pub(crate) fn rewrite(
        &self,
        old: &Container,
        tag: ObjectTag,
        changed: Changed<'_>,
    ) -> Result<u64> {
        self.draft(old, tag, changed)?.finish(self.objects)
    }

    /// The rewritten container; nothing is written yet.
    pub(crate) fn draft(
        &self,
        old: &Container,
        tag: ObjectTag,
        Changed { dead, links, deltas }: Changed<'_>,
    ) -> Result<ContainerDraft> {
        let (config, series, place) = (self.config, self.series, (old.number, tag));
        let mut draft = ContainerDraft::new(self.objects, config, series, place, self.compression)?;
        if self.enlarges_frames && !old.directory.is_of_blocks() {
            draft.enlarge_frames();
        }
        let mut reader = self.reader();
        let is_linked = |slot: u16| links.binary_search_by_key(&slot, |link| link.slot).is_ok();
        let is_kept = |slot: u16| !holds(dead, slot) && !is_linked(slot);
        let kept = || old.directory.slots().filter(|(slot, _)| is_kept(*slot));
        let frames: BTreeSet<u16> = kept().map(|(_, place)| place.frame).collect();
        reader.expect(old, |frame| frames.contains(&frame));
        let mut deltas = deltas.iter().peekable();
        for (slot, place) in kept() {
            draft.begin_application(slot, old.directory.application(slot));
            let chunk = reader.verified(old, slot, &self.fingerprinter)?;
            let fingerprint = chunk.fingerprint;
            let frame = old.directory.frames.get(usize::from(place.frame));
            let frame_bytes = frame.map_or(0, |frame| frame.raw_bytes);
            if let Some(new) = deltas.next_if(|new| new.delta.slot == slot) {
                draft.push_delta(new.delta, &new.stored, fingerprint, frame_bytes)?;
            } else if let Some(delta) = old.directory.delta(slot) {
                let stored = reader.stored(old, slot)?;
                draft.push_delta(*delta, stored, fingerprint, frame_bytes)?;
            } else {
                draft.push(slot, chunk.bytes, fingerprint, frame_bytes)?;
            }
        }
        let mut all: Vec<Link> = old.directory.links.iter().chain(links).copied().collect();
        all.sort_unstable_by_key(|link| link.slot);
        all.into_iter().filter(|link| !holds(dead, link.slot)).for_each(|link| draft.link(link));
        Ok(draft)
    }

    /// A reader of the series' containers.
    pub(crate) fn reader(&self) -> ContainerReader<'_> {
        let mut reader = ContainerReader::new(self.objects);
        self.chunks.iter().for_each(|chunks| reader.read_deltas_with(Arc::clone(chunks)));
        reader
    }
}
