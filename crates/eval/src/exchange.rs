//! How requests get from the hosts that scan to the partitions of the hosts that compare.
//!
//! The ways are those of the paper; the product's own is counted by [`crate::claims`].
//!
//! A few hosts that receive are simulated, and all that send to them, one after another in this
//! process; the request files are real. Each host owns `partitions` of them. Buffers and runs are
//! those of a cluster of the size given, so that writes are as small as there, and each receiver
//! gets all the requests that it would get; the number of receivers decides only how much is run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::Result;
use crate::claims::{Claims, planned_tasks};
use crate::network::Marginal;
use crate::spans::{PAPER, base_hours};
use silt_report::{Table, number};

/// Bytes of a request.
pub const RECORD_BYTES: usize = 40;

/// What is the same for all ways.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Hosts of the cluster whose buffers these are.
    pub cluster: usize,
    /// Hosts that are simulated as receivers.
    pub hosts: usize,
    /// Requests that each host sends, and that each receives.
    pub requests: usize,
    /// Memory of each host for buffers.
    pub memory_bytes: usize,
    /// Partitions of each host.
    pub partitions: usize,
}

/// What an exchange came to, of all simulated hosts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traffic {
    /// Writes to request files, each at another place than the one before.
    pub writes: u64,
    /// Messages between hosts.
    pub messages: u64,
    pub bytes: u64,
}

/// A way to exchange requests.
pub trait Exchange {
    fn name(&self) -> &'static str;
    /// Takes a request that host `from` has for partition `partition` of host `to`.
    fn send(&mut self, from: usize, to: usize, partition: usize, files: &mut Files) -> Result<()>;
    /// A host has sent all it has.
    fn end(&mut self, from: usize, files: &mut Files) -> Result<()>;
}

/// The request files: one for each host, with a region for each partition.
pub struct Files {
    hosts: Vec<File>,
    region_bytes: u64,
    /// How much each partition of each host holds.
    filled: Vec<Vec<u64>>,
    buffer: Vec<u8>,
    traffic: Traffic,
}

impl Files {
    fn new(folder: &Path, setting: &Setting) -> Result<Self> {
        let hosts: Result<Vec<File>> =
            (0..setting.hosts).map(|_| Ok(tempfile::tempfile_in(folder)?)).collect();
        let all = (setting.hosts * setting.requests * RECORD_BYTES) as u64;
        // Partitions are even up to chance.
        let region_bytes = 2 * all / (setting.hosts * setting.partitions) as u64 + (64 << 10);
        Ok(Self {
            hosts: hosts?,
            region_bytes,
            filled: vec![vec![0; setting.partitions]; setting.hosts],
            buffer: vec![0; setting.memory_bytes],
            traffic: Traffic::default(),
        })
    }

    fn message(&mut self) {
        self.traffic.messages += 1;
    }

    /// Appends so many requests to a partition, in one write.
    fn append(&mut self, host: usize, partition: usize, requests: usize) -> Result<()> {
        if requests == 0 {
            return Ok(());
        }
        let bytes = requests * RECORD_BYTES;
        let at = self.filled[host][partition];
        let start = partition as u64 * self.region_bytes + at;
        self.buffer[..bytes].as_chunks_mut().0.fill((partition as u64).to_le_bytes());
        self.hosts[host].write_all_at(&self.buffer[..bytes], start)?;
        self.filled[host][partition] += bytes as u64;
        self.traffic.writes += 1;
        self.traffic.bytes += bytes as u64;
        Ok(())
    }

    /// Whether every partition of every host holds its own requests, and nothing else.
    fn are_in_order(&self) -> Result<bool> {
        let mut region = vec![0; usize::try_from(self.region_bytes)?];
        for (file, filled) in self.hosts.iter().zip(&self.filled) {
            for (partition, filled) in (0_u64..).zip(filled) {
                let region = &mut region[..usize::try_from(*filled)?];
                file.read_exact_at(region, partition * self.region_bytes)?;
                if region.as_chunks().0.iter().any(|word| u64::from_le_bytes(*word) != partition) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Option 1: every host has a send buffer for each partition of each host, and appends what
/// arrives.
struct DirectBuffers {
    requests_max: usize,
    held: Vec<Vec<usize>>,
    partitions: usize,
}

impl DirectBuffers {
    fn new(setting: &Setting) -> Self {
        let bytes = setting.memory_bytes / (setting.cluster * setting.partitions);
        let buffers = vec![0; setting.hosts * setting.partitions];
        Self {
            requests_max: (bytes / RECORD_BYTES).max(1),
            held: vec![buffers; setting.cluster],
            partitions: setting.partitions,
        }
    }
}

impl Exchange for DirectBuffers {
    fn name(&self) -> &'static str {
        "option 1"
    }
    fn send(&mut self, from: usize, to: usize, partition: usize, files: &mut Files) -> Result<()> {
        let held = &mut self.held[from][to * self.partitions + partition];
        *held += 1;
        if *held == self.requests_max {
            files.message();
            files.append(to, partition, std::mem::take(held))?;
        }
        Ok(())
    }
    fn end(&mut self, from: usize, files: &mut Files) -> Result<()> {
        for (place, held) in self.held[from].iter_mut().enumerate() {
            files.message();
            files.append(place / self.partitions, place % self.partitions, std::mem::take(held))?;
        }
        Ok(())
    }
}

/// Option 2: every host has a send and a receive buffer for each host, and a request buffer for
/// each of its own partitions, to which what arrives is dealt out.
pub struct TwoLevelBuffers {
    send_max: usize,
    request_max: usize,
    /// What each host holds for each other, by partitions.
    sending: Vec<Vec<Vec<usize>>>,
    requests: Vec<Vec<usize>>,
}

impl TwoLevelBuffers {
    /// A fifth of the memory sends, a fifth receives, the rest are request buffers.
    pub fn new(setting: &Setting) -> Self {
        let fifth = setting.memory_bytes / 5;
        Self::with(setting, fifth, 3 * fifth)
    }

    /// Send buffers and request buffers of so many bytes together.
    pub fn with(setting: &Setting, send_bytes: usize, request_bytes: usize) -> Self {
        Self {
            send_max: (send_bytes / setting.cluster / RECORD_BYTES).max(1),
            request_max: (request_bytes / setting.partitions / RECORD_BYTES).max(1),
            sending: vec![vec![Vec::new(); setting.hosts]; setting.cluster],
            requests: vec![vec![0; setting.partitions]; setting.hosts],
        }
    }

    fn deliver(&mut self, from: usize, to: usize, files: &mut Files) -> Result<()> {
        files.message();
        for partition in std::mem::take(&mut self.sending[from][to]) {
            let held = &mut self.requests[to][partition];
            *held += 1;
            if *held == self.request_max {
                files.append(to, partition, std::mem::take(held))?;
            }
        }
        Ok(())
    }
}

impl Exchange for TwoLevelBuffers {
    fn name(&self) -> &'static str {
        "option 2"
    }
    fn send(&mut self, from: usize, to: usize, partition: usize, files: &mut Files) -> Result<()> {
        self.sending[from][to].push(partition);
        if self.sending[from][to].len() == self.send_max {
            self.deliver(from, to, files)?;
        }
        Ok(())
    }
    fn end(&mut self, from: usize, files: &mut Files) -> Result<()> {
        for to in 0..self.requests.len() {
            self.deliver(from, to, files)?;
        }
        if from + 1 == self.sending.len() {
            for (host, held) in self.requests.iter_mut().enumerate() {
                for (partition, held) in held.iter_mut().enumerate() {
                    files.append(host, partition, std::mem::take(held))?;
                }
            }
        }
        Ok(())
    }
}

/// Runs an exchange of all requests of all simulated hosts, which have the fingerprints `prints`,
/// by their first bytes, again and again.
pub fn run(
    setting: &Setting,
    exchange: &mut dyn Exchange,
    (prints, folder): (&[u64], &Path),
) -> Result<Traffic> {
    let mut files = Files::new(folder, setting)?;
    let mut prints = prints.iter().cycle();
    let each = setting.requests * setting.hosts / setting.cluster;
    for from in 0..setting.cluster {
        for _ in 0..each {
            let print = *prints.next().ok_or("there are no requests")?;
            let part = |half: u64, of: usize| usize::try_from((half * of as u64) >> 32);
            let to = part(print >> 32, setting.hosts)?;
            let partition = part(print & u64::from(u32::MAX), setting.partitions)?;
            exchange.send(from, to, partition, &mut files)?;
        }
        exchange.end(from, &mut files)?;
    }
    let expected = (each * setting.cluster * RECORD_BYTES) as u64;
    if cfg!(test) && !files.are_in_order()? {
        return Err(format!("{} has written a request elsewhere", exchange.name()).into());
    }
    if files.traffic.bytes != expected {
        let name = exchange.name();
        return Err(format!("{name} wrote {} of {expected} bytes", files.traffic.bytes).into());
    }
    Ok(files.traffic)
}

/// Published of 001: partitions, MB of one with its requests, hours and GB/s with option 2, and
/// hours with option 1. The first needs more than 35 MB.
type Published = (usize, f64, Option<(f64, &'static str)>, Option<f64>);
const PUBLISHED: [Published; 5] = [
    (100, 83.6, None, None),
    (250, 33.5, Some((3.12, "8.76")), Some(7.8)),
    (500, 16.8, Some((3.15, "8.67")), Some(11.7)),
    (750, 11.2, Some((3.22, "8.48")), Some(14.8)),
    (1000, 8.45, Some((3.29, "8.30")), Some(26.0)),
];
const MEMORY_BYTES: usize = 35_000_000;
const COLUMNS: [&str; 11] = [
    "partitions",
    "index and requests MB",
    "published MB (output)",
    "way",
    "writes, million",
    "KB a write",
    "reads, million",
    "hours",
    "published hours (output)",
    "GB of images a second",
    "published GB/s (output)",
];

/// The published table of partitions and buffer options, beside runs of the paper's ways with the
/// requests of a round of the product, and beside what that round's tasks read and write.
pub fn table(
    scale: f64,
    hosts: usize,
    (claims, answered, folder): (&Claims, &Marginal, &Path),
) -> Result<Table> {
    let title = "Buffers of the exchange: writes of a host, and hours of the whole";
    let mut table = Table::new(title, &COLUMNS);
    let prints = claims.prints()?;
    for (partitions, memory, second, first) in PUBLISHED {
        let requests = silt_report::floor(PAPER.requests() * scale);
        let memory_bytes = MEMORY_BYTES;
        let setting = Setting { cluster: 100, hosts, requests, memory_bytes, partitions };
        let hours = second.map(|found| found.0);
        let ways: [(Box<dyn Exchange>, Option<f64>, &str); 2] = [
            (Box::new(DirectBuffers::new(&setting)), first, "-"),
            (Box::new(TwoLevelBuffers::new(&setting)), hours, second.map_or("-", |it| it.1)),
        ];
        let of_partition = PAPER.partition_bytes(partitions);
        for (mut way, published_hours, published_rate) in ways {
            let traffic = run(&setting, way.as_mut(), (&prints, folder))?;
            let (writes, hours) = of_host(&traffic, hosts, scale);
            let fits = of_partition <= memory_bytes as f64;
            table.row(vec![
                partitions.to_string(),
                number(of_partition / 1e6),
                number(memory),
                way.name().to_owned(),
                number(writes / 1e6),
                number(traffic.bytes as f64 / traffic.writes as f64 / 1e3),
                number(0.0),
                if fits { number(hours) } else { "does not fit".to_owned() },
                published_hours.map_or("-".to_owned(), |hours| format!("{hours:.2}")),
                if fits { number(rate(hours)) } else { "-".to_owned() },
                published_rate.to_owned(),
            ]);
        }
        let tasks = partitions as f64;
        let cells = (partitions.to_string(), number(of_partition / 1e6), number(memory));
        table.row(of_product((claims, answered), tasks, cells)?);
    }
    let tasks = planned_tasks(&PAPER);
    let cells = (format!("{tasks}, as planned"), "-".to_owned(), "-".to_owned());
    table.row(of_product((claims, answered), tasks, cells)?);
    table.note(format!(
        "GB of images: those of all 2,500 volumes, changed or not. Options 1 and 2 are the \
         paper's, with 40 bytes a request: {hosts} of 100 hosts receive what all 100 send them, \
         {} % of the requests of the published cluster, with the buffers of 35 MB of memory and \
         the fingerprints of a round of the product. Hours are those of the cost model ({}) and \
         10 ms for each write, scaled to all requests. A partition that is larger than 35 MB \
         cannot be compared in them. The product's rows are counted in the storage of its round, \
         and scaled by ranges of runs: a partition is a task. The product makes at most {} tasks, \
         as in the last row; with those of the others its hosts would open too many ranges. Hours \
         are those of reading twice what has changed, of all bytes through the storage and of \
         temporary files at 50 MB/s, and of 10 ms for each read and write; among them, counting \
         anew which series have which chunks. No partition has to fit in the product's memory.",
        number(scale * 100.0),
        number(base_hours()),
        silt_sharing::exchange::TASKS_MAX
    ));
    Ok(table)
}

/// A row of the product with so many tasks a host.
fn of_product(
    (claims, answered): (&Claims, &Marginal),
    tasks: f64,
    (partitions, memory, published): (String, String, String),
) -> Result<Vec<String>> {
    let found = claims.comparing(&PAPER, tasks, MEMORY_BYTES as f64)?;
    let hours = found.hours(&PAPER, answered).iter().sum::<f64>();
    let written = found.written();
    let blank = || "-".to_owned();
    Ok(vec![
        partitions,
        memory,
        published,
        "the product's runs".to_owned(),
        number(written.operations / 1e6),
        number(written.bytes / written.operations / 1e3),
        number(found.reads(&PAPER, answered).operations / 1e6),
        number(hours),
        blank(),
        number(rate(hours)),
        blank(),
    ])
}

/// GB of images a second.
fn rate(hours: f64) -> f64 {
    PAPER.image_bytes() / hours / 3600.0 / 1e9
}

/// Writes of one host, and hours with them; what was counted is for so many receivers.
fn of_host(traffic: &Traffic, hosts: usize, scale: f64) -> (f64, f64) {
    let writes = traffic.writes as f64 / hosts as f64 / scale;
    (writes, base_hours() + writes * PAPER.seek_s / 3600.0)
}

#[cfg(test)]
mod tests {
    use super::{DirectBuffers, Exchange, Setting, TwoLevelBuffers, run};
    use silt_report::Random;

    const SETTING: Setting =
        Setting { cluster: 20, hosts: 3, requests: 40_000, memory_bytes: 400_000, partitions: 50 };

    fn writes(setting: &Setting, way: &mut dyn Exchange) -> crate::Result<f64> {
        let mut random = Random(11);
        let prints: Vec<u64> = (0..100_000).map(|_| random.next()).collect();
        let writes = run(setting, way, (&prints, &std::env::temp_dir()))?.writes;
        Ok(writes as f64 / setting.hosts as f64)
    }

    /// Full buffers are written, and at the end what is left of each: so many writes a host.
    #[test]
    fn writes_are_as_many_as_buffers_fill() -> crate::Result<()> {
        let direct = writes(&SETTING, &mut DirectBuffers::new(&SETTING))?;
        // 400,000 B for 20 * 50 buffers are 10 requests each; each sender sends 40 to a buffer.
        let full = 20.0 * 50.0 * (40_000.0 / 1000.0 / 10.0);
        assert!((full * 0.85..=full * 1.15).contains(&direct), "{direct} for {full}");
        let second = writes(&SETTING, &mut TwoLevelBuffers::new(&SETTING))?;
        // Three fifths of it for 50 buffers are 120 requests each; 800 come to each partition.
        let full = 50.0 * (800.0_f64 / 120.0 + 0.5);
        assert!((full * 0.9..=full * 1.1).contains(&second), "{second} for {full}");
        Ok(())
    }

    /// The writes of a host do not depend on how many receivers are simulated, but on the size of
    /// the cluster: with more hosts, buffers are smaller.
    #[test]
    fn what_is_counted_depends_on_the_cluster_and_not_on_what_is_simulated() -> crate::Result<()> {
        let more = Setting { hosts: 6, ..SETTING };
        let larger = Setting { cluster: 80, ..SETTING };
        for make in [
            |s: &Setting| Box::new(DirectBuffers::new(s)) as Box<dyn Exchange>,
            |s: &Setting| Box::new(TwoLevelBuffers::new(s)) as Box<dyn Exchange>,
        ] {
            let few = writes(&SETTING, make(&SETTING).as_mut())?;
            let many = writes(&more, make(&more).as_mut())?;
            assert!((many / few - 1.0).abs() < 0.05, "{many} for {few}");
        }
        let small = writes(&SETTING, &mut DirectBuffers::new(&SETTING))?;
        let large = writes(&larger, &mut DirectBuffers::new(&larger))?;
        assert!(large > small * 3.0, "{large} for {small}");
        Ok(())
    }
}
