//! Several backups at once with a limit on reading, as the VM-centric paper (000) measures them:
//! processor, memory, reading, writing and hours, and what a process beside them waits for its own
//! reads and writes.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use rustix::process::{Pid, Signal, kill_process};

use crate::changes::write_map;
use crate::disks::{DAYS, Disks};
use crate::process::{Call, Cost};
use crate::{Result, SharingOptions};

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    disks: SharingOptions,
    /// What all backups together read in a second at most.
    #[arg(long, default_value_t = 50.0, value_name = "MB")]
    limit_mb: f64,
    /// How many backups at once.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 6])]
    tasks: Vec<usize>,
    /// How many series have each disk.
    #[arg(long, default_value_t = 2, value_name = "N")]
    copies: usize,
    /// How many rounds.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    /// The fio program; without, no latency is measured.
    #[arg(long, value_name = "FILE")]
    fio: Option<PathBuf>,
    /// How long fio runs without a backup, in seconds.
    #[arg(long, default_value_t = 30, value_name = "S")]
    idle_s: u64,
    /// The silt program.
    #[arg(long, default_value = "silt", value_name = "FILE")]
    silt: PathBuf,
}

/// What a host of the papers' cluster reads for a snapshot of its 25 machines of 40 GB, of which
/// 22 % are in segments that have changed (001).
const HOST_DIRTY_BYTES: f64 = 25.0 * 40e9 * 0.22;
/// Percent of the different chunks that are shared (000: sigma).
const SHARE: &str = "2";
/// Requests a second of the process beside: reads and writes of 4 KiB that pass the page cache.
const RATES: &str = "--rate_iops=140,60";
/// Bytes after whose writing it has certainly read and written.
const BEGUN: u64 = 10 * 4096;
/// How long is waited for that.
const FIO_PATIENCE: Duration = Duration::from_mins(1);
const FILE_MIB: u64 = 256;

/// Published of 000: tasks, CPU %, MB of memory, MB/s written, hours.
const LIMITED: [(usize, [&str; 4]); 4] = [
    (1, ["19", "118", "16.4", "1.31"]),
    (2, ["35", "132", "17.6", "1.23"]),
    (4, ["63", "154", "18.3", "1.18"]),
    (6, ["77", "172", "18.8", "1.16"]),
];
/// Published of 000 without a limit: tasks, MB/s of images, of new chunks, and written.
const UNLIMITED: [(usize, [&str; 3]); 4] = [
    (1, ["1370", "148", "35.3"]),
    (2, ["2409", "260", "61.7"]),
    (4, ["4102", "443", "103"]),
    (6, ["5457", "590", "144"]),
];

/// A series: a disk on two days.
struct Job {
    series: String,
    before: PathBuf,
    after: PathBuf,
    map: PathBuf,
}

/// The series, and the repository with their first backups.
struct Place<'o> {
    options: &'o Options,
    folder: PathBuf,
    jobs: Vec<Job>,
}

/// What backups of all series took.
#[derive(Clone, Default)]
struct Row {
    wall_s: f64,
    cpu_s: f64,
    /// The sum of the most that each of those at once took.
    memory: u64,
    /// Bytes that the processes read in all, of disks and of the repository.
    read: u64,
    /// Bytes of segments that were read from disks, by the reports.
    dirty: u64,
    /// Bytes of new chunks before compression, and of all that was written.
    new: u64,
    written: u64,
    latency: Option<[f64; 4]>,
}

impl Place<'_> {
    fn silt(&self, repository: &Path) -> Call {
        Call::new(&self.options.silt)
            .env("SILT_REPOSITORY", repository)
            .env("SILT_PASSWORD", "bench")
            .env("XDG_STATE_HOME", self.folder.join("state"))
            .env("SILT_NO_CACHE", "true")
    }

    fn first(&self) -> PathBuf {
        self.folder.join("first")
    }

    /// Every machine on every two days that follow each other, several times.
    fn plan(&mut self) -> Result<()> {
        let SharingOptions { disks, vms, .. } = &self.options.disks;
        let disks = Disks::find(disks, vms, DAYS)?;
        for copy in 0..self.options.copies.max(1) {
            for day in 1..disks.days {
                for machine in &disks.machines {
                    let map = self.folder.join(format!("{machine}-{day}.json"));
                    let (before, after) = (disks.path(machine, day - 1), disks.path(machine, day));
                    if copy == 0 {
                        write_map(&before, &after, &map)?;
                    }
                    let series = format!("{machine}-{day}-{copy}");
                    self.jobs.push(Job { series, before, after, map });
                }
            }
        }
        Ok(())
    }

    /// The first backups, of which 2 % are shared, and the file of the process beside.
    fn make(&self) -> Result<()> {
        let first = self.first();
        self.silt(&first).args(&["init"]).run()?;
        for job in &self.jobs {
            eprintln!("first backup of {}", job.series);
            let call = self.silt(&first).args(&["backup", &job.series, "--"]);
            call.arg(volume(&job.before)).run()?;
        }
        let share = self.silt(&first).args(&["popular", "build", "--share", SHARE, "--temp"]);
        share.arg(&self.folder).run()?;
        if let Some(fio) = &self.options.fio {
            Fio::prepare(fio, &self.folder)?;
        }
        rustix::fs::sync();
        Ok(())
    }

    /// Backs up one series with its map, with its disk read from the drive; the bytes are those of
    /// its report.
    fn back_up(
        &self,
        repository: &Path,
        job: &Job,
        rate: Option<&str>,
    ) -> Result<(Cost, [u64; 3])> {
        let disk = std::fs::File::open(&job.after)?;
        rustix::fs::fadvise(&disk, 0, None, Advice::DontNeed)?;
        let mut call = self.silt(repository).args(&["--json"]);
        if let Some(rate) = rate {
            call = call.args(&["--limit-read", rate]);
        }
        let call = call.args(&["backup", &job.series, "--changed"]).arg(&job.map);
        let call = call.args(&["--"]).arg(volume(&job.after));
        let output = tempfile::NamedTempFile::new_in(&self.folder)?;
        let cost = call.run_to(Stdio::from(output.reopen()?))?;
        let text = std::fs::read_to_string(output.path())?;
        let messages = text.lines().map(serde_json::from_str::<serde_json::Value>);
        let messages = messages.collect::<std::result::Result<Vec<_>, _>>()?;
        let summary = messages.iter().find(|message| message["message_type"] == "summary");
        let summary = summary.ok_or("a backup without a summary")?;
        let number = |value: &serde_json::Value| value.as_u64().ok_or("a report without numbers");
        let volume = &summary["volumes"][0];
        let level = |name| number(&volume["levels"][name]);
        let dirty = number(&volume["bytes"])? - level("map")? - level("zero")?;
        Ok((cost, [dirty, level("new")?, number(&summary["written_bytes"])?]))
    }

    /// Backs all series up, so many at once, beginning with the first backups.
    fn run(&self, tasks: usize, is_limited: bool) -> Result<Row> {
        let repository = self.folder.join("next");
        // What this machine knows of the repository is of the copy before.
        for old in [&repository, &self.folder.join("state")] {
            drop(std::fs::remove_dir_all(old));
        }
        // Objects never change, so that links will do.
        Call::new("cp").args(&["-rl"]).arg(self.first()).arg(&repository).run()?;
        rustix::fs::sync();
        let kib = self.options.limit_mb * 1e6 / tasks as f64 / 1024.0;
        let rate = is_limited.then(|| format!("{kib:.0}k"));
        let next = AtomicUsize::new(0);
        let results: Mutex<Vec<std::result::Result<Done, String>>> = Mutex::default();
        let latency = self.options.fio.as_deref().map(|fio| Fio::start(fio, &self.folder));
        let latency = latency.transpose()?;
        let (begin, read) = (Instant::now(), read_bytes()?);
        let work = |task| {
            while let Some(job) = self.jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                let result = self.back_up(&repository, job, rate.as_deref());
                let result = result.map(|(cost, bytes)| Done { task, cost, bytes });
                let result = result.map_err(|error| error.to_string());
                results.lock().unwrap_or_else(PoisonError::into_inner).push(result);
            }
        };
        std::thread::scope(|scope| {
            (0..tasks).for_each(|task| {
                let work = &work;
                scope.spawn(move || work(task));
            });
        });
        let wall_s = begin.elapsed().as_secs_f64();
        let read = read_bytes()? - read;
        let latency = latency.map(Fio::end).transpose()?;
        let mut row = Row { wall_s, read, latency, ..Row::default() };
        let mut memory = vec![0; tasks];
        for result in results.into_inner().unwrap_or_else(PoisonError::into_inner) {
            let Done { task, cost, bytes: [dirty, new, written] } = result?;
            row.cpu_s += cost.cpu_s;
            memory[task] = cost.rss_bytes.max(memory[task]);
            (row.dirty, row.new, row.written) =
                (row.dirty + dirty, row.new + new, row.written + written);
        }
        row.memory = memory.iter().sum();
        Ok(row)
    }

    /// Bytes of the disks without their holes.
    fn image_bytes(&self) -> Result<f64> {
        let blocks = self.jobs.iter().map(|job| Ok(std::fs::metadata(&job.after)?.blocks()));
        Ok(blocks.sum::<Result<u64>>()? as f64 * 512.0)
    }
}

/// The volume has one name on all days.
fn volume(disk: &Path) -> String {
    format!("disk={}", disk.display())
}

/// A backup that has ended.
struct Done {
    task: usize,
    cost: Cost,
    bytes: [u64; 3],
}

/// Bytes that this process and the children that have ended have read, by system calls.
fn read_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    Ok(line.ok_or("/proc/self/io has no rchar")?.parse()?)
}

/// A process that reads and writes at a fixed rate, as a guest does that is not busy.
struct Fio(Child);

impl Fio {
    fn command(fio: &Path, folder: &Path) -> Command {
        let mut command = Command::new(fio);
        command.args(["--name=beside", "--rw=randrw", "--bs=4k", "--ioengine=psync", "--direct=1"]);
        command.args([RATES, "--time_based", "--runtime=86400", "--output-format=json"]);
        // Not in a process of its own, so that what it has written can be seen.
        command.arg("--thread");
        command.arg(format!("--size={FILE_MIB}m"));
        command.arg(format!("--filename={}", folder.join("beside").display()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        command
    }

    /// Writes the file that is read.
    fn prepare(fio: &Path, folder: &Path) -> Result<()> {
        let output = Self::command(fio, folder).arg("--create_only=1").output();
        let output = output.map_err(|error| format!("{}: {error}", fio.display()))?;
        if output.status.success() { Ok(()) } else { Err("fio cannot write its file".into()) }
    }

    /// Returns once it reads and writes: it would have nothing to report if it were ended before.
    fn start(fio: &Path, folder: &Path) -> Result<Self> {
        let mut child = Self::command(fio, folder).spawn()?;
        let counters = format!("/proc/{}/io", child.id());
        let begin = Instant::now();
        loop {
            let text = std::fs::read_to_string(&counters).unwrap_or_default();
            let written = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
            if written.is_some_and(|bytes| bytes.parse().is_ok_and(|bytes: u64| bytes >= BEGUN)) {
                return Ok(Self(child));
            }
            if let Some(status) = child.try_wait()? {
                return Err(format!("fio has ended too early: {status}").into());
            }
            if begin.elapsed() > FIO_PATIENCE {
                child.kill()?;
                child.wait()?;
                return Err(format!("fio has written nothing for {FIO_PATIENCE:?}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Milliseconds of reads and of writes: the median, and what 99 % are below.
    fn end(self) -> Result<[f64; 4]> {
        kill_process(Pid::from_child(&self.0), Signal::INT)?;
        let text = String::from_utf8(self.0.wait_with_output()?.stdout)?;
        // It may say that it was interrupted, too.
        let json = &text[text.find('{').ok_or("fio has printed no JSON")?..];
        let json = serde_json::Deserializer::from_str(json).into_iter().next();
        let json: serde_json::Value = json.ok_or("fio has printed no JSON")??;
        let at = |way: &str, part: &str| {
            let ns = json["jobs"][0][way]["clat_ns"]["percentile"][part].as_f64();
            Ok::<f64, &str>(ns.ok_or("fio has measured nothing")? / 1e6)
        };
        let [median, most] = ["50.000000", "99.000000"];
        Ok([at("read", median)?, at("read", most)?, at("write", median)?, at("write", most)?])
    }
}

/// The median of a figure over the rounds.
fn median(rows: &[Row], of: &dyn Fn(&Row) -> f64) -> f64 {
    let mut values: Vec<f64> = rows.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures, and prints tables.
pub fn run(options: &Options) -> Result<()> {
    let folder = options.disks.work.join("throttle");
    drop(std::fs::remove_dir_all(&folder));
    std::fs::create_dir_all(&folder)?;
    let mut place = Place { options, folder, jobs: Vec::new() };
    place.plan()?;
    place.make()?;
    let kinds = [true, false];
    let settings =
        || kinds.iter().flat_map(|kind| options.tasks.iter().map(|tasks| (*kind, *tasks)));
    let mut found: Vec<Vec<Row>> = settings().map(|_| Vec::new()).collect();
    let mut idle = Vec::new();
    for round in 1..=options.runs.max(1) {
        if let Some(fio) = &options.fio {
            let beside = Fio::start(fio, &place.folder)?;
            std::thread::sleep(Duration::from_secs(options.idle_s));
            idle.push(Row { latency: Some(beside.end()?), ..Row::default() });
        }
        for ((is_limited, tasks), rows) in settings().zip(&mut found) {
            eprintln!("round {round}: {tasks} at once, with a limit: {is_limited}");
            rows.push(place.run(tasks.max(1), is_limited)?);
        }
    }
    let (limited, unlimited) = found.split_at(options.tasks.len());
    let dirty = limited.first().map_or(0.0, |rows| rows[0].dirty as f64);
    println!(
        "{} series, {:.0} MB of images without holes, {:.0} MB in changed segments.",
        place.jobs.len(),
        place.image_bytes()? / 1e6,
        dirty / 1e6
    );
    print_limited(options, limited);
    print_unlimited(options, unlimited, place.image_bytes()?);
    if options.fio.is_some() {
        print_latency(options, &idle, (limited, unlimited));
    }
    std::fs::remove_dir_all(&place.folder)?;
    Ok(())
}

fn published<const N: usize>(
    all: &[(usize, [&'static str; N])],
    tasks: usize,
) -> [&'static str; N] {
    all.iter().find(|row| row.0 == tasks).map_or(["-"; N], |row| row.1)
}

fn print_limited(options: &Options, found: &[Vec<Row>]) {
    println!(
        "\n| backups at once, {} MB/s together | CPU % of a core | published (output) \
         | MB of memory | published (output) | read MB/s | published (input) \
         | written MB/s | published (output) | hours of the papers' host | published (output) |",
        options.limit_mb
    );
    println!("|---|{}", "---:|".repeat(10));
    for (tasks, rows) in options.tasks.iter().zip(found) {
        let of = |figure: &dyn Fn(&Row) -> f64| median(rows, figure);
        let [cpu, memory, written, hours] = published(&LIMITED, *tasks);
        println!(
            "| {tasks} | {:.1} | {cpu} | {:.0} | {memory} | {:.1} | 50 | {:.2} | {written} | {:.2} \
             | {hours} |",
            of(&|row| row.cpu_s / row.wall_s * 100.0),
            of(&|row| row.memory as f64 / 1e6),
            of(&|row| row.read as f64 / row.wall_s / 1e6),
            of(&|row| row.written as f64 / row.wall_s / 1e6),
            of(&|row| row.wall_s * HOST_DIRTY_BYTES / row.dirty as f64 / 3600.0)
        );
    }
}

fn print_unlimited(options: &Options, found: &[Vec<Row>], image_bytes: f64) {
    println!(
        "\n| backups at once, no limit | images MB/s | published (output) | new chunks MB/s | \
         published (output) | written MB/s | published (output) | CPU % of a core | read MB/s |"
    );
    println!("|---|{}", "---:|".repeat(8));
    for (tasks, rows) in options.tasks.iter().zip(found) {
        let rate = |bytes: &dyn Fn(&Row) -> f64| median(rows, &|row| bytes(row) / row.wall_s / 1e6);
        let [images, new, written] = published(&UNLIMITED, *tasks);
        println!(
            "| {tasks} | {:.0} | {images} | {:.0} | {new} | {:.1} | {written} | {:.0} | {:.0} |",
            rate(&|_| image_bytes),
            rate(&|row| row.new as f64),
            rate(&|row| row.written as f64),
            median(rows, &|row| row.cpu_s / row.wall_s * 100.0),
            rate(&|row| row.read as f64)
        );
    }
}

fn print_latency(
    options: &Options,
    idle: &[Row],
    (limited, unlimited): (&[Vec<Row>], &[Vec<Row>]),
) {
    println!(
        "\n| beside a process that reads and writes 4 KiB | reads: median ms | 99 % ms | writes: \
         median ms | 99 % ms |"
    );
    println!("|---|{}", "---:|".repeat(4));
    let line = |name: &str, rows: &[Row]| {
        let at = |place: usize| median(rows, &|row| row.latency.map_or(0.0, |all| all[place]));
        println!("| {name} | {:.2} | {:.2} | {:.2} | {:.2} |", at(0), at(1), at(2), at(3));
    };
    line("nothing", idle);
    for (found, limit) in
        [(limited, format!("{} MB/s", options.limit_mb)), (unlimited, "no limit".to_owned())]
    {
        for (tasks, rows) in options.tasks.iter().zip(found) {
            line(&format!("{tasks} at once, {limit}"), rows);
        }
    }
}
