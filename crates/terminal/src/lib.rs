//! What the programs print and ask: messages for people and as JSON, progress, errors with advice,
//! confirmations, passwords, lists of files, names of snapshots, rates and windows of the day.

pub mod advice;
pub mod confirm;
pub mod failure;
pub mod listing;
pub mod output;
pub mod progress;
pub mod rate;
pub mod secrets;
pub mod snapshot_name;
pub mod window;
