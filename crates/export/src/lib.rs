//! Makes snapshots readable by other programs without a restore.
//!
//! [`nbd`] exports volumes as block devices, [`fuse`] mounts them as a folder of files and
//! directories. [`catalog`] lists series, snapshots and volumes, and opens volumes.
//! [`snapshot_name`] parses the names that users give to snapshots.

pub mod catalog;
pub mod fuse;
pub mod nbd;
pub mod snapshot_name;
