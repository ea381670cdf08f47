//! Trees that are read more than once: walked again, and files in them opened by their paths.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use silt_format::tree::EntryKind;
use silt_format::{Error, ErrorKind, Result};

use crate::file::OpenFile;
use crate::rules::Rules;
use crate::source::{FileSource, TreeSource};
use crate::status::{open_at, shown, status_of};
use crate::walk::Walk;

/// A file tree that can be walked several times.
pub trait TreeOrigin: Send + Sync {
    /// Says where the tree is, for the snapshot.
    fn description(&self) -> String;

    /// Starts a walk at the root.
    fn walk(&self) -> Result<Box<dyn TreeSource>>;

    /// Opens a regular file by its path below the root, with `/` between the names. Follows no
    /// symbolic links. The file may be another one than the walk has seen under this path.
    fn open_file(&self, path: &[u8]) -> Result<Box<dyn FileSource>>;
}

/// A directory of this machine.
pub struct LocalTree {
    root: PathBuf,
    rules: Rules,
    /// The directory of the file that was opened last, with its path.
    last: Mutex<Option<(Vec<u8>, Arc<OwnedFd>)>>,
}

impl LocalTree {
    /// Returns the tree below the directory `root`, without the entries that `rules` leave out.
    /// Opens nothing yet.
    pub fn new(root: &Path, rules: &Rules) -> Self {
        Self { root: root.to_owned(), rules: rules.clone(), last: Mutex::default() }
    }

    fn directory(&self, path: &[u8]) -> Result<Arc<OwnedFd>, Errno> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, directory)) = &*last
            && known == path
        {
            return Ok(Arc::clone(directory));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = openat(CWD, &self.root, flags, Mode::empty())?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            directory = open_at(&directory, below(name)?, OFlags::DIRECTORY)?;
        }
        let (_, directory) = last.insert((path.to_vec(), Arc::new(directory)));
        Ok(Arc::clone(directory))
    }

    fn open(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let slash = path.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = slash.map_or((&[][..], path), |at| (&path[..at], &path[at + 1..]));
        open_at(&*self.directory(directory)?, below(name)?, OFlags::empty())
    }
}

/// Returns a name that does not lead out of its directory.
fn below(name: &[u8]) -> Result<&[u8], Errno> {
    if name == b".." { Err(Errno::INVAL) } else { Ok(name) }
}

impl TreeOrigin for LocalTree {
    fn description(&self) -> String {
        self.root.display().to_string()
    }

    fn walk(&self) -> Result<Box<dyn TreeSource>> {
        Ok(Box::new(Walk::open(&self.root, &self.rules)?))
    }

    fn open_file(&self, path: &[u8]) -> Result<Box<dyn FileSource>> {
        let whole = || shown(&[self.root.as_os_str().as_bytes(), b"/", path].concat());
        let failed = |error: Errno| Error::io(format!("opening '{}'", whole()), error.into());
        let file = self.open(path).map_err(failed)?;
        if status_of(&file).map_err(failed)?.metadata.kind != EntryKind::File {
            let message = format!("'{}' was replaced meanwhile", whole());
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(Box::new(OpenFile::new(file)))
    }
}
