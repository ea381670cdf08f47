//! Copying chunks from private stores to the shared one.

use silt_format::number::to_u16;
use silt_format::{
    CONTAINER_SLOTS_MAX, Fingerprint, Head, Reference, Result, SHARED_STORE, SeriesId, names,
};

use super::record::Owner;
use crate::chunks::{Container, open_container, read_frame};
use crate::draft::ContainerDraft;
use crate::objects::{Scratch, is_damage};
use crate::repository::Repository;

/// The frame that was read last, from which mostly the next chunk comes too.
pub(super) struct Source<'a> {
    repository: &'a Repository,
    /// The container that is open, by series and number; it may not be readable.
    container: Option<(SeriesId, u32, Option<Container>)>,
    frame: Option<u16>,
    raw: Vec<u8>,
    scratch: Scratch,
}

impl<'a> Source<'a> {
    pub(super) fn new(repository: &'a Repository) -> Result<Self> {
        let scratch = Scratch::new()?;
        Ok(Self { repository, container: None, frame: None, raw: Vec::new(), scratch })
    }

    /// A chunk and its fingerprint, verified; `None` if it can't be read.
    pub(super) fn read(
        &mut self,
        head: &Head,
        place: Owner,
    ) -> Result<Option<(Fingerprint, &[u8])>> {
        let here = (head.series, place.container);
        if self.container.as_ref().is_none_or(|(series, number, _)| (*series, *number) != here) {
            let revision = head.containers.revision(place.container).unwrap_or(0);
            let opened = open_or_warn(self.repository, head.series, place.container, revision)?;
            self.container = Some((head.series, place.container, opened));
            self.frame = None;
        }
        let Some((_, _, Some(container))) = &self.container else { return Ok(None) };
        let Some(slot) = container.directory.slot(place.slot) else { return Ok(None) };
        let fingerprint = container.directory.fingerprints[slot.index as usize];
        let objects = &self.repository.objects;
        if self.frame != Some(slot.frame) {
            match read_frame(objects, container, slot.frame, &mut self.scratch, &mut self.raw) {
                Ok(()) => self.frame = Some(slot.frame),
                Err(error) if is_damage(&error) => {
                    self.frame = None;
                    self.repository.warn(&format!("{error}; its chunks are not shared"));
                    return Ok(None);
                }
                Err(error) => return Err(error),
            }
        }
        let start = slot.offset as usize;
        let chunk = &self.raw[start..start + slot.length as usize];
        let key = objects.master.fingerprint_key(head.domain);
        let is_whole = silt_format::fingerprint(&key, chunk) == fingerprint;
        Ok(is_whole.then_some((fingerprint, chunk)))
    }
}

/// Opens a container; one that is damaged or gone by now is passed over with a warning.
pub(super) fn open_or_warn(
    repository: &Repository,
    store: SeriesId,
    number: u32,
    revision: u32,
) -> Result<Option<Container>> {
    match open_container(&repository.objects, store, number, revision) {
        Ok(container) => Ok(Some(container)),
        Err(error) if is_damage(&error) => {
            repository.warn(&format!("{error}; its chunks are not shared"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Writes containers of the shared store.
pub(super) struct StoreWriter<'a> {
    repository: &'a Repository,
    store: SeriesId,
    next_number: u32,
    open: Option<(u32, ContainerDraft)>,
    numbers: Vec<u32>,
    stored_bytes: u64,
}

/// Proof that every container is durable.
pub(super) struct DurableStore {
    pub(super) numbers: Vec<u32>,
    pub(super) next_number: u32,
    pub(super) stored_bytes: u64,
}

impl<'a> StoreWriter<'a> {
    /// A writer whose numbers lie behind all that are there, also those of interrupted builds.
    pub(super) fn new(repository: &'a Repository, head: &Head) -> Result<Self> {
        let mut next_number = head.next_container;
        for item in repository.objects.names(&names::containers(head.series), None)? {
            if let Some((number, _)) = names::number_and_revision(&item?.0) {
                next_number = next_number.max(number.saturating_add(1));
            }
        }
        let (numbers, stored_bytes) = (Vec::new(), 0);
        Ok(Self { repository, store: head.series, next_number, open: None, numbers, stored_bytes })
    }

    pub(super) fn append(&mut self, chunk: &[u8], fingerprint: Fingerprint) -> Result<Reference> {
        let config = &self.repository.config;
        let is_full = |draft: &ContainerDraft| {
            draft.bytes() >= config.container_bytes as usize
                || draft.chunks() == CONTAINER_SLOTS_MAX
        };
        if self.open.as_ref().is_some_and(|(_, draft)| is_full(draft)) {
            self.close()?;
        }
        let (number, draft) = match &mut self.open {
            Some(open) => open,
            none => {
                let (objects, number) = (&self.repository.objects, self.next_number);
                self.next_number += 1;
                let draft = ContainerDraft::new(objects, config, self.store, number, 0)?;
                none.insert((number, draft))
            }
        };
        let slot = to_u16(draft.chunks());
        draft.push(slot, chunk, fingerprint);
        Ok(Reference::new(SHARED_STORE, *number, slot))
    }

    fn close(&mut self) -> Result<()> {
        let Some((number, draft)) = self.open.take() else { return Ok(()) };
        self.stored_bytes += draft.finish(&self.repository.objects)?;
        self.numbers.push(number);
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<DurableStore> {
        self.close()?;
        let (numbers, next_number) = (self.numbers, self.next_number);
        Ok(DurableStore { numbers, next_number, stored_bytes: self.stored_bytes })
    }
}
