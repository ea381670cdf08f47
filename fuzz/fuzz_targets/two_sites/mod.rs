//! A repository with snapshots, replicas of it in memory, and inputs that say how a peer behaves.

use std::sync::{Arc, OnceLock};

use silt_format::tree::EntryKind;
use siltstone::source::StreamSource;
use siltstone::storage::MemoryStorage;
use siltstone::{
    BackupOptions, CheckOptions, Config, Context, DataCheck, Protection, Repository, Selector,
    SystemEnv, TreeOptions, TreeVolume, VolumeKind, VolumeReader,
};

const SEGMENT: usize = 2 << 20;
/// Volumes and files are read up to this many bytes.
const READ_BYTES_MAX: u64 = 8 << 20;

/// Bytes that say what happens next; at their end, zeros.
pub struct Input<'d>(pub &'d [u8]);

impl<'d> Input<'d> {
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// Up to 255 bytes, or up to 65,535.
    pub fn bytes(&mut self) -> &'d [u8] {
        let count = match self.byte() {
            255 => usize::from(self.byte()) << 8 | usize::from(self.byte()),
            count => usize::from(count),
        };
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// A number that is often at a boundary.
    pub fn number(&mut self) -> u64 {
        match self.byte() {
            small @ 0..128 => u64::from(small),
            power @ 128..192 => 1 << (power - 128),
            power @ 192.. => (1 << (power - 192)) - 1,
        }
    }
}

pub struct Sites {
    /// With two snapshots of a disk, and two of a tree.
    pub here: Repository,
    /// Replicas: empty, with the first snapshots, with all.
    replicas: Vec<MemoryStorage>,
}

impl Sites {
    /// A replica of its own.
    pub fn replica(&self, choice: u8) -> Repository {
        let storage = &self.replicas[usize::from(choice) % self.replicas.len()];
        opened(Arc::new(storage.snapshot()))
    }
}

fn context() -> Context {
    SystemEnv::context()
}

fn opened(storage: Arc<MemoryStorage>) -> Repository {
    Repository::open(storage, context(), || Ok(Vec::new())).unwrap()
}

pub fn options() -> BackupOptions {
    BackupOptions { jobs: 1, ..BackupOptions::default() }
}

/// Bytes that do not repeat.
fn noise(mut state: u64, bytes: usize) -> Vec<u8> {
    let next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

pub fn sites() -> &'static Sites {
    static SITES: OnceLock<Sites> = OnceLock::new();
    SITES.get_or_init(|| {
        let storage = Arc::new(MemoryStorage::new());
        let (config, open) = (Config::default(), &Protection::None);
        let here = Repository::init(storage, context(), config, open, None).unwrap();
        let replicated = Arc::new(MemoryStorage::new());
        let there = here.init_replica(replicated.clone(), context(), open, None).unwrap();
        let mut replicas = vec![replicated.snapshot()];
        let folder = std::env::temp_dir().join(format!("silt-fuzz-sites-{}", std::process::id()));
        let mut disk = vec![0; 3 * SEGMENT];
        disk[..30_000].copy_from_slice(&noise(1, 30_000));
        disk[2 * SEGMENT..][..30_000].copy_from_slice(&noise(2, 30_000));
        for day in 0..2_u64 {
            let source = StreamSource::new(Box::new(std::io::Cursor::new(disk.clone())));
            let mut backup = here.backup("web1", options()).unwrap();
            backup.add_volume("root", &source, None).unwrap();
            backup.finish().unwrap();
            disk[2 * SEGMENT + 9000..][..5000].fill(3);
            disk[..30_000].iter_mut().step_by(3000).for_each(|byte| *byte ^= 1);
            for file in 0..6 {
                let folder = folder.join(format!("directory{}", file % 2));
                std::fs::create_dir_all(&folder).unwrap();
                let bytes = noise(file + if file == 2 { 10 * (day + 1) } else { 0 }, 5000);
                std::fs::write(folder.join(format!("file{file}")), bytes).unwrap();
            }
            let mut backup = here.backup("home", options()).unwrap();
            backup.add_tree("files", &folder, &TreeOptions::default()).unwrap();
            backup.finish().unwrap();
            let all = silt_replicate::ReplicateOptions::default();
            let report = silt_replicate::replicate(&here, &there, all, options()).unwrap();
            assert!(report.is_complete(), "{report:?}");
            replicas.push(replicated.snapshot());
        }
        std::fs::remove_dir_all(folder).unwrap();
        Sites { here, replicas }
    })
}

/// Number of snapshots of a repository.
pub fn snapshots(repository: &Repository) -> usize {
    repository.heads(&[]).unwrap().iter().map(|head| head.snapshots.len()).sum()
}

/// Every snapshot of a repository restores, and nothing in it is damaged.
pub fn assert_whole(repository: &Repository) {
    for head in repository.heads(&[]).unwrap() {
        for entry in &head.snapshots {
            let found = repository.find(&Selector::Id(entry.id.to_string())).unwrap();
            for volume in &found.snapshot.volumes {
                let of = found.volume(&volume.name).unwrap();
                match volume.kind {
                    VolumeKind::Disk => {
                        let reader = VolumeReader::open(repository, of, 0).unwrap();
                        let bytes = reader.bytes().min(READ_BYTES_MAX);
                        reader.read_at(0, &mut vec![0; bytes as usize]).unwrap();
                    }
                    VolumeKind::Tree(_) => {
                        read_tree(&TreeVolume::open(repository, of, 0).unwrap());
                    }
                }
            }
        }
    }
    let options = CheckOptions { data: DataCheck::All, ..CheckOptions::default() };
    let report = repository.check(&options).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
}

fn read_tree(tree: &TreeVolume) {
    let mut open = vec![tree.tree().root.clone()];
    while let Some(directory) = open.pop() {
        let mut cursor = tree.entries(&directory);
        while let Some(entry) = tree.next(&mut cursor).unwrap() {
            if entry.metadata.kind == EntryKind::File {
                tree.check_extents(&entry).unwrap();
                let bytes = entry.metadata.size.min(READ_BYTES_MAX);
                tree.read_at(&entry, 0, &mut vec![0; bytes as usize]).unwrap();
            }
            open.push(entry);
        }
    }
}
