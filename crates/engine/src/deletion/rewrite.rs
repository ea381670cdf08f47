//! Rewrites a container under the same references, without its dead slots.

use std::collections::BTreeSet;

use silt_chunking::Fingerprinter;
use silt_format::{Config, DeadRange, Link, ObjectTag, Result, SeriesId};
use silt_repository::chunks::Container;
use silt_repository::container_reader::ContainerReader;
use silt_repository::dead::holds;
use silt_repository::draft::ContainerDraft;
use silt_repository::objects::Objects;

/// State for rewriting one series' containers.
pub(crate) struct Rewriter<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) series: SeriesId,
    pub(crate) fingerprinter: Fingerprinter,
    pub(crate) config: &'a Config,
}

impl Rewriter<'_> {
    /// Writes container `number` anew under `tag`, durable on return: without the slots in `dead`,
    /// and with links, which ascend, in place of the chunks that they stand for.
    ///
    /// Returns its size in bytes. Fails with `Corrupt` if a living chunk does not match its
    /// fingerprint.
    pub(crate) fn rewrite(
        &self,
        old: &Container,
        number: u32,
        tag: ObjectTag,
        dead: &[DeadRange],
        links: &[Link],
    ) -> Result<u64> {
        let mut draft = ContainerDraft::new(self.objects, self.config, self.series, number, tag)?;
        let mut reader = ContainerReader::new(self.objects);
        let is_linked = |slot: u16| links.binary_search_by_key(&slot, |link| link.slot).is_ok();
        let is_kept = |slot: u16| !holds(dead, slot) && !is_linked(slot);
        let kept = || old.directory.slots().filter(|(slot, _)| is_kept(*slot));
        let frames: BTreeSet<u16> = kept().map(|(_, place)| place.frame).collect();
        reader.expect(old, |frame| frames.contains(&frame));
        for (slot, place) in kept() {
            let chunk = reader.verified(old, slot, &self.fingerprinter)?;
            let frame = old.directory.frames.get(usize::from(place.frame));
            let frame_bytes = frame.map_or(0, |frame| frame.raw_bytes);
            draft.push(slot, chunk.bytes, chunk.fingerprint, frame_bytes);
        }
        let mut all: Vec<Link> = old.directory.links.iter().chain(links).copied().collect();
        all.sort_unstable_by_key(|link| link.slot);
        all.into_iter().filter(|link| !holds(dead, link.slot)).for_each(|link| draft.link(link));
        draft.finish(self.objects)
    }
}
