//! The versions of a file in the snapshots of its series.

use silt_format::tree::{Entry, EntryKind, Metadata};
use silt_format::{Error, ErrorKind, Head, Result, SnapshotEntry, VolumeKind};
use silt_repository::objects::is_damage;
use silt_repository::tree::TreeVolume;
use silt_repository::{Found, FoundVolume};

use super::content::{differing_attributes, is_same_content, is_same_directory};
use super::walk::Failures;
use crate::repository::Repository;

/// A state of a file that one snapshot, or several in a row, contain.
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
/// let mut sizes = Vec::new();
/// let at = TreePath { volume: None, path: b"notes.txt" };
/// repository.file_versions(&head, at, VersionsBy::Content, 0, &mut |version: &FileVersion| {
///     sizes.push(version.metadata.as_ref().map(|metadata| metadata.size));
///     Ok(())
/// })?;
/// assert_eq!(sizes, [Some(8), Some(13)]);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// The first of these snapshots.
    pub first: SnapshotEntry,
    /// The last of these snapshots.
    pub last: SnapshotEntry,
    /// The number of these snapshots.
    pub snapshots: u64,
    /// The metadata in the last of them; `None` if they do not contain the file.
    pub metadata: Option<Box<Metadata>>,
    /// The differences from the version before: `content`, `type`, or attributes as in
    /// [`TreeChange::attributes`](super::TreeChange::attributes). Empty for the first version, and
    /// if the file did not exist before or does not exist now.
    pub changes: Vec<&'static str>,
}

/// The differences that make a new version of a file.
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
/// let (mut count, at) = (0, TreePath { volume: Some("files"), path: b"notes.txt" });
/// repository.file_versions(&head, at, VersionsBy::Attributes, 0, &mut |_| {
///     count += 1;
///     Ok(())
/// })?;
/// assert_eq!(count, 2);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VersionsBy {
    /// Content, type or the target of a link.
    #[default]
    Content,
    /// Content, type or any attribute.
    Attributes,
}

/// A path in the file trees of a series.
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
/// let (mut count, at) = (0, TreePath { volume: None, path: b"no such file" });
/// repository.file_versions(&head, at, VersionsBy::Content, 0, &mut |_| {
///     count += 1;
///     Ok(())
/// })?;
/// assert_eq!(count, 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreePath<'p> {
    /// The name of the volume; `None` if each snapshot has a single tree.
    pub volume: Option<&'p str>,
    /// The path below its root.
    pub path: &'p [u8],
}

impl Repository {
    /// Calls `sink` with the versions of a file, or of a directory with everything below it, oldest
    /// first. Skips snapshots that cannot be read and returns them. Fails with `Invalid` if `at`
    /// names no volume and a snapshot has several trees.
    ///
    /// For each snapshot, reads one page of each level of the directories on the path. Reads
    /// content only in segments that differ between two states of equal size.
    pub fn file_versions(
        &self,
        head: &Head,
        at: TreePath<'_>,
        by: VersionsBy,
        memory_bytes: u64,
        sink: &mut dyn FnMut(&FileVersion) -> Result<()>,
    ) -> Result<Failures> {
        let mut versions = Versions { repository: self, by, current: None, before: None };
        let mut failures = Failures::default();
        for snapshot in &head.snapshots {
            self.objects.context.check_interrupted()?;
            let state = match self.state_in(head, snapshot, at, memory_bytes / 2) {
                Ok(state) => state,
                Err(error) if is_damage(&error) => {
                    failures.add(snapshot.id.to_string().into_bytes(), error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            versions.take(snapshot, state, sink)?;
        }
        if let Some(last) = versions.current.filter(|last| last.metadata.is_some()) {
            sink(&last)?;
        }
        Ok(failures)
    }

    /// Returns the entry at a path in one snapshot; `None` if there is none.
    fn state_in(
        &self,
        head: &Head,
        entry: &SnapshotEntry,
        at: TreePath<'_>,
        memory_bytes: u64,
    ) -> Result<Option<State>> {
        let (snapshot, key) = self.snapshot_and_key(head.series, entry)?;
        let found = Found { head: head.clone(), snapshot, entry: entry.clone(), key };
        let is_tree = |of: &FoundVolume<'_>| matches!(of.volume().kind, VolumeKind::Tree(_));
        let mut trees = found.volumes().filter(is_tree);
        let of = match at.volume {
            Some(name) => trees.find(|of| of.volume().name == name),
            None => match (trees.next(), trees.next()) {
                (only, None) => only,
                (Some(first), _) => {
                    let name = &first.volume().name;
                    let message =
                        format!("snapshot {} has several file trees, such as '{name}'", entry.id);
                    return Err(Error::new(ErrorKind::Invalid, message));
                }
                (None, Some(_)) => None,
            },
        };
        let Some(of) = of else { return Ok(None) };
        let volume = TreeVolume::open(self, of, memory_bytes)?;
        match volume.look_up(at.path)? {
            Some(entry) => Ok(Some(State { volume, entry })),
            None => Ok(None),
        }
    }
}

struct State {
    volume: TreeVolume,
    entry: Entry,
}

struct Versions<'r> {
    repository: &'r Repository,
    by: VersionsBy,
    current: Option<FileVersion>,
    /// The state in the snapshot before.
    before: Option<State>,
}

impl Versions<'_> {
    fn take(
        &mut self,
        snapshot: &SnapshotEntry,
        state: Option<State>,
        sink: &mut dyn FnMut(&FileVersion) -> Result<()>,
    ) -> Result<()> {
        let changes = match (&self.before, &state) {
            (Some(before), Some(state)) => self.changes(before, state)?,
            _ => Vec::new(),
        };
        let is_new = match self.by {
            VersionsBy::Attributes => !changes.is_empty(),
            VersionsBy::Content => {
                changes.iter().any(|change| matches!(*change, "content" | "type" | "target"))
            }
        };
        let is_new = is_new || self.before.is_some() != state.is_some();
        let metadata = state.as_ref().map(|state| Box::new(state.entry.metadata.clone()));
        self.before = state;
        match &mut self.current {
            Some(current) if !is_new => {
                current.last = snapshot.clone();
                current.snapshots += 1;
                current.metadata = metadata;
                Ok(())
            }
            // Snapshots before the first version do not count as a version.
            None if metadata.is_none() => Ok(()),
            current => {
                let (first, last) = (snapshot.clone(), snapshot.clone());
                let next = FileVersion { first, last, snapshots: 1, metadata, changes };
                match current.replace(next) {
                    Some(ended) => sink(&ended),
                    None => Ok(()),
                }
            }
        }
    }

    fn changes(&self, before: &State, now: &State) -> Result<Vec<&'static str>> {
        let (old, new) = (&before.entry, &now.entry);
        if old.metadata.kind != new.metadata.kind {
            return Ok(vec!["type"]);
        }
        let is_same = match old.metadata.kind {
            EntryKind::File => {
                let context = &self.repository.objects.context;
                is_same_content(context, (&before.volume, old), (&now.volume, new))?
            }
            EntryKind::Directory => is_same_directory(old, new),
            _ => true,
        };
        let mut changes = Vec::from_iter((!is_same).then_some("content"));
        changes.extend(differing_attributes(&old.metadata, &new.metadata));
        Ok(changes)
    }
}
