//! Replication between repositories in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod connections;
mod disks;
mod forged_segments;
mod hostile_replicas;
mod hostile_sources;
mod kit;
mod refusals;
mod talks;
mod trees;
