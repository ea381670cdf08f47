//! Writing the pages of directories.

use std::collections::HashMap;

use silt_format::tree::{
    Entry, Subtree, TREE_LEVELS_MAX, TREE_PAGE_BYTES_MAX, TreeBranch, TreePage,
};
use silt_format::{BlockKind, BlockRef, ContentHash, Error, Result};

use crate::objects::Objects;
use crate::packs::PackWriter;

/// Minimum size of a page in bytes, except the last of its level.
const PAGE_BYTES_MIN: usize = 16 << 10;
/// A page ends after a name whose hash is divisible by this. The boundaries depend on single names
/// only, so a new name does not shift them.
const NAMES_PER_PAGE: u64 = 256;
/// The same for pages above the leaves, by the first names of the pages below. Doubled for each
/// level.
const PAGES_PER_PAGE: u64 = 256;

/// Writes the pages of a tree's directories. Takes the entries depth-first, in the order of their
/// names. Holds one page of each level of each open directory.
pub struct TreeWriter {
    open: Vec<Directory>,
}

/// A directory whose entries are being added.
struct Directory {
    entry: Entry,
    leaf: Vec<Entry>,
    leaf_bytes: usize,
    /// The last name of the pages that have ended.
    ended: Vec<u8>,
    /// For each level above the leaves: the items of the page that is being filled, and its size in
    /// bytes.
    levels: Vec<(Vec<TreeBranch>, usize)>,
    entries: u64,
    entries_below: u64,
    bytes_below: u64,
    /// Stored pages of this directory, which need not be written again.
    known: HashMap<ContentHash, BlockRef>,
}

impl Default for TreeWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl TreeWriter {
    /// Returns a writer for an empty tree. The first [`enter`](Self::enter) begins its root.
    pub fn new() -> Self {
        Self { open: Vec::new() }
    }

    /// Begins the root, or a directory in the open one. Its entries come next.
    pub fn enter(&mut self, entry: Entry) {
        self.open.push(Directory {
            entry,
            leaf: Vec::new(),
            leaf_bytes: 0,
            ended: Vec::new(),
            levels: Vec::new(),
            entries: 0,
            entries_below: 0,
            bytes_below: 0,
            known: HashMap::new(),
        });
    }

    /// Tells the writer that these pages of the open directory are stored already.
    pub fn know(&mut self, pages: &[BlockRef]) {
        if let Some(directory) = self.open.last_mut() {
            directory.known.extend(pages.iter().map(|page| (page.hash, *page)));
        }
    }

    /// Adds an entry to the open directory. Fails with `Invalid` if its name is not greater than
    /// the one before.
    pub fn add(&mut self, objects: &Objects, packs: &mut PackWriter, entry: Entry) -> Result<()> {
        let Some(directory) = self.open.last_mut() else {
            return Err(Error::invalid("an entry outside of a directory"));
        };
        directory.add(objects, packs, entry)
    }

    /// Ends the open directory and adds it to its parent. Returns the root's entry when the root
    /// ends, otherwise `None`.
    pub fn leave(&mut self, objects: &Objects, packs: &mut PackWriter) -> Result<Option<Entry>> {
        let Some(directory) = self.open.pop() else {
            return Err(Error::invalid("there is no directory to leave"));
        };
        let entry = directory.end(objects, packs)?;
        if self.open.is_empty() {
            return Ok(Some(entry));
        }
        self.add(objects, packs, entry)?;
        Ok(None)
    }
}

impl Directory {
    fn add(&mut self, objects: &Objects, packs: &mut PackWriter, entry: Entry) -> Result<()> {
        let last = self.leaf.last().map_or(&self.ended, |last| &last.name);
        if self.entries > 0 && *last >= entry.name {
            let name = entry.name.escape_ascii();
            return Err(Error::invalid(format!("the entry '{name}' is out of order")));
        }
        self.entries += 1;
        let below = entry.subtree.as_ref();
        self.entries_below += 1 + below.map_or(0, |subtree| subtree.entries_below);
        let bytes_below = below.map_or(0, |subtree| subtree.bytes_below);
        let bytes = entry.metadata.size.checked_add(bytes_below);
        let bytes = bytes.and_then(|bytes| self.bytes_below.checked_add(bytes));
        let too_large = || Error::invalid("the files of a directory have more than 2^64 bytes");
        self.bytes_below = bytes.ok_or_else(too_large)?;
        let bytes = entry.encode().len();
        if !self.leaf.is_empty() && self.leaf_bytes + bytes > TREE_PAGE_BYTES_MAX {
            self.end_leaf(objects, packs)?;
        }
        let ends = is_boundary(&entry.name, NAMES_PER_PAGE);
        self.leaf_bytes += bytes;
        self.leaf.push(entry);
        if ends && self.leaf_bytes >= PAGE_BYTES_MIN {
            self.end_leaf(objects, packs)?;
        }
        Ok(())
    }

    fn end_leaf(&mut self, objects: &Objects, packs: &mut PackWriter) -> Result<()> {
        let entries = std::mem::take(&mut self.leaf);
        self.leaf_bytes = 0;
        if let Some(last) = entries.last() {
            self.ended.clone_from(&last.name);
        }
        let Some(first) = entries.first().map(|entry| entry.name.clone()) else { return Ok(()) };
        let page = self.store(objects, packs, &TreePage::Leaf(entries))?;
        self.push(objects, packs, 1, TreeBranch { first, page })
    }

    /// Adds a page to the one above it, which is of level `level`.
    fn push(
        &mut self,
        objects: &Objects,
        packs: &mut PackWriter,
        level: u8,
        child: TreeBranch,
    ) -> Result<()> {
        if level > TREE_LEVELS_MAX {
            return Err(Error::invalid("a directory has too many entries"));
        }
        let at = usize::from(level) - 1;
        if self.levels.len() == at {
            self.levels.push((Vec::new(), 0));
        }
        let ends = is_boundary(&child.first, PAGES_PER_PAGE << u32::from(level));
        let (items, bytes) = &mut self.levels[at];
        *bytes += child.first.len() + size_of::<BlockRef>();
        items.push(child);
        if (ends && *bytes >= PAGE_BYTES_MIN) || *bytes >= TREE_PAGE_BYTES_MAX {
            self.end_branch(objects, packs, level)?;
        }
        Ok(())
    }

    fn end_branch(&mut self, objects: &Objects, packs: &mut PackWriter, level: u8) -> Result<()> {
        let (items, bytes) = &mut self.levels[usize::from(level) - 1];
        let items = std::mem::take(items);
        *bytes = 0;
        let Some(first) = items.first().map(|item| item.first.clone()) else { return Ok(()) };
        let page = self.store(objects, packs, &TreePage::Branch(level, items))?;
        self.push(objects, packs, level + 1, TreeBranch { first, page })
    }

    /// Ends all pages. Returns the directory's entry, which refers to the top page.
    fn end(mut self, objects: &Objects, packs: &mut PackWriter) -> Result<Entry> {
        self.end_leaf(objects, packs)?;
        let mut level = 1;
        while usize::from(level) <= self.levels.len() {
            let is_top = self.levels.len() == usize::from(level);
            let (items, _) = &mut self.levels[usize::from(level) - 1];
            if is_top && items.len() == 1 {
                let page = items[0].page;
                self.entry.subtree = Some(Subtree {
                    level: level - 1,
                    page,
                    entries: self.entries,
                    entries_below: self.entries_below,
                    bytes_below: self.bytes_below,
                });
                break;
            }
            self.end_branch(objects, packs, level)?;
            level += 1;
        }
        Ok(self.entry)
    }

    /// Writes a page unless it is known to be stored. Returns the reference to it.
    fn store(
        &self,
        objects: &Objects,
        packs: &mut PackWriter,
        page: &TreePage,
    ) -> Result<BlockRef> {
        let raw = page.encode();
        let hash = objects.keys.content_hash(BlockKind::TreePage.into(), &raw);
        match self.known.get(&hash) {
            Some(known) => Ok(*known),
            None => packs.append(BlockKind::TreePage, &raw),
        }
    }
}

/// Returns whether a page may end after this name, which is true for one name in `one_in`.
fn is_boundary(name: &[u8], one_in: u64) -> bool {
    // FNV-1a, and SplitMix64's finaliser, which spreads short names over all bits.
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).is_multiple_of(one_in)
}
