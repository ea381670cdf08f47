//! A chunk of a segment that is being backed up.

use std::ops::Range;

use silt_format::tree::FileKind;
use silt_format::{Fingerprint, Level, Reference};
use silt_routing::{Application, Print};

/// The application of disks, and of images of disks in file trees.
pub(crate) const DISKS: Application = application_of(FileKind::DiskImage);

/// The application of a kind of file.
pub(crate) const fn application_of(kind: FileKind) -> Application {
    Application(kind as u16)
}

/// A chunk that is being looked up.
#[derive(Clone, Debug)]
pub struct DraftChunk {
    pub range: Range<usize>,
    pub fingerprint: Fingerprint,
    /// Its place and the level that found it. Zeros count as found from the start.
    pub found: Option<(Reference, Level)>,
    /// Whether its bytes are in the segment's buffer.
    pub is_read: bool,
    /// The storage node that gets it if it is new, by its number; 0 for none.
    pub node: u16,
}

impl DraftChunk {
    /// Whether it is all zeros, so that nothing is stored of it.
    pub fn is_zeros(&self) -> bool {
        self.found.is_some_and(|(reference, _)| reference.is_zero())
    }
}

/// The beginning of a fingerprint, which handprints take for the whole.
pub fn print_of(fingerprint: &Fingerprint) -> Print {
    let mut print = [0; 8];
    print.copy_from_slice(&fingerprint.0[..8]);
    Print::from_le_bytes(print)
}
