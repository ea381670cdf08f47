//! Restoring file trees, and how they are cut.

mod chunking;
mod fill;
mod restore;
mod tune;

pub use restore::{TreeRestoreOptions, TreeRestoreReport};
pub use tune::{TuneMeasure, TuneOptions, TuneReport, TunedKind, tune};
