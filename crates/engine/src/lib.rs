//! The Siltstone library: back up, list, verify and restore volumes.
//!
//! A [`Repository`] is in a [`storage`]: a folder, memory, or any implementation of
//! [`Storage`](crate::storage::Storage). It holds series of snapshots. A snapshot has volumes,
//! which come from a [`source`] and are restored to a target, or read at any offset by a
//! [`VolumeReader`].
//!
//! ```
//! use std::sync::Arc;
//!
//! use siltstone::source::{SourceOptions, open_source};
//! use siltstone::storage::LocalStorage;
//! use siltstone::{
//!     BackupOptions, CheckOptions, Config, Protection, Repository, Selector, SystemEnv,
//!     VolumeReader, When,
//! };
//!
//! # fn main() -> siltstone::Result<()> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let disk = folder.path().join("disk.raw");
//! # std::fs::write(&disk, vec![7; 100_000]).unwrap();
//! let storage = Arc::new(LocalStorage::create(folder.path().join("repository"))?);
//! let (config, context) = (Config::default(), SystemEnv::context());
//! let repository = Repository::init(storage, context, config, &Protection::None, None)?;
//!
//! let mut backup = repository.backup("web1", BackupOptions::default())?;
//! let source = open_source(&disk, &SourceOptions::default())?;
//! backup.add_volume("root", &*source, None)?;
//! backup.finish()?;
//!
//! for head in repository.heads(&[])? {
//!     println!("{} has {} snapshots", head.name, head.snapshots.len());
//! }
//! let latest = repository.find(&Selector::Time(Some("web1".to_owned()), When::Latest))?;
//! let reader = VolumeReader::open(&repository, latest.volume("root")?, 0)?;
//! let mut bytes = [0; 16];
//! reader.read_at(50_000, &mut bytes)?;
//! assert_eq!(bytes, [7; 16]);
//! assert!(repository.check(&CheckOptions::default())?.damage.is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! Operations run in a [`Context`]: an [`Env`] gives time and random numbers, an [`Observer`]
//! receives [`Event`]s, a [`CancelToken`] stops the operation. [`SystemEnv::context`] returns a
//! context with the system's clock and no observer. A process that runs several operations at once
//! gives each its own context with [`Context::operation`] and [`Repository::for_operation`]. An
//! error names the object or file; its [`ErrorKind`] says what a program can do, its [`Advice`]
//! what a user can do.

mod api;
mod check;
mod copies;
mod deletion;
mod edit;
mod noted;
mod optimize;
mod repository;
mod restore;
mod shared;
mod stats;
mod trees;

pub use api::access::*;
pub use api::backup::*;
pub use api::context::*;
pub use api::rounds::*;
pub use api::snapshots::*;
pub use api::{source, storage};
pub use check::{Affected, CheckOptions, CheckReport, Damage, DataCheck};
pub use copies::{Completeness, HealOptions, HealReport};
pub use deletion::{
    DeleteMethod, DeleteReport, ReclaimOptions, ReclaimPlan, ReclaimReport, SeriesPolicy,
    SweepOptions, SweepReport,
};
pub use noted::NotedEnv;
pub use optimize::{OptimizeOptions, OptimizeReport};
pub use repository::Repository;
pub use restore::{RestoreOptions, RestoreReport};
pub use shared::{
    PopularOptions, PopularReport, RepointReport, SharePolicy, SharedSweepOptions,
    SharedSweepReport,
};
pub use silt_sharing::counting;
pub use silt_sharing::round::rounds_for_memory;
pub use stats::{NodeStatus, SeriesStats};
pub use trees::{
    ArchiveFormat, ChangeKind, DumpReport, Failures, FileQuery, FileVersion, OwnerQuery,
    TreeChange, TreeDiff, TreePath, TreeRestoreOptions, TreeRestorePlan, TreeRestoreReport,
    TuneMeasure, TuneOptions, TuneReport, TunedKind, VersionsBy, tune,
};
