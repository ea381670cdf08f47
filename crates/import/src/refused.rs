//! What an archive has, and what of it is refused.

use silt_format::Error;
use silt_tree::Failure;

/// How many refused entries a [`StagedTree`](crate::StagedTree) names; the others are only counted.
pub const REFUSALS_MAX: usize = 100;
/// Maximum sum of the sizes of all files, so that sums stay in range: 4 EiB.
pub(crate) const BYTES_MAX: u64 = 1 << 62;
/// Maximum length of a path in a message.
pub(crate) const SHOWN_BYTES_MAX: usize = 4096;

/// Entries that were refused: the first of them, and how many there are.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    pub(crate) first: Vec<Failure>,
    pub(crate) count: u64,
}

impl Refusals {
    pub(crate) fn add(&mut self, mut path: Vec<u8>, reason: impl Into<String>) {
        self.count += 1;
        path.truncate(SHOWN_BYTES_MAX);
        if self.first.len() < REFUSALS_MAX {
            self.first.push(Failure { path, error: Error::invalid(reason) });
        }
    }
}

/// What the tree has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    pub(crate) left_out: u64,
}
