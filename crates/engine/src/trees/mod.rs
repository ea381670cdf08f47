//! Restoring file trees.

mod fill;
mod restore;

pub use restore::{TreeRestoreOptions, TreeRestoreReport};
