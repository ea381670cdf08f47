//! Finding entries of file trees.

use silt_format::Result;
use silt_format::tree::{Entry, EntryKind, OwnerName, Timestamp, Tree};
use silt_repository::FoundVolume;
use silt_repository::tree::TreeVolume;
use silt_tree::{PathMatcher, PathRules};

use super::content::{is_directory, is_same_directory};
use super::pair::{PairStep, PairWalk};
use super::walk::{Failures, TreeStep, TreeWalk};
use crate::repository::Repository;

/// The owner to search for.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("notes.txt");
/// # for text in ["remember", "remember more"] {
/// #     std::fs::write(&file, text).unwrap();
/// #     let mut backup = repository.backup("home", BackupOptions::default())?;
/// #     backup.add_tree("files", folder.path(), &TreeOptions::default())?;
/// #     backup.finish()?;
/// # }
/// # let head = repository.heads(&[])?.remove(0);
/// # let at = |n: usize| repository.find(&Selector::Id(head.snapshots[n].id.to_string()));
/// # let (old, new) = (at(0)?, at(1)?);
/// # let (old, new) = (old.volume("files")?, new.volume("files")?);
/// let owner = Some(OwnerQuery::Name(b"a user without files".to_vec()));
/// let query = FileQuery { owner, ..FileQuery::default() };
/// let failures = repository.find_files(new, b"/", &query, 0, &mut |path, _| {
///     panic!("{} is someone else's", path.escape_ascii())
/// })?;
/// assert_eq!(failures.map(|failures| failures.count), Some(0));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnerQuery {
    /// The user id.
    Number(u32),
    /// The name on the host that was backed up.
    Name(Vec<u8>),
}

/// A search for entries of a tree that meet all conditions.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let file = folder.path().join("notes.txt");
/// # for text in ["remember", "remember more"] {
/// #     std::fs::write(&file, text).unwrap();
/// #     let mut backup = repository.backup("home", BackupOptions::default())?;
/// #     backup.add_tree("files", folder.path(), &TreeOptions::default())?;
/// #     backup.finish()?;
/// # }
/// # let head = repository.heads(&[])?.remove(0);
/// # let at = |n: usize| repository.find(&Selector::Id(head.snapshots[n].id.to_string()));
/// # let (old, new) = (at(0)?, at(1)?);
/// # let (old, new) = (old.volume("files")?, new.volume("files")?);
/// let mut query = FileQuery { larger_than: Some(5), ..FileQuery::default() };
/// query.names.include("*.txt", false)?;
/// let mut found = Vec::new();
/// repository.find_files(old, b"/", &query, 0, &mut |path, entry| {
///     found.push((path.to_vec(), entry.metadata.size));
///     Ok(())
/// })?;
/// assert_eq!(found, [(b"notes.txt".to_vec(), 8)]);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FileQuery {
    /// The paths; any if there are no patterns.
    pub names: PathRules,
    /// The types; any if empty.
    pub kinds: Vec<EntryKind>,
    /// Modified at this time or later.
    pub modified_from: Option<Timestamp>,
    /// Modified before this time.
    pub modified_before: Option<Timestamp>,
    /// Regular files with more bytes than this.
    pub larger_than: Option<u64>,
    /// Regular files with fewer bytes than this.
    pub smaller_than: Option<u64>,
    /// The owner.
    pub owner: Option<OwnerQuery>,
}

/// A [`FileQuery`] for one tree.
struct Matcher<'q> {
    query: &'q FileQuery,
    names: Option<PathMatcher>,
    /// `None` for any; an owner whose name the tree does not have matches nothing.
    owners: Option<Vec<u32>>,
    path: Vec<u8>,
}

impl<'q> Matcher<'q> {
    fn new(query: &'q FileQuery, tree: &Tree) -> Result<Self> {
        let names = (!query.names.is_empty()).then(|| query.names.matcher()).transpose()?;
        let owners = query.owner.as_ref().map(|owner| match owner {
            OwnerQuery::Number(number) => vec![*number],
            OwnerQuery::Name(name) => {
                let with_name = tree.users.iter().filter(|user: &&OwnerName| user.name == *name);
                with_name.map(|user| user.id).collect()
            }
        });
        Ok(Self { query, names, owners, path: Vec::new() })
    }

    /// Returns whether an entry of the directory at `above` meets all conditions. If so, sets
    /// `self.path` to its path.
    fn matches(&mut self, above: &[u8], entry: &Entry) -> bool {
        let (query, metadata) = (self.query, &entry.metadata);
        let is_file = metadata.kind == EntryKind::File;
        let is_met = (query.kinds.is_empty() || query.kinds.contains(&metadata.kind))
            && query.modified_from.is_none_or(|from| metadata.modified >= from)
            && query.modified_before.is_none_or(|before| metadata.modified < before)
            && query.larger_than.is_none_or(|bytes| is_file && metadata.size > bytes)
            && query.smaller_than.is_none_or(|bytes| is_file && metadata.size < bytes)
            && self.owners.as_ref().is_none_or(|owners| owners.contains(&metadata.uid));
        if !is_met {
            return false;
        }
        self.path.clear();
        self.path.extend_from_slice(above);
        self.path.extend_from_slice(&entry.name);
        let Some(names) = &mut self.names else { return true };
        names.includes(&self.path, metadata.kind == EntryKind::Directory)
    }
}

impl Repository {
    /// Calls `sink` with each entry below `path` that meets `query`, depth-first, and with its path
    /// relative to `path`. Reads directories but no content.
    ///
    /// Returns the directories that could not be read; all others were searched. Returns `None` if
    /// `path` does not exist.
    pub fn find_files(
        &self,
        of: FoundVolume<'_>,
        path: &[u8],
        query: &FileQuery,
        memory_bytes: u64,
        sink: &mut dyn FnMut(&[u8], &Entry) -> Result<()>,
    ) -> Result<Option<Failures>> {
        let volume = TreeVolume::open(self, of, memory_bytes)?;
        let Some(root) = volume.look_up(path)? else { return Ok(None) };
        let mut matcher = Matcher::new(query, volume.tree())?;
        let mut failures = Failures::default();
        let mut walk = TreeWalk::new(&volume, &root);
        while let Some(step) = walk.next_step()? {
            self.objects.context.check_interrupted()?;
            match step {
                TreeStep::Entry(entry) => {
                    if matcher.matches(walk.path(), &entry) {
                        sink(&matcher.path, &entry)?;
                    }
                    if is_directory(&entry)
                        && let Err(error) = walk.enter(&entry)
                    {
                        failures.add(walk.path_of(&entry.name), error);
                    }
                }
                TreeStep::Failed(error) => failures.add(walk.path_of(b""), error),
                TreeStep::Leave { .. } => {}
            }
        }
        Ok(Some(failures))
    }

    /// Like [`find_files`](Self::find_files), but only for entries of `new` that differ from `old`
    /// or are not in it. The time depends on the number of differences.
    pub fn find_new_files(
        &self,
        old: FoundVolume<'_>,
        new: FoundVolume<'_>,
        path: &[u8],
        query: &FileQuery,
        memory_bytes: u64,
        sink: &mut dyn FnMut(&[u8], &Entry) -> Result<()>,
    ) -> Result<Option<Failures>> {
        let old_volume = TreeVolume::open(self, old, memory_bytes / 2)?;
        let volume = TreeVolume::open(self, new, memory_bytes / 2)?;
        let Some(root) = volume.look_up(path)? else { return Ok(None) };
        let Some(old_root) = old_volume.look_up(path)? else {
            return self.find_files(new, path, query, memory_bytes, sink);
        };
        let mut matcher = Matcher::new(query, volume.tree())?;
        let mut failures = Failures::default();
        let mut walk = PairWalk::new(&old_volume, &volume, &old_root, &root);
        if is_same_directory(&old_root, &root) {
            return Ok(Some(failures));
        }
        while let Some(step) = walk.next_step()? {
            self.objects.context.check_interrupted()?;
            match step {
                PairStep::Entry(old, Some(entry)) => {
                    let is_same = old.as_ref().is_some_and(|old| old.metadata == entry.metadata);
                    if !is_same && matcher.matches(walk.path(), &entry) {
                        sink(&matcher.path, &entry)?;
                    }
                    let old = old.filter(is_directory);
                    let is_known = old.as_ref().is_some_and(|old| is_same_directory(old, &entry));
                    if is_directory(&entry)
                        && !is_known
                        && let Err(error) = walk.enter(&entry.name, old.as_ref(), Some(&entry))
                    {
                        failures.add(walk.path_of(&entry.name), error);
                    }
                }
                PairStep::Failed(error) => failures.add(walk.path_of(b""), error),
                PairStep::Entry(..) | PairStep::Leave => {}
            }
        }
        Ok(Some(failures))
    }
}
