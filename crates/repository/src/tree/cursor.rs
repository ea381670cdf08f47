//! A place in a directory, moving forward.

use silt_format::tree::{Entry, Subtree, TreeBranch, TreePage};
use silt_format::{BlockRef, Error, Result};

use super::reader::TreeReader;

/// Goes through the entries of a directory; holds one page of each level.
#[derive(Debug, Default)]
pub struct Cursor {
    /// Pages that were not read yet, by level from the top; each list is reversed.
    branches: Vec<(u8, Vec<TreeBranch>)>,
    /// Entries of the current page, reversed.
    leaf: Vec<Entry>,
    /// The root page until it is read.
    root: Option<(BlockRef, u8)>,
    /// Pages that were read since they were last taken.
    read: Vec<BlockRef>,
    /// The name returned last, which all others come after.
    last: Vec<u8>,
}

impl Cursor {
    pub(super) fn new(subtree: Option<&Subtree>) -> Self {
        let root = subtree.map(|subtree| (subtree.page, subtree.level));
        Self { root, ..Self::default() }
    }

    /// The next entry; `None` at the end of the directory.
    ///
    /// `Corrupt` if names do not ascend from page to page.
    pub fn next(&mut self, reader: &TreeReader) -> Result<Option<Entry>> {
        if !self.fill(reader)? {
            return Ok(None);
        }
        Ok(self.leaf.pop())
    }

    /// Passes over all entries before `name`, and returns the one of this name if there is one.
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

    /// Passes over pages that come next both here and in `other`, which `other_reader` reads. They
    /// are told by their hashes and not read.
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

    /// The pages that were read since the last call.
    pub fn take_read(&mut self) -> Vec<BlockRef> {
        std::mem::take(&mut self.read)
    }

    /// Reads pages until there is an entry; `false` at the end.
    fn fill(&mut self, reader: &TreeReader) -> Result<bool> {
        while self.leaf.is_empty() {
            if !self.read_page(reader)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads the next page; `false` at the end. A page that can't be read is passed over.
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

    /// The page that comes next, with its level.
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
