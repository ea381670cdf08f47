//! Repositories in memory, and disks made of noise.

use std::sync::Arc;

use silt_replicate::{ReplicateOptions, ReplicateReport, replicate};
use siltstone::source::StreamSource;
use siltstone::storage::MemoryStorage;
use siltstone::{
    BackupOptions, BackupReport, CheckOptions, Config, Context, DataCheck, Protection, Repository,
    Selector, SystemEnv, VolumeReader, When,
};

pub const SEGMENT: usize = 2 << 20;

pub fn context() -> Context {
    SystemEnv::context()
}

pub struct Site {
    pub storage: Arc<MemoryStorage>,
    pub repository: Repository,
}

pub fn site() -> Site {
    let storage = Arc::new(MemoryStorage::new());
    let repository =
        Repository::init(storage.clone(), context(), Config::default(), &Protection::None, None);
    Site { storage, repository: repository.unwrap() }
}

pub fn replica_of(site: &Site) -> Site {
    let storage = Arc::new(MemoryStorage::new());
    let repository =
        site.repository.init_replica(storage.clone(), context(), &Protection::None, None);
    Site { storage, repository: repository.unwrap() }
}

/// Bytes that do not compress and do not repeat.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}

pub fn back_up(site: &Site, series: &str, disks: &[(&str, &[u8])]) -> BackupReport {
    let mut backup = site.repository.backup(series, BackupOptions::default()).unwrap();
    for (name, bytes) in disks {
        let source = StreamSource::new(Box::new(std::io::Cursor::new(bytes.to_vec())));
        backup.add_volume(name, &source, None).unwrap();
    }
    backup.finish().unwrap()
}

pub fn send(from: &Site, to: &Site) -> ReplicateReport {
    send_by(from, to, ReplicateOptions::default())
}

pub fn send_by(from: &Site, to: &Site, options: ReplicateOptions) -> ReplicateReport {
    replicate(&from.repository, &to.repository, options, BackupOptions::default()).unwrap()
}

/// The newest snapshot's volume.
pub fn read(site: &Site, series: &str, volume: &str) -> Vec<u8> {
    let latest = Selector::Time(Some(series.to_owned()), When::Latest);
    read_of(site, &latest, volume)
}

pub fn read_of(site: &Site, selector: &Selector, volume: &str) -> Vec<u8> {
    let found = site.repository.find(selector).unwrap();
    let reader = VolumeReader::open(&site.repository, found.volume(volume).unwrap(), 0).unwrap();
    let mut bytes = vec![0; usize::try_from(reader.bytes()).unwrap()];
    assert_eq!(reader.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Reads all data, and fails on damage and on objects that nothing refers to.
pub fn check(site: &Site) {
    let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = site.repository.check(&options).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

