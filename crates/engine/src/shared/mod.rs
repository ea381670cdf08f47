//! Chunks that series of a domain have in common, stored once.
//!
//! The shared store consists of containers, dead lists and heads, like a series' private store, and
//! of an index: runs that hold the place of each fingerprint. A chunk becomes shared when it is
//! copied there. From then on backups refer to the copy, and links to it replace the slots of
//! private containers.

mod popular;
mod repoint;
mod sweep;

pub use popular::{PopularOptions, PopularReport, SharePolicy};
pub use repoint::RepointReport;
pub use sweep::{SharedSweepOptions, SharedSweepReport};
