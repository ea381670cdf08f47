//! Follows every snapshot of a series down to the slots of its chunks.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use silt_format::number::to_u64;
use silt_format::{
    BlockRef, ByteSpan, DamagedSlots, Error, Head, MapRoot, ObjectKind, ObjectTag, PAGE_ENTRIES,
    PRIVATE_STORE, Page, RecipeChunk, Reference, Result, SEGMENT_BYTES, SegmentEntry, Snapshot,
    SnapshotEntry, SummaryRef, Volume, VolumeKind, names,
};
use silt_repository::check_record::RecordState;
use silt_repository::chunks::ChunkReader;
use silt_repository::event::{Activity, Progress};
use silt_repository::map::{MapReader, Once};
use silt_repository::objects::{Address, Objects, Scratch, is_damage};
use silt_repository::stores::is_away;
use silt_repository::summary::verify_summary;
use silt_repository::tree::TreeReader;
use silt_runs::avoided::Avoided;

use super::damage::Findings;
use super::missing::Compared;
use super::paths::Hurt;
use super::{CheckOptions, CheckReport, DataCheck, VolumePath, lists, unreferenced};
use crate::repository::Repository;

const IT_IS_MISSING: &str = "it is missing";

/// Checks that all that a series' living snapshots name is there and fits together.
pub(crate) fn verify(
    repository: &Repository,
    head: &Head,
    options: &CheckOptions,
    state: &mut RecordState,
    report: &mut CheckReport,
    findings: &mut Findings,
) -> Result<()> {
    let objects = &repository.objects;
    let missing = verify_objects(objects, head, report, findings)?;
    lists::verify(objects, head, options, findings)?;
    let mut noted = note_missing(&missing.containers, state);
    let mut walk = Walk {
        repository,
        head,
        reader: MapReader::new(objects, head),
        chunks: ChunkReader::new(objects, head, objects.context.budget(0))?,
        avoided: Avoided::new(&state.record, &objects.store_check_records(head)?),
        scratch: Scratch::default(),
        raw: Vec::new(),
        recipes: 0,
        once: Once::default(),
        findings,
        missing,
        trees: TreeReader::new(objects, head),
        hurt: Hurt::default(),
        is_thorough: options.data == DataCheck::All,
        tree_pages: HashSet::new(),
        newly_damaged: BTreeMap::new(),
        needed: HashSet::new(),
        is_blind: false,
        damaged_recipes: Vec::new(),
        away: lost_nodes(repository),
    };
    let mut previous: Option<Snapshot> = None;
    let (mut summaries, mut is_readable) = (HashSet::new(), true);
    let total = Some(to_u64(head.snapshots.len()));
    for (done, entry) in (0..).zip(&head.snapshots) {
        objects.context.check_interrupted()?;
        objects.context.report(Progress::objects(Activity::CheckStructure, done, total));
        let Some(snapshot) = walk.snapshot(entry)? else {
            is_readable = false;
            continue;
        };
        report.snapshots += 1;
        for volume in &snapshot.volumes {
            let before = previous.as_ref().and_then(|previous| {
                previous.volumes.iter().find(|before| before.name == volume.name)
            });
            walk.volume(&snapshot, volume, before)?;
        }
        if let Some(summary) = snapshot.summary.filter(|summary| summaries.insert(summary.id)) {
            walk.summary(&snapshot, summary, options.data == DataCheck::All)?;
        }
        previous = Some(snapshot);
    }
    report.recipes += walk.recipes;
    walk.record(state, &mut noted, is_readable);
    report.unreferenced +=
        unreferenced::beside_data(repository, head, is_readable.then_some(summaries))?;
    Ok(())
}

/// The nodes that were given up, though there may be references to their chunks.
fn lost_nodes(repository: &Repository) -> HashMap<u16, String> {
    let lost = repository.nodes().iter().filter(|node| node.is_lost());
    lost.map(|node| (node.number, "it was lost".to_owned())).collect()
}

/// All slots that a container can have.
fn whole(container: u32, tag: ObjectTag) -> DamagedSlots {
    DamagedSlots { container, tag, first: 0, last: u16::MAX }
}

/// Compares the objects that a head lists with those that exist.
struct Missing {
    containers: Compared,
    packs: Compared,
}

/// Checks that every container and pack that a head names is there, and reads the packs'
/// directories.
fn verify_objects(
    objects: &Objects,
    head: &Head,
    report: &mut CheckReport,
    findings: &mut Findings,
) -> Result<Missing> {
    let series = head.series;
    let missing = Missing {
        containers: Compared::new(objects, names::containers(series), &head.containers)?,
        packs: Compared::new(objects, names::recipes(series), &head.packs)?,
    };
    for compared in [&missing.containers, &missing.packs] {
        report.unreferenced += compared.unreferenced;
        compared.missing().for_each(|name| findings.object(&name, IT_IS_MISSING));
    }
    for (number, tag) in missing.packs.listed.iter().copied() {
        let name = names::pack(series, number, tag);
        let address = Address::tagged(ObjectKind::Recipes, series, number, tag);
        let read = objects.read_blocks(&name, address);
        let read = read.and_then(|(pack, _)| objects.require_beginning(&pack));
        findings.note_if_damaged(read, &name)?;
    }
    Ok(missing)
}

/// Notes containers that are missing in the check record; returns which of them it has now.
fn note_missing(containers: &Compared, state: &mut RecordState) -> HashSet<u32> {
    let damaged = &mut state.record.damaged;
    let known: HashSet<(u32, ObjectTag)> = damaged
        .iter()
        .filter(|slots| (slots.first, slots.last) == (0, u16::MAX))
        .map(|slots| (slots.container, slots.tag))
        .collect();
    let mut noted = HashSet::new();
    for (number, tag) in containers.to_note() {
        if !known.contains(&(number, tag)) {
            damaged.push(whole(number, tag));
        }
        noted.insert(number);
    }
    noted
}

pub(super) struct Walk<'a> {
    pub(super) repository: &'a Repository,
    head: &'a Head,
    pub(super) reader: MapReader,
    chunks: ChunkReader,
    avoided: Avoided,
    scratch: Scratch,
    raw: Vec<u8>,
    recipes: u64,
    /// What of the volume was met.
    once: Once,
    pub(super) findings: &'a mut Findings,
    missing: Missing,
    pub(super) trees: TreeReader,
    /// What is damaged of the current volume, if it is a tree.
    pub(super) hurt: Hurt,
    /// Whether what snapshots share is looked at for each of them.
    pub(super) is_thorough: bool,
    /// Pages of directories that were found whole: pack and offset.
    pub(super) tree_pages: HashSet<(u32, u32)>,
    newly_damaged: BTreeMap<u32, (ObjectTag, Vec<u16>)>,
    /// Private containers of which a damaged chunk is needed.
    needed: HashSet<u32>,
    /// Whether references could not be read, so that more may be needed.
    is_blind: bool,
    damaged_recipes: Vec<BlockRef>,
    /// The nodes that can't be reached, or are lost, and why.
    away: HashMap<u16, String>,
}

impl Walk<'_> {
    /// Records the damage that was found; `noted` are the missing containers that the record has.
    fn record(self, state: &mut RecordState, noted: &mut HashSet<u32>, is_readable: bool) {
        state.record.damaged_blocks = self.damaged_recipes;
        for (container, (tag, mut slots)) in self.newly_damaged {
            if self.missing.containers.missing_name(container).is_some() {
                if noted.insert(container) {
                    state.record.damaged.push(whole(container, tag));
                }
                continue;
            }
            slots.sort_unstable();
            slots.dedup();
            let slots = slots.into_iter();
            let ranges = slots.map(|slot| DamagedSlots { container, tag, first: slot, last: slot });
            state.record.damaged.extend(ranges);
        }
        // What is shared is needed by other series.
        let is_store = self.repository.is_store(self.head.series);
        let is_known = is_readable && !self.is_blind && !is_store;
        let damaged = state.record.damaged.iter().map(|slots| (slots.container, slots.tag));
        let unneeded: BTreeSet<_> =
            damaged.filter(|(container, _)| is_known && !self.needed.contains(container)).collect();
        state.record.unneeded = unneeded.into_iter().collect();
    }

    fn snapshot(&mut self, entry: &SnapshotEntry) -> Result<Option<Snapshot>> {
        match self.repository.snapshot(self.head.series, entry) {
            Ok(snapshot) => Ok(Some(snapshot)),
            Err(error) if is_damage(&error) => {
                let id = entry.id;
                let object = names::snapshot(self.head.series, id);
                let (error, series) = (error.to_string(), &self.head.name);
                self.findings.whole_snapshot(&object, &error, series, id);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn volume(
        &mut self,
        snapshot: &Snapshot,
        volume: &Volume,
        before: Option<&Volume>,
    ) -> Result<()> {
        let series = self.head.name.clone();
        let place = VolumePath {
            series: &series,
            snapshot: snapshot.id,
            volume: &volume.name,
            is_tree: matches!(volume.kind, VolumeKind::Tree(_)),
        };
        self.once = Once::default();
        self.hurt = Hurt::default();
        if let VolumeKind::Tree(tree) = &volume.kind {
            self.tree(tree, volume)?;
        }
        if let Some(page) = volume.root.page {
            self.page(page, volume.root.level, 0, volume, before, place)?;
        }
        match &volume.kind {
            VolumeKind::Tree(tree) if !self.hurt.is_empty() => self.name_paths(tree, volume, place),
            _ => Ok(()),
        }
    }

    /// Checks a page and what is below it; `first` is its first segment.
    fn page(
        &mut self,
        block: BlockRef,
        level: u8,
        first: u64,
        volume: &Volume,
        before: Option<&Volume>,
        place: VolumePath<'_>,
    ) -> Result<()> {
        let step = (PAGE_ENTRIES as u64).saturating_pow(u32::from(level));
        let covered = step.saturating_mul(PAGE_ENTRIES as u64);
        let shared = before.and_then(|before| {
            self.reader.page_ref(before.root, level, first / covered).ok().flatten()
        });
        // What the snapshot before shares was checked with it, and was whole if nothing was found.
        if shared == Some(block) && self.is_whole() {
            return Ok(());
        }
        self.repository.objects.context.check_interrupted()?;
        let page = match self.once.meet(block).and_then(|()| self.reader.page(block, level)) {
            Ok(page) => page,
            Err(error) => return self.damaged(block, &error, span(first, covered, volume), place),
        };
        match &*page {
            Page::Branch(_, entries) => {
                for (i, child) in (0_u64..).zip(entries) {
                    let Some(child) = child else { continue };
                    self.page(*child, level - 1, first + i * step, volume, before, place)?;
                }
            }
            Page::Leaf(entries) => {
                for (segment, entry) in (first..).zip(entries) {
                    let Some(entry) = entry else { continue };
                    let old =
                        before.and_then(|b| self.reader.entry(b.root, segment).ok().flatten());
                    if old
                        .is_some_and(|old| (old.recipe, old.digest) == (entry.recipe, entry.digest))
                        && self.is_whole()
                    {
                        continue;
                    }
                    self.repository.objects.context.check_interrupted()?;
                    if let Err(error) = self.once.meet(entry.recipe) {
                        let left = covered - (segment - first);
                        return self.damaged(block, &error, span(segment, left, volume), place);
                    }
                    self.recipe(entry, span(segment, 1, volume), place)?;
                }
            }
        }
        Ok(())
    }

    fn summary(&mut self, snapshot: &Snapshot, summary: SummaryRef, is_all: bool) -> Result<()> {
        let (objects, series) = (&self.repository.objects, self.head.series);
        let roots: Vec<MapRoot> = snapshot.volumes.iter().map(|v| v.root).collect();
        let whole = is_all && self.findings.is_empty();
        let references = whole.then_some((&self.reader, &roots[..]));
        let read = verify_summary(objects, series, summary, references);
        self.findings.note_if_damaged(read, &names::summary(series, summary.id, 0))
    }

    pub(super) fn is_whole(&self) -> bool {
        self.findings.is_empty() && self.avoided.is_empty()
    }

    fn damaged(
        &mut self,
        block: BlockRef,
        error: &Error,
        span: ByteSpan,
        place: VolumePath<'_>,
    ) -> Result<()> {
        if !is_damage(error) {
            return Err(Error::new(error.kind(), error.to_string()));
        }
        self.is_blind = true;
        self.note_span(&self.pack_name(block), &error.to_string(), place, span);
        Ok(())
    }

    /// Notes that a damaged object holds a range of a volume.
    fn note_span(&mut self, object: &str, error: &str, place: VolumePath<'_>, span: ByteSpan) {
        self.findings.span(object, error, place, span);
        if place.is_tree {
            self.hurt.add(object, span);
        }
    }

    /// The name of a block's pack, or of the run of missing ones that it is in.
    pub(super) fn pack_name(&self, block: BlockRef) -> String {
        let tag = self.head.packs.tag(block.pack).unwrap_or(ObjectTag::NONE);
        let object = self.missing.packs.missing_name(block.pack);
        object.unwrap_or_else(|| names::pack(self.head.series, block.pack, tag))
    }

    fn recipe(
        &mut self,
        entry: &SegmentEntry,
        span: ByteSpan,
        place: VolumePath<'_>,
    ) -> Result<()> {
        let block = entry.recipe;
        let recipe = match self.reader.segment_recipe(entry, &mut self.scratch, &mut self.raw) {
            Ok(recipe) => recipe,
            Err(error) => {
                if is_damage(&error) && !self.damaged_recipes.contains(&block) {
                    self.damaged_recipes.push(block);
                }
                return self.damaged(block, &error, span, place);
            }
        };
        self.recipes += 1;
        let bytes = u64::from(recipe.segment_bytes());
        if bytes != span.length {
            let error = Error::corrupt(format!(
                "the recipe at offset {} describes {bytes} bytes, but its segment has {}",
                block.offset, span.length
            ));
            return self.damaged(block, &error, span, place);
        }
        let mut offset = span.offset;
        for chunk in &recipe.chunks {
            let here = ByteSpan { offset, length: u64::from(chunk.length) };
            offset += here.length;
            if chunk.reference.is_zero() {
                continue;
            }
            let store = chunk.reference.store();
            if self.away.contains_key(&store) {
                self.note_away(store, place, here);
                continue;
            }
            let found = self.chunk_error(chunk).and_then(|error| match error {
                Some(error) => Ok(Some((chunk.reference, error))),
                None => self.base_error(chunk.reference),
            });
            let (wrong, error) = match found {
                Ok(None) => continue,
                Ok(Some(found)) => found,
                Err(error) if is_damage(&error) => (chunk.reference, error.to_string()),
                // All else is checked.
                Err(error) if is_away(&error, store) => {
                    self.findings.away(&self.repository.store(store).shown, &error);
                    self.away.insert(store, error.to_string());
                    self.note_away(store, place, here);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let holder = self.chunks.holder(wrong).unwrap_or(wrong);
            let object = self.missing_name(holder);
            let object = object.unwrap_or_else(|| self.chunks.container_name(holder));
            self.note_span(&object, &error, place, here);
            let is_private = chunk.reference.store() == PRIVATE_STORE;
            if is_private {
                self.needed.extend([chunk.reference.container(), wrong.container()]);
            }
            if is_private && !self.avoided.has(chunk.reference) {
                let number = chunk.reference.container();
                let tag = self.head.containers.tag(number).unwrap_or(ObjectTag::NONE);
                let slots = self.newly_damaged.entry(number).or_insert((tag, Vec::new()));
                slots.1.push(chunk.reference.slot());
            }
        }
        Ok(())
    }

    /// Notes that a node that can't be reached has a range of a volume.
    fn note_away(&mut self, store: u16, place: VolumePath<'_>, span: ByteSpan) {
        let error = self.away.get(&store).cloned().unwrap_or_default();
        self.note_span(&self.repository.store(store).shown, &error, place, span);
    }

    /// What a private container is called that is missing.
    fn missing_name(&self, reference: Reference) -> Option<String> {
        let is_private = reference.store() == PRIVATE_STORE;
        is_private.then(|| self.missing.containers.missing_name(reference.container())).flatten()
    }

    /// What is wrong with the place that a recipe's chunk names.
    fn chunk_error(&self, chunk: &RecipeChunk) -> Result<Option<String>> {
        let damaged = |slot| Ok(Some(format!("slot {slot} is damaged")));
        if self.avoided.has(chunk.reference) {
            return damaged(chunk.reference.slot());
        }
        if self.missing_name(chunk.reference).is_some() {
            return Ok(Some(IT_IS_MISSING.to_owned()));
        }
        let holder = self.chunks.holder(chunk.reference)?;
        let slot = holder.slot();
        if self.avoided.has(holder) {
            return damaged(slot);
        }
        let Some((found, length)) = self.chunks.content(holder)? else {
            return Ok(Some(format!("it has no slot {slot}")));
        };
        if found != chunk.fingerprint || length != chunk.length {
            return Ok(Some(format!(
                "slot {slot} holds {found} of {length} bytes, but a recipe expects {} of {}",
                chunk.fingerprint, chunk.length
            )));
        }
        Ok(None)
    }

    /// The slot that the delta of a chunk is applied to, if that slot is damaged, and how.
    fn base_error(&self, reference: Reference) -> Result<Option<(Reference, String)>> {
        let holder = self.chunks.holder(reference)?;
        let Some(base) = self.chunks.base(holder)? else { return Ok(None) };
        let of =
            format!("slot {} of container {:08x} is a delta", holder.slot(), holder.container());
        if base.store() != PRIVATE_STORE || reference.store() != PRIVATE_STORE {
            return Ok(Some((holder, format!("{of} between stores"))));
        }
        let is_whole = || -> Result<bool> {
            let is_chunk = self.chunks.content(base)?.is_some();
            Ok(is_chunk && self.chunks.base(base)?.is_none())
        };
        let error = if self.missing_name(base).is_some() {
            Some(IT_IS_MISSING.to_owned())
        } else if self.avoided.has(base) {
            Some(format!("slot {} is damaged", base.slot()))
        } else {
            match is_whole() {
                Ok(true) => None,
                Ok(false) => Some(format!("slot {} is no whole chunk", base.slot())),
                Err(error) if is_damage(&error) => Some(error.to_string()),
                Err(error) => return Err(error),
            }
        };
        Ok(error.map(|error| (base, format!("{error}, and {of} of it"))))
    }
}

/// The bytes of `count` segments from `first` on, as far as the volume goes.
fn span(first: u64, count: u64, volume: &Volume) -> ByteSpan {
    let offset = first.saturating_mul(to_u64(SEGMENT_BYTES));
    let length = count.saturating_mul(to_u64(SEGMENT_BYTES));
    ByteSpan { offset, length: length.min(volume.bytes.saturating_sub(offset)) }
}
