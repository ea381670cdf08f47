//! Estimates what a higher level of compression and larger frames save in a container.

use silt_format::number::{to_u64, to_usize};
use silt_format::{
    BlockWriter, Compression, Config, Directory, Result, TAG_BYTES, large_frame_bytes,
};

use crate::chunks::Container;
use crate::container_reader::ContainerReader;
use crate::objects::is_damage;

/// Of this many frames, those that are compressed on trial: the first four, which become a large
/// one.
const FRAMES_PER_SAMPLE: u16 = 32;
const FRAMES_OF_SAMPLE: u16 = 4;

/// Compresses some frames of containers on trial.
pub struct Recompression {
    writer: BlockWriter,
    compression: Compression,
    /// Frames that are compressed together.
    raw: Vec<u8>,
    packed: Vec<u8>,
}

/// What the sampled frames of a container take now, and as they would be compressed, in bytes.
#[derive(Clone, Copy, Default)]
pub struct Sampled {
    now: u64,
    then: u64,
}

impl Sampled {
    /// About what a container of `bytes` bytes would lose.
    pub fn saved_bytes(self, bytes: u64) -> u64 {
        bytes * self.now.saturating_sub(self.then) / self.now.max(1)
    }
}

impl Recompression {
    /// Compares with what `compression` makes of frames.
    pub fn new(compression: Compression) -> Result<Self> {
        let writer = compression.writer()?;
        Ok(Self { writer, compression, raw: Vec::new(), packed: Vec::new() })
    }

    /// Compresses some frames of a container; of one with damage, none.
    pub fn sample(
        &mut self,
        config: &Config,
        reader: &mut ContainerReader<'_>,
        container: &Container,
    ) -> Result<Sampled> {
        reader.expect(container, is_sampled);
        match self.sampled(config, reader, container) {
            Err(error) if is_damage(&error) => Ok(Sampled::default()),
            other => other,
        }
    }

    fn sampled(
        &mut self,
        config: &Config,
        reader: &mut ContainerReader<'_>,
        container: &Container,
    ) -> Result<Sampled> {
        let (mut sampled, frames) = (Sampled::default(), &container.directory.frames);
        let most = frame_bytes(config, &container.directory);
        self.raw.clear();
        for (number, frame) in (0..).zip(frames).filter(|(number, _)| is_sampled(*number)) {
            if self.raw.len() + to_usize(u64::from(frame.raw_bytes)) > most {
                sampled.then += self.packed_bytes()?;
            }
            self.raw.extend_from_slice(reader.frame(container, number)?);
            sampled.now += u64::from(frame.sealed_bytes);
        }
        sampled.then += self.packed_bytes()?;
        Ok(sampled)
    }

    /// The size of the collected frames as one, which are then forgotten.
    fn packed_bytes(&mut self) -> Result<u64> {
        if self.raw.is_empty() {
            return Ok(0);
        }
        self.writer.set_level(self.compression.level(&self.raw))?;
        self.packed.clear();
        self.writer.pack(&self.raw, &mut self.packed);
        self.raw.clear();
        Ok(to_u64(self.packed.len() + TAG_BYTES))
    }
}

fn is_sampled(frame: u16) -> bool {
    frame % FRAMES_PER_SAMPLE < FRAMES_OF_SAMPLE
}

/// The most bytes of a frame of the container when it is rewritten.
fn frame_bytes(config: &Config, directory: &Directory) -> usize {
    if directory.is_of_blocks() { config.frame_bytes as usize } else { large_frame_bytes(config) }
}
