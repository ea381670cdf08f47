//! Options for the backup of a file tree.

use silt_tree::{Rules, Trust};

/// Options for the backup of a file tree.
#[derive(Clone, Debug, Default)]
pub struct TreeOptions {
    /// The entries to leave out.
    pub rules: Rules,
    /// The metadata to compare to decide that a file is unchanged since the parent.
    pub trust: Trust,
    /// Read all files, even unchanged ones.
    pub reread: bool,
    /// Report each entry that is left out.
    pub name_left_out: bool,
}
