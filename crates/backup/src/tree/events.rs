//! What the walk hands to the committer.

use silt_format::BlockRef;
use silt_format::tree::{Entry, FileKind, Metadata, State};

use super::cuts::Cut;

/// Part of a tree in the order of the walk: events, and at most one segment that they refer to.
#[derive(Debug, Default)]
pub(crate) struct TreeClaim {
    pub(crate) events: Vec<TreeEvent>,
    /// How the bytes of the segment are cut; empty without a segment.
    pub(crate) cuts: Vec<Cut>,
    /// Segments of the parent that held the same files.
    pub(crate) before: Vec<u64>,
    /// Bytes of the segment.
    pub(crate) bytes: usize,
}

#[derive(Debug)]
pub(crate) enum TreeEvent {
    /// A directory begins; without its subtree.
    Enter(Box<Entry>),
    /// Pages that the directory had before.
    Pages(Vec<BlockRef>),
    /// Bytes of the segment that are content of the next file.
    Piece { start: usize, bytes: usize },
    /// Bytes of a segment of the parent, from this address on, that are content of the next file.
    Held { address: u64, bytes: usize },
    /// A hole of the next file.
    Hole(u64),
    /// The next file is read again: its pieces so far don't count.
    Again,
    /// A file whose content came in pieces before.
    File { name: Vec<u8>, metadata: Box<Metadata>, state: State, content: FileKind },
    /// Another name of a file that came before.
    Link { name: Vec<u8>, metadata: Box<Metadata> },
    /// An entry without content, or with the content that it had in the parent.
    Entry(Box<Entry>),
    /// The current directory ends.
    Leave,
}
