//! How requests get from the hosts that scan to the partitions of the hosts that compare.
//!
//! A few hosts that receive are simulated, and all that send to them, one after another in this
//! process; the request files are real. Each host owns `partitions` of them. Buffers and runs are
//! those of a cluster of the size given, so that writes are as small as there, and each receiver
//! gets all the requests that it would get; the number of receivers decides only how much is run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::Result;
use crate::spans::{PAPER, base_hours};
use silt_report::Random;
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
    /// Reads that are not where the one before ended.
    pub reads: u64,
    pub bytes: u64,
    pub seconds: f64,
}

/// A way to exchange requests.
pub trait Exchange {
    fn name(&self) -> &'static str;
    /// Whether requests stay with their senders, and no request files are written.
    fn keeps(&self) -> bool {
        false
    }
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

    /// Counts requests that their owner reads from where the sender wrote them.
    fn keep(&mut self, host: usize, requests: usize) {
        self.filled[host][0] += (requests * RECORD_BYTES) as u64;
        self.traffic.bytes += (requests * RECORD_BYTES) as u64;
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

/// A third way, which the papers do not have, and which Siltstone takes: each host sorts all its
/// requests by host and partition on its own disk, in runs of half of its memory that are merged,
/// and every owner then reads its ranges of the sorted runs of all hosts. What is written and read
/// for sorting counts as work of the sender.
struct SortedRuns {
    /// Requests of a run that fits in memory.
    run_max: usize,
    /// Requests of a read or write while runs are merged, and of a read of an owner.
    merge_max: usize,
    range_max: usize,
    cluster: usize,
    held: Vec<usize>,
    sent: Vec<Vec<usize>>,
}

impl SortedRuns {
    fn new(setting: &Setting) -> Self {
        let run_max = (setting.memory_bytes / 2 / RECORD_BYTES).max(1);
        let runs = setting.requests.div_ceil(run_max);
        Self {
            run_max,
            merge_max: (setting.memory_bytes / (runs + 1) / RECORD_BYTES).max(1),
            range_max: (setting.memory_bytes / setting.cluster / RECORD_BYTES).max(1),
            cluster: setting.cluster,
            held: vec![0; setting.cluster],
            sent: vec![vec![0; setting.hosts]; setting.cluster],
        }
    }
}

impl Exchange for SortedRuns {
    fn name(&self) -> &'static str {
        "sorted runs"
    }
    fn keeps(&self) -> bool {
        true
    }
    fn send(&mut self, from: usize, to: usize, _: usize, _: &mut Files) -> Result<()> {
        self.held[from] += 1;
        self.sent[from][to] += 1;
        Ok(())
    }
    fn end(&mut self, from: usize, files: &mut Files) -> Result<()> {
        // Only requests to the simulated receivers were sent: their share of the sender's work.
        let all = self.held[from];
        let runs = all.div_ceil(self.run_max);
        let merged = if runs > 1 { all.div_ceil(self.merge_max) } else { 0 };
        files.traffic.writes += (runs + merged) as u64;
        files.traffic.reads += merged as u64;
        for (to, sent) in std::mem::take(&mut self.sent[from]).into_iter().enumerate() {
            // A range is read in as many parts as a buffer of each of the cluster's hosts needs.
            let reads = sent.div_ceil(self.range_max);
            files.traffic.reads += reads as u64;
            (0..reads).for_each(|_| files.message());
            files.keep(to, sent);
        }
        debug_assert!(from < self.cluster, "a sender of the cluster");
        Ok(())
    }
}

/// Runs an exchange of all requests of all simulated hosts.
pub fn run(setting: &Setting, exchange: &mut dyn Exchange, folder: &Path) -> Result<Traffic> {
    let mut files = Files::new(folder, setting)?;
    let mut random = Random(11);
    let begin = crate::now();
    let each = setting.requests * setting.hosts / setting.cluster;
    for from in 0..setting.cluster {
        for _ in 0..each {
            let to = random.below(setting.hosts);
            let partition = random.below(setting.partitions);
            exchange.send(from, to, partition, &mut files)?;
        }
        exchange.end(from, &mut files)?;
    }
    files.traffic.seconds = Instant::now().duration_since(begin).as_secs_f64();
    let expected = (each * setting.cluster * RECORD_BYTES) as u64;
    if cfg!(test) && !exchange.keeps() && !files.are_in_order()? {
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
const COLUMNS: [&str; 12] = [
    "partitions",
    "index and requests MB",
    "published MB (output)",
    "way",
    "writes, million",
    "KB a write",
    "reads at other places, million",
    "hours",
    "published hours (output)",
    "GB of images a second",
    "published GB/s (output)",
    "this run s",
];

/// The published table of partitions and buffer options beside runs of all three ways.
pub fn table(scale: f64, hosts: usize, folder: &Path) -> Result<Table> {
    let title = "Buffers of the exchange: writes of a host, and hours of the whole";
    let mut table = Table::new(title, &COLUMNS);
    for (partitions, memory, second, first) in PUBLISHED {
        let requests = silt_report::floor(PAPER.requests() * scale);
        let memory_bytes = MEMORY_BYTES;
        let setting = Setting { cluster: 100, hosts, requests, memory_bytes, partitions };
        let hours = second.map(|found| found.0);
        let ways: [(Box<dyn Exchange>, Option<f64>, &str); 3] = [
            (Box::new(DirectBuffers::new(&setting)), first, "-"),
            (Box::new(TwoLevelBuffers::new(&setting)), hours, second.map_or("-", |it| it.1)),
            (Box::new(SortedRuns::new(&setting)), None, "-"),
        ];
        for (mut way, published_hours, published_rate) in ways {
            let traffic = run(&setting, way.as_mut(), folder)?;
            let [writes, reads, hours] = of_host(&traffic, hosts, scale);
            let fits = PAPER.partition_bytes(partitions) <= memory_bytes as f64;
            let rate = PAPER.image_bytes() / hours / 3600.0 / 1e9;
            table.row(vec![
                partitions.to_string(),
                number(PAPER.partition_bytes(partitions) / 1e6),
                number(memory),
                way.name().to_owned(),
                number(writes / 1e6),
                number(traffic.bytes as f64 / traffic.writes as f64 / 1e3),
                number(reads / 1e6),
                if fits { number(hours) } else { "does not fit".to_owned() },
                published_hours.map_or("-".to_owned(), |hours| format!("{hours:.2}")),
                if fits { number(rate) } else { "-".to_owned() },
                published_rate.to_owned(),
                format!("{:.1}", traffic.seconds),
            ]);
        }
    }
    table.note(format!(
        "GB of images: those of all 2,500 volumes, changed or not. {hosts} of 100 hosts receive \
         what all 100 send them; {:.1} % of the requests of the published cluster, with the \
         buffers of 35 MB of memory. Hours are those of the cost model ({:.2}) and 10 ms for \
         each write and each read at another place, scaled to all requests. A partition that is \
         larger than 35 MB cannot be compared in them. Sorted runs are scaled like the others, \
         although a host with fewer requests needs fewer runs.",
        scale * 100.0,
        base_hours()
    ));
    Ok(table)
}

/// Writes and reads of one host, and hours with them; what was counted is for so many receivers.
fn of_host(traffic: &Traffic, hosts: usize, scale: f64) -> [f64; 3] {
    let each = |count: u64| count as f64 / hosts as f64 / scale;
    let (writes, reads) = (each(traffic.writes), each(traffic.reads));
    [writes, reads, base_hours() + (writes + reads) * PAPER.seek_s / 3600.0]
}

#[cfg(test)]
mod tests {
    use super::{DirectBuffers, Exchange, Setting, SortedRuns, TwoLevelBuffers, run};

    const SETTING: Setting =
        Setting { cluster: 20, hosts: 3, requests: 40_000, memory_bytes: 400_000, partitions: 50 };

    fn writes(setting: &Setting, way: &mut dyn Exchange) -> crate::Result<f64> {
        let writes = run(setting, way, &std::env::temp_dir())?.writes;
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
        let ranges = |setting: &Setting| {
            let mut way = SortedRuns::new(setting);
            Ok::<u64, crate::Error>(run(setting, &mut way, &std::env::temp_dir())?.reads)
        };
        assert!(ranges(&larger)? > ranges(&SETTING)?, "ranges of more hosts are smaller");
        Ok(())
    }
}
