//! Chunks that resemble each other: sketches by which they are found, and deltas between them.
//!
//! A [`Sketcher`] computes a [`Sketch`] of a chunk: a few numbers, some of which are equal for
//! chunks that share most of their content. A [`SketchIndex`] finds chunks with equal numbers. A
//! [`DeltaCoder`] encodes one chunk by what it has in common with others.
//!
//! Everything is a pure function of its input; nothing is stored, and nothing is sent.

mod cache;
mod chain;
mod delta;
mod groups;
mod index;
mod mix;
mod sketch;
mod xdelta;

pub use cache::SketchCache;
pub use chain::{Chain, ChainParameters};
pub use delta::{DeltaCoder, PREFIX_BYTES_MAX, PrefixCoder};
pub use groups::{GroupParameters, Groups};
pub use index::{Candidate, SketchIndex};
pub use sketch::{SUPER_FEATURES, Scheme, Sketch, SketchParameters, Sketcher};
pub use xdelta::XdeltaCoder;
