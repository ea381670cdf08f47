//! Reusing the parent's content of files that were read and turned out to be unchanged.

use std::collections::HashMap;
use std::ops::Range;

use silt_format::number::{to_u64, to_usize};
use silt_format::{Recipe, Result, SEGMENT_BYTES};

use super::cuts::Cut;
use super::events::TreeEvent;
use super::map::OldSegments;
use crate::draft::DraftChunk;

/// A segment that was cut and fingerprinted.
pub(crate) struct CutSegment<'a> {
    pub(crate) cuts: &'a [Cut],
    pub(crate) chunks: &'a mut Vec<DraftChunk>,
    pub(crate) data: &'a mut Vec<u8>,
    pub(crate) events: &'a mut [TreeEvent],
}

impl CutSegment<'_> {
    /// Removes the files that the parent holds with the same chunks; their events then refer to the
    /// parent's segments. Returns whether it removed any.
    pub(crate) fn leave_out_held(&mut self, old: &OldSegments) -> Result<bool> {
        let mut recipes = Recipes { old, recipes: HashMap::new() };
        let (mut start, mut first, mut parts) = (0, 0, Vec::with_capacity(self.cuts.len()));
        for cut in self.cuts {
            let end = start + cut.bytes;
            let count = self.chunks[first..].partition_point(|chunk| chunk.range.end <= end);
            let chunks = first..first + count;
            let held = match cut.held {
                Some(address) if recipes.hold(address, &self.chunks[chunks.clone()])? => {
                    Some(address)
                }
                _ => None,
            };
            parts.push(Part { bytes: start..end, chunks, held });
            (start, first) = (end, first + count);
        }
        if parts.iter().all(|part| part.held.is_none()) {
            return Ok(false);
        }
        self.refer(&parts);
        self.compact(&parts);
        Ok(true)
    }

    /// Updates the events: pieces refer to the parent's segments, or to their new place.
    fn refer(&mut self, parts: &[Part]) {
        let (mut at, mut left_out) = (0, 0);
        for event in self.events.iter_mut() {
            let TreeEvent::Piece { start, bytes } = *event else { continue };
            while parts[at].bytes.end <= start {
                left_out += parts[at].left_out();
                at += 1;
            }
            let part = &parts[at];
            *event = match part.held {
                Some(address) => {
                    let address = address + to_u64(start - part.bytes.start);
                    TreeEvent::Held { address, bytes }
                }
                None => TreeEvent::Piece { start: start - left_out, bytes },
            };
        }
    }

    /// Removes the bytes and chunks of the files that the parent holds.
    fn compact(&mut self, parts: &[Part]) {
        let (mut chunks, mut end) = (Vec::with_capacity(self.chunks.len()), 0);
        for part in parts.iter().filter(|part| part.held.is_none()) {
            let moved = part.bytes.start - end;
            self.data.copy_within(part.bytes.clone(), end);
            for mut chunk in self.chunks[part.chunks.clone()].iter().cloned() {
                chunk.range = chunk.range.start - moved..chunk.range.end - moved;
                chunks.push(chunk);
            }
            end += part.bytes.len();
        }
        self.data.truncate(end);
        *self.chunks = chunks;
    }
}

/// The part of a segment that belongs to one file.
struct Part {
    bytes: Range<usize>,
    chunks: Range<usize>,
    held: Option<u64>,
}

impl Part {
    fn left_out(&self) -> usize {
        if self.held.is_some() { self.bytes.len() } else { 0 }
    }
}

/// Recipes of the parent's segments, with the offset at which each chunk begins.
struct Recipes<'a> {
    old: &'a OldSegments,
    recipes: HashMap<u64, Option<(Recipe, Vec<usize>)>>,
}

impl Recipes<'_> {
    /// Returns whether the parent has exactly these chunks at an address.
    fn hold(&mut self, address: u64, chunks: &[DraftChunk]) -> Result<bool> {
        let segment = address / to_u64(SEGMENT_BYTES);
        let found = match self.recipes.entry(segment) {
            std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(self.old.recipe(segment)?.map(with_starts))
            }
        };
        let Some((recipe, starts)) = found else { return Ok(false) };
        let start = to_usize(address % to_u64(SEGMENT_BYTES));
        let Ok(first) = starts.binary_search(&start) else { return Ok(false) };
        let Some(held) = recipe.chunks.get(first..first + chunks.len()) else { return Ok(false) };
        let is_same = |(old, new): (&silt_format::RecipeChunk, &DraftChunk)| {
            let is_zero = new.found.is_some();
            old.length as usize == new.range.len()
                && old.reference.is_zero() == is_zero
                && (is_zero || old.fingerprint == new.fingerprint)
        };
        Ok(held.iter().zip(chunks).all(is_same))
    }
}

fn with_starts(recipe: Recipe) -> (Recipe, Vec<usize>) {
    let mut start = 0;
    let starts = recipe.chunks.iter().map(|chunk| {
        let at = start;
        start += chunk.length as usize;
        at
    });
    let starts = starts.collect();
    (recipe, starts)
}
