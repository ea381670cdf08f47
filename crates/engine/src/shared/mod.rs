//! Chunks that series of a domain have in common, stored once.
//!
//! The shared store consists of containers, dead lists and heads, like a series' private store, and
//! of an index: runs that hold the place of each fingerprint. A chunk becomes shared when it is
//! copied there. From then on backups refer to the copy, and links to it replace the slots of
//! private containers.

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
