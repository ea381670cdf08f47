//! Snapshots from elsewhere: tar archives, and the repositories of restic and Borg.
//!
//! [`TarReader`] reads every kind of tar archive in the order in which it was written.
//! [`stage`] puts an archive into a temporary file and sorts its entries, so that a
//! [`StagedTree`] is a file tree that a backup reads in the order of names. An [`Origin`] lists
//! the snapshots of another program's repository and opens each as an archive.
//!
//! An archive is not trusted: every length in it is bounded before memory is allocated for it, and
//! memory does not grow with the archive, except for hard links. An entry that can't be stored is
//! refused by its path, and the others are imported.

mod attributes;
mod compressed;
mod join;
mod origin;
mod paths;
mod refused;
mod sorter;
mod spool;
mod stage;
mod tar;
mod tree;

pub use compressed::decompressed;
pub use origin::{CommandOutput, Origin, OriginFilter, OriginSnapshot, mixed_hosts};
pub use refused::REFUSALS_MAX;
pub use stage::{StageOptions, StagedTree, stage};
pub use tar::{Item, TarEntry, TarReader};
