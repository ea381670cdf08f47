//! The directories from a root down to the current one, of which few are open.

use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::status::{FileId, open_at, status_of};

/// Maximum number of directories that are open at a time.
pub(crate) const OPEN_MAX: usize = 128;
/// How many are left open when a directory far above is opened again.
const REOPENED_MAX: usize = OPEN_MAX / 2;

struct Level {
    name: Vec<u8>,
    id: FileId,
    directory: Option<Arc<OwnedFd>>,
}

/// The way from a root to a directory below it. Descriptors of directories far above are closed;
/// they are opened again from the root, by one name at a time, and must be the same directories.
pub(crate) struct Descent {
    levels: Vec<Level>,
    open: usize,
    /// The uppermost level but the root whose directory may be open.
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
        // The root stays open: it is what the others are found from.
        while self.open > OPEN_MAX {
            if self.levels[self.first_open].directory.take().is_some() {
                self.open -= 1;
            }
            self.first_open += 1;
        }
    }

    /// Goes up to the directory above; the root is not left.
    pub(crate) fn pop(&mut self) {
        if self.levels.len() > 1
            && let Some(level) = self.levels.pop()
        {
            self.open -= usize::from(level.directory.is_some());
            self.first_open = self.first_open.min(self.levels.len());
        }
    }

    /// The current directory. Fails if it had to be opened again and is no longer where it was.
    pub(crate) fn current(&mut self) -> Result<Arc<OwnedFd>, Errno> {
        let last = self.levels.len() - 1;
        if self.levels[last].directory.is_none() {
            self.reopen(last)?;
        }
        self.levels[last].directory.clone().ok_or(Errno::STALE)
    }

    /// Opens the levels from `REOPENED_MAX` above `last` down to it.
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

    /// The root.
    pub(crate) fn root(&self) -> Option<Arc<OwnedFd>> {
        self.levels[0].directory.clone()
    }
}
