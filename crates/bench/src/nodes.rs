//! Storage nodes in buckets of a MinIO: several clients at once, without nodes, with one, and with
//! several, whose indexes are read from the storage or asked of a process beside each node. When
//! all ways have backed up, they restore by turns.
//!
//! AppDedupe's table 5.3 was measured with seven clients, a director and three nodes on a LAN. Here
//! they are processes of this machine, and the way to the buckets may delay.

use std::io::{BufRead, BufReader};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use silt_remote::server::{BUCKET, Server};

use crate::disks::Disks;
use crate::hosts::{Killed, resident};
use crate::link::Delay;
use crate::numbers::median;
use crate::process::{Call, Cost, cpu_seconds};
use crate::turns::{Share, by_turns};
use crate::{Result, SharingOptions};

/// Bytes on their way: enough for 500 MB/s.
const WINDOW: usize = 8 << 20;
/// How long a process may take until it answers.
const PATIENCE: Duration = Duration::from_mins(1);

/// What is measured, and with what.
#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    disks: SharingOptions,
    /// Days of each machine; each is a series of its own.
    #[arg(long, default_value_t = 3)]
    days: usize,
    /// Backups at once.
    #[arg(long, default_value_t = 7)]
    clients: usize,
    /// How many nodes.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// How long the way from clients to the buckets and back takes.
    #[arg(long, default_value_t = 0, value_name = "MS")]
    round_trip_ms: u64,
    /// How many turns restores take; each has two of every disk for every way.
    #[arg(long, default_value = "8", value_name = "N")]
    turns: NonZeroUsize,
    /// How many times each way is measured; medians are printed.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

/// Who says what nodes have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Storage,
    /// As `Storage`; afterwards the repository's shared store takes what several series have.
    Shared,
    Process,
    Approximate,
}

/// A way to back up: how many nodes there are, and who is asked.
type Way = (&'static str, usize, Asked);

struct Bench<'o> {
    options: &'o Options,
    work: PathBuf,
    server: Server,
    /// Where clients reach the server.
    endpoint: String,
    bus: String,
    /// Series and disks.
    jobs: Vec<(String, PathBuf)>,
}

/// What the backups of a way took.
struct Stored {
    backup: Cost,
    /// Bytes of each node's containers, and of everything that the repository's own prefix has.
    nodes: Vec<f64>,
    own_bytes: f64,
    /// The most memory of a node's process.
    process_bytes: u64,
    /// Chunks that processes were asked for.
    asked: f64,
}

/// What the restores of a way took in one turn.
#[derive(Clone, Copy)]
struct Restored {
    cost: Cost,
    /// Processor time of the server.
    server_s: f64,
}

/// What a way took in all runs.
#[derive(Default)]
struct Measured {
    stored: Vec<Stored>,
    /// The first restores of hosts that have no cache.
    first: Vec<Restored>,
    /// The same ones again, when the ends of containers are cached.
    again: Vec<Restored>,
}

/// Measures, and prints a table.
pub fn run(options: &Options) -> Result<()> {
    let work = options.disks.work.join("nodes");
    drop(std::fs::remove_dir_all(&work));
    std::fs::create_dir_all(&work)?;
    let disks = Disks::find(&options.disks.disks, &options.disks.vms, options.days)?;
    let mut jobs = Vec::new();
    for day in 0..disks.days {
        let of_day = |machine: &String| (format!("{machine}-{day}"), disks.path(machine, day));
        jobs.extend(disks.machines.iter().map(of_day));
    }
    let server = Server::start_in(&[work.join("drive")], &[]).ok_or("minio is missing")?;
    let round_trip = Duration::from_millis(options.round_trip_ms);
    let endpoint = if round_trip.is_zero() {
        server.endpoint()
    } else {
        let link = Delay::start(([127, 0, 0, 1], server.port()).into(), round_trip, WINDOW)?;
        format!("http://{}", link.address)
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let _bus = Killed(
        Command::new("nats-server")
            .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-js", "-sd"])
            .arg(work.join("bus"))
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("nats-server: {error}"))?,
    );
    let bus = format!("nats://127.0.0.1:{port}");
    std::fs::write(
        work.join("silt.toml"),
        format!("[agent]\nask-nodes = true\n[agent.bus]\nservers = [\"{bus}\"]\n"),
    )?;
    let bench = Bench { options, work, server, endpoint, bus, jobs };
    let several = options.nodes;
    let ways: [Way; 6] = [
        ("no nodes", 0, Asked::Storage),
        ("no nodes, shared store", 0, Asked::Shared),
        ("one node", 1, Asked::Storage),
        ("indexes read", several, Asked::Storage),
        ("processes asked", several, Asked::Process),
        ("processes, approximate", several, Asked::Approximate),
    ];
    let mut found: Vec<Measured> = ways.iter().map(|_| Measured::default()).collect();
    for run in 1..=options.runs.max(1) {
        let prefix = |way: usize| format!("{run}-{way}");
        for (number, (way, found)) in ways.iter().zip(&mut found).enumerate() {
            eprintln!("run {run}: {}", way.0);
            found.stored.push(bench.back_up(&prefix(number), *way)?);
        }
        let turns = by_turns(ways.len(), options.turns.get(), |turn, way| {
            eprintln!("run {run}, turn {turn}: {}", ways[way].0);
            bench.forget_hosts(&prefix(way));
            Ok((bench.restore(&prefix(way))?, bench.restore(&prefix(way))?))
        })?;
        for (way, (found, turns)) in found.iter_mut().zip(turns).enumerate() {
            let (first, again): (Vec<_>, Vec<_>) = turns.into_iter().unzip();
            found.first.extend(first);
            found.again.extend(again);
            // The last ones stay, to look into.
            if run < options.runs {
                bench.remove(&prefix(way))?;
            }
        }
    }
    bench.print(&ways, &found)
}

impl Bench<'_> {
    /// The program with the repository below this prefix of the bucket.
    fn silt(&self, prefix: &str, endpoint: &str, state: &Path) -> Call {
        let mut silt = Call::new(&self.options.silt)
            .env("SILT_PASSWORD", "bench")
            .env("SILT_REPOSITORY", format!("s3://{BUCKET}/{prefix}/repository"))
            .env("SILT_CACHE_DIR", state.join("cache"))
            .env("XDG_STATE_HOME", state);
        for (name, value) in self.server.settings_by(endpoint).environment {
            silt.environment.push((String::leak(name), value.into()));
        }
        silt
    }

    /// A program that has a cache of its own, as a host has.
    fn host(&self, prefix: &str, host: &str) -> Call {
        let state = self.work.join("hosts").join(prefix).join(host);
        self.silt(prefix, &self.endpoint, &state).args(&["--quiet"])
    }

    fn back_up(&self, prefix: &str, (_, nodes, asked): Way) -> Result<Stored> {
        let state = self.work.join("hosts").join(prefix).join("near");
        let near = self.silt(prefix, &self.server.endpoint(), &state);
        near.clone().args(&["init", "--kdf-memory", "8", "--kdf-passes", "1"]).run()?;
        for node in 1..=nodes {
            let location = format!("s3://{BUCKET}/{prefix}/node{node}");
            near.clone().args(&["node", "add", &format!("n{node}"), &location]).run()?;
        }
        let mut processes = Vec::new();
        let has_processes = matches!(asked, Asked::Process | Asked::Approximate);
        if has_processes {
            for node in 1..=nodes {
                processes.push(self.process(&near, node, asked == Asked::Approximate)?);
            }
        }
        let backup = self.all(&|client, (series, disk)| {
            let mut call = self.host(prefix, &format!("client{client}"));
            if has_processes {
                call = call.args(&["--config"]).arg(self.work.join("silt.toml"));
            }
            call.args(&["backup", series, "--"]).arg(format!("disk={}", disk.display()))
        })?;
        let (mut process_bytes, mut chunks) = (0, 0.0);
        for process in processes {
            let (bytes, asked) = process.end()?;
            process_bytes = process_bytes.max(bytes);
            chunks += asked;
        }
        if asked == Asked::Shared {
            near.clone().args(&["popular", "build", "--duplicates"]).run()?;
            near.clone().args(&["reclaim"]).run()?;
        }
        let of_node = |node| self.stored(&format!("{prefix}/node{node}/containers"));
        Ok(Stored {
            backup,
            nodes: (1..=nodes).map(of_node).collect(),
            own_bytes: self.stored(&format!("{prefix}/repository/containers")),
            process_bytes,
            asked: chunks,
        })
    }

    /// Restores the last snapshot of every series, each on a host of its own.
    fn restore(&self, prefix: &str) -> Result<Restored> {
        let before_s = cpu_seconds(self.server.process())?;
        let cost = self.all(&|_, (series, _)| {
            let volume = format!("{series}@latest:disk");
            self.host(prefix, series).args(&["restore", &volume, "-"])
        })?;
        Ok(Restored { cost, server_s: cpu_seconds(self.server.process())? - before_s })
    }

    /// Removes what the hosts that restore keep, as if they were new.
    fn forget_hosts(&self, prefix: &str) {
        for (series, _) in &self.jobs {
            drop(std::fs::remove_dir_all(self.work.join("hosts").join(prefix).join(series)));
        }
    }

    /// Removes a way's repository, its nodes and its hosts.
    fn remove(&self, prefix: &str) -> Result<()> {
        std::fs::remove_dir_all(self.work.join("hosts").join(prefix))?;
        Ok(std::fs::remove_dir_all(self.work.join("drive").join(BUCKET).join(prefix))?)
    }

    /// Does something for all series, as many at once as there are clients.
    fn all(&self, call: &(dyn Fn(usize, &(String, PathBuf)) -> Call + Sync)) -> Result<Cost> {
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<std::result::Result<Cost, String>>> = Mutex::default();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for client in 0..self.options.clients {
                let (next, done) = (&next, &done);
                scope.spawn(move || {
                    while let Some(job) = self.jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let cost = call(client, job).run().map_err(|error| error.to_string());
                        done.lock().unwrap_or_else(PoisonError::into_inner).push(cost);
                    }
                });
            }
        });
        let wall_s = begin.elapsed().as_secs_f64();
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let costs = done.into_iter().collect::<std::result::Result<Vec<_>, _>>()?;
        let sum = costs.into_iter().fold(Cost::default(), Cost::and);
        Ok(Cost { wall_s, ..sum })
    }

    /// The process of a node, as soon as it answers.
    fn process(&self, near: &Call, node: usize, is_approximate: bool) -> Result<Process> {
        let name = format!("n{node}");
        let mut command = Command::new(&near.program);
        command.args(["node", "run", &name, "--json", "--bus-server", &self.bus]);
        command.args(is_approximate.then_some("--approximate"));
        command.envs(near.environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let mut process = Process { child: Killed(child), lines: BufReader::new(output) };
        let begin = Instant::now();
        while process.message()?["message_type"] != "node_answers" {
            if begin.elapsed() > PATIENCE {
                return Err(format!("the process of {name} does not answer").into());
            }
        }
        Ok(process)
    }

    /// Bytes of what the server's drive holds below a prefix.
    fn stored(&self, prefix: &str) -> f64 {
        fn bytes(folder: &Path) -> u64 {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let sizes = entries.map(|entry| match entry.metadata() {
                Ok(found) if found.is_dir() => bytes(&entry.path()),
                Ok(found) => found.len(),
                Err(_) => 0,
            });
            sizes.sum()
        }
        bytes(&self.work.join("drive").join(BUCKET).join(prefix)) as f64
    }

    fn print(&self, ways: &[Way], found: &[Measured]) -> Result<()> {
        let mut data_bytes = 0.0;
        for (_, disk) in &self.jobs {
            data_bytes += std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(disk)?) as f64;
        }
        data_bytes *= 512.0;
        println!(
            "{} disks with {:.0} MB of data, {} clients at once, {} nodes, buckets {} ms away\n",
            self.jobs.len(),
            data_bytes / 1e6,
            self.options.clients,
            self.options.nodes,
            self.options.round_trip_ms
        );
        print_stored(ways, found, data_bytes);
        println!(
            "\nRestores by turns in random order, on hosts without caches and on the same ones \
             again (medians of {}; in\nbrackets the quartiles of the turns' shares):\n",
            found[0].first.len()
        );
        print_restored(ways, found);
        Ok(())
    }
}

/// Prints what backups took and stored.
fn print_stored(ways: &[Way], found: &[Measured], data_bytes: f64) {
    println!(
        "| | backup s | of no nodes | MB/s | CPU s | client MiB | stored MB | of one node | skew | \
         chunks asked | process MiB |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    );
    let of = |found: &Measured, figure: &dyn Fn(&Stored) -> f64| {
        median(found.stored.iter().map(figure).collect())
    };
    let bytes = |it: &Stored| it.nodes.iter().sum::<f64>() + it.own_bytes;
    let wall_s = |it: &Stored| it.backup.wall_s;
    let one = ways.iter().position(|(_, nodes, _)| *nodes == 1).unwrap_or_default();
    let (one, none_s) = (of(&found[one], &bytes), of(&found[0], &wall_s));
    for ((name, ..), found) in ways.iter().zip(found) {
        let of = |figure: &dyn Fn(&Stored) -> f64| of(found, figure);
        println!(
            "| {name} | {:.1} | {:.2} | {:.0} | {:.1} | {:.0} | {:.0} | {:.3} | {:.3} | {:.0} | \
             {:.0} |",
            of(&wall_s),
            none_s / of(&wall_s),
            data_bytes / 1e6 / of(&wall_s),
            of(&|it| it.backup.cpu_s),
            of(&|it| it.backup.rss_bytes as f64) / f64::from(1 << 20),
            of(&bytes) / 1e6,
            of(&bytes) / one,
            of(&|it| skew(&it.nodes)),
            of(&|it| it.asked),
            of(&|it| it.process_bytes as f64) / f64::from(1 << 20),
        );
    }
}

/// Restores of one kind that a way had.
type Kind = fn(&Measured) -> &[Restored];

/// Prints what restores took, and how fast they are by those of others.
fn print_restored(ways: &[Way], found: &[Measured]) {
    println!(
        "| | s | of no nodes | of the shared store | CPU s | MinIO's CPU s | client MiB |\n\
         |---|---:|---:|---:|---:|---:|---:|"
    );
    let shared = ways.iter().position(|(.., asked)| *asked == Asked::Shared).unwrap_or_default();
    let kinds: [(&str, Kind); 2] = [("first", |it| &it.first), ("again", |it| &it.again)];
    for (kind, restored) in kinds {
        let wall = |way: &Measured| -> Vec<f64> {
            restored(way).iter().map(|it| it.cost.wall_s).collect()
        };
        for ((name, ..), way) in ways.iter().zip(found) {
            let of = |figure: &dyn Fn(&Restored) -> f64| {
                median(restored(way).iter().map(figure).collect())
            };
            let share = |other: usize| Share::new(&wall(way), &wall(&found[other]));
            println!(
                "| {kind}, {name} | {:.2} | {} | {} | {:.1} | {:.1} | {:.0} |",
                of(&|it| it.cost.wall_s),
                share(0),
                share(shared),
                of(&|it| it.cost.cpu_s),
                of(&|it| it.server_s),
                of(&|it| it.cost.rss_bytes as f64) / f64::from(1 << 20),
            );
        }
    }
}

struct Process {
    child: Killed,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.lines.read_line(&mut line)? == 0 {
            return Err("the process of a node has ended".into());
        }
        let message: Value = serde_json::from_str(&line)?;
        match message["message_type"].as_str() {
            Some("error") => Err(format!("the process of a node has failed: {line}").into()),
            _ => Ok(message),
        }
    }

    /// Ends the process. The most memory that it took, and the chunks that it was asked for.
    fn end(mut self) -> Result<(u64, f64)> {
        let bytes = resident(self.child.0.id(), "VmHWM:");
        kill_process(Pid::from_child(&self.child.0), Signal::TERM)?;
        loop {
            let message = self.message()?;
            if message["message_type"] == "node_stopped" {
                return Ok((bytes, message["asked"].as_f64().unwrap_or_default()));
            }
        }
    }
}

/// Standard deviation over mean.
fn skew(bytes: &[f64]) -> f64 {
    let mean = bytes.iter().sum::<f64>() / bytes.len().max(1) as f64;
    let variance = bytes.iter().map(|it| (it - mean).powi(2)).sum::<f64>();
    if mean > 0.0 { (variance / bytes.len() as f64).sqrt() / mean } else { 0.0 }
}
