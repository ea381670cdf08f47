//! Deletes snapshots immediately, finds exactly which chunks are dead, and frees their space.
//!
//! Deletion is approximate: chunks that no living snapshot's summary vector contains are dead. Dead
//! chunks that a vector contains by chance stay; the head forecasts their number, and an exact
//! sweep finds them. Space is freed when containers are rewritten under the same references.

mod bases;
mod delete;
mod named;
mod plan;
mod policy;
mod reclaim;
mod rewrite;
mod sweep;
mod undelete;
mod unfinished;
mod vectors;

pub(crate) use named::retagged;
pub(crate) use rewrite::{Changed, NewDelta, Rewriter};

pub use delete::{DeleteMethod, DeleteReport};
pub use plan::{ReclaimOptions, ReclaimPlan, ReclaimReport};
pub use policy::SeriesPolicy;
pub use sweep::{SweepOptions, SweepReport};
