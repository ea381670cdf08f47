//! A chunk of a segment that is being backed up.

use std::ops::Range;

use silt_format::{Fingerprint, Level, Reference};

/// A chunk whose place is being looked for.
#[derive(Clone, Debug)]
pub struct DraftChunk {
    pub range: Range<usize>,
    pub fingerprint: Fingerprint,
    /// Where it is, once a level has found it; zeros are found from the start.
    pub found: Option<(Reference, Level)>,
    /// Whether its bytes are in the segment's buffer.
    pub is_read: bool,
}
