//! What a backup tells of a tree: entries that it leaves out, and file systems that it does not
//! trust.

use crate::rules::{Reason, Rules};

/// An entry that a backup leaves out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut<'e> {
    /// Its path, which begins with the directory that is backed up.
    pub path: &'e [u8],
    /// Whether it is a directory that is kept without its content.
    pub is_content: bool,
    /// Why it is left out.
    pub why: Omission<'e>,
}

/// Why an entry is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Omission<'e> {
    /// It matches this exclude pattern.
    Pattern(&'e [u8]),
    /// `CACHEDIR.TAG` marks it as a cache.
    Cache,
    /// It contains a file of this name.
    Marker(&'e [u8]),
    /// It is a file larger than this number of bytes.
    TooLarge(u64),
    /// Its flag `nodump` is set.
    NoDump,
    /// It is on another file system.
    OtherFileSystem,
    /// It is on a file system in which the kernel or running programs show their state.
    PseudoFileSystem,
}

impl Omission<'_> {
    /// A stable name for messages to programs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Pattern(_) => "pattern",
            Self::Cache => "cache",
            Self::Marker(_) => "marker",
            Self::TooLarge(_) => "size",
            Self::NoDump => "nodump",
            Self::OtherFileSystem => "file_system",
            Self::PseudoFileSystem => "kernel_file_system",
        }
    }
}

/// A file system whose metadata a backup does not compare, because it is unreliable there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreliable<'e> {
    /// The first directory of the tree that is on it.
    pub path: &'e [u8],
    /// The name of its type.
    pub file_system: &'static str,
    /// Inode numbers are not compared.
    pub ignores_inode: bool,
    /// Change times are not compared.
    pub ignores_changed: bool,
}

impl Rules {
    /// Returns the reason with the rule itself.
    pub fn explain(&self, reason: Reason) -> Omission<'_> {
        match reason {
            Reason::Pattern(number) => Omission::Pattern(self.pattern(number).unwrap_or_default()),
            Reason::Cache => Omission::Cache,
            Reason::Marker(number) => {
                let marker = self.markers.get(number);
                Omission::Marker(marker.map_or(&[], |marker| &marker.name))
            }
            Reason::TooLarge => Omission::TooLarge(self.larger_than.unwrap_or_default()),
            Reason::NoDump => Omission::NoDump,
            Reason::OtherFileSystem => Omission::OtherFileSystem,
            Reason::PseudoFileSystem => Omission::PseudoFileSystem,
        }
    }
}
