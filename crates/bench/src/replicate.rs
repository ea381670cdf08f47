//! Replication: a day's change of several machines over a thin line against `restic copy` and
//! rsync, and as fast as it goes inside one machine.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::disks::Disks;
use crate::export::peak_bytes;
use crate::link::{Delay, FarMachine};
use crate::process::{Call, Cost};
use crate::{ReplicateOptions, Result};

pub const PASSWORD: &str = "bench";
/// Bytes that the delaying line holds each way: ten times what 2 Mb/s have on their way in 100 ms.
pub const WINDOW: usize = 256 << 10;
const SILT_PORT: u16 = 7420;
const RSYNC_PORT: u16 = 7421;
const SFTP_PORT: u16 = 7422;
const SFTP_SERVER: &str = "/usr/lib/openssh/sftp-server";

/// A server that was started, killed when this is dropped.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
}

impl Server {
    /// Starts a program, and waits until it listens.
    pub fn start(command: &mut Command, address: SocketAddr) -> Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let server = Self { child: child.spawn()?, address };
        for _ in 0..1000 {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("nothing listens at {address}").into())
    }

    /// The most memory that it has had so far.
    pub fn peak_bytes(&self) -> Result<u64> {
        peak_bytes(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// What went over a line, and how long it took.
struct Sent {
    seconds: f64,
    up: u64,
    down: u64,
}

impl Sent {
    fn measure(far: &FarMachine, run: impl FnOnce() -> Result<()>) -> Result<Self> {
        let (up, down) = far.counted()?;
        let began = Instant::now();
        run()?;
        let seconds = began.elapsed().as_secs_f64();
        let (up_after, down_after) = far.counted()?;
        Ok(Self { seconds, up: up_after - up, down: down_after - down })
    }

    fn bytes(&self) -> u64 {
        self.up + self.down
    }

    /// The share of a line's rate, in bits per second, that the direction with more data used.
    fn share(&self, rate: f64) -> f64 {
        self.up.max(self.down) as f64 * 8.0 / self.seconds / rate
    }
}

/// The silt program with a repository of the work folder, and what it remembers there, too.
pub fn silt_with(silt: &Path, work: &Path, repository: &str) -> Call {
    Call::new(silt)
        .env("SILT_REPOSITORY", work.join(repository))
        .env("SILT_PASSWORD", PASSWORD)
        .env("SILT_TO_PASSWORD", PASSWORD)
        .env("XDG_STATE_HOME", work.join("state"))
        .env("SILT_CACHE_DIR", work.join("cache"))
}

struct Bench<'a> {
    options: &'a ReplicateOptions,
    disks: Disks,
    work: PathBuf,
}

impl Bench<'_> {
    fn silt(&self, repository: &str) -> Call {
        silt_with(&self.options.silt, &self.work, repository)
    }

    fn restic(&self, repository: &str) -> Option<Call> {
        let call = Call::new(self.options.restic.as_ref()?);
        Some(
            call.env("RESTIC_REPOSITORY", self.work.join(repository))
                .env("RESTIC_PASSWORD", PASSWORD)
                .env("RESTIC_CACHE_DIR", self.work.join("restic-cache"))
                .args(&["--quiet"]),
        )
    }

    /// The repository that restic copies to.
    fn restic_there(&self) -> Option<Call> {
        let call = self.restic("restic-there")?;
        let call = call.env("RESTIC_FROM_REPOSITORY", self.work.join("restic"));
        Some(call.env("RESTIC_FROM_PASSWORD", PASSWORD))
    }

    /// Backs up every machine's disk of a day, each as a series.
    fn back_up(&self, day: usize) -> Result<()> {
        for machine in &self.disks.machines {
            let disk = self.disks.path(machine, day);
            self.silt("here").args(&["backup", machine, "--quiet"]).arg(&disk).run()?;
            if let Some(restic) = self.restic("restic") {
                restic.args(&["backup", "--tag", machine]).arg(&disk).run()?;
            }
        }
        Ok(())
    }

    /// What both sites have before the day whose change is sent: the day before, in each system.
    fn prepare(&self) -> Result<()> {
        self.silt("here").args(&["init", "--quiet"]).run()?;
        if let (Some(near), Some(far)) = (self.restic("restic"), self.restic_there()) {
            near.args(&["init"]).run()?;
            far.args(&["init", "--copy-chunker-params"]).run()?;
        }
        let last = self.disks.last();
        self.back_up(last - 1)?;
        let there = self.work.join("there");
        self.silt("here").args(&["replicate", "--quiet", "--init", "--to"]).arg(there).run()?;
        if let Some(far) = self.restic_there() {
            far.args(&["copy"]).run()?;
        }
        self.back_up(last)?;
        for (folder, day) in [("raw", last), ("raw-there", last - 1)] {
            fs::create_dir_all(self.work.join(folder))?;
            for machine in &self.disks.machines {
                let copy = self.work.join(folder).join(machine);
                copied(&self.disks.path(machine, day), &copy)?;
            }
        }
        Ok(())
    }

    /// Sends the change with silt twice; the second time there is nothing to send.
    fn send(&self, far: &FarMachine, round_trip: Duration, delta: &str) -> Result<(Sent, Sent)> {
        let (there, now) = (self.work.join("there"), self.work.join("there-now"));
        remove(&now)?;
        copied(&there, &now)?;
        let mut command = far.command(&self.options.silt.to_string_lossy());
        command.args(["serve", "replica", "--listen", &format!("0.0.0.0:{SILT_PORT}"), "-r"]);
        command.arg(&now).env("SILT_PASSWORD", PASSWORD);
        // What it remembers of the copy before this one would be a newer state.
        let state = self.work.join("there-state");
        remove(&state)?;
        command.env("XDG_STATE_HOME", &state).env("SILT_CACHE_DIR", state.join("cache"));
        let server = Server::start(&mut command, (far.address, SILT_PORT).into())?;
        let line = Delay::start(server.address, round_trip, WINDOW)?;
        let send = || -> Result<()> {
            let to = format!("tcp://{}", line.address);
            let call = self.silt("here").args(&["replicate", "--quiet", "--delta", delta, "--to"]);
            call.arg(&to).run().map(drop)
        };
        Ok((Sent::measure(far, send)?, Sent::measure(far, send)?))
    }

    /// Every disk restored at the far site is that of the last day.
    fn compare(&self) -> Result<()> {
        for machine in &self.disks.machines {
            let copy = self.work.join("restored.raw");
            let snapshot = format!("{machine}@latest");
            let restore = self.silt("there-now").args(&["restore", "--quiet", &snapshot]);
            restore.arg(&copy).run()?;
            let disk = self.disks.path(machine, self.disks.last());
            Call::new("cmp").arg(&copy).arg(disk).run()?;
            fs::remove_file(copy)?;
        }
        Ok(())
    }

    fn restic_sends(&self, far: &FarMachine, round_trip: Duration) -> Result<Option<Sent>> {
        let Some(restic) = self.restic_there() else { return Ok(None) };
        let mut command = far.command("socat");
        command.arg(format!("TCP-LISTEN:{SFTP_PORT},reuseaddr,fork"));
        command.arg(format!("EXEC:{SFTP_SERVER}"));
        let server = Server::start(&mut command, (far.address, SFTP_PORT).into())?;
        let line = Delay::start(server.address, round_trip, WINDOW)?;
        let there = self.work.join("restic-there");
        let connect = format!("sftp.command=socat - TCP:{}", line.address);
        let restic = restic
            .env("RESTIC_REPOSITORY", format!("sftp:far:{}", there.display()))
            .args(&["-o", &connect, "copy"]);
        Sent::measure(far, || restic.run().map(drop)).map(Some)
    }

    fn rsync_sends(&self, far: &FarMachine, round_trip: Duration) -> Result<Sent> {
        let settings = self.work.join("rsyncd.conf");
        let folder = self.work.join("raw-there");
        let text = format!(
            "use chroot = no\n[disks]\npath = {}\nread only = no\nuid = root\n",
            folder.display()
        );
        fs::write(&settings, text)?;
        let mut command = far.command("rsync");
        command.args(["--daemon", "--no-detach", "--port", &RSYNC_PORT.to_string(), "--config"]);
        command.arg(settings);
        let server = Server::start(&mut command, (far.address, RSYNC_PORT).into())?;
        let line = Delay::start(server.address, round_trip, WINDOW)?;
        let mut call = Call::new("rsync").args(&["--inplace", "--no-whole-file", "-z"]);
        for machine in &self.disks.machines {
            call = call.arg(self.work.join("raw").join(machine));
        }
        let call = call.arg(format!("rsync://{}/disks/", line.address));
        let sent = Sent::measure(far, || call.run().map(drop))?;
        for machine in &self.disks.machines {
            let copy = folder.join(machine);
            Call::new("cmp").arg(copy).arg(self.work.join("raw").join(machine)).run()?;
        }
        Ok(sent)
    }

    fn thin_line(&self) -> Result<()> {
        let rate = bits_per_second(&self.options.rate)?;
        self.prepare()?;
        println!(
            "A line of {} each way. Bytes with all headers, both ways together; use: the larger \
             way's share of the rate.\n",
            self.options.rate
        );
        println!("| system | round trip | bytes | seconds | use | a second run's bytes |");
        println!("|---|---:|---:|---:|---:|---:|");
        let line = |name: &str, ms: u64, sent: &Sent, second: Option<&Sent>| {
            let (bytes, seconds, share) = (sent.bytes(), sent.seconds, sent.share(rate) * 100.0);
            let second = second.map_or(String::new(), |second| second.bytes().to_string());
            println!("| {name} | {ms} ms | {bytes} | {seconds:.1} | {share:.1} % | {second} |");
        };
        let far = FarMachine::new(&self.options.rate)?;
        let mut silt_bytes = 0;
        for ms in &self.options.round_trips {
            let (first, second) = self.send(&far, Duration::from_millis(*ms), "auto")?;
            line("silt", *ms, &first, Some(&second));
            silt_bytes = first.bytes().max(silt_bytes);
        }
        self.compare()?;
        let without = Duration::from_millis(self.options.peers_round_trip);
        let (without, second) = self.send(&far, without, "off")?;
        line("silt --delta=off", self.options.peers_round_trip, &without, Some(&second));
        let peers_ms = self.options.peers_round_trip;
        let round_trip = Duration::from_millis(peers_ms);
        let mut peers = vec![("rsync", self.rsync_sends(&far, round_trip)?)];
        peers.extend(self.restic_sends(&far, round_trip)?.map(|sent| ("restic copy", sent)));
        for (name, sent) in &peers {
            line(name, peers_ms, sent, None);
        }
        peers.push(("silt --delta=off", without));
        println!();
        for (name, sent) in &peers {
            let ratio = silt_bytes as f64 / sent.bytes() as f64;
            println!("silt's bytes as a share of those of {name}: {ratio:.3}");
        }
        Ok(())
    }

    /// Sends the change through a pipe, with and without deltas, and counts the bytes.
    fn count(&self) -> Result<()> {
        self.prepare()?;
        println!(
            "\n| through a pipe | bytes sent | in deltas | received | seconds | CPU s | MiB |"
        );
        println!("|---|---:|---:|---:|---:|---:|---:|");
        for delta in ["off", "auto"] {
            let (there, now) = (self.work.join("there"), self.work.join("there-now"));
            remove(&now)?;
            copied(&there, &now)?;
            let state = self.work.join("there-state");
            remove(&state)?;
            let to = format!(
                "exec:XDG_STATE_HOME={0} SILT_CACHE_DIR={0} {1} serve replica -r {2}",
                state.display(),
                self.options.silt.display(),
                now.display()
            );
            // A level of its own, so that the pipe is taken for a thin line.
            let said = self.work.join("said.json");
            let call = self.silt("here").args(&["--json", "replicate", "--compression", "9"]);
            let call = call.args(&["--delta", delta, "--to", &to]);
            let cost = call.run_to(fs::File::create(&said)?.into())?;
            let text = fs::read_to_string(&said)?;
            let last = text.lines().last().ok_or("silt said nothing")?;
            let said: serde_json::Value = serde_json::from_str(last)?;
            let bytes = |place: &str| said.pointer(place).and_then(serde_json::Value::as_u64);
            println!(
                "| --delta={delta} | {} | {} | {} | {:.2} | {:.2} | {:.0} |",
                bytes("/sent_bytes").ok_or("no bytes")?,
                bytes("/phases/deltas/sent_bytes").ok_or("no phases")?,
                bytes("/received_bytes").ok_or("no bytes")?,
                cost.wall_s,
                cost.cpu_s,
                cost.rss_bytes as f64 / 1_048_576.0
            );
            self.compare()?;
        }
        Ok(())
    }

    /// Replicates all disks as one snapshot to an empty replica of this machine, and again when
    /// they were backed up once more unchanged.
    fn loopback(&self) -> Result<()> {
        println!(
            "\n| inside one machine | MB | seconds | MB/s | CPU s | peak RSS MiB, here, there |"
        );
        println!("|---|---:|---:|---:|---:|---:|");
        let disks: Vec<_> = self.disks.machines.iter().map(|vm| self.disks.path(vm, 0)).collect();
        let mut data = 0;
        for disk in &disks {
            data += std::os::unix::fs::MetadataExt::blocks(&fs::metadata(disk)?) * 512;
        }
        let back_up = || {
            let call = self.silt("many").args(&["backup", "all", "--quiet"]);
            disks.iter().fold(call, Call::arg).run()
        };
        for _ in 0..self.options.runs {
            for name in ["many", "many-there"] {
                remove(&self.work.join(name))?;
            }
            self.silt("many").args(&["init", "--quiet"]).run()?;
            let there = self.work.join("many-there");
            let init = self.silt("many").args(&["replicate", "--quiet", "--init", "--to"]);
            init.arg(&there).run()?;
            back_up()?;
            for what in ["all differs", "all is there"] {
                let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
                let mut command = Command::new(&self.options.silt);
                command.args(["serve", "replica", "--listen", &port.to_string(), "-r"]);
                command.arg(&there).env("SILT_PASSWORD", PASSWORD);
                command.env("XDG_STATE_HOME", self.work.join("state"));
                let server = Server::start(&mut command, port)?;
                let to = format!("tcp://{port}");
                let call = self.silt("many").args(&["replicate", "--quiet", "--to", &to]);
                print_fast(what, data, call.run()?, peak_bytes(server.child.id())?);
                drop(server);
                back_up()?;
            }
        }
        Ok(())
    }
}

fn print_fast(what: &str, data: u64, cost: Cost, there: u64) {
    let rate = data as f64 / 1e6 / cost.wall_s;
    println!(
        "| {what} | {:.0} | {:.2} | {rate:.0} | {:.2} | {:.0}, {:.0} |",
        data as f64 / 1e6,
        cost.wall_s,
        cost.cpu_s,
        cost.rss_bytes as f64 / 1_048_576.0,
        there as f64 / 1_048_576.0
    );
}

/// A rate as `tc` writes it, in bits per second.
pub fn bits_per_second(rate: &str) -> Result<f64> {
    let digits = rate.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &rate[digits.len()..] {
        "bit" => 1.0,
        "kbit" => 1e3,
        "mbit" => 1e6,
        "gbit" => 1e9,
        _ => return Err(format!("{rate} is no rate such as 2mbit").into()),
    };
    Ok(digits.parse::<f64>()? * unit)
}

/// Copies a file with its holes, or a folder.
pub fn copied(from: &Path, to: &Path) -> Result<()> {
    Call::new("cp").args(&["-a", "--sparse=always"]).arg(from).arg(to).run().map(drop)
}

pub fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

pub fn run(options: &ReplicateOptions) -> Result<()> {
    let disks = Disks::find(&options.disks.disks, &options.disks.vms, 2)?;
    let work = options.disks.work.join("replicate");
    remove(&work)?;
    fs::create_dir_all(&work)?;
    let work = work.canonicalize()?;
    let bench = Bench { options, disks, work };
    if options.count {
        bench.count()?;
        return remove(&bench.work);
    }
    if options.runs > 0 {
        bench.loopback()?;
    }
    if !options.round_trips.is_empty() {
        bench.thin_line()?;
    }
    remove(&bench.work)
}
