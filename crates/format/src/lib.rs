//! The bytes of a Siltstone repository.
//!
//! Everything stored is laid out here, by hand, as docs/FORMAT.md says; no I/O happens here.

mod error;

pub use error::{Error, ErrorKind, Result, ResultExt};
