//! How requests get from the hosts that scan to the partitions of the hosts that compare.
//!
//! Hosts are simulated one after another in this process; the request files are real. Each host
//! owns `partitions` of them. Buffers are as large as they would be in a cluster of the size given,
//! so that writes are as small as there; the number of hosts that are simulated decides only how
//! much is run.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use crate::Result;
use crate::random::Random;
use crate::report::{Table, number};
use crate::spans::{PAPER, base_hours};

/// Bytes of a request.
const RECORD_BYTES: usize = 40;

/// What is the same for all ways.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Hosts of the cluster whose buffers these are.
    pub cluster: usize,
    /// Hosts that are simulated.
    pub hosts: usize,
    /// Requests of each host.
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
    pub seconds: f64,
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
            buffer: vec![0x5a; setting.memory_bytes],
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
        self.hosts[host].write_all_at(&self.buffer[..bytes], start)?;
        self.filled[host][partition] += bytes as u64;
        self.traffic.writes += 1;
        self.traffic.bytes += bytes as u64;
        Ok(())
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
            held: vec![buffers; setting.hosts],
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
struct TwoLevelBuffers {
    send_max: usize,
    request_max: usize,
    /// What each host holds for each other, by partitions.
    sending: Vec<Vec<Vec<usize>>>,
    requests: Vec<Vec<usize>>,
}

impl TwoLevelBuffers {
    /// A fifth of the memory sends, a fifth receives, the rest are request buffers.
    fn new(setting: &Setting) -> Self {
        let fifth = setting.memory_bytes / 5;
        Self {
            send_max: (fifth / setting.cluster / RECORD_BYTES).max(1),
            request_max: (3 * fifth / setting.partitions / RECORD_BYTES).max(1),
            sending: vec![vec![Vec::new(); setting.hosts]; setting.hosts],
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
        for to in 0..self.sending.len() {
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

/// A third way, which the papers do not have: each host sorts its requests by host and partition,
/// as many at a time as half of its memory holds, and sends each host its part. That host appends
/// the part as a whole: a sorted run.
struct SortedRuns {
    requests_max: usize,
    held: Vec<Vec<(usize, usize)>>,
}

impl SortedRuns {
    fn new(setting: &Setting) -> Self {
        let requests_max = setting.memory_bytes / 2 / RECORD_BYTES;
        Self { requests_max, held: vec![Vec::new(); setting.hosts] }
    }

    fn spill(&mut self, from: usize, files: &mut Files) -> Result<()> {
        let mut held = std::mem::take(&mut self.held[from]);
        held.sort_unstable();
        for run in held.chunk_by(|a, b| a.0 == b.0) {
            files.message();
            // One behind the other: a run is one write, of which the partitions are parts.
            files.append(run[0].0, 0, run.len())?;
        }
        Ok(())
    }
}

impl Exchange for SortedRuns {
    fn name(&self) -> &'static str {
        "sorted runs"
    }
    fn send(&mut self, from: usize, to: usize, partition: usize, files: &mut Files) -> Result<()> {
        self.held[from].push((to, partition));
        if self.held[from].len() == self.requests_max {
            self.spill(from, files)?;
        }
        Ok(())
    }
    fn end(&mut self, from: usize, files: &mut Files) -> Result<()> {
        self.spill(from, files)
    }
}

/// Runs an exchange of all requests of all simulated hosts.
fn run(setting: &Setting, exchange: &mut dyn Exchange, folder: &Path) -> Result<Traffic> {
    let mut files = Files::new(folder, setting)?;
    let mut random = Random(11);
    let begin = crate::now();
    for from in 0..setting.hosts {
        for _ in 0..setting.requests {
            let to = random.below(setting.hosts);
            let partition = random.below(setting.partitions);
            exchange.send(from, to, partition, &mut files)?;
        }
        exchange.end(from, &mut files)?;
    }
    files.traffic.seconds = Instant::now().duration_since(begin).as_secs_f64();
    let expected = (setting.hosts * setting.requests * RECORD_BYTES) as u64;
    if files.traffic.bytes != expected {
        let name = exchange.name();
        return Err(format!("{name} wrote {} of {expected} bytes", files.traffic.bytes).into());
    }
    Ok(files.traffic)
}

/// The published table of partitions and buffer options beside runs of all three ways.
pub fn table(scale: f64, hosts: usize, folder: &Path) -> Result<Table> {
    let published = [
        (100, 83.6, None, None),
        (250, 33.5, Some(3.12), Some(7.8)),
        (500, 16.8, Some(3.15), Some(11.7)),
        (750, 11.2, Some(3.22), Some(14.8)),
        (1000, 8.45, Some(3.29), Some(26.0)),
    ];
    let title = "Buffers of the exchange: writes of a host, and hours of the whole";
    let mut table = Table::new(
        title,
        &[
            "partitions",
            "index and requests MB",
            "published MB",
            "way",
            "writes, million",
            "KB a write",
            "hours",
            "published hours",
            "this run s",
        ],
    );
    let text = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
    for (partitions, memory, second, first) in published {
        let requests = crate::random::floor(PAPER.requests() * scale);
        let memory_bytes = 35_000_000;
        let setting = Setting { cluster: 100, hosts, requests, memory_bytes, partitions };
        let mut ways: [(Box<dyn Exchange>, Option<f64>); 3] = [
            (Box::new(DirectBuffers::new(&setting)), first),
            (Box::new(TwoLevelBuffers::new(&setting)), second),
            (Box::new(SortedRuns::new(&setting)), None),
        ];
        for (way, published_hours) in &mut ways {
            let traffic = run(&setting, way.as_mut(), folder)?;
            let writes = traffic.writes as f64 / hosts as f64 / scale;
            let hours = base_hours() + writes * PAPER.seek_s / 3600.0;
            table.row(vec![
                partitions.to_string(),
                number(PAPER.partition_bytes(partitions) / 1e6),
                number(memory),
                way.name().to_owned(),
                number(writes / 1e6),
                number(traffic.bytes as f64 / traffic.writes as f64 / 1e3),
                number(hours),
                text(*published_hours),
                format!("{:.1}", traffic.seconds),
            ]);
        }
    }
    table.note(format!(
        "{hosts} hosts, each with {:.1} % of the requests of a host of the published cluster, and \
         with the buffers that one of a hundred hosts has in 35 MB. Hours are those of the cost \
         model ({:.2}) and 10 ms for each write, scaled to all requests.",
        scale * 100.0,
        base_hours()
    ));
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::{DirectBuffers, Exchange, Setting, SortedRuns, TwoLevelBuffers, run};

    #[test]
    fn all_ways_write_all_requests_and_the_second_writes_less_often() -> crate::Result<()> {
        let setting = Setting {
            cluster: 20,
            hosts: 3,
            requests: 40_000,
            memory_bytes: 400_000,
            partitions: 50,
        };
        let folder = std::env::temp_dir();
        let mut ways: [Box<dyn Exchange>; 3] = [
            Box::new(DirectBuffers::new(&setting)),
            Box::new(TwoLevelBuffers::new(&setting)),
            Box::new(SortedRuns::new(&setting)),
        ];
        let mut writes = Vec::new();
        for way in &mut ways {
            writes.push(run(&setting, way.as_mut(), &folder)?.writes);
        }
        assert!(writes[1] * 5 < writes[0] && writes[2] < writes[1], "{writes:?}");
        Ok(())
    }
}
