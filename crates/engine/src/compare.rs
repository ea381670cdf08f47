//! Differences between two snapshots of a volume.

use silt_format::number::to_u64;
use silt_format::{ByteSpan, Recipe, Result, SEGMENT_BYTES, SegmentEntry};
use silt_repository::FoundVolume;
use silt_repository::budget::MEMORY_BYTES_MIN;
use silt_repository::map::Once;
use silt_repository::volume_reader::{ReadBuffers, VolumeReader};

use crate::repository::Repository;

/// The differences between two states of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeDiff {
    /// The ranges whose content differs, in offset order, merged; beyond the shorter volume all
    /// differs.
    pub spans: Vec<ByteSpan>,
    /// Their bytes.
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
