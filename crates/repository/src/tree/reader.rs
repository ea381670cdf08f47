//! Reading the pages of directories.

use std::collections::HashSet;
use std::sync::Arc;

use silt_format::tree::{Entry, EntryKind, Subtree, TreeBranch, TreePage};
use silt_format::{BlockKind, BlockRef, Error, ErrorKind, Head, Result, ResultExt};

use super::cursor::Cursor;
use crate::map::MapReader;
use crate::objects::{Objects, Scratch};

/// Reads the pages of one series' trees.
pub struct TreeReader {
    map: Arc<MapReader>,
}

impl TreeReader {
    /// Returns a reader for the recipe packs that this head lists.
    pub fn new(objects: &Arc<Objects>, head: &Head) -> Self {
        Self::of(Arc::new(MapReader::new(objects, head)))
    }

    /// Returns a reader for the same packs as `map`.
    pub fn of(map: Arc<MapReader>) -> Self {
        Self { map }
    }

    /// Reads the page at `block`. Fails with `Corrupt` if its level is not `level`.
    pub fn page(&self, block: BlockRef, level: u8) -> Result<TreePage> {
        let mut raw = Vec::new();
        self.map.block(BlockKind::TreePage, block, &mut Scratch::default(), &mut raw)?;
        TreePage::decode(&raw, level)
            .context(|| format!("read offset {} of recipe pack {:08x}", block.offset, block.pack))
    }

    /// Returns the entries of a directory in the order of their names.
    pub fn entries(&self, directory: &Entry) -> Cursor {
        Cursor::new(directory.subtree.as_ref())
    }

    /// Returns the entries of the directory that has this subtree.
    pub fn entries_below(&self, subtree: &Subtree) -> Cursor {
        Cursor::new(Some(subtree))
    }

    /// Returns the entry `name` of a directory; `None` if there is none. Reads one page of each
    /// level.
    pub fn lookup(&self, directory: &Entry, name: &[u8]) -> Result<Option<Entry>> {
        let Some(subtree) = &directory.subtree else { return Ok(None) };
        let (mut block, mut level) = (subtree.page, subtree.level);
        loop {
            match self.page(block, level)? {
                TreePage::Leaf(mut entries) => {
                    let place = entries.binary_search_by(|entry| entry.name.as_slice().cmp(name));
                    return Ok(place.ok().map(|place| entries.swap_remove(place)));
                }
                TreePage::Branch(_, children) => {
                    let behind = children.partition_point(|child| child.first.as_slice() <= name);
                    let Some(place) = behind.checked_sub(1) else { return Ok(None) };
                    (block, level) = (children[place].page, level - 1);
                }
            }
        }
    }

    /// Returns the entry at a path below `root`. Ignores empty components and `.`.
    ///
    /// Fails with `NotFound` if a component does not exist, and with `Invalid` if one is not a
    /// directory; the message names that component.
    pub fn find(&self, root: &Entry, path: &[u8]) -> Result<Entry> {
        let mut at = root.clone();
        let names = path.split(|byte| *byte == b'/');
        for name in names.filter(|name| !name.is_empty() && *name != b".") {
            if at.metadata.kind != EntryKind::Directory {
                let shown = at.name.escape_ascii();
                return Err(Error::invalid(format!("'{shown}' is not a directory")));
            }
            at = self.lookup(&at, name)?.ok_or_else(|| {
                let (path, name) = (path.escape_ascii(), name.escape_ascii());
                let message = format!("there is no '{path}' in the snapshot: '{name}' is missing");
                Error::new(ErrorKind::NotFound, message)
            })?;
        }
        Ok(at)
    }

    /// Returns the entry at a path below `root`; `None` if there is none, or if a component before
    /// the last is not a directory.
    pub fn look_up(&self, root: &Entry, path: &[u8]) -> Result<Option<Entry>> {
        let mut at = root.clone();
        let names = path.split(|byte| *byte == b'/');
        for name in names.filter(|name| !name.is_empty() && *name != b".") {
            match self.lookup(&at, name)? {
                Some(entry) => at = entry,
                None => return Ok(None),
            }
        }
        Ok(Some(at))
    }

    /// Calls `visit` with every page of a directory and of all directories below it. Adds the pages
    /// to `seen`, as pack and offset. Skips pages that are in `seen`, and everything below them.
    pub fn each_page(
        &self,
        directory: &Entry,
        seen: &mut HashSet<(u32, u32)>,
        visit: &mut dyn FnMut(BlockRef, &TreePage) -> Result<()>,
    ) -> Result<()> {
        let mut left: Vec<(BlockRef, u8)> = Vec::new();
        let push = |left: &mut Vec<_>, subtree: &Option<Subtree>| {
            left.extend(subtree.map(|subtree| (subtree.page, subtree.level)));
        };
        push(&mut left, &directory.subtree);
        while let Some((block, level)) = left.pop() {
            if !seen.insert((block.pack, block.offset)) {
                continue;
            }
            let page = self.page(block, level)?;
            visit(block, &page)?;
            match page {
                TreePage::Leaf(entries) => {
                    entries.iter().for_each(|entry| push(&mut left, &entry.subtree));
                }
                TreePage::Branch(level, children) => {
                    let below = |child: TreeBranch| (child.page, level - 1);
                    left.extend(children.into_iter().map(below));
                }
            }
        }
        Ok(())
    }
}
