//! The directories from a root down to the current one. A limited number of them is open.

use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::status::{FileId, open_at, status_of};

/// Maximum number of directories that are open at a time.
pub(crate) const OPEN_MAX: usize = 128;
/// Number of directories that stay open, from the current one upwards, after a closed one had to
/// be opened again.
const REOPENED_MAX: usize = OPEN_MAX / 2;

struct Level {
    name: Vec<u8>,
    id: FileId,
    directory: Option<Arc<OwnedFd>>,
}

/// The path from a root to a directory below it. Directories far above the current one are closed.
/// They are opened again from the root, one name at a time, and must still be the same directories.
pub(crate) struct Descent {
    levels: Vec<Level>,
    open: usize,
    /// The uppermost level below the root whose directory may be open.
    first_open: usize,
}

impl Descent {
    pub(crate) fn new(root: OwnedFd, id: FileId) -> Self {
        let root = Level { name: Vec::new(), id, directory: Some(Arc::new(root)) };
        Self { levels: vec![root], open: 1, first_open: 1 }
    }

    pub(crate) fn push(&mut self, name: &[u8], directory: OwnedFd, id: FileId) {
        let directory = Some(Arc::new(directory));
        self.levels.push(Level { name: name.to_vec(), id, directory });
        self.open += 1;
        // The root stays open: the others are opened again from there.
        while self.open > OPEN_MAX {
            if self.levels[self.first_open].directory.take().is_some() {
                self.open -= 1;
            }
            self.first_open += 1;
        }
    }

    /// Goes up to the directory above. Does nothing at the root.
    pub(crate) fn pop(&mut self) {
        if self.levels.len() > 1
            && let Some(level) = self.levels.pop()
        {
            self.open -= usize::from(level.directory.is_some());
            self.first_open = self.first_open.min(self.levels.len());
        }
    }

    /// Returns the current directory. Fails if it has to be opened again and was moved or replaced.
    pub(crate) fn current(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        let last = self.levels.len() - 1;
        if self.levels[last].directory.is_none() {
            self.reopen(last)?;
        }
        self.levels[last].directory.clone().ok_or(Errno::STALE)
    }

    /// Opens level `last` from the root, and leaves the lowest `REOPENED_MAX` levels open.
    fn reopen(&mut self, last: usize) -> Result<(), Errno> {
        let first = (last + 1).saturating_sub(REOPENED_MAX).max(1);
        let mut above = self.levels[0].directory.clone().ok_or(Errno::STALE)?;
        for at in 1..=last {
            let opened = open_at(&*above, &self.levels[at].name, OFlags::DIRECTORY)?;
            if status_of(&opened)?.id() != self.levels[at].id {
                return Err(Errno::STALE);
            }
            above = Arc::new(opened);
            if at >= first && self.levels[at].directory.is_none() {
                self.levels[at].directory = Some(above.clone());
                self.open += 1;
            }
        }
        self.first_open = first;
        Ok(())
    }

    pub(crate) fn root(&self) -> Option<Arc<OwnedFd>> {
        self.levels[0].directory.clone()
    }
}
