//! What a large cluster needs, by the product's cost model and scheduler: memory, hours, messages,
//! requests, dollars, and the limit that comes first.

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
    /// Requests of a backup without its containers.
    #[arg(long, default_value_t = 19.0)]
    pub requests: f64,
    /// Dollars for 1,000 requests that create or list.
    #[arg(long, default_value_t = 0.005)]
    pub put_dollars: f64,
    /// Dollars for a GB that is stored for a month.
    #[arg(long, default_value_t = 0.023)]
    pub gb_dollars: f64,
}

/// Bytes of an entry of the index, and of a request.
const ENTRY_BYTES: f64 = 40.0;
/// Bytes of a container, and of a run's name in an order to a host; runs of each host.
const CONTAINER_BYTES: f64 = 8.0 * 1024.0 * 1024.0;
const RUN_BYTES: f64 = 100.0;
const HOST_RUNS: f64 = 3.0;
/// Bytes of a message of rounds.
const ORDER_BYTES_MAX: f64 = 512.0 * 1024.0;
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
    order_bytes: f64,
    requests: f64,
}

impl Inputs {
    fn dirty_bytes(&self) -> f64 {
        self.disk_gb * 1e9 * self.dirty
    }

    /// New bytes of all disks in a day, before compression.
    fn new_bytes(&self) -> f64 {
        self.disks as f64 * self.dirty_bytes() * self.new
    }

    fn plan(&self, hosts: usize) -> Plan {
        let speed = self.speed_mb * 1e6;
        let model = CostModel {
            read_bytes_per_s: speed,
            write_bytes_per_s: speed,
            store_bytes_per_s: speed,
            duplicate_share: 1.0 - self.new,
            ..CostModel::published()
        };
        let of_host = self.disks as f64 / hosts as f64;
        let vm = |number: usize| ScheduledVm {
            machine: number % hosts,
            scan_bytes: self.dirty_bytes(),
            requests: self.dirty_bytes() / model.chunk_bytes,
        };
        let vms: Vec<ScheduledVm> = (0..self.disks).map(vm).collect();
        let requests = self.dirty_bytes() * of_host / model.chunk_bytes;
        let entries = requests * self.new * self.snapshots as f64;
        let round = requests / self.rounds as f64;
        let schedule = Schedule::of(&model, &vms, entries, self.rounds, Picking::Envelope);
        Plan {
            partitions: ((entries + round) * ENTRY_BYTES / (self.memory_mb * 1e6)).ceil(),
            index_bytes: entries * ENTRY_BYTES,
            hours: schedule.total_s() / 3600.0,
            held_hours: schedule.mean_held_s(&model, &vms) / 3600.0,
            // Requests, answers, and the sorted runs of both.
            local_bytes: round * ENTRY_BYTES * 4.0,
            order_bytes: hosts as f64 * HOST_RUNS * RUN_BYTES,
            requests: self.disks as f64 * self.requests
                + self.new_bytes() * self.compressed / CONTAINER_BYTES
                + self.rounds as f64 * hosts as f64 * HOST_RUNS * 2.0,
        }
    }
}

impl Plan {
    /// What exceeds its bound.
    fn exceeded(&self) -> Vec<&'static str> {
        let mut all = Vec::new();
        if self.hours > HOURS_MAX {
            all.push("hours of a day");
        }
        if self.order_bytes > ORDER_BYTES_MAX {
            all.push("size of an order");
        }
        all
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
            "messages a second",
            "KB a second",
            "largest order KiB",
            "requests a day, million",
            "dollars a day for them",
            "exceeded",
        ],
    );
    for hosts in [10, 30, 100, 300, 1000, 3000] {
        let plan = inputs.plan(hosts);
        let exceeded = plan.exceeded();
        table.row(vec![
            hosts.to_string(),
            number(inputs.disks as f64 / hosts as f64),
            number(plan.index_bytes / 1e9),
            number(plan.partitions),
            number(plan.hours),
            number(plan.held_hours),
            number(plan.local_bytes / 1e9),
            number(hosts as f64 * inputs.messages),
            number(hosts as f64 * inputs.message_bytes / 1e3),
            number(plan.order_bytes / 1024.0),
            number(plan.requests / 1e6),
            number(plan.requests / 1e3 * inputs.put_dollars),
            if exceeded.is_empty() { "-".to_owned() } else { exceeded.join(", ") },
        ]);
    }
    let month = inputs.new_bytes() * inputs.compressed / 1e9 * 30.0;
    table.note(format!(
        "New data: {} TB a day after compression; what is kept of 30 days costs {} dollars a \
         month.",
        number(inputs.new_bytes() * inputs.compressed / 1e12),
        number(month * inputs.gb_dollars)
    ));
    table
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Inputs;

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
        assert!(inputs(&[]).plan(20).exceeded().is_empty());
        assert_eq!(inputs(&["--speed-mb", "20"]).plan(10).exceeded(), ["hours of a day"]);
        assert_eq!(inputs(&[]).plan(2400).exceeded(), ["size of an order"]);
    }
}
