//! Replication between repositories in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod backlog;
mod connections;
mod damage;
mod disks;
mod foreign;
mod init;
mod kit;
mod trees;
