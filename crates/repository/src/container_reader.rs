//! Reading one container's chunks, slot by slot.

use std::sync::Arc;

use silt_chunking::Fingerprinter;
use silt_format::{Error, Fingerprint, PRIVATE_STORE, Result};

use crate::chunks::ChunkReader;
use crate::container::{Container, expect_frames, read_frame};
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
    bases: Option<Bases>,
}

/// The chunks that deltas are applied to, and the last result.
struct Bases {
    chunks: Arc<ChunkReader>,
    scratch: Scratch,
    result: Vec<u8>,
}

impl<'o> ContainerReader<'o> {
    /// A reader of any containers of these objects, which refuses to read deltas.
    pub fn new(objects: &'o Objects) -> Self {
        Self { objects, at: None, raw: Vec::new(), scratch: Scratch::default(), bases: None }
    }

    /// A reader that also reads the deltas of one series, whose chunks `chunks` reads.
    pub fn with_deltas(objects: &'o Objects, chunks: Arc<ChunkReader>) -> Self {
        let mut reader = Self::new(objects);
        reader.read_deltas_with(chunks);
        reader
    }

    /// From now on also reads the deltas of the series whose chunks `chunks` reads.
    pub fn read_deltas_with(&mut self, chunks: Arc<ChunkReader>) {
        self.bases = Some(Bases { chunks, scratch: Scratch::default(), result: Vec::new() });
    }

    /// The objects that it reads.
    pub fn objects(&self) -> &'o Objects {
        self.objects
    }

    /// Says that frames of a container are about to be read, so that they are read together where
    /// that saves time.
    pub fn expect(&mut self, container: &Container, wanted: impl Fn(u16) -> bool) {
        if let Some(bases) = &mut self.bases {
            let deltas = container.directory.deltas.iter().filter(|delta| {
                container.directory.slot(delta.slot).is_some_and(|slot| wanted(slot.frame))
            });
            bases.chunks.expect(deltas.map(|delta| delta.base), &mut bases.scratch);
        }
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
        let Some(delta) = directory.delta(slot) else {
            let bytes = self.stored(container, slot)?;
            return Ok(Some(StoredChunk { bytes, fingerprint }));
        };
        self.stored(container, slot)?;
        let start = place.offset as usize;
        let stored = &self.raw[start..start + place.length as usize];
        let Some(Bases { chunks, scratch, result }) = &mut self.bases else {
            let name = &container.object.name;
            return Err(Error::corrupt(format!("slot {slot} of container {name} is a delta")));
        };
        result.resize(delta.chunk_bytes as usize, 0);
        chunks.apply(container, delta, stored, scratch, result)?;
        Ok(Some(StoredChunk { bytes: result, fingerprint }))
    }

    /// What a slot holds that is no link: a chunk, or a delta.
    pub fn stored(&mut self, container: &Container, slot: u16) -> Result<&[u8]> {
        let place = container.directory.slot(slot).ok_or_else(|| damaged(container, slot))?;
        let start = place.offset as usize;
        let raw = self.frame(container, place.frame)?;
        raw.get(start..start + place.length as usize).ok_or_else(|| damaged(container, slot))
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
    let base = container.directory.delta(slot).map(|delta| delta.base);
    let base = base.filter(|base| base.store() == PRIVATE_STORE).map_or_else(String::new, |base| {
        format!(", or its base, slot {} of container {:08x}", base.slot(), base.container())
    });
    Error::corrupt(format!("slot {slot} of container {}{base} is damaged", container.object.name))
}
