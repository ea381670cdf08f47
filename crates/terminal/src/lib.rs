//! What the programs print and ask: messages for people and as JSON, progress, errors with advice,
//! confirmations, passwords, names of snapshots, rates and windows of the day.

pub mod advice;
pub mod confirm;
pub mod failure;
pub mod output;
pub mod progress;
pub mod rate;
pub mod secrets;
pub mod snapshot_name;
pub mod window;
