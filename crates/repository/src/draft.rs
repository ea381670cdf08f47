//! A container written by one thread, chunk by chunk, under slots that the caller chooses.

use silt_format::number::to_u64;
use silt_format::{
    BlockWriter, Config, Fingerprint, Link, ObjectKind, ObjectTag, Result, Sealer, SeriesId, names,
};

use crate::frame_packer::{FramePacker, large_frame_bytes};
use crate::objects::{Address, Objects, close_object};

/// A container that is being written; nothing is stored before it is finished.
pub struct ContainerDraft {
    name: String,
    sealer: Sealer,
    writer: BlockWriter,
    packer: FramePacker,
    /// The configured size of frames, and that of large ones.
    frame_bytes: (usize, usize),
    /// Header and frames.
    body: Vec<u8>,
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
            packer: FramePacker::new(Vec::new()),
            frame_bytes: (config.frame_bytes as usize, large_frame_bytes(config)),
            body: header.encode().to_vec(),
        })
    }

    /// Adds a chunk as `slot`, greater than all slots of chunks before it. It comes from a frame of
    /// `old_frame_bytes`, and goes to a large one if that was one.
    pub fn push(
        &mut self,
        slot: u16,
        chunk: &[u8],
        fingerprint: Fingerprint,
        old_frame_bytes: u32,
    ) {
        let (small, large) = self.frame_bytes;
        let frame_bytes = if old_frame_bytes as usize > small { large } else { small };
        if self.packer.must_end_before(chunk.len(), frame_bytes) {
            self.end_frame();
        }
        self.packer.push(slot, chunk, fingerprint, frame_bytes);
    }

    /// Adds a slot whose chunk is elsewhere; it is greater than all links before it.
    pub fn link(&mut self, link: Link) {
        self.packer.link(link);
    }

    /// How many chunks and links it holds.
    pub fn slots(&self) -> usize {
        self.packer.slots()
    }

    /// Writes the container, durable on return, and returns its size in bytes.
    pub fn finish(mut self, objects: &Objects) -> Result<u64> {
        assert!(self.slots() > 0, "a container of nothing is not written");
        self.end_frame();
        let directory = self.packer.directory();
        let end = close_object(&mut self.writer, &self.sealer, self.body.len(), &directory);
        objects.put_pieces(&self.name, ObjectKind::Container, &[self.body.into(), end.into()])
    }

    fn end_frame(&mut self) {
        let Some(frame) = self.packer.end_frame(Vec::new) else { return };
        let offset = self.body.len();
        let position = to_u64(usize::from(frame.number));
        let sealed = self.writer.append(&self.sealer, position, &frame.raw, &mut self.body);
        self.packer.place(frame.number, offset, sealed);
    }
}
