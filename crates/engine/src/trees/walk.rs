//! Going through a file tree of a snapshot.

use silt_format::tree::Entry;
use silt_format::{Error, ErrorKind, Result};
use silt_repository::objects::is_damage;
use silt_repository::tree::{Cursor, TreeVolume};
use silt_tree::{DEPTH_MAX, FAILURES_MAX, Failure};

/// What comes next of a tree.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one at a time, taken apart at once")]
pub(super) enum TreeStep {
    /// An entry of the current directory. A directory can be entered.
    Entry(Entry),
    /// Entries of the current directory that can't be read, because their page is damaged or not
    /// one that a backup writes; those of other pages follow.
    Failed(Error),
    /// The current directory ends, and its parent is the current one again.
    Leave {
        /// Its path with a slash behind it, empty for the first directory.
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

/// Goes through a directory of a file tree depth-first, in byte order of the names. Holds a page of
/// each directory on the way.
pub(super) struct TreeWalk<'v> {
    volume: &'v TreeVolume,
    open: Vec<Open>,
    path: Vec<u8>,
}

impl<'v> TreeWalk<'v> {
    /// A walk that begins in `directory`.
    pub(super) fn new(volume: &'v TreeVolume, directory: &Entry) -> Self {
        let entries = volume.entries(directory);
        let root = Open { entries, path_bytes: 0, is_whole: true };
        Self { volume, open: vec![root], path: Vec::new() }
    }

    /// The next step; `None` after the first directory was left.
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

    /// Enters a directory of the current one. Fails if it is deeper than any backup goes.
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

    /// The path of an entry of the current directory, relative to the first one.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [&self.path, name].concat()
    }

    /// The path of the current directory with a slash behind it, empty for the first one.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }
}

/// Entries that an operation could not handle; it went on without them.
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
    /// The first of them, at most [`FAILURES_MAX`].
    pub first: Vec<Failure>,
    /// The number of all.
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
