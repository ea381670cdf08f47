//! Backing up: source, segments, chunks, detection, packing, storage, and the commit.

mod adopt;
mod buffers;
mod clean;
mod commit;
mod container;
mod detect;
mod feed;
mod hint;
mod known;
mod map_builder;
mod packs;
mod parent;
mod pipeline;
mod recorded;
mod scan;
mod session;
mod signature_index;
mod summary;
mod survey;
mod upload;

pub use session::{BackupOptions, BackupReport, BackupSession};

pub(crate) use buffers::Buffers;
pub(crate) use container::ContainerWriter;
pub(crate) use hint::Hint;
pub(crate) use known::Table;
pub(crate) use pipeline::Pipeline;
pub(crate) use recorded::ScanRecorder;
pub(crate) use scan::{Avoided, SegmentDraft};
pub(crate) use session::{is_name, jobs};
pub(crate) use summary::{StoredSummary, verify_summary};
pub(crate) use survey::{NewData, Survey};
pub(crate) use upload::{SharedUploader, Uploads};
