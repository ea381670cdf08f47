//! Times and sizes of a whole backup of the published cluster, by the product's cost model and
//! scheduler.

use silt_format::SEGMENT_BYTES;
use siltstone::{
    CostModel, Picking, RoundLoad, RoundMemory, Schedule, ScheduledVm, rounds_for_memory,
};

use crate::memory::BLOOM_BITS;
use silt_report::Random;
use silt_report::{Table, number};

/// The published cluster.
pub struct Paper {
    pub hosts: usize,
    pub volumes: usize,
    pub snapshots: usize,
    pub volume_bytes: f64,
    /// Of a volume, the share in segments that have changed.
    pub dirty: f64,
    /// Of the chunks in those, the share that is stored already.
    pub duplicates: f64,
    pub seek_s: f64,
}

/// Hosts, volumes, snapshots and sizes: 000 and 001. Segment dirty bits leave 22 % (001: they
/// identify 78 %; 002: D = 8.8 GB of 40), of which 74.5 % are duplicates (001), and a random
/// request takes 10 ms (001).
pub const PAPER: Paper = Paper {
    hosts: 100,
    volumes: 25,
    snapshots: 10,
    volume_bytes: 40e9,
    dirty: 0.22,
    duplicates: 0.745,
    seek_s: 0.010,
};

impl Paper {
    /// Bytes of all volumes.
    pub fn image_bytes(&self) -> f64 {
        (self.hosts * self.volumes) as f64 * self.volume_bytes
    }

    /// Bytes that a host scans.
    pub fn dirty_bytes(&self) -> f64 {
        self.volumes as f64 * self.volume_bytes * self.dirty
    }

    /// Bytes that all hosts store of a snapshot.
    pub fn stored_bytes(&self) -> f64 {
        self.dirty_bytes() * self.hosts as f64 * (1.0 - self.duplicates)
    }

    /// Requests of a host.
    pub fn requests(&self) -> f64 {
        self.dirty_bytes() / 4096.0
    }

    /// Entries of the index that a host owns: new chunks of all snapshots.
    pub fn index_entries(&self) -> f64 {
        self.requests() * (1.0 - self.duplicates) * self.snapshots as f64
    }

    /// A partition of the index with its requests.
    pub fn partition_bytes(&self, partitions: usize) -> f64 {
        (self.index_entries() + self.requests()) * 40.0 / partitions as f64
    }

    /// A Bloom filter with one false positive in a hundred of the entries of a host.
    pub fn bloom_bytes(&self) -> f64 {
        self.index_entries() * BLOOM_BITS / 8.0
    }

    /// A bit for each segment of a host.
    pub fn dirty_bit_bytes(&self) -> f64 {
        self.volumes as f64 * self.volume_bytes / SEGMENT_BYTES as f64 / 8.0
    }

    pub fn load(&self) -> RoundLoad {
        let requests = self.requests();
        RoundLoad {
            requests,
            requests_max: requests,
            scan_bytes_max: self.dirty_bytes(),
            index_entries: self.index_entries(),
        }
    }
}

/// One round of all volumes, without what writing to the request files costs in seeks.
pub fn base_hours() -> f64 {
    CostModel::published().stages(&PAPER.load()).total() / 3600.0
}

/// What a way to deduplicate at the source takes, each with what was published.
struct Way {
    name: &'static str,
    /// Memory of a host in MB, local I/O of a host in GB, stored TB, TB over the network.
    resources: [String; 4],
    published: [&'static str; 4],
    /// Hours of the whole, and a volume's mean with even and with skewed sizes.
    hours: [f64; 3],
    published_hours: [&'static str; 3],
}

/// The mean hours in which a volume of these sizes is read, one after another on its host.
fn alone_hours(seconds_a_byte: f64, vms: &[ScheduledVm]) -> f64 {
    let bytes: f64 = vms.iter().map(|vm| vm.scan_bytes).sum();
    bytes / vms.len() as f64 * seconds_a_byte / 3600.0
}

/// Look-ups by seeks: what the papers do not give is how many find their entry in memory.
fn synchronous(name: &'static str, chunks_a_seek: f64, is_published: bool) -> Way {
    let (dirty, requests) = (PAPER.dirty_bytes(), PAPER.requests());
    let seeks = requests / chunks_a_seek;
    let seconds = dirty / CostModel::published().read_bytes_per_s + seeks * PAPER.seek_s;
    let io = dirty + seeks * 4096.0 + PAPER.index_entries() * 40.0;
    // A request and its answer for each chunk.
    let network = PAPER.stored_bytes() + requests * PAPER.hosts as f64 * 40.0 * 2.0;
    // One that seeks for each chunk need not know which are new.
    let memory =
        PAPER.dirty_bit_bytes() + if chunks_a_seek > 1.0 { PAPER.bloom_bytes() } else { 0.0 };
    let published = if is_published { ["40", "453", "4.84", "5.5"] } else { ["-"; 4] };
    let published_hours = if is_published { ["50.40", "2.75", "50.40"] } else { ["-"; 3] };
    Way {
        name,
        resources: [
            number(memory / 1e6),
            number(io / 1e9),
            number(PAPER.stored_bytes() / 1e12),
            number(network / 1e12),
        ],
        published,
        hours: [
            seconds / 3600.0,
            alone_hours(seconds / dirty, &even()),
            alone_hours(seconds / dirty, &skewed(20.0)),
        ],
        published_hours,
    }
}

/// Rounds of all volumes; `metadata_bytes` is what their exchange moves in a day.
fn in_rounds(name: &'static str, rounds: usize, metadata_bytes: f64, is_published: bool) -> Way {
    let model = CostModel::published();
    let (dirty, requests) = (PAPER.dirty_bytes(), PAPER.requests());
    let (even, skewed) = (even(), skewed(20.0));
    let schedule = |vms: &[ScheduledVm]| {
        Schedule::of(&model, vms, PAPER.index_entries(), rounds, Picking::Envelope)
    };
    let records = requests * 40.0 * 4.0 + PAPER.index_entries() * 40.0 * rounds as f64;
    let held = |vms: &[ScheduledVm]| schedule(vms).mean_held_s(&model, vms) / 3600.0;
    Way {
        name,
        resources: [
            number(ROUND_MEMORY.bytes(rounds) / 1e6),
            number((2.0 * dirty + records) / 1e9),
            number(PAPER.stored_bytes() / 1e12),
            number((PAPER.stored_bytes() + metadata_bytes) / 1e12),
        ],
        published: if is_published { ["90", "491", "4.84", "5.5"] } else { ["-"; 4] },
        hours: [schedule(&even).total_s() / 3600.0, held(&even), held(&skewed)],
        published_hours: if is_published { ["2.36", "0.23", "0.23"] } else { ["-"; 3] },
    }
}

/// The ways to deduplicate at the source, per snapshot of the cluster.
fn ways([requests, owners]: [f64; 2]) -> Vec<Way> {
    let dirty = PAPER.dirty_bytes();
    let scan = dirty / CostModel::published().read_bytes_per_s;
    let all = dirty * PAPER.hosts as f64;
    let bits = Way {
        name: "dirty bits",
        resources: [
            number(PAPER.dirty_bit_bytes() / 1e6),
            number(dirty / 1e9),
            number(all / 1e12),
            number(all / 1e12),
        ],
        published: ["<10", "220", "22", "22"],
        hours: [
            scan / 3600.0,
            alone_hours(scan / dirty, &even()),
            alone_hours(scan / dirty, &skewed(20.0)),
        ],
        published_hours: ["1.25", "0.05", "0.05"],
    };
    vec![
        bits,
        synchronous("synchronous, a seek a chunk", 1.0, true),
        synchronous("synchronous, a seek a segment", 512.0, false),
        synchronous("synchronous, a seek a run of 2.92 segments", 512.0 * 2.92, false),
        in_rounds("rounds, k = 12, the index with its owners", 12, requests, true),
        in_rounds("rounds, k = 12, owners exchanged", 12, requests + 12.0 * owners, false),
        in_rounds("one round, owners exchanged", 1, requests + owners, false),
    ]
}

/// Columns of the tables of the ways, each with what was published behind it.
pub const RESOURCES: [&str; 4] =
    ["memory MB a host", "local I/O GB a host", "stored TB", "network TB"];
pub const HOURS: [&str; 3] =
    ["hours", "hours a volume, even sizes", "hours a volume, largest 20 times the mean"];
pub const PUBLISHED: &str = "published (output)";

/// The tables of the ways: resources, and hours. `exchanged` are the bytes of a day's requests, and
/// of owners in a round.
pub fn comparison(exchanged: [f64; 2]) -> [Table; 2] {
    let of = |name: &str, columns: &[&str]| {
        let cells = columns.iter().flat_map(|column| [*column, PUBLISHED]);
        let cells: Vec<&str> = std::iter::once("way").chain(cells).collect();
        Table::new(&format!("{name}: a snapshot of 2,500 volumes on 100 hosts"), &cells)
    };
    let mut resources = of("Resources of dirty bits, look-ups and rounds", &RESOURCES);
    let mut hours = of("Hours of dirty bits, look-ups and rounds", &HOURS);
    let paired = |name: &str, ours: &[String], published: &[&str]| {
        let pairs = ours.iter().cloned().zip(published.iter().map(|&cell| cell.to_owned()));
        std::iter::once(name.to_owned()).chain(pairs.flat_map(|(a, b)| [a, b])).collect()
    };
    for way in ways(exchanged) {
        resources.row(paired(way.name, &way.resources, &way.published));
        hours.row(paired(way.name, &way.hours.map(number), &way.published_hours));
    }
    resources.note(
        "Inputs: 22 % of 40 GB changed, 74.5 % of that stored already, 40 bytes a request and \
         its answer, and the cost model. Network: what is stored, and a request and its answer \
         for each chunk where it is looked up; for rounds, what the product's hosts exchanged \
         (the table above), with and without the chunks that series have, which the product \
         counts and exchanges in each round. What dirty bits read, store and send follows from \
         the inputs alone. Stored here is what 74.5 % leave; the slides' 4.84 TB are 78 % less \
         than 22. Memory by formulas: of dirty bits a bit for each segment, of \
         look-ups that do not seek for each chunk a Bloom filter of 1 % of the host's index, of \
         rounds the slides' formula. The slides do not describe their look-ups; their 40 MB lie \
         between those that seek for each chunk and those that know which are new.",
    );
    // Only says what the published hours come to.
    let scan = PAPER.dirty_bytes() / CostModel::published().read_bytes_per_s;
    let seeks = (50.4 * 3600.0 - scan) / PAPER.seek_s;
    hours.note(format!(
        "50 MB/s, 10 ms a seek. How often look-ups seek is not published: the three rows are \
         bounds. The published hours are those of {:.2} million seeks a host, {:.0} % of the \
         chunks. Rounds read the index in each of 12 rounds, without overlap. Hours a volume: \
         one after another on its host, and with rounds as long as a byte is held on average. \
         With skewed sizes the mean is the same where volumes go one by one; that the slides' \
         look-ups then hold a volume for the whole 50.40 hours follows if all volumes are begun \
         at once.",
        seeks / 1e6,
        seeks / PAPER.requests() * 100.0
    ));
    [resources, hours]
}

/// The slides' formula of the memory of a host.
const ROUND_MEMORY: RoundMemory = RoundMemory {
    changed_bytes: 8.8e9,
    volumes: 25.0,
    ratio: 136.0,
    partitions: 400.0,
    snapshots: 10.0,
    new_share: 0.228,
};

/// The number of rounds by the memory of a host.
pub fn rounds_by_memory() -> Table {
    let mut table = Table::new(
        "Rounds that fit in the memory of a host",
        &["limit MB", "rounds", "memory MB at that"],
    );
    let memory = |rounds| ROUND_MEMORY.bytes(rounds);
    for limit in [50.0, 90.0, 100.0, 144.0, 200.0, 400.0] {
        let rounds = rounds_for_memory(limit * 1e6, 2500, memory);
        let at = rounds.map_or("-".to_owned(), |rounds| number(memory(rounds) / 1e6));
        table.row(vec![
            number(limit),
            rounds.map_or("-".to_owned(), |rounds| rounds.to_string()),
            at,
        ]);
    }
    table.note(format!(
        "Memory by (D V / r) [1/(k q) + b m/q + 1/k], with D = 8.8 GB changed in a volume, V = 25 \
         volumes, r = 136, q = 400 partitions, b = 10 snapshots, m = 22.8 % new. The slides use \
         k = 12 for 100 MB and report 90 MB; the formula gives {:.0} MB for 12 rounds, and 18 \
         rounds for 100 MB.",
        memory(12) / 1e6
    ));
    table
}

fn even() -> Vec<ScheduledVm> {
    let dirty = PAPER.volume_bytes * PAPER.dirty;
    let vm = |number: usize| ScheduledVm {
        machine: number % PAPER.hosts,
        scan_bytes: dirty,
        requests: dirty / 4096.0,
    };
    (0..PAPER.hosts * PAPER.volumes).map(vm).collect()
}

/// Volumes by Zipf's law, the largest `ratio` times the average, on hosts at random.
fn skewed(ratio: f64) -> Vec<ScheduledVm> {
    let count = PAPER.hosts * PAPER.volumes;
    let total = |exponent: f64| -> f64 { (1..=count).map(|at| (at as f64).powf(-exponent)).sum() };
    let (mut low, mut high) = (0.0, 2.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if count as f64 / total(middle) < ratio { low = middle } else { high = middle }
    }
    let mean = PAPER.volume_bytes * PAPER.dirty;
    let scale = mean * count as f64 / total(low);
    let mut random = Random(5);
    let vm = |at: usize| {
        let bytes = scale * (at as f64).powf(-low);
        let machine = random.below(PAPER.hosts);
        ScheduledVm { machine, scan_bytes: bytes, requests: bytes / 4096.0 }
    };
    (1..=count).map(vm).collect()
}

/// Sizes of the cluster's volumes, the largest `ratio` times the average, largest first.
pub fn volume_sizes(ratio: f64) -> Vec<f64> {
    skewed(ratio).into_iter().map(|vm| vm.scan_bytes / PAPER.dirty).collect()
}

/// What each way to pick a round makes of a limit of time.
pub fn schedules() -> Table {
    let mut table = Table::new(
        "Scheduling: the most rounds within a limit of time",
        &["volumes", "limit h", "picking", "rounds", "hours", "hours a byte is held"],
    );
    let model = CostModel::published();
    let entries = PAPER.index_entries();
    for (name, vms) in [
        ("even", even()),
        ("largest 20 times the average", skewed(20.0)),
        ("largest 45 times the average", skewed(45.0)),
    ] {
        let one = Schedule::of(&model, &vms, entries, 1, Picking::LeastAfter).total_s();
        for factor in [1.1, 1.3] {
            let limit = one * factor;
            for (picking, way) in [
                (Picking::Least, "A0: least so far"),
                (Picking::LeastAfter, "A1: least after"),
                (Picking::Envelope, "A2: envelope of the busiest host"),
            ] {
                let schedule = Schedule::within(&model, &vms, entries, limit, picking);
                table.row(vec![
                    name.to_owned(),
                    number(limit / 3600.0),
                    way.to_owned(),
                    schedule.rounds.len().to_string(),
                    number(schedule.total_s() / 3600.0),
                    number(schedule.mean_held_s(&model, &vms) / 3600.0),
                ]);
            }
        }
    }
    table.note(
        "The papers describe A0 and A1. They announce a second improvement without describing it; \
         A2 is Siltstone's own.",
    );
    table
}

#[cfg(test)]
mod tests {
    use super::{PAPER, ROUND_MEMORY, alone_hours, base_hours, even, skewed, ways};
    use siltstone::{CostModel, Picking, Schedule, rounds_for_memory};

    #[test]
    fn a_partition_holds_its_share_of_the_index_and_of_the_requests() {
        // 25 volumes of 40 GB, of which 22 % are requests of 4 KiB, and ten times 25.5 % of those
        // are entries, of 40 bytes each.
        let requests = 25.0 * 40e9 * 0.22 / 4096.0;
        let bytes = requests * (1.0 + 10.0 * 0.255) * 40.0;
        assert!((PAPER.partition_bytes(100) * 100.0 / bytes - 1.0).abs() < 1e-9);
        // Everything that is dirty is read twice, at 50 MB/s: no model is faster.
        assert!(base_hours() > 2.0 * 25.0 * 40e9 * 0.22 / 50e6 / 3600.0);
    }

    /// By hand: 220 GB at 50 MB/s are 1.222 h, and 53.7 million seeks of 10 ms 149.2 h.
    #[test]
    fn hours_of_the_ways_are_those_of_reading_and_of_seeks() {
        let all = ways([1e12, 1e12]);
        let near =
            |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 0.001, "{found}");
        near(all[0].hours[0], 220e9 / 50e6 / 3600.0);
        near(all[1].hours[0], 220e9 / 50e6 / 3600.0 + 220e9 / 4096.0 * 0.01 / 3600.0);
        near(all[1].hours[0] - all[0].hours[0], 512.0 * (all[2].hours[0] - all[0].hours[0]));
        // One after another, a volume is held for its own time; skewed sizes have the same mean.
        near(all[0].hours[1], all[0].hours[0] / 25.0);
        near(all[0].hours[2], all[0].hours[1]);
        near(alone_hours(2.0, &even()), 8.8e9 * 2.0 / 3600.0);
        // Rounds read twice, and hold a volume for no longer than a round takes.
        assert!(all[4].hours[0] > 2.0 * all[0].hours[0]);
        assert!(all[4].hours[1] > all[4].hours[0] / 12.0 * 0.8 && all[4].hours[1] < 0.3);
    }

    /// (8.8e9 * 25 / 136) (1/4800 + 2.28/400 + 1/12) bytes; and the fewest rounds that fit.
    #[test]
    fn memory_of_rounds_is_that_of_the_formula() {
        let bytes = 8.8e9 * 25.0 / 136.0 * (1.0 / 4800.0 + 2.28 / 400.0 + 1.0 / 12.0);
        assert!((ROUND_MEMORY.bytes(12) / bytes - 1.0).abs() < 1e-9, "{bytes}");
        let memory = |rounds| ROUND_MEMORY.bytes(rounds);
        let fits = rounds_for_memory(100e6, 2500, memory).unwrap_or(0);
        assert!(memory(fits) <= 100e6 && memory(fits - 1) > 100e6);
    }

    /// What a schedule may take, and what no schedule beats.
    #[test]
    fn schedules_keep_their_limit_and_a2_fits_most_rounds() {
        let (model, vms) = (CostModel::published(), skewed(45.0));
        let entries = PAPER.index_entries();
        let one = Schedule::of(&model, &vms, entries, 1, Picking::LeastAfter).total_s();
        let of = |picking| Schedule::within(&model, &vms, entries, one * 1.3, picking);
        let (a0, a1) = (of(Picking::Least), of(Picking::LeastAfter));
        let a2 = of(Picking::Envelope);
        for schedule in [&a0, &a1, &a2] {
            assert!(schedule.total_s() <= one * 1.3 || schedule.rounds.len() == 1);
            let placed: usize = schedule.rounds.iter().map(Vec::len).sum();
            assert_eq!(placed, vms.len());
        }
        assert!(a2.rounds.len() >= a1.rounds.len() && a1.rounds.len() >= a0.rounds.len());
    }

    #[test]
    fn skewed_volumes_have_the_ratio_wanted() {
        let vms = skewed(20.0);
        let all: f64 = vms.iter().map(|vm| vm.scan_bytes).sum();
        let largest = vms.iter().map(|vm| vm.scan_bytes).fold(0.0, f64::max);
        assert!((largest / (all / vms.len() as f64) - 20.0).abs() < 0.1);
    }
}
