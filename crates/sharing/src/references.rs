//! The references from a series' recipes to stores of several series.

use silt_format::{BlockRef, Head, MapRoot, RecipeChunk, Result, Snapshot, SnapshotEntry};
use silt_repository::edit::read_snapshots;
use silt_repository::map::MapReader;
use silt_repository::objects::Scratch;

use silt_repository::Repository;

/// Calls `each` with every chunk in the shared store, or in that of a node, that a snapshot of a
/// series refers to, also one that was deleted and can be brought back. Fails if one of them can't
/// be read.
pub fn each_reference_to(
    repository: &Repository,
    number: u16,
    head: &Head,
    each: &mut dyn FnMut(&RecipeChunk) -> Result<()>,
) -> Result<()> {
    if head.stores.iter().all(|store| store.number != number) {
        return Ok(());
    }
    let deleted = head.deleted.iter().map(|deleted| &deleted.entry);
    let entries: Vec<SnapshotEntry> = head.snapshots.iter().chain(deleted).cloned().collect();
    let snapshots = read_snapshots(repository, head.series, &entries)?;
    let reader = MapReader::new(&repository.objects, head);
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    each_unshared(&reader, &snapshots, &mut |_| {}, &mut |block| {
        repository.objects.context.check_interrupted()?;
        let recipe = reader.recipe(block, &mut scratch, &mut raw)?;
        let stored = recipe.chunks.iter().filter(|chunk| !chunk.reference.is_zero());
        stored.filter(|chunk| chunk.reference.store() == number).try_for_each(&mut *each)
    })
}

/// Calls `visit` with every recipe of `living` that the snapshot before it does not share, and
/// `on_page` with every such page.
pub fn each_unshared(
    reader: &MapReader,
    living: &[Snapshot],
    on_page: &mut dyn FnMut(BlockRef),
    visit: &mut dyn FnMut(BlockRef) -> Result<()>,
) -> Result<()> {
    for (number, snapshot) in living.iter().enumerate() {
        let before = number.checked_sub(1).map(|before| &living[before]);
        for volume in &snapshot.volumes {
            let others: Vec<MapRoot> = before
                .iter()
                .flat_map(|before| before.volumes.iter().filter(|v| v.name == volume.name))
                .map(|volume| volume.root)
                .collect();
            reader.walk_unshared(volume.root, &others, on_page, &mut |_, entry| {
                visit(entry.recipe)
            })?;
        }
    }
    Ok(())
}
