//! Reading the entries of a directory in order.

use silt_format::tree::{Entry, Subtree, TreeBranch, TreePage};
use silt_format::{BlockRef, Error, Result};

use super::reader::TreeReader;

/// Iterates over the entries of a directory in the order of their names. Holds one page of each
/// level.
#[derive(Debug, Default)]
pub struct Cursor {
    /// Pages that are still to be read, with their level, from the top level down; each list is
    /// reversed.
    branches: Vec<(u8, Vec<TreeBranch>)>,
    /// The remaining entries of the current page, reversed.
    leaf: Vec<Entry>,
    /// The root page and its level, until it is read.
    root: Option<(BlockRef, u8)>,
    /// Pages that were read since the last [`take_read`](Self::take_read).
    read: Vec<BlockRef>,
    /// The last name of the page read last. The names of the next page must be greater.
    last: Vec<u8>,
}

impl Cursor {
    pub(super) fn new(subtree: Option<&Subtree>) -> Self {
        let root = subtree.map(|subtree| (subtree.page, subtree.level));
        Self { root, ..Self::default() }
    }

    /// Returns the next entry; `None` at the end of the directory.
    ///
    /// Fails if a page cannot be read, with `Corrupt` if names do not ascend from page to page. The
    /// next call continues after that page.
    pub fn next(&mut self, reader: &TreeReader) -> Result<Option<Entry>> {
        if !self.fill(reader)? {
            return Ok(None);
        }
        Ok(self.leaf.pop())
    }

    /// Skips all entries before `name`. Returns the entry `name` if there is one.
    pub fn seek(&mut self, reader: &TreeReader, name: &[u8]) -> Result<Option<Entry>> {
        while self.fill(reader)? {
            let next = self.leaf.last().map(|entry| entry.name.as_slice().cmp(name));
            match next {
                Some(std::cmp::Ordering::Less) => drop(self.leaf.pop()),
                Some(std::cmp::Ordering::Equal) => return Ok(self.leaf.pop()),
                _ => return Ok(None),
            }
        }
        Ok(None)
    }

    /// Skips the next pages as long as they are the same in this cursor and in `other`. Compares
    /// their hashes and does not read them.
    pub fn skip_same(
        &mut self,
        reader: &TreeReader,
        other: &mut Self,
        other_reader: &TreeReader,
    ) -> Result<()> {
        while self.leaf.is_empty() && other.leaf.is_empty() {
            let (Some(here), Some(there)) = (self.peek(), other.peek()) else { break };
            if (here.0.hash, here.1) == (there.0.hash, there.1) {
                self.take_page();
                other.take_page();
                continue;
            }
            let (level, other_level) = (here.1, there.1);
            if level == 0 && other_level == 0 {
                break;
            }
            if level >= other_level {
                self.read_page(reader)?;
            }
            if other_level >= level {
                other.read_page(other_reader)?;
            }
        }
        Ok(())
    }

    /// Returns the pages that were read since the last call.
    pub fn take_read(&mut self) -> Vec<BlockRef> {
        std::mem::take(&mut self.read)
    }

    /// Reads pages until there is an entry. Returns `false` at the end.
    fn fill(&mut self, reader: &TreeReader) -> Result<bool> {
        while self.leaf.is_empty() {
            if !self.read_page(reader)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the next page. Returns `false` at the end. After an error, the next call reads the
    /// page after it.
    fn read_page(&mut self, reader: &TreeReader) -> Result<bool> {
        let Some((block, level)) = self.take_page() else { return Ok(false) };
        let page = reader.page(block, level)?;
        self.read.push(block);
        match page {
            TreePage::Leaf(mut entries) => {
                if entries.first().is_some_and(|first| first.name <= self.last) {
                    return Err(Error::corrupt("the pages of a directory are not in order"));
                }
                if let Some(last) = entries.last() {
                    self.last.clone_from(&last.name);
                }
                entries.reverse();
                self.leaf = entries;
            }
            TreePage::Branch(level, mut children) => {
                children.reverse();
                self.branches.push((level - 1, children));
            }
        }
        Ok(true)
    }

    /// Returns the next page and its level.
    fn peek(&mut self) -> Option<(BlockRef, u8)> {
        if self.root.is_some() {
            return self.root;
        }
        loop {
            let (level, children) = self.branches.last()?;
            match children.last() {
                Some(child) => return Some((child.page, *level)),
                None => drop(self.branches.pop()),
            }
        }
    }

    fn take_page(&mut self) -> Option<(BlockRef, u8)> {
        let next = self.peek()?;
        if self.root.take().is_none()
            && let Some((_, children)) = self.branches.last_mut()
        {
            children.pop();
        }
        Some(next)
    }
}
