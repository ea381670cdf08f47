//! The caches of a history's machines, which outlive their processes.

use std::path::Path;

use silt_format::{Error, Result};
use silt_storage::CachePolicy;
use siltstone::storage::{CACHE_POLICY, READER_CACHE_POLICY};
use tempfile::TempDir;

use crate::plan::Action;
use crate::process::Process;
use crate::stage::Stage;

/// A file system in memory, where there is one.
const MEMORY: &str = "/dev/shm";

/// A folder for the caches of all machines, which is removed in the end.
pub fn folder() -> Result<TempDir> {
    let mut new = tempfile::Builder::new();
    let new = new.prefix("silt-sim-");
    let made = if Path::new(MEMORY).is_dir() { new.tempdir_in(MEMORY) } else { new.tempdir() };
    made.map_err(|error| Error::io("make a folder for caches", error))
}

/// What a command keeps. Those that check, delete or repair read the stores themselves.
pub fn policy(action: Action) -> Option<CachePolicy> {
    match action {
        Action::Backup(_) | Action::Round => Some(CACHE_POLICY),
        Action::Replicate(replication) if replication.pulls => Some(CACHE_POLICY),
        Action::Restore(..) | Action::Replicate(_) => Some(READER_CACHE_POLICY),
        _ => None,
    }
}

impl Stage {
    /// Lets a process use the caches of its machine, if machines have some.
    pub fn lend_caches(&self, process: &Process, policy: Option<CachePolicy>) {
        if let Some((folder, policy)) = self.caches.as_ref().zip(policy) {
            process.use_caches(folder.path().join(process.machine()), policy);
        }
    }

    /// The machines that have used caches, by their names.
    pub fn cached_machines(&self) -> Vec<String> {
        let folders = self.caches.iter().flat_map(|folder| folder.path().read_dir());
        let names = folders.flatten().flatten().map(|folder| folder.file_name());
        let mut names: Vec<String> = names.filter_map(|name| name.into_string().ok()).collect();
        names.sort_unstable();
        names
    }
}
