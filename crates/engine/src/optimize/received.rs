//! Deltas of chunks that a replication has brought as deltas.
//!
//! Nothing is searched for: the replication has said which parts of the parent these chunks
//! resemble. A delta on the wire is made of many chunks together, so deltas for the store are
//! computed anew.

use std::collections::BTreeSet;

use silt_backup::ReceivedBases;
use silt_format::number::{to_u64, to_usize};
use silt_format::{ObjectTag, Result, SEGMENT_BYTES, Volume};
use silt_repository::map::MapReader;
use silt_repository::objects::{Scratch, is_damage};
use silt_repository::volume_reader::{Placed, placed};

use super::{OptimizeOptions, OptimizeReport};
use crate::edit::Edit;
use crate::repository::Repository;

impl Repository {
    /// Stores chunks of the containers that a replication has just written as deltas, as
    /// [`optimize`](Self::optimize) does; their bases are chunks that its deltas were made from,
    /// and other new chunks. The series' lease is held meanwhile.
    ///
    /// If the parent is gone by now, only new chunks can be bases. Fails as `optimize` does.
    pub fn optimize_received(
        &self,
        received: &ReceivedBases,
        options: &OptimizeOptions,
    ) -> Result<OptimizeReport> {
        self.make_deltas((received.series, &received.name), options, Some(received))
    }
}

impl Edit<'_> {
    /// The containers of a replication, as it has written them: those without deltas and links.
    pub(super) fn received_containers(&self, received: &ReceivedBases) -> Vec<(u32, ObjectTag)> {
        let ranges = self.head.containers.ranges().iter().filter(|range| {
            *range.numbers().end() >= received.first_container && !range.tag.is_rewritten()
        });
        let numbers = ranges.flat_map(|range| range.numbers().map(|number| (number, range.tag)));
        numbers.filter(|(number, _)| *number >= received.first_container).collect()
    }

    /// The chunks of the parent that lie in the received ranges, at least by half. What of it is
    /// gone or damaged is left out.
    pub(super) fn chunks_of(&self, received: &ReceivedBases) -> Result<BTreeSet<u64>> {
        let mut chunks = BTreeSet::new();
        let is_parent = |id| Some(id) == received.parent;
        let entry = self.head.snapshots.iter().find(|entry| is_parent(entry.id));
        let Some(entry) = entry else { return Ok(chunks) };
        let parent = match self.repository.snapshot(self.head.series, entry) {
            Err(error) if is_damage(&error) => return Ok(chunks),
            other => other?,
        };
        let map = MapReader::new(&self.repository.objects, &self.head);
        for (name, ranges) in received.volumes() {
            let volume = parent.volumes.iter().find(|volume| volume.name == *name);
            let Some(volume) = volume else { continue };
            let mut segments = Segments { map: &map, volume, last: None };
            let mut ranges: Vec<(u64, u64)> =
                ranges.iter().map(|base| (base.offset, u64::from(base.length))).collect();
            ranges.sort_unstable();
            for (start, length) in ranges {
                self.repository.objects.context.check_interrupted()?;
                segments.add(start, start.saturating_add(length).min(volume.bytes), &mut chunks)?;
            }
        }
        Ok(chunks)
    }
}

/// The chunks of a volume, by their places.
struct Segments<'m> {
    map: &'m MapReader,
    volume: &'m Volume,
    last: Option<(u64, Vec<Placed>)>,
}

impl Segments<'_> {
    /// Adds the chunks that lie in a range of the volume, at least by half.
    fn add(&mut self, start: u64, end: u64, chunks: &mut BTreeSet<u64>) -> Result<()> {
        let segment_bytes = to_u64(SEGMENT_BYTES);
        for segment in start / segment_bytes..end.div_ceil(segment_bytes) {
            let at = segment * segment_bytes;
            let range = to_usize(start.saturating_sub(at))..to_usize(end - at);
            for (chunk, place) in self.placed(segment)? {
                let within = place.end.min(range.end).saturating_sub(place.start.max(range.start));
                if !chunk.reference.is_zero() && 2 * within >= place.len() {
                    chunks.insert(chunk.reference.bits());
                }
            }
        }
        Ok(())
    }

    /// The chunks of a segment; none if they can't be read.
    fn placed(&mut self, segment: u64) -> Result<&[Placed]> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != segment) {
            let (mut scratch, mut raw) = (Scratch::default(), Vec::new());
            let entry = self.map.entry(self.volume.root, segment);
            let recipe = entry.and_then(|entry| {
                entry
                    .map(|entry| self.map.segment_recipe(&entry, &mut scratch, &mut raw))
                    .transpose()
            });
            let recipe = match recipe {
                Err(error) if is_damage(&error) => None,
                other => other?,
            };
            let all = recipe.iter().flat_map(placed).collect();
            self.last = Some((segment, all));
        }
        Ok(self.last.as_ref().map_or(&[], |(_, all)| all))
    }
}
