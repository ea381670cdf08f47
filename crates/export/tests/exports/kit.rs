//! Repositories in memory, and disks that are backed up to them.

use std::sync::Arc;

use silt_format::Id;
use silt_storage::Storage;
use siltstone::source::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};
use siltstone::{BackupOptions, Config, Protection, Repository, Result, SystemEnv};

pub struct Disk(pub Vec<u8>);

impl VolumeSource for Disk {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            description: "disk".to_owned(),
            format: SourceFormat::Raw,
            size: Some(self.0.len() as u64),
            backing: Vec::new(),
        }
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let length = self.0.len() as u64 - offset;
        Ok(Extent { offset, length, kind: ExtentKind::Data })
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        let rest = &self.0[usize::try_from(offset).unwrap().min(self.0.len())..];
        let length = rest.len().min(into.len());
        into[..length].copy_from_slice(&rest[..length]);
        Ok(length)
    }
}

/// A disk whose beginning is data and the rest a hole.
pub struct SparseDisk {
    pub data: Vec<u8>,
    pub size: u64,
}

impl VolumeSource for SparseDisk {
    fn info(&self) -> SourceInfo {
        SourceInfo { size: Some(self.size), ..Disk(Vec::new()).info() }
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let data = self.data.len() as u64;
        if offset < data {
            return Ok(Extent { offset, length: data - offset, kind: ExtentKind::Data });
        }
        Ok(Extent { offset, length: self.size - offset, kind: ExtentKind::Zero })
    }
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        into.fill(0);
        Disk(self.data.clone()).read_at(offset, into)?;
        Ok(into.len())
    }
}

/// Bytes that neither repeat nor compress.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = vec![0; length];
    for piece in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        piece.copy_from_slice(&state.to_le_bytes()[..piece.len()]);
    }
    bytes
}

pub fn init(storage: Arc<dyn Storage>) -> Repository {
    let (context, config) = (SystemEnv::context(), Config::default());
    Repository::init(storage, context, config, &Protection::None, None).unwrap()
}

pub fn reopen(storage: Arc<dyn Storage>) -> Repository {
    Repository::open(storage, SystemEnv::context(), || unreachable!("nothing is encrypted"))
        .unwrap()
}

pub fn backup(repository: &Repository, series: &str, volumes: &[(&str, &[u8])]) -> Id {
    let mut backup = repository.backup(series, BackupOptions::default()).unwrap();
    for (name, bytes) in volumes {
        backup.add_volume(name, &Disk(bytes.to_vec()), None).unwrap();
    }
    backup.finish().unwrap().snapshot.id
}

pub fn backup_from(repository: &Repository, series: &str, volume: &str, disk: &dyn VolumeSource) {
    let mut backup = repository.backup(series, BackupOptions::default()).unwrap();
    backup.add_volume(volume, disk, None).unwrap();
    backup.finish().unwrap();
}
