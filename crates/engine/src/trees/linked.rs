//! Recognizes the names of one file.

use silt_format::tree::{Entry, Timestamp};

/// Identifies a file with hard links.
///
/// The inode number is not enough: if a file is removed during a backup, its number may be that of
/// another file by the time when the walk reaches that. So this also has the size, the time of the
/// last modification, and the place of the content.
pub(crate) type FileId = (u16, u64, u64, Timestamp, Option<u64>);

pub(crate) fn file_id(entry: &Entry) -> FileId {
    let metadata = &entry.metadata;
    let address = entry.extents.iter().find_map(|extent| extent.address);
    (metadata.file_system, metadata.inode, metadata.size, metadata.modified, address)
}
