//! What rounds of the product's hosts exchange: each host scans its machines, and requests, owners,
//! answers and places go through the shared store, whose storage counts the bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_format::{Id, RUN_BLOCK_RECORDS_MAX, RunRef, SEGMENT_BYTES, names};
use silt_sharing::exchange::{
    Answers, HostRound, SharedAdditions, Workspace, join_claims, keys_of, write_owners,
};
use silt_storage::{MemoryStorage, Operation, RecordingStorage};
use siltstone::{BackupOptions, Repository, RoundMember, RoundOptions, RoundVolume};

use crate::Result;
use crate::disk::Disk;
use crate::fleet::{Fleet, VOLUME, reopened};
use crate::generate::{Shape, generate};
use crate::spans::PAPER;
use crate::trace::{Machine, Trace};
use silt_report::{Table, number};

/// Bytes of some runs through the storage, both ways, and in how many reads and writes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    pub bytes: u64,
    pub operations: u64,
}

/// Whose runs they are: requests, the chunks that series have, answers, and places.
pub const COLUMNS: [&str; 4] = [
    "requests B a request",
    "owners B an owned chunk",
    "answers B a request",
    "places B a request",
];
const OWNERS: usize = 1;
const ANSWERS: usize = 2;
const PLACES: usize = 3;

/// What a round of several hosts exchanged.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchanged {
    /// Chunks that are new to their series.
    pub requests: u64,
    /// Chunks that series have.
    pub owned: u64,
    /// Chunks that are stored once for several series.
    pub shared: u64,
    /// By [`COLUMNS`].
    pub moved: [Moved; 4],
    /// Processor time of the round, with its scans and backups.
    pub cpu_s: f64,
}

/// What one request more, and one owned chunk more, add to the bytes of an exchange.
#[derive(Clone, Copy, Debug, Default)]
pub struct Marginal {
    /// By [`COLUMNS`]: for each request, but for owners, for each owned chunk.
    pub bytes: [f64; 4],
    /// What does not depend on either, in a round.
    pub fixed: f64,
    /// Reads and writes of answers for each task and host.
    pub answer_operations: f64,
}

impl Marginal {
    /// By the difference of two exchanges of as many hosts.
    fn of(small: &Exchanged, large: &Exchanged, hosts: usize) -> Self {
        let more = |of: fn(&Exchanged) -> u64| (of(large) - of(small)) as f64;
        let (requests, owned) = (more(|it| it.requests), more(|it| it.owned));
        let bytes = std::array::from_fn(|kind| {
            let more = large.moved[kind].bytes as f64 - small.moved[kind].bytes as f64;
            more / if kind == OWNERS { owned } else { requests }
        });
        let all: u64 = small.moved.iter().map(|moved| moved.bytes).sum();
        // A task for each host.
        let answer_operations = large.moved[ANSWERS].operations as f64 / (hosts * hosts) as f64;
        let mut marginal = Self { bytes, fixed: 0.0, answer_operations };
        let [by_requests, by_owners] = marginal.for_each();
        let explained = by_requests * small.requests as f64 + by_owners * small.owned as f64;
        marginal.fixed = all as f64 - explained;
        marginal
    }

    /// Bytes for each request, and for each owned chunk.
    fn for_each(&self) -> [f64; 2] {
        [self.bytes.iter().sum::<f64>() - self.bytes[OWNERS], self.bytes[OWNERS]]
    }

    /// Bytes of answers for each request.
    pub fn answer_bytes(&self) -> f64 {
        self.bytes[ANSWERS]
    }

    /// Bytes of places for each request.
    pub fn place_bytes(&self) -> f64 {
        self.bytes[PLACES]
    }
}

pub type Storage = Arc<RecordingStorage<MemoryStorage>>;

/// The storage's traffic of these runs since it was asked last.
pub fn moved(storage: &Storage, runs: [&[RunRef]; 4]) -> [Moved; 4] {
    let mut kinds: BTreeMap<Id, usize> = BTreeMap::new();
    for (kind, runs) in runs.into_iter().enumerate() {
        kinds.extend(runs.iter().map(|run| (run.id, kind)));
    }
    let mut all = [Moved::default(); 4];
    for record in storage.take() {
        let (Operation::Put { key, .. } | Operation::Get { key, .. }, Ok(bytes)) =
            (&record.operation, record.outcome)
        else {
            continue;
        };
        let name = key.as_str();
        let id = names::id_and_part(name).filter(|_| name.starts_with("runs/"));
        if let Some(kind) = id.and_then(|(id, _)| kinds.get(&id)) {
            all[*kind].bytes += bytes;
            all[*kind].operations += 1;
        }
    }
    all
}

/// A repository with all days but the last, backed up in rounds of one host.
pub fn before_last(trace: &Trace) -> Result<(Storage, Repository)> {
    let earlier = |machine: &Machine| Machine {
        name: machine.name.clone(),
        days: machine.days[..machine.days.len() - 1].to_vec(),
    };
    let before = Trace { machines: trace.machines.iter().map(earlier).collect() };
    let storage: Storage = Arc::new(RecordingStorage::new(MemoryStorage::new()));
    drop(Fleet::in_rounds_within(&before, 1, storage.clone())?);
    let repository = reopened(storage.clone())?;
    Ok((storage, repository))
}

/// Backs up all days but the last in rounds of one host, and the last in a round of `hosts` hosts,
/// each of which has every `hosts`-th machine.
pub fn exchange(trace: &Trace, hosts: usize) -> Result<Exchanged> {
    let (storage, repository) = before_last(trace)?;
    let folder = std::env::temp_dir();
    let options = RoundOptions { folder: folder.clone(), memory_bytes: 0, spool: false };
    let workspace = Workspace { folder, memory_bytes: 0 };
    let count = u16::try_from(hosts)?;
    let mut found = Exchanged::default();
    let (mut rounds, begin) = (Vec::new(), crate::cpu_seconds());
    for host in 0..hosts {
        let machines = trace.machines.iter().skip(host).step_by(hosts);
        rounds.push(HostRound::scan(&repository, machines.map(member).collect(), &options)?);
    }
    found.requests = rounds.iter().map(HostRound::requested_chunks).sum();
    storage.take();
    let mut additions = SharedAdditions::begin(&repository)?;
    let numbered = || 0..count;
    let requests: Vec<RunRef> = numbered()
        .zip(&rounds)
        .map(|(host, round)| Ok(round.write_requests(host)?.run))
        .collect::<Result<_>>()?;
    let ids = repository.series_ids()?;
    let owners: Vec<RunRef> = ids
        .chunks(ids.len().div_ceil(hosts))
        .map(|ids| Ok(write_owners(&repository, ids, &workspace, &mut || Ok(()))?.run))
        .collect::<Result<_>>()?;
    let answers = joined(&repository, count, (&requests, &owners), &workspace)?;
    let runs: Vec<RunRef> = answers.iter().map(|answers| answers.run.run).collect();
    let mut placed = Vec::new();
    for (host, round) in numbered().zip(&mut rounds) {
        let chunks = answers.iter().map(|answers| answers.chunks[usize::from(host)]).sum();
        let numbers = additions.grant(chunks, silt_format::BLOCK_BYTES as u64)?;
        placed.push((numbers.clone(), round.store(&runs, (host, count), numbers)?));
    }
    found.shared = placed.iter().map(|(_, placed)| placed.chunks).sum();
    found.owned = owners.iter().map(|run| run.records).sum();
    let places: Vec<RunRef> = placed.iter().map(|(_, placed)| placed.run).collect();
    let kinds = [&requests[..], &owners, &runs, &places];
    additions.commit(&placed, &workspace)?;
    additions.finish(&kinds.concat())?;
    found.moved = moved(&storage, kinds);
    for round in rounds {
        for backup in round.back_up()?.backups {
            backup?;
        }
    }
    found.cpu_s = crate::cpu_seconds() - begin;
    Ok(found)
}

/// The answers of a task for each host.
fn joined(
    repository: &Repository,
    hosts: u16,
    (requests, owners): (&[RunRef], &[RunRef]),
    workspace: &Workspace,
) -> Result<Vec<Answers>> {
    let tasks = u32::from(hosts);
    let join = |task| {
        let keys = keys_of(task, tasks);
        Ok(join_claims(repository, &keys, requests, owners, hosts, workspace)?)
    };
    (0..tasks).map(join).collect()
}

/// A machine on its last day.
pub fn member(machine: &Machine) -> RoundMember<'_> {
    let mut disk = Disk::of(machine);
    machine.days.iter().for_each(|day| disk.change(day));
    RoundMember {
        series: machine.name.clone(),
        volumes: vec![(VOLUME.to_owned(), RoundVolume::Disk(Box::new(disk)))],
        options: BackupOptions::default(),
        on_released: None,
    }
}

/// Segments of a machine, ours, in the two exchanges whose difference counts. All change, so that
/// each join reads several blocks of each run.
const SEGMENTS: [usize; 2] = [64, 128];

/// Machines all of whose chunks are new on the second day, each in two machines.
pub fn all_new(shape: &Shape, machines: usize, segments: usize) -> Trace {
    let all_new = Shape { edited: 1.0, replaced: [1.0; 10], moved: 0.0, ..*shape };
    generate(&Shape { machines, segments, days: 2, update_sharing: 2.0, ..all_new })
}

/// Exchanges of one machine on each host, the second of machines twice as large.
fn marginal(shape: &Shape, hosts: usize) -> Result<(Marginal, Exchanged)> {
    let of = |segments: usize| exchange(&all_new(shape, hosts, segments), hosts);
    let (small, large) = (of(SEGMENTS[0])?, of(SEGMENTS[1])?);
    Ok((Marginal::of(&small, &large, hosts), large))
}

/// What was counted, by the number of hosts.
pub fn table(shape: &Shape, hosts: &[usize]) -> Result<(Table, Marginal)> {
    let mut columns = vec!["hosts", "requests", "owned chunks", "shared chunks"];
    columns.extend(COLUMNS);
    columns.extend(["fixed KB a host", "reads and writes of a host"]);
    let mut table = Table::new("What the exchange of a round moves, by the product", &columns);
    let mut last = Marginal::default();
    for hosts in hosts {
        let (found, large) = marginal(shape, *hosts)?;
        let operations: u64 = large.moved.iter().map(|moved| moved.operations).sum();
        let counts = [*hosts as u64, large.requests, large.owned, large.shared];
        let figures = [found.fixed / *hosts as f64 / 1e3, operations as f64 / *hosts as f64];
        let cells = counts.map(|count| count.to_string()).into_iter();
        let cells = cells.chain(found.bytes.map(number)).chain(figures.map(number));
        table.row(cells.collect());
        last = found;
    }
    if !hosts.contains(&PAPER.hosts) {
        let mut cells = vec![
            PAPER.hosts.to_string(),
            "not run: one process runs all hosts, and needs more than 20 minutes".to_owned(),
        ];
        cells.resize(columns.len(), "-".to_owned());
        table.row(cells);
    }
    table.note(format!(
        "Each host has a generated machine, all of whose chunks are new on the second day, each in \
         two machines (input). That day is a round by the code of `silt cluster round`, with a \
         join for each host. Bytes that the storage took and gave out of the runs of requests, of \
         chunks that series have, of answers and of places. They are the difference of machines of \
         {} and of {} segments, which tells what each request and owned chunk costs from what is \
         read however little there is: the fixed part. Each join reads whole blocks of {} \
         records, of which a run has about as many for a join of 32 hosts, so that answers vary.",
        SEGMENTS[0], SEGMENTS[1], RUN_BLOCK_RECORDS_MAX
    ));
    Ok((table, last))
}

/// What rounds of the product took.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    pub cpu_s: f64,
    /// Bytes of changed segments, scanned once.
    pub scanned_bytes: f64,
}

/// Processor time of a round of one host over the last day of a trace.
pub fn cpu(trace: &Trace) -> Result<Measured> {
    let last = trace.days() - 1;
    let segments: usize =
        trace.machines.iter().map(|machine| machine.days[last].changed.len()).sum();
    let cpu_s = exchange(trace, 1)?.cpu_s;
    Ok(Measured { cpu_s, scanned_bytes: segments as f64 * SEGMENT_BYTES as f64 })
}

#[cfg(test)]
mod tests {
    use super::{OWNERS, exchange, marginal};
    use crate::generate::{Shape, generate};

    /// A record has 32 bytes, of which storing saves some: written once and read once, a request
    /// costs some 60, however many hosts there are. Half of them are stored, once for two machines,
    /// each of which has a record of its answer and of its place.
    #[test]
    fn a_request_costs_some_records_whatever_the_number_of_hosts() -> crate::Result<()> {
        for hosts in [2, 4] {
            let (found, large) = marginal(&Shape::default(), hosts)?;
            assert!(large.requests > 50_000 && large.shared > 0, "{large:?}");
            assert!((40.0..75.0).contains(&found.bytes[0]), "{found:?}");
            assert!((40.0..75.0).contains(&found.bytes[OWNERS]), "{found:?}");
            assert!(found.bytes[2] + found.bytes[3] < 2.0 * found.bytes[0], "{found:?}");
        }
        Ok(())
    }

    #[test]
    fn what_is_shared_does_not_depend_on_who_scans() -> crate::Result<()> {
        let base = Shape { machines: 8, segments: 4, days: 2, ..Shape::default() };
        let trace = generate(&Shape { update_sharing: 2.0, ..base });
        let (few, many) = (exchange(&trace, 2)?, exchange(&trace, 8)?);
        assert_eq!((few.requests, few.shared), (many.requests, many.shared));
        assert!(few.shared > 20);
        Ok(())
    }
}
