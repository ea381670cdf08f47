//! Builds a volume's map; shares every unchanged page with the parent.

use std::ops::Range;
use std::sync::Arc;

use silt_format::{
    BlockKind, BlockRef, MapRoot, PAGE_ENTRIES, PAGE_LEVELS_MAX, Page, Result, SegmentEntry,
    root_level, segment_count,
};
use silt_repository::objects::is_damage;
use silt_repository::packs::PackWriter;

use super::parent::ParentVolume;

/// Takes a volume's segments in order and writes the pages of its map.
pub(crate) struct MapBuilder {
    leaf: Vec<Option<SegmentEntry>>,
    leaves: u64,
    /// For each level above the leaves: the entries of the page being filled, and its index.
    branches: Vec<(Vec<Option<BlockRef>>, u64)>,
}

impl MapBuilder {
    pub(crate) fn new() -> Self {
        let branches = (0..PAGE_LEVELS_MAX).map(|_| (Vec::new(), 0)).collect();
        Self { leaf: Vec::new(), leaves: 0, branches }
    }

    /// Adds the next segment; `None` is zeros.
    pub(crate) fn push(
        &mut self,
        entry: Option<SegmentEntry>,
        packs: &mut PackWriter,
        parent: Option<&ParentVolume>,
    ) -> Result<()> {
        self.leaf.push(entry);
        if self.leaf.len() == PAGE_ENTRIES {
            self.end_leaf(packs, parent)?;
        }
        Ok(())
    }

    /// Adds this many segments of zeros. Most go by whole pages, so that a peer's claim of a huge
    /// volume costs little time.
    pub(crate) fn push_zeros(
        &mut self,
        mut count: u64,
        packs: &mut PackWriter,
        parent: Option<&ParentVolume>,
    ) -> Result<()> {
        while count > 0 {
            if self.leaf.is_empty() && count >= PAGE_ENTRIES as u64 {
                self.take_leaf(None, packs, parent)?;
                count -= PAGE_ENTRIES as u64;
            } else {
                self.push(None, packs, parent)?;
                count -= 1;
            }
        }
        Ok(())
    }

    /// Adds segments as in the parent at the same place, which must be the next ones. Whole pages
    /// are read and taken over.
    pub(crate) fn push_parents(
        &mut self,
        segments: Range<u64>,
        packs: &mut PackWriter,
        parent: &ParentVolume,
    ) -> Result<()> {
        let (mut at, page_segments) = (segments.start, PAGE_ENTRIES as u64);
        while at < segments.end {
            if self.leaf.is_empty() && segments.end - at >= page_segments {
                let page = parents_page(parent, 0, at / page_segments)?;
                self.take_leaf(page.map(|(block, _)| block), packs, Some(parent))?;
                at += page_segments;
            } else {
                self.push(parent.reader.entry(parent.root, at)?, packs, Some(parent))?;
                at += 1;
            }
        }
        Ok(())
    }

    /// Adds a leaf that is stored; `None` is zeros. For maps that are built of leaves alone.
    pub(crate) fn take_leaf(
        &mut self,
        block: Option<BlockRef>,
        packs: &mut PackWriter,
        parent: Option<&ParentVolume>,
    ) -> Result<()> {
        self.leaves += 1;
        self.push_branch(1, block, packs, parent)
    }

    fn end_leaf(&mut self, packs: &mut PackWriter, parent: Option<&ParentVolume>) -> Result<()> {
        let page = Page::Leaf(std::mem::take(&mut self.leaf));
        let block = store(&page, 0, self.leaves, packs, parent)?;
        self.leaves += 1;
        self.push_branch(1, block, packs, parent)
    }

    fn push_branch(
        &mut self,
        level: u8,
        block: Option<BlockRef>,
        packs: &mut PackWriter,
        parent: Option<&ParentVolume>,
    ) -> Result<()> {
        let Some((entries, _)) = self.branches.get_mut(usize::from(level) - 1) else {
            return Ok(());
        };
        entries.push(block);
        // The single page of the top level is not ended here: it is the root or below it.
        if entries.len() == PAGE_ENTRIES && level < PAGE_LEVELS_MAX {
            self.end_branch(level, packs, parent)?;
        }
        Ok(())
    }

    fn end_branch(
        &mut self,
        level: u8,
        packs: &mut PackWriter,
        parent: Option<&ParentVolume>,
    ) -> Result<()> {
        let (entries, index) = &mut self.branches[usize::from(level) - 1];
        let page = Page::Branch(level, std::mem::take(entries));
        let at = *index;
        *index += 1;
        let block = store(&page, level, at, packs, parent)?;
        self.push_branch(level + 1, block, packs, parent)
    }

    /// Ends the map of a volume of `volume_bytes` bytes.
    pub(crate) fn finish(
        mut self,
        volume_bytes: u64,
        packs: &mut PackWriter,
        parent: Option<&ParentVolume>,
    ) -> Result<MapRoot> {
        let top = root_level(segment_count(volume_bytes));
        if !self.leaf.is_empty() {
            self.end_leaf(packs, parent)?;
        }
        for level in 1..=top {
            if !self.branches[usize::from(level) - 1].0.is_empty() {
                self.end_branch(level, packs, parent)?;
            }
        }
        let page = self.branches[usize::from(top)].0.first().copied().flatten();
        Ok(MapRoot { level: top, page })
    }
}

/// Writes a page unless it is empty or the parent has the same one in its place.
fn store(
    page: &Page,
    level: u8,
    index: u64,
    packs: &mut PackWriter,
    parent: Option<&ParentVolume>,
) -> Result<Option<BlockRef>> {
    if page.is_empty() {
        return Ok(None);
    }
    if let Some(parent) = parent {
        match parents_page(parent, level, index) {
            Ok(Some((block, theirs))) if *theirs == *page => return Ok(Some(block)),
            Err(error) if !is_damage(&error) => return Err(error),
            // Damage was reported when the scan met it; the page is written afresh.
            _ => {}
        }
    }
    packs.append(BlockKind::Page, &page.encode()).map(Some)
}

fn parents_page(
    parent: &ParentVolume,
    level: u8,
    index: u64,
) -> Result<Option<(BlockRef, Arc<Page>)>> {
    let Some(block) = parent.reader.page_ref(parent.root, level, index)? else { return Ok(None) };
    Ok(Some((block, parent.reader.page(block, level)?)))
}
