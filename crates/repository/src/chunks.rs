//! Reads chunks: directories and frames are decoded once, chunks verified by fingerprint.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use silt_chunking::Fingerprinter;
use silt_format::number::to_u64;
use silt_format::{
    Delta, Error, ErrorKind, Fingerprint, Head, ObjectSet, ObjectTag, PRIVATE_STORE, RecipeChunk,
    Reference, Result, ResultExt, SHARED_STORE, SeriesId, Slot, names,
};
use silt_similarity::{DeltaCoder, XdeltaCoder};
use silt_storage::ahead::Parts;
use silt_storage::planned::PlannedReads;
use silt_storage::retained::Retained;

use crate::bases::{Base, BaseCache, FrameKey};
use crate::budget::Budget;
use crate::buffers::Kept;
use crate::cache::WeightedCache;
use crate::container::{ContainerKey, frame_entry, link_target, stored_range};
use crate::heads;
use crate::objects::{Objects, Scratch};
use crate::one_each::OneEach;
use crate::settle::verify_unchanged;
use crate::sync::lock;

pub use crate::container::{Container, open_container};

/// A container: the number of its store, and its own.
pub(crate) type ContainerId = (u16, u32);

/// Containers, and the slots that are needed of each frame.
pub(crate) type Frames = BTreeMap<ContainerId, (Arc<Container>, BTreeMap<u16, Vec<u16>>)>;

/// Decoded frames by container and number.
pub(crate) type FrameCache = WeightedCache<(ContainerKey, u16), Arc<Vec<u8>>>;

/// The caches of chunk readers; any number of readers can share one.
pub struct ChunkCache {
    open: Mutex<WeightedCache<ContainerKey, Arc<Container>>>,
    opening: OneEach<ContainerKey>,
    pub(crate) frames: Mutex<FrameCache>,
    decoding: OneEach<(ContainerKey, u16)>,
    /// The read-ahead cache of distant containers.
    pub(crate) parts: Arc<Parts>,
    /// Buffers of frames that were dropped. Frames are decoded by any thread, and an allocator that
    /// gets them back one by one keeps room for them in each thread's part of the heap.
    pub(crate) spare: Kept<Vec<u8>>,
    /// The chunks that deltas are applied to.
    pub(crate) bases: BaseCache,
    /// What planned segments need: their frames, and chunks of frames that were decoded before.
    pub(crate) planned: PlannedReads,
    pub(crate) retained: Retained<FrameKey, (Arc<str>, u32)>,
    /// Bytes of frames where there are deltas, and where it is planned what is read.
    frames_with_bases_bytes: usize,
    pub(crate) frames_planned_bytes: usize,
    /// Bytes of parts that are read although it is planned what is read.
    pub(crate) unplanned_bytes: u64,
}

impl ChunkCache {
    /// An empty cache, whose parts hold at most this many bytes. Where there are deltas, bases take
    /// half of what frames may.
    pub fn new(directories_bytes: usize, frames_bytes: usize, parts_bytes: usize) -> Self {
        Self {
            open: Mutex::new(WeightedCache::new(directories_bytes)),
            opening: OneEach::default(),
            frames: Mutex::new(WeightedCache::new(frames_bytes)),
            decoding: OneEach::default(),
            parts: Arc::new(Parts::new(to_u64(parts_bytes))),
            spare: Kept::default(),
            bases: BaseCache::new(frames_bytes / 2),
            planned: PlannedReads::new(to_u64(parts_bytes / 6 * 5)),
            retained: Retained::new(frames_bytes / 5 * 4),
            frames_planned_bytes: frames_bytes / 5,
            unplanned_bytes: to_u64(parts_bytes / 6),
            frames_with_bases_bytes: frames_bytes - frames_bytes / 2,
        }
    }

    /// A cache of the size that the budget of one operation on `objects` allows.
    pub fn within(objects: &Objects, budget: Budget) -> Self {
        let is_distant = objects.storage.request_bytes() > 0;
        let frames_bytes = budget.frames_bytes(is_distant);
        let mut cache = Self::new(budget.directories_bytes(), frames_bytes, budget.parts_bytes());
        if !is_distant {
            // Nothing is read ahead.
            cache.frames_with_bases_bytes = frames_bytes + budget.parts_bytes() / 6;
            cache.bases = BaseCache::new(budget.parts_bytes() / 6 * 5);
        }
        cache
    }
}

/// A chunk's place in its frame.
pub struct PlaceInFrame {
    /// The container.
    pub container: Arc<Container>,
    /// The frame's number.
    pub frame: u16,
    /// Size of all chunks of the frame, in bytes.
    pub frame_bytes: u32,
    /// Offset of the chunk in the frame's raw bytes.
    pub offset: u32,
    /// Size of the chunk in bytes.
    pub length: u32,
}

/// The frame that a thread read last; consecutive chunks are mostly in one frame.
#[derive(Default)]
pub struct Cursor {
    last: Option<Last>,
}

struct Last {
    place: ContainerId,
    container: Arc<Container>,
    frame: u16,
    raw: Arc<Vec<u8>>,
}

/// The containers of one store, as its head lists them.
struct Store {
    id: SeriesId,
    containers: Mutex<ObjectSet>,
}

impl Store {
    fn of(head: &Head) -> Self {
        Self { id: head.series, containers: Mutex::new(head.containers.clone()) }
    }

    fn tag(&self, number: u32) -> Option<ObjectTag> {
        lock(&self.containers).tag(number)
    }
}

/// A store that a head names, and what its own head lists once it was read.
struct Named {
    id: SeriesId,
    store: Option<Arc<Store>>,
}

/// Reads the chunks of one series, from its own containers and from stores of several series.
pub struct ChunkReader {
    pub(crate) objects: Arc<Objects>,
    private: Arc<Store>,
    /// The stores of several series that a head has named, by number; those of nodes once they are
    /// needed.
    stores: Mutex<BTreeMap<u16, Named>>,
    opening: OneEach<u16>,
    fingerprinter: Fingerprinter,
    pub(crate) cache: Arc<ChunkCache>,
}

impl ChunkReader {
    /// A reader of the chunks that this head refers to, with a cache of its own.
    pub fn new(objects: &Arc<Objects>, head: &Head, budget: Budget) -> Result<Self> {
        Self::sharing(objects, head, Arc::new(ChunkCache::within(objects, budget)))
    }

    /// A reader of the chunks that this head refers to, which keeps them in `cache`.
    pub fn sharing(objects: &Arc<Objects>, head: &Head, cache: Arc<ChunkCache>) -> Result<Self> {
        Ok(Self {
            objects: Arc::clone(objects),
            private: Arc::new(Store::of(head)),
            stores: Mutex::new(named_stores(objects, head)?),
            opening: OneEach::default(),
            fingerprinter: Fingerprinter::new(
                objects.keys.fingerprint_key(head.domain, head.series),
            ),
            cache,
        })
    }

    fn store(&self, number: u16) -> Result<Arc<Store>> {
        let store = match number {
            PRIVATE_STORE => Some(Arc::clone(&self.private)),
            _ => self.common_store(number)?,
        };
        store.ok_or_else(|| {
            let is_named = lock(&self.stores).contains_key(&number);
            let why = if is_named { "has no head" } else { "is not in the head's table" };
            Error::corrupt(format!("store {number} {why}"))
        })
    }

    /// A store of several series; its head is read when it is first needed.
    fn common_store(&self, number: u16) -> Result<Option<Arc<Store>>> {
        let Some(id) = lock(&self.stores).get(&number).map(|named| named.id) else {
            return Ok(None);
        };
        let opened = || lock(&self.stores).get(&number).and_then(|named| named.store.clone());
        let _turn = match self.opening.get(number, opened) {
            Ok(store) => return Ok(Some(store)),
            Err(turn) => turn,
        };
        let newest = heads::newest(&self.objects, id)?;
        if newest.is_none() {
            // The store may be in a place that was added since the repository was opened.
            verify_unchanged(&self.objects)?;
        }
        let opened = newest.as_ref().map(|head| Arc::new(Store::of(head)));
        if let Some(named) = lock(&self.stores).get_mut(&number) {
            named.store.clone_from(&opened);
        }
        Ok(opened)
    }

    /// The objects that it reads.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// The id of a store, by its number in references.
    pub fn store_id(&self, number: u16) -> Result<SeriesId> {
        Ok(self.store(number)?.id)
    }

    /// The name of the container that a reference names.
    pub fn container_name(&self, reference: Reference) -> String {
        let number = reference.container();
        match self.store(reference.store()) {
            Ok(store) => {
                let tag = store.tag(number).unwrap_or(ObjectTag::NONE);
                names::container(store.id, number, tag)
            }
            Err(_) => format!("container {number:08x} of store {}", reference.store()),
        }
    }

    /// Opens the container that a reference names, which the store's head must list.
    pub fn container(&self, reference: Reference) -> Result<Arc<Container>> {
        let (store, number) = (self.store(reference.store())?, reference.container());
        let Some(tag) = store.tag(number) else {
            // A place that a node has left does not get what comes after it.
            verify_unchanged(&self.objects)?;
            let why = "is referred to, but not listed in the head";
            return Err(Error::corrupt(format!("container {number:08x} {why}")));
        };
        let key = (store.id, number, tag);
        let _turn = match self.cache.opening.get(key, || lock(&self.cache.open).get(&key)) {
            Ok(container) => return Ok(container),
            Err(turn) => turn,
        };
        let container = Arc::new(open_container(&self.objects, store.id, number, tag)?);
        if !container.directory.deltas.is_empty() {
            self.cache.bases.want(key, &container.directory);
            lock(&self.cache.frames).bytes_max = self.cache.frames_with_bases_bytes;
        }
        lock(&self.cache.open).insert(key, Arc::clone(&container), container.weight());
        Ok(container)
    }

    /// The decoded frame of a container. What deltas need of it is kept.
    fn frame(
        &self,
        container: &Container,
        frame: u16,
        for_base: bool,
        scratch: &mut Scratch,
    ) -> Result<Arc<Vec<u8>>> {
        let (key, bases) = ((container.key(), frame), &self.cache.bases);
        let _turn = match self.cache.decoding.get(key, || lock(&self.cache.frames).get(&key)) {
            Ok(raw) => {
                if for_base {
                    bases.pick(key, &container.directory, &raw);
                }
                return Ok(raw);
            }
            Err(turn) => turn,
        };
        let raw = Arc::new(self.decode(container, frame, scratch)?);
        bases.pick(key, &container.directory, &raw);
        let dropped = lock(&self.cache.frames).insert(key, Arc::clone(&raw), raw.capacity());
        self.cache.spare.keep(dropped.and_then(Arc::into_inner));
        Ok(raw)
    }

    /// Announces chunks that will be read with `scratch`, so that their frames are read together if
    /// that saves time. Errors are returned when the chunks are read.
    pub fn expect(&self, references: impl Iterator<Item = Reference>, scratch: &mut Scratch) {
        if self.objects.storage.request_bytes() == 0 {
            return;
        }
        let mut frames = BTreeMap::new();
        let mut references: Vec<Reference> = references.collect();
        // What links lead to and deltas are applied to is whole.
        for are_bases in [false, true] {
            references = self.add_frames(references, are_bases, &mut frames);
        }
        for (container, frames) in frames.values_mut() {
            frames.retain(|frame, slots| !self.has(container, *frame, slots));
        }
        scratch.share(&self.cache.parts);
        let blocks =
            frames.values().map(|(container, frames)| container.blocks(frames.keys().copied()));
        self.objects.expect(blocks, scratch);
    }

    /// Adds the slots of these chunks by their frames, but for bases that are here. Returns where
    /// their links lead and what their deltas are applied to. Each container is looked up once.
    pub(crate) fn add_frames(
        &self,
        mut references: Vec<Reference>,
        are_bases: bool,
        frames: &mut Frames,
    ) -> Vec<Reference> {
        let place = |reference: &Reference| (reference.store(), reference.container());
        let (mut beyond, bases) = (Vec::new(), &self.cache.bases);
        references.sort_unstable();
        for references in references.chunk_by(|one, next| place(one) == place(next)) {
            let Ok(container) = self.container(references[0]) else { continue };
            let of_container = frames.entry(place(&references[0]));
            let (container, of_container) =
                of_container.or_insert_with(|| (container, BTreeMap::new()));
            for reference in references {
                let (directory, slot) = (&container.directory, reference.slot());
                match directory.slot(slot) {
                    Some(place) if are_bases && bases.has((container.key(), place.frame), slot) => {
                    }
                    Some(place) => of_container.entry(place.frame).or_default().push(slot),
                    None => beyond.extend(link_target(container, *reference)),
                }
                beyond.extend(directory.delta(slot).map(|delta| delta.base));
            }
        }
        beyond
    }

    /// Reads the data of these chunks now, for the threads that will read them.
    pub fn fetch(&self, references: impl Iterator<Item = Reference>, scratch: &mut Scratch) {
        self.expect(references, scratch);
        self.objects.fetch(scratch);
    }

    /// Copies a chunk that is not zeros into `out`, which has the chunk's length. The caller must
    /// compare its fingerprint with the recipe's before using any byte (I-4).
    ///
    /// A missing container may have been rewritten meanwhile; then the newest head lists its new
    /// tag.
    pub fn read_unverified(
        &self,
        reference: Reference,
        cursor: &mut Cursor,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        match self.read_once(reference, cursor, scratch, out) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                cursor.last = None;
                self.follow_rewriting(reference, error)?;
                self.read_once(reference, cursor, scratch, out)
            }
            other => other,
        }
    }

    /// The frame that holds a chunk which is not zeros, and where in it the chunk is, if memory
    /// holds all that leads there, and it is stored whole. The caller compares the chunk's length
    /// and fingerprint with the recipe's before it uses a byte of it (I-4).
    pub fn in_memory(&self, reference: Reference) -> Option<(Arc<Vec<u8>>, Range<usize>)> {
        let mut at = reference;
        // A link leads once from a private store to the shared one.
        for _ in 0..2 {
            let store = self.store(at.store()).ok()?;
            let tag = store.tag(at.container())?;
            let container = lock(&self.cache.open).get(&(store.id, at.container(), tag))?;
            if container.directory.delta(at.slot()).is_some() {
                return None;
            }
            if let Some(slot) = container.directory.slot(at.slot()) {
                let frame = lock(&self.cache.frames).get(&(container.key(), slot.frame))?;
                let start = slot.offset as usize;
                let range = start..start + slot.length as usize;
                return (range.end <= frame.len()).then_some((frame, range));
            }
            at = link_target(&container, at).ok()?;
        }
        None
    }

    /// Reads the current tag of a container from the newest head; fails with `error` if that was
    /// already tried.
    fn follow_rewriting(&self, reference: Reference, error: Error) -> Result<()> {
        let (store, number) = (self.store(reference.store())?, reference.container());
        let newest = heads::newest(&self.objects, store.id)?;
        let Some(head) = newest.filter(|head| head.containers.tag(number).is_some()) else {
            return Err(error);
        };
        if reference.store() == PRIVATE_STORE {
            // Its chunks may have been moved to the shared store, even to one that is new.
            *lock(&self.stores) = named_stores(&self.objects, &head)?;
        }
        *lock(&store.containers) = head.containers;
        Ok(())
    }

    /// Where a chunk is in its frame; `None` if it was moved to another store, or is a delta.
    pub fn place_in_frame(&self, reference: Reference) -> Result<Option<PlaceInFrame>> {
        let container = self.container(reference)?;
        let directory = &container.directory;
        let whole = directory.slot(reference.slot());
        let whole = whole.filter(|_| directory.delta(reference.slot()).is_none());
        let Some(slot) = whole else { return Ok(None) };
        let frame = container.directory.frames.get(usize::from(slot.frame));
        let frame_bytes = frame.map_or(0, |frame| frame.raw_bytes);
        let Slot { frame, offset, length, .. } = slot;
        Ok(Some(PlaceInFrame { container, frame, frame_bytes, offset, length }))
    }

    /// Replaces `packed` by the frame of a place, as it is stored and opened. Its chunks are not
    /// verified (I-4).
    pub fn read_packed(
        &self,
        place: &PlaceInFrame,
        scratch: &mut Scratch,
        packed: &mut Vec<u8>,
    ) -> Result<()> {
        let entry = frame_entry(&place.container, place.frame)?;
        let range = (entry.offset, entry.sealed_bytes);
        let (object, position) = (&place.container.object, u64::from(place.frame));
        self.objects.read_packed_block(object, range, position, scratch, packed)
    }

    fn read_once(
        &self,
        reference: Reference,
        cursor: &mut Cursor,
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let place = (reference.store(), reference.container());
        let container = match &cursor.last {
            Some(last) if last.place == place => Arc::clone(&last.container),
            _ => self.container(reference)?,
        };
        let Some(slot) = container.directory.slot(reference.slot()) else {
            let target = link_target(&container, reference)?;
            return self.read_unverified(target, cursor, scratch, out);
        };
        let stored = self.stored(place, &container, (reference.slot(), slot), cursor, scratch)?;
        let expected = container.directory.chunk_bytes(reference.slot()).unwrap_or_default();
        if expected as usize != out.len() {
            return Err(Error::corrupt(format!(
                "slot {} of container {} holds {expected} bytes, but the recipe expects {}",
                reference.slot(),
                container.object.name,
                out.len()
            )));
        }
        if let Some(delta) = container.directory.delta(reference.slot()) {
            return self.apply(&container, delta, &stored, scratch, out);
        }
        out.copy_from_slice(&stored);
        Ok(())
    }

    /// What a slot holds: in the frame that was read last, kept of one before, or in another.
    fn stored(
        &self,
        place: ContainerId,
        container: &Arc<Container>,
        (number, slot): (u16, Slot),
        cursor: &mut Cursor,
        scratch: &mut Scratch,
    ) -> Result<Base> {
        let is_last = |last: &Last| (last.place, last.frame) == (place, slot.frame);
        if !cursor.last.as_ref().is_some_and(is_last)
            && let Some((picked, range)) =
                self.cache.retained.get((container.key(), slot.frame), number)
        {
            return Ok(Base::Kept(picked, range));
        }
        let frame = self.frame_at(place, container, slot.frame, &mut cursor.last, scratch)?;
        let range = stored_range(container, number, slot, &frame)?;
        Ok(Base::InFrame(frame, range))
    }

    /// The frame of a container, which is mostly the one that was read last.
    fn frame_at(
        &self,
        place: ContainerId,
        container: &Arc<Container>,
        frame: u16,
        last: &mut Option<Last>,
        scratch: &mut Scratch,
    ) -> Result<Arc<Vec<u8>>> {
        match last {
            Some(last) if (last.place, last.frame) == (place, frame) => Ok(Arc::clone(&last.raw)),
            _ => {
                let raw = self.frame(container, frame, false, scratch)?;
                let container = Arc::clone(container);
                *last = Some(Last { place, container, frame, raw: Arc::clone(&raw) });
                Ok(raw)
            }
        }
    }

    /// Fills `out` with the chunk of a delta of a private container; `stored` is what its slot
    /// holds. The caller must compare the chunk's fingerprint before using any byte (I-4).
    ///
    /// Fails with an error that names both slots if the base can't be read.
    pub fn apply(
        &self,
        container: &Container,
        delta: &Delta,
        stored: &[u8],
        scratch: &mut Scratch,
        out: &mut [u8],
    ) -> Result<()> {
        let read = match self.read_base(container, delta.base, scratch) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let followed = self.follow_rewriting(delta.base, error);
                followed.and_then(|()| self.read_base(container, delta.base, scratch))
            }
            other => other,
        };
        let applied = read.and_then(|base| XdeltaCoder::new(None).decode(&base, stored, out));
        applied.context(|| {
            let (name, base) = (&container.object.name, delta.base);
            let of = self.container_name(base);
            format!(
                "apply the delta in slot {} of {name} to slot {} of {of}",
                delta.slot,
                base.slot()
            )
        })
    }

    /// The chunk that a delta in `container` is applied to: a whole one of the same private store.
    fn read_base(
        &self,
        container: &Container,
        reference: Reference,
        scratch: &mut Scratch,
    ) -> Result<Base> {
        if reference.store() != PRIVATE_STORE || container.store != self.private.id {
            return Err(Error::corrupt("the base of a delta is in another store"));
        }
        let holder = self.container(reference)?;
        let directory = &holder.directory;
        let whole = directory.slot(reference.slot());
        let Some(slot) = whole.filter(|_| directory.delta(reference.slot()).is_none()) else {
            return Err(Error::corrupt("the base of a delta is no whole chunk"));
        };
        let key = (holder.key(), slot.frame);
        if let Some(base) = self.cache.bases.get(key, reference.slot()) {
            return Ok(base);
        }
        if let Some((picked, range)) = self.cache.retained.get(key, reference.slot()) {
            return Ok(Base::Kept(picked, range));
        }
        let frame = self.frame(&holder, slot.frame, true, scratch)?;
        let range = stored_range(&holder, reference.slot(), slot, &frame)?;
        Ok(Base::InFrame(frame, range))
    }

    /// The slot that the delta in a slot is applied to; `None` if the slot holds no delta.
    pub fn base(&self, holder: Reference) -> Result<Option<Reference>> {
        let container = self.container(holder)?;
        Ok(container.directory.delta(holder.slot()).map(|delta| delta.base))
    }

    /// The slot that holds the chunk of a reference: another one where it is a link.
    pub fn holder(&self, reference: Reference) -> Result<Reference> {
        let container = self.container(reference)?;
        match container.directory.slot(reference.slot()) {
            Some(_) => Ok(reference),
            None => link_target(&container, reference),
        }
    }

    /// The fingerprint and length of the chunk that a slot holds, if it holds one.
    pub fn content(&self, holder: Reference) -> Result<Option<(Fingerprint, u32)>> {
        let container = self.container(holder)?;
        let directory = &container.directory;
        let found = directory.slot(holder.slot()).zip(directory.chunk_bytes(holder.slot()));
        Ok(found.map(|(slot, bytes)| (directory.fingerprints[slot.index as usize], bytes)))
    }

    /// The error of a chunk whose fingerprint is `found` and not what the recipe says.
    pub fn mismatch(&self, chunk: &RecipeChunk, found: Fingerprint) -> Error {
        let base = self.base(chunk.reference).ok().flatten().map_or_else(String::new, |base| {
            format!(" (a delta of slot {} of {})", base.slot(), self.container_name(base))
        });
        Error::corrupt(format!(
            "slot {} of container {}{base}: the chunk's fingerprint is {found}, but the recipe \
             expects {}",
            chunk.reference.slot(),
            self.container_name(chunk.reference),
            chunk.fingerprint
        ))
    }

    /// Returns the fingerprinter of the series' chunks.
    pub fn fingerprinter(&self) -> &Fingerprinter {
        &self.fingerprinter
    }
}

/// The stores of several series that a series' head names; of the shared store also its head.
fn named_stores(objects: &Objects, head: &Head) -> Result<BTreeMap<u16, Named>> {
    let mut stores = BTreeMap::new();
    for entry in head.stores.iter().filter(|store| store.number != PRIVATE_STORE) {
        let newest = match entry.number {
            SHARED_STORE => heads::newest(objects, entry.id)?,
            _ => None,
        };
        let store = newest.as_ref().map(|head| Arc::new(Store::of(head)));
        stores.insert(entry.number, Named { id: entry.id, store });
    }
    Ok(stores)
}
