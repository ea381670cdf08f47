//! The parts of a tree that the walk passes to the committer.

use silt_format::BlockRef;
use silt_format::tree::{Entry, FileKind, Metadata, State};

use super::cuts::Cut;

/// A part of a tree in the order of the walk: events, and at most one segment that they refer to.
#[derive(Debug, Default)]
pub(crate) struct TreeClaim {
    pub(crate) events: Vec<TreeEvent>,
    /// The files that share the segment, in order; empty without a segment.
    pub(crate) cuts: Vec<Cut>,
    /// The lengths of the segment's chunks in bytes, if it is cut already.
    pub(crate) lengths: Vec<u32>,
    /// Numbers of the parent's segments that held the same files.
    pub(crate) before: Vec<u64>,
    /// Size of the segment.
    pub(crate) bytes: usize,
    /// Whether the segment is part of a large file.
    pub(crate) is_large: bool,
}

/// `has_more_names` tells whether a [`TreeEvent::Link`] to the same file may follow.
#[derive(Debug)]
pub(crate) enum TreeEvent {
    /// A directory begins. The entry has no subtree yet.
    Enter(Box<Entry>),
    /// Pages of this directory in the parent.
    Pages(Vec<BlockRef>),
    /// A large file with this name is read from its beginning: the content up to its entry.
    Large { name: Vec<u8> },
    /// The next content of the next file: this range of the segment.
    Piece { start: usize, bytes: usize },
    /// The next content of the next file: this range of the parent's segments.
    Held { address: u64, bytes: usize },
    /// The next content of the next file: a hole of this size.
    Hole(u64),
    /// The next file is read again: drop its content so far.
    Again,
    /// A file with the content of the events before.
    File {
        name: Vec<u8>,
        metadata: Box<Metadata>,
        state: State,
        content: FileKind,
        has_more_names: bool,
    },
    /// A further name of an earlier file, which had more names.
    Link { name: Vec<u8>, metadata: Box<Metadata>, has_more_names: bool },
    /// An entry without content, or with the content that it had in the parent.
    Entry { entry: Box<Entry>, has_more_names: bool },
    /// The current directory ends.
    Leave,
}
