//! Where chunks of the shared store are, if somebody else than the storage knows.

use std::fmt;

use silt_format::{Fingerprint, Reference};

/// Knows the places of chunks in the shared store.
pub trait SharedPlaces: fmt::Debug + Send + Sync {
    /// The places of chunks by fingerprint and length in bytes, `None` where it knows none. A
    /// backup uses only those that the shared store's head allows.
    ///
    /// Returns `None` if the index in the storage is to be used instead.
    fn find(&self, wanted: &[(Fingerprint, u32)]) -> Option<Vec<Option<Reference>>>;
}
