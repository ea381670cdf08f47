//! A repository as a read-only folder, through the kernel's FUSE.
//!
//! Disks are files `SERIES/DATE/VOLUME.raw`, file trees are directories `SERIES/DATE/VOLUME/`.
//! `SERIES/latest` and `by-id/ID` are symbolic links to a `DATE`.

mod attach;
mod handles;
mod inside;
mod names;
mod nodes;
mod protocol;
mod read_ahead;
mod server;
mod tree;

pub use attach::{check_mount_point, unmount};
pub use server::{Mount, MountOptions};
