//! The program as a user runs it, with real images, devices, signals and full disks.

#![expect(clippy::unwrap_used, reason = "a test that meets an unexpected error has failed")]

mod agents;
mod archives;
mod backups;
mod bad_input;
mod bad_trees;
mod browse;
mod bus;
mod clouds;
mod commands;
mod completions;
mod copies;
mod daily;
mod damage;
mod deletions;
mod due;
mod exports;
mod failures;
mod files;
mod hosts;
mod imports;
mod interrupts;
mod json;
mod kit;
mod memory;
mod mistakes;
mod month;
mod mounts;
mod mounts_trees;
mod nbd_sources;
mod nbdsh;
mod nodes;
mod packaging;
mod profiles;
mod renames;
mod replicas;
mod replicate;
mod restores;
mod rounds_trees;
mod s3;
mod sharing;
mod status;
#[path = "../../../tree/tests/tree/kit.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod tree_kit;
mod trees;
mod verified;

/// The program that the kit runs.
const PROGRAM: &str = env!("CARGO_BIN_EXE_silt");
