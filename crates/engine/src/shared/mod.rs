//! Chunks that series of a domain have in common, stored once.
//!
//! The shared store is made of containers, dead lists and heads like a series' private store, and
//! of an index: runs that say where each fingerprint is. A chunk becomes shared when it is copied
//! there; from then on backups refer to the copy, and the slots of private containers are replaced
//! by links to it.

mod copy;
mod owners;
mod popular;
mod references;
mod repoint;
mod round;
mod sweep;

pub use popular::{PopularOptions, PopularReport, SharePolicy};
pub use repoint::RepointReport;
pub use round::{
    CostModel, Picking, RoundLoad, RoundMember, RoundMemory, RoundOptions, RoundReport, Schedule,
    ScheduledVm, StageSeconds, rounds_for_memory,
};
pub use sweep::{SharedSweepOptions, SharedSweepReport};
