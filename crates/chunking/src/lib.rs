//! Cut points, fingerprints, segment digests and signatures: all values that are computed from the
//! bytes of a volume before anything is looked up or stored.
//!
//! All functions are pure. Every value is part of the stored format, except for the hashes of
//! [`SegmentHasher`]; the golden vectors in `tests/` fix it.

mod cut;
mod digest;
mod fingerprint;
mod signature;
mod universal;
mod zero;

pub use cut::Chunker;
pub use digest::{DigestedBlocks, SegmentDigester};
pub use fingerprint::Fingerprinter;
pub use signature::signatures;
pub use universal::{HashWay, SegmentHasher};
pub use zero::is_zero;
