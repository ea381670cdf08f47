//! Files and folders inside disk images, read without mounting anything.
//!
//! A [`Disk`] is an image; [`Layout`] says which partitions it has and which file system each
//! holds; [`Ext`] reads ext2, ext3 and ext4; [`copy_out`] copies from one to a folder.
//!
//! Images are hostile input: whoever controls a guest controls every byte of its disk. All lengths
//! and counts are bounded before they allocate, a [`Budget`] bounds how much is read, no directory
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
