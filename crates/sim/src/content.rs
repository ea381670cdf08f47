//! What a series is backed up from: disks and file trees.

use silt_format::{Result, VolumeKind};
use siltstone::{Found, Repository, RestoreOptions, TreeVolume, Volume};

use crate::disk::Target;
use crate::race::Race;
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
    /// What a restore must bring back of each volume.
    pub fn expected(&self) -> Vec<Vec<u8>> {
        let expected = self.volumes.iter().map(|(_, data)| match data {
            Data::Disk(bytes) => bytes.clone(),
            Data::Tree(tree, _) => tree.manifest(),
        });
        expected.collect()
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
