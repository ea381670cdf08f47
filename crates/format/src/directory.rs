//! The directories of containers and recipe packs.

use crate::codec::{Decoder, Encoder, REQUIRED, unsupported};
use crate::{BLOCK_BYTES, Error, Fingerprint, Hashed, Reference, Result, SEGMENT_BYTES};

/// Maximum number of chunks in a container: slots have 16 bits.
pub const CONTAINER_SLOTS_MAX: usize = 1 << 16;
/// Maximum number of frames in a container.
pub const FRAMES_MAX: usize = u16::MAX as usize;

const FRAMES: u16 = 1;
const SLOT_RUNS: u16 = 2;
const FINGERPRINTS: u16 = 3;
const BLOCKS: u16 = 4;
const LINKS: u16 = 7;
const DELTAS: u16 = 8;
const APPLICATIONS: u16 = 9;

/// The location of a sealed frame in a container. Its number is its position for sealing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its offset in the object, in bytes.
    pub offset: u32,
    /// Size of the sealed frame in bytes.
    pub sealed_bytes: u32,
    /// Total size of its chunks in bytes.
    pub raw_bytes: u32,
}

/// The kind of a slot. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SlotKind {
    /// A chunk's bytes.
    Whole = 1,
    /// The difference between a chunk and another one, its base.
    Delta = 2,
}

/// Consecutive slots of one frame with equal sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRun {
    /// The first slot.
    pub first: u16,
    /// Number of slots, at least one.
    pub count: u16,
    /// The frame that holds them.
    pub frame: u16,
    /// Their kind.
    pub kind: SlotKind,
    /// Size of each in the frame, in bytes: of a whole chunk, or of a delta.
    pub chunk_bytes: u32,
    /// Offset of the first chunk in the frame; not stored, because runs fill their frame in order.
    pub offset: u32,
}

/// The location of a chunk in its container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The frame that holds it.
    pub frame: u16,
    /// Its offset in the frame's raw bytes.
    pub offset: u32,
    /// Its size there, in bytes.
    pub length: u32,
    /// Its fingerprint's index in the directory.
    pub index: u32,
}

/// A slot whose chunk was moved to another store; references to the slot stay valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The slot.
    pub slot: u16,
    /// Size of the chunk in bytes.
    pub chunk_bytes: u32,
    /// The chunk's new location.
    pub target: Reference,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
}

/// The base of a delta, and the size of its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The slot.
    pub slot: u16,
    /// Size of the resulting chunk in bytes; the slot's fingerprint is that chunk's.
    pub chunk_bytes: u32,
    /// The location of its base.
    pub base: Reference,
}

/// Slots of a storage node's container with chunks of one application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApplicationRun {
    /// The first slot; they end where the next run begins.
    pub first: u16,
    /// The application, by its number in the node's head.
    pub application: u16,
}

impl ApplicationRun {
    /// The application of chunks of which it is not known.
    pub const UNKNOWN: u16 = u16::MAX;
}

/// A container's directory: its frames, its slots and the fingerprints of the chunks in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory {
    /// The frames in the order of their numbers.
    pub frames: Vec<Frame>,
    /// The slots in ascending order.
    pub runs: Vec<SlotRun>,
    /// A fingerprint for each slot, in slot order.
    pub fingerprints: Vec<Fingerprint>,
    /// The slots whose chunks were moved to another store, ascending; none of them is in `runs`.
    pub links: Vec<Link>,
    /// The slots that hold deltas, ascending.
    pub deltas: Vec<Delta>,
    /// The applications of the slots, ascending: a hint for the process of a storage node. Slots
    /// before the first run are of no known application.
    pub applications: Vec<ApplicationRun>,
    /// For each run, the index of its first fingerprint.
    firsts: Vec<u32>,
}

impl Directory {
    /// Adds a chunk of `chunk_bytes` bytes to `frame` as slot `slot`, which must be greater than
    /// all before it.
    pub fn push(&mut self, slot: u16, frame: u16, chunk_bytes: u32, fingerprint: Fingerprint) {
        self.push_slot(SlotKind::Whole, slot, frame, chunk_bytes, fingerprint);
    }

    /// Says of which application the chunks from `slot` on are; it must be greater than all slots
    /// of which something else was said.
    pub fn begin_application(&mut self, slot: u16, application: u16) {
        let last = self.applications.last().map_or(ApplicationRun::UNKNOWN, |it| it.application);
        if application != last {
            self.applications.push(ApplicationRun { first: slot, application });
        }
    }

    /// The application of the chunk in `slot`, `UNKNOWN` if the directory does not say it.
    pub fn application(&self, slot: u16) -> u16 {
        let behind = self.applications.partition_point(|run| run.first <= slot);
        let run = behind.checked_sub(1).map(|at| self.applications[at]);
        run.map_or(ApplicationRun::UNKNOWN, |run| run.application)
    }

    /// Adds a delta of `stored_bytes` bytes to `frame`; its slot must be greater than all before
    /// it. `fingerprint` is that of the resulting chunk.
    pub fn push_delta(
        &mut self,
        delta: Delta,
        frame: u16,
        stored_bytes: u32,
        fingerprint: Fingerprint,
    ) {
        self.push_slot(SlotKind::Delta, delta.slot, frame, stored_bytes, fingerprint);
        self.deltas.push(delta);
    }

    fn push_slot(
        &mut self,
        kind: SlotKind,
        slot: u16,
        frame: u16,
        chunk_bytes: u32,
        fingerprint: Fingerprint,
    ) {
        let index = crate::number::to_u32(self.fingerprints.len());
        self.fingerprints.push(fingerprint);
        let offset = match self.runs.last_mut() {
            Some(last) if last.frame == frame => {
                let next = u32::from(last.first) + u32::from(last.count);
                assert!(u32::from(slot) >= next, "slots are added in ascending order");
                if next == u32::from(slot)
                    && (last.kind, last.chunk_bytes) == (kind, chunk_bytes)
                    && last.count < u16::MAX
                {
                    last.count += 1;
                    return;
                }
                last.offset + u32::from(last.count) * last.chunk_bytes
            }
            _ => 0,
        };
        self.runs.push(SlotRun { first: slot, count: 1, frame, kind, chunk_bytes, offset });
        self.firsts.push(index);
    }

    /// Returns the location of the chunk in `slot`, if the container has it.
    pub fn slot(&self, slot: u16) -> Option<Slot> {
        let at = self.runs.partition_point(|run| run.first <= slot).checked_sub(1)?;
        let run = self.runs[at];
        let within = u32::from(slot - run.first);
        (within < u32::from(run.count)).then(|| Slot {
            frame: run.frame,
            offset: run.offset + within * run.chunk_bytes,
            length: run.chunk_bytes,
            index: self.firsts[at] + within,
        })
    }

    /// Returns the new location of the chunk in `slot`, if it was moved.
    pub fn link(&self, slot: u16) -> Option<&Link> {
        let at = self.links.binary_search_by_key(&slot, |link| link.slot).ok()?;
        self.links.get(at)
    }

    /// Returns the base of the delta in `slot`, if it holds one.
    pub fn delta(&self, slot: u16) -> Option<&Delta> {
        let at = self.deltas.binary_search_by_key(&slot, |delta| delta.slot).ok()?;
        self.deltas.get(at)
    }

    /// Returns the size in bytes of the chunk in `slot`: of a delta, that of its result.
    pub fn chunk_bytes(&self, slot: u16) -> Option<u32> {
        let delta = self.delta(slot).map(|delta| delta.chunk_bytes);
        delta.or_else(|| self.slot(slot).map(|place| place.length))
    }

    /// Whether most chunks are whole blocks: those of disks, which are read one by one.
    pub fn is_of_blocks(&self) -> bool {
        let lengths = self.slots().filter_map(|(slot, _)| self.chunk_bytes(slot));
        let (mut blocks, mut all) = (0_usize, 0_usize);
        for length in lengths {
            blocks += usize::from((length as usize).is_multiple_of(BLOCK_BYTES));
            all += 1;
        }
        2 * blocks > all
    }

    /// Iterates over every slot's number and location, ascending, without links.
    pub fn slots(&self) -> impl Iterator<Item = (u16, Slot)> + '_ {
        let all = self.runs.iter().flat_map(|run| (0..run.count).map(move |i| run.first + i));
        all.filter_map(|number| self.slot(number).map(|slot| (number, slot)))
    }

    /// Iterates over the numbers of all slots: first those of chunks, ascending, then those of
    /// links.
    pub fn slot_numbers(&self) -> impl Iterator<Item = u16> + '_ {
        let links = self.links.iter().map(|link| link.slot);
        self.slots().map(|(number, _)| number).chain(links)
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(FRAMES, REQUIRED, |to| {
            to.count(self.frames.len());
            for frame in &self.frames {
                to.u32(frame.offset);
                to.u32(frame.sealed_bytes);
                to.u32(frame.raw_bytes);
            }
        });
        to.section(SLOT_RUNS, REQUIRED, |to| {
            to.count(self.runs.len());
            for run in &self.runs {
                to.u16(run.first);
                to.u16(run.count);
                to.u16(run.frame);
                to.u8(run.kind as u8);
                to.u8(0);
                to.u32(run.chunk_bytes);
            }
        });
        to.section(FINGERPRINTS, REQUIRED, |to| {
            to.count(self.fingerprints.len());
            self.fingerprints.iter().for_each(|fingerprint| to.raw(&fingerprint.0));
        });
        if !self.links.is_empty() {
            to.section(LINKS, REQUIRED, |to| {
                to.count(self.links.len());
                for link in &self.links {
                    to.u16(link.slot);
                    to.u32(link.chunk_bytes);
                    to.u64(link.target.bits());
                    to.raw(&link.fingerprint.0);
                }
            });
        }
        if !self.deltas.is_empty() {
            to.section(DELTAS, REQUIRED, |to| {
                to.count(self.deltas.len());
                for delta in &self.deltas {
                    to.u16(delta.slot);
                    to.u32(delta.chunk_bytes);
                    to.u64(delta.base.bits());
                }
            });
        }
        if !self.applications.is_empty() {
            to.section(APPLICATIONS, 0, |to| {
                to.count(self.applications.len());
                for run in &self.applications {
                    to.u16(run.first);
                    to.u16(run.application);
                }
            });
        }
        to.bytes
    }

    /// Decodes a directory and checks that frames, slots, fingerprints, links and deltas are
    /// consistent.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut directory = Self::default();
        Decoder::new(bytes, "container directory").sections(|tag, body| {
            match tag {
                FRAMES => {
                    directory.frames = body.list(12, |item| {
                        let (offset, sealed_bytes) = (item.u32()?, item.u32()?);
                        Ok(Frame { offset, sealed_bytes, raw_bytes: item.u32()? })
                    })?;
                }
                SLOT_RUNS => directory.runs = body.list(12, decode_run)?,
                FINGERPRINTS => {
                    directory.fingerprints = body.list(20, |item| item.array().map(Fingerprint))?;
                }
                LINKS => directory.links = body.list(34, decode_link)?,
                DELTAS => directory.deltas = body.list(14, decode_delta)?,
                APPLICATIONS => {
                    directory.applications = body.list(4, |item| {
                        Ok(ApplicationRun { first: item.u16()?, application: item.u16()? })
                    })?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        directory.settle()?;
        Ok(directory)
    }

    /// Computes the fields that are not stored, and checks consistency.
    fn settle(&mut self) -> Result<()> {
        let wrong = |what: &str| Error::corrupt(format!("container directory: {what}"));
        if self.frames.len() > FRAMES_MAX {
            return Err(wrong("it has too many frames"));
        }
        let (mut slots, mut next, mut at) = (0_u32, 0_u32, (0_u16, 0_u32));
        self.firsts.clear();
        for run in &mut self.runs {
            let end = u32::from(run.first) + u32::from(run.count);
            if run.count == 0 || u32::from(run.first) < next || end > 1 << 16 {
                return Err(wrong("slots are out of order"));
            }
            if run.frame < at.0 {
                return Err(wrong("frames are out of order"));
            }
            if run.frame > at.0 {
                at = (run.frame, 0);
            }
            run.offset = at.1;
            let length = u32::from(run.count).checked_mul(run.chunk_bytes);
            let filled = length.and_then(|length| at.1.checked_add(length));
            let frame = self.frames.get(usize::from(run.frame));
            match (filled, frame) {
                (Some(filled), Some(frame)) if filled <= frame.raw_bytes => at.1 = filled,
                _ => return Err(wrong("a slot lies outside its frame")),
            }
            self.firsts.push(slots);
            slots += u32::from(run.count);
            next = end;
        }
        if slots as usize != self.fingerprints.len() {
            return Err(wrong("the number of fingerprints is not the number of slots"));
        }
        if !self.links.windows(2).all(|pair| pair[0].slot < pair[1].slot) {
            return Err(wrong("links are out of order"));
        }
        if self.links.iter().any(|link| self.slot(link.slot).is_some()) {
            return Err(wrong("a slot holds a chunk and a link"));
        }
        if !self.applications.windows(2).all(|pair| pair[0].first < pair[1].first) {
            return Err(wrong("applications are out of order"));
        }
        let runs = self.runs.iter().filter(|run| run.kind == SlotKind::Delta);
        let slots = runs.flat_map(|run| (0..run.count).map(move |i| run.first + i));
        if !slots.eq(self.deltas.iter().map(|delta| delta.slot)) {
            return Err(wrong("its deltas do not match its slots"));
        }
        Ok(())
    }
}

fn decode_run(item: &mut Decoder<'_>) -> Result<SlotRun> {
    let (first, count, frame) = (item.u16()?, item.u16()?, item.u16()?);
    let kind = match item.u8()? {
        1 => SlotKind::Whole,
        2 => SlotKind::Delta,
        other => return Err(unsupported("container directory", &format!("slot kind {other}"))),
    };
    let flags = item.u8()?;
    if flags != 0 {
        return Err(unsupported("container directory", &format!("slot flags {flags:#x}")));
    }
    Ok(SlotRun { first, count, frame, kind, chunk_bytes: item.u32()?, offset: 0 })
}

fn decode_link(item: &mut Decoder<'_>) -> Result<Link> {
    let (slot, chunk_bytes) = (item.u16()?, item.u32()?);
    let target = Reference::from_bits(item.u64()?);
    if target.is_zero() || target.store() == crate::PRIVATE_STORE {
        return Err(item.corrupt("a link points to its own store"));
    }
    Ok(Link { slot, chunk_bytes, target, fingerprint: Fingerprint(item.array()?) })
}

fn decode_delta(item: &mut Decoder<'_>) -> Result<Delta> {
    let (slot, chunk_bytes) = (item.u16()?, item.u32()?);
    let base = Reference::from_bits(item.u64()?);
    if base.is_zero() || chunk_bytes == 0 || chunk_bytes as usize > SEGMENT_BYTES {
        return Err(item.corrupt("a delta has no base, or makes a chunk of an impossible length"));
    }
    Ok(Delta { slot, chunk_bytes, base })
}

/// The kind of a block in a recipe pack or summary object. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlockKind {
    /// A segment's recipe.
    Recipe = 1,
    /// A page of a volume's map.
    Page = 2,
    /// A partition of a summary vector.
    Partition = 3,
    /// A page of a directory of a file tree.
    TreePage = 4,
}

impl From<BlockKind> for Hashed {
    fn from(kind: BlockKind) -> Self {
        match kind {
            BlockKind::Recipe => Self::Recipe,
            BlockKind::Page => Self::Page,
            BlockKind::Partition => Self::SummaryPartition,
            BlockKind::TreePage => Self::TreePage,
        }
    }
}

/// One block of a recipe pack or summary object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockEntry {
    /// Its kind.
    pub kind: BlockKind,
    /// Its offset in the object, in bytes; also its position for sealing.
    pub offset: u32,
    /// Size of the sealed block in bytes.
    pub sealed_bytes: u32,
}

/// The stored form of the directory of a recipe pack or summary object.
pub fn encode_blocks(blocks: &[BlockEntry]) -> Vec<u8> {
    let mut to = Encoder::default();
    to.section(BLOCKS, REQUIRED, |to| {
        to.count(blocks.len());
        for block in blocks {
            to.u8(block.kind as u8);
            to.u32(block.offset);
            to.u32(block.sealed_bytes);
        }
    });
    to.bytes
}

/// Reads the directory of a recipe pack or summary object.
pub fn decode_blocks(bytes: &[u8]) -> Result<Vec<BlockEntry>> {
    let mut blocks = Vec::new();
    Decoder::new(bytes, "block directory").sections(|tag, body| {
        if tag != BLOCKS {
            return Ok(false);
        }
        blocks = body.list(9, |item| {
            let kind = match item.u8()? {
                1 => BlockKind::Recipe,
                2 => BlockKind::Page,
                3 => BlockKind::Partition,
                4 => BlockKind::TreePage,
                other => return Err(unsupported("block directory", &format!("kind {other}"))),
            };
            Ok(BlockEntry { kind, offset: item.u32()?, sealed_bytes: item.u32()? })
        })?;
        Ok(true)
    })?;
    Ok(blocks)
}
