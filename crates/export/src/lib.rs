//! Snapshots shown to other programs without restoring them.
//!
//! [`snapshot_name`] parses the names that people give snapshots; [`catalog`] says which series,
//! snapshots and volumes there are, and opens volumes; [`nbd`] shows them as block devices.

pub mod catalog;
pub mod nbd;
pub mod snapshot_name;
