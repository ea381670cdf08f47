//! The map of a tree's volume: the parent's segments that are still used, and the new ones.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::{
    BlockKind, BlockRef, MapRoot, PAGE_ENTRIES, Page, Recipe, Result, SEGMENT_BYTES, SegmentEntry,
};
use silt_repository::map::MapReader;
use silt_repository::objects::{Scratch, is_damage};
use silt_repository::packs::PackWriter;
use silt_repository::sync::lock;
use silt_runs::avoided::Avoided;

use crate::map_builder::MapBuilder;
use crate::parent::ParentVolume;

/// A segment is sparse if files refer to less than half of it, and to fewer bytes than this.
const SPARSE_BYTES: u32 = 1 << 20;
/// Maximum number of segments that a backup examines for being sparse.
const EXAMINED_MAX: usize = 4096;
/// Sparse segments are repacked once files refer to this many bytes in them.
const REPACK_BYTES: u64 = 2 << 20;
const PAGE_SEGMENTS: u64 = PAGE_ENTRIES as u64;

/// The segments of the parent's tree.
pub(crate) struct OldSegments {
    reader: Arc<MapReader>,
    root: MapRoot,
    /// Number of segments that the parent's map covers.
    pub(crate) count: u64,
    /// Sparse segments: their files are read and stored again.
    repack: HashSet<u64>,
    avoided: Arc<Avoided>,
    /// Results of [`is_usable`](Self::is_usable).
    usable: Mutex<HashMap<u64, bool>>,
}

/// Maximum number of results that are remembered.
const REMEMBERED_MAX: usize = 65_536;

impl OldSegments {
    pub(crate) fn new(
        reader: Arc<MapReader>,
        root: MapRoot,
        count: u64,
        repack: &[u64],
        avoided: Arc<Avoided>,
    ) -> Self {
        let repack = repack.iter().copied().collect();
        Self { reader, root, count, repack, avoided, usable: Mutex::default() }
    }

    /// Returns whether all of these segments can be reused: each is in the map, none is known to be
    /// damaged, and none is to be repacked.
    pub(crate) fn are_usable(&self, segments: impl Iterator<Item = u64>) -> Result<bool> {
        for segment in segments {
            let known = lock(&self.usable).get(&segment).copied();
            let is_usable = if let Some(known) = known {
                known
            } else {
                let found = self.is_usable(segment)?;
                let mut usable = lock(&self.usable);
                if usable.len() >= REMEMBERED_MAX {
                    usable.clear();
                }
                usable.insert(segment, found);
                found
            };
            if !is_usable {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn is_usable(&self, segment: u64) -> Result<bool> {
        if self.repack.contains(&segment) {
            return Ok(false);
        }
        let Some(entry) = self.entry(segment)? else { return Ok(false) };
        if self.avoided.is_empty() {
            return Ok(true);
        }
        if self.avoided.has_recipe(entry.recipe) {
            return Ok(false);
        }
        match self.reader.segment_recipe(&entry, &mut Scratch::default(), &mut Vec::new()) {
            Ok(recipe) => Ok(!recipe.chunks.iter().any(|chunk| self.avoided.has(chunk.reference))),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the parent's entry of a segment; `None` if the map is damaged there.
    pub(crate) fn entry(&self, segment: u64) -> Result<Option<SegmentEntry>> {
        match self.reader.entry(self.root, segment) {
            Err(error) if is_damage(&error) => Ok(None),
            found => found,
        }
    }

    /// Returns the recipe of a segment; `None` if the segment cannot be reused.
    pub(crate) fn recipe(&self, segment: u64) -> Result<Option<Recipe>> {
        if !self.are_usable([segment].into_iter())? {
            return Ok(None);
        }
        let Some(entry) = self.entry(segment)? else { return Ok(None) };
        match self.reader.segment_recipe(&entry, &mut Scratch::default(), &mut Vec::new()) {
            Ok(recipe) => Ok(Some(recipe)),
            Err(error) if is_damage(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the bytes of a segment without the padding after its last file; 0 if it cannot be
    /// reused.
    fn content_bytes(&self, segment: u64) -> Result<u64> {
        let Some(recipe) = self.recipe(segment)? else { return Ok(0) };
        let behind = recipe.chunks.last().filter(|last| last.reference.is_zero());
        let behind = behind.map_or(0, |last| last.length);
        Ok(u64::from(recipe.segment_bytes() - behind))
    }

    /// Returns the map page with this number, and the reference to it.
    fn leaf(&self, leaf: u64) -> Result<Option<(BlockRef, Arc<Page>)>> {
        let Some(block) = self.reader.page_ref(self.root, 0, leaf)? else { return Ok(None) };
        Ok(Some((block, self.reader.page(block, 0)?)))
    }
}

/// The segments that a snapshot of a tree refers to.
pub(crate) struct NewMap {
    /// One bit for each of the parent's segments: whether a file refers to it.
    kept: Vec<u64>,
    /// The number of the first new segment: new segments begin with a new page of the map.
    first: u64,
    leaf: Vec<Option<SegmentEntry>>,
    leaves: Vec<BlockRef>,
    /// Number of bytes that files refer to, by segment.
    live: HashMap<u64, u32>,
}

impl NewMap {
    pub(crate) fn new(old: &OldSegments) -> Self {
        let first = old.count.next_multiple_of(PAGE_SEGMENTS);
        Self {
            kept: vec![0; to_usize(old.count.div_ceil(64))],
            first,
            leaf: Vec::new(),
            leaves: Vec::new(),
            live: HashMap::new(),
        }
    }

    /// Adds a new segment and returns its number.
    pub(crate) fn add(&mut self, entry: SegmentEntry, packs: &mut PackWriter) -> Result<u64> {
        let number = self.next();
        self.leaf.push(Some(entry));
        if self.leaf.len() == PAGE_ENTRIES {
            self.end_leaf(packs)?;
        }
        Ok(number)
    }

    fn next(&self) -> u64 {
        self.first + to_u64(self.leaves.len()) * PAGE_SEGMENTS + to_u64(self.leaf.len())
    }

    fn end_leaf(&mut self, packs: &mut PackWriter) -> Result<()> {
        let page = Page::Leaf(std::mem::take(&mut self.leaf));
        self.leaves.push(packs.append(BlockKind::Page, &page.encode())?);
        Ok(())
    }

    /// Counts bytes of a segment that a file refers to.
    pub(crate) fn refer(&mut self, segment: u64, bytes: u64) {
        if let Some(bits) = self.kept.get_mut(to_usize(segment / 64)) {
            *bits |= 1 << (segment % 64);
        }
        let live = self.live.entry(segment).or_default();
        *live = live.saturating_add(to_u32(to_usize(bytes)));
    }

    fn is_kept(&self, segment: u64) -> bool {
        self.kept.get(to_usize(segment / 64)).is_some_and(|bits| bits & 1 << (segment % 64) != 0)
    }

    /// Writes the map. Returns its root, the number of bytes that it covers, and the sparse
    /// segments that the next backup should repack.
    pub(crate) fn finish(
        mut self,
        old: &OldSegments,
        packs: &mut PackWriter,
    ) -> Result<(MapRoot, u64, Vec<u64>)> {
        let mut count = self.next();
        if !self.leaf.is_empty() {
            self.end_leaf(packs)?;
        }
        let parent = ParentVolume { reader: Arc::clone(&old.reader), root: old.root };
        let mut map = MapBuilder::new();
        let old_leaves = self.first / PAGE_SEGMENTS;
        let mut last = None;
        for leaf in 0..old_leaves {
            let block = self.old_leaf(old, leaf, packs)?;
            last = if block.is_some() { Some(leaf) } else { last };
            map.take_leaf(block, packs, Some(&parent))?;
        }
        if self.leaves.is_empty() {
            // No segment is new: with the same end as before, the parent's pages can be shared.
            count = if last.is_some() { old.count } else { 0 };
        }
        for block in std::mem::take(&mut self.leaves) {
            map.take_leaf(Some(block), packs, Some(&parent))?;
        }
        let bytes = count * to_u64(SEGMENT_BYTES);
        let root = map.finish(bytes, packs, Some(&parent))?;
        let sparse = self.sparse(old)?;
        Ok((root, bytes, sparse))
    }

    /// Writes the parent's page without the segments that no file refers to any more. Returns the
    /// reference to it; `None` if no segment is left.
    fn old_leaf(
        &self,
        old: &OldSegments,
        leaf: u64,
        packs: &mut PackWriter,
    ) -> Result<Option<BlockRef>> {
        let first = leaf * PAGE_SEGMENTS;
        if !(first..first + PAGE_SEGMENTS).any(|segment| self.is_kept(segment)) {
            return Ok(None);
        }
        let Some((block, page)) = old.leaf(leaf)? else { return Ok(None) };
        let Page::Leaf(entries) = &*page else { return Ok(None) };
        let stays = |(segment, entry): (u64, &Option<SegmentEntry>)| {
            entry.filter(|_| self.is_kept(segment))
        };
        let mut left: Vec<_> = (first..).zip(entries).map(stays).collect();
        if left == *entries {
            return Ok(Some(block));
        }
        while left.last().is_some_and(Option::is_none) {
            left.pop();
        }
        packs.append(BlockKind::Page, &Page::Leaf(left).encode()).map(Some)
    }

    /// Returns the sparse segments of the parent, in ascending order; none if repacking them is not
    /// worth it. A small segment that is fully used is not sparse.
    fn sparse(&self, old: &OldSegments) -> Result<Vec<u64>> {
        let mut candidates: Vec<(u32, u64)> = self
            .live
            .iter()
            .filter(|(segment, live)| **segment < self.first && **live < SPARSE_BYTES)
            .map(|(segment, live)| (*live, *segment))
            .collect();
        candidates.sort_unstable();
        candidates.truncate(EXAMINED_MAX);
        let (mut sparse, mut bytes) = (Vec::new(), 0);
        for (live, segment) in candidates {
            if old.content_bytes(segment)? / 2 > u64::from(live) {
                sparse.push(segment);
                bytes += u64::from(live);
            }
        }
        if bytes < REPACK_BYTES || sparse.len() < 2 {
            return Ok(Vec::new());
        }
        sparse.sort_unstable();
        Ok(sparse)
    }
}

const _: () = assert!(EXAMINED_MAX <= silt_format::tree::SPARSE_SEGMENTS_MAX);
