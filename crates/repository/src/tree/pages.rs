//! Random access to the entries of a directory: by name, or from a name on.

use std::sync::{Arc, Mutex};

use silt_format::tree::{Entry, TreePage};
use silt_format::{BlockRef, Error, Result};

use super::volume::TreeVolume;
use crate::cache::WeightedCache;
use crate::sync::lock;

/// Maximum size in bytes of the decoded pages that an open tree keeps.
const PAGES_BYTES: usize = 2 << 20;

/// The decoded pages of directories that were used last.
pub struct PageCache(Mutex<WeightedCache<BlockRef, Arc<TreePage>>>);

impl PageCache {
    pub fn new() -> Self {
        Self(Mutex::new(WeightedCache::new(PAGES_BYTES)))
    }
}

/// Returns the approximate memory of an entry in bytes.
fn weight(entry: &Entry) -> usize {
    let metadata = &entry.metadata;
    let xattrs = metadata.xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len());
    size_of::<Entry>()
        + entry.name.len()
        + metadata.target.len()
        + size_of_val(entry.extents.as_slice())
        + xattrs.sum::<usize>()
}

fn page_weight(page: &TreePage) -> usize {
    match page {
        TreePage::Leaf(entries) => entries.iter().map(weight).sum(),
        TreePage::Branch(_, children) => {
            children.iter().map(|child| size_of_val(child) + child.first.len()).sum()
        }
    }
}

impl TreeVolume {
    /// Returns the entry `name` of a directory; `None` if there is none. Reads at most one page of
    /// each level. The pages used last stay in memory.
    pub fn entry_in(&self, directory: &Entry, name: &[u8]) -> Result<Option<Entry>> {
        let Some(subtree) = &directory.subtree else { return Ok(None) };
        let (mut block, mut level) = (subtree.page, subtree.level);
        loop {
            match &*self.page(block, level)? {
                TreePage::Leaf(entries) => {
                    let place = entries.binary_search_by(|entry| entry.name.as_slice().cmp(name));
                    return Ok(place.ok().map(|place| entries[place].clone()));
                }
                TreePage::Branch(_, children) => {
                    let behind = children.partition_point(|child| child.first.as_slice() <= name);
                    let Some(place) = behind.checked_sub(1) else { return Ok(None) };
                    (block, level) = (children[place].page, level - 1);
                }
            }
        }
    }

    /// Returns the entries of a directory after the name `after`; from its beginning if `after` is
    /// empty. Returns at most `count_max` entries of together about `bytes_max` bytes of memory; an
    /// empty list means the end of the directory.
    ///
    /// If a page cannot be read, returns the entries before it; fails if there are none.
    pub fn entries_after(
        &self,
        directory: &Entry,
        after: &[u8],
        count_max: usize,
        bytes_max: usize,
    ) -> Result<Vec<Entry>> {
        let mut part = Part { after, count_max, bytes_max, bytes: 0, entries: Vec::new() };
        let Some(subtree) = &directory.subtree else { return Ok(Vec::new()) };
        match self.collect(subtree.page, subtree.level, &mut part) {
            Err(error) if part.entries.is_empty() => Err(error),
            _ => Ok(part.entries),
        }
    }

    /// Adds the entries of a page to `part`. Returns `false` once it is full.
    fn collect(&self, block: BlockRef, level: u8, part: &mut Part<'_>) -> Result<bool> {
        let page = self.page(block, level)?;
        match &*page {
            TreePage::Leaf(entries) => {
                let start = entries.partition_point(|entry| entry.name.as_slice() <= part.after);
                for entry in &entries[start..] {
                    if part.is_full() {
                        return Ok(false);
                    }
                    part.push(entry)?;
                }
            }
            TreePage::Branch(_, children) => {
                let start = children.partition_point(|child| child.first.as_slice() <= part.after);
                for child in &children[start.saturating_sub(1)..] {
                    if part.is_full() || !self.collect(child.page, level - 1, part)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    fn page(&self, block: BlockRef, level: u8) -> Result<Arc<TreePage>> {
        if let Some(page) = lock(&self.pages.0).get(&block)
            && page_level(&page) == level
        {
            return Ok(page);
        }
        let page = Arc::new(self.reader.page(block, level)?);
        lock(&self.pages.0).insert(block, Arc::clone(&page), page_weight(&page));
        Ok(page)
    }
}

fn page_level(page: &TreePage) -> u8 {
    match page {
        TreePage::Leaf(_) => 0,
        TreePage::Branch(level, _) => *level,
    }
}

/// Entries that are being collected.
struct Part<'p> {
    after: &'p [u8],
    count_max: usize,
    bytes_max: usize,
    bytes: usize,
    entries: Vec<Entry>,
}

impl Part<'_> {
    fn is_full(&self) -> bool {
        self.entries.len() >= self.count_max
            || (self.bytes >= self.bytes_max && !self.entries.is_empty())
    }

    fn push(&mut self, entry: &Entry) -> Result<()> {
        if self.entries.last().is_some_and(|last| last.name >= entry.name) {
            return Err(Error::corrupt("the pages of a directory are not in order"));
        }
        self.bytes += weight(entry);
        self.entries.push(entry.clone());
        Ok(())
    }
}
