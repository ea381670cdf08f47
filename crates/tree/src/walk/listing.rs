//! The names of a directory that a walk takes: all that it has, or those that are listed.

use std::ops::Range;

use rustix::fd::{AsFd, OwnedFd};
use silt_format::{Error, Result};

use crate::listed::{Below, ListedNames};
use crate::names::Names;
use crate::status::status_at;

/// The names in a directory, in byte order.
pub(super) struct Listing {
    names: Taken,
    /// The listed paths below the directory; none without a list.
    pub(super) below: Below,
}

enum Taken {
    All(Names),
    /// Those that lead to listed paths. They need not exist, and the directory is not read.
    Listed(ListedNames),
}

impl Listing {
    pub(super) fn empty() -> Self {
        Self { names: Taken::All(Names::default()), below: Below::default() }
    }

    /// Reads all names. Returns those read up to the first error, and that error.
    pub(super) fn read(directory: &OwnedFd, below: Below) -> (Self, Option<Error>) {
        let (names, problem) = Names::read(directory);
        (Self { names: Taken::All(names), below }, problem)
    }

    pub(super) fn of(names: ListedNames, below: Below) -> Self {
        Self { names: Taken::Listed(names), below }
    }

    pub(super) fn len(&self) -> usize {
        match &self.names {
            Taken::All(names) => names.len(),
            Taken::Listed(names) => names.len(),
        }
    }

    /// Loads the names at these positions, of which the caller may then ask for each.
    pub(super) fn load(&mut self, range: Range<usize>) -> Result<()> {
        match &mut self.names {
            Taken::All(names) => names.load(range),
            Taken::Listed(_) => Ok(()),
        }
    }

    /// Returns the name with this position in the order, which must be loaded.
    pub(super) fn name(&self, at: usize) -> &[u8] {
        match &self.names {
            Taken::All(names) => names.name(at),
            Taken::Listed(names) => names.name(at),
        }
    }

    /// Returns whether the entry is a directory; `None` if that is not known without its status.
    pub(super) fn is_directory(&self, at: usize) -> Option<bool> {
        match &self.names {
            Taken::All(names) => names.is_directory(at),
            Taken::Listed(_) => None,
        }
    }

    /// Returns whether the names come from a list and may not exist.
    pub(super) fn is_listed(&self) -> bool {
        matches!(self.names, Taken::Listed(_))
    }

    /// Returns whether the directory has an entry of this name.
    pub(super) fn contains(&self, directory: impl AsFd, name: &[u8]) -> bool {
        match &self.names {
            Taken::All(names) => names.contains(name).unwrap_or(false),
            Taken::Listed(_) => status_at(directory, name).is_ok(),
        }
    }

    /// Removes all names but one.
    pub(super) fn retain_only(&mut self, name: &[u8]) -> Result<()> {
        match &mut self.names {
            Taken::All(names) => names.retain_only(name),
            Taken::Listed(names) => {
                names.retain_only(name);
                Ok(())
            }
        }
    }
}
