//! Rewriting a container under the same references, without its dead slots.

use std::collections::BTreeSet;

use silt_chunking::Fingerprinter;
use silt_format::{Config, DeadRange, Error, Link, ObjectTag, Result, SeriesId};
use silt_repository::chunks::{Container, expect_frames, read_frame};
use silt_repository::dead::holds;
use silt_repository::draft::ContainerDraft;
use silt_repository::objects::{Objects, Scratch};

/// What every rewriting of one series' containers works with.
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
    /// The answer is its bytes. Fails as `Corrupt` if a living chunk is not what it should be.
    pub(crate) fn rewrite(
        &self,
        old: &Container,
        number: u32,
        tag: ObjectTag,
        dead: &[DeadRange],
        links: &[Link],
    ) -> Result<u64> {
        let mut draft = ContainerDraft::new(self.objects, self.config, self.series, number, tag)?;
        let (mut scratch, mut frame, mut frame_number) = (Scratch::default(), Vec::new(), None);
        let is_linked = |slot: u16| links.binary_search_by_key(&slot, |link| link.slot).is_ok();
        let is_kept = |slot: u16| !holds(dead, slot) && !is_linked(slot);
        let kept = || old.directory.slots().filter(|(slot, _)| is_kept(*slot));
        let frames: BTreeSet<u16> = kept().map(|(_, place)| place.frame).collect();
        expect_frames(self.objects, old, |frame| frames.contains(&frame), &mut scratch);
        for (slot, place) in kept() {
            if frame_number != Some(place.frame) {
                read_frame(self.objects, old, place.frame, &mut scratch, &mut frame)?;
                frame_number = Some(place.frame);
            }
            let start = place.offset as usize;
            let chunk = &frame[start..start + place.length as usize];
            let fingerprint = old.directory.fingerprints[place.index as usize];
            if self.fingerprinter.fingerprint(chunk) != fingerprint {
                let name = &old.object.name;
                return Err(Error::corrupt(format!("slot {slot} of container {name} is damaged")));
            }
            draft.push(slot, chunk, fingerprint);
        }
        let mut all: Vec<Link> = old.directory.links.iter().chain(links).copied().collect();
        all.sort_unstable_by_key(|link| link.slot);
        all.into_iter().filter(|link| !holds(dead, link.slot)).for_each(|link| draft.link(link));
        draft.finish(self.objects)
    }
}
