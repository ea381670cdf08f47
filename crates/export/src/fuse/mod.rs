//! A repository as a read-only folder, through the kernel's FUSE.
//!
//! The layout is `SERIES/DATE/VOLUME.raw` for disks and `SERIES/DATE/VOLUME/` for file trees;
//! `SERIES/latest` and `by-id/ID` are links to a `DATE`.

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
