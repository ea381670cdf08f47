//! Makes snapshots readable by other programs without a restore.
//!
//! [`snapshot_name`] parses users' names of snapshots; [`catalog`] lists series, snapshots and
//! volumes, and opens volumes; [`nbd`] exports them as block devices, [`fuse`] mounts them as a
//! folder of files and directories.

pub mod catalog;
pub mod fuse;
pub mod nbd;
pub mod snapshot_name;
