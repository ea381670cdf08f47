//! Deletion measured as the papers do: one snapshot of a large series, by each method, and what it
//! leaks over several.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use silt_format::{BLOCK_BYTES, Config, Id, KdfCost, KeyLabel};
use silt_source::{Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};
use silt_storage::{DryRunStorage, LocalStorage, Storage};
use siltstone::{
    BackupOptions, Context, DeleteMethod, Protection, Repository, Silent, SweepOptions, SystemEnv,
};

use crate::process::Call;
use crate::{DeletionOptions, Result};

/// How much of a volume changes from day to day, in thousandths.
const CHANGED_PER_MILLE: u64 = 25;
const DAYS: u64 = 10;

/// A volume whose chunks say which they are and since when: every one is unique, and costs little
/// to store.
struct Generated {
    chunks: u64,
    /// Chunks that change together.
    run: u64,
    seed: u64,
    /// For each run, the day of its last change.
    since: Vec<u8>,
}

impl Generated {
    fn new(bytes: u64, run: u64, seed: u64) -> Result<Self> {
        let chunks = bytes / BLOCK_BYTES as u64;
        let runs = usize::try_from(chunks.div_ceil(run))?;
        Ok(Self { chunks, run, seed, since: vec![0; runs] })
    }

    /// Changes runs here and there.
    fn next_day(&mut self, day: u64) -> Result<()> {
        let runs = self.since.len() as u64;
        let mut random = self.seed.wrapping_mul(1000) + day;
        for _ in 0..runs * CHANGED_PER_MILLE / 1000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from((random >> 20) % runs)?;
            self.since[at] = u8::try_from(day)?;
        }
        Ok(())
    }
}

impl VolumeSource for Generated {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            description: "generated".to_owned(),
            format: SourceFormat::Raw,
            size: Some(self.chunks * BLOCK_BYTES as u64),
            backing: Vec::new(),
        }
    }
    fn is_sequential(&self) -> bool {
        false
    }
    fn extent_at(&self, offset: u64) -> silt_format::Result<Extent> {
        let length = self.chunks * BLOCK_BYTES as u64 - offset;
        Ok(Extent { offset, length, kind: ExtentKind::Data })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> silt_format::Result<usize> {
        buf.fill(0);
        for (number, block) in (offset / BLOCK_BYTES as u64..).zip(buf.chunks_mut(BLOCK_BYTES)) {
            let run = usize::try_from(number / self.run).unwrap_or(0);
            let words = [self.seed, number, u64::from(self.since[run])];
            for (place, word) in block.chunks_mut(8).zip(words) {
                place.copy_from_slice(&word.to_le_bytes()[..place.len()]);
            }
        }
        Ok(buf.len())
    }
}

/// A repository that is measured, and the program that works on it too.
struct Place {
    folder: PathBuf,
    silt: PathBuf,
}

impl Place {
    fn storage(&self) -> Result<Arc<dyn Storage>> {
        Ok(Arc::new(LocalStorage::open(&self.folder)?))
    }

    fn open(&self, dry_run: bool) -> Result<Repository> {
        let mut storage = self.storage()?;
        if dry_run {
            storage = Arc::new(DryRunStorage::new(storage));
        }
        Ok(Repository::open(storage, context(), || Ok(b"bench".to_vec()))?)
    }

    /// The snapshots of the large series, oldest first.
    fn snapshots(&self) -> Result<Vec<Id>> {
        let mut command = std::process::Command::new(&self.silt);
        command.env("SILT_REPOSITORY", &self.folder).env("SILT_PASSWORD", "bench");
        let output = command.args(["snapshots", "large", "--json"]).output()?;
        let text = String::from_utf8(output.stdout)?;
        let ids = text.lines().map(|line| {
            let message: serde_json::Value = serde_json::from_str(line)?;
            let id = message["id"].as_str().and_then(Id::from_hex);
            Ok(id.ok_or("a snapshot without an id")?)
        });
        ids.collect()
    }

    fn call(&self, arguments: &[&str]) -> Call {
        Call::new(&self.silt)
            .env("SILT_REPOSITORY", &self.folder)
            .env("SILT_PASSWORD", "bench")
            .args(&["--quiet"])
            .args(arguments)
    }
}

fn context() -> Context {
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    Context::new(env, Arc::new(Silent))
}

fn init(folder: &Path) -> Result<Repository> {
    let _ = std::fs::remove_dir_all(folder);
    let storage = Arc::new(LocalStorage::create(folder)?);
    let label =
        KeyLabel { user: "bench".to_owned(), host: "bench".to_owned(), ..KeyLabel::default() };
    // A cheap password, so that its memory does not hide that of what is measured.
    let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
    let protection = Protection::Password { password: b"bench".to_vec(), cost, label };
    Ok(Repository::init(storage, context(), Config::default(), &protection, None)?)
}

/// Backs up a series of several days; the answer is its snapshots, oldest first.
fn series(repository: &Repository, name: &str, bytes: u64, run: u64, seed: u64) -> Result<Vec<Id>> {
    let mut source = Generated::new(bytes, run, seed)?;
    let mut ids = Vec::new();
    for day in 0..DAYS {
        if day > 0 {
            source.next_day(day)?;
        }
        let mut session = repository.backup(name, BackupOptions::default())?;
        session.add_volume("disk", &source, None)?;
        ids.push(session.finish()?.snapshot.id);
    }
    Ok(ids)
}

/// Wall and CPU time of this process, in seconds.
fn seconds(work: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    work()?;
    Ok((begin.elapsed().as_secs_f64(), cpu_seconds() - cpu))
}

/// Processor time of this process.
pub fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures, and prints tables.
pub fn run(options: &DeletionOptions) -> Result<()> {
    std::fs::create_dir_all(&options.work)?;
    let place = Place { folder: options.work.join("deletion"), silt: options.silt.clone() };
    let bytes = options.mib.map_or(options.gib << 30, |mib| mib << 20);
    if options.only_series {
        let repository = init(&place.folder)?;
        series(&repository, "large", bytes, options.run, 1)?;
        return Ok(());
    }
    let mib = bytes >> 20;
    eprintln!("a series of {DAYS} snapshots of {mib} MiB, runs of {}", options.run);
    // By a process of its own: children begin with their parent's peak of memory.
    Call::new(std::env::current_exe()?)
        .args(&["deletion", "--only-series", "--work"])
        .arg(&options.work)
        .args(&["--mib", &mib.to_string(), "--run", &options.run.to_string()])
        .run()?;
    let ids = place.snapshots()?;
    one_deletion(&place, &ids)?;
    leakage(&place, &ids, bytes)?;
    many_series(&place, options)?;
    std::fs::remove_dir_all(&place.folder)?;
    Ok(())
}

/// The table of methods, each as a process of its own.
fn one_deletion(place: &Place, ids: &[Id]) -> Result<()> {
    let doomed = ids[ids.len() / 2].to_string();
    let base = place.call(&["snapshots"]).run()?;
    println!("| one snapshot of a series | wall s | CPU s | MiB above listing snapshots |");
    println!("|---|---:|---:|---:|");
    let calls = [
        ("listing snapshots", vec!["snapshots"]),
        ("by summary vectors", vec!["delete", "--dry-run", &doomed]),
        ("local, without vectors", vec!["delete", "--dry-run", "--exact", &doomed]),
        ("sweep: mark-and-sweep of the series", vec!["sweep", "--dry-run"]),
        ("the same in 8 phases", vec!["sweep", "--dry-run", "--phases", "8"]),
    ];
    for (name, arguments) in calls {
        let mut costs = Vec::new();
        for _ in 0..3 {
            costs.push(place.call(&arguments).run()?);
        }
        costs.sort_by(|a, b| a.cpu_s.total_cmp(&b.cpu_s));
        let cost = costs[1];
        let above = cost.rss_bytes.saturating_sub(base.rss_bytes) as f64 / f64::from(1 << 20);
        println!("| {name} | {:.3} | {:.3} | {above:.1} |", cost.wall_s, cost.cpu_s);
    }
    Ok(())
}

/// Deletes from the newest on, and sweeps after each to see what is left behind.
fn leakage(place: &Place, ids: &[Id], bytes: u64) -> Result<()> {
    let chunks = bytes as f64 / BLOCK_BYTES as f64;
    let changed = chunks * CHANGED_PER_MILLE as f64 / 1000.0;
    let stored = chunks + (DAYS - 1) as f64 * changed;
    println!("\n| deletions | predicted % | measured % | forecast by the series % |");
    println!("|---:|---:|---:|---:|");
    for (number, id) in ids.iter().rev().take(ids.len() - 1).enumerate() {
        let report = place.open(false)?.delete("large", &[*id], DeleteMethod::Approximate)?;
        let swept = place.open(true)?.sweep("large", SweepOptions::default())?;
        let predicted = (number + 1) as f64 * 0.01 * changed / stored;
        println!(
            "| {} | {:.3} | {:.3} | {:.3} |",
            number + 1,
            predicted * 100.0,
            swept.leaked_slots as f64 / stored * 100.0,
            report.leak_share * 100.0
        );
    }
    Ok(())
}

/// One deletion among many series against a mark-and-sweep of all of them.
fn many_series(place: &Place, options: &DeletionOptions) -> Result<()> {
    let mib = options.mib.unwrap_or(1 << 10);
    eprintln!("{} series of {mib} MiB", options.series);
    let repository = init(&place.folder)?;
    let mut all = Vec::new();
    for number in 0..options.series {
        let name = format!("vm{number}");
        all.push((name.clone(), series(&repository, &name, mib << 20, options.run, number + 2)?));
    }
    let sweep = seconds(|| {
        for (name, _) in &all {
            // Nothing was deleted yet, so nothing is found and nothing written.
            repository.sweep(name, SweepOptions::default())?;
        }
        Ok(())
    })?;
    rustix::fs::sync();
    let mut each = Vec::new();
    for (name, ids) in all.iter().take(21) {
        each.push(seconds(|| {
            repository.delete(name, &ids[4..5], DeleteMethod::Approximate)?;
            Ok(())
        })?);
    }
    let (walls, cpus) = each.into_iter().unzip();
    let (wall, cpu) = (median(walls), median(cpus));
    println!("\n| {} series of {mib} MiB, 10 snapshots each | wall s | CPU s |", options.series);
    println!("|---|---:|---:|");
    println!("| one deletion by summary vectors | {wall:.4} | {cpu:.4} |");
    println!("| mark-and-sweep of the repository | {:.2} | {:.2} |", sweep.0, sweep.1);
    println!("| ratio | {:.0} | {:.0} |", sweep.0 / wall, sweep.1 / cpu);
    Ok(())
}
