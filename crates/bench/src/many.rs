//! Commands over many small series, in a bucket far away or in a folder: what each takes, and how
//! many requests.

use std::fmt::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use silt_remote::server::{BUCKET, Server};

use crate::bucket::counted;
use crate::link::Delay;
use crate::numbers::mixed;
use crate::process::Call;
use crate::{ManyOptions, Result};

const DISK_BYTES: u64 = 64 << 10;
const CHANGE_BYTES: u64 = 4 << 10;
/// Snapshots of each series; each changes one place of its disk.
const SNAPSHOTS: u64 = 3;
/// Bytes on their way.
const WINDOW: usize = 8 << 20;

/// What is measured, in this order: its name, the arguments, and whether the cache is empty before.
const STEPS: [(&str, &[&str], bool); 16] = [
    ("one series, cache empty", &["snapshots", "s0"], true),
    ("one series", &["snapshots", "s0"], false),
    ("snapshots, cache empty", &["snapshots"], true),
    ("snapshots", &["snapshots"], false),
    ("snapshots, again", &["snapshots"], false),
    ("status", &["status"], false),
    ("stats", &["stats"], false),
    ("backup --all, unchanged, cache empty", &["backup", "--all"], true),
    ("backup --all, unchanged", &["backup", "--all"], false),
    ("check", &["check"], false),
    ("forget --keep-last 1", &["forget", "--keep-last", "1", "--yes"], false),
    ("reclaim", &["reclaim", "--keep-deleted", "0s"], false),
    ("reclaim, nothing to do", &["reclaim", "--keep-deleted", "0s"], false),
    ("popular plan", &["popular", "plan"], false),
    ("popular build", &["popular", "build"], false),
    ("snapshots, last", &["snapshots"], false),
];

/// Writes a disk that has nothing in common with others, as it is on a day.
fn write_disk(path: &Path, number: u64, day: u64) -> Result<()> {
    let file = std::fs::File::options().create(true).truncate(false).write(true).open(path)?;
    let noise = |seed: u64, bytes: u64| -> Vec<u8> {
        let drawn = (0..bytes / 8).map(|at| mixed(seed << 32 | at));
        drawn.flat_map(u64::to_le_bytes).collect()
    };
    let seed = number << 8 | day;
    match day {
        0 => file.write_all_at(&noise(seed, DISK_BYTES), 0)?,
        day => file.write_all_at(&noise(seed, CHANGE_BYTES), (day - 1) * CHANGE_BYTES)?,
    }
    Ok(())
}

/// Backs all series up, as often as they have snapshots.
fn make(options: &ManyOptions, work: &Path, call: &Call) -> Result<()> {
    call.clone().args(&["init", "--quiet"]).run()?;
    let disks = work.join("disks");
    std::fs::create_dir_all(&disks)?;
    let (fleet, mut text) = (work.join("fleet.toml"), String::new());
    for number in 0..options.series {
        let disk = disks.join(format!("{number}.raw"));
        writeln!(text, "[series.s{number}]\nvolumes = {{ disk = \"{}\" }}", disk.display())?;
    }
    std::fs::write(&fleet, text)?;
    for day in 0..SNAPSHOTS {
        for number in 0..options.series {
            write_disk(&disks.join(format!("{number}.raw")), number as u64, day)?;
        }
        call.clone().args(&["backup", "--quiet", "--fleet"]).arg(&fleet).run()?;
        eprintln!("{} snapshots of {} series were made", day + 1, options.series);
    }
    Ok(())
}

/// Measures, and prints a table.
pub fn run(options: &ManyOptions) -> Result<()> {
    let work = options.work.join("many");
    drop(std::fs::remove_dir_all(&work));
    std::fs::create_dir_all(&work)?;
    let cache: PathBuf = work.join("cache");
    let silt = Call::new(&options.silt)
        .env("SILT_PASSWORD", "bench")
        .env("SILT_CACHE_DIR", &cache)
        .env("XDG_STATE_HOME", work.join("state"));
    let (server, call) = if options.folder {
        let call = silt.env("SILT_REPOSITORY", work.join("folder"));
        make(options, &work, &call)?;
        (None, call)
    } else {
        let server = Server::start_in(&[work.join("drive")], &[]).ok_or("minio is missing")?;
        let mut call = silt.env("SILT_REPOSITORY", format!("s3://{BUCKET}/many"));
        for (name, value) in server.settings().environment {
            call.environment.push((String::leak(name), value.into()));
        }
        make(options, &work, &call)?;
        let round_trip = Duration::from_millis(options.round_trip_ms);
        let link = Delay::start(([127, 0, 0, 1], server.port()).into(), round_trip, WINDOW)?;
        (Some(server), call.env("AWS_ENDPOINT_URL", format!("http://{}", link.address)))
    };
    println!("| {} series | s | requests | MB | memory, MiB |", options.series);
    println!("|---|---:|---:|---:|---:|");
    let is_wanted = |name: &str| {
        options.steps.is_empty() || options.steps.iter().any(|words| name.contains(words))
    };
    for (name, arguments, is_cold) in STEPS.into_iter().filter(|(name, ..)| is_wanted(name)) {
        if is_cold {
            drop(std::fs::remove_dir_all(&cache));
        }
        let count = || server.as_ref().map_or(Ok([0.0; 2]), counted);
        let before = count()?;
        let options = options.options.iter();
        let call = options.fold(call.clone().args(arguments).args(&["--quiet"]), Call::arg);
        let cost = call.run()?;
        let after = count()?;
        println!(
            "| {name} | {:.2} | {:.0} | {:.2} | {:.0} |",
            cost.wall_s,
            after[0] - before[0],
            (after[1] - before[1]) / 1e6,
            cost.rss_bytes as f64 / f64::from(1 << 20),
        );
    }
    drop(server);
    std::fs::remove_dir_all(&work)?;
    Ok(())
}
