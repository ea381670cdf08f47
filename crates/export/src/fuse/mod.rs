//! A repository as a read-only folder, through the kernel's FUSE.
//!
//! The layout is `SERIES/DATE/VOLUME.raw`; `SERIES/latest` and `by-id/ID` are links to a `DATE`.

mod attach;
mod names;
mod protocol;
mod read_ahead;
mod server;
mod tree;

pub use attach::{check_mount_point, unmount};
pub use server::{Mount, MountOptions};
