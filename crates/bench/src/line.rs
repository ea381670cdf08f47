//! Replication day by day over a thin line: effective throughput, and processor time of both ends,
//! as figures 8 and 9 of the Neptune paper show them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::Result;
use crate::SharingOptions;
use crate::disks::Disks;
use crate::hosts::cpu_s;
use crate::link::{Delay, FarMachine};
use crate::process::Call;
use crate::replicate::{PASSWORD, Server, WINDOW, bits_per_second, copied, remove, silt_with};

const SILT_PORT: u16 = 7424;
const RSYNC_PORT: u16 = 7425;
/// How often processor time is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// The published effective throughput on a line of 2 Mb/s, in Mb/s.
const PUBLISHED: [(&str, &str); 3] =
    [("deltas (auto)", "286.27"), ("no deltas", "-"), ("all bytes", "1.57")];

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    disks: SharingOptions,
    /// The line's rate each way, as `tc` writes it.
    #[arg(long, default_value = "2mbit")]
    rate: String,
    /// Its round trip in milliseconds.
    #[arg(long, default_value_t = 30, value_name = "MS")]
    round_trip: u64,
    /// Days that are replicated after the first one.
    #[arg(long, default_value_t = 3, value_name = "N")]
    days: usize,
    /// Seconds between two points of processor time.
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    every: u64,
    /// How long all bytes are sent.
    #[arg(long, default_value_t = 60, value_name = "SECONDS")]
    whole_s: u64,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

/// Processor time of both ends until a moment, and what the line had carried by then.
#[derive(Clone, Copy, Default)]
struct Point {
    seconds: f64,
    cpu_s: [f64; 2],
    bytes: u64,
}

/// What one day took.
struct Day {
    logical: u64,
    seconds: f64,
    bytes: u64,
}

struct Bench<'a> {
    options: &'a Options,
    disks: Disks,
    work: PathBuf,
}

impl Bench<'_> {
    fn silt(&self, repository: &str) -> Call {
        silt_with(&self.options.silt, &self.work, repository)
    }

    /// The bytes of a day's disks that are not holes.
    fn logical(&self, day: usize) -> Result<u64> {
        let bytes = |machine: &String| Ok(fs::metadata(self.disks.path(machine, day))?.blocks());
        let blocks: Vec<u64> = self.disks.machines.iter().map(bytes).collect::<Result<_>>()?;
        Ok(blocks.iter().sum::<u64>() * 512)
    }

    /// Both sites have the first day; the source has all days, each with a tag.
    fn prepare(&self) -> Result<()> {
        self.silt("here").args(&["init", "--quiet"]).run()?;
        for day in 0..self.disks.days {
            for machine in &self.disks.machines {
                let tag = format!("day{day}");
                let call = self.silt("here").args(&["backup", machine, "--quiet", "--tag", &tag]);
                call.arg(self.disks.path(machine, day)).run()?;
            }
            if day == 0 {
                let call = self.silt("here").args(&["replicate", "--quiet", "--init", "--to"]);
                call.arg(self.work.join("there")).run()?;
            }
        }
        Ok(())
    }

    /// Replicates the days one after the other. Returns what each took, and processor time over
    /// time.
    fn replicate(&self, far: &FarMachine, delta: &str) -> Result<(Vec<Day>, Vec<Point>)> {
        let now = self.work.join("there-now");
        remove(&now)?;
        copied(&self.work.join("there"), &now)?;
        let state = self.work.join("there-state");
        remove(&state)?;
        let mut command = far.command(&self.options.silt.to_string_lossy());
        command.args(["serve", "replica", "--listen", &format!("0.0.0.0:{SILT_PORT}"), "-r"]);
        command.arg(&now).env("SILT_PASSWORD", PASSWORD);
        command.env("XDG_STATE_HOME", &state).env("SILT_CACHE_DIR", state.join("cache"));
        let server = Server::start(&mut command, (far.address, SILT_PORT).into())?;
        let round_trip = Duration::from_millis(self.options.round_trip);
        let line = Delay::start(server.address, round_trip, WINDOW)?;
        let to = format!("tcp://{}", line.address);
        let (mut days, is_over) = (Vec::new(), AtomicBool::new(false));
        let points = std::thread::scope(|scope| -> Result<Vec<Point>> {
            let watch = scope.spawn(|| {
                let points = self.watch(far, server.child.id(), &is_over);
                points.map_err(|error| error.to_string())
            });
            let mut replicate = || -> Result<()> {
                for day in 1..self.disks.days {
                    let (tag, before) = (format!("day{day}"), far.counted()?);
                    let call = self.silt("here").args(&["replicate", "--quiet", "--tag", &tag]);
                    let cost = call.args(&["--delta", delta, "--to", &to]).run()?;
                    let after = far.counted()?;
                    let bytes = after.0 - before.0 + after.1 - before.1;
                    let (logical, seconds) = (self.logical(day)?, cost.wall_s);
                    days.push(Day { logical, seconds, bytes });
                }
                Ok(())
            };
            let done = replicate();
            is_over.store(true, Ordering::SeqCst);
            let points = watch.join().map_err(|_| "the watch has ended")?;
            done.and(points.map_err(Into::into))
        })?;
        Ok((days, points))
    }

    /// Looks at the processor time of the destination, and of this program's children, which are
    /// the source's, until it is over.
    fn watch(&self, far: &FarMachine, there: u32, is_over: &AtomicBool) -> Result<Vec<Point>> {
        let begin = Instant::now();
        let look = || -> Result<Point> {
            let (up, down) = far.counted()?;
            let cpu_s = [source_cpu_s(there), cpu_s(there)];
            Ok(Point { seconds: begin.elapsed().as_secs_f64(), cpu_s, bytes: up + down })
        };
        let mut points = vec![look()?];
        let every = Duration::from_secs(self.options.every.max(1)).as_secs_f64();
        while !is_over.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK);
            if begin.elapsed().as_secs_f64() >= points.len() as f64 * every {
                points.push(look()?);
            }
        }
        points.push(look()?);
        Ok(points)
    }

    /// Sends all bytes of a day's disks for a while. Returns bits per second that have arrived.
    fn all_bytes(&self, far: &FarMachine) -> Result<f64> {
        let (settings, folder) = (self.work.join("rsyncd.conf"), self.work.join("raw-there"));
        remove(&folder)?;
        fs::create_dir_all(&folder)?;
        let module = format!("[disks]\npath = {}\nread only = no\nuid = root\n", folder.display());
        fs::write(&settings, format!("use chroot = no\n{module}"))?;
        let mut command = far.command("rsync");
        command.args(["--daemon", "--no-detach", "--port", &RSYNC_PORT.to_string(), "--config"]);
        let server = Server::start(command.arg(settings), (far.address, RSYNC_PORT).into())?;
        let round_trip = Duration::from_millis(self.options.round_trip);
        let line = Delay::start(server.address, round_trip, WINDOW)?;
        let seconds = self.options.whole_s.to_string();
        let mut call = Call::new("timeout").args(&[&seconds, "rsync", "--inplace", "-W"]);
        for machine in &self.disks.machines {
            call = call.arg(self.disks.path(machine, 1));
        }
        let begin = Instant::now();
        // It is ended before it is done.
        let _ended = call.arg(format!("rsync://{}/disks/", line.address)).run();
        let seconds = begin.elapsed().as_secs_f64();
        let files = fs::read_dir(&folder)?.flatten();
        let blocks: u64 = files.filter_map(|file| Some(file.metadata().ok()?.blocks())).sum();
        Ok(blocks as f64 * 512.0 * 8.0 / seconds)
    }
}

/// Processor time of all children of this program but the server, those that have ended
/// included.
fn source_cpu_s(there: u32) -> f64 {
    let own = std::process::id();
    let ended = ended_children_cpu_s();
    let path = format!("/proc/{own}/task");
    let threads = fs::read_dir(path).into_iter().flatten().flatten();
    let children = threads.flat_map(|thread| {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        children.split_whitespace().filter_map(|it| it.parse().ok()).collect::<Vec<u32>>()
    });
    ended + children.filter(|child| *child != there).map(cpu_s).sum::<f64>()
}

/// Processor time of the children of this process that have ended, in seconds.
fn ended_children_cpu_s() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(13).take(2).filter_map(|it| it.parse::<f64>().ok()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// Prints the processor time of both ends over time.
fn print_curves(curves: &[(&str, Vec<Point>)]) {
    println!("\n| system | until, s | on the line, MB | source CPU % | destination CPU % |");
    println!("|---|---:|---:|---:|---:|");
    for (name, points) in curves {
        for pair in points.windows(2) {
            let [before, after] = [pair[0], pair[1]];
            let seconds = after.seconds - before.seconds;
            let share = |end: usize| (after.cpu_s[end] - before.cpu_s[end]) / seconds * 100.0;
            println!(
                "| {name} | {:.0} | {:.2} | {:.2} | {:.2} |",
                after.seconds,
                (after.bytes - before.bytes) as f64 / 1e6,
                share(0),
                share(1)
            );
        }
    }
    println!(
        "\nPublished: 2.47 % of the processor at the source, 4.7 to 9.8 % at the destination \
         (Neptune, figure 9)."
    );
}

pub fn run(options: &Options) -> Result<()> {
    let disks = Disks::find(&options.disks.disks, &options.disks.vms, options.days + 1)?;
    let work = options.disks.work.join("line");
    remove(&work)?;
    fs::create_dir_all(&work)?;
    let work = work.canonicalize()?;
    let bench = Bench { options, disks, work };
    let rate = bits_per_second(&options.rate)?;
    bench.prepare()?;
    let far = FarMachine::new(&options.rate)?;
    println!(
        "{} machines, day by day after the first one, over a line of {} each way, round trip {} \
         ms.\n",
        bench.disks.machines.len(),
        options.rate,
        options.round_trip
    );
    println!(
        "| system | day | logical MB | on the line, MB | seconds | effective Mb/s | of the line | \
         published Mb/s |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mut curves = Vec::new();
    for (number, delta) in ["auto", "off"].into_iter().enumerate() {
        let (days, points) = bench.replicate(&far, delta)?;
        let (name, published) = PUBLISHED[number];
        let row = |day: &str, days: &[Day]| {
            let sum = |of: fn(&Day) -> f64| days.iter().map(of).sum::<f64>();
            let logical = sum(|day| day.logical as f64);
            let (bytes, seconds) = (sum(|day| day.bytes as f64), sum(|day| day.seconds));
            let effective = logical * 8.0 / seconds;
            println!(
                "| {name} | {day} | {:.0} | {:.2} | {seconds:.1} | {:.2} | {:.1} | {published} |",
                logical / 1e6,
                bytes / 1e6,
                effective / 1e6,
                effective / rate
            );
        };
        (1..).zip(&days).for_each(|(day, it)| row(&day.to_string(), std::slice::from_ref(it)));
        row("all", &days);
        curves.push((name, points));
    }
    let whole = bench.all_bytes(&far)?;
    let (name, published) = PUBLISHED[2];
    println!(
        "| {name} | 1 | - | - | {} | {:.2} | {:.2} | {published} |",
        options.whole_s,
        whole / 1e6,
        whole / rate
    );
    print_curves(&curves);
    remove(&bench.work)
}
