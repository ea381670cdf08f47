//! Pages of directories: entries in the order of their names, and the pages above them.

use crate::codec::{Decoder, Encoder, unsupported};
use crate::number::to_u16;
use crate::tree::{Entry, NAME_BYTES_MAX};
use crate::{BlockRef, Result};

/// Maximum level of a directory's root page; leaves are on level 0.
pub const TREE_LEVELS_MAX: u8 = 8;
/// Maximum size of a page in bytes, unless it has a single entry.
pub const TREE_PAGE_BYTES_MAX: usize = 128 << 10;
const LAYOUT: u8 = 1;

/// The entries of a directory, and sums over all entries below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subtree {
    /// The level of the root page.
    pub level: u8,
    /// The root page.
    pub page: BlockRef,
    /// Entries of the directory itself.
    pub entries: u64,
    /// Entries of the directory and of all directories below it.
    pub entries_below: u64,
    /// Sizes of all regular files below it in bytes; a file with several names counts for each.
    pub bytes_below: u64,
}

/// A reference to a page from the page above it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeBranch {
    /// The first name below the page.
    pub first: Vec<u8>,
    /// The page, one level down.
    pub page: BlockRef,
}

/// A page of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TreePage {
    /// Entries in ascending order of their names.
    Leaf(Vec<Entry>),
    /// A level above 0, and the pages below in ascending order of their first names.
    Branch(u8, Vec<TreeBranch>),
}

impl TreePage {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.u8(LAYOUT);
        match self {
            Self::Leaf(entries) => {
                to.u8(0);
                to.count(entries.len());
                entries.iter().for_each(|entry| entry.encode_to(&mut to));
            }
            Self::Branch(level, children) => {
                to.u8(*level);
                to.count(children.len());
                for child in children {
                    to.u16(to_u16(child.first.len()));
                    to.raw(&child.first);
                    child.page.encode(&mut to);
                }
            }
        }
        to.bytes
    }

    /// Decodes a page, which must be of `level`, and checks the order of its names.
    pub fn decode(bytes: &[u8], level: u8) -> Result<Self> {
        let mut from = Decoder::new(bytes, "tree page");
        let (layout, found) = (from.u8()?, from.u8()?);
        if layout != LAYOUT {
            return Err(unsupported("tree page", &format!("layout {layout}")));
        }
        if found != level {
            return Err(from.corrupt(format!("its level is {found}, not {level}")));
        }
        let page = if level == 0 {
            Self::Leaf(from.list(ENTRY_BYTES_MIN, Entry::decode_from)?)
        } else {
            Self::Branch(level, from.list(BRANCH_BYTES_MIN, TreeBranch::decode)?)
        };
        let in_order = match &page {
            Self::Leaf(entries) => {
                entries.first().is_some_and(|first| !first.name.is_empty())
                    && entries.windows(2).all(|pair| pair[0].name < pair[1].name)
            }
            Self::Branch(_, children) => {
                !children.is_empty()
                    && children.windows(2).all(|pair| pair[0].first < pair[1].first)
            }
        };
        if !in_order {
            return Err(from.corrupt("its names are not in order"));
        }
        from.end()?;
        Ok(page)
    }
}

/// The least that an entry takes: lengths, flags, and the fixed part of its metadata.
const ENTRY_BYTES_MIN: usize = 50;
const BRANCH_BYTES_MIN: usize = 30;

impl TreeBranch {
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let length = usize::from(from.u16()?);
        if length > NAME_BYTES_MAX {
            return Err(from.corrupt(format!("a name of {length} bytes")));
        }
        Ok(Self { first: from.take(length)?.to_vec(), page: BlockRef::decode(from)? })
    }
}

impl Subtree {
    pub(crate) fn encode(&self, to: &mut Encoder) {
        to.u8(self.level);
        self.page.encode(to);
        to.u64(self.entries);
        to.u64(self.entries_below);
        to.u64(self.bytes_below);
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let level = from.u8()?;
        if level > TREE_LEVELS_MAX {
            return Err(from.corrupt(format!("a directory of {level} levels")));
        }
        Ok(Self {
            level,
            page: BlockRef::decode(from)?,
            entries: from.u64()?,
            entries_below: from.u64()?,
            bytes_below: from.u64()?,
        })
    }
}
