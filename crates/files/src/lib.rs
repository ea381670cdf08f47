//! Files and folders inside disk images, read without mounting anything.
//!
//! A [`Disk`] is an image; its [`Layout`] holds the partitions and the file system of each; [`Ext`]
//! reads ext2, ext3 and ext4; [`copy_out`] copies from a file system to a folder.
//!
//! Images are hostile input: a user of a guest controls every byte of its disk. All lengths and
//! counts are bounded before memory is allocated, a [`Budget`] bounds the bytes read, no directory
//! is entered twice, and nothing is written outside the target folder.

mod budget;
mod disk;
mod ext;
mod extract;
mod little_endian;
mod partitions;
mod probe;

pub use budget::Budget;
pub use disk::{Disk, Region};
pub use ext::{Entry, Ext, Inode, Kind, Run, Time};
pub use extract::{CopyOptions, CopyReport, copy_out};
pub use partitions::{Layout, Partition, TableKind};
pub use probe::FileSystem;
