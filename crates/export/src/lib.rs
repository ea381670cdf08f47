//! Snapshots shown to other programs without restoring them.
//!
//! [`catalog`] says which series, snapshots and volumes there are, and opens volumes.

pub mod catalog;
pub mod fuse;
