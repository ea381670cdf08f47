//! Which segments of a volume have data: a file must not refer to others.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use silt_format::number::to_usize;
use silt_format::{BlockRef, MapRoot, PAGE_ENTRIES, Page, Result, SegmentEntry};
use silt_repository::cache::WeightedCache;
use silt_repository::map::MapReader;
use silt_repository::packs::PackWriter;

/// Size of the pages that are held, in bytes.
const PAGES_BYTES: usize = 1 << 20;
const PAGE_WEIGHT: usize = PAGE_ENTRIES * size_of::<Option<SegmentEntry>>();
/// Maximum number of runs that are remembered. A source that makes more of them pays with segments
/// between.
const RUNS_MAX: usize = 4096;

/// Looks segments up in a map whose pages may not be stored yet.
pub(super) struct Coverage {
    reader: Arc<MapReader>,
    root: MapRoot,
    pages: WeightedCache<BlockRef, Arc<Page>>,
    /// Runs of segments that were found to have data, by their first one: the end.
    runs: BTreeMap<u64, u64>,
}

impl Coverage {
    pub fn new(reader: &Arc<MapReader>, root: MapRoot) -> Self {
        let pages = WeightedCache::new(PAGES_BYTES);
        Self { reader: Arc::clone(reader), root, pages, runs: BTreeMap::new() }
    }

    /// Returns the first of these segments that has no data.
    pub fn first_without_data(
        &mut self,
        segments: Range<u64>,
        packs: &PackWriter,
    ) -> Result<Option<u64>> {
        let mut at = segments.start;
        while at < segments.end {
            let run = self.runs.range(..=at).next_back();
            if let Some((_, end)) = run.filter(|(_, end)| **end > at) {
                at = *end;
                continue;
            }
            if !self.has_data(at, packs)? {
                return Ok(Some(at));
            }
            self.remember(at);
            at += 1;
        }
        Ok(None)
    }

    fn remember(&mut self, segment: u64) {
        if self.runs.len() >= RUNS_MAX {
            self.runs.clear();
        }
        let end = self.runs.remove(&(segment + 1)).unwrap_or(segment + 1);
        match self.runs.range_mut(..segment).next_back() {
            Some((_, before)) if *before == segment => *before = end,
            _ => drop(self.runs.insert(segment, end)),
        }
    }

    fn has_data(&mut self, segment: u64, packs: &PackWriter) -> Result<bool> {
        let mut at = self.root.page;
        for level in (0..=self.root.level).rev() {
            let Some(block) = at else { return Ok(false) };
            let index = segment / (PAGE_ENTRIES as u64).pow(u32::from(level));
            let place = to_usize(index % PAGE_ENTRIES as u64);
            match &*self.page(block, level, packs)? {
                Page::Leaf(entries) => return Ok(entries.get(place).is_some_and(Option::is_some)),
                Page::Branch(_, entries) => at = entries.get(place).copied().flatten(),
            }
        }
        Ok(false)
    }

    fn page(&mut self, block: BlockRef, level: u8, packs: &PackWriter) -> Result<Arc<Page>> {
        if let Some(page) = self.pages.get(&block) {
            return Ok(page);
        }
        let page = match packs.pending(block)? {
            Some(raw) => Arc::new(Page::decode(&raw, level)?),
            None => self.reader.page(block, level)?,
        };
        self.pages.insert(block, Arc::clone(&page), PAGE_WEIGHT);
        Ok(page)
    }
}
