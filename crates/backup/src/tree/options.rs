//! How file trees are backed up.

use silt_tree::{Rules, Trust};

/// How a file tree is backed up.
#[derive(Clone, Debug, Default)]
pub struct TreeOptions {
    /// What is left out.
    pub rules: Rules,
    /// What proves that a file is as it was in the parent.
    pub trust: Trust,
    /// Reads all files, even those that did not change.
    pub reread: bool,
}
