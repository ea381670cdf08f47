//! Reading from a bucket far away, a MinIO of this machine behind a link that delays: how soon the
//! first bytes come, and how long a restore takes.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use silt_remote::server::{BUCKET, Server};

use crate::changes::same;
use crate::export::Served;
use crate::link::Delay;
use crate::numbers::median;
use crate::process::Call;
use crate::{FarOptions, Result};

const BLOCK: usize = 4096;
/// Places of a disk that hold data, at equal distances, and how much each holds.
const PLACES: u64 = 64;
const PLACE_BYTES: u64 = 4 << 20;
/// Bytes on their way: enough for 500 MB/s.
const WINDOW: usize = 8 << 20;

/// A disk that is empty but for a few places; their bytes don't compress.
fn make_disk(path: &Path, gib: u64) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(gib << 30)?;
    let mut random = File::open("/dev/urandom")?;
    let mut piece = vec![0; usize::try_from(PLACE_BYTES)?];
    for place in 0..PLACES {
        random.read_exact(&mut piece)?;
        file.write_all_at(&piece, place * ((gib << 30) / PLACES))?;
    }
    Ok(())
}

/// A MinIO, and the way to it from far away.
struct Site {
    server: Server,
    link: Delay,
}

impl Site {
    fn start(options: &FarOptions, work: &Path) -> Result<Self> {
        let server = Server::start_in(&[work.join("drive")], &[]).ok_or("minio is missing")?;
        let round_trip = Duration::from_millis(options.round_trip_ms);
        let link = Delay::start(([127, 0, 0, 1], server.port()).into(), round_trip, WINDOW)?;
        Ok(Self { server, link })
    }

    /// The program with a repository in the bucket.
    fn silt(&self, options: &FarOptions, cache: &Path, prefix: &str) -> Call {
        let bucket = format!("s3://{BUCKET}/{prefix}");
        let silt = Call::new(&options.silt).env("SILT_PASSWORD", "bench");
        let mut silt = silt.env("SILT_REPOSITORY", bucket).env("SILT_CACHE_DIR", cache);
        for (name, value) in self.server.settings().environment {
            silt.environment.push((String::leak(name), value.into()));
        }
        silt
    }

    /// The same from far away.
    fn far(&self, near: &Call) -> Call {
        near.clone().env("AWS_ENDPOINT_URL", format!("http://{}", self.link.address))
    }
}

pub fn run(options: &FarOptions) -> Result<()> {
    let work = options.work.join("far");
    std::fs::create_dir_all(&work)?;
    let site = Site::start(options, &work)?;
    match &options.restore {
        Some(disk) => restores(options, &work, &site, disk)?,
        None => first_blocks(options, &work, &site)?,
    }
    drop(site);
    std::fs::remove_dir_all(&work)?;
    Ok(())
}

/// Restores a disk by turns from the server itself and from far away, each with an empty cache.
fn restores(options: &FarOptions, work: &Path, site: &Site, disk: &Path) -> Result<()> {
    let (cache, target) = (work.join("cache"), work.join("restored.raw"));
    let near = site.silt(options, &cache, "restore");
    near.clone().args(&["init", "--quiet"]).run()?;
    near.clone().args(&["backup", "vm", "--quiet"]).arg(disk).run()?;
    let mut costs = [Vec::new(), Vec::new()];
    for run in 0..options.runs {
        for (call, costs) in [near.clone(), site.far(&near)].iter().zip(&mut costs) {
            drop(std::fs::remove_dir_all(&cache));
            drop(std::fs::remove_file(&target));
            rustix::fs::sync();
            let call = call.clone().args(&["restore", "vm@latest", "--quiet"]).arg(&target);
            costs.push(call.run()?);
            if run == 0 && !same(disk, &target)? {
                return Err("other bytes were restored than were backed up".into());
            }
        }
    }
    let seconds = costs.each_ref().map(|costs| median(costs.iter().map(|it| it.wall_s).collect()));
    println!("| restore of a disk | s | CPU s | memory, MiB |\n|---|---:|---:|---:|");
    let far = format!("{} ms away", options.round_trip_ms);
    for ((what, costs), seconds) in ["from the server itself", &far].iter().zip(&costs).zip(seconds)
    {
        let cpu = median(costs.iter().map(|it| it.cpu_s).collect());
        let most = costs.iter().map(|it| it.rss_bytes).max().unwrap_or(0) >> 20;
        println!("| {what} | {seconds:.2} | {cpu:.2} | {most} |");
    }
    println!("\nFar away it takes {:.2} times as long.", seconds[1] / seconds[0]);
    Ok(())
}

/// Measures how long it takes until a server has answered its first read.
fn first_blocks(options: &FarOptions, work: &Path, site: &Site) -> Result<()> {
    println!("| disk | repository | start to the first 4 KiB, s (median, most) |\n|---|---|---|");
    for gib in [64, 4 << 10] {
        let disk = work.join("disk.raw");
        make_disk(&disk, gib)?;
        let cache = work.join(format!("cache{gib}"));
        let silt = Call::new(&options.silt).env("SILT_PASSWORD", "bench");
        let folder = silt.env("SILT_REPOSITORY", work.join(format!("folder{gib}")));
        let bucket = site.silt(options, &cache, &gib.to_string());
        for near in [&folder, &bucket] {
            near.clone().args(&["init", "--quiet"]).run()?;
            near.clone().args(&["backup", "vm", "--quiet"]).arg(&disk).run()?;
        }
        let bucket = site.far(&bucket);
        for (call, is_cold, what) in [
            (&folder, false, "folder"),
            (&bucket, true, "bucket, cache empty"),
            (&bucket, false, "bucket, cache warm"),
        ] {
            let mut firsts = Vec::new();
            for run in 0..options.runs {
                if is_cold {
                    drop(std::fs::remove_dir_all(&cache));
                }
                let number = (run as u64 * 7 + 3) % PLACES;
                firsts.push(first(work, call, &disk, number * ((gib << 30) / PLACES))?);
            }
            let most = firsts.iter().copied().fold(0.0, f64::max);
            println!("| {gib} GiB | {what} | {:.3}, {most:.3} |", median(firsts));
        }
    }
    Ok(())
}

/// Starts a server and reads a block at `offset`. Returns the seconds that it took.
fn first(work: &Path, call: &Call, disk: &Path, offset: u64) -> Result<f64> {
    let socket = work.join("silt.sock");
    let mut command = Command::new(&call.program);
    command.envs(call.environment.iter().map(|(name, value)| (name, value)));
    command.args(["serve", "nbd", "vm@latest", "--quiet", "--socket"]).arg(&socket);
    let served = Served::start(command.stderr(Stdio::null()), &socket)?;
    let bytes = served.connect()?.read(offset, BLOCK)?;
    let seconds = served.started.elapsed().as_secs_f64();
    let mut expected = vec![0; BLOCK];
    File::open(disk)?.read_exact_at(&mut expected, offset)?;
    if bytes != expected {
        return Err("other bytes were read than were backed up".into());
    }
    Ok(seconds)
}
