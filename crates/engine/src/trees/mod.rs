//! Reading, searching, comparing and restoring file trees, and choosing their chunking.

mod amend;
mod chunking;
mod content;
mod diff;
mod distinct;
mod dump;
mod fill;
mod find;
mod pair;
mod plan;
mod restore;
mod selected;
mod tune;
mod versions;
mod walk;

pub use diff::{ChangeKind, TreeChange, TreeDiff};
pub use dump::{ArchiveFormat, DumpReport};
pub use find::{FileQuery, OwnerQuery};
pub use plan::TreeRestorePlan;
pub use restore::{TreeRestoreOptions, TreeRestoreReport};
pub use tune::{TuneMeasure, TuneOptions, TuneReport, TunedKind, tune};
pub use versions::{FileVersion, TreePath, VersionsBy};
pub use walk::Failures;
