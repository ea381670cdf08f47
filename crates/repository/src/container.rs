//! Containers: their directories and frames.

use std::ops::Range;
use std::sync::Arc;

use silt_format::number::{to_u16, to_u64};
use silt_format::{
    Delta, Directory, Error, Frame, HEADER_BYTES, Link, ObjectKind, ObjectTag, PRIVATE_STORE,
    Reference, Result, SHARED_STORE, SeriesId, Slot, names,
};
use silt_storage::ahead::Blocks;
use silt_storage::planned::PlannedBlock;

use crate::objects::{Address, Objects, OpenObject, Scratch};

/// A container in a cache that readers of several series share: its store, number and tag.
pub(crate) type ContainerKey = (SeriesId, u32, ObjectTag);

/// An open container.
pub struct Container {
    /// The store that it belongs to.
    pub store: SeriesId,
    /// Its number there.
    pub number: u32,
    /// The writer's tag, part of the container's name.
    pub tag: ObjectTag,
    /// The header and sealer for reading its frames.
    pub object: OpenObject,
    /// Its directory: the places of its chunks.
    pub directory: Directory,
}

impl Container {
    /// A frame as a block of the object.
    pub(crate) fn planned(&self, name: &Arc<str>, frame: u16) -> Option<PlannedBlock> {
        let frame = self.directory.frames.get(usize::from(frame))?;
        let name = Arc::clone(name);
        Some(PlannedBlock { name, offset: frame.offset, length: frame.sealed_bytes })
    }

    /// Frames by their numbers, as blocks of the object.
    pub(crate) fn blocks(&self, frames: impl Iterator<Item = u16>) -> Blocks<'_> {
        let wanted = frames.filter_map(|number| {
            let frame = self.directory.frames.get(usize::from(number))?;
            Some((frame.offset, frame.sealed_bytes))
        });
        Blocks {
            name: &self.object.name,
            wanted: wanted.collect(),
            end: frames_end(&self.directory),
        }
    }

    pub(crate) fn key(&self) -> ContainerKey {
        (self.store, self.number, self.tag)
    }

    pub(crate) fn weight(&self) -> usize {
        let directory = &self.directory;
        256 + directory.frames.len() * 12
            + directory.runs.len() * 20
            + directory.fingerprints.len() * 20
            + directory.links.len() * size_of::<Link>()
            + directory.deltas.len() * size_of::<Delta>()
    }
}

/// Opens a container and reads its directory.
pub fn open_container(
    objects: &Objects,
    series: SeriesId,
    number: u32,
    tag: ObjectTag,
) -> Result<Container> {
    let name = names::container(series, number, tag);
    let address = Address::tagged(ObjectKind::Container, series, number, tag);
    let (object, directory) = objects.read_directory(&name, address, |raw| {
        let directory = Directory::decode(raw)?;
        let end = frames_end(&directory);
        Ok((directory, end))
    })?;
    // Whoever looks for links and deltas reads rewritten containers alone.
    let of_rewritten = [("links", directory.links.len()), ("deltas", directory.deltas.len())];
    let found = of_rewritten.into_iter().find(|(_, count)| *count > 0);
    if let Some((what, _)) = found.filter(|_| !tag.is_rewritten()) {
        let message = format!("container {name} holds {what}, but was never rewritten");
        return Err(Error::corrupt(message));
    }
    Ok(Container { store: series, number, tag, object, directory })
}

/// Where the frames end and the directory begins.
fn frames_end(directory: &Directory) -> u64 {
    directory.frames.last().map_or(to_u64(HEADER_BYTES), |frame| {
        u64::from(frame.offset) + u64::from(frame.sealed_bytes)
    })
}

/// Says that frames of a container are about to be read.
pub(crate) fn expect_frames(
    objects: &Objects,
    container: &Container,
    wanted: impl Fn(u16) -> bool,
    scratch: &mut Scratch,
) {
    let numbers = 0..to_u16(container.directory.frames.len());
    let blocks = container.blocks(numbers.filter(|number| wanted(*number)));
    objects.expect(std::iter::once(blocks), scratch);
}

pub(crate) fn frame_entry(container: &Container, frame: u16) -> Result<&Frame> {
    container.directory.frames.get(usize::from(frame)).ok_or_else(|| {
        Error::corrupt(format!("container {} has no frame {frame}", container.object.name))
    })
}

/// Replaces `raw` by the chunks of a frame; their number of bytes is as the directory says.
pub(crate) fn read_frame(
    objects: &Objects,
    container: &Container,
    frame: u16,
    scratch: &mut Scratch,
    raw: &mut Vec<u8>,
) -> Result<()> {
    let entry = frame_entry(container, frame)?;
    let range = (entry.offset, entry.sealed_bytes);
    objects.read_block(&container.object, range, u64::from(frame), scratch, raw)?;
    has_length(container, frame, raw)
}

/// The same with the sealed bytes of the frame, which are overwritten.
pub(crate) fn open_frame(
    objects: &Objects,
    container: &Container,
    (frame, sealed): (u16, &mut [u8]),
    scratch: &mut Scratch,
    raw: &mut Vec<u8>,
) -> Result<()> {
    objects.open_block(&container.object, sealed, u64::from(frame), scratch, raw)?;
    has_length(container, frame, raw)
}

fn has_length(container: &Container, frame: u16, raw: &[u8]) -> Result<()> {
    let entry = frame_entry(container, frame)?;
    if raw.len() != entry.raw_bytes as usize {
        return Err(Error::corrupt(format!(
            "frame {frame} of container {} has {} bytes, but its directory says {}",
            container.object.name,
            raw.len(),
            entry.raw_bytes
        )));
    }
    Ok(())
}

/// Where the bytes of a slot are in its frame.
pub(crate) fn stored_range(
    container: &Container,
    number: u16,
    slot: Slot,
    frame: &[u8],
) -> Result<Range<usize>> {
    let range = slot.offset as usize..slot.offset as usize + slot.length as usize;
    if range.end <= frame.len() {
        return Ok(range);
    }
    let name = &container.object.name;
    Err(Error::corrupt(format!("slot {number} of container {name} lies outside its frame")))
}

/// Where the slot of a reference, which holds no chunk, leads: always from a private store to the
/// shared one, so that no chain can have no end.
pub(crate) fn link_target(container: &Container, reference: Reference) -> Result<Reference> {
    let link = container.directory.link(reference.slot());
    let leads_out =
        |link: &&Link| reference.store() == PRIVATE_STORE && link.target.store() == SHARED_STORE;
    link.filter(leads_out).map(|link| link.target).ok_or_else(|| {
        Error::corrupt(format!(
            "container {} has no slot {}",
            container.object.name,
            reference.slot()
        ))
    })
}
