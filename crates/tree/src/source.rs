//! Trees that can be backed up: directories of this machine, and trees from elsewhere.

use std::ops::Range;

use silt_format::Result;
use silt_format::tree::{Metadata, Timestamp};

use crate::file::OpenFile;
use crate::mounts::FileSystemTraits;
use crate::owners::Owners;
use crate::walk::{Found, Step, Walk};

/// A file tree that a backup reads from its first step to its last.
///
/// Steps come depth first, the entries of a directory in the byte order of their names.
/// [`Walk`] is the source for directories of this machine.
pub trait TreeSource: Send {
    /// Returns the next step; `None` after the last, which leaves the root.
    fn next(&mut self) -> Result<Option<Step>>;

    /// Adds flags, extended attributes and the target of a link to the entry of the last step, and
    /// updates its metadata. Returns `false` if the entry no longer exists.
    fn complete(&mut self, found: &mut Found) -> bool;

    /// Opens the regular file of the last step. Fails with `NotFound` if it no longer exists.
    fn open_file(&mut self, found: &Found) -> Result<Box<dyn FileSource>>;

    /// Returns when the file of the last step was created; `None` if nothing says so.
    ///
    /// A file that was created at another time is another one, even if it has the same inode
    /// number. Where this is `None`, so is one that has another size or time of modification. A
    /// source whose numbers are never given again returns any constant time.
    fn born(&self) -> Option<Timestamp>;

    /// Returns the number of entries that were removed after their directory was listed and before
    /// they were reached.
    fn vanished(&self) -> u64;

    /// Returns the traits of a file system by its number in [`Metadata::file_system`].
    fn traits(&self, file_system: u16) -> FileSystemTraits;

    /// Returns the path of the current directory for messages; empty if the source has no paths.
    fn directory_path(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the users and groups of the machine that the tree comes from.
    fn owners(&self) -> Owners;
}

/// A regular file that is open for reading.
pub trait FileSource: Send {
    /// Reads at an offset in bytes. Returns the number of bytes read, which is less than the length
    /// of `buffer` only at the end of the file.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;

    /// Returns the current metadata of the file, without flags, extended attributes and number of
    /// the file system.
    fn status(&self) -> Result<Metadata>;

    /// Returns the next range with data at or after `offset`, cut at `size`; `None` if only a hole
    /// follows.
    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>>;
}

impl TreeSource for Walk {
    fn next(&mut self) -> Result<Option<Step>> {
        Self::next(self)
    }
    fn complete(&mut self, found: &mut Found) -> bool {
        Self::complete(self, found)
    }
    fn open_file(&mut self, found: &Found) -> Result<Box<dyn FileSource>> {
        Ok(Box::new(Self::open_file(self, found)?))
    }
    fn born(&self) -> Option<Timestamp> {
        Self::born(self)
    }
    fn vanished(&self) -> u64 {
        Self::vanished(self)
    }
    fn traits(&self, file_system: u16) -> FileSystemTraits {
        Self::traits(self, file_system)
    }
    fn directory_path(&self) -> Vec<u8> {
        Self::directory_path(self)
    }
    fn owners(&self) -> Owners {
        Owners::of_this_machine().unwrap_or_default()
    }
}

impl FileSource for OpenFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Self::read_at(self, offset, buffer)
    }
    fn status(&self) -> Result<Metadata> {
        Self::status(self)
    }
    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        Self::next_data(self, offset, size)
    }
}
