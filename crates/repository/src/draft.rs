//! A container written by one thread, chunk by chunk, under slots that the caller chooses.

use silt_format::number::{to_u16, to_u32, to_u64};
use silt_format::{
    BlockWriter, Config, Directory, Fingerprint, Frame, Link, ObjectKind, ObjectTag, Result,
    Sealer, SeriesId, names,
};

use crate::objects::{Address, Objects, close_object};

/// A container that is being written; nothing is stored before it is finished.
pub struct ContainerDraft {
    name: String,
    sealer: Sealer,
    writer: BlockWriter,
    frame_bytes: usize,
    directory: Directory,
    /// Header and frames.
    body: Vec<u8>,
    /// The chunks of the frame that is being filled.
    raw: Vec<u8>,
}

impl ContainerDraft {
    /// A draft of container `number` of a store, with the tag of the session that writes it.
    pub fn new(
        objects: &Objects,
        config: &Config,
        store: SeriesId,
        number: u32,
        tag: ObjectTag,
    ) -> Result<Self> {
        let kind = ObjectKind::Container;
        let address = Address::tagged(kind, store, number, tag);
        let (header, sealer) = objects.begin_container(address)?;
        Ok(Self {
            name: names::container(store, number, tag),
            sealer,
            writer: BlockWriter::new(config.zstd_level)?,
            frame_bytes: config.frame_bytes as usize,
            directory: Directory::default(),
            body: header.encode().to_vec(),
            raw: Vec::new(),
        })
    }

    /// Adds a chunk as `slot`, greater than all slots of chunks before it.
    pub fn push(&mut self, slot: u16, chunk: &[u8], fingerprint: Fingerprint) {
        if !self.raw.is_empty() && self.raw.len() + chunk.len() > self.frame_bytes {
            self.end_frame();
        }
        let frame = to_u16(self.directory.frames.len());
        self.directory.push(slot, frame, to_u32(chunk.len()), fingerprint);
        self.raw.extend_from_slice(chunk);
    }

    /// Adds a slot whose chunk is elsewhere; it is greater than all links before it.
    pub fn link(&mut self, link: Link) {
        self.directory.links.push(link);
    }

    /// How many chunks it holds.
    pub fn chunks(&self) -> usize {
        self.directory.fingerprints.len()
    }

    /// Writes the container; durable on return. The answer is its bytes.
    pub fn finish(mut self, objects: &Objects) -> Result<u64> {
        assert!(
            self.chunks() + self.directory.links.len() > 0,
            "a container of nothing is not written"
        );
        if !self.raw.is_empty() {
            self.end_frame();
        }
        let directory = self.directory.encode();
        let end = close_object(&mut self.writer, &self.sealer, self.body.len(), &directory);
        objects.put_pieces(&self.name, ObjectKind::Container, &[self.body.into(), end.into()])
    }

    fn end_frame(&mut self) {
        let position = to_u64(self.directory.frames.len());
        let offset = to_u32(self.body.len());
        let sealed = self.writer.append(&self.sealer, position, &self.raw, &mut self.body);
        let raw_bytes = to_u32(self.raw.len());
        self.directory.frames.push(Frame { offset, sealed_bytes: to_u32(sealed), raw_bytes });
        self.raw.clear();
    }
}
