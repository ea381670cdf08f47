//! Read-ahead: if a request takes as long as the transfer of many bytes, a few large reads are
//! faster than many small ones.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use silt_format::number::{to_u64, to_usize};

use crate::{ByteRange, Key, Storage};

/// Objects are read in parts of this many bytes, which begin at multiples of it, so that readers of
/// one neighbourhood ask for the same parts.
const PART_BYTES: u64 = 1 << 20;
/// A shorter run is first read alone; the next read in the same part reads the whole part.
const SHORT_BYTES: u64 = 128 << 10;
/// Parts of which it is known that something short was read.
const TOUCHED_MAX: usize = 10_000;
/// Buffers that are kept to be read into again.
const SPARE_MAX: usize = 4;
/// Bytes that a reader by itself holds.
const OWN_BYTES_MAX: u64 = 4 << 20;

/// A part of an object: its key and which of its bytes.
#[derive(Clone)]
pub struct PartPlace {
    key: Arc<Key>,
    range: Range<u64>,
    /// What is needed of it. Places that differ in this alone are the same.
    needed: Range<u64>,
}

impl PartialEq for PartPlace {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, &self.range) == (&other.key, &other.range)
    }
}

impl Eq for PartPlace {}

impl Hash for PartPlace {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (&self.key, &self.range).hash(hasher);
    }
}

impl PartPlace {
    /// Bytes of the part's buffer if all of it is read.
    pub fn room(&self) -> u64 {
        room(&self.range)
    }
}

/// A part that is kept in memory until this is dropped, before parts that nobody holds.
pub struct HeldPart {
    _bytes: Arc<Vec<u8>>,
    /// Whether it was read from the storage just now.
    pub was_read: bool,
}

/// Parts that will be read, which are kept before others while this exists. Of a part that is
/// wanted, the ends that nobody wants are not read.
pub struct WantedParts {
    parts: Arc<Parts>,
    places: Vec<PartPlace>,
}

impl Drop for WantedParts {
    fn drop(&mut self) {
        let mut held = self.parts.held();
        for place in &self.places {
            let Some(wanted) = held.wanted.get_mut(place) else { continue };
            wanted.readers -= 1;
            if wanted.readers == 0 {
                held.wanted.remove(place);
            }
        }
    }
}

/// Parts of objects that were read last, for one reader or for many.
pub struct Parts {
    held: Mutex<Held>,
    changed: Condvar,
    bytes_max: u64,
}

#[derive(Default)]
struct Held {
    parts: HashMap<PartPlace, Part>,
    /// The parts that readers to come want.
    wanted: HashMap<PartPlace, Wanted>,
    /// Parts of which something short was wanted already: the next time all of one is read.
    touched: HashSet<PartPlace>,
    /// Buffers of whole parts that nobody uses.
    spare: Vec<Vec<u8>>,
    /// Bytes of the parts that are there or are being read.
    bytes: u64,
    clock: u64,
}

/// What readers to come want of a part.
struct Wanted {
    /// How many they are.
    readers: usize,
    /// From the first to the last byte that one of them needs.
    needed: Range<u64>,
}

struct Part {
    /// None while it is being read.
    bytes: Option<Arc<Vec<u8>>>,
    /// What is read of it.
    range: Range<u64>,
    used: u64,
}

impl Part {
    fn room(&self) -> u64 {
        room(&self.range)
    }

    fn is_held(&self) -> bool {
        self.bytes.as_ref().is_some_and(|bytes| Arc::strong_count(bytes) > 1)
    }
}

/// A part that is being read; dropped without its bytes, nobody waits for it any more.
struct Reading<'p> {
    parts: &'p Parts,
    place: &'p PartPlace,
    /// Tells it from a later reading of the part.
    used: u64,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut held = self.parts.held();
        let is_this = |part: &&Part| part.bytes.is_none() && part.used == self.used;
        let part = held.parts.get(self.place).filter(is_this);
        if let Some(room) = part.map(Part::room) {
            held.parts.remove(self.place);
            held.bytes -= room;
        }
        self.parts.changed.notify_all();
    }
}

impl Parts {
    /// Holds at most about `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self { held: Mutex::default(), changed: Condvar::new(), bytes_max }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is there of a block, or is being read, and where that begins.
    fn find(&self, name: &str, block: &Range<u64>) -> Option<(u64, Arc<Vec<u8>>)> {
        let mut held = self.held();
        loop {
            held.clock += 1;
            let used = held.clock;
            let mut parts = held.parts.iter_mut();
            let (_, part) = parts.find(|(PartPlace { key, .. }, Part { range, .. })| {
                key.as_str() == name && range.start <= block.start && block.end <= range.end
            })?;
            if let Some(bytes) = &part.bytes {
                part.used = used;
                return Some((part.range.start, Arc::clone(bytes)));
            }
            held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Reads a part, if it can be read and is not there, and keeps it for later readers.
    pub fn hold(&self, storage: &dyn Storage, place: &PartPlace) -> Option<HeldPart> {
        let mut was_read = false;
        let (_, bytes) = self.get_or_read(storage, place, &mut was_read)?;
        Some(HeldPart { _bytes: bytes, was_read })
    }

    /// Keeps these parts before others that nobody holds, once they are read.
    pub fn want(self: &Arc<Self>, places: &[PartPlace]) -> WantedParts {
        let mut held = self.held();
        for place in places {
            let wanted = held.wanted.entry(place.clone());
            let wanted =
                wanted.or_insert_with(|| Wanted { readers: 0, needed: place.needed.clone() });
            wanted.readers += 1;
            wanted.needed = hull(&wanted.needed, &place.needed);
        }
        WantedParts { parts: Arc::clone(self), places: places.to_vec() }
    }

    /// What is needed of a part, or more, and where that begins, if it can be read; who asks for
    /// what another reads waits for it.
    fn get(&self, storage: &dyn Storage, place: &PartPlace) -> Option<(u64, Arc<Vec<u8>>)> {
        self.get_or_read(storage, place, &mut false)
    }

    fn get_or_read(
        &self,
        storage: &dyn Storage,
        place: &PartPlace,
        was_read: &mut bool,
    ) -> Option<(u64, Arc<Vec<u8>>)> {
        let mut held = self.held();
        let mut range = loop {
            held.clock += 1;
            let used = held.clock;
            let wanted = held.wanted.get(place).map(|wanted| wanted.needed.clone());
            match held.parts.get_mut(place) {
                Some(Part { bytes: Some(bytes), range, used: last }) => {
                    if range.start <= place.needed.start && place.needed.end <= range.end {
                        *last = used;
                        return Some((range.start, Arc::clone(bytes)));
                    }
                    // Its ends were not wanted when it was read.
                    let room = room(range);
                    held.bytes -= room;
                    held.parts.remove(place);
                    break place.range.clone();
                }
                Some(_) => held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner),
                None => break wanted.map_or(place.range.clone(), |it| hull(&it, &place.needed)),
            }
        };
        // Little more costs less than a request for it later.
        if range.start < place.range.start + SHORT_BYTES {
            range.start = place.range.start;
        }
        if range.end + SHORT_BYTES > place.range.end {
            range.end = place.range.end;
        }
        let used = held.clock;
        held.parts.insert(place.clone(), Part { bytes: None, range: range.clone(), used });
        held.bytes += room(&range);
        held.shrink(self.bytes_max);
        let mut bytes = held.buffer(to_usize(room(&range)));
        drop(held);
        let reading = Reading { parts: self, place, used };
        let bounded = ByteRange::Bounded { offset: range.start, length: range.end - range.start };
        storage.get(&place.key, bounded, &mut bytes).ok()?;
        *was_read = true;
        let (start, bytes) = (range.start, Arc::new(bytes));
        let part = Part { bytes: Some(Arc::clone(&bytes)), range, used };
        self.held().parts.insert(place.clone(), part);
        drop(reading);
        Some((start, bytes))
    }
}

impl Held {
    /// Whether a short run is better read by parts: they are there, or something of them was wanted
    /// before.
    fn is_worth(&mut self, run: &Run) -> bool {
        if self.parts.contains_key(&run.alone()) {
            return false;
        }
        // What is forgotten costs a small request more.
        if self.touched.len() > TOUCHED_MAX {
            self.touched.clear();
        }
        let mut is_worth = true;
        for place in run.parts(&run.range) {
            is_worth &= self.parts.contains_key(&place) || !self.touched.insert(place);
        }
        is_worth
    }

    /// A buffer with this much room.
    fn buffer(&mut self, room: usize) -> Vec<u8> {
        match self.spare.iter().position(|spare| spare.capacity() == room) {
            Some(at) => self.spare.swap_remove(at),
            None => Vec::with_capacity(room),
        }
    }

    /// Lets go of the parts that were used least recently: first of those that nobody waits for,
    /// last of those that somebody holds. There are tens of them.
    fn shrink(&mut self, bytes_max: u64) {
        while self.bytes > bytes_max {
            let read = self.parts.iter().filter(|(_, part)| part.bytes.is_some());
            let oldest = read
                .min_by_key(|(place, part)| {
                    (part.is_held(), self.wanted.contains_key(*place), part.used)
                })
                .map(|(place, _)| place.clone());
            let Some(oldest) = oldest else { return };
            let Some(part) = self.parts.remove(&oldest) else { return };
            self.bytes -= part.room();
            let bytes = part.bytes;
            let bytes = bytes.and_then(|bytes| Arc::try_unwrap(bytes).ok());
            self.spare.extend(bytes.filter(|bytes| to_u64(bytes.capacity()) == PART_BYTES));
            if self.spare.len() > SPARE_MAX {
                self.spare.remove(0);
            }
        }
    }
}

/// Blocks of an object that are about to be read, and what lies between them.
struct Run {
    key: Arc<Key>,
    range: Range<u64>,
    /// Where the object's blocks end.
    end: u64,
    /// Whether whole parts are read, rather than the run alone.
    by_parts: bool,
}

impl Run {
    /// The parts that hold a block of the run.
    fn parts(&self, block: &Range<u64>) -> Vec<PartPlace> {
        let part = |number: u64| {
            let range = number * PART_BYTES..((number + 1) * PART_BYTES).min(self.end);
            let needed = block.start.max(range.start)..block.end.min(range.end);
            PartPlace { key: Arc::clone(&self.key), range, needed }
        };
        (block.start / PART_BYTES..block.end.div_ceil(PART_BYTES)).map(part).collect()
    }

    fn alone(&self) -> PartPlace {
        let (range, needed) = (self.range.clone(), self.range.clone());
        PartPlace { key: Arc::clone(&self.key), range, needed }
    }

    /// What is read for a block of the run.
    fn places(&self, block: &Range<u64>) -> Vec<PartPlace> {
        if self.by_parts { self.parts(block) } else { vec![self.alone()] }
    }
}

/// Blocks of an object: each an offset and a length in bytes.
pub struct Blocks<'o> {
    /// The object's name.
    pub name: &'o str,
    /// Those that are about to be read.
    pub wanted: Vec<(u32, u32)>,
    /// Where all its blocks end.
    pub end: u64,
}

/// The blocks that one reader will read next. A part is fetched when its first block is requested.
/// If the fetch fails, the reader reads the block by itself, and reports the error of that read.
#[derive(Default)]
pub struct Ahead {
    runs: Vec<Run>,
    parts: Option<Arc<Parts>>,
}

impl Ahead {
    /// Shares the parts that are read with other readers.
    pub fn share(&mut self, parts: &Arc<Parts>) {
        self.parts = Some(Arc::clone(parts));
    }

    /// Replaces the announced blocks. For a storage whose requests cost no time, nothing is
    /// announced.
    pub fn expect<'o>(&mut self, storage: &dyn Storage, objects: impl Iterator<Item = Blocks<'o>>) {
        self.runs.clear();
        let gap_bytes = storage.request_bytes();
        if gap_bytes == 0 {
            return;
        }
        for Blocks { name, mut wanted, end } in objects {
            let Ok(key) = Key::new(name).map(Arc::new) else { continue };
            // Where there are copies, which of them is whole is found out block by block.
            if storage.copies(&key) > 1 {
                continue;
            }
            // A directory may say anything: what no object has, or is large anyway, is left to its
            // reader.
            wanted.retain(|&(offset, length)| {
                u64::from(length) <= OWN_BYTES_MAX && u64::from(offset) + u64::from(length) <= end
            });
            wanted.sort_unstable();
            wanted.dedup();
            let parts = self.parts.get_or_insert_with(|| Arc::new(Parts::new(OWN_BYTES_MAX)));
            for (range, blocks) in joined(&wanted, gap_bytes) {
                let is_long = range.end - range.start > SHORT_BYTES && blocks > 1;
                let mut run = Run { key: Arc::clone(&key), range, end, by_parts: false };
                run.by_parts = is_long || parts.held().is_worth(&run);
                self.runs.push(run);
            }
        }
    }

    /// What will be read for all announced blocks by readers that plan what they read.
    ///
    /// Short runs are parts too: what others need of a part is known then, and is read with them.
    pub fn places(&self) -> Vec<PartPlace> {
        let places = self.runs.iter().flat_map(|run| run.parts(&run.range));
        let mut places: Vec<PartPlace> = places.collect();
        places.dedup_by(|next, last| {
            let is_same = next == last;
            if is_same {
                last.needed = hull(&last.needed, &next.needed);
            }
            is_same
        });
        places
    }

    /// Reads all announced blocks now, for the readers that share them.
    pub fn fetch(&self, storage: &dyn Storage) {
        let Some(parts) = &self.parts else { return };
        for place in self.runs.iter().flat_map(|run| run.places(&run.range)) {
            parts.get(storage, &place);
        }
    }

    /// Replaces `into` by the bytes of a block, if they were expected and could be read.
    pub fn block(
        &self,
        storage: &dyn Storage,
        name: &str,
        block: &Range<u64>,
        into: &mut Vec<u8>,
    ) -> bool {
        let holds = |run: &&Run| {
            run.key.as_str() == name && run.range.start <= block.start && block.end <= run.range.end
        };
        let Some(run) = self.runs.iter().find(holds) else { return false };
        let Some(parts) = &self.parts else { return false };
        into.clear();
        let mut copy = |begin: u64, bytes: &[u8]| {
            let from = to_usize(block.start.saturating_sub(begin));
            let until = to_usize(block.end.saturating_sub(begin)).min(bytes.len());
            into.extend_from_slice(bytes.get(from..until).unwrap_or_default());
        };
        if let Some((begin, bytes)) = parts.find(name, block) {
            copy(begin, &bytes);
        } else {
            for place in run.places(block) {
                let Some((begin, bytes)) = parts.get(storage, &place) else { return false };
                copy(begin, &bytes);
            }
        }
        to_u64(into.len()) == block.end - block.start
    }
}

/// Bytes of the buffer for a range of a part; those of nearly whole parts are used again.
fn room(range: &Range<u64>) -> u64 {
    let length = range.end - range.start;
    if (PART_BYTES / 4 * 3..PART_BYTES).contains(&length) { PART_BYTES } else { length }
}

/// From the first byte of both to the last.
fn hull(one: &Range<u64>, other: &Range<u64>) -> Range<u64> {
    one.start.min(other.start)..one.end.max(other.end)
}

/// Blocks in ascending order, joined where no more than `gap_bytes` lie between; with the number of
/// each.
fn joined(blocks: &[(u32, u32)], gap_bytes: u64) -> Vec<(Range<u64>, usize)> {
    let mut runs: Vec<(Range<u64>, usize)> = Vec::new();
    for &(offset, length) in blocks {
        let (start, end) = (u64::from(offset), u64::from(offset) + u64::from(length));
        match runs.last_mut() {
            Some((run, blocks)) if start <= run.end + gap_bytes => {
                run.end = run.end.max(end);
                *blocks += 1;
            }
            _ => runs.push((start..end, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
