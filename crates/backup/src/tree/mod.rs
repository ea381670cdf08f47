//! Backing up a file tree: walk, compare with the parent's entries, read, and write its pages.
//!
//! [`TreeFeed`] walks the tree and the parent's pages in parallel. It reuses the parent's content
//! of unchanged files, and reads the others into segments: small files share a segment, a large
//! file has segments of its own. The committer stores the segments in order. Then the address of
//! each file's content is known, and [`Assembly`] writes the pages of the directories.

mod assembly;
mod cuts;
mod events;
mod feed;
mod held;
mod known;
mod map;
mod moved;
mod options;
mod pieces;
mod reading;
mod told;

pub use options::TreeOptions;
pub use pieces::FilePiece;

pub(crate) use assembly::Assembly;
pub(crate) use cuts::{ANY_LENGTH, Cut, Cutter};
pub(crate) use events::{TreeClaim, TreeEvent};
pub(crate) use feed::TreeFeed;
pub(crate) use held::CutSegment;
pub(crate) use known::KnownTree;
pub(crate) use map::{NewMap, OldSegments};
pub(crate) use pieces::Pieces;
