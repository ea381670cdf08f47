//! A container written by one thread, chunk by chunk, under slots that the caller chooses.

use bytes::Bytes;
use silt_format::number::to_u64;
use silt_format::{
    BlockWriter, Compression, Config, Delta, Fingerprint, FramePacker, Header, Link, ObjectKind,
    ObjectTag, Result, Sealer, SeriesId, large_frame_bytes, names,
};

use crate::directories::close_object;
use crate::objects::{Address, Objects};

/// A container that is being written; nothing is stored before it is finished.
pub struct ContainerDraft {
    name: String,
    header: Header,
    sealer: Sealer,
    compression: Compression,
    writer: BlockWriter,
    packer: FramePacker,
    /// The configured size of frames, and that of large ones.
    frame_bytes: (usize, usize),
    /// Header and frames.
    body: Vec<u8>,
}

/// A finished container in memory.
pub struct ClosedContainer {
    name: String,
    pieces: [Bytes; 2],
}

impl ClosedContainer {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        to_u64(self.pieces.iter().map(Bytes::len).sum())
    }

    /// Writes it, durable on return, and returns its size in bytes.
    pub fn put(self, objects: &Objects) -> Result<u64> {
        objects.put_pieces(&self.name, ObjectKind::Container, &self.pieces)
    }
}

impl ContainerDraft {
    /// A draft of container `number` of a store, with the tag of the session that writes it. Its
    /// frames are compressed by `compression`, whatever the configuration says.
    pub fn new(
        objects: &Objects,
        config: &Config,
        store: SeriesId,
        (number, tag): (u32, ObjectTag),
        compression: Compression,
    ) -> Result<Self> {
        let kind = ObjectKind::Container;
        let address = Address::tagged(kind, store, number, tag);
        let (header, sealer) = objects.begin_container(address)?;
        Ok(Self {
            name: names::container(store, number, tag),
            header,
            sealer,
            compression,
            writer: compression.writer()?,
            packer: FramePacker::new(Vec::new()),
            frame_bytes: (config.frame_bytes as usize, large_frame_bytes(config)),
            body: header.encode().to_vec(),
        })
    }

    /// Makes all frames as large as those of large files, from the first chunk on.
    pub fn enlarge_frames(&mut self) {
        self.frame_bytes.0 = self.frame_bytes.1;
    }

    /// Adds a chunk as `slot`, greater than all slots of chunks before it. It comes from a frame of
    /// `old_frame_bytes`, and goes to a large one if that was one.
    pub fn push(
        &mut self,
        slot: u16,
        chunk: &[u8],
        fingerprint: Fingerprint,
        old_frame_bytes: u32,
    ) -> Result<()> {
        let frame_bytes = self.begin(chunk.len(), old_frame_bytes)?;
        self.packer.push(slot, chunk, fingerprint, frame_bytes);
        Ok(())
    }

    /// Says of which application the chunks from `slot` on are.
    pub fn begin_application(&mut self, slot: u16, application: u16) {
        self.packer.begin_application(slot, application);
    }

    /// Adds a delta in the same way; `fingerprint` is its result's.
    pub fn push_delta(
        &mut self,
        delta: Delta,
        stored: &[u8],
        fingerprint: Fingerprint,
        old_frame_bytes: u32,
    ) -> Result<()> {
        let frame_bytes = self.begin(stored.len(), old_frame_bytes)?;
        self.packer.push_delta(delta, stored, fingerprint, frame_bytes);
        Ok(())
    }

    /// Ends the current frame if `bytes` more bytes don't belong there. Returns the maximum size of
    /// the frame that they go to.
    fn begin(&mut self, bytes: usize, old_frame_bytes: u32) -> Result<usize> {
        let (small, large) = self.frame_bytes;
        let frame_bytes = if old_frame_bytes as usize > small { large } else { small };
        if self.packer.must_end_before(bytes, frame_bytes) {
            self.end_frame()?;
        }
        Ok(frame_bytes)
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
    pub fn finish(self, objects: &Objects) -> Result<u64> {
        self.close()?.put(objects)
    }

    /// The finished container, not written yet.
    pub fn close(mut self) -> Result<ClosedContainer> {
        assert!(self.slots() > 0, "a container of nothing is not written");
        self.end_frame()?;
        let directory = self.packer.directory();
        let sealer = (&self.header, &self.sealer);
        let end = close_object(&mut self.writer, sealer, self.body.len(), &directory);
        Ok(ClosedContainer { name: self.name, pieces: [self.body.into(), end.into()] })
    }

    fn end_frame(&mut self) -> Result<()> {
        let Some(frame) = self.packer.end_frame(Vec::new) else { return Ok(()) };
        self.writer.set_level(self.compression.level(&frame.raw))?;
        let offset = self.body.len();
        let position = to_u64(usize::from(frame.number));
        let sealed = self.writer.append(&self.sealer, position, &frame.raw, &mut self.body);
        self.packer.place(frame.number, offset, sealed);
        Ok(())
    }
}
