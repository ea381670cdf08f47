//! Decodes deltas from the parent's volume.

use silt_format::number::{to_u64, to_usize};
use silt_format::replica::{ChunkDelta, DELTA_BASE_BYTES_MAX};
use silt_format::{Error, Result, Snapshot, Volume};
use silt_repository::objects::is_damage;
use silt_repository::repository::Found;
use silt_repository::{Repository, VolumeReader};
use silt_similarity::{DeltaCoder, PrefixCoder};

/// Memory limit of the cache of the parent's data, in bytes.
const CACHE_BYTES: u64 = 32 << 20;

/// Decodes deltas from one volume of the parent.
pub(super) struct Deltas {
    parent: VolumeReader,
    coder: PrefixCoder,
    base: Vec<u8>,
    /// What the last delta decoded to.
    chunks: Vec<u8>,
}

impl Deltas {
    /// Prepares to read `volume` of `parent`, which is among the snapshots of `head`.
    pub fn open(
        repository: &Repository,
        head: &silt_format::Head,
        parent: &Snapshot,
        volume: &Volume,
    ) -> Result<Self> {
        let entry = head.snapshots.iter().find(|entry| entry.id == parent.id);
        let entry = entry.ok_or_else(|| Error::invalid("the parent is not in its series"))?;
        let found =
            Found { head: head.clone(), snapshot: parent.clone(), entry: entry.clone(), key: None };
        let parent = VolumeReader::open(repository, found.volume(&volume.name)?, CACHE_BYTES)?;
        let (base, chunks) = (Vec::new(), Vec::new());
        Ok(Self { parent, coder: PrefixCoder::new(0), base, chunks })
    }

    /// Returns the chunks of a delta. They are unverified: if the base is damaged, or another one
    /// than the source has, they are arbitrary bytes.
    ///
    /// Fails with `Invalid` if the base lies behind the parent's volume.
    pub fn decode(&mut self, delta: &ChunkDelta) -> Result<&[u8]> {
        self.chunks.clear();
        self.chunks.resize(to_usize(u64::from(delta.bytes)), 0);
        if delta.base_bytes() > u64::from(DELTA_BASE_BYTES_MAX) {
            return Err(Error::invalid("the source sent a delta whose base is too large"));
        }
        self.base.clear();
        for base in &delta.bases {
            let end = base.offset.checked_add(u64::from(base.length));
            if end.is_none_or(|end| end > self.parent.bytes()) {
                return Err(Error::invalid("the source sent a delta from behind the parent"));
            }
            let start = self.base.len();
            self.base.resize(start + to_usize(u64::from(base.length)), 0);
            match self.parent.read_at(base.offset, &mut self.base[start..]) {
                Ok(read) if to_u64(read) == u64::from(base.length) => {}
                Ok(_) => return Err(Error::invalid("the parent's volume ends early")),
                // Asked for again as they are.
                Err(error) if is_damage(&error) => return Ok(&self.chunks),
                Err(error) => return Err(error),
            }
        }
        // What does not decode is asked for again, too.
        let _ = self.coder.decode(&self.base, &delta.frame, &mut self.chunks);
        Ok(&self.chunks)
    }
}
