//! The names that a directory had before and that were not made.

use rustix::fd::OwnedFd;
use silt_format::{Error, Result};

use crate::names::{Names, Sorter};

/// The names that a directory had before and that have not been made this time.
#[derive(Default)]
pub(super) struct Others {
    before: Names,
    next: usize,
    found: Sorter,
    /// The first error. Some names are then missing.
    problem: Option<Error>,
}

impl Others {
    /// Lists the names in a directory.
    pub(super) fn of(directory: &OwnedFd) -> Self {
        let (before, problem) = Names::read(directory);
        Self { before, problem, ..Self::default() }
    }

    /// Collects the old names before `name`, which is made next; all the rest for `None`.
    pub(super) fn up_to(&mut self, name: Option<&[u8]>) {
        if let Err(error) = self.collect(name) {
            self.problem.get_or_insert(error);
            self.next = self.before.len();
        }
    }

    fn collect(&mut self, name: Option<&[u8]>) -> Result<()> {
        while self.next < self.before.len() {
            self.before.load(self.next..self.next + 1)?;
            let next = self.before.name(self.next);
            if name.is_some_and(|name| next >= name) {
                self.next += usize::from(name == Some(next));
                break;
            }
            self.found.push(next, 0)?;
            self.next += 1;
        }
        Ok(())
    }

    /// Returns all names that were not made.
    pub(super) fn finish(mut self) -> Result<OtherNames> {
        self.up_to(None);
        match self.problem {
            None => Ok(OtherNames { names: self.found.finish()?, next: 0 }),
            Some(error) => Err(error.context("names that are not in the tree")),
        }
    }
}

/// Names of a directory, in order.
#[derive(Debug, Default)]
pub struct OtherNames {
    names: Names,
    next: usize,
}

impl OtherNames {
    /// Returns the next name; `None` after the last.
    pub fn next_name(&mut self) -> Result<Option<Vec<u8>>> {
        if self.next >= self.names.len() {
            return Ok(None);
        }
        self.names.load(self.next..self.next + 1)?;
        self.next += 1;
        Ok(Some(self.names.name(self.next - 1).to_vec()))
    }
}
