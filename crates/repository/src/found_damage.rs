//! Damage that reads run into is recorded, so that the next backup does not build upon it.
//!
//! An error of a read may be a false alarm: a bit that flipped on the way, or an object that a
//! reclaim has just removed. So only what a second read finds damaged is recorded, of objects that
//! the newest head lists. A wrong record loses nothing: backups only store again what it names.

use std::sync::Arc;

use silt_chunking::Fingerprinter;
use silt_format::number::to_u16;
use silt_format::{
    Advice, DamagedSlots, Error, ErrorKind, Head, MapRoot, ObjectKind, ObjectTag, PRIVATE_STORE,
    RecipeChunk, Reference, Result, SegmentEntry, SeriesId, names,
};

use crate::check_record::RecordState;
use crate::chunks::{ChunkReader, open_container};
use crate::container_reader::ContainerReader;
use crate::dead::{self, DeadSlots};
use crate::event::Warning;
use crate::heads;
use crate::map::MapReader;
use crate::objects::{Objects, Scratch, is_damage};
use crate::sync::lock;

/// Maximum number of containers and recipe packs that a process examines because of failed reads.
/// Each takes a read of the object and a new check record.
const EXAMINED_MAX: usize = 256;

/// What is damaged of a container.
#[derive(Default)]
pub struct FoundDamage {
    /// The damaged slots.
    pub damaged: Vec<DamagedSlots>,
    /// The first error.
    pub error: Option<Error>,
}

/// Reads a container of a store and verifies every chunk; of deltas that nothing refers to, which
/// are in `dead`, only the seals of their frames, since their bases may be gone.
pub fn verify_container(
    (store, number, tag): (SeriesId, u32, ObjectTag),
    fingerprinter: &Fingerprinter,
    reader: &mut ContainerReader<'_>,
    dead: &DeadSlots,
) -> Result<FoundDamage> {
    let mut found = FoundDamage::default();
    let slots = |first, last| DamagedSlots { container: number, tag, first, last };
    let objects = reader.objects();
    let container = match open_container(objects, store, number, tag) {
        Ok(container) => container,
        Err(error) if is_damage(&error) => {
            found.damaged.push(slots(0, u16::MAX));
            found.error = Some(error);
            return Ok(found);
        }
        Err(error) => return Err(error),
    };
    let directory = &container.directory;
    reader.expect(&container, |_| true);
    for frame in 0..to_u16(directory.frames.len()) {
        let is_readable = match reader.frame(&container, frame) {
            Ok(_) => true,
            Err(error) if is_damage(&error) => {
                found.error.get_or_insert(error);
                false
            }
            Err(error) => return Err(error),
        };
        let runs = directory.runs.iter().filter(|run| run.frame == frame);
        for slot in runs.flat_map(|run| run.first..=run.first + (run.count - 1)) {
            let is_dead = || dead.has(Reference::new(PRIVATE_STORE, number, slot));
            if is_readable && directory.delta(slot).is_some() && is_dead() {
                continue;
            }
            let verified = is_readable.then(|| reader.verified(&container, slot, fingerprinter));
            match verified {
                Some(Ok(_)) => continue,
                Some(Err(error)) if is_damage(&error) => {
                    found.error.get_or_insert(error);
                }
                Some(Err(error)) => return Err(error),
                None => {}
            }
            match found.damaged.last_mut() {
                Some(last) if last.last + 1 == slot => last.last = slot,
                _ => found.damaged.push(slots(slot, slot)),
            }
        }
    }
    // All chunks can be read without it.
    match objects.require_beginning(&container.object) {
        Err(error) if is_damage(&error) => drop(found.error.get_or_insert(error)),
        other => other?,
    }
    Ok(found)
}

/// Records the damage of the container of a chunk that could not be read.
pub fn record_chunk(reader: &ChunkReader, chunk: &RecipeChunk) {
    let objects = reader.objects();
    let holder = reader.holder(chunk.reference).unwrap_or(chunk.reference);
    let Ok(store) = reader.store_id(holder.store()) else { return };
    let object = (ObjectKind::Container, store, holder.container());
    if begin(objects, object) {
        warn_of(objects, examine_container(reader, store, holder, chunk));
    }
    // What is wrong may be the chunk that a delta is applied to.
    let Ok(Some(base)) = reader.base(holder) else { return };
    let Ok(Some((fingerprint, length))) = reader.content(base) else { return };
    let object = (ObjectKind::Container, store, base.container());
    if begin(objects, object) {
        let chunk = RecipeChunk { fingerprint, length, reference: base };
        warn_of(objects, examine_container(reader, store, base, &chunk));
    }
}

/// Records which recipes cannot be read of the pack of a recipe that could not be read; `root` is
/// that of its volume.
pub fn record_recipe(reader: &MapReader, root: MapRoot, entry: &SegmentEntry) {
    let (objects, series) = (reader.objects(), reader.series());
    if begin(objects, (ObjectKind::Recipes, series, entry.recipe.pack)) {
        warn_of(objects, examine_pack(reader, root, entry));
    }
}

/// Whether an object was not examined before by this process.
fn begin(objects: &Objects, object: (ObjectKind, SeriesId, u32)) -> bool {
    let mut examined = lock(&objects.examined);
    let is_new = examined.len() <= EXAMINED_MAX && examined.insert(object);
    if is_new && examined.len() > EXAMINED_MAX {
        let message = "there is more damage than reads record";
        let warning = Warning::new(ErrorKind::Corrupt, message);
        objects.context.warn(warning.with_advice(Advice::CheckData));
        return false;
    }
    is_new
}

fn warn_of(objects: &Objects, result: Result<Option<String>>) {
    match result {
        Ok(Some(message)) => objects.context.warn(Warning::new(ErrorKind::Corrupt, message)),
        Ok(None) => {}
        Err(error) if error.kind() == ErrorKind::Interrupted => {}
        Err(error) => {
            let why = "the damage is not recorded, so the next backup does not know of it";
            objects.context.warn(Warning::after(&error, why).with_advice(Advice::CheckData));
        }
    }
}

/// Returns a message about what was recorded, or why nothing was.
fn examine_container(
    reader: &ChunkReader,
    store: SeriesId,
    holder: Reference,
    chunk: &RecipeChunk,
) -> Result<Option<String>> {
    let objects = reader.objects();
    let number = holder.container();
    let Some(head) = heads::newest(objects, store)? else { return Ok(None) };
    // Otherwise the container was rewritten or dropped meanwhile.
    let Some(tag) = head.containers.tag(number) else { return Ok(None) };
    let name = names::container(store, number, tag);
    let mut verify = ContainerReader::new(objects);
    let dead = dead::read(objects, store, &head.dead)?;
    if holder.store() == PRIVATE_STORE && !head.delta_bases.is_empty() {
        let chunks = ChunkReader::new(objects, &head, objects.context.budget(0))?;
        verify.read_deltas_with(Arc::new(chunks));
    }
    let fingerprinter = reader.fingerprinter();
    let object = (store, number, tag);
    let mut found = verify_container(object, fingerprinter, &mut verify, &dead)?.damaged;
    if found.is_empty() && holder.store() == PRIVATE_STORE {
        let container = open_container(objects, store, number, tag)?;
        let directory = &container.directory;
        let is_as_expected = directory.slot(holder.slot()).is_some_and(|slot| {
            directory.fingerprints[slot.index as usize] == chunk.fingerprint
                && directory.chunk_bytes(holder.slot()) == Some(chunk.length)
        });
        if !is_as_expected {
            let (first, last) = (holder.slot(), holder.slot());
            found.push(DamagedSlots { container: number, tag, first, last });
        }
    }
    if found.is_empty() {
        return Ok(Some(intact_again(&name)));
    }
    if holder.store() == PRIVATE_STORE {
        let mut deltas = deltas_of(objects, &head, &found)?;
        found.append(&mut deltas);
    }
    let mut state = RecordState::read(objects, store)?;
    found.into_iter().for_each(|slots| state.add_slots(slots));
    let mut is_recorded = state.save(objects)?;
    if chunk.reference != holder {
        is_recorded &= record_link(reader, chunk.reference)?;
    }
    Ok(is_recorded.then(|| recorded(&name)))
}

/// The deltas that are applied to damaged slots of a container: as damaged as those.
fn deltas_of(
    objects: &Objects,
    head: &Head,
    damaged: &[DamagedSlots],
) -> Result<Vec<DamagedSlots>> {
    let mut found = Vec::new();
    let is_damaged = |base: Reference| {
        damaged.iter().any(|slots| {
            (slots.container == base.container())
                && (slots.first..=slots.last).contains(&base.slot())
        })
    };
    let containers = head.containers.iter().filter(|(_, tag)| tag.is_rewritten());
    for (container, tag) in containers.filter(|_| !head.delta_bases.is_empty()) {
        let opened = match open_container(objects, head.series, container, tag) {
            Err(error) if is_damage(&error) => continue,
            other => other?,
        };
        let deltas = opened.directory.deltas.iter().filter(|delta| is_damaged(delta.base));
        let slots = deltas.map(|delta| delta.slot);
        found.extend(slots.map(|slot| DamagedSlots { container, tag, first: slot, last: slot }));
    }
    Ok(found)
}

/// Records that the slot of a private container leads to a damaged chunk.
fn record_link(reader: &ChunkReader, reference: Reference) -> Result<bool> {
    let (objects, series) = (reader.objects(), reader.store_id(reference.store())?);
    let (container, first, last) = (reference.container(), reference.slot(), reference.slot());
    let head = heads::newest(objects, series)?;
    let Some(tag) = head.and_then(|head| head.containers.tag(container)) else { return Ok(true) };
    let mut state = RecordState::read(objects, series)?;
    state.add_slots(DamagedSlots { container, tag, first, last });
    state.save(objects)
}

fn examine_pack(reader: &MapReader, root: MapRoot, entry: &SegmentEntry) -> Result<Option<String>> {
    let (objects, series, pack) = (reader.objects(), reader.series(), entry.recipe.pack);
    let head = heads::newest(objects, series)?;
    let Some(tag) = head.and_then(|head| head.packs.tag(pack)) else { return Ok(None) };
    let name = names::pack(series, pack, tag);
    let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
    let mut damaged = Vec::new();
    let walked = reader.walk(root, &mut |_, other| {
        if other.recipe.pack == pack {
            match reader.segment_recipe(other, &mut scratch, &mut raw) {
                Err(error) if is_damage(&error) => damaged.push(other.recipe),
                read => drop(read?),
            }
        }
        Ok(())
    });
    // A page that cannot be read ends the walk; what was found before it counts.
    walked.or_else(|error| if is_damage(&error) { Ok(()) } else { Err(error) })?;
    if damaged.is_empty() {
        return Ok(Some(intact_again(&name)));
    }
    let mut state = RecordState::read(objects, series)?;
    damaged.into_iter().for_each(|recipe| state.add_recipe(recipe));
    Ok(state.save(objects)?.then(|| recorded(&name)))
}

fn recorded(name: &str) -> String {
    format!(
        "{name} is damaged; this is recorded, and the next backup stores again what it needs of it \
         if the source still has it"
    )
}

fn intact_again(name: &str) -> String {
    format!("{name} could not be read, but was intact when it was read again; nothing is recorded")
}
