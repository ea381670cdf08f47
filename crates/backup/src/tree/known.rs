//! The parent's tree, walked beside the source.

use silt_format::BlockRef;
use silt_format::tree::{Entry, EntryKind, Metadata, State, Timestamp};
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;
use silt_repository::tree::{Cursor, TreeReader};
use silt_tree::{GRANULARITY_SECONDS, Trust};

use silt_format::{Error, Result};

use super::moved::{FileNumber, Moved};

/// After every time of a file: the parent says itself which entries its times don't prove.
const LONG_AGO: Timestamp = Timestamp { seconds: i64::MAX, nanoseconds: 0 };

/// The entries of the parent's tree beside the directories that are walked.
pub(crate) struct KnownTree {
    reader: TreeReader,
    root: Option<Entry>,
    /// When the parent began.
    began: Timestamp,
    /// One for each open directory.
    places: Vec<Place>,
    /// Made when a directory seems to have been renamed.
    moved: Option<Moved>,
    warnings: Vec<Warning>,
}

/// A directory that is walked.
struct Place {
    number: FileNumber,
    /// `None` where the parent has no such directory.
    cursor: Option<Cursor>,
    /// Whether the parent may have it under another path, which was not looked for yet.
    may_have_moved: bool,
}

impl KnownTree {
    /// The tree of a parent that began at a time in nanoseconds since 1970.
    pub(crate) fn new(reader: TreeReader, root: Option<Entry>, began_ns: i64) -> Self {
        let (began, places, warnings) = (timestamp(began_ns), Vec::new(), Vec::new());
        Self { reader, root, began, places, moved: None, warnings }
    }

    /// Enters a directory below the current one, or the root. Returns the parent's entry.
    pub(crate) fn enter(&mut self, name: &[u8], metadata: &Metadata) -> Result<Option<Entry>> {
        let is_root = self.places.is_empty();
        let entry = if is_root { self.root.clone() } else { self.entry(name)? };
        let directory = entry.filter(|entry| entry.metadata.kind == EntryKind::Directory);
        let cursor = directory.as_ref().map(|entry| self.reader.entries(entry));
        let number = (metadata.file_system, metadata.inode);
        let is_same = directory.as_ref().is_some_and(|old| is_number(old, number));
        let may_have_moved = !is_root && !is_same && self.root.is_some();
        self.places.push(Place { number, cursor, may_have_moved });
        Ok(directory)
    }

    pub(crate) fn leave(&mut self) {
        self.places.pop();
    }

    /// The same as [`entry`](Self::entry), also in a directory that had another path in the parent.
    ///
    /// A file that did not change since before the parent, in a directory that the parent does not
    /// have under its name, came with its directory: renaming a file alone changes its change time.
    pub(crate) fn entry_of_file(
        &mut self,
        name: &[u8],
        (trust, metadata): (Trust, &Metadata),
    ) -> Result<Option<Entry>> {
        let found = self.entry(name)?;
        let (began, has_numbers) = (self.began, trust == Trust::default());
        let Some(place) = self.places.last_mut() else { return Ok(found) };
        let is_known = || found.as_ref().is_some_and(|old| is_unchanged(trust, old, metadata));
        if !place.may_have_moved || !has_numbers || metadata.changed >= began || is_known() {
            return Ok(found);
        }
        place.may_have_moved = false;
        let number = place.number;
        let moved = match (self.moved.take(), &self.root) {
            (Some(moved), _) => moved,
            (None, Some(root)) => Moved::read(&self.reader, root)?,
            (None, None) => return Ok(found),
        };
        let subtree = moved.find(number);
        self.moved = Some(moved);
        let (Some(subtree), Some(place)) = (subtree, self.places.last_mut()) else {
            return Ok(found);
        };
        place.cursor = Some(self.reader.entries_below(&subtree));
        Ok(self.entry(name)?.or(found))
    }

    /// The parent's entry of this name in the current directory. Names are asked for in ascending
    /// order. A directory that can't be read counts as empty, with a warning.
    pub(crate) fn entry(&mut self, name: &[u8]) -> Result<Option<Entry>> {
        let Some(place) = self.places.last_mut() else { return Ok(None) };
        let Some(cursor) = &mut place.cursor else { return Ok(None) };
        match cursor.seek(&self.reader, name) {
            Err(error) if is_damage(&error) => {
                place.cursor = None;
                self.warnings.push(Warning::after(&error, "its files are read again"));
                Ok(None)
            }
            found => found,
        }
    }

    /// Pages of the current directory that were read since the last call.
    pub(crate) fn take_pages(&mut self) -> Vec<BlockRef> {
        let cursor = self.places.last_mut().and_then(|place| place.cursor.as_mut());
        cursor.map(Cursor::take_read).unwrap_or_default()
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }
}

fn is_number(entry: &Entry, number: FileNumber) -> bool {
    (entry.metadata.file_system, entry.metadata.inode) == number
}

/// Whether the content of an entry is as it was in the parent.
pub(crate) fn is_unchanged(trust: Trust, old: &Entry, new: &Metadata) -> bool {
    old.state == State::Whole && trust.is_unchanged(&old.metadata, new, LONG_AGO)
}

/// Whether flags, extended attributes and the target of a link are as they were in the parent.
pub(crate) fn has_same_attributes(trust: Trust, old: &Entry, new: &Metadata) -> bool {
    old.state == State::Whole && trust.has_same_attributes(&old.metadata, new, LONG_AGO)
}

/// [`State::Fresh`] for what was read at `read` if it changed too shortly before.
///
/// The change time alone decides: every later change of content sets it to the time of the change,
/// while the modification time is whatever a user has set.
pub(crate) fn settled(metadata: &Metadata, read: Timestamp) -> State {
    let read = Timestamp { seconds: read.seconds.saturating_sub(GRANULARITY_SECONDS), ..read };
    if metadata.changed < read { State::Whole } else { State::Fresh }
}

/// How far the clock that stamps files may be behind, so that two changes get the same time: a
/// kernel's tick, and some more.
pub(crate) const TICK_NS: u32 = 20_000_000;

/// Whether a file changed so shortly before it was opened that its time may not show a change
/// while it was read.
pub(crate) fn is_doubtful(metadata: &Metadata, opened: Timestamp) -> bool {
    let tick_before = match opened.nanoseconds.checked_sub(TICK_NS) {
        Some(nanoseconds) => Timestamp { nanoseconds, ..opened },
        None => Timestamp {
            seconds: opened.seconds.saturating_sub(1),
            nanoseconds: opened.nanoseconds + (1_000_000_000 - TICK_NS),
        },
    };
    (tick_before..=opened).contains(&metadata.changed)
}

/// A time of this machine's clock as a file has it.
pub(crate) fn timestamp(time_ns: i64) -> Timestamp {
    let nanoseconds = time_ns.rem_euclid(1_000_000_000);
    Timestamp {
        seconds: time_ns.div_euclid(1_000_000_000),
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    }
}

/// The error of an entry that stays in the snapshot without its content.
pub(crate) fn problem(error: &Error) -> Warning {
    Warning::from(error)
}

#[cfg(test)]
mod tests {
    use silt_format::tree::DeviceNumber;

    use super::*;

    fn changed(seconds: i64, nanoseconds: u32) -> Metadata {
        let changed = Timestamp { seconds, nanoseconds };
        Metadata {
            kind: EntryKind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            modified: changed,
            changed,
            size: 0,
            inode: 0,
            file_system: 0,
            links: 1,
            target: Vec::new(),
            device: DeviceNumber::default(),
            flags: 0,
            xattrs: Vec::new(),
        }
    }

    #[test]
    fn only_a_change_within_a_tick_before_the_opening_is_doubtful() {
        let opened = Timestamp { seconds: 100, nanoseconds: 5_000_000 };
        assert!(is_doubtful(&changed(100, 5_000_000), opened));
        assert!(is_doubtful(&changed(100, 0), opened));
        assert!(is_doubtful(&changed(99, 985_000_000), opened));
        assert!(!is_doubtful(&changed(99, 984_999_999), opened));
        assert!(!is_doubtful(&changed(100, 5_000_001), opened), "another clock stamps it");
        let opened = Timestamp { seconds: 100, nanoseconds: 20_000_000 };
        assert!(is_doubtful(&changed(100, 0), opened));
        assert!(!is_doubtful(&changed(99, 999_999_999), opened));
    }
}
