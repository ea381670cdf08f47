//! Comparing requests with an index: how fast, and in how much memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use silt_format::{ContentHash, Id, RunRef, RunUse};
use silt_storage::{LocalStorage, Storage};
use siltstone::{Context, JoinMeasure, Repository, Silent, SystemEnv};

use crate::deletion::cpu_seconds;
use crate::{JoinOptions, Result, sharing};

pub fn run(options: &JoinOptions) -> Result<()> {
    let place = options.work.join("join");
    if let [id, bits, hash] = options.run.as_slice() {
        let run = RunRef {
            id: Id(u64::from_str_radix(id, 16)?),
            use_: RunUse::Shared,
            partition_bits: bits.parse()?,
            records: options.entries,
            hash: ContentHash(u128::from_str_radix(hash, 16)?.to_be_bytes()),
        };
        return measure(options, &place, run);
    }
    eprintln!("an index of {} entries", options.entries);
    let repository = sharing::repository(&place)?;
    let begin = Instant::now();
    let (run, bytes) = JoinMeasure::new(&repository).write(options.entries)?;
    println!(
        "index: {} entries in {} partitions, {} MB in storage, written in {:.1} s",
        options.entries,
        run.partitions(),
        bytes / 1_000_000,
        begin.elapsed().as_secs_f64()
    );
    warm(&place.join("runs"))?;
    // A process of its own: what writing the index took shall not count.
    let status = std::process::Command::new(std::env::current_exe()?)
        .args(["join", "--work"])
        .arg(&options.work)
        .args(["--entries", &options.entries.to_string()])
        .args(["--requests", &options.requests.to_string()])
        .args(["--sort", &options.sort.to_string()])
        .args(["--run", &run.id.to_string(), &run.partition_bits.to_string()])
        .arg(run.hash.to_string())
        .status()?;
    std::fs::remove_dir_all(&place)?;
    if status.success() { Ok(()) } else { Err("the measuring process failed".into()) }
}

fn measure(options: &JoinOptions, place: &Path, run: RunRef) -> Result<()> {
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage::open(place)?);
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(env, Arc::new(Silent));
    let repository = Repository::open(storage, context, || Ok(b"benchmark".to_vec()))?;
    let measure = JoinMeasure::new(&repository);
    let base = peak_bytes()?;
    let begin = Instant::now();
    let requests = measure.sort(run, options.requests, &options.work, options.sort << 20)?;
    let sorted_s = begin.elapsed().as_secs_f64();
    let sorted = peak_bytes()?;
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    let (asked, found) = measure.join(run, &requests)?;
    let (wall_s, cpu_s) = (begin.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let peak = peak_bytes()?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    println!("requests: {} in order after {sorted_s:.1} s", options.requests);
    println!(
        "join: {asked} different ones, {found} found, in {wall_s:.2} s ({cpu_s:.2} s of CPU): \
         {:.1} million entries a second",
        options.entries as f64 / wall_s / 1e6
    );
    println!(
        "memory: {:.1} MiB to begin with, {:.1} MiB more at the most while sorting, {:.1} MiB \
         while joining",
        mib(base),
        mib(sorted - base),
        mib(peak - base)
    );
    Ok(())
}

/// Reads all files of a folder, so that they are in the page cache.
fn warm(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            warm(&path)?;
        } else {
            std::io::copy(&mut std::fs::File::open(path)?, &mut std::io::sink())?;
        }
    }
    Ok(())
}

/// The largest resident set of this process so far.
fn peak_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).ok_or("no VmHWM")?;
    Ok(kib.parse::<u64>()? << 10)
}
