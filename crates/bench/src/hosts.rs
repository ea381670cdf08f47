//! A round across hosts, each in a network namespace of its own, against one host's round over the
//! same disks, against perfect deduplication, and against the time that the product expects by the
//! rates that the hosts have measured.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use silt_chunking::{Fingerprinter, is_zero};
use silt_format::{BLOCK_BYTES, SEGMENT_BYTES};
use silt_source::{ExtentKind, SourceOptions, open_source};
use silt_storage::LocalStorage;
use siltstone::{PopularOptions, Repository, SharePolicy, SystemEnv};

use crate::link::set_up;
use crate::process::Call;
use crate::{HostsOptions, Result};

/// How often memory is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long agents may take to come.
const ARRIVAL: Duration = Duration::from_mins(1);

/// A host: a network namespace with an agent in it.
struct Host {
    name: String,
    agent: Option<Child>,
}

impl Host {
    /// A namespace that reaches this machine.
    fn new(number: usize) -> Result<Self> {
        let host = Self { name: format!("silt-host{number}"), agent: None };
        let (name, here) = (&host.name, format!("silth{number}"));
        drop(set_up("ip", &format!("netns del {name}")));
        set_up("ip", &format!("netns add {name}"))?;
        set_up("ip", &format!("link add {here} type veth peer name line netns {name}"))?;
        set_up("ip", &format!("address add 10.232.{number}.1/24 dev {here}"))?;
        set_up("ip", &format!("link set {here} up"))?;
        set_up("ip", &format!("-n {name} link set lo up"))?;
        set_up("ip", &format!("-n {name} address add 10.232.{number}.2/24 dev line"))?;
        set_up("ip", &format!("-n {name} link set line up"))?;
        Ok(host)
    }

    fn process(&self) -> u32 {
        self.agent.as_ref().map_or(0, Child::id)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        drop(set_up("ip", &format!("netns del {}", self.name)));
    }
}

/// A process that is killed when this is dropped.
pub struct Killed(pub Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench<'o> {
    options: &'o HostsOptions,
    work: PathBuf,
    port: u16,
    /// The disks by series.
    disks: BTreeMap<String, PathBuf>,
}

pub fn run(options: &HostsOptions) -> Result<()> {
    let work = options.work.join("hosts");
    drop(std::fs::remove_dir_all(&work));
    std::fs::create_dir_all(&work)?;
    let mut disks = BTreeMap::new();
    for entry in std::fs::read_dir(&options.disks)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().replace('.', "-");
        if path.extension().is_some_and(|extension| extension == "raw") {
            disks.insert(name, path);
        }
    }
    let port = TcpListener::bind("0.0.0.0:0")?.local_addr()?.port();
    let bench = Bench { options, work, port, disks };
    let (unique, data_bytes) = bench.contents()?;
    let one = bench.one_host()?;
    println!(
        "{} disks with {} MiB of data, {unique} different chunks, on {} hosts\n",
        bench.disks.len(),
        data_bytes >> 20,
        options.hosts
    );
    // A round into another repository, after which each host knows its rates.
    bench.contents()?;
    bench.hosts("before")?;
    // As warm as for the one host.
    bench.contents()?;
    let all = bench.hosts("all")?;
    if all.with_rates != options.hosts as u64 {
        return Err(format!("{} hosts have measured rates", all.with_rates).into());
    }
    let (one_slots, all_slots) = (bench.slots("one")?, bench.slots("all")?);
    println!("| | one host | {} hosts | ratio |\n|---|---:|---:|---:|", options.hosts);
    let row = |what: &str, one: f64, all: f64| {
        println!("| {what} | {one:.2} | {all:.2} | {:.3} |", all / one);
    };
    row("stored chunks, of perfect", one_slots / unique as f64, all_slots / unique as f64);
    row("CPU, s", one.cpu_s, all.cpu_s);
    row("span, s", one.wall_s, all.wall_s);
    row("memory of a host, MiB", one.rss_mib, all.rss_mib);
    println!("\n| stage | expected by the product, s | took, s | ratio |\n|---|---:|---:|---:|");
    for (stage, [expected, took]) in STAGES.iter().zip(all.stages) {
        println!("| {stage} | {expected:.2} | {took:.2} | {:.3} |", took / expected);
    }
    let sum = |which: usize| all.stages.iter().map(|stage| stage[which]).sum::<f64>();
    println!("| all | {:.2} | {:.2} | {:.3} |\n", sum(0), sum(1), sum(1) / sum(0));
    println!(
        "exchanged: requests {} MiB, owners {} MiB, answers {} MiB",
        all.exchanged[0] >> 20,
        all.exchanged[1] >> 20,
        all.exchanged[2] >> 20
    );
    std::fs::remove_dir_all(&bench.work)?;
    Ok(())
}

/// The stages of a round across hosts.
const STAGES: [&str; 3] = ["scan", "compare", "store"];

#[derive(Default)]
struct Measured {
    wall_s: f64,
    cpu_s: f64,
    rss_mib: f64,
    /// By [`STAGES`]: the seconds that were expected, and those that it took.
    stages: [[f64; 2]; 3],
    /// Hosts whose rates were known.
    with_rates: u64,
    exchanged: [u64; 3],
}

impl Bench<'_> {
    fn silt(&self, repository: &str) -> Call {
        Call::new(&self.options.silt)
            .env("SILT_REPOSITORY", self.work.join(repository))
            .env("SILT_PASSWORD_FILE", self.work.join("password"))
    }

    fn init(&self, repository: &str) -> Result<()> {
        std::fs::write(self.work.join("password"), "bench\n")?;
        let arguments = ["init", "--quiet", "--kdf-memory", "8", "--kdf-passes", "1"];
        self.silt(repository).args(&arguments).run().map(drop)
    }

    /// Different chunks of all disks, and bytes of data; the page cache is warm then.
    fn contents(&self) -> Result<(u64, u64)> {
        let fingerprinter = Fingerprinter::new([3; 32]);
        let (mut unique, mut data_bytes) = (HashSet::new(), 0_u64);
        let mut buffer = vec![0; SEGMENT_BYTES];
        for path in self.disks.values() {
            let source = open_source(path, &SourceOptions::default())?;
            let (bytes, mut offset) = (source.info().size.unwrap_or(0), 0);
            while offset < bytes {
                let extent = source.extent_at(offset)?;
                let end = (extent.offset + extent.length).min(bytes);
                if extent.kind != ExtentKind::Data {
                    offset = end;
                    continue;
                }
                let length = usize::try_from(end - offset)?.min(SEGMENT_BYTES);
                let read = source.read_at(offset, &mut buffer[..length])?;
                offset += read as u64;
                data_bytes += read as u64;
                for chunk in buffer[..read].chunks(BLOCK_BYTES).filter(|chunk| !is_zero(chunk)) {
                    unique.insert(fingerprinter.fingerprint(chunk).0);
                }
            }
        }
        Ok((unique.len() as u64, data_bytes))
    }

    /// Slots of a repository that hold chunks.
    fn slots(&self, repository: &str) -> Result<f64> {
        let storage = std::sync::Arc::new(LocalStorage::open(self.work.join(repository))?);
        let password = || Ok(b"bench".to_vec());
        let repository = Repository::open(storage, SystemEnv::context(), password)?;
        let (spool, policy) = (self.work.clone(), SharePolicy::Popular(0.0));
        let options = PopularOptions { policy, spool, memory_bytes: 0, dry_run: true };
        let counted = repository.build_popular(&options)?;
        Ok((counted.private_slots + counted.shared_slots) as f64)
    }

    /// One host's round over all disks.
    fn one_host(&self) -> Result<Measured> {
        self.init("one")?;
        let mut fleet = String::new();
        for (series, path) in &self.disks {
            writeln!(fleet, "[series.{series}]\nvolumes = {{ root = '{}' }}", path.display())?;
        }
        std::fs::write(self.work.join("fleet.toml"), fleet)?;
        let (call, log) = (self.silt("one"), self.work.join("one.json"));
        let call = call.args(&["backup", "--json", "--fleet"]).arg(self.work.join("fleet.toml"));
        let cost = call.run_to(std::fs::File::create(&log)?.into())?;
        Ok(Measured {
            wall_s: cost.wall_s,
            cpu_s: cost.cpu_s,
            rss_mib: cost.rss_bytes as f64 / f64::from(1 << 20),
            ..Measured::default()
        })
    }

    /// The round of all hosts, with the rates that they have measured before.
    fn hosts(&self, repository: &str) -> Result<Measured> {
        self.init(repository)?;
        self.carry_rates(repository)?;
        let port = self.port.to_string();
        let mut server = Command::new("nats-server");
        let files = self.work.join(format!("nats-{repository}"));
        server.args(["-js", "-a", "0.0.0.0", "-p", &port, "-sd"]).arg(files);
        let _server = Killed(server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?);
        let mut hosts = (0..self.options.hosts).map(Host::new).collect::<Result<Vec<_>>>()?;
        for (number, host) in hosts.iter_mut().enumerate() {
            self.start(repository, number, host)?;
        }
        let begin = Instant::now();
        while self.agents(repository)? < hosts.len() {
            if begin.elapsed() > ARRIVAL {
                return Err("the agents do not come".into());
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        let processes: Vec<u32> = hosts.iter().map(Host::process).collect();
        let before: f64 = processes.iter().map(|process| cpu_s(*process)).sum();
        let is_over = AtomicBool::new(false);
        let out = self.work.join("round.json");
        let arguments = [
            "cluster".to_owned(),
            "round".to_owned(),
            "--json".to_owned(),
            "--bus-server".to_owned(),
            format!("nats://127.0.0.1:{}", self.port),
        ];
        let call = arguments.iter().fold(self.silt(repository), Call::arg);
        let output = std::fs::File::create(&out)?;
        let (cost, memory) = std::thread::scope(|scope| {
            let watching = scope.spawn(|| watch(&processes, &is_over));
            let cost = call.run_to(output.into()).map_err(|error| error.to_string());
            is_over.store(true, Ordering::SeqCst);
            (cost, watching.join().unwrap_or_default())
        });
        let cost = cost?;
        // Processes that have ended count once their agents have waited for them.
        std::thread::sleep(Duration::from_secs(3));
        let after: f64 = processes.iter().map(|process| cpu_s(*process)).sum();
        let messages = messages(&std::fs::read_to_string(&out)?);
        let (mut stages, mut with_rates, mut exchanged) = ([[0.0; 2]; 3], 0, [0; 3]);
        for part in of_type(&messages, "round_part") {
            let number = |value: &Value| value.as_f64().unwrap_or(0.0);
            for (sum, stage) in stages.iter_mut().zip(STAGES) {
                sum[0] += number(&part["expected"][format!("{stage}_s")]);
                sum[1] += number(&part[format!("{stage}_ms")]) / 1000.0;
            }
            with_rates = part["expected"]["measured_hosts"].as_u64().unwrap_or(0);
            for (sum, name) in exchanged.iter_mut().zip(["requests", "owners", "answers"]) {
                *sum += part["exchanged_bytes"][name].as_u64().unwrap_or(0);
            }
        }
        Ok(Measured {
            wall_s: cost.wall_s,
            cpu_s: after - before + cost.cpu_s,
            rss_mib: memory as f64 / f64::from(1 << 20),
            stages,
            with_rates,
            exchanged,
        })
    }

    /// Starts the agent of a host, with its part of the disks.
    fn start(&self, repository: &str, number: usize, host: &mut Host) -> Result<()> {
        let mut text = format!(
            "[agent]\nname = 'host{number}'\n[agent.bus]\n\
             servers = ['nats://10.232.{number}.1:{}']\n[profiles.default]\n\
             repository = '{}'\npassword-file = '{}'\n",
            self.port,
            self.work.join(repository).display(),
            self.work.join("password").display()
        );
        let own = self.disks.iter().skip(number).step_by(self.options.hosts);
        for (series, path) in own {
            let path = path.display();
            writeln!(text, "[profiles.default.series.{series}]\nvolumes = {{ root = '{path}' }}")?;
        }
        let file = self.work.join(format!("host{number}.toml"));
        std::fs::write(&file, text)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &host.name]).arg(&self.options.silt);
        command.args(["agent", "run", "--config"]).arg(&file);
        command.env("XDG_STATE_HOME", self.state(number));
        let log = std::fs::File::create(self.work.join(format!("host{number}.log")))?;
        host.agent = Some(command.stdout(Stdio::null()).stderr(log).spawn()?);
        Ok(())
    }

    /// Where an agent keeps what it knows.
    fn state(&self, number: usize) -> PathBuf {
        self.work.join(format!("state{number}"))
    }

    /// Lets hosts expect the rates in this repository that they have measured in another one.
    fn carry_rates(&self, repository: &str) -> Result<()> {
        let storage = std::sync::Arc::new(LocalStorage::open(self.work.join(repository))?);
        let password = || Ok(b"bench".to_vec());
        let id = Repository::open(storage, SystemEnv::context(), password)?.id().to_string();
        for number in 0..self.options.hosts {
            let folder = self.state(number).join("silt");
            let Ok(known) = std::fs::read_dir(&folder) else { continue };
            for before in known {
                let rates = before?.path().join("rates.json");
                if rates.exists() {
                    std::fs::create_dir_all(folder.join(&id))?;
                    std::fs::copy(rates, folder.join(&id).join("rates.json"))?;
                }
            }
        }
        Ok(())
    }

    /// How many agents are there.
    fn agents(&self, repository: &str) -> Result<usize> {
        let mut command = Command::new(&self.options.silt);
        command.args(["cluster", "agents", "--json", "--bus-server"]);
        command.arg(format!("nats://127.0.0.1:{}", self.port));
        command.env("SILT_REPOSITORY", self.work.join(repository));
        let output = command.env("SILT_PASSWORD_FILE", self.work.join("password")).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).matches("\"cluster_agent\"").count())
    }
}

fn messages(log: &str) -> Vec<Value> {
    log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn of_type<'m>(messages: &'m [Value], kind: &'m str) -> impl Iterator<Item = &'m Value> {
    messages.iter().filter(move |message| message["message_type"] == kind)
}

/// Processor time of a process and of those that it has waited for, in seconds.
pub fn cpu_s(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: f64 = fields.skip(11).take(4).filter_map(|it| it.parse::<f64>().ok()).sum();
    ticks / rustix::param::clock_ticks_per_second() as f64
}

/// The largest sum of resident bytes of an agent and its children.
fn watch(processes: &[u32], is_over: &AtomicBool) -> u64 {
    let mut most = 0;
    while !is_over.load(Ordering::SeqCst) {
        for process in processes {
            let path = format!("/proc/{process}/task/{process}/children");
            let children = std::fs::read_to_string(path).unwrap_or_default();
            let children = children.split_whitespace().filter_map(|it| it.parse().ok());
            let (mut own, mut program) = (0, 0);
            for process in children.chain([*process]) {
                own += resident(process, "RssAnon:");
                // They run the same program, whose pages they have in common.
                program = program.max(resident(process, "RssFile:"));
            }
            most = most.max(own + program);
        }
        std::thread::sleep(LOOK);
    }
    most
}

/// Resident bytes of one kind.
pub fn resident(process: u32, kind: &str) -> u64 {
    let path = PathBuf::from(format!("/proc/{process}/status"));
    let status = std::fs::read_to_string(Path::new(&path)).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(kind));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}
