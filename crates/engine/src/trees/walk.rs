//! Walking a file tree of a snapshot.

use silt_format::tree::Entry;
use silt_format::{Error, ErrorKind, Result};
use silt_repository::objects::is_damage;
use silt_repository::tree::{Cursor, TreeVolume};
use silt_tree::{DEPTH_MAX, FAILURES_MAX, Failure};

/// A step of a walk.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, taken apart at once")]
pub(super) enum TreeStep {
    /// An entry of the current directory. [`TreeWalk::enter`] enters it if it is a directory.
    Entry(Entry),
    /// A page of the current directory is damaged, or not as a backup writes it. The entries of its
    /// other pages follow.
    Failed(Error),
    /// The current directory ends, and its parent is the current one again.
    Leave {
        /// Its path with a trailing slash; empty for the first directory.
        path: Vec<u8>,
        /// Whether all its entries were read.
        is_whole: bool,
    },
}

struct Open {
    entries: Cursor,
    path_bytes: usize,
    is_whole: bool,
}

/// Walks a directory of a file tree depth-first, in byte order of the names. Holds a page of each
/// directory from the first to the current one.
pub(super) struct TreeWalk<'v> {
    volume: &'v TreeVolume,
    open: Vec<Open>,
    path: Vec<u8>,
}

impl<'v> TreeWalk<'v> {
    /// Starts a walk in `directory`.
    pub(super) fn new(volume: &'v TreeVolume, directory: &Entry) -> Self {
        let entries = volume.entries(directory);
        let root = Open { entries, path_bytes: 0, is_whole: true };
        Self { volume, open: vec![root], path: Vec::new() }
    }

    /// Returns the next step; `None` after the first directory was left.
    pub(super) fn next_step(&mut self) -> Result<Option<TreeStep>> {
        let Some(open) = self.open.last_mut() else { return Ok(None) };
        match self.volume.next(&mut open.entries) {
            Ok(Some(entry)) => Ok(Some(TreeStep::Entry(entry))),
            Ok(None) => {
                let (path, is_whole) = (self.path.clone(), open.is_whole);
                self.path.truncate(open.path_bytes);
                self.open.pop();
                Ok(Some(TreeStep::Leave { path, is_whole }))
            }
            Err(error) if is_damage(&error) => {
                open.is_whole = false;
                Ok(Some(TreeStep::Failed(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Enters a directory in the current one. Fails with `Unsupported` if it is deeper than a
    /// backup goes.
    pub(super) fn enter(&mut self, directory: &Entry) -> Result<()> {
        if self.open.len() >= DEPTH_MAX {
            let message = format!("deeper than {DEPTH_MAX} directories");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let entries = self.volume.entries(directory);
        self.open.push(Open { entries, path_bytes: self.path.len(), is_whole: true });
        self.path.extend_from_slice(&directory.name);
        self.path.push(b'/');
        Ok(())
    }

    /// Goes up without reading the rest of the current directory.
    pub(super) fn leave(&mut self) {
        if let Some(open) = self.open.pop() {
            self.path.truncate(open.path_bytes);
        }
    }

    /// Returns the path of an entry of the current directory, relative to the first directory.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [&self.path, name].concat()
    }

    /// Returns the path of the current directory with a trailing slash; empty for the first one.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }
}

/// Entries that an operation could not process. It continued with the others.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut backup = repository.backup("home", BackupOptions::default())?;
/// # backup.add_tree("files", folder.path(), &TreeOptions::default())?;
/// # backup.finish()?;
/// # let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let (rules, volume) = (PathRules::default(), found.volume("files")?);
/// let failures: Failures = repository.plan_tree_restore(volume, b"/", &rules, 0)?.failures;
/// for failure in &failures.first {
///     println!("{}: {}", failure.path.escape_ascii(), failure.error);
/// }
/// assert_eq!(failures.count, 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Failures {
    /// The first ones, at most [`FAILURES_MAX`].
    pub first: Vec<Failure>,
    /// The number of all such entries.
    pub count: u64,
}

impl Failures {
    pub(super) fn add(&mut self, path: Vec<u8>, error: Error) {
        self.count += 1;
        if self.first.len() < FAILURES_MAX {
            self.first.push(Failure { path, error });
        }
    }
}
