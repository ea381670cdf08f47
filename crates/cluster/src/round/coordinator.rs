//! The coordinator of a round: gives orders, and commits what the hosts have stored.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use silt_format::{Error, ErrorKind, Result, RunRef, SeriesId};
use silt_repository::Repository;
use silt_repository::event::Warning;
use silt_sharing::exchange::{HOSTS_MAX, Placed, SharedAdditions, Workspace, keys_of, tasks_of};
use silt_sharing::round::{CostModel, Picking};

use super::orders::{BackedUp, Order, Outcome, Run, Runs};
use super::peers::{Peers, Trust};
use super::planning::{Part, Parts, PlannedHost, schedule};
use super::rates::HostRates;
use crate::{Bus, Messages, Name};

/// How a round is coordinated.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// The round's id, random.
    pub round: u64,
    /// The hosts that take part.
    pub hosts: Vec<Name>,
    /// In how many parts: with more, volumes are needed for a shorter time, and all takes longer.
    pub parts: Parts,
    /// By what a part's time is predicted.
    pub model: CostModel,
    /// Whether rates that hosts have measured count instead of those of the model.
    pub use_measured: bool,
    /// A host that does not answer for so long is left out.
    pub patience: Duration,
    /// How long a host may take until it answers for the first time.
    pub arrival: Duration,
    /// The largest chunk, in bytes, by which container numbers are granted.
    pub chunk_bytes: u64,
    /// Where and in how much memory the index of what hosts have stored is merged.
    pub workspace: Workspace,
}

/// What a part of a round has come to.
#[derive(Clone, Debug, Default)]
pub struct PartReport {
    /// Each host that began it.
    pub hosts: Vec<HostReport>,
    /// Chunks that were new to their series, counted once per series.
    pub requested_chunks: u64,
    /// Chunks that were stored for several series.
    pub shared_chunks: u64,
    /// Their bytes.
    pub shared_bytes: u64,
    /// Bytes written to the shared store, with the index.
    pub stored_bytes: u64,
    /// Bytes of requests, of owners, and of answers that hosts have exchanged.
    pub exchanged_bytes: [u64; 3],
    /// Why nothing is shared, if so.
    pub unshared: Option<String>,
    /// What the cost model predicts for scanning, comparing and storing, in seconds.
    pub predicted_s: [f64; 3],
    /// How series were assigned to parts.
    pub picking: Option<Picking>,
    /// Of how many hosts a measured rate was used.
    pub measured_hosts: usize,
    /// How long these took, in milliseconds.
    pub took_ms: [u64; 3],
}

/// A host in a part of a round.
#[derive(Clone, Debug)]
pub struct HostReport {
    /// Its name on the bus.
    pub host: Name,
    /// Its series. Those that the cluster lost sight of have an error.
    pub series: Vec<BackedUp>,
}

/// Coordinates a round.
pub struct Coordinator<'a> {
    repository: &'a Repository,
    options: &'a CoordinatorOptions,
    peers: Peers<'a>,
}

impl Part {
    /// What is known before it begins.
    fn report(&self) -> PartReport {
        PartReport {
            predicted_s: self.predicted_s,
            picking: Some(self.picking),
            measured_hosts: self.measured_hosts,
            ..PartReport::default()
        }
    }
}

impl<'a> Coordinator<'a> {
    /// A coordinator that has asked nobody yet.
    pub fn new(
        repository: &'a Repository,
        bus: &'a dyn Bus,
        messages: &'a Messages,
        options: &'a CoordinatorOptions,
    ) -> Result<Self> {
        if options.hosts.is_empty() || options.hosts.len() > usize::from(HOSTS_MAX) {
            let message = format!("a round has between 1 and {HOSTS_MAX} hosts");
            return Err(Error::invalid(message));
        }
        let peers =
            Peers::new(repository, bus, messages, (options.round, &options.hosts), Trust::Full)?;
        Ok(Self { repository, options, peers })
    }

    /// Runs the round; `each` receives each part when it has ended. Returns the hosts that were
    /// lost.
    ///
    /// A host that is lost misses the rest; its series fail, and nobody else's. Fails only if no
    /// host is left.
    pub fn run(mut self, each: &mut dyn FnMut(&PartReport) -> Result<()>) -> Result<Vec<Name>> {
        let done = self.run_parts(each);
        // After an error, too: hosts would wait for orders.
        self.peers.end();
        done.map(|()| self.peers.lost())
    }

    fn run_parts(&mut self, each: &mut dyn FnMut(&PartReport) -> Result<()>) -> Result<()> {
        let planned = self.plan()?;
        for part in schedule(self.options.parts, &self.options.model, &planned) {
            let report = self.part(&part)?;
            each(&report)?;
        }
        Ok(())
    }

    /// The parts as they would be, with predicted times. Nothing is backed up.
    pub fn preview(mut self) -> Result<Vec<PartReport>> {
        let planned = self.plan()?;
        let hosts = &self.options.hosts;
        let preview = |part: Part| {
            let of_host = |(host, series): (&Name, Vec<String>)| HostReport {
                host: host.clone(),
                series: series.iter().map(|series| unknown(series, None)).collect(),
            };
            let report = part.report();
            let all = hosts.iter().zip(part.series).filter(|(_, series)| !series.is_empty());
            PartReport { hosts: all.map(of_host).collect(), ..report }
        };
        let parts = schedule(self.options.parts, &self.options.model, &planned)
            .into_iter()
            .map(preview)
            .collect();
        self.peers.end();
        Ok(parts)
    }

    /// What each host brings.
    fn plan(&mut self) -> Result<Vec<PlannedHost>> {
        let duties = self.peers.each(|_| Some(("plan".to_owned(), Order::Plan)));
        let outcomes = self.peers.fulfil(duties, self.options.arrival, &mut || Ok(()))?;
        self.peers.require_some()?;
        let mut planned = vec![PlannedHost::default(); self.options.hosts.len()];
        for (duty, outcome) in outcomes {
            if let Ok(Outcome::Planned { series, rates }) = outcome {
                let rates = if self.options.use_measured { rates } else { HostRates::default() };
                planned[duty.peer] = PlannedHost { series, rates };
            }
        }
        Ok(planned)
    }

    /// One part: these series of each host.
    fn part(&mut self, part: &Part) -> Result<PartReport> {
        let mut report = part.report();
        let began_ns = self.now_ns();
        let scans = self.peers.each(|peer| {
            let series = part.series.get(peer).filter(|series| !series.is_empty())?.clone();
            Some((format!("scan-{}", part.number), Order::Scan { series }))
        });
        let scans = self.peers.fulfil(scans, self.options.patience, &mut || Ok(()))?;
        let mut scanned = Vec::new();
        for (duty, outcome) in scans {
            if let Ok(Outcome::Scanned { requested_chunks }) = outcome {
                add(&mut report.requested_chunks, requested_chunks);
                scanned.push(duty.peer);
            }
        }
        let scanned_ns = self.now_ns();
        let compared = if report.requested_chunks > 0 {
            self.share(part.number, &scanned, &mut report)
        } else {
            Ok(scanned_ns)
        };
        let compared_ns = match compared {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.repository.warn(Warning::after(&error, "the round shares nothing new"));
                report.unshared = Some(error.to_string());
                self.now_ns()
            }
            Ok(compared_ns) => compared_ns,
        };
        self.back_up(part, &scanned, &mut report)?;
        let ms = |from: i64, to: i64| u64::try_from((to - from) / 1_000_000).unwrap_or(0);
        report.took_ms =
            [ms(began_ns, scanned_ns), ms(scanned_ns, compared_ns), ms(compared_ns, self.now_ns())];
        Ok(report)
    }

    /// Finds what several series want or have, lets hosts store it, and commits it. Returns when
    /// the comparing was over.
    fn share(&mut self, part: usize, scanned: &[usize], report: &mut PartReport) -> Result<i64> {
        let repository = self.repository;
        let mut additions = SharedAdditions::begin(repository)?;
        let mut runs = Vec::new();
        let shared = self.share_with(&mut additions, (part, scanned), &mut runs, report);
        let ended = additions.finish(&runs);
        shared.and_then(|compared_ns| ended.map(|()| compared_ns))
    }

    fn share_with(
        &mut self,
        additions: &mut SharedAdditions<'_>,
        (part, scanned): (usize, &[usize]),
        runs: &mut Vec<RunRef>,
        report: &mut PartReport,
    ) -> Result<i64> {
        let (requests, owners) = self.claims(additions, (part, scanned), report)?;
        for run in requests.iter().chain(&owners) {
            runs.push(run.read()?);
        }
        let hosts = u16::try_from(self.options.hosts.len()).unwrap_or(HOSTS_MAX);
        let living = u32::try_from(self.peers.living()).unwrap_or(u32::MAX);
        let tasks = tasks_of(report.requested_chunks, living);
        let (requests, owners) = (Runs(Arc::new(requests)), Runs(Arc::new(owners)));
        let joins = (0..tasks).map(|task| {
            let (first, last) = keys_of(task, tasks).into_inner();
            let (requests, owners) = (requests.clone(), owners.clone());
            let order = Order::Join { first, last, requests, owners, hosts };
            (format!("join-{part}-{task}"), order)
        });
        let joins = self.peers.spread(joins.collect());
        let keep = &mut || additions.keep();
        let outcomes = self.peers.fulfil(joins, self.options.patience, keep)?;
        let (mut answers, mut chunks) = (Vec::new(), vec![0; self.options.hosts.len()]);
        for (_, outcome) in outcomes {
            let Ok(Outcome::Answered { run, bytes, chunks: of_hosts }) = outcome else { continue };
            add(&mut report.exchanged_bytes[2], bytes);
            runs.push(run.read()?);
            answers.push(run);
            chunks.iter_mut().zip(of_hosts).for_each(|(all, more)| add(all, more));
        }
        let compared_ns = self.now_ns();
        let placed = self.store(additions, (part, scanned), &answers, &chunks)?;
        for (_, placed) in &placed {
            runs.push(placed.run);
            add(&mut report.shared_chunks, placed.chunks);
            add(&mut report.shared_bytes, placed.bytes);
            add(&mut report.stored_bytes, placed.stored_bytes);
        }
        if !placed.is_empty() {
            additions.keep()?;
            add(&mut report.stored_bytes, additions.commit(&placed, &self.options.workspace)?.1);
        }
        Ok(compared_ns)
    }

    /// The runs of requests and owners. Those that a lost host would have written are missing:
    /// less is shared then.
    fn claims(
        &mut self,
        additions: &mut SharedAdditions<'_>,
        (part, scanned): (usize, &[usize]),
        report: &mut PartReport,
    ) -> Result<(Vec<Run>, Vec<Run>)> {
        let mut duties = self.peers.each(|peer| {
            let host = u16::try_from(peer).ok().filter(|_| scanned.contains(&peer))?;
            Some((format!("requests-{part}"), Order::Requests { host }))
        });
        let (ids, hosts) = (self.repository.series_ids()?, scanned.len().max(1));
        // Two each, so that a host that is done early takes over.
        let slices = ids.chunks(ids.len().div_ceil(2 * hosts).max(1)).enumerate();
        let slice = |(number, ids): (usize, &[SeriesId])| {
            (
                format!("owners-{part}-{number}"),
                Order::Owners { series: ids.iter().map(|id| id.0).collect() },
            )
        };
        duties.extend(self.peers.spread(slices.map(slice).collect()));
        let keep = &mut || additions.keep();
        let outcomes = self.peers.fulfil(duties, self.options.patience, keep)?;
        let (mut requests, mut owners) = (Vec::new(), Vec::new());
        for (duty, outcome) in outcomes {
            let Ok(Outcome::Written { run, bytes }) = outcome else { continue };
            let is_request = matches!(duty.order, Order::Requests { .. });
            add(&mut report.exchanged_bytes[usize::from(!is_request)], bytes);
            if is_request { requests.push(run) } else { owners.push(run) }
        }
        Ok((requests, owners))
    }

    /// Lets the hosts store what the answers leave to them.
    fn store(
        &mut self,
        additions: &mut SharedAdditions<'_>,
        (part, scanned): (usize, &[usize]),
        answers: &[Run],
        chunks: &[u64],
    ) -> Result<Vec<(Range<u32>, Placed)>> {
        let hosts = u16::try_from(self.options.hosts.len()).unwrap_or(HOSTS_MAX);
        let mut granted = Vec::new();
        for peer in scanned {
            let numbers = match chunks[*peer] {
                0 => None,
                chunks => Some(additions.grant(chunks, self.options.chunk_bytes)?),
            };
            granted.push((*peer, numbers));
        }
        let numbers_of = |peer: usize| {
            let found = granted.iter().find(|(granted, _)| *granted == peer);
            found.and_then(|(_, numbers)| numbers.clone())
        };
        let duties = self.peers.each(|peer| {
            let (numbers, answers) = (numbers_of(peer)?, answers.to_vec());
            let host = u16::try_from(peer).ok()?;
            Some((format!("store-{part}"), Order::Store { answers, host, hosts, numbers }))
        });
        let keep = &mut || additions.keep();
        let outcomes = self.peers.fulfil(duties, self.options.patience, keep)?;
        let mut placed = Vec::new();
        for (duty, outcome) in outcomes {
            if let (Ok(Outcome::Placed { placed: text }), Some(numbers)) =
                (outcome, numbers_of(duty.peer))
            {
                placed.push((numbers, text.read()?));
            }
        }
        Ok(placed)
    }

    /// Lets the hosts back up what they have scanned.
    fn back_up(&mut self, part: &Part, scanned: &[usize], report: &mut PartReport) -> Result<()> {
        let duties = self.peers.each(|peer| {
            let name = format!("back-up-{}", part.number);
            scanned.contains(&peer).then_some((name, Order::BackUp))
        });
        let outcomes = self.peers.fulfil(duties, self.options.patience, &mut || Ok(()))?;
        for (peer, series) in part.series.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
            let found = outcomes.iter().find(|(duty, _)| duty.peer == peer);
            let series = match found.map(|(_, outcome)| outcome) {
                Some(Ok(Outcome::BackedUp { series })) => series.clone(),
                Some(Err(error)) => lost(series, error),
                _ => lost(series, "the host could not scan, or is not heard of any more"),
            };
            report.hosts.push(HostReport { host: self.options.hosts[peer].clone(), series });
        }
        Ok(())
    }

    fn now_ns(&self) -> i64 {
        self.repository.objects.context.env.now_ns()
    }
}

/// Adds what a host says, which may be any number.
fn add(sum: &mut u64, more: u64) {
    *sum = sum.saturating_add(more);
}

/// Series whose host did not say what has become of them.
fn lost(series: &[String], error: &str) -> Vec<BackedUp> {
    series.iter().map(|series| unknown(series, Some(error.to_owned()))).collect()
}

/// A series without a snapshot.
fn unknown(series: &str, error: Option<String>) -> BackedUp {
    BackedUp {
        series: series.to_owned(),
        snapshot: None,
        time_ns: 0,
        stored_bytes: 0,
        held_ms: 0,
        error,
    }
}

#[cfg(test)]
mod tests {
    use silt_sharing::exchange::TASKS_MAX;

    use super::*;

    #[test]
    fn the_answers_of_all_tasks_fit_in_an_order() {
        let run = RunRef {
            id: silt_format::Id(u64::MAX),
            use_: silt_format::RunUse::Owners,
            partition_bits: silt_format::PARTITION_BITS_MAX,
            records: u64::MAX >> 16,
            hash: silt_format::ContentHash([255; 16]),
        };
        let answers = vec![Run::from(run); TASKS_MAX as usize];
        let order =
            Order::Store { answers, host: HOSTS_MAX, hosts: HOSTS_MAX, numbers: 0..u32::MAX };
        let bytes = serde_json::to_vec(&order).unwrap().len();
        assert!(bytes < crate::MESSAGE_BYTES_MAX / 4 * 3, "{bytes}");
    }
}
