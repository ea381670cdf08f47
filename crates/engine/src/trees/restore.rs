//! Restoring a file tree, or a part of one, to a directory.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use silt_format::tree::{Entry, EntryKind, FileId, State};
use silt_format::{Advice, Error, ErrorKind, Result};
use silt_repository::FoundVolume;
use silt_repository::event::{Activity, Progress};
use silt_repository::jobs::jobs;
use silt_repository::tree::TreeVolume;
use silt_tree::{Existing, FileStep, MakeOptions, Maker, PathRules, Report};

use super::fill::{Filled, Filling, Job, Task};
use super::selected::{Selected, SelectedWalk};
use crate::repository::Repository;

/// Small files are compared and written by one thread in batches up to this size, as they share
/// segments.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_FILES: usize = 32;
/// Maximum number of files that are compared or written at a time, besides the current batch.
const FILES_MAX: usize = 128;

/// Options for restoring a file tree.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let (source, target) = (folder.path().join("home"), folder.path().join("restored"));
/// # std::fs::create_dir(&source).unwrap();
/// # std::fs::write(source.join("notes.txt"), b"remember").unwrap();
/// # let mut backup = repository.backup("home", BackupOptions::default())?;
/// # backup.add_tree("files", &source, &TreeOptions::default())?;
/// # backup.finish()?;
/// # let found = repository.find(&Selector::Time(None, When::Latest))?;
/// std::fs::create_dir(&target).unwrap();
/// std::fs::write(target.join("old.txt"), b"not in the snapshot").unwrap();
/// let options = TreeRestoreOptions { delete: true, ..TreeRestoreOptions::default() };
/// repository.restore_tree(found.volume("files")?, b"/", &target, &options)?;
/// assert!(target.join("notes.txt").exists() && !target.join("old.txt").exists());
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TreeRestoreOptions {
    /// Attributes to set, and the treatment of existing entries.
    pub make: MakeOptions,
    /// The entries to restore, by their paths relative to the restored directory.
    pub rules: PathRules,
    /// Remove entries of the target that are not in the snapshot, except those that `rules` leave
    /// out.
    pub delete: bool,
    /// Number of threads that write files; 0 for one per core.
    pub jobs: usize,
    /// Memory limit in bytes; 0 for the context's limit.
    pub memory_bytes: u64,
}

/// The result of restoring a file tree.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let (source, target) = (folder.path().join("home"), folder.path().join("restored"));
/// # std::fs::create_dir(&source).unwrap();
/// # std::fs::write(source.join("notes.txt"), b"remember").unwrap();
/// # let mut backup = repository.backup("home", BackupOptions::default())?;
/// # backup.add_tree("files", &source, &TreeOptions::default())?;
/// # backup.finish()?;
/// # let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let options = TreeRestoreOptions::default();
/// let volume = found.volume("files")?;
/// let report: TreeRestoreReport = repository.restore_tree(volume, b"/", &target, &options)?;
/// for failure in &report.made.failures {
///     println!("{}: {}", failure.path.escape_ascii(), failure.error);
/// }
/// assert_eq!((report.bytes, report.made.failed), (8, 0));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TreeRestoreReport {
    /// Sum of the sizes of files that were written, or existed with the same content, in bytes.
    pub bytes: u64,
    /// Number of entries that the backup could not read completely. Their missing parts are holes.
    pub unreadable: u64,
    /// Counts of entries, and failures.
    pub made: Report,
}

impl Repository {
    /// Restores `path` in a file tree into the directory `target`: the content of a directory, or a
    /// single entry. Creates `target` if it does not exist.
    ///
    /// Fails with `AlreadyExists` before anything is written if `make.existing` is `Refuse`, there
    /// are no `rules`, and the target has one of the entries that would be restored into it.
    ///
    /// An entry that fails, because of damage or because of the target, does not stop the others;
    /// the report has the failures. Writes nothing outside of the target. On return, everything is
    /// durable. Fails with `NotFound` if `path` does not exist.
    pub fn restore_tree(
        &self,
        of: FoundVolume<'_>,
        path: &[u8],
        target: &Path,
        options: &TreeRestoreOptions,
    ) -> Result<TreeRestoreReport> {
        let context = &self.objects.context;
        let volume = TreeVolume::open(self, of, options.memory_bytes)?;
        let entry = volume.find(path)?;
        if options.make.existing == Existing::Refuse && options.rules.is_empty() {
            refuse_existing(&volume, path, &entry, target)?;
        }
        let make = MakeOptions { lists_others: options.delete, ..options.make.clone() };
        let maker = Maker::open(target, make)?;
        let total = || entry.subtree.as_ref().map_or(entry.metadata.size, |tree| tree.bytes_below);
        let total = options.rules.is_empty().then(total);
        let workers = context.workers(jobs(options.jobs));
        let filling = Filling::new(context, &volume, workers);
        std::thread::scope(|scope| {
            let _end = EndOnDrop(&filling);
            (0..workers).for_each(|_| drop(scope.spawn(|| filling.work())));
            let mut restore = TreeRestore {
                repository: self,
                volume: &volume,
                filling: &filling,
                maker,
                options,
                batch: Vec::new(),
                batch_bytes: 0,
                linked: HashMap::new(),
                path: Vec::new(),
                total,
                report: TreeRestoreReport::default(),
            };
            if entry.metadata.kind == EntryKind::Directory {
                if !options.rules.has_includes() {
                    restore.maker.root(&entry.metadata);
                }
                restore.directory(&entry)?;
            } else {
                restore.entry(entry)?;
            }
            restore.collect(0)?;
            restore.report.made = restore.maker.finish()?;
            Ok(restore.report)
        })
    }
}

/// Fails with `AlreadyExists` if the target has an entry that would be restored into it, before
/// anything is written.
fn refuse_existing(volume: &TreeVolume, path: &[u8], entry: &Entry, target: &Path) -> Result<()> {
    let failed = |error| Error::io(format!("list {}", target.display()), error);
    let names = match std::fs::read_dir(target) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        names => names.map_err(failed)?,
    };
    for name in names {
        let name = name.map_err(failed)?.file_name();
        let is_restored = if entry.metadata.kind == EntryKind::Directory {
            // What cannot be read is reported when it is restored.
            let path = [path, b"/", name.as_bytes()].concat();
            volume.look_up(&path).is_ok_and(|found| found.is_some())
        } else {
            name.as_bytes() == entry.name
        };
        if is_restored {
            let there = target.join(name);
            let message = format!("{} exists already; nothing was restored", there.display());
            return Err(
                Error::new(ErrorKind::AlreadyExists, message).with_advice(Advice::ReplaceTarget)
            );
        }
    }
    Ok(())
}

struct EndOnDrop<'f, 'a>(&'f Filling<'a>);

impl Drop for EndOnDrop<'_, '_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The components of a path below the target.
type PathNames = Vec<Vec<u8>>;

struct TreeRestore<'r> {
    repository: &'r Repository,
    volume: &'r TreeVolume,
    filling: &'r Filling<'r>,
    maker: Maker,
    options: &'r TreeRestoreOptions,
    batch: Vec<Job>,
    batch_bytes: u64,
    /// For each file with hard links: its first path, and the number of names still to come.
    linked: HashMap<FileId, (PathNames, u32)>,
    path: PathNames,
    total: Option<u64>,
    report: TreeRestoreReport,
}

impl TreeRestore<'_> {
    /// Makes the selected entries below a directory.
    fn directory(&mut self, root: &Entry) -> Result<()> {
        let mut walk = SelectedWalk::new(self.volume, root, &self.options.rules)?;
        while let Some(step) = walk.next_step()? {
            self.repository.objects.context.check_interrupted()?;
            match step {
                Selected::Enter(_, entry) => {
                    self.note(&entry);
                    if self.maker.enter(&entry.name, &entry.metadata) {
                        self.path.push(entry.name);
                    } else {
                        walk.skip();
                    }
                }
                Selected::Entry(_, entry) => self.entry(entry)?,
                Selected::Failed(path, error) => self.maker.note_failure(path, error),
                Selected::Leave(is_whole) => {
                    if self.options.delete && is_whole {
                        self.remove_others(&mut walk);
                    }
                    self.maker.leave();
                    self.path.pop();
                }
            }
        }
        Ok(())
    }

    /// Removes entries of the directory that are not in the snapshot, unless patterns leave them
    /// out. Not called if some entries of the snapshot could not be read.
    fn remove_others(&mut self, walk: &mut SelectedWalk<'_>) {
        let removed = self.maker.others().and_then(|mut others| {
            while let Some(name) = others.next_name()? {
                if walk.selects_in_left(&name) {
                    self.maker.remove(&name);
                }
            }
            Ok(())
        });
        if let Err(error) = removed {
            self.maker.note_failure(self.path.join(&b'/'), error);
        }
    }

    fn note(&mut self, entry: &Entry) {
        self.report.unreadable += u64::from(entry.state == State::Unreadable);
    }

    /// Makes an entry that is not a directory.
    fn entry(&mut self, entry: Entry) -> Result<()> {
        self.note(&entry);
        let metadata = &entry.metadata;
        if metadata.links > 1 {
            let id = entry.file_id();
            if let Some((first, left)) = self.linked.get_mut(&id) {
                *left = left.saturating_sub(1);
                let (first, is_last) = (first.clone(), *left == 0);
                if is_last {
                    self.linked.remove(&id);
                }
                // The first name must be complete before a link to it can be made.
                self.collect(0)?;
                self.maker.link_to(&entry.name, metadata, &first);
                return Ok(());
            }
            let mut path = self.path.clone();
            path.push(entry.name.clone());
            self.linked.insert(id, (path, metadata.links - 1));
        }
        if metadata.kind != EntryKind::File {
            self.maker.other(&entry.name, metadata);
            return Ok(());
        }
        match self.maker.file(&entry.name, metadata) {
            FileStep::New(file) => self.fill(Task::Write(file), entry),
            FileStep::Present(present) if present.may_stay() => {
                self.fill(Task::Compare(present), entry)
            }
            FileStep::Present(present) => match self.maker.renew(present) {
                Some((file, old)) => self.fill(Task::Rewrite(file, old), entry),
                None => Ok(()),
            },
            FileStep::Failed => Ok(()),
        }
    }

    /// Adds a file to the batch, and passes a full batch to the threads.
    fn fill(&mut self, task: Task, entry: Entry) -> Result<()> {
        self.add(task, entry);
        if self.batch.len() >= BATCH_FILES || self.batch_bytes >= BATCH_BYTES {
            self.hand_in();
            self.collect(FILES_MAX)?;
        }
        Ok(())
    }

    fn add(&mut self, task: Task, entry: Entry) {
        self.batch_bytes = self.batch_bytes.saturating_add(entry.metadata.size);
        self.batch.push(Job { task, entry });
    }

    fn hand_in(&mut self) {
        self.batch_bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        if !batch.is_empty() {
            self.filling.push(batch);
        }
    }

    /// Completes the files whose content was compared or written. Waits until at most `running_max`
    /// are left.
    fn collect(&mut self, running_max: usize) -> Result<()> {
        loop {
            if running_max == 0 {
                self.hand_in();
            }
            for filled in self.filling.take(running_max)? {
                self.complete(filled);
            }
            // Files that differ are written now.
            if running_max > 0 || self.batch.is_empty() {
                break;
            }
        }
        self.progress();
        self.repository.objects.context.check_interrupted()
    }

    fn complete(&mut self, filled: Filled) {
        let bytes = match filled {
            Filled::Written { file, bytes, result: Ok(()) } => {
                self.maker.complete(file);
                bytes
            }
            Filled::Written { file, result: Err(error), .. } => {
                self.maker.give_up(file, error);
                0
            }
            Filled::Same { file, bytes } => {
                self.maker.keep(file);
                bytes
            }
            Filled::Differs(file, entry) => {
                if let Some((file, old)) = self.maker.renew(file) {
                    self.add(Task::Rewrite(file, old), *entry);
                }
                0
            }
        };
        self.report.bytes = self.report.bytes.saturating_add(bytes);
    }

    fn progress(&self) {
        let progress = Progress {
            entries: self.maker.made_so_far(),
            ..Progress::bytes(Activity::Restore, self.report.bytes, self.total)
        };
        self.repository.objects.context.report(progress);
    }
}
