//! Backing up: source, segments, chunks, detection, packing, storage, and the commit.
//!
//! [`BackupSession`] is a backup of one series. Its one committing thread takes scanned segments
//! from a [`Pipeline`] of workers in the order of the volume. Rounds of several series drive the
//! same parts: [`SurveySession`] scans and records without storing, [`ScanRecorder`] holds what was
//! found, and a [`Hint`] hands that to the backup.

mod adopt;
mod clean;
mod commit;
mod container;
mod detect;
mod draft;
mod feed;
mod hint;
mod known;
mod map_builder;
mod options;
mod parent;
mod pipeline;
mod recorded;
mod scan;
mod session;
mod signature_index;
mod survey;
mod tree;

pub use container::ContainerWriter;
pub use hint::Hint;
pub use options::{BackupOptions, DetectionOptions};
pub use pipeline::Pipeline;
pub use recorded::ScanRecorder;
pub use scan::SegmentDraft;
pub use session::{BackupReport, BackupSession};
pub use survey::{NewData, Survey, SurveySession};
pub use tree::TreeOptions;
