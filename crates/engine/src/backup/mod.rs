//! Backing up: source, segments, chunks, detection, packing, storage, and the commit.

mod adopt;
mod clean;
mod commit;
mod container;
mod detect;
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

pub use options::{BackupOptions, DetectionOptions};
pub use session::{BackupReport, BackupSession};

pub(crate) use container::ContainerWriter;
pub(crate) use hint::Hint;
pub(crate) use pipeline::Pipeline;
pub(crate) use recorded::ScanRecorder;
pub(crate) use scan::SegmentDraft;
pub(crate) use survey::{NewData, Survey, SurveySession};
