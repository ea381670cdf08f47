//! Walking a tree and handing out its parts to the workers.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::number::to_u64;
use silt_format::tree::{Entry, EntryKind, FileKind, Metadata, State, Timestamp};
use silt_format::{Error, ErrorKind, Result, SEGMENT_BYTES};
use silt_repository::env::Context;
use silt_repository::event::Warning;
use silt_tree::{Found, Step, TreeSource};

use super::cuts::{Cut, Cutter};
use super::events::{TreeClaim, TreeEvent};
use super::known::{
    KnownTree, TICK_NS, has_same_attributes, is_unchanged, problem, settled, timestamp,
};
use super::map::OldSegments;
use super::options::TreeOptions;
use super::reading::{Before, Next, Reading, has_changed, update};
use super::told::Told;

/// Files of at least this size get segments of their own.
const LARGE_BYTES: u64 = 1 << 20;
/// Maximum number of files in a segment, so that the number of its chunks fits into 16 bits.
const FILES_MAX: usize = 4096;
/// Maximum number of events in a claim, so that progress is visible and queues stay bounded.
const EVENTS_MAX: usize = 4096;
/// Maximum number of the parent's segments that are searched for the chunks of a new segment.
const BEFORE_MAX: usize = 16;

/// Walks a tree and the parent's tree in parallel, and reads the files that changed.
pub(crate) struct TreeFeed<'a> {
    context: Context,
    walk: Box<dyn TreeSource + 'a>,
    options: &'a TreeOptions,
    known: KnownTree,
    old: &'a OldSegments,
    cutter: Cutter,
    claim: TreeClaim,
    /// A file that did not fit into the current segment, with its entry in the parent.
    waiting: Option<Box<(Found, Option<Entry>)>>,
    /// The large file that is being read.
    reading: Option<Reading>,
    /// Files with hard links of which names are still to come, by number of the file system and
    /// inode number.
    links: HashMap<(u16, u64), Linked>,
    pub(crate) excluded: u64,
    /// Entries whose status could not be read, directories that were left early, and listed entries
    /// that do not exist.
    pub(crate) failed: u64,
    ended: bool,
    told: Told,
    warnings: Vec<Warning>,
    /// Bytes of files that were read or reused, for progress.
    seen_bytes: Arc<AtomicU64>,
}

/// A file with hard links.
struct Linked {
    identity: Identity,
    /// The number of names that are still to come.
    left: u32,
}

/// Tells a file from another one that was given its inode number.
#[derive(PartialEq)]
enum Identity {
    /// When it was created.
    Born(Timestamp),
    /// Its size and time of modification, where nothing says when it was created.
    Looks(u64, Timestamp),
}

impl<'a> TreeFeed<'a> {
    pub(crate) fn new(
        context: Context,
        walk: Box<dyn TreeSource + 'a>,
        options: &'a TreeOptions,
        known: KnownTree,
        old: &'a OldSegments,
        cutter: Cutter,
    ) -> Self {
        Self {
            context,
            walk,
            options,
            known,
            old,
            cutter,
            claim: TreeClaim::default(),
            waiting: None,
            reading: None,
            links: HashMap::new(),
            excluded: 0,
            failed: 0,
            ended: false,
            told: Told::default(),
            warnings: Vec::new(),
            seen_bytes: Arc::default(),
        }
    }

    /// Returns the next part of the tree; `None` after the last. Replaces the content of `buffer`
    /// by the bytes of its segment.
    pub(crate) fn claim(&mut self, buffer: &mut Vec<u8>) -> Result<Option<TreeClaim>> {
        buffer.clear();
        loop {
            if self.reading.is_some() {
                if self.read_large(buffer)? {
                    return Ok(Some(self.take(buffer)));
                }
                continue;
            }
            if let Some(waiting) = self.waiting.take() {
                let (found, old) = *waiting;
                if self.file(found, old, buffer)? {
                    return Ok(Some(self.take(buffer)));
                }
                continue;
            }
            let is_full =
                self.claim.events.len() >= EVENTS_MAX || self.claim.cuts.len() >= FILES_MAX;
            if is_full || (self.ended && !self.claim.events.is_empty()) {
                return Ok(Some(self.take(buffer)));
            }
            if self.ended {
                return Ok(None);
            }
            let Some(step) = self.walk.next()? else {
                self.ended = true;
                continue;
            };
            if self.step(step, buffer)? {
                return Ok(Some(self.take(buffer)));
            }
        }
    }

    /// Returns the counter of the bytes of files that were read or reused.
    pub(crate) fn seen_bytes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.seen_bytes)
    }

    /// Returns the number of entries that were removed before the walk reached them.
    pub(crate) fn vanished(&self) -> u64 {
        self.walk.vanished()
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<Warning> {
        let mut warnings = self.known.take_warnings();
        warnings.append(&mut self.warnings);
        warnings
    }

    fn take(&mut self, buffer: &[u8]) -> TreeClaim {
        let mut claim = std::mem::take(&mut self.claim);
        claim.bytes = buffer.len();
        self.seen_bytes.fetch_add(to_u64(claim.bytes), Ordering::Relaxed);
        let mut met = HashSet::new();
        claim.before.retain(|segment| met.insert(*segment));
        claim.before.truncate(BEFORE_MAX);
        claim
    }

    /// Processes a step of the walk. Returns whether the claim must be handed out now.
    fn step(&mut self, step: Step, buffer: &mut Vec<u8>) -> Result<bool> {
        match step {
            Step::Enter(found) => self.enter(found)?,
            Step::Entry(found) => {
                if found.metadata.kind == EntryKind::File {
                    let trust = self.options.trust.on(self.walk.traits(found.metadata.file_system));
                    let of_file = (trust, &found.metadata);
                    let old = self.known.entry_of_file(&found.name, of_file)?;
                    self.note_pages();
                    return self.file(found, old, buffer);
                }
                let old = self.known.entry(&found.name)?;
                self.note_pages();
                self.other(found, old.as_ref());
            }
            Step::Leave(error) => {
                error.iter().for_each(|error| self.miss(error));
                self.note_pages();
                self.known.leave();
                self.claim.events.push(TreeEvent::Leave);
            }
            Step::Excluded(name, reason) => {
                self.excluded += 1;
                Told::left_out(&self.context, self.options, &*self.walk, (&name, reason));
            }
            Step::Failed(_, error) => self.miss(&error),
        }
        Ok(false)
    }

    /// Counts what the tree lacks.
    fn miss(&mut self, error: &Error) {
        self.failed += 1;
        self.warnings.push(problem(error));
    }

    fn note_pages(&mut self) {
        let pages = self.known.take_pages();
        if !pages.is_empty() {
            self.claim.events.push(TreeEvent::Pages(pages));
        }
    }

    fn enter(&mut self, mut found: Found) -> Result<()> {
        let file_system = found.metadata.file_system;
        self.told.directory(&self.context, self.options, &*self.walk, file_system);
        let old = self.known.enter(&found.name, &found.metadata)?;
        let looked = self.now();
        self.complete(&mut found, old.as_ref());
        let state = self.state(&mut found, looked);
        let entry = Entry {
            name: found.name,
            metadata: found.metadata,
            state,
            extents: Vec::new(),
            content: FileKind::Other,
            subtree: None,
        };
        self.claim.events.push(TreeEvent::Enter(Box::new(entry)));
        Ok(())
    }

    /// Adds a link, pipe, socket or device.
    fn other(&mut self, mut found: Found, old: Option<&Entry>) {
        let looked = self.now();
        if !self.complete(&mut found, old) {
            return;
        }
        let state = self.state(&mut found, looked);
        let entry = Entry {
            name: found.name,
            metadata: found.metadata,
            state,
            extents: Vec::new(),
            content: FileKind::Other,
            subtree: None,
        };
        let has_more_names = false;
        self.claim.events.push(TreeEvent::Entry { entry: Box::new(entry), has_more_names });
    }

    /// Adds flags, extended attributes and link target: the parent's if they are unchanged. Returns
    /// `false` if the entry no longer exists.
    fn complete(&mut self, found: &mut Found, old: Option<&Entry>) -> bool {
        let trust = self.options.trust.on(self.walk.traits(found.metadata.file_system));
        match old.filter(|old| has_same_attributes(trust, old, &found.metadata)) {
            Some(old) => {
                found.take_attributes(&old.metadata);
                true
            }
            None => self.walk.complete(found),
        }
    }

    /// The state of an entry that has no content, and was looked at from `looked` on.
    fn state(&mut self, found: &mut Found, looked: Timestamp) -> State {
        if let Some(error) = found.problem.take() {
            self.warnings.push(problem(&error));
            return State::Unreadable;
        }
        settled(&found.metadata, looked)
    }

    fn now(&self) -> Timestamp {
        timestamp(self.context.env.now_ns())
    }

    /// Reuses the parent's content of a file, or reads it. Returns whether the claim must be handed
    /// out now.
    fn file(&mut self, mut found: Found, old: Option<Entry>, buffer: &mut Vec<u8>) -> Result<bool> {
        let old = old.filter(|old| old.metadata.kind == EntryKind::File);
        let trust = self.options.trust.on(self.walk.traits(found.metadata.file_system));
        let is_known = |metadata: &Metadata| {
            old.as_ref().is_some_and(|old| is_unchanged(trust, old, metadata))
        };
        // A status may be older than that of the first name. Where it has to tell two files apart,
        // it is read again before two names become two files.
        let mut is_link = self.is_link(&found.metadata);
        let is_asked = !is_link
            && self.walk.born().is_none()
            && self.links.contains_key(&number(&found.metadata));
        is_link |= is_asked;
        let is_reused = !is_link
            && !self.options.reread
            && is_known(&found.metadata)
            && self.old.are_usable(old.iter().flat_map(Entry::segments))?;
        if is_link || is_reused {
            let is_there = if is_asked {
                self.walk.complete(&mut found)
            } else {
                self.complete(&mut found, old.as_ref())
            };
            if !is_there {
                return Ok(false);
            }
            // The name may have been given to another file since.
            if is_link && self.is_link(&found.metadata) {
                let has_more_names = self.note_name(&found.metadata);
                let (name, metadata) = (found.name, Box::new(found.metadata));
                self.claim.events.push(TreeEvent::Link { name, metadata, has_more_names });
                return Ok(false);
            }
            if is_reused && is_known(&found.metadata) {
                self.reuse(found, old);
                return Ok(false);
            }
        }
        Ok(self.read(found, old, buffer))
    }

    /// Adds a file with the content that it had in the parent.
    fn reuse(&mut self, found: Found, old: Option<Entry>) {
        let Some(old) = old else { return };
        self.seen_bytes.fetch_add(old.metadata.size, Ordering::Relaxed);
        let has_more_names = self.note_name(&found.metadata);
        let entry = Entry {
            name: found.name,
            metadata: found.metadata,
            state: State::Whole,
            content: old.content,
            extents: old.extents,
            subtree: None,
        };
        self.claim.events.push(TreeEvent::Entry { entry: Box::new(entry), has_more_names });
    }

    /// Reads a file, or the beginning of a large one. Returns whether the claim must be handed out
    /// now.
    fn read(&mut self, mut found: Found, old: Option<Entry>, buffer: &mut Vec<u8>) -> bool {
        if !has_room(&found.metadata, buffer) {
            self.waiting = Some(Box::new((found, old)));
            return true;
        }
        let opened = self.now();
        if !self.walk.complete(&mut found) {
            return false;
        }
        // It may have grown since its status was read.
        if !has_room(&found.metadata, buffer) {
            self.waiting = Some(Box::new((found, old)));
            return true;
        }
        let file = match self.walk.open_file(&found) {
            Ok(file) => file,
            Err(error) => {
                self.unreadable(found, &error);
                return false;
            }
        };
        if let Some(error) = found.problem.take() {
            self.warnings.push(problem(&error));
        }
        let before = old.as_ref().map(Before::of).unwrap_or_default();
        let mut reading = Reading::new(file, found.name, found.metadata, before, opened);
        if reading.metadata.size >= LARGE_BYTES || !self.read_small(&mut reading, buffer) {
            self.reading = Some(reading);
            return !buffer.is_empty();
        }
        false
    }

    /// Returns whether the file of the last step came before under another name. File systems give
    /// the inode numbers of removed files again, so it must have been created at the same time.
    /// Where that is not known, it must have the size and the time of modification that it had
    /// then: a file that was changed between two of its names becomes two files, each with what it
    /// held when its name was reached.
    fn is_link(&self, metadata: &Metadata) -> bool {
        let linked = self.links.get(&number(metadata));
        linked.is_some_and(|linked| linked.identity == self.identity(metadata))
    }

    /// Returns the identity of the file of the last step.
    fn identity(&self, metadata: &Metadata) -> Identity {
        let looks = Identity::Looks(metadata.size, metadata.modified);
        self.walk.born().map_or(looks, Identity::Born)
    }

    /// Notes a name of a file as it is added. Returns whether further names may come.
    fn note_name(&mut self, metadata: &Metadata) -> bool {
        let before = self.links.get(&number(metadata)).filter(|_| self.is_link(metadata));
        let left = before.map_or(metadata.links, |linked| linked.left).saturating_sub(1);
        if left == 0 {
            self.links.remove(&number(metadata));
        } else {
            let identity = self.identity(metadata);
            self.links.insert(number(metadata), Linked { identity, left });
        }
        left > 0
    }

    /// Adds a file that could not be opened: a hole of its size. Ignores one that no longer exists.
    fn unreadable(&mut self, found: Found, error: &Error) {
        if error.kind() == ErrorKind::NotFound {
            return;
        }
        self.warnings.push(problem(error));
        self.claim.events.extend(hole(found.metadata.size));
        let content = silt_tree::kind_of(&[], &found.name);
        // Other names are tried again.
        self.links.remove(&number(&found.metadata));
        let (name, metadata, state) = (found.name, Box::new(found.metadata), State::Unreadable);
        let has_more_names = false;
        self.claim.events.push(TreeEvent::File { name, metadata, state, content, has_more_names });
    }

    /// Reads a small file and appends it to the buffer. Returns `false` if it has grown and no
    /// longer fits.
    fn read_small(&mut self, reading: &mut Reading, buffer: &mut Vec<u8>) -> bool {
        let (start, events) = (buffer.len(), self.claim.events.len());
        let state = loop {
            if let Err(error) = self.read_pieces(reading, buffer) {
                self.warnings.push(problem(&error));
                self.claim.events.extend(hole(reading.give_up()));
                break State::Unreadable;
            }
            match reading.file.status() {
                Ok(now) if !has_changed(&reading.metadata, &now) && !reading.is_doubtful() => {
                    break reading.settled();
                }
                Ok(_) if !reading.again && self.restart(reading) => {
                    buffer.truncate(start);
                    self.claim.events.truncate(events);
                    if !has_room(&reading.metadata, buffer) {
                        return false;
                    }
                }
                _ => break State::Changed,
            }
        };
        let bytes = buffer.len() - start;
        if bytes > 0 {
            let held = reading.held(bytes);
            self.claim.cuts.push(Cut { bytes, kind: reading.kind(), held });
            self.claim.before.extend(reading.candidates(BEFORE_MAX));
        }
        self.end(reading, state);
        true
    }

    /// Prepares to read a file again that may have changed while it was read. Waits for a tick of
    /// the clock first, so that a later change gets a later time. Returns `false` if its status
    /// cannot be read.
    fn restart(&self, reading: &mut Reading) -> bool {
        self.context.env.sleep_ns(u64::from(TICK_NS));
        let opened = self.now();
        let now = reading.file.status();
        now.is_ok_and(|now| {
            reading.restart(&now, opened);
            true
        })
    }

    /// Reads the rest of a small file into the buffer.
    fn read_pieces(&mut self, reading: &mut Reading, buffer: &mut Vec<u8>) -> Result<()> {
        loop {
            let (start, room) = (buffer.len(), SEGMENT_BYTES - buffer.len());
            match reading.next(buffer, room)? {
                Next::Hole(bytes) => self.claim.events.push(TreeEvent::Hole(bytes)),
                Next::Data(bytes) => self.claim.events.push(TreeEvent::Piece { start, bytes }),
                Next::End => return Ok(()),
            }
        }
    }

    /// Reads the next segment of a large file; returns whether the claim is complete.
    fn read_large(&mut self, buffer: &mut Vec<u8>) -> Result<bool> {
        let Some(mut reading) = self.reading.take() else { return Ok(false) };
        self.context.check_interrupted()?;
        let before: Vec<u64> = reading.candidates(BEFORE_MAX).collect();
        if reading.offset == 0 {
            self.claim.events.push(TreeEvent::Large { name: reading.name.clone() });
        }
        let ended = loop {
            let (start, room) = (buffer.len(), SEGMENT_BYTES - buffer.len());
            if room == 0 {
                break false;
            }
            match reading.next(buffer, room) {
                Ok(Next::Hole(bytes)) => self.claim.events.push(TreeEvent::Hole(bytes)),
                Ok(Next::Data(bytes)) => {
                    self.claim.events.push(TreeEvent::Piece { start, bytes });
                }
                Ok(Next::End) => break true,
                Err(error) => {
                    self.warnings.push(problem(&error));
                    self.claim.events.extend(hole(reading.give_up()));
                    break true;
                }
            }
        };
        if !ended {
            self.shorten(&mut reading, buffer);
        }
        if !buffer.is_empty() {
            let (bytes, kind) = (buffer.len(), reading.kind());
            self.claim.cuts.push(Cut { bytes, kind, held: None });
            self.claim.is_large = reading.metadata.size >= LARGE_BYTES;
            self.claim.before.extend(before);
        }
        if !ended {
            self.reading = Some(reading);
            return Ok(true);
        }
        let now = reading.file.status();
        let state = match now {
            _ if reading.failed => State::Unreadable,
            Ok(now) if !has_changed(&reading.metadata, &now) && !reading.is_doubtful() => {
                reading.settled()
            }
            Ok(_) if !reading.again && self.restart(&mut reading) => {
                self.claim.events.push(TreeEvent::Again);
                self.reading = Some(reading);
                return Ok(true);
            }
            _ => State::Changed,
        };
        self.end(&mut reading, state);
        Ok(true)
    }

    /// Shortens a full segment of a large file to end at a content-defined place.
    fn shorten(&mut self, reading: &mut Reading, buffer: &mut Vec<u8>) {
        // Only if the segment is a single piece: unreading must not cross a hole.
        let one_piece = matches!(
            self.claim.events.last(),
            Some(TreeEvent::Piece { start: 0, bytes }) if *bytes == SEGMENT_BYTES
        );
        if !one_piece {
            return;
        }
        let of_file = (reading.kind(), reading.metadata.size);
        let bytes = self.cutter.segment_bytes(buffer, of_file, &mut self.claim.lengths);
        reading.unread(buffer.len() - bytes);
        buffer.truncate(bytes);
        if let Some(TreeEvent::Piece { bytes: piece, .. }) = self.claim.events.last_mut() {
            *piece = bytes;
        }
    }

    fn end(&mut self, reading: &mut Reading, state: State) {
        let mut metadata = reading.metadata.clone();
        if state == State::Changed
            && let Ok(now) = reading.file.status()
        {
            let size = metadata.size;
            update(&mut metadata, &now);
            metadata.size = size;
        }
        let has_more_names = self.note_name(&metadata);
        let content = reading.kind();
        let name = std::mem::take(&mut reading.name);
        let metadata = Box::new(metadata);
        self.claim.events.push(TreeEvent::File { name, metadata, state, content, has_more_names });
    }
}

/// Returns the number of the file system and the inode number.
fn number(metadata: &Metadata) -> (u16, u64) {
    (metadata.file_system, metadata.inode)
}

/// Returns whether a file fits into the rest of a segment, or the segment is still empty.
fn has_room(metadata: &Metadata, buffer: &[u8]) -> bool {
    let room = SEGMENT_BYTES - buffer.len();
    buffer.is_empty() || (metadata.size < LARGE_BYTES && metadata.size <= to_u64(room))
}

/// Returns the event of a hole of this size; `None` for 0 bytes.
fn hole(bytes: u64) -> Option<TreeEvent> {
    (bytes > 0).then_some(TreeEvent::Hole(bytes))
}

const _: () = assert!(LARGE_BYTES <= SEGMENT_BYTES as u64);
