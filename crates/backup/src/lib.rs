//! Backing up: source, segments, chunks, detection, packing, storage, and the commit.
//!
//! A [`BackupSession`] backs up one series. One thread, the committer, takes scanned segments from
//! a [`Pipeline`] of workers in the order of the volume. Rounds of several series use the same
//! parts: a [`SurveySession`] scans and stores nothing, a [`ScanRecorder`] records the results, and
//! a [`Hint`] passes them to the backup.

mod adopt;
mod clean;
mod commit;
mod container;
mod described;
mod detect;
mod draft;
mod feed;
mod first;
mod hint;
mod known;
mod map_builder;
mod memo;
mod nodes;
mod options;
mod packed_frames;
mod parent;
mod pipeline;
mod places;
mod recorded;
mod scan;
mod session;
mod signature_index;
mod survey;
mod tree;

pub use container::ContainerWriter;
pub use described::{ReceivedBases, Recognition, ReplicaPeer, Taken};
pub use draft::print_of;
pub use first::ClaimedNames;
pub use hint::Hint;
pub use options::{BackupOptions, DetectionOptions};
pub use pipeline::Pipeline;
pub use places::{HELD_REPRESENTATIVES, NodeAnswers, SharedPlaces, Wanted};
pub use recorded::{ReadFiles, ScanRecorder, TreeSurvey};
pub use scan::SegmentDraft;
pub use session::{BackupReport, BackupSession};
pub use survey::{NewData, NewFiles, Survey, SurveySession};
pub use tree::{FilePiece, TreeOptions};
