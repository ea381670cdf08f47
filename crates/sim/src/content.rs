//! The sources of a series: a disk, a file tree, or both.

use silt_format::{Result, VolumeKind};
use siltstone::{
    BackupSession, Found, Repository, RestoreOptions, TreeOptions, TreeVolume, Volume,
};

use crate::disk::{Source, Target};
use crate::tree::{self, MemoryTree};

/// The volumes of one backup.
#[derive(Clone, Default)]
pub struct Content {
    /// The disk.
    pub disk: Option<Vec<u8>>,
    /// The file tree.
    pub tree: Option<MemoryTree>,
}

impl Content {
    /// Returns the content without the tree; `None` if there is no disk.
    pub fn only_disk(&self) -> Option<Self> {
        self.disk.is_some().then(|| Self { disk: self.disk.clone(), tree: None })
    }

    /// Returns the bytes that [`restored`] must return.
    pub fn expected(&self) -> Vec<u8> {
        let mut bytes = self.disk.clone().unwrap_or_default();
        bytes.extend(self.tree.iter().flat_map(MemoryTree::manifest));
        bytes
    }

    /// Backs up all volumes.
    pub fn add_to(&self, session: &mut BackupSession<'_>) -> Result<()> {
        if let Some(disk) = &self.disk {
            session.add_volume("disk", &Source(disk.clone()), None)?;
        }
        if let Some(tree) = &self.tree {
            session.add_tree_from("tree", "memory", tree.source(), &TreeOptions::default())?;
        }
        Ok(())
    }
}

/// Restores all volumes of a snapshot, and returns their bytes one after the other.
pub fn restored(repository: &Repository, found: &Found) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for volume in &found.snapshot.volumes {
        bytes.extend(match volume.kind {
            VolumeKind::Disk => restored_disk(repository, found, volume)?,
            VolumeKind::Tree(_) => {
                let volume = found.volume(&volume.name)?;
                tree::restored(&TreeVolume::open(repository, volume, 0)?)?
            }
        });
    }
    Ok(bytes)
}

fn restored_disk(repository: &Repository, found: &Found, volume: &Volume) -> Result<Vec<u8>> {
    let target = Target::new(volume.bytes);
    let options = RestoreOptions { jobs: 1, ..RestoreOptions::default() };
    repository.restore(found.volume(&volume.name)?, &target, options)?;
    Ok(target.into_bytes())
}
