//! How a repository with another secret would recognise a segment.

use silt_chunking::{Fingerprinter, SegmentDigester, signatures};
use silt_format::{Error, ErrorKind, Fingerprint, Recipe, Result, SegmentDigest, Signatures};
use silt_repository::volume_reader::placed;

use crate::session::BackupSession;

/// The keys by which a session recognises segments and chunks.
#[derive(Clone)]
pub struct Recognition {
    fingerprinter: Fingerprinter,
    digester: SegmentDigester,
}

impl Recognition {
    /// Replaces the fingerprints of a recipe by those that the chunks have under these keys, and
    /// returns the digest, of the kind `kind`, and the signatures of the segment.
    ///
    /// `data` is the whole segment. Chunks of zeros keep their fingerprints. Fails with
    /// `Unsupported` if a segment that is cut like this cannot have a digest of this kind.
    pub fn translate(
        &self,
        recipe: &mut Recipe,
        data: &[u8],
        kind: u8,
    ) -> Result<(SegmentDigest, Signatures)> {
        let stored = placed(recipe).filter(|(chunk, _)| !chunk.reference.is_zero());
        let ranges: Vec<_> = stored.map(|(_, range)| range).collect();
        let mut found: Vec<Fingerprint> = Vec::new();
        self.fingerprinter.fingerprint_many(data, &ranges, &mut found);
        let stored = recipe.chunks.iter_mut().filter(|chunk| !chunk.reference.is_zero());
        for (chunk, fingerprint) in stored.zip(&found) {
            chunk.fingerprint = *fingerprint;
        }
        let digest = self.digester.digest_recipe(recipe, kind).ok_or_else(|| {
            let message = format!("a segment with a digest of the unknown kind {kind}");
            Error::new(ErrorKind::Unsupported, message)
        })?;
        Ok((digest, signatures(&found)))
    }
}

impl BackupSession<'_> {
    /// Returns the keys by which this session recognises segments and chunks.
    pub fn recognition(&self) -> Recognition {
        let keys = &self.repository.objects.keys;
        let (domain, series) = (self.head().domain, self.head().series);
        let fingerprinter = Fingerprinter::new(keys.fingerprint_key(domain, series));
        let digester =
            SegmentDigester::new(keys.segment_key(domain, series), fingerprinter.clone());
        Recognition { fingerprinter, digester }
    }
}
