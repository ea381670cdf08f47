//! What a series is backed up from: disks and file trees.

use std::sync::{Arc, Mutex};

use silt_format::{Result, VolumeKind};
use siltstone::{
    BackupSession, Found, Repository, RestoreOptions, TreeOptions, TreeVolume, Volume,
};

use crate::disk::{Source, Target};
use crate::live::{Live, Race};
use crate::model::{Attempt, Model};
use crate::process::Process;
use crate::tree::{self, MemoryTree};

/// The volumes of one backup, each with its name.
#[derive(Clone, Default)]
pub struct Content {
    /// In their order.
    pub volumes: Vec<(&'static str, Data)>,
}

/// What a volume is backed up from.
#[derive(Clone)]
pub enum Data {
    /// The bytes of a disk.
    Disk(Vec<u8>),
    /// A file tree, and how it changes meanwhile.
    Tree(Box<MemoryTree>, Option<Race>),
}

impl Content {
    /// The same without trees; `None` if nothing is left.
    pub fn only_disks(mut self) -> Option<Self> {
        self.volumes.retain(|(_, data)| matches!(data, Data::Disk(_)));
        (!self.volumes.is_empty()).then_some(self)
    }

    /// What a restore must bring back of each volume.
    pub fn expected(&self) -> Vec<Vec<u8>> {
        let expected = self.volumes.iter().map(|(_, data)| match data {
            Data::Disk(bytes) => bytes.clone(),
            Data::Tree(tree, _) => tree.manifest(),
        });
        expected.collect()
    }

    /// Backs all of it up.
    pub fn add_to(
        self,
        session: &mut BackupSession<'_>,
        process: &Arc<Process>,
        model: &Arc<Mutex<Model>>,
        attempt: Attempt,
    ) -> Result<()> {
        for (number, (name, data)) in self.volumes.into_iter().enumerate() {
            match data {
                Data::Disk(bytes) => session.add_volume(name, &Source(bytes), None)?,
                Data::Tree(tree, race) => {
                    let live = Live::new(*tree, race, process, model, (attempt, number));
                    let options = TreeOptions::default();
                    session.add_tree_from(name, "memory", live.source(), &options)?
                }
            };
        }
        Ok(())
    }
}

/// Restores the volumes of a snapshot, in their order.
pub fn restored(repository: &Repository, found: &Found) -> Result<Vec<Vec<u8>>> {
    let volumes = found.snapshot.volumes.iter().map(|volume| match volume.kind {
        VolumeKind::Disk => restored_disk(repository, found, volume),
        VolumeKind::Tree(_) => {
            let volume = found.volume(&volume.name)?;
            tree::restored(&TreeVolume::open(repository, volume, 0)?)
        }
    });
    volumes.collect()
}

fn restored_disk(repository: &Repository, found: &Found, volume: &Volume) -> Result<Vec<u8>> {
    let target = Target::new(volume.bytes);
    let options = RestoreOptions { jobs: 1, ..RestoreOptions::default() };
    repository.restore(found.volume(&volume.name)?, &target, options)?;
    Ok(target.into_bytes())
}
