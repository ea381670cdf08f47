//! Writing trees as archives.

mod tar;
mod zip;

use std::ops::Range;

use silt_format::tree::Metadata;

pub use tar::TarWriter;
pub use zip::ZipWriter;

/// An entry of an archive.
#[derive(Clone, Copy, Debug)]
pub struct ArchiveEntry<'e> {
    /// Its path in the archive, without a leading slash; empty for the root.
    pub path: &'e [u8],
    /// Its metadata.
    pub metadata: &'e Metadata,
    /// For a further name of a file with hard links: the path of its first entry.
    pub link_to: Option<&'e [u8]>,
    /// The name of the owner, if it is known.
    pub user: Option<&'e [u8]>,
    /// The name of the group, if it is known.
    pub group: Option<&'e [u8]>,
    /// The byte ranges of a regular file that are not holes, in ascending order.
    pub data: &'e [Range<u64>],
}
