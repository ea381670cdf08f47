//! Options for recreating a tree, and the report of its result.

use silt_format::Error;

use crate::owners::OwnerMap;

/// Maximum number of failures that a [`Report`] keeps; further ones are only counted.
pub const FAILURES_MAX: usize = 1000;

/// Treatment of entries that exist already. An existing directory is always used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Fail for this entry.
    #[default]
    Refuse,
    /// Replace the entry.
    Replace,
    /// Keep a file with the same content, a link with the same target, or the same device, and set
    /// its attributes. Replace anything else.
    KeepIfSame,
}

/// The owners of the new entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnerChoice {
    /// The user and group ids of the metadata.
    #[default]
    Numbers,
    /// The user and group ids of the metadata, mapped to those of this machine.
    Mapped(OwnerMap),
    /// The user who runs this process.
    Maker,
}

/// Which extended attributes are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrChoice {
    /// All, including ACLs and capabilities. Attributes that are not in the metadata are removed.
    #[default]
    All,
    /// Those of the namespace `user.`.
    User,
    /// None.
    None,
}

/// Options for recreating a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MakeOptions {
    /// Treatment of entries that exist already.
    pub existing: Existing,
    /// The owners of the new entries.
    pub owners: OwnerChoice,
    /// Which extended attributes are set.
    pub xattrs: XattrChoice,
    /// Does not set inode flags.
    pub ignores_flags: bool,
    /// Collects existing names that are not in the tree, for
    /// [`Maker::others`](super::Maker::others).
    pub lists_others: bool,
}

/// An entry that failed.
#[derive(Debug)]
pub struct Failure {
    /// Its path below the target.
    pub path: Vec<u8>,
    /// The error.
    pub error: Error,
}

/// Numbers of attributes that could not be set, because a privilege is missing or because the file
/// system does not support them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Entries whose owner or group was not set. Set-user-id and set-group-id are not set either,
    /// except on directories.
    pub owners: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Entries whose inode flags were not, or not all, set.
    pub flags: u64,
    /// Devices that were not made.
    pub devices: u64,
}

/// The result of recreating a tree.
#[derive(Debug, Default)]
pub struct Report {
    /// Entries that were made or kept without an error, including those in `missing`.
    pub made: u64,
    /// Entries that were removed.
    pub removed: u64,
    /// The first failures, at most [`FAILURES_MAX`].
    pub failures: Vec<Failure>,
    /// Number of all failures.
    pub failed: u64,
    /// Attributes that could not be set.
    pub missing: Missing,
}

impl Report {
    pub(super) fn fail(&mut self, path: Vec<u8>, error: Error) {
        self.failed += 1;
        if self.failures.len() < FAILURES_MAX {
            self.failures.push(Failure { path, error });
        }
    }
}
