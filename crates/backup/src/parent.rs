//! The snapshot with which a backup compares, and whether its segments can be trusted.
//!
//! A backup reuses segments whose digest equals the parent's without reading more. It trusts
//! snapshots that its own key signed, or that were signed by a key that may remove, which could
//! destroy everything anyway. For a snapshot signed by another key, it first verifies that each
//! recipe proves the digest beside it, and that each slot holds the chunk that the recipe expects.
//! Otherwise a stolen host key could decide what later backups restore to.

use std::sync::Arc;

use silt_format::{Error, Head, MapRoot, Result, ResultExt, Snapshot};
use silt_repository::chunks::ChunkReader;
use silt_repository::event::Warning;
use silt_repository::map::MapReader;
use silt_repository::objects::{Scratch, is_damage};

use silt_repository::repository::Repository;

/// The parent's volume as the scan sees it.
pub(crate) struct ParentVolume {
    pub(crate) reader: Arc<MapReader>,
    pub(crate) root: MapRoot,
}

/// Returns the newest snapshot that the backup can build upon. Skips unusable ones with a warning.
///
/// The second value tells whether its writer is trusted: it is this one, or one that may remove
/// everything anyway.
pub(super) fn newest_sound(
    repository: &Repository,
    head: &Head,
) -> Result<Option<(Snapshot, bool)>> {
    for entry in head.snapshots.iter().rev() {
        let read = repository.snapshot_signed(head.series, entry).and_then(|(snapshot, by)| {
            let is_trusted = by.id == repository.objects.signer.id() || by.may_remove;
            if !is_trusted {
                verify(repository, head, &snapshot)
                    .context(|| format!("snapshot {} of key {}", snapshot.id, by.id))?;
            }
            Ok((snapshot, is_trusted))
        });
        match read {
            Ok(found) => return Ok(Some(found)),
            Err(error) if is_damage(&error) => {
                repository.warn(Warning::after(
                    &error,
                    "the backup compares with an older snapshot instead",
                ));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Verifies a snapshot of another writer. Fails with `Corrupt` if a recipe does not match the
/// digest beside it, or a slot does not contain the chunk of the recipe.
fn verify(repository: &Repository, head: &Head, snapshot: &Snapshot) -> Result<()> {
    let objects = &repository.objects;
    let reader = Arc::new(MapReader::new(objects, head));
    let chunks = ChunkReader::new(objects, head, objects.context.budget(0))?;
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    for volume in &snapshot.volumes {
        reader.walk(volume.root, &mut |segment, entry| {
            objects.context.check_interrupted()?;
            let recipe = reader.segment_recipe(entry, &mut scratch, &mut raw)?;
            for chunk in recipe.chunks.iter().filter(|chunk| !chunk.reference.is_zero()) {
                let found = chunks.content(chunks.holder(chunk.reference)?)?;
                if found != Some((chunk.fingerprint, chunk.length)) {
                    return Err(Error::corrupt(format!(
                        "segment {segment}: slot {} of {} does not hold the chunk that the recipe \
                         says",
                        chunk.reference.slot(),
                        chunks.container_name(chunk.reference)
                    )));
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}
