//! The Siltstone library: back up, list, verify and restore volumes.

mod backup;
mod cache;
mod chunks;
mod env;
mod lease;
mod map;
mod objects;
mod repository;
mod system;

pub use backup::{BackupOptions, BackupReport, BackupSession};
pub use env::{Context, Env, Observer, Process, Progress, Silent};
pub use repository::{Found, KeyInfo, Protection, Repository};
pub use system::SystemEnv;
