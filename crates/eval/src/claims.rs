//! What comparing takes in a round of the published cluster, by the product: hosts of a round write
//! their requests and what series have as runs, tasks join ranges of them, and the storage counts.
//!
//! A cluster of 100 hosts is not run. What a task reads of a run depends on how many records its
//! range has. So tasks of a few hosts are given ranges of two lengths, the next ones to that of the
//! cluster, and what is counted there is scaled by the number of runs and tasks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use silt_format::RunRef;
use silt_runs::{Records, RunReader};
use silt_sharing::exchange::{
    HostRound, RUN_BYTES, Workspace, join_claims, keys_of, tasks_of, write_owners,
};
use silt_storage::TAIL_BYTES;
use siltstone::{Repository, RoundOptions};

use crate::Result;
use crate::generate::Shape;
use crate::network::{Marginal, Moved, Storage, all_new, before_last, member, moved};
use crate::spans::{PAPER, Paper};
use silt_report::{Line, Table, number, plot_values};

/// Hosts of the round that is run, each with a machine.
const HOSTS: usize = 12;
/// Runs of owners of a host of the cluster, as the coordinator orders them.
const OWNER_RUNS: f64 = 2.0;
/// Bytes that the directory of a run's last partition has of each other one, counted in the code.
const PARTITION_BYTES: f64 = 16.0;
/// Expected records of a partition at most, of which there are a power of two.
const PARTITION_RECORDS: f64 = 100_000.0;
/// Memory of a host (001).
const MEMORY_BYTES: f64 = 35e6;
/// Bytes of a record in a temporary file.
const RECORD_BYTES: f64 = silt_format::RECORD_BYTES as f64;
/// Runs of a temporary file that are merged at once.
const FAN_IN: f64 = 64.0;
/// Of the memory of a process, the share in which rounds sort, and of that, the share of a sorter.
const SORTING: f64 = 0.5;
const SORTINGS: f64 = 3.0;
/// Bytes of a container, of a chunk in its directory, and reads of a directory, counted in the
/// code; chunks take half of their size after compression (input).
const CONTAINER_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
const DIRECTORY_BYTES: f64 = 25.0;
const DIRECTORY_READS: f64 = 2.0;
const COMPRESSED: f64 = 0.5;

/// Bytes, and reads or writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    pub bytes: f64,
    pub operations: f64,
}

impl Flow {
    fn of(moved: Moved, pieces: f64) -> Self {
        Self { bytes: moved.bytes as f64 / pieces, operations: moved.operations as f64 / pieces }
    }

    fn times(self, factor: f64) -> Self {
        Self { bytes: self.bytes * factor, operations: self.operations * factor }
    }

    fn plus(self, other: Self) -> Self {
        let bytes = self.bytes + other.bytes;
        Self { bytes, operations: self.operations + other.operations }
    }

    /// Seconds at a rate of the cluster's disks, and with a seek each.
    pub fn seconds(self, paper: &Paper) -> f64 {
        self.bytes / siltstone::CostModel::published().read_bytes_per_s
            + self.operations * paper.seek_s
    }
}

/// Requests and owners of a round, to be compared again and again.
pub struct Claims {
    storage: Storage,
    repository: Repository,
    requests: Vec<RunRef>,
    owners: Vec<RunRef>,
    /// Writing both, for each record.
    written: [Flow; 2],
    folder: PathBuf,
    /// What was counted, by the number of tasks and bytes of memory.
    joined: RefCell<BTreeMap<(u32, u64), Joined>>,
}

/// What tasks have read and written, and how many records they were about.
#[derive(Clone, Copy, Debug, Default)]
struct Joined {
    /// For each task and run of requests, and of owners.
    ranges: [Flow; 2],
    /// Records of such a range.
    records: [f64; 2],
    /// Answers that a task has written.
    answers: Flow,
    /// Bytes of temporary files that were read and written for each request.
    local: f64,
}

/// What comparing takes of a host of the cluster.
#[derive(Clone, Copy, Debug, Default)]
pub struct Comparing {
    /// Writing requests.
    pub requests: Flow,
    /// Reading the directories of containers, to count owners, and writing these.
    pub counted: Flow,
    pub owners: Flow,
    /// Reading requests, and owners.
    pub read: [Flow; 2],
    /// Writing answers.
    pub answers: Flow,
    /// Bytes of temporary files, both ways: of sorting the requests, and of the tasks.
    pub local: [f64; 2],
    /// Tasks of a host.
    tasks: f64,
}

impl Comparing {
    /// What is written through the storage.
    pub fn written(&self) -> Flow {
        self.requests.plus(self.owners).plus(self.answers)
    }

    /// What is read through the storage, with the answers of all tasks: all that were written, and
    /// a range of each.
    pub fn reads(&self, paper: &Paper, answered: &Marginal) -> Flow {
        self.counted.plus(self.read[0]).plus(self.read[1]).plus(self.answered(paper, answered))
    }

    fn answered(&self, paper: &Paper, answered: &Marginal) -> Flow {
        let operations = answered.answer_operations * self.tasks * paper.hosts as f64;
        Flow { bytes: self.answers.bytes, operations }
    }

    /// Hours of the three stages of a host: of reading what has changed, of the storage, and of
    /// temporary files.
    pub fn hours(&self, paper: &Paper, answered: &Marginal) -> [f64; 3] {
        let rate = siltstone::CostModel::published().read_bytes_per_s;
        let scan = paper.dirty_bytes() / rate;
        let places = answered.place_bytes() * paper.requests() / rate;
        let [requests, counted, owners, answers, read] = [
            self.requests,
            self.counted,
            self.owners,
            self.answers,
            self.read[0].plus(self.read[1]),
        ]
        .map(|flow| flow.seconds(paper));
        let [sorting, comparing] = self.local.map(|bytes| bytes / rate);
        let last = self.answered(paper, answered).seconds(paper);
        [
            scan + requests + sorting,
            counted + owners + read + answers + comparing,
            scan + last + places,
        ]
        .map(|seconds| seconds / 3600.0)
    }
}

/// Tasks of a host, as the coordinator plans them.
pub fn planned_tasks(paper: &Paper) -> f64 {
    let hosts = u32::try_from(paper.hosts).unwrap_or(u32::MAX);
    let requests = silt_report::floor(paper.requests() * paper.hosts as f64) as u64;
    f64::from(tasks_of(requests, hosts)) / paper.hosts as f64
}

impl Claims {
    /// Scans a round of a few hosts, each with a machine of so many segments, and writes requests
    /// and owners. With fewer than 220 segments a run of owners has one partition, and opening it
    /// reads less than in the cluster.
    pub fn new(shape: &Shape, segments: usize) -> Result<Self> {
        Self::of(shape, HOSTS, segments)
    }

    fn of(shape: &Shape, hosts: usize, segments: usize) -> Result<Self> {
        let trace = all_new(shape, hosts, segments);
        let (storage, repository) = before_last(&trace)?;
        let folder = std::env::temp_dir();
        let options = RoundOptions { folder: folder.clone(), memory_bytes: 0, spool: false };
        let workspace = Workspace { folder: folder.clone(), memory_bytes: 0 };
        let (mut requests, mut owners) = (Vec::new(), Vec::new());
        for (host, machine) in (0..).zip(&trace.machines) {
            let round = HostRound::scan(&repository, vec![member(machine)], &options)?;
            requests.push(round.write_requests(host)?.run);
            // What is scanned is backed up no further.
            drop(round);
        }
        for id in repository.series_ids()? {
            owners.push(write_owners(&repository, &[id], &workspace, &mut || Ok(()))?.run);
        }
        let found = moved(&storage, [&requests, &owners, &[], &[]]);
        let records = |runs: &[RunRef]| runs.iter().map(|run| run.records).sum::<u64>() as f64;
        let written =
            [Flow::of(found[0], records(&requests)), Flow::of(found[1], records(&owners))];
        let joined = RefCell::default();
        Ok(Self { storage, repository, requests, owners, written, folder, joined })
    }

    /// The beginnings of the fingerprints of all requests, by hosts, and by where in their volumes
    /// they are.
    pub fn prints(&self) -> Result<Vec<u64>> {
        let (objects, store) =
            (&self.repository.objects, self.repository.objects.keys.shared_store_id(0));
        let (mut all, mut batch) = (Vec::new(), Vec::new());
        for run in &self.requests {
            let (mut reader, begin) = (RunReader::new(objects, store, *run), all.len());
            loop {
                reader.next_batch(&mut batch)?;
                if batch.is_empty() {
                    break;
                }
                all.extend(batch.iter().map(|record| (record.payload, record.prefix())));
            }
            all[begin..].sort_unstable();
        }
        Ok(all.into_iter().map(|(_, prefix)| prefix).collect())
    }

    /// Joins the lower half of so many tasks: the last partition of a run, whose directory each
    /// reader reads, is in the upper half.
    fn join(&self, tasks: u32, memory_bytes: u64) -> Result<Joined> {
        if let Some(known) = self.joined.borrow().get(&(tasks, memory_bytes)) {
            return Ok(*known);
        }
        let found = self.count(tasks, memory_bytes)?;
        self.joined.borrow_mut().insert((tasks, memory_bytes), found);
        Ok(found)
    }

    fn count(&self, tasks: u32, memory_bytes: u64) -> Result<Joined> {
        let workspace = Workspace { folder: self.folder.clone(), memory_bytes };
        let hosts = u16::try_from(self.requests.len())?;
        let (count, local) = ((tasks / 2).max(1), local_bytes()?);
        self.storage.take();
        let mut answers = Vec::new();
        for task in 0..count {
            let keys = keys_of(task, tasks);
            let (requests, owners) = (&self.requests, &self.owners);
            let joined = join_claims(&self.repository, &keys, requests, owners, hosts, &workspace)?;
            answers.push(joined.run.run);
        }
        let local = local_bytes()? - local;
        let found = moved(&self.storage, [&self.requests, &self.owners, &answers, &[]]);
        let records = [&self.requests, &self.owners]
            .map(|runs| runs.iter().map(|run| run.records).sum::<u64>() as f64);
        let of = |kind: usize, runs: &[RunRef]| {
            Flow::of(found[kind], f64::from(count) * runs.len() as f64)
        };
        let range =
            |kind: usize, runs: &[RunRef]| records[kind] / runs.len() as f64 / f64::from(tasks);
        Ok(Joined {
            ranges: [of(0, &self.requests), of(1, &self.owners)],
            records: [range(0, &self.requests), range(1, &self.owners)],
            answers: Flow::of(found[2], f64::from(count)),
            local: local / (records[0] * f64::from(count) / f64::from(tasks)),
        })
    }

    /// Memory with which the owners of this round are read in so many passes.
    fn memory_of(&self, passes: usize) -> u64 {
        4 * RUN_BYTES * self.owners.len().div_ceil(passes) as u64
    }

    /// What a task reads of a run of requests (0) or owners (1) whose range has so many records,
    /// and the answers that it then writes: on the line through the two lengths that were counted.
    fn at(&self, kind: usize, records: f64, memory_bytes: u64) -> Result<[Flow; 2]> {
        let runs = [&self.requests, &self.owners][kind];
        let mean = runs.iter().map(|run| run.records).sum::<u64>() as f64 / runs.len() as f64;
        let fewer = u32::try_from(silt_report::floor(mean / records))?.max(2);
        let [long, short] = [self.join(fewer, memory_bytes)?, self.join(fewer + 1, memory_bytes)?];
        let share = (records - short.records[kind]) / (long.records[kind] - short.records[kind]);
        let between = |long: Flow, short: Flow| long.times(share).plus(short.times(1.0 - share));
        Ok([between(long.ranges[kind], short.ranges[kind]), between(long.answers, short.answers)])
    }

    /// What a host of the cluster reads and writes with so many tasks and so much memory a host.
    pub fn comparing(
        &self,
        paper: &Paper,
        tasks_a_host: f64,
        memory_bytes: f64,
    ) -> Result<Comparing> {
        let (hosts, requests) = (paper.hosts as f64, paper.requests());
        let tasks = tasks_a_host * hosts;
        let owners = paper.index_entries();
        let memory = SORTING * memory_bytes;
        let at_once = Workspace {
            folder: self.folder.clone(),
            memory_bytes: silt_report::floor(memory) as u64,
        }
        .runs_at_once() as f64;
        let runs = [hosts, OWNER_RUNS * hosts];
        let in_range = [requests / tasks, owners / OWNER_RUNS / tasks];
        // Where there are too many runs, each is read in pieces of the same size, whatever the
        // memory.
        let few = self.memory_of(2);
        let [of_requests, answers] = self.at(0, in_range[0], few)?;
        let ranges = [of_requests, self.at(1, in_range[1], few)?[0]];
        let partitions = [requests, owners / OWNER_RUNS]
            .map(|records| (records / PARTITION_RECORDS).log2().ceil().max(0.0).exp2());
        let read = [0, 1].map(|kind| {
            // Up to a limit, the directory is in the tail that is read anyway, and counted.
            let directory = partitions[kind] * PARTITION_BYTES;
            let is_longer = directory > TAIL_BYTES as f64;
            let others = Flow { bytes: directory, operations: 1.0 };
            let others = others.times(f64::from(u8::from(is_longer)));
            ranges[kind].plus(others).times(tasks * runs[kind] / hosts)
        });
        // What each pass over the owners reads of the requests again.
        let more = self.join(8, self.memory_of(3))?.local - self.join(8, few)?.local;
        let passes = (runs[1] / at_once).ceil();
        let of_tasks = self.join(8, few)?.local + more * (passes - 2.0);
        // A task of the cluster has the requests of more hosts; answers of fewer than a partition
        // are one object.
        let more_hosts = hosts / self.requests.len() as f64;
        let Flow { bytes, operations } = answers;
        let objects = if operations > 1.5 { operations * more_hosts } else { 1.0 };
        let answers = Flow { bytes: bytes * more_hosts, operations: objects };
        let containers = owners * 4096.0 * COMPRESSED / CONTAINER_BYTES;
        let counted =
            Flow { bytes: owners * DIRECTORY_BYTES, operations: containers * DIRECTORY_READS };
        let pieces = requests * RECORD_BYTES / (memory / SORTINGS);
        let sorts = pieces.log(FAN_IN).ceil().max(1.0);
        Ok(Comparing {
            requests: self.written[0].times(requests),
            counted,
            owners: self.written[1].times(owners),
            read,
            answers: answers.times(tasks_a_host),
            local: [2.0 * sorts * requests * RECORD_BYTES, of_tasks * requests],
            tasks: tasks_a_host,
        })
    }

    /// Bytes of a cluster of so many of the published hosts in a round of as many tasks as are
    /// planned: those of requests with their answers and places, those of owners, and those of
    /// the directories in which owners are counted.
    pub fn of_cluster(&self, hosts: usize, answered: &Marginal) -> Result<[f64; 3]> {
        let paper = Paper { hosts, ..PAPER };
        let found = self.comparing(&paper, planned_tasks(&paper), MEMORY_BYTES)?;
        let answers = (answered.answer_bytes() + answered.place_bytes()) * paper.requests();
        let requests = found.requests.bytes + found.read[0].bytes + answers;
        let owners = found.owners.bytes + found.read[1].bytes;
        Ok([requests, owners, found.counted.bytes].map(|bytes| bytes * hosts as f64))
    }
}

/// What that comes to in clusters of the published hosts.
pub fn cluster(answered: &Marginal, claims: &Claims) -> Result<(Table, String)> {
    let title = "Metadata over the network in clusters of the published hosts, GB";
    let kinds = ["of requests, a day", "of owned chunks, a round", "of directories, a round"];
    let columns = ["hosts", kinds[0], "published (output)", kinds[1], kinds[2]];
    let mut table = Table::new(title, &columns);
    let line = |name: &str| Line { name: name.to_owned(), points: Vec::new(), is_published: false };
    let mut lines = kinds.map(line);
    for hosts in [25, 50, 100] {
        let bytes = claims.of_cluster(hosts, answered)?;
        for (line, bytes) in lines.iter_mut().zip(bytes) {
            line.points.push((hosts as f64, bytes / 1e9));
        }
        let published = if hosts == PAPER.hosts { "660" } else { "-" };
        let [requests, owners, directories] = bytes.map(|bytes| number(bytes / 1e9));
        let cells = [hosts.to_string(), requests, published.to_owned(), owners, directories];
        table.row(cells.into());
    }
    table.note(format!(
        "For the requests of 22 % of 25 volumes of 40 GB a host, and for the {:.0} million chunks \
         of its index. Requests and owned chunks: counted in the storage of a round of the product \
         whose tasks have ranges as long as those of this cluster, and scaled by ranges; answers \
         and places by the table above. Chunks that series have are counted, written and read \
         anew in each round by the product, where the papers' hosts keep their part of the index; \
         the directories of containers in which they are counted have {} bytes a chunk (by the \
         code). \
         Published: the slides' 5,500 GB less the 4,840 that are stored.",
        PAPER.index_entries() / 1e6,
        DIRECTORY_BYTES
    ));
    let all = PAPER.hosts as f64;
    let published = Line {
        name: "published: of requests".to_owned(),
        points: vec![(all, 660.0)],
        is_published: true,
    };
    let lines: Vec<Line> = lines.into_iter().chain([published]).collect();
    Ok((table, plot_values(title, ("hosts", "GB"), 0.0, &lines)))
}

/// Bytes that this thread has read and written by system calls: those of temporary files, since the
/// repository is in memory.
fn local_bytes() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/io")?;
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim().parse::<f64>().ok()).ok_or("/proc/thread-self/io")
    };
    Ok(number("rchar:")? + number("wchar:")?)
}

#[cfg(test)]
mod tests {
    use silt_format::RunRef;
    use silt_sharing::exchange::{Workspace, join_claims, keys_of};
    use silt_storage::TAIL_BYTES;

    use super::{Claims, Comparing, Flow, RECORD_BYTES};
    use crate::generate::Shape;
    use crate::network::{Marginal, moved};
    use crate::spans::{PAPER, Paper};

    /// A range of a run is read in blocks of 2,048 records, of which the first and the last reach
    /// beyond it; before, a reader opens the run's last partition and its own, with two reads each,
    /// one of them of a tail.
    #[test]
    fn what_a_task_reads_is_its_ranges() -> crate::Result<()> {
        let claims = Claims::of(&Shape::default(), 6, 256)?;
        for tasks in [8, 32] {
            let found = claims.join(tasks, claims.memory_of(2))?;
            for (range, records) in found.ranges.into_iter().zip(found.records) {
                // A stored record takes 20.5 to 22 bytes.
                let stored = |records: f64| 22.0 * records + 2.0 * TAIL_BYTES as f64;
                let least = stored(records) - 1.5 * records;
                let expected = least..stored(records + 2.0 * 2048.0);
                assert!(expected.contains(&range.bytes), "{found:?}");
                let pieces = (22.0 * (records + 2048.0) / 200_000.0).ceil();
                // One opens each of two partitions.
                assert!(
                    (2.0 + pieces - 0.2..3.5 + pieces).contains(&range.operations),
                    "{found:?}"
                );
            }
            // Requests go to temporary files twice, and are read once for that, once for each of
            // two passes, and once in the end; then what is known of them.
            let records = found.local / RECORD_BYTES;
            assert!((5.5..10.0).contains(&records), "{found:?}");
        }
        Ok(())
    }

    #[test]
    fn more_memory_reads_requests_less_often_and_more_tasks_read_more() -> crate::Result<()> {
        let claims = Claims::of(&Shape::default(), 9, 64)?;
        let of = |tasks: f64, memory: f64| claims.comparing(&PAPER, tasks, memory);
        let (few, many) = (of(100.0, 10e6)?, of(100.0, 190e6)?);
        assert!(few.local[1] > 2.0 * many.local[1] && few.local[0] >= many.local[0]);
        assert!((few.read[1].bytes / many.read[1].bytes - 1.0).abs() < 1e-9);
        let narrow = of(1000.0, 10e6)?;
        assert!(narrow.read[0].operations > 8.0 * few.read[0].operations, "{narrow:?} {few:?}");
        // Each request and each owner is read at least once.
        let least = 20.0 * (PAPER.requests() + PAPER.index_entries());
        let read = few.read[0].bytes + few.read[1].bytes;
        assert!((least..2.0 * least).contains(&read), "{few:?}");
        Ok(())
    }

    /// A small cluster with as many requests and owned chunks as a round that is run.
    fn cluster_of(claims: &Claims) -> Paper {
        let mean = |runs: &[RunRef]| {
            runs.iter().map(|run| run.records).sum::<u64>() as f64 / runs.len() as f64
        };
        let (requests, owners) = (mean(&claims.requests), mean(&claims.owners));
        // Two runs of owners a host, as in the cluster.
        let duplicates = 1.0 - owners / requests;
        let volume_bytes = requests * 4096.0;
        let hosts = claims.requests.len();
        Paper { hosts, volumes: 1, snapshots: 2, volume_bytes, dirty: 1.0, duplicates, ..PAPER }
    }

    /// What comparing is said to take of the hours for reading runs, of what all tasks of a whole
    /// round took by its storage, with a task for each host.
    fn share(change: impl Fn(&Paper, Comparing) -> Comparing) -> crate::Result<f64> {
        let small = Claims::of(&Shape::default(), 9, 24)?;
        let whole = Claims::of(&Shape::default(), 9, 48)?;
        let (paper, tasks) = (cluster_of(&whole), 9);
        let found = change(&paper, small.comparing(&paper, 1.0, 35e6)?);
        let workspace =
            Workspace { folder: whole.folder.clone(), memory_bytes: small.memory_of(2) };
        let owners = whole.owners.repeat(2);
        whole.storage.take();
        for task in 0..tasks {
            let keys = keys_of(task, tasks);
            join_claims(&whole.repository, &keys, &whole.requests, &owners, 9, &workspace)?;
        }
        let counted = moved(&whole.storage, [&whole.requests, &whole.owners, &[], &[]]);
        let counted: f64 =
            counted[..2].iter().map(|moved| Flow::of(*moved, 9.0).seconds(&paper)).sum();
        let hours = |found: &Comparing| found.hours(&paper, &Marginal::default())[1];
        let without = Comparing { read: [Flow::default(); 2], ..found };
        Ok((hours(&found) - hours(&without)) * 3600.0 / counted)
    }

    #[test]
    fn hours_have_what_the_storage_of_a_whole_round_counts() -> crate::Result<()> {
        let share = share(|_, found| found)?;
        assert!((0.85..1.15).contains(&share), "{share}");
        Ok(())
    }

    /// As the model of sorted runs, which the product's runs replaced: each range is read in one
    /// piece, and nothing but its records.
    #[test]
    fn a_formula_instead_of_counted_buffers_fails_the_check() -> crate::Result<()> {
        let formula = |paper: &Paper, found: Comparing| {
            let of = |records: f64, runs: f64| Flow { bytes: records * 20.0, operations: runs };
            let hosts = paper.hosts as f64;
            let read = [of(paper.requests(), hosts), of(paper.index_entries(), 2.0 * hosts)];
            Comparing { read, ..found }
        };
        let share = share(formula)?;
        assert!(share < 0.6, "{share}");
        Ok(())
    }

    #[test]
    fn a_comparing_without_its_network_term_fails_the_check() -> crate::Result<()> {
        let bytes_only = |flow: Flow| Flow { operations: 0.0, ..flow };
        let share = share(|_, found| Comparing { read: found.read.map(bytes_only), ..found })?;
        assert!(share < 0.6, "{share}");
        Ok(())
    }
}
