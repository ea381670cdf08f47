//! Finds dead slots of a series exactly: marks the references of living snapshots, and sweeps the
//! containers.
//!
//! Memory is bounded: containers are processed in windows, with one bit for every slot of a window.
//! Each window reads all recipes once. This is the grouped mark-and-sweep of the papers, with as
//! many phases as the memory limit requires.

use std::collections::{BTreeSet, HashMap, HashSet};

use silt_format::{
    BlockRef, DeadRange, Head, ObjectTag, PRIVATE_STORE, Result, Snapshot, SummaryGeometry,
    VolumeKind,
};
use silt_repository::bounds::require_listed;
use silt_repository::budget::MEMORY_BYTES_DEFAULT;
use silt_repository::chunks::open_container;
use silt_repository::dead::{self, DeadSlots};
use silt_repository::event::Warning;
use silt_repository::map::MapReader;
use silt_repository::objects::{Scratch, is_damage};
use silt_repository::tree::TreeReader;
use silt_sharing::references::each_unshared;

use crate::edit::Edit;
use crate::repository::Repository;

/// Bytes of the bits for the slots of the largest container.
const CONTAINER_BITS_BYTES: u64 = 8 << 10;

/// Vectors of series with fewer chunks are small enough whatever their size.
const CHUNKS_RESIZED_MIN: u64 = 10_000;

/// How much memory a sweep takes, and in how many phases it runs.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let options = SweepOptions { memory_bytes: 256 << 20, ..SweepOptions::default() };
/// assert_eq!(repository.sweep("web1", options)?.dead_slots, 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepOptions {
    /// The memory limit in bytes; marks take at most half of it. 0 for the default.
    pub memory_bytes: u64,
    /// The least number of phases. Each reads all recipes for a part of the containers.
    pub phases_min: u64,
}

impl SweepOptions {
    /// Number of containers in one phase, out of `containers`.
    fn window(self, containers: usize) -> usize {
        let bytes = if self.memory_bytes == 0 { MEMORY_BYTES_DEFAULT } else { self.memory_bytes };
        let by_memory = usize::try_from(bytes / 2 / CONTAINER_BITS_BYTES).unwrap_or(usize::MAX);
        let phases = usize::try_from(self.phases_min.max(1)).unwrap_or(usize::MAX);
        by_memory.min(containers.div_ceil(phases)).max(1)
    }
}

/// The result of a sweep.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let report = repository.sweep("web1", SweepOptions::default())?;
/// println!("{} of {} slots are dead", report.dead_slots, report.slots);
/// assert!(report.recipes > 0);
/// assert_eq!(report.leaked_slots, 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    /// The number of phases; each read all recipes.
    pub phases: u64,
    /// Recipes read.
    pub recipes: u64,
    /// Slots of all containers that were swept.
    pub slots: u64,
    /// Slots that are dead: no snapshot refers to them, and no delta is applied to them.
    pub dead_slots: u64,
    /// Dead slots that no dead list named before.
    pub leaked_slots: u64,
}

/// The slots that are exactly dead.
pub(crate) struct Swept {
    pub(crate) dead: DeadSlots,
    pub(crate) report: SweepReport,
}

impl Repository {
    /// Finds exactly which chunks of a series are dead, including those that approximate deletions
    /// have leaked, and records them in the head.
    pub fn sweep(&self, series: &str, options: SweepOptions) -> Result<SweepReport> {
        let mut edit = Edit::begin(self, self.series_id(series), series)?;
        let report = edit.sweep(options)?;
        edit.finish()?;
        Ok(report)
    }
}

impl Edit<'_> {
    /// Replaces the dead lists by one that is exact.
    pub(crate) fn sweep(&mut self, options: SweepOptions) -> Result<SweepReport> {
        self.sweep_and_commit(options, false)
    }

    /// The same; commits in any case if the head `is_changed` already.
    pub(super) fn sweep_and_commit(
        &mut self,
        options: SweepOptions,
        is_changed: bool,
    ) -> Result<SweepReport> {
        let repository = self.repository;
        let objects = &repository.objects;
        let living = self.living()?;
        let mut swept = dead(self, &living, options)?;
        let known = match dead::read(objects, self.head.series, &self.head.dead) {
            // It is about to be replaced.
            Err(error) if is_damage(&error) => DeadSlots::default(),
            other => other?,
        };
        let known_ranges: HashMap<u32, Vec<DeadRange>> =
            known.by_container().map(|(number, ranges)| (number, ranges.to_vec())).collect();
        let is_new = |range: &DeadRange, slot| {
            known_ranges.get(&range.container).is_none_or(|known| !dead::holds(known, slot))
        };
        let new = swept.dead.ranges().iter().map(|range| {
            (range.first..=range.last).filter(|slot| is_new(range, *slot)).count() as u64
        });
        swept.report.leaked_slots = new.sum();
        let bases = self.needed_bases(&swept.dead)?;
        let kept = bases.intersection(&swept.dead).slots();
        swept.report.dead_slots = swept.report.dead_slots.saturating_sub(kept);
        swept.dead = swept.dead.without(&bases);
        let has_bases = match self.bases() {
            Err(error) if is_damage(&error) => false,
            other => other? == bases,
        };
        let is_known = swept.report.leaked_slots == 0 && swept.dead.slots() == known.slots();
        let living_chunks = swept.report.slots - swept.report.dead_slots;
        let is_resized = self.resize_vectors(living_chunks);
        if !has_bases {
            self.set_bases(&bases)?;
        }
        if is_changed
            || !is_known
            || !has_bases
            || is_resized
            || self.head.leak != silt_format::LeakForecast::default()
        {
            let list = dead::write(objects, self.head.series, &swept.dead)?;
            self.head.dead = list.into_iter().collect();
            self.head.leak = silt_format::LeakForecast::default();
            self.commit()?;
        }
        Ok(swept.report)
    }

    /// Gives the vectors to come another size if the series has outgrown theirs, or fills a small
    /// part of it; whether it did.
    fn resize_vectors(&mut self, living_chunks: u64) -> bool {
        let Some(geometry) = self.head.summary else { return false };
        let capacity = geometry.capacity();
        if living_chunks <= capacity && capacity / 4 <= living_chunks.max(CHUNKS_RESIZED_MIN) {
            return false;
        }
        self.head.summary = Some(SummaryGeometry::for_references(living_chunks));
        self.head.summary != Some(geometry)
    }
}

/// The slots of all containers that no snapshot of `living` refers to.
///
/// Fails if anything of a living snapshot cannot be read: what it refers to must not count as dead.
pub(crate) fn dead(
    edit: &mut Edit<'_>,
    living: &[Snapshot],
    options: SweepOptions,
) -> Result<Swept> {
    assert!(
        edit.head.runs.is_empty(),
        "the shared store has no snapshots; it cannot be swept like a series"
    );
    require_listed(&edit.repository.objects, &edit.head)?;
    let mut report = SweepReport::default();
    let mut dead = Vec::new();
    let containers: Vec<(u32, ObjectTag)> = edit.head.containers.iter().collect();
    let window = options.window(containers.len());
    let bits_bytes = silt_format::number::to_u64(window) * CONTAINER_BITS_BYTES;
    let objects = &edit.repository.objects;
    let _place = objects.room.place(bits_bytes);
    for window in containers.chunks(window) {
        edit.keep()?;
        report.phases += 1;
        let range = window[0].0..=window[window.len() - 1].0;
        let mut marks: HashMap<u32, Vec<u64>> = HashMap::new();
        report.recipes += each_reference(edit, living, &mut |container, slot| {
            if range.contains(&container) {
                let bits = marks.entry(container).or_default();
                let word = usize::from(slot / 64);
                if bits.len() <= word {
                    bits.resize(word + 1, 0);
                }
                bits[word] |= 1 << (slot % 64);
            }
        })?;
        for (number, tag) in window {
            let bits = marks.get(number).map_or(&[][..], Vec::as_slice);
            sweep(edit, *number, *tag, bits, &mut report, &mut dead)?;
        }
    }
    Ok(Swept { dead: DeadSlots::of(dead), report })
}

/// Adds the slots of a container that are not marked to `dead`.
fn sweep(
    edit: &Edit<'_>,
    number: u32,
    tag: ObjectTag,
    bits: &[u64],
    report: &mut SweepReport,
    dead: &mut Vec<DeadRange>,
) -> Result<()> {
    let repository = edit.repository;
    let opened = open_container(&repository.objects, edit.head.series, number, tag);
    let container = match opened {
        Ok(container) => container,
        Err(error) if is_damage(&error) => {
            if bits.is_empty() {
                // Nothing refers to it.
                dead.push(DeadRange::whole(number));
            } else {
                repository.warn(Warning::after(&error, "it is not changed"));
            }
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    for slot in container.directory.slot_numbers() {
        report.slots += 1;
        let is_marked = bits.get(usize::from(slot / 64)).is_some_and(|w| w >> (slot % 64) & 1 != 0);
        if is_marked {
            continue;
        }
        report.dead_slots += 1;
        match dead.last_mut() {
            Some(last)
                if last.container == number && u32::from(last.last) + 1 == u32::from(slot) =>
            {
                last.last = slot;
            }
            _ => dead.push(DeadRange { container: number, first: slot, last: slot }),
        }
    }
    Ok(())
}

/// Calls `visit` with the container and slot of every private reference of `living`; recipes shared
/// with the snapshot before are read once. Returns the number of recipes read.
fn each_reference(
    edit: &Edit<'_>,
    living: &[Snapshot],
    visit: &mut dyn FnMut(u32, u16),
) -> Result<u64> {
    let reader = MapReader::new(&edit.repository.objects, &edit.head);
    let (mut scratch, mut raw, mut recipes) = (Scratch::default(), Vec::new(), 0);
    each_unshared(&reader, living, &mut |_| {}, &mut |block| {
        edit.repository.objects.context.check_interrupted()?;
        recipes += 1;
        let recipe = reader.recipe(block, &mut scratch, &mut raw)?;
        for reference in recipe.chunks.iter().map(|chunk| chunk.reference) {
            if !reference.is_zero() && reference.store() == PRIVATE_STORE {
                visit(reference.container(), reference.slot());
            }
        }
        Ok(())
    })?;
    Ok(recipes)
}

/// The recipe packs that snapshots refer to.
pub(crate) fn living_packs(
    repository: &Repository,
    head: &Head,
    snapshots: &[Snapshot],
) -> Result<BTreeSet<u32>> {
    let reader = MapReader::new(&repository.objects, head);
    let mut packs = BTreeSet::new();
    let mut recipes = BTreeSet::new();
    let mut on_page = |page: BlockRef| {
        packs.insert(page.pack);
    };
    each_unshared(&reader, snapshots, &mut on_page, &mut |block| {
        recipes.insert(block.pack);
        Ok(())
    })?;
    packs.append(&mut recipes);
    let (trees, mut seen) = (TreeReader::new(&repository.objects, head), HashSet::new());
    for volume in snapshots.iter().flat_map(|snapshot| &snapshot.volumes) {
        let VolumeKind::Tree(tree) = &volume.kind else { continue };
        trees.each_page(&tree.root, &mut seen, &mut |page, _| {
            packs.insert(page.pack);
            repository.objects.context.check_interrupted()
        })?;
    }
    Ok(packs)
}
