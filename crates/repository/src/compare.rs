//! Differences between two snapshots of a volume.

use crate::budget::MEMORY_BYTES_MIN;
use crate::map::Once;
use crate::volume_reader::{ReadBuffers, VolumeReader};
use silt_format::number::to_u64;
use silt_format::{ByteSpan, Recipe, Result, SEGMENT_BYTES, SegmentEntry};

use crate::repository::{FoundVolume, Repository};

/// The differences between two states of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeDiff {
    /// The ranges whose content differs, in offset order, adjacent ones merged. Everything past the
    /// end of the shorter volume differs.
    pub spans: Vec<ByteSpan>,
    /// Bytes in all ranges.
    pub bytes: u64,
}

impl VolumeDiff {
    fn add(&mut self, offset: u64, length: u64) {
        self.bytes += length;
        match self.spans.last_mut() {
            Some(last) if last.offset + last.length == offset => last.length += length,
            _ => self.spans.push(ByteSpan { offset, length }),
        }
    }
}

impl Repository {
    /// Compares volume `old` of one snapshot with volume `new` of another, by fingerprints alone.
    pub fn diff(&self, old: FoundVolume<'_>, new: FoundVolume<'_>) -> Result<VolumeDiff> {
        old.require_disk()?;
        new.require_disk()?;
        let old_reader = VolumeReader::open(self, old, MEMORY_BYTES_MIN)?;
        let new_reader = VolumeReader::open(self, new, MEMORY_BYTES_MIN)?;
        let mut diff = VolumeDiff::default();
        let mut buffers = ReadBuffers::default();
        let (mut old_once, mut new_once) = (Once::default(), Once::default());
        let mut at = 0;
        loop {
            self.objects.context.check_interrupted()?;
            let old_next = old_reader.next_segment(at)?;
            let new_next = new_reader.next_segment(at)?;
            let indices = [old_next, new_next].into_iter().flatten().map(|(index, _)| index);
            let Some(index) = indices.min() else { break };
            let here = |next: Option<(u64, SegmentEntry)>| {
                next.filter(|(found, _)| *found == index).map(|(_, entry)| entry)
            };
            let (old_entry, new_entry) = (here(old_next), here(new_next));
            old_entry.map_or(Ok(()), |entry| old_once.meet(entry.recipe))?;
            new_entry.map_or(Ok(()), |entry| new_once.meet(entry.recipe))?;
            at = index + 1;
            let same = match (old_entry, new_entry) {
                (Some(old), Some(new)) => new.digest.is_known() && old.digest == new.digest,
                _ => false,
            };
            if same {
                continue;
            }
            let mut recipe = |reader: &VolumeReader, entry: Option<SegmentEntry>| match entry {
                Some(entry) => reader.recipe(index, &entry, &mut buffers).map(Some),
                None => Ok(None),
            };
            let old_recipe = recipe(&old_reader, old_entry)?;
            let new_recipe = recipe(&new_reader, new_entry)?;
            let start = index * to_u64(SEGMENT_BYTES);
            compare(start, old_recipe.as_ref(), new_recipe.as_ref(), &mut diff);
        }
        let (old, new) = (old.volume().bytes, new.volume().bytes);
        let (shorter, longer) = (old.min(new), old.max(new));
        diff.spans.retain(|span| span.offset < shorter);
        if let Some(last) = diff.spans.last_mut() {
            last.length = last.length.min(shorter - last.offset);
        }
        diff.bytes = diff.spans.iter().map(|span| span.length).sum();
        if longer > shorter {
            diff.add(shorter, longer - shorter);
        }
        Ok(diff)
    }
}

/// A stretch of a volume, and which ranges of it may differ from another state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedStretch {
    /// End of the stretch; it begins at the requested offset.
    pub end: u64,
    /// The ranges that may differ, in offset order. Elsewhere the bytes are the same.
    pub spans: Vec<ByteSpan>,
}

/// Returns the ranges of `new` from `offset` on that may differ from `old`. Compares the two maps;
/// reads no data.
///
/// The stretch is as long as can be determined from one read of the maps, and ends at the end of
/// `offset`'s segment or of the volume at the earliest. Everything beyond the end of `old` counts
/// as different. Both readers must be of one series. Returns `None` at the end of `new`.
pub fn changed_stretch(
    old: &VolumeReader,
    new: &VolumeReader,
    offset: u64,
) -> Result<Option<ChangedStretch>> {
    let (old_bytes, new_bytes) = (old.bytes(), new.bytes());
    if offset >= new_bytes {
        return Ok(None);
    }
    if offset >= old_bytes {
        let span = ByteSpan { offset, length: new_bytes - offset };
        return Ok(Some(ChangedStretch { end: new_bytes, spans: vec![span] }));
    }
    let shared = old_bytes.min(new_bytes);
    let index = offset / to_u64(SEGMENT_BYTES);
    let (old_next, new_next) = (old.next_segment(index)?, new.next_segment(index)?);
    let indices = [&old_next, &new_next].into_iter().flatten().map(|(found, _)| *found);
    let next = indices.min().unwrap_or(u64::MAX);
    if next > index {
        // Zeros in both.
        let end = next.saturating_mul(to_u64(SEGMENT_BYTES)).min(shared);
        return Ok(Some(ChangedStretch { end, spans: Vec::new() }));
    }
    let here = |next: Option<(u64, SegmentEntry)>| {
        next.filter(|(found, _)| *found == index).map(|(_, entry)| entry)
    };
    let (old_entry, new_entry) = (here(old_next), here(new_next));
    let start = index * to_u64(SEGMENT_BYTES);
    let end = (start + to_u64(SEGMENT_BYTES)).min(shared);
    let is_same = match (&old_entry, &new_entry) {
        (Some(old), Some(new)) => {
            old.recipe == new.recipe || (new.digest.is_known() && old.digest == new.digest)
        }
        _ => false,
    };
    if is_same {
        return Ok(Some(ChangedStretch { end, spans: Vec::new() }));
    }
    let mut buffers = ReadBuffers::default();
    let mut recipe = |reader: &VolumeReader, entry: Option<SegmentEntry>| {
        entry.map(|entry| reader.recipe(index, &entry, &mut buffers)).transpose()
    };
    let (old_recipe, new_recipe) = (recipe(old, old_entry)?, recipe(new, new_entry)?);
    let mut diff = VolumeDiff::default();
    compare(start, old_recipe.as_ref(), new_recipe.as_ref(), &mut diff);
    let clipped = diff.spans.iter().filter_map(|span| {
        let (from, to) = (span.offset.max(offset), (span.offset + span.length).min(end));
        (from < to).then(|| ByteSpan { offset: from, length: to - from })
    });
    Ok(Some(ChangedStretch { end, spans: clipped.collect() }))
}

/// Compares two segments chunk by chunk; where they are cut differently, the stretch up to the next
/// common cut differs as a whole.
fn compare(start: u64, old: Option<&Recipe>, new: Option<&Recipe>, diff: &mut VolumeDiff) {
    let chunks = |recipe: Option<&Recipe>| -> Vec<(u64, u64, [u8; 20], bool)> {
        let mut offset = 0;
        let chunks = recipe.map_or(&[][..], |recipe| &recipe.chunks);
        let place = |chunk: &silt_format::RecipeChunk| {
            let from = offset;
            offset += u64::from(chunk.length);
            (from, u64::from(chunk.length), chunk.fingerprint.0, chunk.reference.is_zero())
        };
        chunks.iter().map(place).collect()
    };
    let (old, new) = (chunks(old), chunks(new));
    let is_zero_at = |side: &[(u64, u64, [u8; 20], bool)], offset: u64, length: u64| {
        let inside = side.iter().filter(|c| c.0 < offset + length && offset < c.0 + c.1);
        inside.into_iter().all(|chunk| chunk.3)
    };
    for (offset, length, print, zero) in &new {
        let equal = if *zero {
            is_zero_at(&old, *offset, *length)
        } else {
            let at = old.partition_point(|chunk| chunk.0 < *offset);
            old.get(at).is_some_and(|o| (o.0, o.1, o.2, o.3) == (*offset, *length, *print, false))
        };
        if !equal {
            diff.add(start + offset, *length);
        }
    }
    let new_end = new.last().map_or(0, |chunk| chunk.0 + chunk.1);
    for (offset, length, _, zero) in &old {
        if *offset >= new_end && !zero {
            diff.add(start + offset, *length);
        }
    }
}
