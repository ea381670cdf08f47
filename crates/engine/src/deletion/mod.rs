//! Deleting snapshots at once, finding out exactly what is dead, and giving its space back.
//!
//! Deletion is approximate: what no living snapshot's summary vector holds is dead. What the
//! vectors hold by chance stays, is forecast, and is found by an exact sweep. Space comes back when
//! containers are rewritten under the same references.

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
pub(crate) use rewrite::Rewriter;
pub(crate) use sweep::each_unshared;

pub use delete::{DeleteMethod, DeleteReport};
pub use plan::{ReclaimOptions, ReclaimPlan, ReclaimReport};
pub use policy::SeriesPolicy;
pub use sweep::{SweepOptions, SweepReport};
