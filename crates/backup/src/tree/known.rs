//! The parent's tree, walked in parallel with the source.

use silt_format::BlockRef;
use silt_format::tree::{Entry, EntryKind, Metadata, State, Timestamp};
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;
use silt_repository::tree::{Cursor, TreeReader};
use silt_tree::{GRANULARITY_SECONDS, Trust};

use silt_format::{Error, Result};

use super::moved::{FileNumber, Moved};

/// Later than every time of a file, as the time when the parent read it. It switches off
/// [`Trust`]'s own test for recent changes: the parent has recorded them as [`State::Fresh`].
const FAR_FUTURE: Timestamp = Timestamp { seconds: i64::MAX, nanoseconds: 0 };

/// The parent's entries of the directories that are being walked.
pub(crate) struct KnownTree {
    reader: TreeReader,
    root: Option<Entry>,
    /// The start of the parent's backup.
    began: Timestamp,
    /// One for each directory from the root to the current one.
    places: Vec<Place>,
    /// Read when the first directory seems to have been renamed.
    moved: Option<Moved>,
    warnings: Vec<Warning>,
}

/// A directory that is being walked.
struct Place {
    number: FileNumber,
    /// `None` if the parent has no such directory.
    cursor: Option<Cursor>,
    /// Whether the parent may have it under another path that was not searched for yet.
    may_have_moved: bool,
}

impl KnownTree {
    /// Starts at the root of the parent's tree, or without a parent if `root` is `None`. `began_ns`
    /// is the start of the parent's backup in nanoseconds since 1970.
    pub(crate) fn new(reader: TreeReader, root: Option<Entry>, began_ns: i64) -> Self {
        let (began, places, warnings) = (timestamp(began_ns), Vec::new(), Vec::new());
        Self { reader, root, began, places, moved: None, warnings }
    }

    /// Enters the root, or a directory in the current one. Returns its entry in the parent.
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

    /// Like [`entry`](Self::entry), but also finds a file whose directory was renamed since the
    /// parent.
    ///
    /// Renaming a file updates its change time; renaming its directory does not. So if a file is
    /// not known under its path and has not changed since the parent began, its directory was
    /// renamed.
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

    /// Returns the parent's entry of this name in the current directory. Call it in ascending order
    /// of names. If the parent's directory is damaged, warns and treats it as empty.
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

    /// Returns the parent's pages of the current directory that were read since the last call.
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

/// Returns whether the content of an entry is unchanged since the parent.
pub(crate) fn is_unchanged(trust: Trust, old: &Entry, new: &Metadata) -> bool {
    old.state == State::Whole && trust.is_unchanged(&old.metadata, new, FAR_FUTURE)
}

/// Returns whether flags, extended attributes and the target of a link are unchanged since the
/// parent.
pub(crate) fn has_same_attributes(trust: Trust, old: &Entry, new: &Metadata) -> bool {
    old.state == State::Whole && trust.has_same_attributes(&old.metadata, new, FAR_FUTURE)
}

/// Returns the state of an entry that was read at `read`: [`State::Fresh`] if it changed so shortly
/// before that a later change could get the same time, otherwise [`State::Whole`].
///
/// Only the change time counts. Every change of content sets it to the current time, whereas users
/// can set the modification time.
pub(crate) fn settled(metadata: &Metadata, read: Timestamp) -> State {
    let read = Timestamp { seconds: read.seconds.saturating_sub(GRANULARITY_SECONDS), ..read };
    if metadata.changed < read { State::Whole } else { State::Fresh }
}

/// Two changes of a file within this time can get the same time stamp: a tick of the kernel's
/// clock, with a margin.
pub(crate) const TICK_NS: u32 = 20_000_000;

/// Returns whether a file changed so shortly before it was opened that a change during the reading
/// could get the same time.
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

/// Converts nanoseconds since 1970 into the form of a file's times.
pub(crate) fn timestamp(time_ns: i64) -> Timestamp {
    let nanoseconds = time_ns.rem_euclid(1_000_000_000);
    Timestamp {
        seconds: time_ns.div_euclid(1_000_000_000),
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    }
}

/// Returns the warning about an entry that could not be read.
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
