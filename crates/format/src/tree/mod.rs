//! File trees: the metadata of files, and the pages that hold the entries of directories.

mod entry;
mod kind;
mod metadata;
mod page;
mod volume;

pub use entry::{Entry, Extent, FileId, State};
pub use kind::{FileChunking, FileKind, KindCounts};
pub use metadata::{DeviceNumber, EntryKind, Metadata, Timestamp, Xattr};
pub use page::{Subtree, TREE_LEVELS_MAX, TREE_PAGE_BYTES_MAX, TreeBranch, TreePage};
pub use volume::{NAMES_MAX, OwnerName, SPARSE_SEGMENTS_MAX, Tree, TreeCounts};

/// Maximum length of a file name in bytes, as of every Unix.
pub const NAME_BYTES_MAX: usize = 255;
/// Maximum length of a symbolic link's target in bytes (`PATH_MAX` of Linux).
pub const TARGET_BYTES_MAX: usize = 4096;
/// Maximum size of an extended attribute's value in bytes, as of Linux.
pub const XATTR_BYTES_MAX: usize = 64 << 10;
/// Maximum total size of an entry's extended attributes in bytes: names and values.
pub const XATTRS_BYTES_MAX: usize = 1 << 20;
