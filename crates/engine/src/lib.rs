//! The Siltstone library: back up, list, verify and restore volumes.

mod ahead;
mod authority;
mod backup;
mod bounds;
mod budget;
mod cache;
mod check;
mod chunks;
mod compare;
mod deletion;
mod draft;
mod dry_run;
mod env;
mod find;
mod hashes;
mod heads;
mod history;
mod keys;
mod lease;
mod map;
mod objects;
mod places;
mod repository;
mod restore;
mod retention;
mod root;
mod runs;
mod seen;
mod shared;
mod stats;
mod system;
mod temporary;
mod throttle;
mod writers;

pub use authority::Administrator;
pub use backup::{BackupOptions, BackupReport, BackupSession};
pub use budget::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};
pub use check::{Affected, CheckOptions, CheckReport, Damage, DataCheck};
pub use compare::VolumeDiff;
pub use deletion::{
    DeleteMethod, DeleteReport, ReclaimOptions, ReclaimReport, SeriesPolicy, SweepOptions,
    SweepReport,
};
pub use dry_run::DryRunStorage;
pub use env::{Context, Env, Observer, Process, Progress, Silent};
pub use find::{AllHeads, DamagedHead, Selector, When};
pub use keys::{KeyAccess, KeyInfo};
pub use places::{HealOptions, HealReport, OpenPlace, PlaceInfo};
pub use repository::{Found, Protection, Repository};
pub use restore::{RestoreOptions, RestoreReport};
pub use retention::{Candidate, Kept, apply_policy};
#[cfg(feature = "measure")]
pub use runs::{ExactIndex, JoinMeasure, SortedRequests};
pub use shared::{
    CostModel, Picking, PopularOptions, PopularReport, RepointReport, RoundLoad, RoundMember,
    RoundOptions, RoundReport, Schedule, ScheduledVm, SharePolicy, SharedSweepOptions,
    SharedSweepReport, StageSeconds, memory_bytes_of_rounds, rounds_for_memory,
};
pub use stats::SeriesStats;
pub use system::SystemEnv;
pub use throttle::{Throttle, Throttled};
