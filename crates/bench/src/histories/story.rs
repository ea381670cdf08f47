//! What happens in a history: all of it is drawn from its seed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use silt_remote::server::{BUCKET, Server};

use super::Times;
use super::disk::Disk;
use super::draw::Draw;
use super::host::{Bus, Group, Host};
use super::line::{Line, State};
use crate::Result;

/// How many snapshots `silt forget` keeps.
pub const KEPT: usize = 4;

/// A fault that ends by itself.
enum Fault {
    Stopped(usize),
    Store(usize),
    Bus(usize),
    NoBus,
    NoAgent(usize),
    StoreStopped,
}

/// A command that somebody gave.
pub struct Given {
    pub what: String,
    pub log: PathBuf,
    pub process: Group,
    pub was_killed: bool,
}

pub struct Story {
    pub draw: Draw,
    pub folder: PathBuf,
    pub server: u32,
    pub hosts: Vec<Host>,
    pub disks: Vec<Disk>,
    pub bus: Bus,
    pub given: Vec<Given>,
    pub done: BTreeMap<&'static str, usize>,
    pub has_forgotten: bool,
    faults: Vec<(Instant, Fault)>,
    times: Times,
}

/// The things that happen, each as often as it is listed.
const STEPS: [&str; 24] = [
    "change",
    "change",
    "change",
    "change",
    "backup",
    "backup",
    "backup",
    "round",
    "round",
    "kill",
    "kill",
    "stop",
    "stop",
    "bus",
    "bus-lost",
    "cut-store",
    "cut-store",
    "cut-bus",
    "store-stops",
    "forget",
    "reclaim",
    "popular",
    "sweep",
    "kill-command",
];

impl Story {
    pub fn begin(
        seed: u64,
        folder: PathBuf,
        server: &Server,
        silt: &Path,
        times: Times,
    ) -> Result<Self> {
        std::fs::create_dir_all(&folder)?;
        let mut draw = Draw::new(seed);
        let bus = Bus::new(folder.join("bus"))?;
        let mut environment: Vec<_> = server.settings().environment.into_iter().collect();
        let location = format!("s3://{BUCKET}/{seed}-{}", std::process::id());
        let of_silt = [
            ("SILT_REPOSITORY", location.as_str()),
            ("SILT_PASSWORD", "secret"),
            ("SILT_S3_TIMEOUT", "5"),
            ("SILT_S3_RETRIES", "4"),
        ];
        environment.extend(of_silt.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let mut hosts = Vec::new();
        // The last one is that of whoever gives commands.
        for number in 0..=2 + draw.below(3) {
            hosts.push(Host {
                name: format!("host{number}"),
                folder: folder.clone(),
                store: Line::start(server.port())?,
                bus: Line::start(bus.port)?,
                agent: None,
                environment: environment.clone(),
                silt: silt.to_owned(),
            });
        }
        let mut story = Self {
            draw,
            folder,
            server: server.process(),
            hosts,
            disks: Vec::new(),
            bus,
            given: Vec::new(),
            done: BTreeMap::new(),
            has_forgotten: false,
            faults: Vec::new(),
            times,
        };
        story.set()?;
        story.silt(&["init", "--kdf-memory", "8", "--kdf-passes", "1"])?;
        for number in 0..story.agents() {
            story.hosts[number].start()?;
        }
        Ok(story)
    }

    /// Hosts with an agent.
    pub fn agents(&self) -> usize {
        self.hosts.len() - 1
    }

    /// Writes the settings of all hosts, and the first states of their disks.
    fn set(&mut self) -> Result<()> {
        let (folder, agents) = (self.folder.clone(), self.agents());
        let draw = &mut self.draw;
        let mut series_of = vec![Vec::new(); agents];
        for (number, series) in series_of.iter_mut().enumerate() {
            for own in 0..=draw.below(2) {
                series.push(format!("vm{number}{own}"));
            }
        }
        for name in series_of.iter().flatten() {
            self.disks.push(Disk::new(name, folder.join(format!("{name}.raw")), draw)?);
        }
        // A machine on storage that two hosts have.
        if draw.once_in(3) {
            self.disks.push(Disk::new("both", folder.join("both.raw"), draw)?);
            series_of[..2].iter_mut().for_each(|series| series.push("both".to_owned()));
        }
        let limit = draw.below(3);
        let every = self.times.every - 1 + draw.below(3);
        for (number, host) in self.hosts.iter().enumerate() {
            let (parallel, spool) = (1 + draw.below(2), draw.once_in(2));
            let slow = if draw.once_in(3) { "limit-read = 1\n" } else { "" };
            let mut text = format!(
                "[agent]\nname = '{}'\nbackup = '*:*:0/{every}'\nparallel = {parallel}\n\
                 limit = {limit}\nalone-after = '2s'\nround-spool = {spool}\n\
                 [agent.bus]\nservers = ['nats://127.0.0.1:{}']\n[profiles.default]\n{slow}",
                host.name, host.bus.port
            );
            let series = series_of.get(number).into_iter().flatten().map(|name| {
                format!("[profiles.default.series.{name}]\nvolumes = {{ x = '{name}.raw' }}\n")
            });
            text.extend(series);
            std::fs::write(host.path("toml"), text)?;
        }
        Ok(())
    }

    /// Runs a command to its end, by the last host.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        let host = &self.hosts[self.agents()];
        Ok(host.command(arguments).stdin(std::process::Stdio::null()).output()?)
    }

    /// Runs a command that must succeed: its messages.
    pub fn silt(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let output = self.run(arguments)?;
        let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
        if !output.status.success() {
            return Err(format!("{arguments:?} ended with {}: {out}{err}", output.status).into());
        }
        Ok(out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Does things for so long.
    pub fn go_on(&mut self, length: Duration) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < length {
            std::thread::sleep(Duration::from_millis(self.draw.below(self.times.pause_max.max(1))));
            self.end_faults(Instant::now())?;
            let step = *self.draw.of(&STEPS);
            if self.step(step)? {
                *self.done.entry(step).or_default() += 1;
            }
        }
        Ok(())
    }

    /// Lets something happen. Returns whether it did: an agent may be dead that would die, and a
    /// command may have ended.
    fn step(&mut self, step: &str) -> Result<bool> {
        let agents = self.agents();
        let host = usize::try_from(self.draw.below(agents as u64))?;
        let disk = usize::try_from(self.draw.below(self.disks.len() as u64))?;
        let (low, high) = (self.times.fault_min, self.times.fault_max);
        let more = high.saturating_sub(low).max(1);
        let lasts = Duration::from_millis(low + self.draw.below(more));
        let until = Instant::now() + lasts;
        let how = *self.draw.of(&[State::Cut, State::Silent]);
        // The last host may be cut off too.
        let line = usize::try_from(self.draw.below(agents as u64 + 1))?;
        match step {
            "change" => self.disks[disk].change(&mut self.draw)?,
            "backup" => self.ask_for_a_backup(disk)?,
            "round" => self.give(&["cluster", "round", "--json", "--patience", "3s"])?,
            "kill" => {
                // Whether the next agent finds what the last one has noted.
                let forgets = self.draw.once_in(4);
                let Some(mut agent) = self.hosts[host].agent.take() else { return Ok(false) };
                agent.kill();
                if forgets {
                    drop(std::fs::remove_dir_all(self.hosts[host].path("state")));
                }
                self.faults.push((until, Fault::NoAgent(host)));
            }
            "stop" => {
                let Some(agent) = &self.hosts[host].agent else { return Ok(false) };
                agent.signal(Signal::STOP);
                self.faults.push((until, Fault::Stopped(host)));
            }
            "bus" | "bus-lost" => {
                if !self.bus.kill() {
                    return Ok(false);
                }
                if step == "bus-lost" {
                    drop(std::fs::remove_dir_all(&self.bus.folder));
                }
                self.faults.push((until, Fault::NoBus));
            }
            "cut-store" => {
                self.hosts[line].store.set(how);
                self.faults.push((until, Fault::Store(line)));
            }
            "cut-bus" => {
                self.hosts[line].bus.set(how);
                self.faults.push((until, Fault::Bus(line)));
            }
            "store-stops" => {
                self.signal_server(Signal::STOP);
                self.faults.push((until, Fault::StoreStopped));
            }
            "forget" => {
                self.has_forgotten = true;
                self.give(&["forget", "--keep-last", &KEPT.to_string(), "--yes", "--json"])?;
            }
            "reclaim" => {
                let all = ["reclaim", "--min-dead", "0", "--sweep"];
                let fewer = if self.draw.once_in(2) { 3 } else { 4 };
                self.give(&all[..fewer])?;
            }
            "popular" => self.give(&["popular", "build", "--duplicates"])?,
            "sweep" => self.give(&["sweep"])?,
            _ => {
                let Some(given) = self.given.last_mut() else { return Ok(false) };
                if given.was_killed || given.process.ended()?.is_some() {
                    return Ok(false);
                }
                given.process.kill();
                given.was_killed = true;
            }
        }
        Ok(true)
    }

    fn ask_for_a_backup(&mut self, disk: usize) -> Result<()> {
        let series = self.disks[disk].series.clone();
        let all = ["cluster", "backup", &series, "--json", "--follow", "--now"];
        let fewer = 4 + usize::try_from(self.draw.below(3))?;
        self.give(&all[..fewer])
    }

    /// Gives a command, which works while other things happen.
    fn give(&mut self, arguments: &[&str]) -> Result<()> {
        let log = self.folder.join(format!("command{}.log", self.given.len()));
        let mut command = self.hosts[self.agents()].command(arguments);
        let process = Group::start(&mut command, &log)?;
        self.given.push(Given { what: arguments.join(" "), log, process, was_killed: false });
        Ok(())
    }

    fn signal_server(&self, signal: Signal) {
        let id = i32::try_from(self.server).ok().and_then(rustix::process::Pid::from_raw);
        id.map(|id| rustix::process::kill_process(id, signal).ok());
    }

    /// Ends the faults that are over by then.
    fn end_faults(&mut self, now: Instant) -> Result<()> {
        let (over, last) = self.faults.drain(..).partition(|(until, _)| *until <= now);
        self.faults = last;
        let over: Vec<(Instant, Fault)> = over;
        for (_, fault) in over {
            match fault {
                Fault::Stopped(host) => {
                    if let Some(agent) = &self.hosts[host].agent {
                        agent.signal(Signal::CONT);
                    }
                }
                Fault::Store(host) => self.hosts[host].store.set(State::Passes),
                Fault::Bus(host) => self.hosts[host].bus.set(State::Passes),
                Fault::NoBus => self.bus.start()?,
                Fault::NoAgent(host) => self.hosts[host].start()?,
                Fault::StoreStopped => self.signal_server(Signal::CONT),
            }
        }
        Ok(())
    }

    /// Ends all faults, and starts what does not run.
    pub fn mend(&mut self) -> Result<()> {
        let later = Instant::now() + Duration::from_hours(1);
        self.end_faults(later)?;
        self.bus.start()?;
        for number in 0..self.agents() {
            self.hosts[number].start()?;
        }
        Ok(())
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        // The server is that of all histories.
        self.signal_server(Signal::CONT);
    }
}
