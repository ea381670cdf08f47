//! Reads that are planned: a reader that knows long before what it will need reads blocks that lie
//! near each other by one request, whichever of its segments needs them, and holds each until it is
//! taken.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Bound, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use silt_format::number::{to_u64, to_usize};

use crate::{Block, Key, Storage};

/// The longest block that is planned, in bytes; longer ones are left to their reader.
const BLOCK_BYTES_MAX: u32 = 4 << 20;
/// The most bytes of one request for several blocks, from near and from far: from far away, several
/// requests at once arrive sooner than one that is as long as all.
const RUN_BYTES_NEAR: u64 = 6 << 20;
const RUN_BYTES_FAR: u64 = 1 << 20;
/// What is read between two blocks of a request at most, from near. A request costs a busy store as
/// much processor time as 2 MiB, but a network of 1 Gbit/s only as much time as 100 KiB.
const GAP_BYTES_NEAR: u64 = 512 << 10;
const GAP_BYTES_FAST: u64 = 2 << 20;
/// Requests at once from near: as many keep a few processors busy, and each needs a buffer of its
/// connection.
const READ_NEAR_MAX: usize = 8;
/// Requests at once until so many have been answered.
const READ_FIRST_MAX: usize = 3;
const READ_FIRST: u64 = 6;
/// Segments for which blocks are read from near before they are needed.
const EAGER_NEAR: usize = 8;
/// A block is read together with others if one of this many segments needs it; once half of the
/// memory is taken, one of fewer: the less memory is left, the fewer.
const WINDOW: u64 = 256;
/// A storage is near if one of its answers began sooner. One that notes no answers is near if more
/// than one in [`SOON_ONE_IN`] of the last short requests took less time for each mebibyte. From
/// near, most take longer while all processors are busy; from far away, none takes less.
const SOON_NS: u64 = 8_000_000;
const SOON_ONE_IN: u64 = 8;
/// A near storage is fast if more than one in [`FAST_ONE_IN`] of the last long requests took less
/// time for each byte: the network has more than 2.5 Gbit/s, or none lies between.
const FAST_BYTE_NS: u64 = 3;
const FAST_ONE_IN: u64 = 32;
/// The longest request that tells how far away the storage is: longer ones tell how fast it is.
const SHORT_BYTES: u64 = 2 << 20;
/// After so many short or long requests, those before count half.
const SHORT_LAST: u64 = 32;
const LONG_LAST: u64 = 64;
/// The room of a buffer is a multiple of this, so that it fits more blocks.
const ROOM_BYTES: usize = 4 << 10;

/// A block that a segment needs.
#[derive(Clone, Debug)]
pub struct PlannedBlock {
    /// The object's name.
    pub name: Arc<str>,
    /// Where the block is in it, in bytes.
    pub offset: u32,
    /// How long it is, in bytes.
    pub length: u32,
}

/// The blocks that segments to come need, for one reader with any number of threads.
pub struct PlannedReads {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    /// By the object's name and the block's offset.
    objects: HashMap<Arc<str>, BTreeMap<u32, Planned>>,
    /// What is planned and not yet restored.
    segments: BTreeMap<u64, Segment>,
    /// Bytes of the buffers of blocks that are here or being read.
    bytes: u64,
    /// Requests that are under way.
    reading: usize,
    /// The shortest time in which an answer began, if the storage notes it.
    soonest_answer_ns: Option<u64>,
    /// The short and the long requests that were answered of late.
    short: Judged,
    long: Judged,
    /// Buffers to be read into again, and their bytes.
    spare: VecDeque<Vec<u8>>,
    spare_bytes: u64,
    /// Bytes of all buffers at most.
    bytes_max: u64,
}

/// How many requests were answered of late, and how many of them took little time.
#[derive(Default)]
struct Judged {
    all: u64,
    soon: u64,
}

impl Judged {
    /// After `last` of them, those before count half.
    fn add(&mut self, was_soon: bool, last: u64) {
        if self.all >= last {
            (self.all, self.soon) = (self.all / 2, self.soon.div_ceil(2));
        }
        self.all += 1;
        self.soon += u64::from(was_soon);
    }

    /// Whether more than one in so many of them took little time; others may have waited for
    /// processors.
    fn are_soon(&self, one_in: u64) -> bool {
        self.soon * one_in > self.all
    }
}

#[derive(Default)]
struct Segment {
    blocks: Vec<(Arc<str>, u32)>,
    /// The first of them that was not yet looked at.
    next: usize,
}

struct Planned {
    length: u32,
    /// In how many segments it is.
    users: u32,
    /// Those of them that have not got it, ascending.
    waiting: VecDeque<u64>,
    data: Data,
}

enum Data {
    Absent,
    Reading,
    Here(Vec<u8>),
    /// Somebody has it, or reads it by himself.
    Taken,
}

/// A request for blocks that lie near each other.
pub struct Run {
    name: Arc<str>,
    blocks: Vec<Block>,
}

impl Run {
    /// How many bytes are read.
    fn bytes(&self) -> u64 {
        let start = self.blocks.first().map_or(0, |block| block.range.start);
        self.blocks.last().map_or(0, |block| block.range.end - start)
    }
}

/// The end of a request: dropped without its blocks, nobody waits for them any more.
struct Arrival<'r> {
    reads: &'r PlannedReads,
    /// What was asked for.
    bytes: u64,
    name: Arc<str>,
    ranges: Vec<Range<u64>>,
    blocks: Vec<Block>,
    /// Nanoseconds that the answer took; `None` if nobody answered.
    took_ns: Option<u64>,
}

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        let state = &mut *self.reads.state();
        state.reading -= 1;
        if let Some(took_ns) = self.took_ns {
            state.judge(self.bytes, took_ns);
        }
        let mut blocks = std::mem::take(&mut self.blocks).into_iter();
        for range in &self.ranges {
            let room = to_u64(room(range.end - range.start));
            state.arrive(&self.name, range.start, room, blocks.next());
        }
        self.reads.arrived.notify_all();
    }
}

/// How much of what lies near a block is read with it.
struct Reach {
    run_bytes: u64,
    gap_bytes: u64,
    /// The segment for which a block is read in any case.
    segment: u64,
    bytes_max: u64,
}

impl Reach {
    /// The last segment for which a block is read too, once so many bytes are taken.
    fn last(&self, bytes: u64) -> u64 {
        let left = self.bytes_max.saturating_sub(bytes) * 2 * WINDOW / self.bytes_max.max(1);
        self.segment + left.min(WINDOW)
    }
}

impl PlannedReads {
    /// Holds at most about `bytes_max`.
    pub fn new(bytes_max: u64) -> Self {
        let state = State { bytes_max, ..State::default() };
        Self { state: Mutex::new(state), arrived: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment needs these blocks. From storage with copies nothing is read ahead: which of them
    /// is whole is found out block by block.
    pub fn plan(&self, storage: &dyn Storage, segment: u64, mut blocks: Vec<PlannedBlock>) {
        let has_copies = |name: &str| Key::new(name).map_or(true, |key| storage.copies(&key) > 1);
        blocks.retain(|block| block.length <= BLOCK_BYTES_MAX && block.length > 0);
        self.note_soonest_answer(storage);
        for of_object in blocks.chunk_by(|one, next| one.name == next.name) {
            if has_copies(&of_object[0].name) {
                continue;
            }
            let state = &mut *self.state();
            for PlannedBlock { name, offset, length } in of_object {
                let object = state.objects.entry(Arc::clone(name)).or_default();
                let planned = object.entry(*offset).or_insert_with(|| Planned {
                    length: *length,
                    users: 0,
                    waiting: VecDeque::new(),
                    data: Data::Absent,
                });
                planned.users += 1;
                let before = planned.waiting.partition_point(|waiting| *waiting < segment);
                planned.waiting.insert(before, segment);
                if matches!(planned.data, Data::Taken) {
                    planned.data = Data::Absent;
                }
                let of_segment = state.segments.entry(segment).or_default();
                of_segment.blocks.push((Arc::clone(name), *offset));
            }
        }
    }

    /// The blocks to read next, for the segment that is restored first, if there is memory for
    /// them. Whoever gets them must [`read`](Self::read) them.
    pub fn next_run(&self, storage: &dyn Storage) -> Option<Run> {
        let state = &mut *self.state();
        let (reading_max, eager) = match state.is_far() {
            // The first ones tell how far away the storage is.
            None => (READ_FIRST_MAX, usize::MAX),
            Some(false) => (READ_NEAR_MAX, EAGER_NEAR),
            Some(true) => (usize::MAX, usize::MAX),
        };
        if state.reading >= reading_max {
            return None;
        }
        let (segment, (name, offset)) = state.next_absent(eager)?;
        let reach = state.reach(storage, segment);
        if state.bytes > 0 && state.bytes + reach.run_bytes > state.bytes_max {
            return None;
        }
        let run = state.run(name, offset, &reach)?;
        state.reading += 1;
        Some(run)
    }

    /// Whether the storage is far away; `None` until enough was read to tell.
    pub fn is_far(&self) -> Option<bool> {
        self.state().is_far()
    }

    /// Asks the storage how far away it is: its answers come to it before they come here.
    fn note_soonest_answer(&self, storage: &dyn Storage) {
        let soonest_ns = storage.soonest_answer_ns();
        self.state().soonest_answer_ns = soonest_ns;
    }

    /// Reads blocks; `now_ns` is the time. What can't be read is left to who needs it.
    pub fn read(&self, storage: &dyn Storage, run: Run, now_ns: impl Fn() -> i64) {
        let (bytes, begun_ns) = (run.bytes(), now_ns());
        let Run { name, mut blocks } = run;
        let ranges: Vec<_> = blocks.iter().map(|block| block.range.clone()).collect();
        let mut state = self.state();
        for block in &mut blocks {
            block.bytes = state.buffer(room(block.range.end - block.range.start));
        }
        state.make_room();
        drop(state);
        let mut arrival =
            Arrival { reads: self, bytes, name, ranges, blocks: Vec::new(), took_ns: None };
        let read = Key::new(&*arrival.name).and_then(|key| storage.get_blocks(&key, blocks));
        arrival.took_ns = Some(begun_ns.abs_diff(now_ns()));
        arrival.blocks = read.unwrap_or_default();
        self.note_soonest_answer(storage);
    }

    /// Whether a block will be there when it is [taken](Self::take).
    pub fn has(&self, name: &str, offset: u32) -> bool {
        let state = self.state();
        let planned = state.objects.get(name).and_then(|object| object.get(&offset));
        planned.is_some_and(|it| !matches!(it.data, Data::Taken))
    }

    /// Takes a planned block: reads it if nobody has begun to, and waits for it if somebody has.
    /// `None` if it was not planned, was taken, or can't be read: the caller reads it by itself.
    pub fn take(
        &self,
        storage: &dyn Storage,
        name: &str,
        offset: u32,
        now_ns: impl Fn() -> i64,
    ) -> Option<Vec<u8>> {
        let mut state = self.state();
        loop {
            let planned = state.objects.get_mut(name)?.get_mut(&offset)?;
            match std::mem::replace(&mut planned.data, Data::Taken) {
                Data::Taken => return None,
                Data::Here(bytes) => {
                    planned.waiting.pop_front();
                    state.bytes -= to_u64(bytes.capacity());
                    return Some(bytes);
                }
                Data::Reading => {
                    planned.data = Data::Reading;
                    state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Data::Absent => {
                    planned.data = Data::Absent;
                    let first = planned.waiting.front().copied().unwrap_or(0);
                    let reach = state.reach(storage, first);
                    let run = state.run(name.into(), offset, &reach)?;
                    state.reading += 1;
                    drop(state);
                    self.read(storage, run, &now_ns);
                    state = self.state();
                }
            }
        }
    }

    /// Gives back the buffer of a block.
    pub fn give_back(&self, bytes: Vec<u8>) {
        self.state().keep(bytes);
    }

    /// A block that was taken is read again for the segments that wait for it.
    pub fn need_again(&self, name: &str, offset: u32) {
        let state = &mut *self.state();
        let planned = state.objects.get_mut(name).and_then(|object| object.get_mut(&offset));
        let Some(planned) = planned.filter(|it| matches!(it.data, Data::Taken)) else { return };
        planned.data = Data::Absent;
        for segment in &planned.waiting {
            // It is looked for again.
            if let Some(segment) = state.segments.get_mut(segment) {
                segment.next = 0;
            }
        }
    }

    /// A segment needs its blocks no longer.
    pub fn restored(&self, segment: u64) {
        let state = &mut *self.state();
        let blocks = state.segments.remove(&segment).map_or_else(Vec::new, |it| it.blocks);
        for (name, offset) in blocks {
            state.forget(&name, offset, segment);
        }
    }
}

impl State {
    /// Whether the storage is far away; `None` until enough was read to tell.
    fn is_far(&self) -> Option<bool> {
        if let Some(soonest_ns) = self.soonest_answer_ns {
            return Some(soonest_ns >= SOON_NS);
        }
        (self.short.all >= READ_FIRST).then(|| !self.short.are_soon(SOON_ONE_IN))
    }

    /// A request for so many bytes was answered.
    fn judge(&mut self, bytes: u64, took_ns: u64) {
        if bytes <= SHORT_BYTES {
            self.short.add(took_ns < SOON_NS * bytes.div_ceil(1 << 20), SHORT_LAST);
        } else {
            self.long.add(took_ns < FAST_BYTE_NS * bytes, LONG_LAST);
        }
    }

    /// How much is read around what a segment needs.
    fn reach(&self, storage: &dyn Storage, segment: u64) -> Reach {
        let is_near = self.is_far() == Some(false);
        let run_bytes = if is_near { RUN_BYTES_NEAR } else { RUN_BYTES_FAR };
        Reach {
            run_bytes: run_bytes.min(self.bytes_max / 3),
            gap_bytes: match (is_near, self.long.are_soon(FAST_ONE_IN)) {
                (true, true) => GAP_BYTES_FAST,
                (true, false) => GAP_BYTES_NEAR,
                (false, _) => storage.request_bytes(),
            },
            segment,
            bytes_max: self.bytes_max,
        }
    }

    /// The first block that is not here, of the segments that come first, and its segment.
    fn next_absent(&mut self, segments_max: usize) -> Option<(u64, (Arc<str>, u32))> {
        let objects = &self.objects;
        let is_absent = |segment: u64, (name, offset): &(Arc<str>, u32)| {
            let planned = objects.get(name).and_then(|object| object.get(offset));
            planned
                .is_some_and(|it| matches!(it.data, Data::Absent) && it.waiting.contains(&segment))
        };
        for (number, segment) in self.segments.iter_mut().take(segments_max) {
            while let Some(block) = segment.blocks.get(segment.next) {
                if is_absent(*number, block) {
                    return Some((*number, block.clone()));
                }
                segment.next += 1;
            }
        }
        None
    }

    /// A block that is planned, and those around it that are needed soon; they are being read then.
    fn run(&mut self, name: Arc<str>, offset: u32, reach: &Reach) -> Option<Run> {
        let object = self.objects.get_mut(&name)?;
        let length = u64::from(object.get(&offset)?.length);
        let mut bytes = self.bytes + to_u64(room(length));
        let (mut start, mut end) = (u64::from(offset), u64::from(offset) + length);
        let mut offsets = VecDeque::from([offset]);
        // Whether a block is read, too; `None` if none behind it is.
        let mut joins = |planned: &Planned, (start, end): (u64, u64), gap: Option<u64>| {
            let with = bytes + to_u64(room(u64::from(planned.length)));
            let is_near = gap.is_some_and(|gap| gap <= reach.gap_bytes);
            if !is_near || end - start > reach.run_bytes || with > reach.bytes_max {
                return None;
            }
            let joins = matches!(planned.data, Data::Absent)
                && planned.waiting.front().is_some_and(|first| *first <= reach.last(with));
            bytes = if joins { with } else { bytes };
            Some(joins)
        };
        for (&next, planned) in object.range((Bound::Excluded(offset), Bound::Unbounded)) {
            let (from, until) = (u64::from(next), u64::from(next) + u64::from(planned.length));
            match joins(planned, (start, until.max(end)), from.checked_sub(end)) {
                None => break,
                Some(false) => {}
                Some(true) => {
                    end = until;
                    offsets.push_back(next);
                }
            }
        }
        for (&last, planned) in object.range(..offset).rev() {
            let (from, until) = (u64::from(last), u64::from(last) + u64::from(planned.length));
            match joins(planned, (from, end), start.checked_sub(until)) {
                None => break,
                Some(false) => {}
                Some(true) => {
                    start = from;
                    offsets.push_front(last);
                }
            }
        }
        self.bytes = bytes;
        let mut blocks = Vec::with_capacity(offsets.len());
        for offset in offsets {
            let planned = object.get_mut(&offset)?;
            planned.data = Data::Reading;
            let start = u64::from(offset);
            let range = start..start + u64::from(planned.length);
            blocks.push(Block { range, bytes: Vec::new() });
        }
        Some(Run { name, blocks })
    }

    /// A block has arrived, or can't be read.
    fn arrive(&mut self, name: &str, offset: u64, room: u64, block: Option<Block>) {
        let object = self.objects.get_mut(name);
        let planned = object.and_then(|object| object.get_mut(&u32::try_from(offset).ok()?));
        let planned = planned.filter(|it| matches!(it.data, Data::Reading));
        // Nobody needs it any more if the segments that did were restored otherwise.
        match (planned, block) {
            (Some(planned), Some(block)) => {
                self.bytes = self.bytes - room + to_u64(block.bytes.capacity());
                planned.data = Data::Here(block.bytes);
            }
            (planned, block) => {
                self.bytes -= room;
                if let Some(planned) = planned {
                    planned.data = Data::Taken;
                }
                block.into_iter().for_each(|block| self.keep(block.bytes));
            }
        }
    }

    /// One segment less needs a block.
    fn forget(&mut self, name: &Arc<str>, offset: u32, segment: u64) {
        let Some(object) = self.objects.get_mut(name) else { return };
        let Some(planned) = object.get_mut(&offset) else { return };
        planned.users -= 1;
        if planned.users > 0 {
            planned.waiting.retain(|waiting| *waiting != segment);
            return;
        }
        let planned = object.remove(&offset);
        if object.is_empty() {
            self.objects.remove(name);
        }
        if let Some(Planned { data: Data::Here(bytes), .. }) = planned {
            self.bytes -= to_u64(bytes.capacity());
            self.keep(bytes);
        }
    }

    /// A buffer with at least this much room, and not much more.
    fn buffer(&mut self, room: usize) -> Vec<u8> {
        let fitting = self.spare.iter().enumerate().map(|(at, spare)| (spare.capacity(), at));
        let best = fitting.filter(|(bytes, _)| (room..=room * 2).contains(bytes)).min();
        let Some(buffer) = best.and_then(|(_, at)| self.spare.remove(at)) else {
            return Vec::with_capacity(room);
        };
        self.spare_bytes -= to_u64(buffer.capacity());
        buffer
    }

    /// Keeps a buffer, as far as all fit in the memory.
    fn keep(&mut self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() > 0 {
            self.spare_bytes += to_u64(buffer.capacity());
            self.spare.push_back(buffer);
        }
        self.make_room();
    }

    /// Drops spare buffers until all fit in the memory.
    fn make_room(&mut self) {
        while self.bytes + self.spare_bytes > self.bytes_max {
            let Some(oldest) = self.spare.pop_front() else { break };
            self.spare_bytes -= to_u64(oldest.capacity());
        }
    }
}

/// The room of the buffer for so many bytes.
fn room(bytes: u64) -> usize {
    to_usize(bytes).next_multiple_of(ROOM_BYTES)
}

#[cfg(test)]
mod tests;
