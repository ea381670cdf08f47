//! Replication between repositories in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod connections;
mod disks;
mod kit;
mod talks;
mod trees;
