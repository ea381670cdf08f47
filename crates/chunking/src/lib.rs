//! Cut points, fingerprints, segment digests and signatures: all values that are computed from the
//! bytes of a volume before anything is looked up or stored.
//!
//! All functions are pure. Every value is part of the stored format; the golden vectors in `tests/`
//! fix it.

mod cut;
mod digest;
mod fingerprint;
mod signature;
mod zero;

pub use cut::Chunker;
pub use digest::{DigestedBlocks, SegmentDigester};
pub use fingerprint::Fingerprinter;
pub use signature::signatures;
pub use zero::is_zero;
