//! Replication between repositories in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod backlog;
mod connections;
mod damage;
mod deltas;
mod disks;
mod foreign;
mod forged_segments;
mod hostile_replicas;
mod hostile_sources;
mod init;
mod kit;
mod refusals;
mod talks;
mod trees;
mod trees_without_data;
