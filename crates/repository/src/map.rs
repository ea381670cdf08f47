//! Reading a volume's map: pages and recipes, verified and cached.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use silt_chunking::{Fingerprinter, SegmentDigester};
use silt_format::{
    BlockKind, BlockRef, Error, Head, MapRoot, ObjectKind, ObjectSet, ObjectTag, PAGE_ENTRIES,
    Page, Recipe, Result, ResultExt, SegmentEntry, SeriesId, names,
};

use crate::cache::WeightedCache;
use crate::objects::{Address, Objects, OpenObject, Scratch};
use crate::sync::lock;

const OPEN_PACKS_BYTES: usize = 64 << 10;
const OPEN_PACK_WEIGHT: usize = 1 << 10;
const PAGES_BYTES: usize = 1 << 20;
const PAGE_WEIGHT: usize = PAGE_ENTRIES * size_of::<Option<SegmentEntry>>();

/// Returns the digester of a series' segments.
pub fn digester(objects: &Objects, head: &Head) -> SegmentDigester {
    let keys = &objects.keys;
    let fingerprinter = Fingerprinter::new(keys.fingerprint_key(head.domain, head.series));
    SegmentDigester::new(keys.segment_key(head.domain, head.series), fingerprinter)
}

/// Pages that readers of maps keep in memory; any number of readers share one.
pub struct PageCache(Mutex<WeightedCache<(SeriesId, BlockRef), Arc<Page>>>);

impl PageCache {
    /// An empty cache of at most this many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self(Mutex::new(WeightedCache::new(bytes_max)))
    }
}

/// Reads metadata blocks of one series.
pub struct MapReader {
    objects: Arc<Objects>,
    series: SeriesId,
    digester: SegmentDigester,
    packs: Mutex<ObjectSet>,
    open: Mutex<WeightedCache<u32, Arc<OpenObject>>>,
    pages: Arc<PageCache>,
}

impl MapReader {
    /// A reader of the packs that this head lists, with a cache of its own.
    pub fn new(objects: &Arc<Objects>, head: &Head) -> Self {
        Self::sharing(objects, head, Arc::new(PageCache::new(PAGES_BYTES)))
    }

    /// A reader of the packs that this head lists, which keeps their pages in `pages`.
    pub fn sharing(objects: &Arc<Objects>, head: &Head, pages: Arc<PageCache>) -> Self {
        Self {
            objects: Arc::clone(objects),
            series: head.series,
            digester: digester(objects, head),
            packs: Mutex::new(head.packs.clone()),
            open: Mutex::new(WeightedCache::new(OPEN_PACKS_BYTES)),
            pages,
        }
    }

    /// The objects that it reads.
    pub fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    /// The series whose packs it reads.
    pub fn series(&self) -> SeriesId {
        self.series
    }

    /// Lets blocks of a pack be read that no head names yet.
    pub fn add_pack(&self, number: u32, tag: ObjectTag) {
        lock(&self.packs).push(number, tag);
    }

    /// Replaces `raw` by a metadata block, which must be of `kind` and say what its reference was
    /// made for.
    pub fn block(
        &self,
        kind: BlockKind,
        block: BlockRef,
        scratch: &mut Scratch,
        raw: &mut Vec<u8>,
    ) -> Result<()> {
        let pack = self.pack(block.pack)?;
        let range = (block.offset, block.length);
        self.objects.read_block(&pack, range, u64::from(block.offset), scratch, raw)?;
        let what = || format!("the block at offset {} of {}", block.offset, pack.name);
        self.objects.require_hash(kind.into(), raw, block.hash, what)
    }

    fn pack(&self, number: u32) -> Result<Arc<OpenObject>> {
        if let Some(pack) = lock(&self.open).get(&number) {
            return Ok(pack);
        }
        let tag = lock(&self.packs).tag(number).ok_or_else(|| {
            Error::corrupt(format!(
                "recipe pack {number:08x} is referred to, but not listed in the head"
            ))
        })?;
        let name = names::pack(self.series, number, tag);
        let address = Address::tagged(ObjectKind::Recipes, self.series, number, tag);
        let pack = Arc::new(self.objects.open(&name, address)?);
        lock(&self.open).insert(number, Arc::clone(&pack), OPEN_PACK_WEIGHT);
        Ok(pack)
    }

    /// The page at `block`, which must be of `level`.
    pub fn page(&self, block: BlockRef, level: u8) -> Result<Arc<Page>> {
        let key = (self.series, block);
        if let Some(page) = lock(&self.pages.0).get(&key) {
            return Ok(page);
        }
        let mut raw = Vec::new();
        self.block(BlockKind::Page, block, &mut Scratch::default(), &mut raw)?;
        let page = Page::decode(&raw, level).context(|| self.describe(block))?;
        let page = Arc::new(page);
        lock(&self.pages.0).insert(key, Arc::clone(&page), PAGE_WEIGHT);
        Ok(page)
    }

    /// Returns the reference to the page of `level` that covers the `index`-th range of that level,
    /// `None` for zeros.
    pub fn page_ref(&self, root: MapRoot, level: u8, index: u64) -> Result<Option<BlockRef>> {
        let mut at = root.page;
        for above in (level + 1..=root.level).rev() {
            let Some(block) = at else { return Ok(None) };
            let Page::Branch(_, entries) = &*self.page(block, above)? else {
                return Err(Error::corrupt("a branch page is a leaf"));
            };
            let step = below(above - 1 - level);
            at = place(index / step).and_then(|place| entries.get(place).copied().flatten());
        }
        if level > root.level || (level == root.level && index > 0) {
            return Ok(None);
        }
        Ok(at)
    }

    /// Returns the map's entry of a segment, `None` for zeros.
    pub fn entry(&self, root: MapRoot, segment: u64) -> Result<Option<SegmentEntry>> {
        let leaf = segment / PAGE_ENTRIES as u64;
        let Some(block) = self.page_ref(root, 0, leaf)? else { return Ok(None) };
        let Page::Leaf(entries) = &*self.page(block, 0)? else {
            return Err(Error::corrupt("a leaf page is a branch"));
        };
        Ok(place(segment).and_then(|place| entries.get(place).copied().flatten()))
    }

    /// The same if all pages that lead to it are in memory, otherwise `None`.
    pub fn entry_in_memory(&self, root: MapRoot, segment: u64) -> Option<Option<SegmentEntry>> {
        let mut pages = lock(&self.pages.0);
        let mut at = root.page;
        for level in (0..=root.level).rev() {
            let Some(block) = at else { return Some(None) };
            let index = segment / below(level);
            if level == root.level && index >= PAGE_ENTRIES as u64 {
                return Some(None);
            }
            match &*pages.get(&(self.series, block))? {
                Page::Leaf(entries) => return Some(entries.get(place(index)?).copied().flatten()),
                Page::Branch(_, entries) => at = entries.get(place(index)?).copied().flatten(),
            }
        }
        None
    }

    /// Returns the first segment at or after `from` that is not all zeros.
    pub fn next_segment(&self, root: MapRoot, from: u64) -> Result<Option<(u64, SegmentEntry)>> {
        match root.page {
            Some(page) => self.next_below(page, root.level, 0, from),
            None => Ok(None),
        }
    }

    fn next_below(
        &self,
        block: BlockRef,
        level: u8,
        first: u64,
        from: u64,
    ) -> Result<Option<(u64, SegmentEntry)>> {
        let span = below(level);
        let skip = usize::try_from(from.saturating_sub(first) / span).unwrap_or(usize::MAX);
        match &*self.page(block, level)? {
            Page::Leaf(entries) => {
                let found = (0_u64..).zip(entries).skip(skip);
                Ok(found
                    .map(|(i, entry)| (first + i, entry))
                    .find_map(|(i, entry)| entry.map(|entry| (i, entry))))
            }
            Page::Branch(_, entries) => {
                for (i, entry) in (0_u64..).zip(entries).skip(skip) {
                    let Some(child) = entry else { continue };
                    let found = self.next_below(*child, level - 1, first + i * span, from)?;
                    if found.is_some() {
                        return Ok(found);
                    }
                }
                Ok(None)
            }
        }
    }

    /// Calls `visit` with every segment that is not all zeros, in order.
    ///
    /// `Corrupt` if the map refers to a block twice, which no backup does: a few pages could stand
    /// for any number of segments.
    pub fn walk(
        &self,
        root: MapRoot,
        visit: &mut dyn FnMut(u64, &SegmentEntry) -> Result<()>,
    ) -> Result<()> {
        match root.page {
            Some(page) => self.walk_page(page, (root.level, 0), &mut Once::default(), visit),
            None => Ok(()),
        }
    }

    fn walk_page(
        &self,
        block: BlockRef,
        (level, first): (u8, u64),
        once: &mut Once,
        visit: &mut dyn FnMut(u64, &SegmentEntry) -> Result<()>,
    ) -> Result<()> {
        self.objects.context.check_interrupted()?;
        once.meet(block)?;
        match &*self.page(block, level)? {
            Page::Leaf(entries) => {
                for (i, entry) in (0_u64..).zip(entries) {
                    let Some(entry) = entry else { continue };
                    once.meet(entry.recipe)?;
                    visit(first + i, entry)?;
                }
            }
            Page::Branch(_, entries) => {
                for (i, entry) in (0_u64..).zip(entries) {
                    let Some(child) = entry else { continue };
                    let first = first + i * below(level);
                    self.walk_page(*child, (level - 1, first), once, visit)?;
                }
            }
        }
        Ok(())
    }

    /// Calls `visit` with every segment of `root` whose recipe none of `others` has at the same
    /// offset, and `on_page` with every page above them. Pages that `others` share are skipped
    /// without reading.
    pub fn walk_unshared(
        &self,
        root: MapRoot,
        others: &[MapRoot],
        on_page: &mut dyn FnMut(BlockRef),
        visit: &mut dyn FnMut(u64, &SegmentEntry) -> Result<()>,
    ) -> Result<()> {
        match root.page {
            Some(page) => {
                let (place, once) = ((root.level, 0), &mut Once::default());
                self.walk_unshared_page((page, place), once, others, on_page, visit)
            }
            None => Ok(()),
        }
    }

    fn walk_unshared_page(
        &self,
        (block, (level, index)): (BlockRef, (u8, u64)),
        once: &mut Once,
        others: &[MapRoot],
        on_page: &mut dyn FnMut(BlockRef),
        visit: &mut dyn FnMut(u64, &SegmentEntry) -> Result<()>,
    ) -> Result<()> {
        self.objects.context.check_interrupted()?;
        once.meet(block)?;
        let mut beside = Vec::new();
        for other in others {
            // What of another snapshot is damaged counts as not shared.
            let Ok(Some(other)) = self.page_ref(*other, level, index) else { continue };
            if other == block {
                return Ok(());
            }
            beside.extend(self.page(other, level).ok());
        }
        on_page(block);
        let first = index * PAGE_ENTRIES as u64;
        match &*self.page(block, level)? {
            Page::Leaf(entries) => {
                let shares = |page: &Arc<Page>, i: usize, entry: &SegmentEntry| match &**page {
                    Page::Leaf(other) => {
                        other.get(i).is_some_and(|o| o.is_some_and(|o| o.recipe == entry.recipe))
                    }
                    Page::Branch(..) => false,
                };
                for (i, entry) in entries.iter().enumerate() {
                    let Some(entry) = entry else { continue };
                    if !beside.iter().any(|page| shares(page, i, entry)) {
                        once.meet(entry.recipe)?;
                        visit(first + i as u64, entry)?;
                    }
                }
            }
            Page::Branch(_, entries) => {
                for (i, child) in (0_u64..).zip(entries) {
                    let Some(child) = child else { continue };
                    let place = (level - 1, first + i);
                    self.walk_unshared_page((*child, place), once, others, on_page, visit)?;
                }
            }
        }
        Ok(())
    }

    /// The recipe at `block`.
    pub fn recipe(
        &self,
        block: BlockRef,
        scratch: &mut Scratch,
        raw: &mut Vec<u8>,
    ) -> Result<Recipe> {
        self.block(BlockKind::Recipe, block, scratch, raw)?;
        Recipe::decode(raw).context(|| self.describe(block))
    }

    /// Returns the recipe of a segment. Fails with `Corrupt` unless the recipe proves the segment's
    /// digest, because backups reuse segments by their digest alone.
    pub fn segment_recipe(
        &self,
        entry: &SegmentEntry,
        scratch: &mut Scratch,
        raw: &mut Vec<u8>,
    ) -> Result<Recipe> {
        let recipe = self.recipe(entry.recipe, scratch, raw)?;
        if entry.digest.is_known()
            && self.digester.digest_recipe(&recipe, entry.digest.kind) != Some(entry.digest)
        {
            let wrong = Error::corrupt("its segment digest belongs to another segment");
            return Err(wrong.context(self.describe(entry.recipe)));
        }
        Ok(recipe)
    }

    fn describe(&self, block: BlockRef) -> String {
        let tag = lock(&self.packs).tag(block.pack).unwrap_or(ObjectTag::NONE);
        let name = names::pack(self.series, block.pack, tag);
        format!("read offset {} of recipe pack {name}", block.offset)
    }
}

/// The blocks that a walk has met: four bytes each.
#[derive(Default)]
pub struct Once {
    /// By pack, the offsets in ascending order.
    met: HashMap<u32, Vec<u32>>,
}

impl Once {
    /// Notes a block; `Corrupt` if it was met before.
    pub fn meet(&mut self, block: BlockRef) -> Result<()> {
        let offsets = self.met.entry(block.pack).or_default();
        // Blocks were written in the order of the map, so most are behind the last.
        let place = match offsets.last() {
            Some(last) if *last >= block.offset => offsets.binary_search(&block.offset),
            _ => Err(offsets.len()),
        };
        match place {
            Err(place) => {
                offsets.insert(place, block.offset);
                Ok(())
            }
            Ok(_) => Err(Error::corrupt(format!(
                "the map refers twice to the block at offset {} of recipe pack {:08x}, which no \
                 backup does",
                block.offset, block.pack
            ))),
        }
    }
}

/// How many pages a page spans `levels` levels further up.
fn below(levels: u8) -> u64 {
    (PAGE_ENTRIES as u64).saturating_pow(u32::from(levels))
}

/// The place of an index in its page.
fn place(index: u64) -> Option<usize> {
    usize::try_from(index % PAGE_ENTRIES as u64).ok()
}
