//! Snapshots shown to other programs without restoring them.
//!
//! [`snapshot_name`] parses the names that people give snapshots; [`catalog`] lists series,
//! snapshots and volumes, and opens volumes; [`nbd`] shows them as block devices, [`fuse`] as a
//! folder of files.

pub mod catalog;
pub mod fuse;
pub mod nbd;
pub mod snapshot_name;
