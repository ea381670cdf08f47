//! The Siltstone library: back up, list, verify and restore volumes.

mod backup;
mod check;
mod compare;
mod copies;
mod deletion;
mod edit;
mod jobs;
mod repository;
mod restore;
mod retention;
mod shared;
mod stats;
mod throttle;

pub use backup::{BackupOptions, BackupReport, BackupSession};
pub use check::{Affected, CheckOptions, CheckReport, Damage, DataCheck};
pub use compare::VolumeDiff;
pub use copies::{HealOptions, HealReport};
pub use deletion::{
    DeleteMethod, DeleteReport, ReclaimOptions, ReclaimReport, SeriesPolicy, SweepOptions,
    SweepReport,
};
pub use repository::Repository;
pub use restore::{RestoreOptions, RestoreReport};
pub use retention::{Candidate, Kept, apply_policy};
pub use shared::{
    CostModel, Picking, PopularOptions, PopularReport, RepointReport, RoundLoad, RoundMember,
    RoundOptions, RoundReport, Schedule, ScheduledVm, SharePolicy, SharedSweepOptions,
    SharedSweepReport, StageSeconds, memory_bytes_of_rounds, rounds_for_memory,
};
pub use silt_repository::authority::Administrator;
pub use silt_repository::budget::{MEMORY_BYTES_DEFAULT, MEMORY_BYTES_MIN};
pub use silt_repository::env::{Context, Env, Observer, Process, Progress, Silent};
pub use silt_repository::find::{AllHeads, DamagedHead, Selector, When};
pub use silt_repository::keys::{KeyAccess, KeyInfo};
pub use silt_repository::open::Protection;
pub use silt_repository::places::{OpenPlace, PlaceInfo};
#[cfg(feature = "measure")]
pub use silt_repository::runs::{ExactIndex, JoinMeasure, SortedRequests};
pub use silt_repository::system::SystemEnv;
pub use silt_repository::{Found, FoundVolume, VolumeExtent, VolumeReader};
pub use silt_storage::DryRunStorage;
pub use stats::SeriesStats;
pub use throttle::{Throttle, Throttled};
