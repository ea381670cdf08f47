//! The parent's tree, walked beside the source.

use silt_format::BlockRef;
use silt_format::tree::{Entry, EntryKind, Metadata, State, Timestamp};
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;
use silt_repository::tree::{Cursor, TreeReader};
use silt_tree::{GRANULARITY_SECONDS, Trust};

use silt_format::{Error, Result};

/// After every time of a file: the parent says itself which entries its times don't prove.
const LONG_AGO: Timestamp = Timestamp { seconds: i64::MAX, nanoseconds: 0 };

/// The entries of the parent's tree beside the directories that are walked.
pub(crate) struct KnownTree {
    reader: TreeReader,
    root: Option<Entry>,
    /// One for each open directory; `None` where the parent has no directory of the name.
    cursors: Vec<Option<Cursor>>,
    warnings: Vec<Warning>,
}

impl KnownTree {
    pub(crate) fn new(reader: TreeReader, root: Option<Entry>) -> Self {
        Self { reader, root, cursors: Vec::new(), warnings: Vec::new() }
    }

    /// Enters a directory below the current one, or the root. Returns the parent's entry.
    pub(crate) fn enter(&mut self, name: &[u8]) -> Result<Option<Entry>> {
        let entry = if self.cursors.is_empty() { self.root.take() } else { self.entry(name)? };
        let directory = entry.filter(|entry| entry.metadata.kind == EntryKind::Directory);
        self.cursors.push(directory.as_ref().map(|entry| self.reader.entries(entry)));
        Ok(directory)
    }

    pub(crate) fn leave(&mut self) {
        self.cursors.pop();
    }

    /// The parent's entry of this name in the current directory. Names are asked for in ascending
    /// order. A directory that can't be read counts as empty, with a warning.
    pub(crate) fn entry(&mut self, name: &[u8]) -> Result<Option<Entry>> {
        let Some(place) = self.cursors.last_mut() else { return Ok(None) };
        let Some(cursor) = place else { return Ok(None) };
        match cursor.seek(&self.reader, name) {
            Err(error) if is_damage(&error) => {
                *place = None;
                self.warnings.push(Warning::after(&error, "its files are read again"));
                Ok(None)
            }
            found => found,
        }
    }

    /// Pages of the current directory that were read since the last call.
    pub(crate) fn take_pages(&mut self) -> Vec<BlockRef> {
        let cursor = self.cursors.last_mut().and_then(Option::as_mut);
        cursor.map(Cursor::take_read).unwrap_or_default()
    }

    pub(crate) fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }
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
