//! The environment of commands, and the folder of its notes.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use siltstone::{NotedEnv, SystemEnv};

use crate::cli::Global;

/// The folder of a machine's notes; none without a home folder.
pub fn folder(global: &Global) -> Option<PathBuf> {
    let home = || Some(global.home.as_ref()?.join(".local/state"));
    Some(global.state_home.clone().or_else(home)?.join("silt"))
}

/// The environment of a command.
pub fn environment(global: &Global, interrupted: Arc<AtomicBool>) -> NotedEnv {
    let patience_ns = global.wait.unwrap_or(0).saturating_mul(1_000_000_000);
    NotedEnv::new(SystemEnv::new(interrupted), folder(global))
        .accepting_older(global.accept_older)
        .waiting_ns(patience_ns)
}
