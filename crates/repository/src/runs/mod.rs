//! The sorted-run engine: sort under a budget, write, merge, join, look up.
//!
//! What many series have in common is found by sorting, not by look-ups: requests and index are
//! both in the order of their fingerprints, and one pass over the two, a few hundred KiB at a time,
//! answers them all whatever their sizes. Counting, exact detection and sweeping of the shared
//! store are this pass.

mod join;
mod lookup;
#[cfg(feature = "measure")]
mod measure;
mod merge;
mod read;
mod sort;
mod write;

pub use join::join;
pub use lookup::RunLookup;
#[cfg(feature = "measure")]
pub use measure::{ExactIndex, JoinMeasure, SortedRequests};
pub use merge::{Stream, merge};
pub use read::RunReader;
pub use sort::{Sorted, Sorter};
pub use write::{DurableRun, RunWriter};

#[cfg(test)]
mod tests;
