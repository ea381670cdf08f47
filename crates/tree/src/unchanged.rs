//! Deciding by its metadata whether a file is unchanged since an earlier backup, so that it need
//! not be read again.

use silt_format::tree::{EntryKind, Metadata, Timestamp};

use crate::mounts::FileSystemTraits;

/// Two changes of a file within this time can get the same time stamp. FAT is the coarsest file
/// system.
pub const GRANULARITY_SECONDS: i64 = 2;

/// Which metadata is compared to decide that a file is unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Inode numbers are not compared.
    pub ignore_inode: bool,
    /// Change times are not compared.
    pub ignore_changed: bool,
}

impl Trust {
    /// Returns a copy that also ignores the metadata that is unreliable on this file system.
    #[must_use]
    pub fn on(self, file_system: FileSystemTraits) -> Self {
        Self {
            ignore_inode: self.ignore_inode || file_system.has_unstable_inodes,
            ignore_changed: self.ignore_changed || file_system.has_unstable_changed,
        }
    }

    /// Returns whether a file with status `new` still has the content that an earlier backup read,
    /// which saw the status `old`. `old_read` is the time when that backup opened the file, or read
    /// its status if it did not open it, by the clock that also stamps files.
    ///
    /// A file that is changed again right after it was read can keep the time stamp that the backup
    /// saw. Returns `true` only if its last change was more than [`GRANULARITY_SECONDS`] before
    /// `old_read`.
    pub fn is_unchanged(self, old: &Metadata, new: &Metadata, old_read: Timestamp) -> bool {
        self.is_same(old, new) && self.is_settled(old, old_read)
    }

    /// Returns whether flags, extended attributes and the target of a link are unchanged. Changing
    /// them updates only the change time, so this is `false` if that is ignored.
    pub fn has_same_attributes(self, old: &Metadata, new: &Metadata, old_read: Timestamp) -> bool {
        !self.ignore_changed && self.is_unchanged(old, new, old_read)
    }

    fn is_same(self, old: &Metadata, new: &Metadata) -> bool {
        let is_device = matches!(old.kind, EntryKind::CharDevice | EntryKind::BlockDevice);
        old.kind == new.kind
            && old.size == new.size
            && old.modified == new.modified
            && (self.ignore_changed || old.changed == new.changed)
            && (self.ignore_inode || old.inode == new.inode)
            && (!is_device || old.device == new.device)
    }

    fn is_settled(self, old: &Metadata, old_read: Timestamp) -> bool {
        let last = if self.ignore_changed { old.modified } else { old.modified.max(old.changed) };
        let before = Timestamp {
            seconds: old_read.seconds.saturating_sub(GRANULARITY_SECONDS),
            nanoseconds: old_read.nanoseconds,
        };
        last < before
    }
}

#[cfg(test)]
mod tests {
    use silt_format::tree::DeviceNumber;

    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    fn metadata() -> Metadata {
        Metadata {
            kind: EntryKind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: at(100, 0),
            changed: at(200, 5),
            size: 10,
            inode: 7,
            file_system: 0,
            links: 1,
            target: Vec::new(),
            device: DeviceNumber::default(),
            flags: 0,
            xattrs: Vec::new(),
        }
    }

    #[test]
    fn a_file_is_trusted_once_its_times_are_old_enough() {
        let (old, trust) = (metadata(), Trust::default());
        assert!(trust.is_unchanged(&old, &old, at(202, 6)));
        assert!(!trust.is_unchanged(&old, &old, at(202, 5)), "it may have changed in its tick");
        assert!(!trust.is_unchanged(&old, &old, at(150, 0)), "changed after it was read");
        let future = Metadata { modified: at(9_000, 0), ..old.clone() };
        assert!(!trust.is_unchanged(&future, &future, at(300, 0)), "a time in the future");
        assert!(!trust.is_unchanged(&old, &old, at(i64::MIN, 0)));
    }

    #[test]
    fn every_compared_part_counts_and_ignored_ones_do_not() {
        let (old, read) = (metadata(), at(300, 0));
        let changes: [fn(&mut Metadata); 5] = [
            |new| new.size = 11,
            |new| new.modified = at(100, 1),
            |new| new.changed = at(200, 6),
            |new| new.inode = 8,
            |new| new.kind = EntryKind::Fifo,
        ];
        let ignoring = Trust { ignore_inode: true, ignore_changed: true };
        let seen: Vec<(bool, bool)> = changes
            .iter()
            .map(|change| {
                let mut new = old.clone();
                change(&mut new);
                (
                    Trust::default().is_unchanged(&old, &new, read),
                    ignoring.is_unchanged(&old, &new, read),
                )
            })
            .collect();
        let (no, ignored) = ((false, false), (false, true));
        assert_eq!(seen, [no, no, ignored, ignored, no]);
        assert!(ignoring.is_unchanged(&old, &old, at(103, 0)), "only the content's time counts");
        assert!(!ignoring.has_same_attributes(&old, &old, read));
        assert!(Trust::default().has_same_attributes(&old, &old, read));
    }

    #[test]
    fn moved_owners_and_modes_show_in_the_change_time_only() {
        let old = metadata();
        let new = Metadata { mode: 0o600, uid: 5, links: 2, ..old.clone() };
        assert!(Trust::default().is_unchanged(&old, &new, at(300, 0)));
    }

    #[test]
    fn network_file_systems_are_compared_without_their_numbers() {
        let fuse = FileSystemTraits {
            name: Some("FUSE"),
            has_unstable_inodes: true,
            has_unstable_changed: false,
        };
        let trust = Trust::default().on(fuse);
        assert_eq!(trust, Trust { ignore_inode: true, ignore_changed: false });
    }
}
