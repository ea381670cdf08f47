//! Reading one container's chunks, slot by slot.

use silt_chunking::Fingerprinter;
use silt_format::{Error, Fingerprint, Result};

use crate::chunks::{Container, expect_frames, read_frame};
use crate::objects::{Objects, Scratch};

/// A chunk as a container has it.
#[derive(Clone, Copy, Debug)]
pub struct StoredChunk<'r> {
    /// Its bytes, unverified.
    pub bytes: &'r [u8],
    /// Its fingerprint, from the container's directory.
    pub fingerprint: Fingerprint,
}

/// Reads chunks that mostly come in the order of their slots: the frame that was decoded last is
/// kept.
pub struct ContainerReader<'o> {
    objects: &'o Objects,
    /// The container and the number of the frame that `raw` holds.
    at: Option<(String, u16)>,
    raw: Vec<u8>,
    scratch: Scratch,
}

impl<'o> ContainerReader<'o> {
    /// A reader of any containers of these objects.
    pub fn new(objects: &'o Objects) -> Self {
        Self { objects, at: None, raw: Vec::new(), scratch: Scratch::default() }
    }

    /// The objects that it reads.
    pub fn objects(&self) -> &'o Objects {
        self.objects
    }

    /// Says that frames of a container are about to be read, so that they are read together where
    /// that saves time.
    pub fn expect(&mut self, container: &Container, wanted: impl Fn(u16) -> bool) {
        expect_frames(self.objects, container, wanted, &mut self.scratch);
    }

    /// The chunks of a frame.
    pub fn frame(&mut self, container: &Container, frame: u16) -> Result<&[u8]> {
        let name = &container.object.name;
        let is_here = |(at, number): &(String, u16)| at == name && *number == frame;
        if !self.at.as_ref().is_some_and(is_here) {
            self.at = None;
            read_frame(self.objects, container, frame, &mut self.scratch, &mut self.raw)?;
            self.at = Some((name.clone(), frame));
        }
        Ok(&self.raw)
    }

    /// The chunk of a slot; `None` where the slot holds none.
    pub fn chunk(&mut self, container: &Container, slot: u16) -> Result<Option<StoredChunk<'_>>> {
        let directory = &container.directory;
        let Some(place) = directory.slot(slot) else { return Ok(None) };
        let fingerprint = directory.fingerprints[place.index as usize];
        let start = place.offset as usize;
        let raw = self.frame(container, place.frame)?;
        let bytes = raw.get(start..start + place.length as usize);
        let bytes = bytes.ok_or_else(|| damaged(container, slot))?;
        Ok(Some(StoredChunk { bytes, fingerprint }))
    }

    /// The same of a slot that must hold a chunk, which is the one that the directory says.
    pub fn verified(
        &mut self,
        container: &Container,
        slot: u16,
        fingerprinter: &Fingerprinter,
    ) -> Result<StoredChunk<'_>> {
        let chunk = self.chunk(container, slot)?.ok_or_else(|| damaged(container, slot))?;
        if fingerprinter.fingerprint(chunk.bytes) != chunk.fingerprint {
            return Err(damaged(container, slot));
        }
        Ok(chunk)
    }
}

fn damaged(container: &Container, slot: u16) -> Error {
    Error::corrupt(format!("slot {slot} of container {} is damaged", container.object.name))
}
