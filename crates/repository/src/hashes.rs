//! Content hashes prove that an object is the one referred to, not only an intact one with that
//! name.

use silt_format::{ContentHash, Error, Hashed, Result};

use crate::objects::Objects;

impl Objects {
    /// Fails with `Corrupt` unless `plain` has the content hash in the reference to it.
    pub fn require_hash(
        &self,
        of: Hashed,
        plain: &[u8],
        wanted: ContentHash,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        if self.keys.content_hash(of, plain) == wanted {
            return Ok(());
        }
        let message = format!("{} is not the one referred to: its content hash differs", what());
        Err(Error::corrupt(message))
    }
}

/// The content hashes of an object's parts, which its own is made of.
#[derive(Default)]
pub struct PartHashes(Vec<u8>);

impl PartHashes {
    /// Adds that of the next part.
    pub fn add(&mut self, objects: &Objects, of: Hashed, plain: &[u8]) {
        self.0.extend_from_slice(&objects.keys.content_hash(of, plain).0);
    }

    /// The content hash of the whole.
    pub fn whole(&self, objects: &Objects, of: Hashed) -> ContentHash {
        objects.keys.content_hash(of, &self.0)
    }

    /// Fails with `Corrupt` unless the whole has the content hash in the reference to it.
    pub fn require(
        &self,
        objects: &Objects,
        of: Hashed,
        wanted: ContentHash,
        what: impl FnOnce() -> String,
    ) -> Result<()> {
        objects.require_hash(of, &self.0, wanted, what)
    }
}
