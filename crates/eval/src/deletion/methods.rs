//! One deletion in every series, by each method: bytes of metadata that are read, and what these
//! come to in the published clusters.

use std::sync::Arc;

use silt_format::{Id, names};
use silt_storage::{MemoryStorage, Operation, RecordingStorage};
use siltstone::{DeleteMethod, Repository, SweepOptions};

use super::grouped::{Groups, Work};
use crate::fleet::{Fleet, reopened};
use crate::trace::Trace;
use crate::{Result, cpu_seconds};
use silt_report::{Line, Table, number, plot_values};

/// Rounds of a day of the machines whose snapshots are deleted: ours.
const ROUNDS: usize = 2;
/// A host of the published cluster: 25 machines of 40 GB (000).
const HOST_BYTES: f64 = 25.0 * 40e9;
/// Phases of a sweep that has little memory: ours.
const PHASES: u64 = 8;

/// A way to find what is dead after the oldest snapshot of every series was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Marks of all snapshots, made anew, over all containers of all stores.
    Everything,
    /// The same where groups of so many snapshots keep their marks.
    Grouped(usize),
    /// The product's sweep of each series, in at least so many phases.
    Sweep(u64),
    /// The product's deletion without vectors.
    Exact,
    /// The product's deletion by vectors.
    Vectors,
}

/// What was counted of a method.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counted {
    /// Bytes read of recipes and maps, of vectors, and of containers' directories.
    pub recipes: u64,
    pub vectors: u64,
    pub directories: u64,
    /// Of grouped mark-and-sweep.
    pub work: Work,
    /// Private chunks that were found dead.
    pub dead: u64,
    /// Processor time of this process.
    pub cpu_s: f64,
}

impl Counted {
    /// All metadata that was read, in bytes.
    pub fn metadata(&self) -> u64 {
        self.recipes + self.vectors + self.directories + self.work.marks_read
    }
}

/// What all methods cost on the same machines.
pub struct Costs {
    pub rows: Vec<(Method, &'static str, Counted)>,
    pub series: usize,
    pub snapshots: usize,
    /// Bytes of all disks on one day.
    pub disk_bytes: f64,
}

const METHODS: [(Method, &str); 8] = [
    (Method::Everything, "mark-and-sweep of everything"),
    (Method::Grouped(usize::MAX), "grouped, a group a series"),
    (Method::Grouped(5), "grouped, 5 snapshots a group"),
    (Method::Grouped(1), "grouped, 1 snapshot a group"),
    (Method::Sweep(1), "sweep of each series (leak repair)"),
    (Method::Sweep(PHASES), "the same in 8 phases"),
    (Method::Exact, "deletion, local without vectors"),
    (Method::Vectors, "deletion by vectors"),
];

impl Costs {
    #[cfg(test)]
    pub fn of(&self, wanted: Method) -> Counted {
        let row = self.rows.iter().find(|(method, ..)| *method == wanted);
        row.map_or_else(Counted::default, |(_, _, counted)| *counted)
    }
}

/// Deletes the oldest snapshot of each machine by every method, each beginning with the same
/// repository.
pub fn costs(trace: &Trace) -> Result<Costs> {
    let storage = Arc::new(MemoryStorage::new());
    drop(Fleet::in_rounds_within(trace, ROUNDS, storage.clone())?);
    let rows = METHODS.into_iter().map(|(method, name)| Ok((method, name, run(&storage, method)?)));
    let rows = rows.collect::<Result<Vec<_>>>()?;
    let segments = trace.machines.iter().filter_map(|machine| machine.days.first());
    let segments: usize = segments.map(|day| day.changed.len()).sum();
    Ok(Costs {
        rows,
        series: trace.machines.len(),
        snapshots: trace.days(),
        disk_bytes: segments as f64 * silt_format::SEGMENT_BYTES as f64,
    })
}

/// The oldest snapshot of each series.
fn oldest(repository: &Repository) -> Result<Vec<(String, Id)>> {
    let mut all = Vec::new();
    for head in repository.heads(&[])? {
        all.extend(head.snapshots.first().map(|entry| (head.name.clone(), entry.id)));
    }
    Ok(all)
}

fn run(storage: &MemoryStorage, method: Method) -> Result<Counted> {
    let recording = Arc::new(RecordingStorage::new(storage.snapshot()));
    let repository = reopened(recording.clone())?;
    let doomed = oldest(&repository)?;
    let delete = |by: DeleteMethod| -> Result<u64> {
        let mut dead = 0;
        for (name, id) in &doomed {
            dead += repository.delete(name, &[*id], by)?.dead_chunks;
        }
        Ok(dead)
    };
    let mut groups = match method {
        Method::Grouped(size) => Groups::of(size),
        _ => Groups::of(usize::MAX),
    };
    if let Method::Grouped(_) = method {
        groups.sweep(&repository)?;
    }
    if !matches!(method, Method::Exact | Method::Vectors) {
        delete(DeleteMethod::Approximate)?;
    }
    recording.take();
    let begin = cpu_seconds();
    let mut counted = Counted::default();
    match method {
        Method::Everything | Method::Grouped(_) => {
            let (dead, work) = groups.sweep(&repository)?;
            let shared = repository.objects.keys.shared_store_id(0);
            counted.dead = dead.iter().filter(|(store, ..)| *store != shared).count() as u64;
            counted.work = work;
        }
        Method::Sweep(phases) => {
            for (name, _) in &doomed {
                let options = SweepOptions { memory_bytes: 0, phases_min: phases };
                counted.dead += repository.sweep(name, options)?.dead_slots;
            }
        }
        Method::Exact => counted.dead = delete(DeleteMethod::Exact)?,
        Method::Vectors => counted.dead = delete(DeleteMethod::Approximate)?,
    }
    counted.cpu_s = cpu_seconds() - begin;
    count(&recording, &mut counted);
    Ok(counted)
}

/// Adds up what was read of each kind of objects.
fn count(recording: &RecordingStorage<MemoryStorage>, counted: &mut Counted) {
    let [containers, recipes, summaries, ..] = names::DATA;
    for record in recording.records() {
        let (Operation::Get { key, .. }, Ok(bytes)) = (&record.operation, record.outcome) else {
            continue;
        };
        for (folder, sum) in [
            (containers, &mut counted.directories),
            (recipes, &mut counted.recipes),
            (summaries, &mut counted.vectors),
        ] {
            if key.as_str().starts_with(folder) {
                *sum += bytes;
            }
        }
    }
}

/// What was counted, and the time of the real deletions.
pub fn times(costs: &Costs) -> Table {
    let mut table = Table::new(
        &format!(
            "One deletion in each of {} series of {} snapshots, by the product",
            costs.series, costs.snapshots
        ),
        &[
            "method",
            "groups marked anew",
            "groups used again",
            "recipes and maps MB",
            "vectors MB",
            "stored marks MB",
            "directories MB",
            "private chunks found dead",
            "CPU ms a series",
        ],
    );
    for (_, name, counted) in &costs.rows {
        table.row(vec![
            (*name).to_owned(),
            counted.work.marked.to_string(),
            counted.work.reused.to_string(),
            number(counted.recipes as f64 / 1e6),
            number(counted.vectors as f64 / 1e6),
            number(counted.work.marks_read as f64 / 1e6),
            number(counted.directories as f64 / 1e6),
            counted.dead.to_string(),
            number(counted.cpu_s * 1e3 / costs.series as f64),
        ]);
    }
    table.note(format!(
        "The oldest snapshot of each series is deleted, and none is added, which groups would have \
         to mark, too. {} MB of disks in two rounds a day, with \
         what machines share in the shared store. Bytes are those that the storage in memory gave \
         out, but for stored marks, which are counted in the form in which they would be stored. \
         The first four rows and the marks are of this evaluation, over the product's recipes; \
         the last four are operations of the product. Real times: processor time of this run.",
        number(costs.disk_bytes / 1e6)
    ));
    table
}

/// Which of these methods reads the metadata of all hosts on every host.
fn reads_all(method: Method) -> bool {
    matches!(method, Method::Everything | Method::Grouped(_))
}

/// Hours of a method in a cluster: p hosts, and the rate at which each reads.
pub fn hours(counted: &Counted, disk_bytes: f64, method: Method, (p, rate): (f64, f64)) -> f64 {
    let of_host = counted.metadata() as f64 * HOST_BYTES / disk_bytes;
    let read = if reads_all(method) { of_host * p } else { of_host };
    read / rate / 3600.0
}

/// The rates at which a host reads from the file system: 50 MB/s alone, 30 where 50 hosts read, 25
/// where 100 do. As remembered of the authors' longer text; those that we have give 50 alone.
const HOSTS: [(f64, f64); 4] = [(25.0, 50e6), (25.0, 30e6), (50.0, 30e6), (100.0, 25e6)];

/// Published hours with 50 and with 100 hosts, and GB of memory.
fn published(method: Method) -> [&'static str; 3] {
    match method {
        Method::Everything => ["35.9", "84.3", "1.2-3"],
        Method::Grouped(5) => ["18.6", "43.6", "1.2-3"],
        Method::Sweep(1) | Method::Exact => ["0.7", "0.82", "0.05-1.96"],
        Method::Vectors => ["0.012", "0.014", "0.015"],
        _ => ["-", "-", "-"],
    }
}

/// Hours in clusters of several sizes, beside those published.
pub fn cluster(costs: &Costs) -> (Table, String) {
    let title = "Deletion in a cluster: hours for one snapshot of every machine, 25 a host";
    let mut table = Table::new(
        title,
        &[
            "method",
            "25 hosts",
            "50 hosts",
            "published (output)",
            "100 hosts",
            "published (output)",
            "marks MB of a host",
            "published memory GB (output)",
        ],
    );
    let scale = HOST_BYTES / costs.disk_bytes;
    for (method, name, counted) in &costs.rows {
        let at = HOSTS.map(|cluster| hours(counted, costs.disk_bytes, *method, cluster));
        let [p50, p100, memory] = published(*method);
        let marks = counted.work.marks_held as f64 * scale;
        table.row(vec![
            (*name).to_owned(),
            format!("{} to {}", number(at[0]), number(at[1])),
            number(at[2]),
            p50.to_owned(),
            number(at[3]),
            p100.to_owned(),
            if marks > 0.0 { number(marks / 1e6) } else { "-".to_owned() },
            memory.to_owned(),
        ]);
    }
    table.note(
        "Hours = metadata of a host / rate; where everything is marked, every host reads the \
         metadata of all p hosts and marks 1/p of the chunks, so that hours = p x metadata of a \
         host / rate. Metadata: what was counted, scaled to 25 machines of 40 GB. Rates are \
         inputs: 30 MB/s for each of 50 hosts, 25 for each of 100, remembered of the authors' \
         longer text; for 25 hosts none is given, so the bounds are those of 50 MB/s, a host \
         alone, and 30. The published \
         hours are those of metadata of 76 GB a host, 30 bytes for each chunk of every snapshot; \
         the product reads recipes that snapshots share once, and compresses them. Which groups \
         the published grouped method has is not given; it stands beside groups of 5 snapshots.",
    );
    (table, cluster_plot(title, costs))
}

/// The methods that read all hosts' metadata, over the size of the cluster.
fn cluster_plot(title: &str, costs: &Costs) -> String {
    let mut lines: Vec<Line> = costs
        .rows
        .iter()
        .filter(|(method, ..)| reads_all(*method))
        .map(|(method, name, counted)| Line {
            name: (*name).to_owned(),
            points: HOSTS[1..]
                .iter()
                .map(|cluster| (cluster.0, hours(counted, costs.disk_bytes, *method, *cluster)))
                .collect(),
            is_published: false,
        })
        .collect();
    let methods = [Method::Everything, Method::Grouped(5)];
    let points = methods.into_iter().flat_map(|method| {
        let [p50, p100, _] = published(method);
        [(50.0, p50), (100.0, p100)].map(|(p, hours)| (p, hours.parse().unwrap_or(0.0)))
    });
    lines.push(Line {
        name: "published: everything, grouped".to_owned(),
        points: points.collect(),
        is_published: true,
    });
    plot_values(title, ("hosts", "hours"), 0.0, &lines)
}
