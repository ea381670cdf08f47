//! Figures 3 to 6 of the multi-stage paper: hours over memory, network, read and write buffers.
//!
//! Buffers that fill are counted by [`crate::exchange`]; hours are those of the cost model, and a
//! seek for each write to a request file and each read that begins somewhere else.

use std::path::Path;

use silt_format::SEGMENT_BYTES;
use siltstone::{CostModel, StageSeconds};

use crate::Result;
use crate::claims::{Claims, planned_tasks};
use crate::exchange::{RECORD_BYTES, Setting, Traffic, TwoLevelBuffers, run};
use crate::network::{Marginal, Measured};
use crate::spans::{PAPER, Paper};
use silt_report::{Line, Table, number, plot_values};
use silt_report::{Random, floor};

/// The cluster of figures 4 to 6: 10 machines of 5 volumes of 40 GB (the captions of 001).
pub const SMALL: Paper = Paper { hosts: 10, volumes: 5, ..PAPER };
/// Its partitions a host, which the paper does not give: each fits in 35 MB with its requests.
const SMALL_PARTITIONS: usize = 64;
/// The settings of the figures that do not vary (the captions of 001).
const WRITE_BYTES: usize = 6_250_000;
const NETWORK_BYTES: usize = 2_500_000;
const READ_BYTES: usize = 128 << 10;
/// Consecutive changed segments, the mean (001).
const RUN_SEGMENTS: f64 = 2.92;

/// What is simulated of an exchange.
#[derive(Clone, Copy)]
pub struct Simulated<'a> {
    /// Of the requests.
    pub scale: f64,
    /// Hosts that receive.
    pub hosts: usize,
    /// The beginnings of fingerprints that are asked for.
    pub prints: &'a [u64],
    pub folder: &'a Path,
}

impl Simulated<'_> {
    /// The traffic of one host, with buffers of so many bytes for sending and for partitions.
    fn of(
        &self,
        paper: &Paper,
        partitions: usize,
        (send, request): (usize, usize),
    ) -> Result<HostTraffic> {
        let requests = floor(paper.requests() * self.scale);
        let hosts = self.hosts.min(paper.hosts);
        let setting = Setting {
            cluster: paper.hosts,
            hosts,
            requests,
            memory_bytes: send + request,
            partitions,
        };
        let Traffic { writes, messages, .. } = run(
            &setting,
            &mut TwoLevelBuffers::with(&setting, send, request),
            (self.prints, self.folder),
        )?;
        let of_host = |count: u64| count as f64 / hosts as f64 / self.scale;
        Ok(HostTraffic { writes: of_host(writes), messages: of_host(messages) })
    }
}

/// Writes of a host and messages to it.
#[derive(Clone, Copy)]
pub struct HostTraffic {
    pub writes: f64,
    pub messages: f64,
}

fn stages(model: &CostModel, paper: &Paper) -> StageSeconds {
    model.stages(&paper.load())
}

/// A point of figure 3: hours of the three stages with so much memory a host, and its partitions.
pub fn by_memory(
    paper: &Paper,
    memory_bytes: usize,
    simulated: &Simulated<'_>,
) -> Result<(usize, [f64; 3])> {
    let partitions = floor((paper.partition_bytes(1) / memory_bytes as f64).ceil()).max(1);
    let fifth = memory_bytes / 5;
    let requests = simulated.of(paper, partitions, (fifth, 3 * fifth))?;
    // Answers go back to the volumes' request buffers; what is compared is the send buffer.
    let answers = simulated.of(paper, paper.volumes, (memory_bytes / 2, memory_bytes / 2))?;
    let model = CostModel { message_bytes: fifth as f64, ..CostModel::published() };
    let all = stages(&model, paper);
    let hours = |seconds: f64, writes: f64| (seconds + writes * paper.seek_s) / 3600.0;
    let first = hours(all.scan, requests.writes);
    let second = hours(all.compare + all.collect, answers.writes);
    let third = hours(all.store + all.send + all.update + all.answer, 0.0);
    Ok((partitions, [first, second, third]))
}

/// Figure 3.
pub fn memory(
    simulated: &Simulated<'_>,
    (claims, answered): (&Claims, &Marginal),
) -> Result<(Table, String)> {
    let title = "Hours over memory of a host (001, figure 3)";
    let mut table = Table::new(
        title,
        &[
            "memory MB",
            "partitions",
            "stage 1",
            "stage 2",
            "stage 3",
            "hours",
            "published (output)",
            "the product: stage 1",
            "stage 2 of it",
            "stage 3 of it",
            "hours of it",
        ],
    );
    let names = ["stage 1", "stage 2", "stage 3", "all"];
    let product = names.map(|name| format!("the product: {name}"));
    let mut lines: Vec<Line> = names.into_iter().map(|name| line(name, Vec::new())).collect();
    lines.extend(product.iter().map(|name| line(name, Vec::new())));
    for mb in [5, 10, 20, 35, 50, 100, 150, 190] {
        let (partitions, [first, second, third]) = by_memory(&PAPER, mb * 1_000_000, simulated)?;
        let all = [first, second, third, first + second + third];
        let comparing = claims.comparing(&PAPER, planned_tasks(&PAPER), mb as f64 * 1e6)?;
        let stages = comparing.hours(&PAPER, answered);
        let of_product = stages.into_iter().chain([stages.iter().sum()]);
        let of_product: Vec<f64> = of_product.collect();
        for (line, hours) in lines.iter_mut().zip(all.iter().chain(&of_product)) {
            line.points.push((mb as f64, *hours));
        }
        let published = if mb == 35 { "3.1" } else { "-" };
        let cells = [mb.to_string(), partitions.to_string()].into_iter();
        let cells = cells.chain(all.map(number)).chain([published.to_owned()]);
        table.row(cells.chain(of_product.into_iter().map(number)).collect());
    }
    table.note(
        "100 hosts of 25 volumes. The paper's way: so many partitions that one fits in the memory \
         with its requests; buffers are counted as in the table of partitions. The product: what \
         its round reads and writes, counted as there, in as many tasks as it plans; the memory is \
         what `--memory` gives a process, half of which sorts. What it reads of runs does not \
         depend on the memory, which decides how often records go through temporary files. Of the \
         figure's curves the text gives the time at 35 MB, and that there is little to gain up to \
         190 MB.",
    );
    lines.push(Line { is_published: true, ..line("published: all", vec![(35.0, 3.1)]) });
    Ok((table, plot_values(title, ("memory, MB", "hours"), 0.0, &lines)))
}

fn line(name: &str, points: Vec<(f64, f64)>) -> Line {
    Line { name: name.to_owned(), points, is_published: false }
}

/// Lengths of runs of changed segments, as many as make up what a host scans.
fn runs(paper: &Paper) -> Vec<usize> {
    let wanted = floor(paper.dirty_bytes() / SEGMENT_BYTES as f64);
    let (mut random, mut all, mut runs) = (Random(21), 0, Vec::new());
    while all < wanted {
        let mut length = 1;
        while random.happens(1.0 - 1.0 / RUN_SEGMENTS) {
            length += 1;
        }
        all += length;
        runs.push(length);
    }
    runs
}

/// Reads of a host through a buffer, in both scans: one for each buffer of each run.
pub fn reads(paper: &Paper, buffer: usize) -> f64 {
    let of_run = |segments: &usize| (segments * SEGMENT_BYTES).div_ceil(buffer);
    2.0 * runs(paper).iter().map(of_run).sum::<usize>() as f64
}

/// The hours of figures 4 to 6: with a seek for each run that is read, and with one for each read.
pub fn hours(
    model: &CostModel,
    paper: &Paper,
    writes: f64,
    (network, read): (usize, usize),
) -> [f64; 2] {
    let model = CostModel { message_bytes: network as f64, ..*model };
    let base = stages(&model, paper).total() + writes * paper.seek_s;
    let runs = 2.0 * runs(paper).len() as f64;
    [runs, reads(paper, read)].map(|seeks| (base + seeks * paper.seek_s) / 3600.0)
}

/// A figure over one kind of buffer.
fn figure(
    (title, axis): (&str, &str),
    sizes: &[usize],
    point: &dyn Fn(usize) -> Result<([f64; 2], String)>,
    counted: &str,
    note: &str,
) -> Result<(Table, String)> {
    let mut table = Table::new(
        title,
        &["KB", counted, "hours, a seek a run", "hours, a seek a read", "published (output)"],
    );
    let mut lines = ["a seek a run", "a seek a read"].map(|name| line(name, Vec::new()));
    for size in sizes {
        let (hours, counted) = point(*size)?;
        for (line, hours) in lines.iter_mut().zip(hours) {
            line.points.push(((*size as f64 / 1e3).log10(), hours));
        }
        let [run, read] = hours.map(number);
        table.row(vec![number(*size as f64 / 1e3), counted, run, read, "-".to_owned()]);
    }
    table.note(note);
    Ok((table, plot_values(title, (axis, "hours"), 1.0, &lines)))
}

const KB: usize = 1000;

/// Figures 4, 5 and 6: each a name, a table and a plot.
pub fn figures(simulated: &Simulated<'_>) -> Result<Vec<(&'static str, Table, String)>> {
    let model = CostModel::published();
    let at = |network, write| simulated.of(&SMALL, SMALL_PARTITIONS, (network, write));
    let network = figure(
        ("Hours over network buffers (001, figure 4)", "network buffers, log10 of KB"),
        &[10 * KB, 50 * KB, 250 * KB, 1000 * KB, 2500 * KB, 10_000 * KB],
        &|size| {
            let found = at(size, WRITE_BYTES)?;
            let hours = hours(&model, &SMALL, found.writes, (size, READ_BYTES));
            Ok((hours, number(found.messages / SMALL.hosts as f64)))
        },
        "messages from each host",
        "10 hosts of 5 volumes of 40 GB, write buffers of 6.25 MB, read buffer of 128 KB (the \
         paper's); 64 partitions a host and 1 ms for a message to each host (ours: the text gives \
         neither). The curves are not in the text.",
    )?;
    let writes = at(NETWORK_BYTES, WRITE_BYTES)?.writes;
    let read = figure(
        ("Hours over read buffers (001, figure 5)", "read buffer, log10 of KB"),
        &[32 << 10, 128 << 10, 512 << 10, 2 << 20, 8 << 20],
        &|size| {
            let hours = hours(&model, &SMALL, writes, (NETWORK_BYTES, size));
            Ok((hours, number(reads(&SMALL, size))))
        },
        "reads of a host",
        "Network buffers of 2.5 MB, write buffers of 6.25 MB (the paper's). Runs of changed \
         segments are drawn with a mean of 2.92 (the paper's). Whether each read seeks is not \
         said: one after another need not, but request files are written between them. The lines \
         are bounds.",
    )?;
    let write = figure(
        ("Hours over write buffers (001, figure 6)", "write buffers, log10 of KB"),
        &[50 * KB, 250 * KB, 1000 * KB, 6250 * KB, 25_000 * KB],
        &|size| {
            let found = at(NETWORK_BYTES, size)?;
            let hours = hours(&model, &SMALL, found.writes, (NETWORK_BYTES, READ_BYTES));
            Ok((hours, number(found.writes)))
        },
        "writes of a host",
        "Network buffers of 2.5 MB, read buffer of 128 KB (the paper's). The caption in the text \
         repeats that of figure 4; by its settings the figure is over write buffers.",
    )?;
    Ok([("figure-4", network), ("figure-5", read), ("figure-6", write)]
        .map(|(name, (table, svg))| (name, table, svg))
        .into())
}

/// Hours and throughput over the size of the cluster.
pub fn span_by_hosts(simulated: &Simulated<'_>) -> Result<(Table, String)> {
    let title = "Hours over the size of the cluster (001), 35 MB a host";
    let mut table = Table::new(
        title,
        &["hosts", "volumes", "hours", "GB of images a second", "published GB/s (output)"],
    );
    let mut points = Vec::new();
    for hosts in [10, 25, 50, 100, 200, 400] {
        let paper = Paper { hosts, ..PAPER };
        let (_, stages) = by_memory(&paper, 35_000_000, simulated)?;
        let hours = stages.iter().sum::<f64>();
        points.push((hosts as f64, hours));
        table.row(vec![
            hosts.to_string(),
            (hosts * paper.volumes).to_string(),
            number(hours),
            number(paper.image_bytes() / hours / 3600.0 / 1e9),
            if hosts == 100 { "8.76" } else { "-" }.to_owned(),
        ]);
    }
    table.note(
        "25 volumes of 40 GB a host. The paper says that the time does not change much with the \
         number of hosts, and that throughput grows in proportion.",
    );
    let lines = [line("35 MB a host", points)];
    Ok((table, plot_values(title, ("hosts", "hours"), 0.0, &lines)))
}

/// What the exchange and the index take of a host, beside what was published.
/// `metadata_bytes` is what a host of the product moves for requests, in a day.
pub fn resources(round: &Measured, metadata_bytes: f64) -> Table {
    let mut table = Table::new(
        "Resources of a host of 25 volumes (001)",
        &["what", "here", "published (output)"],
    );
    let mut row = |what: &str, here: String, published: &str| {
        table.row(vec![what.to_owned(), here, published.to_owned()]);
    };
    let index = PAPER.index_entries() * RECORD_BYTES as f64;
    let requests = PAPER.requests() * RECORD_BYTES as f64;
    row("local disk: index and requests GB", number((index + requests) / 1e9), "8");
    let sent = (requests * 2.0) / 1e9;
    row("sent for requests and answers GB", number(sent), "9.6");
    row("the same at 8 MB/s, minutes", number(sent * 1e9 / 8e6 / 60.0), "20");
    row("moved for them by the product GB", number(metadata_bytes / 1e9), "9.6");
    row("the product, at 8 MB/s, minutes", number(metadata_bytes / 8e6 / 60.0), "20");
    let cpu = round.cpu_s / (round.scanned_bytes / CostModel::published().read_bytes_per_s);
    row("CPU, % of a core while 50 MB/s are read", number(cpu * 100.0), "10-13");
    let bloom = PAPER.bloom_bytes() / 1e6;
    row("memory of look-ups: Bloom filter of 1 %, MB (formula)", number(bloom), "40 (002)");
    let tenth = index / 10.0;
    row("the same by the paper's 1:10, MB (formula)", number(tenth / 1e6), "-");
    let partition = PAPER.partition_bytes(250) / 1e6;
    row("memory of rounds: one of 250 partitions and its requests, MB", number(partition), "33.5");
    table.note(format!(
        "Formulas over inputs: 22 % of 25 volumes of 40 GB, 25.5 % of that new, ten snapshots, 40 \
         bytes an entry and a request. Published for the network: 8 MB/s for 20 minutes. By the \
         product: what its round counts of requests, answers and places, written and read. CPU: \
         measured, {} s of a core for rounds of the product over {} MB that were scanned, whose \
         chunks hold a few bytes and zeros, so that compression costs almost nothing. The Data \
         Domain method needs the Bloom filter and a cache of containers' fingerprints, of which \
         the paper gives no size. The slides' 40 MB are those of their look-ups, which they do not \
         describe: too little for a filter of a host's whole index.",
        number(round.cpu_s),
        number(round.scanned_bytes / 1e6)
    ));
    table
}

#[cfg(test)]
mod tests {
    use siltstone::CostModel;

    use super::{KB, READ_BYTES, SMALL, SMALL_PARTITIONS, Simulated, hours, reads};

    /// What smaller network buffers cost by the model, of what the counted messages cost: the
    /// check of figure 4. A host sends to all hosts at once, so that a message's time counts once
    /// for all of them; answers and references go the same way as requests.
    fn network_share(model: &CostModel) -> crate::Result<f64> {
        let folder = std::env::temp_dir();
        let mut random = silt_report::Random(11);
        let prints: Vec<u64> = (0..100_000).map(|_| random.next()).collect();
        let simulated = Simulated { scale: 0.02, hosts: 4, prints: &prints, folder: &folder };
        let of = |network: usize| {
            let at = (network, 6250 * KB);
            Ok::<_, crate::Error>(simulated.of(&SMALL, SMALL_PARTITIONS, at)?.messages)
        };
        let (small, large) = (10 * KB, 1000 * KB);
        let cost = |network| hours(model, &SMALL, 0.0, (network, READ_BYTES))[0] * 3600.0;
        let messages = (of(small)? - of(large)?) / SMALL.hosts as f64;
        // Requests, then new ones back, their references, and those of known chunks.
        let (new, old) = (1.0 - model.duplicate_share, model.duplicate_share);
        let ways = 1.0 + new + new + old;
        Ok((cost(small) - cost(large)) / (messages * ways * 0.001))
    }

    #[test]
    fn smaller_network_buffers_cost_what_their_messages_cost() -> crate::Result<()> {
        let share = network_share(&CostModel::published())?;
        assert!((0.9..1.1).contains(&share), "{share}");
        Ok(())
    }

    #[test]
    fn a_model_without_its_network_term_fails_the_check() -> crate::Result<()> {
        let without = CostModel { message_s: 0.0, ..CostModel::published() };
        assert!(network_share(&without)? < 0.1);
        Ok(())
    }

    #[test]
    fn reads_are_as_many_as_buffers_of_runs() {
        let segments = SMALL.dirty_bytes() / f64::from(2 << 20);
        // A buffer of a segment reads each segment by itself, twice; one of half, twice that.
        let of = |buffer| reads(&SMALL, buffer);
        assert!((of(2 << 20) / (2.0 * segments) - 1.0).abs() < 0.001);
        assert!((of(1 << 20) / of(2 << 20) - 2.0).abs() < 1e-9);
        // With a large buffer a run is one read: runs have 2.92 segments.
        let runs = of(1 << 30) / 2.0;
        assert!((segments / runs / 2.92 - 1.0).abs() < 0.03, "{}", segments / runs);
    }
}
