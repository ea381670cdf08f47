//! Backing up a file tree: walk, compare with the parent's entries, read, and write its pages.
//!
//! [`TreeFeed`] walks the tree beside the parent's pages. Entries that did not change are taken
//! over; the others are read into segments, small files one after the other, large ones in
//! segments of their own. The committer stores the segments in order and learns where each file's
//! content is; [`Assembly`] writes the pages of the directories from that.

mod assembly;
mod cuts;
mod events;
mod feed;
mod held;
mod known;
mod map;
mod moved;
mod options;
mod reading;

pub use options::TreeOptions;

pub(crate) use assembly::Assembly;
pub(crate) use cuts::{ANY_LENGTH, Cutter};
pub(crate) use events::{TreeClaim, TreeEvent};
pub(crate) use feed::TreeFeed;
pub(crate) use held::CutSegment;
pub(crate) use known::KnownTree;
pub(crate) use map::{NewMap, OldSegments};
