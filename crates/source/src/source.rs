//! Sources of volumes.

mod nbd;
mod open;
pub mod qcow2;
mod raw;
mod stream;

use silt_format::{Error, Result};

use crate::changed::ChangedMap;

pub(crate) use open::is_named_qcow2;
pub use open::{FormatChoice, SourceOptions, open_source};
pub use stream::StreamSource;

/// The content of a range of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data that must be read.
    Data,
    /// Zeros, which need not be read.
    Zero,
}

/// A range of a volume of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Its offset in bytes.
    pub offset: u64,
    /// Its length in bytes; at least 1.
    pub length: u64,
    /// Its kind.
    pub kind: ExtentKind,
}

/// How a source stores its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// A file with the volume's bytes, perhaps with holes.
    Raw,
    /// A block device.
    Block,
    /// A qcow2 image, with its backing files.
    Qcow2,
    /// A byte stream of unknown length.
    Stream,
    /// An export of an NBD server.
    Nbd,
}

impl SourceFormat {
    /// Its name, as it is stored.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Block => "block",
            Self::Qcow2 => "qcow2",
            Self::Stream => "stream",
            Self::Nbd => "nbd",
        }
    }
}

/// The description of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// The path, or another name for messages.
    pub description: String,
    /// How the volume is stored.
    pub format: SourceFormat,
    /// Size of the volume in bytes; `None` while unknown, for a stream that has not ended.
    pub size: Option<u64>,
    /// The paths of an image's backing files, from the top down.
    pub backing: Vec<String>,
}

/// A volume to read. Several threads may read concurrently, unless
/// [`is_sequential`](Self::is_sequential).
pub trait VolumeSource: Send + Sync {
    /// Returns the source's properties.
    fn info(&self) -> SourceInfo;

    /// Returns whether `read_at` must be called in order and without gaps.
    fn is_sequential(&self) -> bool;

    /// Returns the extent that holds `offset`, clipped to begin there, as long as can be determined
    /// cheaply.
    ///
    /// Must not be called at or past the end of the volume. Errors name the file and the offset:
    /// Corrupt for damaged tables of an image, otherwise as reading fails.
    fn extent_at(&self, offset: u64) -> Result<Extent>;

    /// Fills `buf` from `offset` on and returns the number of bytes read: fewer than its length
    /// only at the end of the volume, or if a file has shrunk meanwhile.
    ///
    /// Errors name the file and the offset: Corrupt for a damaged image, otherwise as reading
    /// fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Returns the changed blocks that the source itself knows, in grains of `grain` bytes; `None`
    /// if it was opened without a changed-blocks context.
    ///
    /// Fails with NotFound if the source keeps no such map, otherwise as reading fails.
    fn changed_map(&self, _grain: u64) -> Result<Option<ChangedMap>> {
        Ok(None)
    }

    /// Returns the reason why no read can succeed any more, for example because the server is gone.
    /// A single failed read, such as a bad sector, is not such a reason.
    fn failure(&self) -> Option<Error> {
        None
    }
}
