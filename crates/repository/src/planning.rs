//! Reading that is planned: segments tell long before what they will need.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_format::{Reference, Result};
use silt_storage::planned::Run;
use silt_storage::retained::Needed;

use crate::bases::chunk_of;
use crate::chunks::ChunkReader;
use crate::container::{Container, frame_entry, open_frame, read_frame};
use crate::objects::Scratch;
use crate::sync::lock;

impl ChunkReader {
    /// A segment needs these chunks. What lies far away is read before, and what is in frames that
    /// are decoded before is kept, until it is [`restored`](Self::restored).
    pub fn plan(&self, segment: u64, references: impl Iterator<Item = Reference>) {
        self.share_memory();
        let mut frames = BTreeMap::new();
        let mut references: Vec<Reference> = references.collect();
        for are_bases in [false, true] {
            references = self.add_frames(references, are_bases, &mut frames);
        }
        let (mut needed, mut blocks) = (Vec::new(), Vec::new());
        for (container, frames) in frames.into_values() {
            let name = Arc::from(&*container.object.name);
            for (frame, mut slots) in frames {
                let Some(block) = container.planned(&name, frame) else { continue };
                slots.sort_unstable();
                slots.dedup();
                let place = (Arc::clone(&name), block.offset);
                needed.push(Needed { key: (container.key(), frame), place, slots });
                blocks.push(block);
            }
        }
        self.cache.retained.plan(segment, needed);
        if self.objects.storage.request_bytes() > 0 {
            self.cache.planned.plan(&self.objects.storage, segment, blocks);
        }
    }

    /// Leaves most of the memory of parts to planned blocks, and most of that of frames to chunks
    /// that are needed later; less where bases of deltas are kept, too.
    fn share_memory(&self) {
        let frames_bytes = self.cache.frames_planned_bytes;
        let times = if self.cache.bases.are_wanted() { 2 } else { 4 };
        lock(&self.cache.frames).bytes_max = frames_bytes;
        self.cache.retained.limit(frames_bytes * times);
        self.cache.parts.limit(self.cache.unplanned_bytes);
    }

    /// A planned segment is read now.
    pub fn begin(&self, segment: u64) {
        self.cache.retained.begin(segment);
    }

    /// A planned segment needs nothing any more.
    pub fn restored(&self, segment: u64) {
        self.cache.retained.restored(segment);
        self.cache.planned.restored(segment);
    }

    /// What to read next for planned segments, if there is memory for it; whoever gets it must
    /// [`read`](Self::read) it.
    pub fn next_run(&self) -> Option<Run> {
        self.cache.planned.next_run(&self.objects.storage)
    }

    /// Whether the storage is far away; `None` if too little was read to tell.
    pub fn is_far(&self) -> Option<bool> {
        self.cache.planned.is_far()
    }

    /// Reads what [`next_run`](Self::next_run) has told.
    pub fn read(&self, run: Run) {
        let now_ns = || self.objects.context.env.now_ns();
        self.cache.planned.read(&self.objects.storage, run, now_ns);
    }

    /// Decodes a frame, and keeps what planned segments need of it.
    pub(crate) fn decode(
        &self,
        container: &Container,
        frame: u16,
        scratch: &mut Scratch,
    ) -> Result<Vec<u8>> {
        let (objects, planned) = (&self.objects, &self.cache.planned);
        let (name, offset) = (&container.object.name, frame_entry(container, frame)?.offset);
        let mut raw = self.cache.spare.take().unwrap_or_default();
        let now_ns = || objects.context.env.now_ns();
        let mut sealed = planned.take(&objects.storage, name, offset, now_ns).unwrap_or_default();
        let is_open = !sealed.is_empty()
            && open_frame(objects, container, (frame, &mut sealed), scratch, &mut raw).is_ok();
        if !is_open {
            read_frame(objects, container, frame, scratch, &mut raw)?;
        }
        let key = (container.key(), frame);
        planned.give_back(sealed);
        let chunk = |slot| chunk_of(&container.directory, &raw, slot);
        for (name, offset) in self.cache.retained.pick(key, chunk) {
            planned.need_again(&name, offset);
        }
        Ok(raw)
    }

    /// Whether these slots of a frame are here, or planned to be.
    pub(crate) fn has(&self, container: &Container, frame: u16, slots: &[u16]) -> bool {
        let (key, cache) = ((container.key(), frame), &*self.cache);
        let is_planned = || {
            let entry = container.directory.frames.get(usize::from(frame));
            entry.is_some_and(|entry| cache.planned.has(&container.object.name, entry.offset))
        };
        lock(&cache.frames).contains(&key)
            || is_planned()
            || slots.iter().all(|slot| cache.retained.get(key, *slot).is_some())
    }
}
