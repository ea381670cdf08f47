//! A preview of the restore of a file tree.

use silt_format::Result;
use silt_format::tree::{Entry, EntryKind};
use silt_repository::FoundVolume;
use silt_repository::tree::TreeVolume;
use silt_tree::PathRules;

use super::selected::{Selected, SelectedWalk};
use super::walk::Failures;
use crate::repository::Repository;

/// The entries that a restore of a file tree would make.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let source = folder.path().join("home");
/// # std::fs::create_dir(&source).unwrap();
/// # std::fs::write(source.join("notes.txt"), b"remember").unwrap();
/// # std::fs::write(source.join("draft.tmp"), b"nothing").unwrap();
/// # let mut backup = repository.backup("home", BackupOptions::default())?;
/// # backup.add_tree("files", &source, &TreeOptions::default())?;
/// # backup.finish()?;
/// # let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let mut rules = PathRules::default();
/// rules.exclude("*.tmp", false)?;
/// let volume = found.volume("files")?;
/// let plan: TreeRestorePlan = repository.plan_tree_restore(volume, b"/", &rules, 0)?;
/// assert_eq!((plan.files, plan.bytes, plan.failures.count), (1, 8, 0));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct TreeRestorePlan {
    /// Regular files. Each hard link counts.
    pub files: u64,
    /// Directories, without the one whose content is restored.
    pub directories: u64,
    /// Symbolic links, pipes, sockets and devices.
    pub others: u64,
    /// Sum of the sizes of the files in bytes.
    pub bytes: u64,
    /// Entries that cannot be read.
    pub failures: Failures,
}

impl TreeRestorePlan {
    /// Returns the number of all entries.
    pub fn entries(&self) -> u64 {
        self.files + self.directories + self.others
    }

    fn count(&mut self, entry: &Entry) {
        match entry.metadata.kind {
            EntryKind::File => self.files += 1,
            EntryKind::Directory => self.directories += 1,
            _ => self.others += 1,
        }
        self.bytes = self.bytes.saturating_add(entry.metadata.size);
    }
}

impl Repository {
    /// Returns the entries that [`restore_tree`](Self::restore_tree) would make from `path`. Reads
    /// directories but no content, and does not look at the target.
    pub fn plan_tree_restore(
        &self,
        of: FoundVolume<'_>,
        path: &[u8],
        rules: &PathRules,
        memory_bytes: u64,
    ) -> Result<TreeRestorePlan> {
        let volume = TreeVolume::open(self, of, memory_bytes)?;
        let entry = volume.find(path)?;
        let mut plan = TreeRestorePlan::default();
        if entry.metadata.kind != EntryKind::Directory {
            plan.count(&entry);
            return Ok(plan);
        }
        let mut walk = SelectedWalk::new(&volume, &entry, rules)?;
        while let Some(step) = walk.next_step()? {
            self.objects.context.check_interrupted()?;
            match step {
                Selected::Enter(_, entry) | Selected::Entry(_, entry) => plan.count(&entry),
                Selected::Failed(path, error) => plan.failures.add(path, error),
                Selected::Leave(_) => {}
            }
        }
        Ok(plan)
    }
}
