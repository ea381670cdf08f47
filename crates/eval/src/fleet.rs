//! The machines of a trace, backed up by the product: each is a series of a repository in memory,
//! and each of its days a snapshot.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use silt_format::{Config, Lease, LevelBytes, SHARED_STORE};
use silt_storage::MemoryStorage;
use siltstone::{
    BackupOptions, Context, DetectionOptions, Env, PopularOptions, PopularReport, Process,
    Protection, Repository, RoundMember, RoundOptions, Selector, SharePolicy, Silent, VolumeReader,
    When,
};

use crate::Result;
use crate::disk::Disk;
use crate::random::Random;
use crate::trace::Trace;

/// The name of a machine's volume.
const VOLUME: &str = "disk";
/// Chunks of a trace take a few bytes; so a container has as many as one of 8 MiB has of real ones.
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
    repository: Repository,
    /// What each level found in all backups.
    pub levels: LevelBytes,
}

impl<'t> Fleet<'t> {
    fn new(trace: &'t Trace) -> Result<Self> {
        let random = Mutex::new(Random(3));
        let env = Arc::new(Seeded { now_ns: AtomicI64::new(1), random });
        let context = Context::new(env, Arc::new(Silent));
        let config = Config {
            container_bytes: CONTAINER_BYTES,
            zstd_level: ZSTD_LEVEL,
            ..Config::default()
        };
        let storage = Arc::new(MemoryStorage::new());
        let repository = Repository::init(storage, context, config, &Protection::None, None)?;
        Ok(Self { trace, repository, levels: LevelBytes::default() })
    }

    /// Backs up every day of every machine by its dirty bits.
    pub fn backed_up(trace: &'t Trace, detection: DetectionOptions) -> Result<Self> {
        let mut fleet = Self::new(trace)?;
        for machine in &trace.machines {
            let mut disk = Disk::of(machine);
            for (number, day) in machine.days.iter().enumerate() {
                disk.change(day);
                let options = BackupOptions { detection, ..BackupOptions::default() };
                let mut session = fleet.repository.backup(&machine.name, options)?;
                let changed = disk.changed_map(day)?;
                let changed = (number > 0).then_some(&changed);
                let volume = session.add_volume(VOLUME, &disk, changed)?;
                fleet.levels.merge(&volume.levels);
                session.finish()?;
            }
        }
        Ok(fleet)
    }

    /// Backs up every day's machines in so many rounds.
    pub fn in_rounds(trace: &'t Trace, rounds: usize) -> Result<Self> {
        let mut fleet = Self::new(trace)?;
        let mut disks: Vec<Disk> = trace.machines.iter().map(Disk::of).collect();
        for day in 0..trace.days() {
            for (machine, disk) in trace.machines.iter().zip(&mut disks) {
                disk.change(&machine.days[day]);
            }
            for round in 0..rounds {
                let members = trace.machines.iter().zip(&disks).skip(round).step_by(rounds);
                let members = members.map(|(machine, disk)| RoundMember {
                    series: machine.name.clone(),
                    volumes: vec![(VOLUME.to_owned(), Box::new(disk.clone()))],
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
