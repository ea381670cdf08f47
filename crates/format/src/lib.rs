//! The bytes of a Siltstone repository.
//!
//! Everything stored is laid out here, by hand, as docs/FORMAT.md says; no I/O happens here.

mod error;
mod ids;

pub use error::{Error, ErrorKind, Result, ResultExt};
pub use ids::{
    BLOCK_BYTES, Chunking, Fingerprint, SEGMENT_BYTES, SIGNATURES, SegmentDigest, Signatures,
};
