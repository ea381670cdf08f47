//! Reading chunks back: directories and frames, decoded once, verified by fingerprint.

use std::sync::{Arc, Mutex};

use silt_chunking::Fingerprinter;
use silt_format::number::to_u64;
use silt_format::{
    Directory, Error, ErrorKind, Fingerprint, HEADER_BYTES, Head, ObjectKind, ObjectSet,
    PRIVATE_STORE, RecipeChunk, Reference, Result, SeriesId, names,
};

use crate::budget::Budget;
use crate::cache::WeightedCache;
use crate::heads;
use crate::map::lock;
use crate::objects::{Address, Objects, OpenObject, Scratch};

/// Decoded frames by container, its revision, and number.
type FrameCache = WeightedCache<(u32, u32, u16), Arc<Vec<u8>>>;

/// An open container.
pub(crate) struct Container {
    pub(crate) revision: u32,
    pub(crate) object: OpenObject,
    pub(crate) directory: Directory,
}

impl Container {
    fn weight(&self) -> usize {
        let directory = &self.directory;
        256 + directory.frames.len() * 12
            + directory.runs.len() * 20
            + directory.fingerprints.len() * 20
    }
}

/// Where one thread read last; chunks that follow each other mostly lie in one frame.
#[derive(Default)]
pub(crate) struct Cursor {
    last: Option<Last>,
}

struct Last {
    number: u32,
    container: Arc<Container>,
    frame: u16,
    raw: Arc<Vec<u8>>,
}

/// Reads the chunks of one series.
pub(crate) struct ChunkReader {
    objects: Arc<Objects>,
    series: SeriesId,
    containers: Mutex<ObjectSet>,
    fingerprinter: Fingerprinter,
    open: Mutex<WeightedCache<u32, Arc<Container>>>,
    frames: Mutex<FrameCache>,
}

impl ChunkReader {
    pub(crate) fn new(objects: &Arc<Objects>, head: &Head, budget: Budget) -> Self {
        Self {
            objects: Arc::clone(objects),
            series: head.series,
            containers: Mutex::new(head.containers.clone()),
            fingerprinter: Fingerprinter::new(objects.master.fingerprint_key(head.domain)),
            open: Mutex::new(WeightedCache::new(budget.directories_bytes())),
            frames: Mutex::new(WeightedCache::new(budget.frames_bytes())),
        }
    }

    /// The name of a container that a reference names.
    pub(crate) fn container_name(&self, number: u32) -> String {
        let revision = lock(&self.containers).revision(number).unwrap_or(0);
        names::container(self.series, number, revision)
    }

    /// Opens the container with this number, which the head must list.
    pub(crate) fn container(&self, number: u32) -> Result<Arc<Container>> {
        if let Some(container) = lock(&self.open).get(&number) {
            return Ok(container);
        }
        let revision = lock(&self.containers).revision(number).ok_or_else(|| {
            Error::corrupt(format!("container {number:08x} is referred to but not in the head"))
        })?;
        let container = Arc::new(open_container(&self.objects, self.series, number, revision)?);
        lock(&self.open).insert(number, Arc::clone(&container), container.weight());
        Ok(container)
    }

    /// The decoded frame of a container.
    pub(crate) fn frame(
        &self,
        container: &Container,
        number: u32,
        frame: u16,
        scratch: &mut Scratch,
    ) -> Result<Arc<Vec<u8>>> {
        let key = (number, container.revision, frame);
        if let Some(raw) = lock(&self.frames).get(&key) {
            return Ok(raw);
        }
        let mut raw = Vec::new();
        read_frame(&self.objects, container, frame, scratch, &mut raw)?;
        let raw = Arc::new(raw);
        lock(&self.frames).insert(key, Arc::clone(&raw), raw.capacity());
        Ok(raw)
    }

    /// Copies a chunk that is not zeros into `out`, which is as long as the chunk. The caller
    /// compares its fingerprint with the recipe's before it uses a byte of it (I-4).
    ///
    /// A container that is gone may have been rewritten meanwhile: then the newest head says so.
    pub(crate) fn read_unverified(
        &self,
        chunk: &RecipeChunk,
        cursor: &mut Cursor,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        match self.read_once(chunk, cursor, scratch, out) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                cursor.last = None;
                self.follow_rewriting(chunk.reference.container(), error)?;
                self.read_once(chunk, cursor, scratch, out)
            }
            other => other,
        }
    }

    /// Learns from the newest head which revision of a container there is now; `error` if it is none
    /// that was not tried.
    fn follow_rewriting(&self, number: u32, error: Error) -> Result<()> {
        let newest = heads::newest(&self.objects, self.series)?;
        let revision = newest.as_ref().and_then(|head| head.containers.revision(number));
        let (Some(head), Some(revision)) = (newest, revision) else { return Err(error) };
        // Of several threads that come here, the first has done it for all.
        let mut containers = lock(&self.containers);
        *containers = head.containers;
        let mut open = lock(&self.open);
        if open.get(&number).is_some_and(|container| container.revision != revision) {
            open.remove(&number);
        }
        Ok(())
    }

    fn read_once(
        &self,
        chunk: &RecipeChunk,
        cursor: &mut Cursor,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let number = chunk.reference.container();
        check_store(chunk.reference)?;
        let container = match &cursor.last {
            Some(last) if last.number == number => Arc::clone(&last.container),
            _ => self.container(number)?,
        };
        let slot = container.directory.slot(chunk.reference.slot()).ok_or_else(|| {
            Error::corrupt(format!(
                "container {} has no slot {}",
                container.object.name,
                chunk.reference.slot()
            ))
        })?;
        let frame = match &cursor.last {
            Some(last) if (last.number, last.frame) == (number, slot.frame) => &last.raw,
            _ => {
                let raw = self.frame(&container, number, slot.frame, scratch)?;
                let container = Arc::clone(&container);
                &cursor.last.insert(Last { number, container, frame: slot.frame, raw }).raw
            }
        };
        let start = slot.offset as usize;
        let bytes = frame.get(start..start + slot.length as usize);
        let bytes = bytes.filter(|bytes| bytes.len() == out.len()).ok_or_else(|| {
            Error::corrupt(format!(
                "slot {} of container {} holds {} bytes, the recipe says {}",
                chunk.reference.slot(),
                container.object.name,
                slot.length,
                chunk.length
            ))
        })?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    /// The error of a chunk whose fingerprint is `found` and not what the recipe says.
    pub(crate) fn mismatch(&self, chunk: &RecipeChunk, found: Fingerprint) -> Error {
        Error::corrupt(format!(
            "slot {} of container {}: the chunk's fingerprint is {found}, the recipe says {}",
            chunk.reference.slot(),
            self.container_name(chunk.reference.container()),
            chunk.fingerprint
        ))
    }

    pub(crate) fn fingerprinter(&self) -> &Fingerprinter {
        &self.fingerprinter
    }
}

/// Refuses a reference to a store that this version's heads cannot name.
pub(crate) fn check_store(reference: Reference) -> Result<()> {
    if reference.store() == PRIVATE_STORE {
        return Ok(());
    }
    Err(Error::corrupt(format!("store {} is not in the head's table", reference.store())))
}

/// Opens a container and reads its directory.
pub(crate) fn open_container(
    objects: &Objects,
    series: SeriesId,
    number: u32,
    revision: u32,
) -> Result<Container> {
    let name = names::container(series, number, revision);
    let kind = ObjectKind::Container;
    let address = Address { kind, series, number: u64::from(number), revision };
    let object = objects.open(&name, address)?;
    let directory = objects.read_directory(&object, |raw| {
        let directory = Directory::decode(raw)?;
        let end = directory.frames.last().map_or(to_u64(HEADER_BYTES), |frame| {
            u64::from(frame.offset) + u64::from(frame.sealed_bytes)
        });
        Ok((directory, end))
    })?;
    Ok(Container { revision, object, directory })
}

/// Replaces `raw` by the chunks of a frame; their number of bytes is as the directory says.
pub(crate) fn read_frame(
    objects: &Objects,
    container: &Container,
    frame: u16,
    scratch: &mut Scratch,
    raw: &mut Vec<u8>,
) -> Result<()> {
    let entry = container.directory.frames.get(usize::from(frame)).ok_or_else(|| {
        Error::corrupt(format!("container {} has no frame {frame}", container.object.name))
    })?;
    let range = (entry.offset, entry.sealed_bytes);
    objects.read_block(&container.object, range, u64::from(frame), scratch, raw)?;
    if raw.len() != entry.raw_bytes as usize {
        return Err(Error::corrupt(format!(
            "frame {frame} of container {} has {} bytes, its directory says {}",
            container.object.name,
            raw.len(),
            entry.raw_bytes
        )));
    }
    Ok(())
}
