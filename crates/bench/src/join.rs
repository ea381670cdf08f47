//! Comparing requests with an index: how fast, and in how much memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use silt_format::{ContentHash, Fingerprint, Id, Record, RunRef, RunUse, SeriesId};
use silt_runs::{RunReader, RunWriter, Sorted, Sorter, Stream, gather, join, merge};
use silt_sharing::exchange::{RUN_BYTES, Workspace};
use silt_storage::{LocalStorage, Storage};
use siltstone::{Context, Repository, Silent, SystemEnv};

use crate::deletion::cpu_seconds;
use crate::{JoinOptions, Result, sharing};

/// Evenly spread numbers, each drawn from its own.
fn draw(number: u64) -> u64 {
    let z = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Record `number` of `records` in the order of fingerprints.
fn record(number: u64, records: u64) -> Record {
    let mut fingerprint = [0; 20];
    let step = u64::MAX / records;
    let prefix = number * step + draw(number) % step;
    fingerprint[..8].copy_from_slice(&prefix.to_be_bytes());
    fingerprint[8..16].copy_from_slice(&draw(!number).to_be_bytes());
    fingerprint[16..].copy_from_slice(&draw(number ^ 1 << 60).to_be_bytes()[..4]);
    let mut payload = [0; 12];
    payload[4..].copy_from_slice(&number.to_be_bytes());
    Record { fingerprint: Fingerprint(fingerprint), payload }
}

/// The store that the index is kept in: one of its own.
fn store(repository: &Repository) -> SeriesId {
    repository.series_id("joined run")
}

/// Writes every `of`th entry of an index, from `first` on, as a run; its bytes in storage.
fn write(repository: &Repository, entries: u64, (first, of): (u64, u64)) -> Result<(RunRef, u64)> {
    let (objects, store) = (&repository.objects, store(repository));
    let records = entries.saturating_sub(first).div_ceil(of);
    let mut writer = RunWriter::new(objects, store, RunUse::Shared, records)?;
    for number in (first..entries).step_by(usize::try_from(of)?) {
        writer.push(record(number, entries))?;
    }
    let run = writer.finish()?;
    Ok((run.run, run.stored_bytes))
}

/// Sorts the requests, of which three in four are in the index.
fn sort(repository: &Repository, options: &JoinOptions) -> Result<Sorted> {
    let mut sorter = Sorter::new(&repository.objects, &options.work, options.sort << 20);
    for number in 0..options.requests {
        let drawn = draw(number.wrapping_mul(3) ^ 0x5bd1_e995);
        let mut request = record(drawn % options.entries, options.entries);
        request.payload = [0; 12];
        if drawn >> 62 == 3 {
            request.fingerprint.0[19] ^= 1;
        }
        sorter.push(request)?;
    }
    Ok(sorter.finish()?)
}

/// A run as four arguments.
fn arguments(run: &RunRef) -> [String; 4] {
    let (bits, records) = (run.partition_bits.to_string(), run.records.to_string());
    [run.id.to_string(), bits, run.hash.to_string(), records]
}

fn parse([id, bits, hash, records]: &[String; 4]) -> Result<RunRef> {
    Ok(RunRef {
        id: Id(u64::from_str_radix(id, 16)?),
        use_: RunUse::Shared,
        partition_bits: bits.parse()?,
        records: records.parse()?,
        hash: ContentHash(u128::from_str_radix(hash, 16)?.to_be_bytes()),
    })
}

pub fn run(options: &JoinOptions) -> Result<()> {
    let place = options.work.join("join");
    if !options.run.is_empty() {
        let runs = options.run.as_chunks().0.iter().map(parse).collect::<Result<Vec<_>>>()?;
        return measure(options, &place, &runs);
    }
    eprintln!("an index of {} entries in {} runs", options.entries, options.runs);
    let repository = sharing::repository(&place)?;
    let begin = Instant::now();
    let write = |run| write(&repository, options.entries, (run, options.runs));
    let written = (0..options.runs).map(write).collect::<Result<Vec<_>>>()?;
    println!(
        "index: {} entries in {} partitions, {} MB in storage, written in {:.1} s",
        options.entries,
        written.iter().map(|(run, _)| run.partitions()).sum::<u32>(),
        written.iter().map(|(_, bytes)| bytes).sum::<u64>() / 1_000_000,
        begin.elapsed().as_secs_f64()
    );
    warm(&place.join("runs"))?;
    // A process of its own: what writing the index took shall not count.
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.args(["join", "--work"]).arg(&options.work);
    command.args(["--entries", &options.entries.to_string()]);
    command.args(["--requests", &options.requests.to_string()]);
    command.args(["--sort", &options.sort.to_string()]);
    for (run, _) in &written {
        command.arg("--run").args(arguments(run));
    }
    let status = command.status()?;
    std::fs::remove_dir_all(&place)?;
    if status.success() { Ok(()) } else { Err("the measuring process failed".into()) }
}

fn measure(options: &JoinOptions, place: &Path, runs: &[RunRef]) -> Result<()> {
    let storage: Arc<dyn Storage> = Arc::new(LocalStorage::open(place)?);
    let env = Arc::new(SystemEnv::new(Arc::new(AtomicBool::new(false))));
    let context = Context::new(env, Arc::new(Silent));
    let repository = Repository::open(storage, context, || Ok(b"benchmark".to_vec()))?;
    let base = peak_bytes()?;
    let begin = Instant::now();
    let requests = sort(&repository, options)?;
    let sorted_s = begin.elapsed().as_secs_f64();
    let sorted = peak_bytes()?;
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    // As rounds of several hosts do, with the memory of an agent.
    let workspace = Workspace { folder: options.work.clone(), memory_bytes: 32 << 20 };
    let at_once = workspace.runs_at_once();
    let read_bytes = RUN_BYTES / 2 * at_once as u64 / runs.len().clamp(1, at_once) as u64;
    let reader = |run: &RunRef| {
        let reader = RunReader::new(&repository.objects, store(&repository), *run);
        Stream::new(reader.reading(read_bytes))
    };
    let streams: Vec<Stream<'_>> = runs.iter().map(reader).collect();
    let many;
    let mut index = if streams.len() <= at_once {
        merge(streams)
    } else {
        let sorter = Sorter::new(&repository.objects, &options.work, options.sort << 20);
        many = gather(streams, at_once, sorter)?;
        many.stream()
    };
    let (mut asked, mut found) = (0_u64, 0);
    join(&mut requests.stream(), &mut index, &mut |_, _, known| {
        asked += 1;
        found += known.len();
        Ok(())
    })?;
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
