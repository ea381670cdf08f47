//! The machines of a trace, backed up by the product: each is a series of a repository in memory,
//! and each of its days a snapshot.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::{Config, Id, Lease, LevelBytes, SHARED_STORE, names};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_storage::{MemoryStorage, Storage, list_all};
use siltstone::{
    BackupOptions, Context, DetectionOptions, Env, PopularOptions, PopularReport, Process,
    Protection, Repository, RoundMember, RoundOptions, RoundVolume, Selector, SharePolicy, Silent,
    VolumeReader, When,
};

use crate::Result;
use crate::disk::Disk;
use crate::trace::{Day, Trace};
use silt_report::Random;

/// The name of a machine's volume.
pub const VOLUME: &str = "disk";
/// Chunks of a trace take 16 bytes; so a container has as many as one of 8 MiB has of real ones
/// that compress to half.
const CONTAINER_BYTES: u32 = 64 << 10;
/// No time is spent on compressing them.
const ZSTD_LEVEL: i32 = -7;

/// A part of a container: its number, and which part it is.
pub type Block = (u32, usize);

/// An environment in which a trace always gives the same figures: its chance is drawn from a seed,
/// by one thread.
struct Seeded {
    now_ns: AtomicI64,
    random: Mutex<Random>,
}

impl Env for Seeded {
    fn now_ns(&self) -> i64 {
        self.now_ns.fetch_add(1_000_000, Ordering::Relaxed)
    }
    fn entropy(&self, bytes: &mut [u8]) {
        let mut random = self.random.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&random.next().to_le_bytes()[..part.len()]);
        }
    }
    fn process(&self) -> Process {
        Process::default()
    }
    fn may_be_running(&self, _: &Lease) -> bool {
        true
    }
    fn is_interrupted(&self) -> bool {
        false
    }
    fn is_single_threaded(&self) -> bool {
        true
    }
}

/// A repository with all machines of a trace.
pub struct Fleet<'t> {
    trace: &'t Trace,
    storage: Arc<dyn Storage>,
    repository: Repository,
    /// What each level found in all backups.
    pub levels: LevelBytes,
}

/// Seeds of a repository that is made, and of one that is opened again, later.
const MADE: u32 = 3;
const REOPENED: u32 = 4;

/// What a repository of traces runs in.
fn context(seed: u32) -> Context {
    let random = Mutex::new(Random(u64::from(seed)));
    let env = Arc::new(Seeded { now_ns: AtomicI64::new(i64::from(seed) << 50), random });
    Context::new(env, Arc::new(Silent))
}

/// An empty repository whose containers hold as many chunks of a trace as others hold of disks.
pub fn repository(storage: Arc<dyn Storage>) -> Result<Repository> {
    repository_of(storage, CONTAINER_BYTES)
}

fn repository_of(storage: Arc<dyn Storage>, container_bytes: u32) -> Result<Repository> {
    let config = Config { container_bytes, zstd_level: ZSTD_LEVEL, ..Config::default() };
    Ok(Repository::init(storage, context(MADE), config, &Protection::None, None)?)
}

/// Opens a repository that [`repository`] has made.
pub fn reopened(storage: Arc<dyn Storage>) -> Result<Repository> {
    Ok(Repository::open(storage, context(REOPENED), || Ok(Vec::new()))?)
}

/// Backs up one day's disk of a machine, by its dirty bits if it has been backed up before.
pub fn back_up(
    repository: &Repository,
    (name, disk, day): (&str, &Disk<'_>, &Day),
    is_first: bool,
    detection: DetectionOptions,
) -> Result<(Id, LevelBytes)> {
    let options = BackupOptions { detection, ..BackupOptions::default() };
    let mut session = repository.backup(name, options)?;
    let changed = disk.changed_map(day)?;
    let volume = session.add_volume(VOLUME, disk, (!is_first).then_some(&changed))?;
    let levels = volume.levels;
    Ok((session.finish()?.snapshot.id, levels))
}

impl<'t> Fleet<'t> {
    fn new(trace: &'t Trace) -> Result<Self> {
        Self::within(trace, Arc::new(MemoryStorage::new()))
    }

    /// Backs up every day of every machine, in containers of 64 MiB instead of 8.
    pub fn in_large_containers(trace: &'t Trace) -> Result<Self> {
        let storage: Arc<dyn Storage> = Arc::new(MemoryStorage::new());
        let repository = repository_of(storage.clone(), 8 * CONTAINER_BYTES)?;
        let mut fleet = Self { trace, storage, repository, levels: LevelBytes::default() };
        fleet.back_up_days(0..trace.days(), &|_| DetectionOptions::default())?;
        Ok(fleet)
    }

    fn within(trace: &'t Trace, storage: Arc<dyn Storage>) -> Result<Self> {
        let repository = repository(storage.clone())?;
        Ok(Self { trace, storage, repository, levels: LevelBytes::default() })
    }

    /// Backs up every day of every machine by its dirty bits.
    pub fn backed_up(trace: &'t Trace, detection: DetectionOptions) -> Result<Self> {
        Self::backed_up_by(trace, &|_| detection)
    }

    /// The same with other levels on each day.
    pub fn backed_up_by(
        trace: &'t Trace,
        detection: &dyn Fn(usize) -> DetectionOptions,
    ) -> Result<Self> {
        let mut fleet = Self::new(trace)?;
        fleet.back_up_days(0..trace.days(), detection)?;
        Ok(fleet)
    }

    /// A fleet in this storage that is not backed up yet.
    pub fn empty(trace: &'t Trace, storage: Arc<dyn Storage>) -> Result<Self> {
        Self::within(trace, storage)
    }

    /// Backs up these days of every machine; those before have been backed up.
    pub fn back_up_days(
        &mut self,
        days: std::ops::Range<usize>,
        detection: &dyn Fn(usize) -> DetectionOptions,
    ) -> Result<()> {
        for machine in &self.trace.machines {
            let mut disk = Disk::of(machine);
            for (number, day) in machine.days.iter().enumerate().take(days.end) {
                disk.change(day);
                if days.contains(&number) {
                    let backup = (&*machine.name, &disk, day);
                    let levels = detection(number);
                    let (_, levels) = back_up(&self.repository, backup, number == 0, levels)?;
                    self.levels.merge(&levels);
                }
            }
        }
        Ok(())
    }

    /// Backs up every day's machines in so many rounds.
    pub fn in_rounds(trace: &'t Trace, rounds: usize) -> Result<Self> {
        Self::in_rounds_within(trace, rounds, Arc::new(MemoryStorage::new()))
    }

    /// The same in a repository in this storage.
    pub fn in_rounds_within(
        trace: &'t Trace,
        rounds: usize,
        storage: Arc<dyn Storage>,
    ) -> Result<Self> {
        let mut fleet = Self::within(trace, storage)?;
        let mut disks: Vec<Disk> = trace.machines.iter().map(Disk::of).collect();
        for day in 0..trace.days() {
            for (machine, disk) in trace.machines.iter().zip(&mut disks) {
                disk.change(&machine.days[day]);
            }
            for round in 0..rounds {
                let members = trace.machines.iter().zip(&disks).skip(round).step_by(rounds);
                let members = members.map(|(machine, disk)| RoundMember {
                    series: machine.name.clone(),
                    volumes: vec![(VOLUME.to_owned(), RoundVolume::Disk(Box::new(disk.clone())))],
                    options: BackupOptions::default(),
                    on_released: None,
                });
                let folder = std::env::temp_dir();
                let options = RoundOptions { folder, memory_bytes: 0, spool: false };
                let report = fleet.repository.backup_round(members.collect(), &options)?;
                for backup in report.backups {
                    fleet.levels.merge(&backup?.snapshot.levels());
                }
            }
        }
        Ok(fleet)
    }

    /// Counts who has which chunks.
    pub fn count(&self) -> Result<PopularReport> {
        self.popular(SharePolicy::Popular(0.0), true)
    }

    /// Shares what `policy` chooses, and links every machine's copies to it; the counts are of
    /// before.
    pub fn share(&self, policy: SharePolicy) -> Result<PopularReport> {
        let report = self.popular(policy, false)?;
        self.link()?;
        Ok(report)
    }

    /// Replaces every machine's copies of shared chunks by links.
    pub fn link(&self) -> Result<()> {
        for machine in &self.trace.machines {
            self.repository.repoint(&machine.name, &std::env::temp_dir())?;
        }
        Ok(())
    }

    /// Bytes that the index of the shared store takes in the storage.
    pub fn index_bytes(&self) -> Result<u64> {
        let store = self.repository.objects.keys.shared_store_id(DEFAULT_DOMAIN);
        let Some(head) = self.repository.head(store)? else { return Ok(0) };
        let named: BTreeSet<Id> = head.runs.iter().map(|run| run.id).collect();
        let mut bytes = 0;
        for object in list_all(&*self.storage, names::runs(store), None) {
            let (key, size) = object?;
            let id = names::id_and_part(key.as_str()).map(|(id, _)| id);
            bytes += if id.is_some_and(|id| named.contains(&id)) { size } else { 0 };
        }
        Ok(bytes)
    }

    fn popular(&self, policy: SharePolicy, dry_run: bool) -> Result<PopularReport> {
        let spool = std::env::temp_dir();
        let options = PopularOptions { policy, spool, memory_bytes: 0, dry_run };
        Ok(self.repository.build_popular(&options)?)
    }

    /// The blocks of `block_chunks` chunks, of its own store and of the shared one, that each
    /// machine's last snapshot needs chunks of.
    pub fn blocks(&self, block_chunks: usize) -> Result<Vec<(BTreeSet<Block>, BTreeSet<Block>)>> {
        let blocks_of = |name: &str| self.blocks_of(name, block_chunks);
        self.trace.machines.iter().map(|machine| blocks_of(&machine.name)).collect()
    }

    fn blocks_of(
        &self,
        machine: &str,
        block_chunks: usize,
    ) -> Result<(BTreeSet<Block>, BTreeSet<Block>)> {
        let found = self.latest(machine)?;
        let reader = VolumeReader::open(&self.repository, found.volume(VOLUME)?, 0)?;
        let mut buffers = silt_repository::volume_reader::ReadBuffers::default();
        let (mut own, mut shared) = (BTreeSet::new(), BTreeSet::new());
        let mut next = 0;
        while let Some((index, entry)) = reader.next_segment(next)? {
            for chunk in reader.recipe(index, &entry, &mut buffers)?.chunks {
                if chunk.reference.is_zero() {
                    continue;
                }
                let holder = reader.chunks().holder(chunk.reference)?;
                let block = usize::from(holder.slot()) / block_chunks;
                let store = if holder.store() == SHARED_STORE { &mut shared } else { &mut own };
                store.insert((holder.container(), block));
            }
            next = index + 1;
        }
        Ok((own, shared))
    }

    /// The repository.
    #[cfg(test)]
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// Deletes the oldest or newest snapshot of a machine.
    #[cfg(test)]
    pub fn delete(&self, machine: &str, oldest: bool) -> Result<()> {
        let head = self.repository.head(self.repository.series_id(machine))?;
        let snapshots = head.map(|head| head.snapshots).unwrap_or_default();
        let entry = if oldest { snapshots.first() } else { snapshots.last() };
        let ids = [entry.ok_or("no snapshot")?.id];
        self.repository.delete(machine, &ids, siltstone::DeleteMethod::Approximate)?;
        Ok(())
    }

    /// Reads every machine's last snapshot and compares it with the trace.
    #[cfg(test)]
    pub fn verify(&self) -> Result<()> {
        use silt_format::SEGMENT_BYTES;
        use silt_source::VolumeSource as _;

        for machine in &self.trace.machines {
            let mut disk = Disk::of(machine);
            machine.days.iter().for_each(|day| disk.change(day));
            let found = self.latest(&machine.name)?;
            let reader = VolumeReader::open(&self.repository, found.volume(VOLUME)?, 0)?;
            let (mut read, mut wanted) = (vec![0; SEGMENT_BYTES], vec![0; SEGMENT_BYTES]);
            for offset in (0..reader.bytes()).step_by(SEGMENT_BYTES) {
                let bytes =
                    (reader.read_at(offset, &mut read)?, disk.read_at(offset, &mut wanted)?);
                if bytes.0 != bytes.1 || read != wanted {
                    return Err(format!("{}: byte {offset} is another", machine.name).into());
                }
            }
        }
        Ok(())
    }

    fn latest(&self, machine: &str) -> Result<siltstone::Found> {
        Ok(self.repository.find(&Selector::Time(Some(machine.to_owned()), When::Latest))?)
    }
}
