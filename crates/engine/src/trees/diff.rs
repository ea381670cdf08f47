//! Differences between two file trees, file by file.

use std::collections::HashMap;

use silt_format::Result;
use silt_format::tree::{Entry, EntryKind, Metadata, Timestamp};
use silt_repository::FoundVolume;
use silt_repository::objects::is_damage;
use silt_repository::tree::TreeVolume;

use super::content::{differing_attributes, is_directory, is_same_content, is_same_directory};
use super::pair::{PairStep, PairWalk};
use super::walk::{Failures, TreeStep, TreeWalk};
use crate::repository::Repository;

/// Maximum number of entries that are kept to find moved ones, and of changes that are kept to sort
/// them by path.
const KEPT_MAX: usize = 65_536;
/// Maximum size in bytes of the paths of kept entries.
const KEPT_BYTES_MAX: usize = 32 << 20;

/// How an entry differs between two trees.
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
/// let mut kinds = Vec::new();
/// repository.diff_trees((old, b"/"), (new, b"/"), 0, &mut |change| {
///     kinds.push(change.kind);
///     Ok(())
/// })?;
/// assert_eq!(kinds, [ChangeKind::Content]);
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangeKind {
    /// Only the newer tree has the entry.
    Added,
    /// Only the older tree has the entry.
    Removed,
    /// The content differs, and perhaps attributes.
    Content,
    /// Only attributes differ.
    Attributes,
    /// The type differs, such as a link in place of a file.
    Type,
    /// The path differs, and perhaps attributes. An entry below a moved directory is a change of
    /// its own only if it differs in anything else.
    Moved,
}

/// An entry that differs between two trees.
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
/// repository.diff_trees((old, b"/"), (new, b"/"), 0, &mut |change: &TreeChange| {
///     println!("{:?} {}", change.kind, change.path.escape_ascii());
///     assert_eq!(change.path, b"notes.txt");
///     Ok(())
/// })?;
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeChange {
    /// The kind of difference.
    pub kind: ChangeKind,
    /// Its path in the newer tree, or in the older one if it was removed; without a leading slash.
    pub path: Vec<u8>,
    /// Its path in the older tree, if it was moved.
    pub old_path: Option<Vec<u8>>,
    /// Its metadata in the older tree; `None` if it was added.
    pub old: Option<Box<Metadata>>,
    /// Its metadata in the newer tree; `None` if it was removed.
    pub new: Option<Box<Metadata>>,
    /// The attributes that differ: `mode`, `owner`, `group`, `modified`, `target`, `device`,
    /// `flags` or `xattrs`.
    pub attributes: Vec<&'static str>,
}

/// Sums over the differences between two trees.
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
/// let diff: TreeDiff = repository.diff_trees((old, b"/"), (new, b"/"), 0, &mut |_| Ok(()))?;
/// assert_eq!((diff.content, diff.added_bytes, diff.removed_bytes), (1, 13, 8));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TreeDiff {
    /// Entries that only the newer tree has.
    pub added: u64,
    /// Entries that only the older tree has.
    pub removed: u64,
    /// Entries whose content differs.
    pub content: u64,
    /// Entries in which only attributes differ.
    pub attributes: u64,
    /// Entries of another type.
    pub types: u64,
    /// Entries with another path. A directory counts once, with everything below it.
    pub moved: u64,
    /// Sum of the sizes in the newer tree of files that were added or whose content or type
    /// differs.
    pub added_bytes: u64,
    /// Sum of the sizes in the older tree of files that were removed or whose content or type
    /// differs.
    pub removed_bytes: u64,
    /// Entries that could not be read or compared.
    pub failures: Failures,
}

impl Repository {
    /// Compares a path in a file tree with a path in another, and calls `sink` with each entry that
    /// differs. The order is by path, unless there are more than 65,536 changes.
    ///
    /// Skips pages of directories that both trees have. Reads content only in segments that differ,
    /// of files of equal size. Recognises renamed files within one series, by type, file system,
    /// inode, size and modification time.
    pub fn diff_trees(
        &self,
        old: (FoundVolume<'_>, &[u8]),
        new: (FoundVolume<'_>, &[u8]),
        memory_bytes: u64,
        sink: &mut dyn FnMut(&TreeChange) -> Result<()>,
    ) -> Result<TreeDiff> {
        let old_volume = TreeVolume::open(self, old.0, memory_bytes / 2)?;
        let new_volume = TreeVolume::open(self, new.0, memory_bytes / 2)?;
        let (old_root, new_root) = (old_volume.find(old.1)?, new_volume.find(new.1)?);
        let mut diff = Diff {
            repository: self,
            old: &old_volume,
            new: &new_volume,
            kept: Kept::default(),
            changes: Vec::new(),
            sink,
            report: TreeDiff::default(),
        };
        let both = (is_directory(&old_root), is_directory(&new_root));
        diff.pair(Vec::new(), &old_root, &new_root)?;
        if both == (true, true) && !is_same_directory(&old_root, &new_root) {
            diff.walk(b"", &old_root, &new_root)?;
        }
        diff.finish()
    }
}

/// The properties by which a renamed entry is recognised: type, file system, inode, size,
/// modification time.
type Identity = (EntryKind, u16, u64, u64, Timestamp);

/// An entry that only one of the trees has.
struct OneSided {
    path: Vec<u8>,
    /// Without its extents.
    entry: Entry,
    is_new: bool,
}

#[derive(Default)]
struct Kept {
    entries: Vec<OneSided>,
    bytes: usize,
}

struct Diff<'d> {
    repository: &'d Repository,
    old: &'d TreeVolume,
    new: &'d TreeVolume,
    kept: Kept,
    /// Changes that were not passed to `sink` yet.
    changes: Vec<TreeChange>,
    sink: &'d mut dyn FnMut(&TreeChange) -> Result<()>,
    report: TreeDiff,
}

impl<'d> Diff<'d> {
    /// Compares everything below two directories. `prefix` is the path of the newer one with a
    /// trailing slash; empty for the root.
    fn walk(&mut self, prefix: &[u8], old_root: &Entry, new_root: &Entry) -> Result<()> {
        let mut walk = PairWalk::new(self.old, self.new, old_root, new_root);
        while let Some(step) = walk.next_step()? {
            self.repository.objects.context.check_interrupted()?;
            let (old, new) = match step {
                PairStep::Entry(old, new) => (old, new),
                PairStep::Failed(error) => {
                    self.report.failures.add([prefix, walk.path()].concat(), error);
                    continue;
                }
                PairStep::Leave => continue,
            };
            match (old, new) {
                (Some(old), Some(new)) => {
                    let path = [prefix, &walk.path_of(&new.name)].concat();
                    self.pair(path.clone(), &old, &new)?;
                    match (is_directory(&old), is_directory(&new)) {
                        (true, true) if !is_same_directory(&old, &new) => {
                            if let Err(error) = walk.enter(&new.name, Some(&old), Some(&new)) {
                                self.report.failures.add(path, error);
                            }
                        }
                        // A directory became something else, or the reverse.
                        (true, false) => self.keep_below(&path, &old, false)?,
                        (false, true) => self.keep_below(&path, &new, true)?,
                        _ => {}
                    }
                }
                (old, new) => {
                    let is_new = new.is_some();
                    if let Some(entry) = new.or(old) {
                        let path = [prefix, &walk.path_of(&entry.name)].concat();
                        self.one_sided(path, entry, is_new)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares two entries of one path, but not the entries below them.
    fn pair(&mut self, path: Vec<u8>, old: &Entry, new: &Entry) -> Result<()> {
        let kind = if old.metadata.kind != new.metadata.kind {
            ChangeKind::Type
        } else if old.metadata.kind == EntryKind::File {
            let context = &self.repository.objects.context;
            match is_same_content(context, (self.old, old), (self.new, new)) {
                Ok(true) => ChangeKind::Attributes,
                Ok(false) => ChangeKind::Content,
                Err(error) if is_damage(&error) => {
                    self.report.failures.add(path, error);
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        } else {
            ChangeKind::Attributes
        };
        let attributes = differing_attributes(&old.metadata, &new.metadata);
        if kind == ChangeKind::Attributes && attributes.is_empty() {
            return Ok(());
        }
        let (old, new) = (Box::new(old.metadata.clone()), Box::new(new.metadata.clone()));
        let (old, new) = (Some(old), Some(new));
        self.add(TreeChange { kind, path, old_path: None, old, new, attributes })
    }

    /// Keeps an entry that only one of the trees has, to find moved ones. Reports it at once, with
    /// everything below it, if too many are kept.
    fn one_sided(&mut self, path: Vec<u8>, mut entry: Entry, is_new: bool) -> Result<()> {
        entry.extents = Vec::new();
        let is_full =
            self.kept.entries.len() >= KEPT_MAX || self.kept.bytes + path.len() > KEPT_BYTES_MAX;
        if !is_full {
            self.kept.bytes += path.len();
            self.kept.entries.push(OneSided { path, entry, is_new });
            return Ok(());
        }
        self.add(change_of(path.clone(), &entry, is_new))?;
        if is_directory(&entry) { self.report_below(&path, &entry, is_new) } else { Ok(()) }
    }

    fn volume(&self, is_new: bool) -> &'d TreeVolume {
        if is_new { self.new } else { self.old }
    }

    /// Keeps the entries of a directory that only one of the trees has.
    fn keep_below(&mut self, path: &[u8], directory: &Entry, is_new: bool) -> Result<()> {
        let mut walk = TreeWalk::new(self.volume(is_new), directory);
        while let Some(step) = walk.next_step()? {
            match step {
                TreeStep::Entry(entry) => {
                    let path = [path, b"/", entry.name.as_slice()].concat();
                    self.one_sided(path, entry, is_new)?;
                }
                TreeStep::Failed(error) => self.report.failures.add(path.to_vec(), error),
                TreeStep::Leave { .. } => {}
            }
        }
        Ok(())
    }

    /// Reports everything below a directory that only one of the trees has.
    fn report_below(&mut self, path: &[u8], directory: &Entry, is_new: bool) -> Result<()> {
        let mut walk = TreeWalk::new(self.volume(is_new), directory);
        while let Some(step) = walk.next_step()? {
            self.repository.objects.context.check_interrupted()?;
            let at = |walk: &TreeWalk<'_>, name: &[u8]| [path, b"/", &walk.path_of(name)].concat();
            match step {
                TreeStep::Entry(entry) => {
                    let path = at(&walk, &entry.name);
                    self.add(change_of(path.clone(), &entry, is_new))?;
                    if is_directory(&entry)
                        && let Err(error) = walk.enter(&entry)
                    {
                        self.report.failures.add(path, error);
                    }
                }
                TreeStep::Failed(error) => self.report.failures.add(at(&walk, b""), error),
                TreeStep::Leave { .. } => {}
            }
        }
        Ok(())
    }

    /// Finds moved entries among those that only one tree has. Enters the directories that were not
    /// moved, to find moved entries in them, and reports the rest.
    fn finish(mut self) -> Result<TreeDiff> {
        loop {
            self.moved()?;
            let kept = std::mem::take(&mut self.kept.entries);
            let (directories, others): (Vec<_>, Vec<_>) =
                kept.into_iter().partition(|one| is_directory(&one.entry));
            self.kept.bytes = others.iter().map(|one| one.path.len()).sum();
            self.kept.entries = others;
            if directories.is_empty() {
                break;
            }
            for OneSided { path, entry, is_new } in directories {
                self.add(change_of(path.clone(), &entry, is_new))?;
                self.keep_below(&path, &entry, is_new)?;
            }
        }
        for OneSided { path, entry, is_new } in std::mem::take(&mut self.kept.entries) {
            self.add(change_of(path, &entry, is_new))?;
        }
        self.pass_on()?;
        Ok(self.report)
    }

    /// Reports the kept entries that have another path in the newer tree, and removes them.
    fn moved(&mut self) -> Result<()> {
        let series = self.old.series();
        if series != self.new.series() {
            return Ok(());
        }
        let mut kept: Vec<Option<OneSided>> =
            std::mem::take(&mut self.kept.entries).into_iter().map(Some).collect();
        let mut gone: HashMap<Identity, Vec<usize>> = HashMap::new();
        for (at, one) in kept.iter().enumerate().rev() {
            if let Some(one) = one.as_ref().filter(|one| !one.is_new) {
                gone.entry(identity(&one.entry)).or_default().push(at);
            }
        }
        let mut changed = Vec::new();
        for at in 0..kept.len() {
            let Some(new) = kept[at].take_if(|one| one.is_new) else { continue };
            let from = gone.get_mut(&identity(&new.entry)).and_then(Vec::pop);
            let Some(old) = from.and_then(|from| kept[from].take()) else {
                kept[at] = Some(new);
                continue;
            };
            if is_directory(&new.entry) && !is_same_directory(&old.entry, &new.entry) {
                changed.push((new.path.clone(), old.entry.clone(), new.entry.clone()));
            }
            let (from, to) = (old.entry.metadata, new.entry.metadata);
            self.add(TreeChange {
                kind: ChangeKind::Moved,
                path: new.path,
                old_path: Some(old.path),
                attributes: differing_attributes(&from, &to),
                old: Some(Box::new(from)),
                new: Some(Box::new(to)),
            })?;
        }
        self.kept.entries = kept.into_iter().flatten().collect();
        for (mut path, old, new) in changed {
            path.push(b'/');
            self.walk(&path, &old, &new)?;
        }
        Ok(())
    }

    /// Counts a change, and keeps it to pass it to `sink` in order.
    fn add(&mut self, change: TreeChange) -> Result<()> {
        let report = &mut self.report;
        let count = match change.kind {
            ChangeKind::Added => &mut report.added,
            ChangeKind::Removed => &mut report.removed,
            ChangeKind::Content => &mut report.content,
            ChangeKind::Attributes => &mut report.attributes,
            ChangeKind::Type => &mut report.types,
            ChangeKind::Moved => &mut report.moved,
        };
        *count += 1;
        if !matches!(change.kind, ChangeKind::Attributes | ChangeKind::Moved) {
            let size = |side: &Option<Box<Metadata>>| side.as_ref().map_or(0, |it| it.size);
            report.added_bytes = report.added_bytes.saturating_add(size(&change.new));
            report.removed_bytes = report.removed_bytes.saturating_add(size(&change.old));
        }
        self.changes.push(change);
        if self.changes.len() >= KEPT_MAX { self.pass_on() } else { Ok(()) }
    }

    fn pass_on(&mut self) -> Result<()> {
        let mut changes = std::mem::take(&mut self.changes);
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        changes.iter().try_for_each(|change| (self.sink)(change))
    }
}

fn change_of(path: Vec<u8>, entry: &Entry, is_new: bool) -> TreeChange {
    let metadata = Some(Box::new(entry.metadata.clone()));
    let (kind, old, new) = if is_new {
        (ChangeKind::Added, None, metadata)
    } else {
        (ChangeKind::Removed, metadata, None)
    };
    TreeChange { kind, path, old_path: None, old, new, attributes: Vec::new() }
}

fn identity(entry: &Entry) -> Identity {
    let metadata = &entry.metadata;
    let (system, inode, size) = (metadata.file_system, metadata.inode, metadata.size);
    (metadata.kind, system, inode, size, metadata.modified)
}
