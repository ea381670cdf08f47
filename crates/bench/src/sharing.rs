//! What sharing across series saves, against the best that any scheme could on the same disks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use silt_chunking::{Fingerprinter, is_zero};
use silt_format::{BLOCK_BYTES, Config, KdfCost, KeyLabel, SEGMENT_BYTES};
use silt_source::{ExtentKind, SourceOptions, VolumeSource, open_source};
use silt_storage::{LocalStorage, Storage};
use siltstone::{
    BackupOptions, Context, PopularOptions, PopularReport, Protection, ReclaimOptions, Repository,
    SharePolicy, Silent, SystemEnv,
};

use crate::disks::Disks;
use crate::{Result, SharingOptions};

/// At most so many days are backed up.
const DAYS_MAX: usize = 30;
/// Shares of the unique chunks, in percent.
const SHARES: [f64; 5] = [1.0, 2.0, 4.0, 8.0, 16.0];

/// What the disks hold, by machines.
struct Contents {
    /// Chunks that are not zeros, of all days.
    chunks: u64,
    /// Different chunks by the number of machines that have them: at `n` those in `n + 1`.
    by_machines: Vec<u64>,
}

impl Contents {
    fn unique(&self) -> u64 {
        self.by_machines.iter().sum()
    }

    /// Chunks that are left if the `shared` most popular are stored once and all others once a
    /// machine.
    fn left(&self, shared: u64) -> u64 {
        let mut quota = shared;
        let by_machines = (1_u64..).zip(&self.by_machines).collect::<Vec<_>>();
        let left = by_machines.into_iter().rev().map(|(machines, chunks)| {
            let once = quota.min(*chunks);
            quota -= once;
            once + (chunks - once) * machines
        });
        left.sum()
    }

    /// Of the duplicates that a perfect scheme removes, the share that one removes which leaves
    /// `left`.
    fn efficiency(&self, left: u64) -> f64 {
        (self.chunks - left) as f64 / (self.chunks - self.unique()) as f64 * 100.0
    }
}

/// Measures, and prints a table.
pub fn run(options: &SharingOptions) -> Result<()> {
    let disks = Disks::find(&options.disks, &options.vms, DAYS_MAX)?;
    let contents = contents(&disks)?;
    let place = options.work.join("sharing");
    let repository = repository(&place)?;
    let begin = Instant::now();
    for day in 0..=disks.last() {
        for machine in &disks.machines {
            eprintln!("day {day}: {machine}");
            let source = open_source(&disks.path(machine, day), &SourceOptions::default())?;
            let mut session = repository.backup(machine, BackupOptions::default())?;
            session.add_volume("disk", &*source, None)?;
            session.finish()?;
        }
    }
    println!(
        "{} machines, {} days, {} chunks that are not zeros, {} different ones; backed up in {:.1} \
         s.\n",
        disks.machines.len(),
        disks.last() + 1,
        contents.chunks,
        contents.unique(),
        begin.elapsed().as_secs_f64()
    );
    println!("| shared | best possible % | reached % | stored chunks | of perfect | MB | s |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    let spool = &options.work;
    let count = |policy, dry_run| {
        let spool = spool.clone();
        repository.build_popular(&PopularOptions { policy, spool, memory_bytes: 0, dry_run })
    };
    let print = |name: &str, best: u64, report: &PopularReport, seconds: f64| -> Result<()> {
        let stored = report.private_slots + report.shared_slots;
        println!(
            "| {name} | {:.2} | {:.2} | {stored} | {:.4} | {} | {seconds:.1} |",
            contents.efficiency(best),
            contents.efficiency(stored),
            stored as f64 / contents.unique() as f64,
            folder_bytes(&place)? / 1_000_000
        );
        Ok(())
    };
    let nothing = count(SharePolicy::Popular(0.0), true)?;
    print("nothing", contents.left(0), &nothing, 0.0)?;
    let shares = SHARES.map(|share| (format!("{share} %"), SharePolicy::Popular(share / 100.0)));
    let all = [("all duplicates".to_owned(), SharePolicy::Duplicates)];
    for (name, policy) in shares.into_iter().chain(all) {
        let begin = Instant::now();
        let built = count(policy, false)?;
        for machine in &disks.machines {
            repository.repoint(machine, spool)?;
            repository.reclaim(machine, &ReclaimOptions::default())?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let after = count(policy, true)?;
        print(&name, contents.left(built.chosen_chunks), &after, seconds)?;
    }
    std::fs::remove_dir_all(&place)?;
    Ok(())
}

pub fn repository(place: &Path) -> Result<Repository> {
    if place.exists() {
        std::fs::remove_dir_all(place)?;
    }
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage::create(place)?);
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(env, Arc::new(Silent));
    let protection = Protection::Password {
        password: b"benchmark".to_vec(),
        cost: KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 },
        label: KeyLabel::default(),
    };
    Ok(Repository::init(storage, context, Config::default(), &protection, None)?)
}

/// Reads all disks and counts their chunks, each once a machine.
fn contents(disks: &Disks) -> Result<Contents> {
    let fingerprinter = Fingerprinter::new([3; 32]);
    let mut chunks = 0;
    let mut machines: BTreeMap<u128, u64> = BTreeMap::new();
    for machine in &disks.machines {
        let mut own: Vec<u128> = Vec::new();
        for day in 0..=disks.last() {
            let source = open_source(&disks.path(machine, day), &SourceOptions::default())?;
            each_segment(&*source, &mut |data| {
                for chunk in data.chunks(BLOCK_BYTES).filter(|chunk| !is_zero(chunk)) {
                    chunks += 1;
                    let print = fingerprinter.fingerprint(chunk).0;
                    let mut bytes = [0; 16];
                    bytes.copy_from_slice(&print[..16]);
                    own.push(u128::from_le_bytes(bytes));
                }
            })?;
            own.sort_unstable();
            own.dedup();
        }
        own.into_iter().for_each(|print| *machines.entry(print).or_default() += 1);
    }
    let mut by_machines = vec![0; disks.machines.len()];
    machines.into_values().for_each(|count| {
        by_machines[usize::try_from(count - 1).unwrap_or(0)] += 1;
    });
    Ok(Contents { chunks, by_machines })
}

/// Calls `each` with every segment that is not a hole.
fn each_segment(source: &dyn VolumeSource, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let bytes = source.info().size.unwrap_or(0);
    let mut buffer = vec![0; SEGMENT_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let extent = source.extent_at(offset)?;
        let end = (extent.offset + extent.length).min(bytes);
        if extent.kind == ExtentKind::Data {
            let length = usize::try_from(end - offset)?.min(SEGMENT_BYTES);
            let read = source.read_at(offset, &mut buffer[..length])?;
            each(&buffer[..read]);
            offset += u64::try_from(length)?;
        } else {
            offset = end;
        }
    }
    Ok(())
}

pub fn folder_bytes(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let found = entry.metadata()?;
        bytes += if found.is_dir() { folder_bytes(&entry.path())? } else { found.len() };
    }
    Ok(bytes)
}
