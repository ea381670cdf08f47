//! Backups to a bucket of a real server on this machine, against a folder and against peers on the
//! same server, by turns; requests and bytes are the server's own counts.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use silt_remote::server::{BUCKET, Server};

use crate::cpus;
use crate::disks::Disks;
use crate::process::{Call, Cost, cpu_seconds};
use crate::rounds::{warm, write_fleet};
use crate::{BucketOptions, Result};

/// What is done: a day that is backed up, or the restore of the last one.
#[derive(Clone, Copy, Debug)]
enum Step {
    Backup(usize),
    Restore,
}

/// The steps in their order; the third backs up a day that changed nothing.
const STEPS: [(&str, Step); 4] = [
    ("first backup", Step::Backup(0)),
    ("next day", Step::Backup(1)),
    ("unchanged", Step::Backup(1)),
    ("restore", Step::Restore),
];

/// A program and where it keeps its repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Folder,
    Bucket,
    /// All machines in one process, which shares what they have in common.
    FolderRound,
    BucketRound,
    Restic,
    Rustic,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Folder => "silt, folder",
            Self::Bucket => "silt, bucket",
            Self::FolderRound => "silt, folder, one round",
            Self::BucketRound => "silt, bucket, one round",
            Self::Restic => "restic, bucket",
            Self::Rustic => "rustic, bucket",
        }
    }

    fn is_round(self) -> bool {
        matches!(self, Self::FolderRound | Self::BucketRound)
    }

    /// What it is measured by: the same in a folder.
    fn in_folder(self) -> Self {
        if self.is_round() { Self::FolderRound } else { Self::Folder }
    }
}

/// What one step of one way took.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    cost: Cost,
    /// Processor time of the server.
    server_s: f64,
    requests: f64,
    /// Bytes that the server has received and sent.
    bytes: f64,
}

struct Bench<'o> {
    options: &'o BucketOptions,
    server: Server,
    disks: Disks,
}

impl Bench<'_> {
    fn path(&self, name: &str) -> PathBuf {
        self.options.work.join(name)
    }

    /// The program's call for a repository called `name`.
    fn call(&self, way: Way, name: &str) -> Call {
        let endpoint = self.server.endpoint();
        let mut call = match way {
            Way::Folder | Way::FolderRound => {
                Call::new(&self.options.silt).env("SILT_REPOSITORY", self.path(name))
            }
            Way::Bucket | Way::BucketRound => Call::new(&self.options.silt)
                .env("SILT_REPOSITORY", format!("s3://{BUCKET}/{name}"))
                .env("SILT_CACHE_DIR", self.path(&format!("{name}.cache"))),
            Way::Restic => Call::new("restic")
                .env("RESTIC_REPOSITORY", format!("s3:{endpoint}/{BUCKET}/{name}"))
                .env("RESTIC_PASSWORD", "bench")
                .env("RESTIC_CACHE_DIR", self.path(&format!("{name}.cache"))),
            Way::Rustic => Call::new("rustic")
                .env("RUSTIC_REPOSITORY", "opendal:s3")
                .env("RUSTIC_PASSWORD", "bench")
                .env("RUSTIC_NO_PROGRESS", "true")
                .env("RUSTIC_CACHE_DIR", self.path(&format!("{name}.cache")))
                .env("OPENDAL_BUCKET", BUCKET)
                .env("OPENDAL_ROOT", name)
                .env("OPENDAL_ENDPOINT", &endpoint)
                .env("OPENDAL_REGION", "us-east-1"),
        };
        if way != way.in_folder() {
            for (name, value) in self.server.settings().environment {
                call.environment.push((String::leak(name), value.into()));
            }
        }
        match way {
            Way::Restic => call.args(&["--quiet"]),
            Way::Rustic => call,
            _ => call.env("SILT_PASSWORD", "bench").args(&["--quiet"]),
        }
    }

    /// A process for each machine, or one for all of them.
    fn measure(&self, way: Way, name: &str, step: Step) -> Result<Measured> {
        // What others have left to be written is not theirs who are measured.
        rustix::fs::sync();
        if self.options.cold {
            std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        }
        let before = self.counts()?;
        let cost = match step {
            Step::Backup(day) if way.is_round() => self.round(way, name, day)?,
            Step::Backup(day) => self.each(way, name, day)?,
            Step::Restore => self.restore(way, name)?,
        };
        let after = self.counts()?;
        let [requests, bytes, server_s] = std::array::from_fn(|at| after[at] - before[at]);
        Ok(Measured { cost, server_s, requests, bytes })
    }

    fn round(&self, way: Way, name: &str, day: usize) -> Result<Cost> {
        let fleet = self.path("fleet.toml");
        write_fleet(&fleet, &self.disks, day)?;
        if !self.options.cold {
            warm(&self.disks, day)?;
        }
        self.call(way, name).args(&["backup", "--fleet"]).arg(&fleet).run()
    }

    fn each(&self, way: Way, name: &str, day: usize) -> Result<Cost> {
        let mut cost = Cost::default();
        for machine in &self.disks.machines {
            // The same path every day, for those who go by it.
            let disk = self.path(&format!("{machine}.raw"));
            let _ = std::fs::remove_file(&disk);
            std::fs::hard_link(self.disks.path(machine, day), &disk)?;
            if !self.options.cold {
                std::io::copy(&mut std::fs::File::open(&disk)?, &mut std::io::sink())?;
            }
            let call = self.call(way, name);
            let call = match way {
                Way::Restic | Way::Rustic => call.args(&["backup", "--tag", machine]).arg(&disk),
                _ => call.args(&["backup", machine, "--"]).arg(format!("disk={}", disk.display())),
            };
            cost = cost.and(call.run()?);
        }
        Ok(cost)
    }

    /// Restores each machine by itself to a file that was not there.
    fn restore(&self, way: Way, name: &str) -> Result<Cost> {
        let mut cost = Cost::default();
        let target = self.path("restored");
        for machine in &self.disks.machines {
            let _ = std::fs::remove_dir_all(&target);
            std::fs::create_dir_all(&target)?;
            let disk = self.path(&format!("{machine}.raw"));
            let call = self.call(way, name).args(&["restore"]);
            let call = match way {
                Way::Restic => call.args(&["latest", "--tag", machine, "--target"]).arg(&target),
                Way::Rustic => call
                    .args(&["--filter-tags", machine])
                    .arg(format!("latest:{}", disk.display()))
                    .arg(target.join("disk.raw")),
                _ => call.arg(format!("{machine}@latest")).arg(target.join("disk.raw")),
            };
            cost = cost.and(call.run()?);
        }
        std::fs::remove_dir_all(&target)?;
        Ok(cost)
    }

    /// Requests, bytes and processor time of the server so far.
    fn counts(&self) -> Result<[f64; 3]> {
        let [requests, bytes] = counted(&self.server)?;
        Ok([requests, bytes, cpu_seconds(self.server.process())?])
    }

    fn init(&self, way: Way, name: &str) -> Result<()> {
        self.call(way, name).args(&["init"]).run().map(drop)
    }

    fn remove(&self, name: &str) {
        for folder in [self.path(name), self.path(&format!("{name}.cache"))] {
            let _ = std::fs::remove_dir_all(folder);
        }
        for drive in drives(self.options) {
            let _ = std::fs::remove_dir_all(drive.join(BUCKET).join(name));
        }
    }
}

/// The server's drives.
fn drives(options: &BucketOptions) -> Vec<PathBuf> {
    let folder = options.work.join("server");
    (1..=options.drives).map(|drive| folder.join(format!("drive{drive}"))).collect()
}

/// Requests that a server has answered so far, and their bytes.
pub fn counted(server: &Server) -> Result<[f64; 2]> {
    let mut connection = TcpStream::connect(("127.0.0.1", server.port()))?;
    let ask = "GET /minio/metrics/v3/api/requests HTTP/1.0\r\nHost: localhost\r\n\r\n";
    connection.write_all(ask.as_bytes())?;
    let mut text = String::new();
    connection.read_to_string(&mut text)?;
    let sum = |name: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    let bytes = sum("minio_api_requests_traffic_received_bytes")
        + sum("minio_api_requests_traffic_sent_bytes");
    Ok([sum("minio_api_requests_total"), bytes])
}

fn median(measured: &[Measured], figure: impl Fn(&Measured) -> f64) -> f64 {
    let mut all: Vec<f64> = measured.iter().map(figure).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Measures, and prints a table.
pub fn run(options: &BucketOptions) -> Result<()> {
    let server_folder = options.work.join("server");
    let _ = std::fs::remove_dir_all(&server_folder);
    let disks = Disks::find(&options.disks, &options.vms, 2)?;
    let missing = "minio is missing: scripts/setup.sh installs it";
    let arguments = &options.server_args;
    let start = || Server::start_in(&drives(options), arguments).ok_or_else(|| missing.into());
    let server = cpus::apart(options.server_cpus, start)?;
    let bench = Bench { options, server, disks };
    let mut ways = vec![Way::Folder, Way::Bucket, Way::FolderRound, Way::BucketRound];
    let restic = Call::new("restic").args(&["version"]).run().is_ok();
    ways.extend(restic.then_some(Way::Restic));
    let rustic = Call::new("rustic").args(&["--version"]).run().is_ok();
    ways.extend(rustic.then_some(Way::Rustic));
    let mut all = vec![vec![Vec::new(); STEPS.len()]; ways.len()];
    for run in 0..options.runs {
        for (number, way) in ways.iter().enumerate() {
            eprintln!("run {run}: {}", way.name());
            let name = format!("{run}-{number}");
            bench.init(*way, &name)?;
            for (at, (_, step)) in STEPS.iter().enumerate() {
                all[number][at].push(bench.measure(*way, &name, *step)?);
            }
            bench.remove(&name);
        }
    }
    print(&bench, &ways, &all);
    let _ = std::fs::remove_dir_all(Path::new(&server_folder));
    Ok(())
}

fn print(bench: &Bench<'_>, ways: &[Way], all: &[Vec<Vec<Measured>>]) {
    let machines = bench.disks.machines.len() as f64;
    println!(
        "| {machines} machines, {} runs, medians | wall s | of the folder | of restic | CPU s | \
         server's CPU s | MiB at most | requests a machine | MB sent and received |",
        bench.options.runs
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|---:|");
    let wall = |way: Way, step: usize| {
        let at = ways.iter().position(|other| *other == way)?;
        Some(median(&all[at][step], |measured| measured.cost.wall_s))
    };
    for (step, (what, _)) in STEPS.iter().enumerate() {
        for (way, steps) in ways.iter().zip(all) {
            let figure = |figure: &dyn Fn(&Measured) -> f64| median(&steps[step], figure);
            let own = figure(&|measured| measured.cost.wall_s);
            let of = |other| {
                wall(other, step).map_or("-".to_owned(), |other| format!("{:.3}", own / other))
            };
            println!(
                "| {what}, {} | {own:.2} | {} | {} | {:.1} | {:.1} | {:.0} | {:.0} | {:.2} |",
                way.name(),
                of(way.in_folder()),
                of(Way::Restic),
                figure(&|measured| measured.cost.cpu_s),
                figure(&|measured| measured.server_s),
                figure(&|measured| measured.cost.rss_bytes as f64 / f64::from(1 << 20)),
                figure(&|measured| measured.requests / machines),
                figure(&|measured| measured.bytes / 1e6),
            );
        }
    }
}
