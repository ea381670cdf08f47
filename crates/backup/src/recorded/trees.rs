//! The record of a scan of a file tree: what the walk has met, and of its segments the same as of
//! those of disks. The backup that follows does not walk the tree again, and reads what it stores.
//!
//! Unless a chunk that is read differs: then the tree is walked again as a whole.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::tree::{Entry, Extent, Metadata};
use silt_format::{BlockRef, ContentHash, Error, Id, Result};
use silt_repository::event::Warning;
use silt_repository::sync::lock;
use silt_repository::temporary::TemporaryFile;
use silt_routing::Application;
use silt_tree::Owners;

use super::blocks::{BlockReader, BlockWriter, Blocks};
use super::{RecordedSegment, array};
use crate::scan::{Outcome, ScanBuffers, Scanned, Scanner, SegmentDraft, TreeSegment};
use crate::tree::{OldSegments, TreeEvent};

/// Reads new data of a surveyed tree from its files, from an address of the survey on. What cannot
/// be read may become anything.
pub type ReadFiles<'r> = dyn Fn(u64, &mut [u8]) -> Result<()> + Sync + 'r;

/// The result of a survey of a file tree.
pub struct TreeSurvey {
    /// The snapshot that the tree was compared with.
    pub(crate) parent: Option<Id>,
    pub(crate) owners: Owners,
    /// Number of entries that were left out by rules, of those that vanished, and of those that
    /// could not be reached.
    pub(crate) left_out: (u64, u64, u64),
    /// The first warnings.
    pub(crate) warnings: Vec<Warning>,
    /// The size of the files.
    pub(crate) bytes: u64,
    pub(crate) parts: RecordedParts,
}

/// The parts of a tree in their order, in a temporary file.
pub(crate) struct RecordedParts(Blocks);

/// Writes the record of one tree. One file may hold the records of several trees.
pub(crate) struct TreeRecorder<'f>(BlockWriter<'f>);

const NO_SEGMENT: u8 = 0;
const SAME_SEGMENT: u8 = 1;
const NEW_SEGMENT: u8 = 2;

impl<'f> TreeRecorder<'f> {
    pub(crate) fn new(file: &'f mut TemporaryFile) -> Self {
        Self(BlockWriter::new(file))
    }

    /// Adds a part of the tree. `address` is that of its segment, and `seen_bytes` the size of the
    /// files up to it.
    pub(crate) fn push(
        &mut self,
        events: &[TreeEvent],
        segment: &TreeSegment,
        (address, seen_bytes): (u64, u64),
    ) -> Result<()> {
        let to = &mut self.0.buffer;
        push_u64(to, seen_bytes);
        push_u32(to, to_u32(events.len()));
        events.iter().for_each(|event| encode_event(event, to));
        match segment {
            TreeSegment::None => to.push(NO_SEGMENT),
            TreeSegment::Same(number) => {
                to.push(SAME_SEGMENT);
                push_u64(to, *number);
            }
            TreeSegment::Draft(draft) => {
                to.push(NEW_SEGMENT);
                push_u32(to, to_u32(draft.data.len()));
                to.push(u8::from(draft.is_large));
                push_u32(to, u32::from(draft.application.0));
                push_u32(to, to_u32(draft.parent_numbers.len()));
                draft.parent_numbers.iter().for_each(|number| push_u64(to, *number));
                RecordedSegment::encode(address, draft.digest, &draft.chunks, to);
            }
        }
        self.0.end_record()
    }

    /// Ends the record of a tree.
    pub(crate) fn finish(self) -> Result<RecordedParts> {
        Ok(RecordedParts(self.0.finish()?))
    }
}

/// A part of a tree as the scan saw it.
struct RecordedPart {
    seen_bytes: u64,
    events: Vec<TreeEvent>,
    content: RecordedContent,
}

enum RecordedContent {
    None,
    Same(u64),
    New(NewSegment),
}

/// A segment that was new.
struct NewSegment {
    bytes: usize,
    is_large: bool,
    application: Application,
    parent_numbers: Vec<u64>,
    recorded: RecordedSegment,
}

/// Reads the parts of a record from the first to the last.
struct Parts<'s> {
    records: BlockReader<'s>,
    /// The number of the next part.
    number: u64,
}

impl Parts<'_> {
    /// Returns the next part and its number.
    fn next(&mut self) -> Result<Option<(u64, RecordedPart)>> {
        let Some(part) = self.records.next(decode_part)? else { return Ok(None) };
        self.number += 1;
        Ok(Some((self.number - 1, part)))
    }
}

/// The number of a part, what it is, and the buffer unless a draft keeps it.
pub(crate) type Replayed = (u64, Outcome, Option<Vec<u8>>);

/// A surveyed tree that is backed up by its record.
pub(crate) struct RecordedTree<'a> {
    parts: Mutex<Parts<'a>>,
    old: &'a OldSegments,
    scanner: &'a Scanner,
    read: &'a ReadFiles<'a>,
    seen_bytes: AtomicU64,
}

impl<'a> RecordedTree<'a> {
    pub(crate) fn new(
        survey: &'a TreeSurvey,
        old: &'a OldSegments,
        scanner: &'a Scanner,
        read: &'a ReadFiles<'a>,
    ) -> Self {
        let parts = Parts { records: BlockReader::new(&survey.parts.0), number: 0 };
        Self { parts: Mutex::new(parts), old, scanner, read, seen_bytes: AtomicU64::new(0) }
    }

    /// The size of the files so far.
    pub(crate) fn seen_bytes(&self) -> u64 {
        self.seen_bytes.load(Ordering::Relaxed)
    }

    /// Takes the next part, and reads what is to be stored of it. Returns the buffer as an error
    /// behind the last part.
    pub(crate) fn step(
        &self,
        mut data: Vec<u8>,
        buffers: &mut ScanBuffers,
    ) -> Result<std::result::Result<Replayed, Vec<u8>>> {
        let Some((number, part)) = lock(&self.parts).next()? else { return Ok(Err(data)) };
        let RecordedPart { seen_bytes, events, content } = part;
        self.seen_bytes.fetch_max(seen_bytes, Ordering::Relaxed);
        let segment = match content {
            RecordedContent::None => TreeSegment::None,
            RecordedContent::Same(number) => TreeSegment::Same(number),
            RecordedContent::New(new) => match self.recall(new, &mut data, buffers)? {
                Some(draft) => TreeSegment::Draft(Box::new(draft)),
                None => return Ok(Ok((number, Outcome::of(Scanned::Changed), Some(data)))),
            },
        };
        let keeps = matches!(segment, TreeSegment::Draft(_));
        let outcome = Outcome::of(Scanned::Tree(events, segment));
        Ok(Ok((number, outcome, if keeps { None } else { Some(data) })))
    }

    /// Makes a draft of a segment; `None` if what it would store has changed.
    fn recall(
        &self,
        new: NewSegment,
        data: &mut Vec<u8>,
        buffers: &mut ScanBuffers,
    ) -> Result<Option<SegmentDraft>> {
        let NewSegment { bytes, is_large, application, parent_numbers, recorded } = new;
        let RecordedSegment { index: address, digest, chunks } = recorded;
        let chunks = self.scanner.recalled(chunks)?;
        data.clear();
        data.resize(bytes, 0);
        // The zeros that fill up the segment are behind its bytes.
        let is_inside = chunks.iter().all(|chunk| !chunk.is_read || chunk.range.end <= bytes);
        let read =
            |start: usize, part: &mut [u8]| (self.read)(address + to_u64(start), part).is_ok();
        if !is_inside || !self.scanner.read_recalled(&chunks, data, &read, buffers) {
            return Ok(None);
        }
        let mut draft = SegmentDraft::new(0, std::mem::take(data), chunks, digest);
        for number in &parent_numbers {
            draft.parents.extend(self.old.entry(*number)?);
        }
        (draft.is_large, draft.application, draft.recalled) = (is_large, application, true);
        draft.parent_numbers = parent_numbers;
        Ok(Some(draft))
    }
}

const ENTER: u8 = 0;
const PAGES: u8 = 1;
const LARGE: u8 = 2;
const PIECE: u8 = 3;
const HELD: u8 = 4;
const HOLE: u8 = 5;
const AGAIN: u8 = 6;
const FILE: u8 = 7;
const LINK: u8 = 8;
const ENTRY: u8 = 9;
const LEAVE: u8 = 10;

fn encode_event(event: &TreeEvent, to: &mut Vec<u8>) {
    let tag = to.len();
    to.push(0);
    to[tag] = match event {
        TreeEvent::Enter(entry) => {
            push_bytes(to, &entry.encode());
            ENTER
        }
        TreeEvent::Pages(pages) => {
            push_u32(to, to_u32(pages.len()));
            for page in pages {
                for number in [page.pack, page.offset, page.length] {
                    push_u32(to, number);
                }
                to.extend_from_slice(&page.hash.0);
            }
            PAGES
        }
        TreeEvent::Large { name } => {
            push_bytes(to, name);
            LARGE
        }
        TreeEvent::Piece { start, bytes } => {
            push_u64(to, to_u64(*start));
            push_u64(to, to_u64(*bytes));
            PIECE
        }
        TreeEvent::Held { address, bytes } => {
            push_u64(to, *address);
            push_u64(to, to_u64(*bytes));
            HELD
        }
        TreeEvent::Hole(bytes) => {
            push_u64(to, *bytes);
            HOLE
        }
        TreeEvent::Again => AGAIN,
        TreeEvent::File { name, metadata, state, content, has_more_names } => {
            let entry = Entry { state: *state, content: *content, ..bare(name, metadata) };
            push_entry(to, &entry, *has_more_names);
            FILE
        }
        TreeEvent::Link { name, metadata, has_more_names } => {
            push_entry(to, &bare(name, metadata), *has_more_names);
            LINK
        }
        TreeEvent::Entry { entry, has_more_names } => {
            push_entry(to, entry, *has_more_names);
            ENTRY
        }
        TreeEvent::Leave => LEAVE,
    };
}

/// Returns the entry of a file whose content is in other events: a hole stands for it.
fn bare(name: &[u8], metadata: &Metadata) -> Entry {
    let hole = Extent { address: None, bytes: metadata.size };
    Entry {
        name: name.to_vec(),
        metadata: metadata.clone(),
        state: silt_format::tree::State::Whole,
        content: silt_format::tree::FileKind::Other,
        extents: if metadata.size > 0 { vec![hole] } else { Vec::new() },
        subtree: None,
    }
}

fn decode_part(from: &mut &[u8]) -> Result<RecordedPart> {
    let (seen_bytes, count) = (take_u64(from)?, take_u32(from)?);
    let events = (0..count).map(|_| decode_event(from)).collect::<Result<_>>()?;
    let content = match take_u8(from)? {
        NO_SEGMENT => RecordedContent::None,
        SAME_SEGMENT => RecordedContent::Same(take_u64(from)?),
        _ => {
            let (bytes, is_large) = (take_u32(from)? as usize, take_u8(from)? != 0);
            let application = u16::try_from(take_u32(from)?).map_err(|_| ends_early())?;
            let application = Application(application);
            let count = take_u32(from)?;
            let parent_numbers = (0..count).map(|_| take_u64(from)).collect::<Result<_>>()?;
            let recorded = RecordedSegment::decode(from).ok_or_else(ends_early)?;
            let new = NewSegment { bytes, is_large, application, parent_numbers, recorded };
            RecordedContent::New(new)
        }
    };
    Ok(RecordedPart { seen_bytes, events, content })
}

fn decode_event(from: &mut &[u8]) -> Result<TreeEvent> {
    let tag = take_u8(from)?;
    Ok(match tag {
        ENTER => TreeEvent::Enter(Box::new(take_entry(from)?)),
        PAGES => {
            let count = take_u32(from)?;
            TreeEvent::Pages((0..count).map(|_| take_page(from)).collect::<Result<_>>()?)
        }
        LARGE => TreeEvent::Large { name: take_bytes(from)?.to_vec() },
        PIECE => {
            let (start, bytes) = (to_usize(take_u64(from)?), to_usize(take_u64(from)?));
            TreeEvent::Piece { start, bytes }
        }
        HELD => TreeEvent::Held { address: take_u64(from)?, bytes: to_usize(take_u64(from)?) },
        HOLE => TreeEvent::Hole(take_u64(from)?),
        AGAIN => TreeEvent::Again,
        FILE => {
            let Entry { name, metadata, state, content, .. } = take_entry(from)?;
            let (metadata, has_more_names) = (Box::new(metadata), take_u8(from)? != 0);
            TreeEvent::File { name, metadata, state, content, has_more_names }
        }
        LINK => {
            let Entry { name, metadata, .. } = take_entry(from)?;
            let (metadata, has_more_names) = (Box::new(metadata), take_u8(from)? != 0);
            TreeEvent::Link { name, metadata, has_more_names }
        }
        ENTRY => {
            let entry = Box::new(take_entry(from)?);
            TreeEvent::Entry { entry, has_more_names: take_u8(from)? != 0 }
        }
        _ => TreeEvent::Leave,
    })
}

fn take_page(from: &mut &[u8]) -> Result<BlockRef> {
    let (pack, offset, length) = (take_u32(from)?, take_u32(from)?, take_u32(from)?);
    let hash = ContentHash(*array(from).ok_or_else(ends_early)?);
    Ok(BlockRef { pack, offset, length, hash })
}

fn take_entry(from: &mut &[u8]) -> Result<Entry> {
    Entry::decode(take_bytes(from)?)
}

fn push_u32(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn push_u64(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn push_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    push_u32(to, to_u32(bytes.len()));
    to.extend_from_slice(bytes);
}

fn push_entry(to: &mut Vec<u8>, entry: &Entry, has_more_names: bool) {
    push_bytes(to, &entry.encode());
    to.push(u8::from(has_more_names));
}

fn take_u8(from: &mut &[u8]) -> Result<u8> {
    let [byte] = *array(from).ok_or_else(ends_early)?;
    Ok(byte)
}

fn take_u32(from: &mut &[u8]) -> Result<u32> {
    Ok(u32::from_le_bytes(*array(from).ok_or_else(ends_early)?))
}

fn take_u64(from: &mut &[u8]) -> Result<u64> {
    Ok(u64::from_le_bytes(*array(from).ok_or_else(ends_early)?))
}

fn take_bytes<'b>(from: &mut &'b [u8]) -> Result<&'b [u8]> {
    let length = take_u32(from)? as usize;
    let (bytes, rest) = from.split_at_checked(length).ok_or_else(ends_early)?;
    *from = rest;
    Ok(bytes)
}

fn ends_early() -> Error {
    Error::invalid("the record of a tree ends too early")
}
