//! What a large cluster needs, by the product's cost model and scheduler: memory, hours, messages,
//! requests, dollars, and the limit that comes first.

use silt_sharing::exchange::{RUN_BYTES, Workspace, tasks_of};
use siltstone::{CostModel, Picking, Schedule, ScheduledVm};

use silt_report::{Table, number};

/// What goes in. Defaults: the cluster of 001 and 002, counts of the product, and prices of a
/// bucket; docs/SCALE.md has the source of each.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Inputs {
    /// Disks of all hosts together.
    #[arg(long, default_value_t = 100_000)]
    pub disks: usize,
    /// GB of a disk.
    #[arg(long, default_value_t = 40.0)]
    pub disk_gb: f64,
    /// Of a disk, the share in segments that change in a day.
    #[arg(long, default_value_t = 0.22)]
    pub dirty: f64,
    /// Of the chunks in those, the share that is stored nowhere yet.
    #[arg(long, default_value_t = 0.255)]
    pub new: f64,
    /// Snapshots that are kept of each disk.
    #[arg(long, default_value_t = 10)]
    pub snapshots: usize,
    /// MB a second that a host reads, and writes, for backups.
    #[arg(long, default_value_t = 500.0)]
    pub speed_mb: f64,
    /// Bytes that a stored byte takes after compression.
    #[arg(long, default_value_t = 0.5)]
    pub compressed: f64,
    /// Rounds of a day.
    #[arg(long, default_value_t = 12)]
    pub rounds: usize,
    /// MB of memory for a partition of the index with its requests.
    #[arg(long, default_value_t = 35.0)]
    pub memory_mb: f64,
    /// Messages a second of an agent, both ways, the director's reading included.
    #[arg(long, default_value_t = 0.44)]
    pub messages: f64,
    /// Bytes a second of those.
    #[arg(long, default_value_t = 125.0)]
    pub message_bytes: f64,
    /// Messages a second that the bus stores durably at most.
    #[arg(long, default_value_t = 300.0)]
    pub stored_max: f64,
    /// Microseconds that the director takes to read what one agent says.
    #[arg(long, default_value_t = 150.0)]
    pub presence_us: f64,
    /// MB of memory of an agent with its part in a round of four hosts.
    #[arg(long, default_value_t = 88.0)]
    pub agent_mb: f64,
    /// MiB of memory that rounds of an agent sort and read runs in.
    #[arg(long, default_value_t = 32)]
    pub sort_mib: u64,
    /// MB of memory that an agent may take.
    #[arg(long, default_value_t = 512.0)]
    pub agent_mb_max: f64,
    /// MB a second that a host sends and receives at most.
    #[arg(long, default_value_t = 1250.0)]
    pub network_mb: f64,
    /// Requests of a backup without its containers.
    #[arg(long, default_value_t = 19.0)]
    pub requests: f64,
    /// Requests that read the directory of a container, when owners are counted.
    #[arg(long, default_value_t = 2.0)]
    pub owner_requests: f64,
    /// Dollars for 1,000 requests that create or list.
    #[arg(long, default_value_t = 0.005)]
    pub put_dollars: f64,
    /// Dollars for 1,000 requests that read.
    #[arg(long, default_value_t = 0.0004)]
    pub get_dollars: f64,
    /// Dollars for a GB that is stored for a month.
    #[arg(long, default_value_t = 0.023)]
    pub gb_dollars: f64,
}

/// Bytes of an entry of the index, and of a request.
const ENTRY_BYTES: f64 = 40.0;
/// Bytes of a container, and of a chunk in its directory.
const CONTAINER_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
const DIRECTORY_BYTES: f64 = 25.0;
/// Bytes of a record of requests, owners and answers in the storage.
const CLAIM_BYTES: f64 = 21.0;
/// Records of a partition of a run, which is an object: between this and half of it.
const PARTITION_RECORDS: f64 = 100_000.0;
/// Reads that open a run and the partition of a range, and bytes of each further one.
const OPENING_READS: f64 = 4.0;
const PIECE_BYTES: f64 = RUN_BYTES as f64 / 2.0;
/// Pieces of a temporary file that are merged at once, and bytes that each takes: a block as it is
/// stored, and its records.
const MERGED: f64 = 64.0;
const MERGED_BYTES: f64 = 131_072.0;
/// Bytes of a run's name in an order to a host; runs of each host: one of requests, two of owners.
const NAMED_RUN_BYTES: f64 = 131.0;
const HOST_RUNS: f64 = 3.0;
/// Runs that a host reads at once in the round of four hosts that was measured.
const MEASURED_RUNS: f64 = 4.0 * HOST_RUNS;
/// Bytes of a task in what an agent says about itself.
const TASK_BYTES: f64 = 461.0;
/// Bytes of a message.
const MESSAGE_BYTES_MAX: f64 = 512.0 * 1024.0;
/// Seconds between two presences of an agent, and two sayings of its tasks if they stay the same.
const PRESENCE_S: f64 = 15.0;
const DETAILS_S: f64 = 300.0;
/// Messages that are stored for a backup: its job with two answers, and for its beginning and its
/// end a presence with tasks.
const STORED_OF_A_BACKUP: f64 = 7.0;
/// Seconds between two readings of the director.
const DIRECTOR_S: f64 = 10.0;
const DAY_S: f64 = 86_400.0;
const HOURS_MAX: f64 = 24.0;

/// What a cluster of some size needs.
struct Plan {
    /// Partitions of a host, so that each fits in memory.
    partitions: f64,
    /// Bytes of all entries that a host owns.
    index_bytes: f64,
    hours: f64,
    held_hours: f64,
    local_bytes: f64,
    needs: Needs,
}

/// What grows with the number of hosts or of their disks, apart from time.
struct Needs {
    memory_mb: f64,
    /// Messages a second, and those of them that are stored.
    messages: f64,
    stored: f64,
    /// The largest order of a round, and the largest message with the tasks of an agent.
    order_bytes: f64,
    tasks_bytes: f64,
    /// Seconds in which the director reads what all agents say.
    director_s: f64,
    /// Bytes that a host sends and receives in a day.
    network_bytes: f64,
    /// Requests of a day that create, those that read for owners, and dollars for both.
    puts: f64,
    gets: f64,
    dollars: f64,
    /// Dollars for storing what is kept, for a day.
    store_dollars: f64,
}

impl Inputs {
    fn dirty_bytes(&self) -> f64 {
        self.disk_gb * 1e9 * self.dirty
    }

    fn model(&self) -> CostModel {
        let speed = self.speed_mb * 1e6;
        CostModel {
            read_bytes_per_s: speed,
            write_bytes_per_s: speed,
            store_bytes_per_s: speed,
            duplicate_share: 1.0 - self.new,
            ..CostModel::published()
        }
    }

    /// Entries of the index for a disk.
    fn entries(&self) -> f64 {
        self.dirty_bytes() / self.model().chunk_bytes * self.new * self.snapshots as f64
    }

    /// New bytes of all disks in a day, before compression.
    fn new_bytes(&self, disks: f64) -> f64 {
        disks * self.dirty_bytes() * self.new
    }

    fn plan(&self, hosts: usize) -> Plan {
        let model = self.model();
        let of_host = self.disks as f64 / hosts as f64;
        let vm = |number: usize| ScheduledVm {
            machine: number % hosts,
            scan_bytes: self.dirty_bytes(),
            requests: self.dirty_bytes() / model.chunk_bytes,
        };
        let vms: Vec<ScheduledVm> = (0..self.disks).map(vm).collect();
        let entries = self.entries() * of_host;
        let round = self.dirty_bytes() * of_host / model.chunk_bytes / self.rounds as f64;
        let schedule = Schedule::of(&model, &vms, entries, self.rounds, Picking::Envelope);
        // The model reads the owners; before, each round counts them anew.
        let counted = self.rounds as f64 * entries * (DIRECTORY_BYTES + CLAIM_BYTES);
        let counting_s = counted / model.read_bytes_per_s;
        Plan {
            partitions: ((entries + round) * ENTRY_BYTES / (self.memory_mb * 1e6)).ceil(),
            index_bytes: entries * ENTRY_BYTES,
            hours: (schedule.total_s() + counting_s) / 3600.0,
            held_hours: (schedule.mean_held_s(&model, &vms) + counting_s / self.rounds as f64)
                / 3600.0,
            // Requests, answers, and the sorted runs of both.
            local_bytes: round * ENTRY_BYTES * 4.0,
            needs: self.needs(hosts as f64, self.disks as f64),
        }
    }

    /// MB that reading so many runs takes, above what it took where memory was measured. If they
    /// are not read at once, requests and owners are merged from temporary files.
    fn reading_mb(&self, runs: f64) -> f64 {
        let folder = std::path::PathBuf::new();
        let at_once = Workspace { folder, memory_bytes: self.sort_mib << 20 }.runs_at_once() as f64;
        let merged = if runs > at_once { 2.0 * MERGED * MERGED_BYTES } else { 0.0 };
        ((runs.min(at_once) - MEASURED_RUNS).max(0.0) * RUN_BYTES as f64 + merged) / 1e6
    }

    fn needs(&self, hosts: f64, disks: f64) -> Needs {
        let (of_host, rounds, runs) = (disks / hosts, self.rounds as f64, hosts * HOST_RUNS);
        let entries = self.entries() * disks;
        let requests = self.dirty_bytes() * disks / self.model().chunk_bytes;
        let stored_bytes = self.new_bytes(disks) * self.compressed;
        let containers = entries * self.model().chunk_bytes * self.compressed / CONTAINER_BYTES;
        let floor = |number: f64| silt_report::floor(number) as u64;
        let tasks = tasks_of(floor(requests / rounds), u32::try_from(floor(hosts)).unwrap_or(0));
        let tasks = f64::from(tasks);
        let runs_of_a_part = [(hosts, requests / rounds), (runs - hosts, entries)];
        // Requests and owners of a part, and answers to at most half of the requests.
        let objects = |(runs, records): (f64, f64)| {
            if records <= 0.0 {
                return 0.0;
            }
            let partitions = (records / runs / PARTITION_RECORDS).log2().ceil().max(0.0).exp2();
            runs * partitions
        };
        let written = runs_of_a_part.map(objects).iter().sum::<f64>()
            + objects((tasks, requests / rounds / 2.0));
        let puts = disks * self.requests + stored_bytes / CONTAINER_BYTES + rounds * written;
        // Each task reads a range of each run, and each host a range of each run of answers.
        let ranges = |readers: f64, (runs, records): (f64, f64)| {
            if records <= 0.0 {
                return 0.0;
            }
            let pieces = (records / runs / readers * CLAIM_BYTES / PIECE_BYTES).ceil();
            readers * runs * (OPENING_READS + pieces)
        };
        let reading = runs_of_a_part.map(|part| ranges(tasks, part)).iter().sum::<f64>()
            + ranges(hosts, (tasks, requests / rounds / 2.0));
        let gets = rounds * (containers * self.owner_requests + reading);
        // Directories are read, owners and requests are written and read.
        let exchanged =
            rounds * entries * (DIRECTORY_BYTES + 2.0 * CLAIM_BYTES) + requests * 2.0 * CLAIM_BYTES;
        let kept_gb = stored_bytes * self.snapshots as f64 / 1e9;
        Needs {
            memory_mb: self.agent_mb + self.reading_mb(runs),
            messages: hosts * self.messages,
            stored: hosts * (1.0 / PRESENCE_S + 1.0 / DETAILS_S)
                + disks * STORED_OF_A_BACKUP / DAY_S,
            order_bytes: runs.max(tasks) * NAMED_RUN_BYTES,
            tasks_bytes: of_host * TASK_BYTES,
            director_s: hosts * self.presence_us / 1e6,
            network_bytes: (stored_bytes + exchanged) / hosts,
            puts,
            gets,
            dollars: puts / 1e3 * self.put_dollars + gets / 1e3 * self.get_dollars,
            store_dollars: kept_gb * self.gb_dollars / 30.0,
        }
    }
}

/// A limit: its name, what is needed, and the most that there may be.
type Limit = (&'static str, f64, f64);

impl Needs {
    /// All limits but time.
    fn limits(&self, inputs: &Inputs) -> [Limit; 7] {
        [
            ("memory of an agent, MB", self.memory_mb, inputs.agent_mb_max),
            ("an order of a round, KiB", self.order_bytes / 1024.0, MESSAGE_BYTES_MAX / 1024.0),
            ("the tasks of an agent, KiB", self.tasks_bytes / 1024.0, MESSAGE_BYTES_MAX / 1024.0),
            ("messages that the bus stores, a second", self.stored, inputs.stored_max),
            ("the director's reading, s", self.director_s, DIRECTOR_S),
            (
                "network of a host, hours a day",
                self.network_bytes / (inputs.network_mb * 1e6) / 3600.0,
                HOURS_MAX,
            ),
            ("requests, dollars a day (storing)", self.dollars, self.store_dollars),
        ]
    }
}

impl Plan {
    /// What exceeds its bound.
    fn exceeded(&self, inputs: &Inputs) -> Vec<&'static str> {
        let limits = self.needs.limits(inputs).into_iter();
        let limits = limits.chain([("hours of a day", self.hours, HOURS_MAX)]);
        limits.filter(|(_, needed, most)| needed > most).map(|(name, ..)| name).collect()
    }
}

/// The plan of clusters of several sizes.
pub fn table(inputs: &Inputs) -> Table {
    let mut table = Table::new(
        &format!("{} disks in {} rounds a day, computed", inputs.disks, inputs.rounds),
        &[
            "hosts",
            "disks a host",
            "index GB a host",
            "partitions a host",
            "hours a day",
            "hours a disk is held",
            "local disk GB a host",
            "memory MB an agent",
            "network GB a host and day",
            "messages a second",
            "of them stored",
            "KB a second",
            "largest order KiB",
            "requests a day that create, million",
            "that read, million",
            "dollars a day for requests",
            "exceeded",
        ],
    );
    for hosts in [10, 30, 100, 300, 1000, 3000] {
        let plan = inputs.plan(hosts);
        let exceeded = plan.exceeded(inputs);
        let needs = &plan.needs;
        table.row(vec![
            hosts.to_string(),
            number(inputs.disks as f64 / hosts as f64),
            number(plan.index_bytes / 1e9),
            number(plan.partitions),
            number(plan.hours),
            number(plan.held_hours),
            number(plan.local_bytes / 1e9),
            number(needs.memory_mb),
            number(needs.network_bytes / 1e9),
            number(needs.messages),
            number(needs.stored),
            number(hosts as f64 * inputs.message_bytes / 1e3),
            number(needs.order_bytes / 1024.0),
            number(needs.puts / 1e6),
            number(needs.gets / 1e6),
            number(needs.dollars),
            if exceeded.is_empty() { "-".to_owned() } else { exceeded.join(", ") },
        ]);
    }
    let stored = inputs.new_bytes(inputs.disks as f64) * inputs.compressed;
    table.note(format!(
        "New data: {} TB a day after compression; what is kept of 30 days costs {} dollars a \
         month.",
        number(stored / 1e12),
        number(stored / 1e9 * 30.0 * inputs.gb_dollars)
    ));
    table
}

/// The largest clusters that keep each limit, with as many disks a host as 1,000 hosts have.
pub fn limits(inputs: &Inputs) -> Table {
    let of_host = inputs.disks as f64 / 1000.0;
    let mut table = Table::new(
        &format!("Limits, with {} disks a host, in the order in which they come", number(of_host)),
        &["limit", "at most", "with 1,000 hosts", "hosts at most"],
    );
    for ((name, needed, most), hosts) in in_order(inputs, of_host) {
        let hosts = match hosts {
            None => "no limit".to_owned(),
            Some(0) => "none".to_owned(),
            Some(hosts) => hosts.to_string(),
        };
        table.row(vec![name.to_owned(), number(most), number(needed), hosts]);
    }
    table
}

/// Groups that are larger are not looked at.
const HOSTS_MAX: u32 = 1 << 22;

/// The limits as they are with 1,000 hosts, and with how many hosts each is kept: the one that
/// comes first is the first.
fn in_order(inputs: &Inputs, of_host: f64) -> Vec<(Limit, Option<u32>)> {
    let at = |hosts: f64| inputs.needs(hosts, hosts * of_host).limits(inputs);
    let largest = |number: usize| {
        let keeps = |hosts: u32| {
            let (_, needed, most) = at(f64::from(hosts))[number];
            needed <= most
        };
        let (mut kept, mut lost) = (0, HOSTS_MAX);
        if keeps(lost) {
            return None;
        }
        while lost - kept > 1 {
            let middle = kept.midpoint(lost);
            if keeps(middle) {
                kept = middle;
            } else {
                lost = middle;
            }
        }
        Some(kept)
    };
    let all = at(1000.0).into_iter().enumerate();
    let mut all: Vec<_> = all.map(|(number, limit)| (limit, largest(number))).collect();
    all.sort_by_key(|(_, hosts)| hosts.unwrap_or(u32::MAX));
    all
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::{Inputs, in_order};

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        inputs: Inputs,
    }

    fn inputs(arguments: &[&str]) -> Inputs {
        Cli::parse_from([&["scale", "--disks", "2400"], arguments].concat()).inputs
    }

    /// The bounds that no schedule beats: what is dirty is read twice; twice the hosts halve it.
    #[test]
    fn hours_are_at_least_those_of_reading_and_fall_with_hosts() {
        let inputs = inputs(&[]);
        let (few, many) = (inputs.plan(10), inputs.plan(20));
        let reading = 2.0 * 240.0 * inputs.dirty_bytes() / 500e6 / 3600.0;
        assert!(few.hours > reading && few.hours < reading * 1.6, "{} {reading}", few.hours);
        assert!((few.hours / many.hours - 2.0).abs() < 0.2, "{} {}", few.hours, many.hours);
        // A partition of the index and of a round's requests fits in 35 MB, and would not if there
        // were one fewer.
        let all = few.index_bytes * (1.0 + 1.0 / (0.255 * 10.0 * 12.0));
        assert!(all / few.partitions <= 35e6 && all / (few.partitions - 1.0) > 35e6);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let exceeded = |arguments: &[&str], hosts| {
            let inputs = inputs(&[&["--rounds", "1"], arguments].concat());
            inputs.plan(hosts).exceeded(&inputs)
        };
        assert!(exceeded(&[], 20).is_empty());
        assert_eq!(exceeded(&["--speed-mb", "20"], 10), ["hours of a day"]);
        let memory = "memory of an agent, MB";
        // With a disk a host, opening the runs of all hosts costs more than storing the data.
        let dollars = "requests, dollars a day (storing)";
        assert_eq!(exceeded(&[], 2400), ["an order of a round, KiB", dollars]);
        assert_eq!(exceeded(&["--agent-mb-max", "90"], 100), [memory]);
        assert_eq!(exceeded(&[], 2), ["the tasks of an agent, KiB"]);
        assert_eq!(exceeded(&["--get-dollars", "0.01"], 20), [dollars]);
    }

    /// Owners are counted in each round: all else stays, but what is read grows with the rounds.
    #[test]
    fn each_round_counts_owners_anew() {
        let [one, twelve] = ["1", "12"].map(|rounds| inputs(&["--rounds", rounds]).plan(10));
        assert!((10.0..12.1).contains(&(twelve.needs.gets / one.needs.gets)));
        assert!(twelve.hours > one.hours && twelve.needs.network_bytes > one.needs.network_bytes);
        // 2,148,437 chunks of a disk change in a day, of which 0.255 are new, in ten snapshots;
        // 4,096 of them fill a container, compressed by half.
        let containers = 2400.0 * 2_148_437.5 * 0.255 * 10.0 / 4096.0;
        let reading = one.needs.gets - 2.0 * containers;
        // Each record is read once, in pieces, and each range is opened.
        let requests = 2400.0 * 2_148_437.5;
        let least = requests * (1.0 + 2.55) * 21.0 / 204_800.0;
        assert!((least..1.2 * least + 2048.0 * 40.0 * 5.0).contains(&reading), "{reading} {least}");
    }

    /// Of many hosts, a few runs are read at once: an agent takes no more memory with ten times as
    /// many, and reads more in a part.
    #[test]
    fn memory_does_not_grow_with_the_number_of_hosts() {
        let inputs = inputs(&[]);
        let [few, many] = [100.0, 1000.0].map(|hosts| inputs.needs(hosts, 100.0 * hosts));
        assert!((few.memory_mb - many.memory_mb).abs() < 1e-9 && few.memory_mb < 128.0);
        assert!(inputs.needs(4.0, 400.0).memory_mb < few.memory_mb);
        assert!(many.gets > 10.0 * few.gets);
    }

    #[test]
    fn the_limit_that_comes_first_is_the_first() {
        let inputs = inputs(&[]);
        let all = in_order(&inputs, 100.0);
        for ((name, ..), hosts) in &all {
            let Some(hosts) = *hosts else { continue };
            let is_kept = |hosts: u32| {
                let needs = inputs.needs(f64::from(hosts), f64::from(hosts) * 100.0);
                let limits = needs.limits(&inputs).into_iter();
                limits.filter(|limit| limit.0 == *name).all(|(_, needed, most)| needed <= most)
            };
            assert!(is_kept(hosts) && !is_kept(hosts + 1), "{name}");
        }
        assert!(
            all.windows(2).all(|two| two[0].1.unwrap_or(u32::MAX) <= two[1].1.unwrap_or(u32::MAX))
        );
    }
}
