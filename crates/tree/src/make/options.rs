//! How a tree is made, and what became of it.

use silt_format::Error;

use crate::owners::OwnerMap;

/// Maximum number of failures that a [`Report`] keeps; further ones are counted.
pub const FAILURES_MAX: usize = 1000;

/// What happens to an entry that is there already. Directories are always taken as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// It is a failure.
    #[default]
    Refuse,
    /// It is replaced.
    Replace,
    /// It is kept if it is of the same kind and, as a file, of the same size and modification
    /// time, or, as a link or device, the same; its attributes are set. Otherwise it is replaced.
    KeepIfSame,
}

/// Who owns what is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum OwnerChoice {
    /// The owner and group with the same numbers.
    #[default]
    Numbers,
    /// The owner and group with the numbers that a map gives.
    Mapped(OwnerMap),
    /// The user who makes it.
    Maker,
}

/// Which extended attributes are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrChoice {
    /// All, with ACLs and capabilities; those that are not in the metadata are removed.
    #[default]
    All,
    /// Those of the namespace `user.`.
    User,
    /// None.
    None,
}

/// How a tree is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MakeOptions {
    /// What happens to entries that are there already.
    pub existing: Existing,
    /// Who owns what is made.
    pub owners: OwnerChoice,
    /// Which extended attributes are set.
    pub xattrs: XattrChoice,
    /// Leaves inode flags as the file system sets them.
    pub ignores_flags: bool,
    /// Finds names that are there and that are not made: see [`Maker::others`](super::Maker).
    pub lists_others: bool,
}

/// An entry that failed.
#[derive(Debug)]
pub struct Failure {
    /// Its path below the target.
    pub path: Vec<u8>,
    /// What went wrong.
    pub error: Error,
}

/// Numbers of attributes that could not be set because a privilege is missing, or because the
/// file system has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Entries whose owner or group was not set; they also have no set-user-id.
    pub owners: u64,
    /// Extended attributes.
    pub xattrs: u64,
    /// Entries with inode flags.
    pub flags: u64,
    /// Devices, which were not made.
    pub devices: u64,
}

/// What became of a tree.
#[derive(Debug, Default)]
pub struct Report {
    /// Entries that were made, or are there as they should be.
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
