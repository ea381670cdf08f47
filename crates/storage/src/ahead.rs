//! Read-ahead of readers that plan nothing: if a request takes as long as the transfer of many
//! bytes, a few large reads are faster than many small ones.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
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
#[derive(Clone, PartialEq, Eq, Hash)]
struct PartPlace {
    key: Arc<Key>,
    range: Range<u64>,
}

impl PartPlace {
    fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// Parts of objects that were read last, for one reader or for many.
pub struct Parts {
    held: Mutex<Held>,
    changed: Condvar,
    bytes_max: AtomicU64,
}

#[derive(Default)]
struct Held {
    parts: HashMap<PartPlace, Part>,
    /// Parts of which something short was wanted already: the next time all of one is read.
    touched: HashSet<PartPlace>,
    /// Buffers of whole parts that nobody uses.
    spare: Vec<Vec<u8>>,
    /// Bytes of the parts that are there or are being read.
    bytes: u64,
    clock: u64,
}

struct Part {
    /// None while it is being read.
    bytes: Option<Arc<Vec<u8>>>,
    used: u64,
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
        let is_this = |part: &Part| part.bytes.is_none() && part.used == self.used;
        if held.parts.get(self.place).is_some_and(is_this) {
            held.parts.remove(self.place);
            held.bytes -= self.place.bytes();
        }
        self.parts.changed.notify_all();
    }
}

impl Parts {
    /// Holds at most about `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        Self { held: Mutex::default(), changed: Condvar::new(), bytes_max: bytes_max.into() }
    }

    /// Holds at most about `bytes_max` from now on.
    pub fn limit(&self, bytes_max: u64) {
        self.bytes_max.store(bytes_max, Ordering::Relaxed);
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
            let (PartPlace { range, .. }, part) = parts.find(|(PartPlace { key, range }, _)| {
                key.as_str() == name && range.start <= block.start && block.end <= range.end
            })?;
            if let Some(bytes) = &part.bytes {
                part.used = used;
                return Some((range.start, Arc::clone(bytes)));
            }
            held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A part, if it can be read; who asks for what another reads waits for it.
    fn get(&self, storage: &dyn Storage, place: &PartPlace) -> Option<Arc<Vec<u8>>> {
        let mut held = self.held();
        let used = loop {
            held.clock += 1;
            let used = held.clock;
            match held.parts.get_mut(place) {
                Some(Part { bytes: Some(bytes), used: last }) => {
                    *last = used;
                    return Some(Arc::clone(bytes));
                }
                Some(_) => held = self.changed.wait(held).unwrap_or_else(PoisonError::into_inner),
                None => break used,
            }
        };
        held.parts.insert(place.clone(), Part { bytes: None, used });
        held.bytes += place.bytes();
        held.shrink(self.bytes_max.load(Ordering::Relaxed));
        let mut bytes = held.buffer(to_usize(place.bytes()));
        drop(held);
        let reading = Reading { parts: self, place, used };
        let bounded = ByteRange::Bounded { offset: place.range.start, length: place.bytes() };
        storage.get(&place.key, bounded, &mut bytes).ok()?;
        let bytes = Arc::new(bytes);
        let part = Part { bytes: Some(Arc::clone(&bytes)), used };
        self.held().parts.insert(place.clone(), part);
        drop(reading);
        Some(bytes)
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

    /// Lets go of the parts that were used least recently. There are tens of them.
    fn shrink(&mut self, bytes_max: u64) {
        while self.bytes > bytes_max {
            let read = self.parts.iter().filter(|(_, part)| part.bytes.is_some());
            let oldest = read.min_by_key(|(_, part)| part.used).map(|(place, _)| place.clone());
            let Some(oldest) = oldest else { return };
            let Some(part) = self.parts.remove(&oldest) else { return };
            self.bytes -= oldest.bytes();
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
            PartPlace { key: Arc::clone(&self.key), range }
        };
        (block.start / PART_BYTES..block.end.div_ceil(PART_BYTES)).map(part).collect()
    }

    fn alone(&self) -> PartPlace {
        PartPlace { key: Arc::clone(&self.key), range: self.range.clone() }
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
                let Some(bytes) = parts.get(storage, &place) else { return false };
                copy(place.range.start, &bytes);
            }
        }
        to_u64(into.len()) == block.end - block.start
    }
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
