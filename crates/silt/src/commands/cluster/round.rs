//! `silt cluster round`.

use std::time::Duration;

use serde_json::json;
use silt_agent::Group;
use silt_cluster::round::{
    BackedUp, Coordinator, CoordinatorOptions, PartReport, Parts, Workspace,
};
use silt_cluster::{AgentStatus, Name};
use silt_format::{Error, ErrorKind};
use siltstone::{CostModel, Picking};

use super::connect;
use crate::cli::ClusterRound;
use crate::commands::{Failure, Session, temporary_folder};
use crate::{output, snapshot_name};

/// How long an agent may take to start its part: a process, and the key of the repository.
pub(super) const ARRIVAL: Duration = Duration::from_mins(1);
/// The largest chunk of disks, in bytes, by which container numbers are granted.
const CHUNK_BYTES: u64 = 64 << 10;

pub fn run(session: &Session<'_>, args: &ClusterRound) -> Result<u8, Failure> {
    let (repository, group) = connect(session, &args.bus)?;
    let fleet = group.fleet()?;
    session.reporter.finish();
    let round = session.unique();
    let chosen = chosen(&fleet.agents, &args.agents)?;
    let hosts = call(session, &group, &chosen, round)?;
    let agent = session.chosen.agent.as_ref();
    let limit_s = args.time_limit.as_deref().map(snapshot_name::parse_time_limit).transpose()?;
    let number = args.parts.map(usize::from).or(agent.and_then(|agent| agent.round_parts));
    let parts = limit_s.map_or(Parts::Number(number.unwrap_or(1)), Parts::WithinSeconds);
    let (scan_rate, store_rate) = (args.scan_rate.unwrap_or(2500), args.store_rate.unwrap_or(400));
    let spool = agent.is_some_and(|agent| agent.round_spool);
    let options = CoordinatorOptions {
        round,
        hosts,
        parts,
        model: CostModel::local(rate(scan_rate), rate(store_rate), spool),
        use_measured: args.scan_rate.or(args.store_rate).is_none(),
        patience: Duration::from_secs(args.patience),
        arrival: ARRIVAL.max(Duration::from_secs(args.patience)),
        chunk_bytes: CHUNK_BYTES,
        workspace: Workspace {
            folder: temporary_folder(),
            memory_bytes: session.global.memory << 19,
        },
    };
    let (bus, messages) = (&**group.bus(), group.messages());
    let coordinator = Coordinator::new(&repository, bus, messages, &options)?;
    if args.dry_run {
        let parts = coordinator.preview()?;
        (1..).zip(&parts).for_each(|(number, part)| print(session, number, part, true));
        return Ok(0);
    }
    let (mut number, mut failed) = (0, chosen.len() - options.hosts.len());
    let lost = coordinator.run(&mut |part| {
        number += 1;
        session.reporter.finish();
        print(session, number, part, false);
        failed += series(part).filter(|(_, series)| series.error.is_some()).count();
        Ok(())
    })?;
    Ok(u8::from(failed + lost.len() > 0))
}

/// Bytes per second of so many MiB.
fn rate(mib: u32) -> f64 {
    f64::from(mib) * f64::from(1 << 20)
}

/// The agents that take part.
fn chosen(agents: &[AgentStatus], named: &[String]) -> Result<Vec<Name>, Error> {
    let not_found = |message: String| Error::new(ErrorKind::NotFound, message);
    let mut found = Vec::new();
    for name in named {
        let agent = agents.iter().find(|agent| agent.name.as_str() == name);
        let agent = agent.ok_or_else(|| not_found(format!("there is no agent '{name}'")))?;
        found.push(agent.name.clone());
    }
    if named.is_empty() {
        let has_series = |agent: &&AgentStatus| {
            agent.allowed.round && agent.tasks.iter().any(|task| task.work.series().is_some())
        };
        found.extend(agents.iter().filter(has_series).map(|agent| agent.name.clone()));
    }
    if found.is_empty() {
        return Err(not_found("no agent is there that takes part in rounds".to_owned()));
    }
    Ok(found)
}

/// Calls agents to the round; those that refuse, or do not answer, are left out.
pub(super) fn call(
    session: &Session<'_>,
    group: &Group,
    agents: &[Name],
    round: u64,
) -> Result<Vec<Name>, Error> {
    let (mut called, mut failure) = (Vec::new(), None);
    let joined = group.join(agents, round);
    session.context.check_interrupted()?;
    for (agent, joined) in agents.iter().zip(joined) {
        match joined {
            Ok(()) => called.push(agent.clone()),
            Err(error) => {
                session.warn(&format!("agent '{agent}' takes no part: {error}"));
                failure = Some(error);
            }
        }
    }
    match failure {
        Some(error) if called.is_empty() => Err(error),
        _ => Ok(called),
    }
}

/// The series of a part, with their hosts.
fn series(part: &PartReport) -> impl Iterator<Item = (&Name, &BackedUp)> {
    part.hosts.iter().flat_map(|host| host.series.iter().map(move |series| (&host.host, series)))
}

fn print(session: &Session<'_>, number: usize, part: &PartReport, is_preview: bool) {
    if session.global.json {
        print_json(number, part);
        return;
    }
    let [scan, compare, store] = part.predicted_s;
    let measured = match part.measured_hosts {
        0 => String::new(),
        hosts => format!(", as measured by {}", output::count(hosts as u64, "host")),
    };
    let expected =
        format!("expected: scan {scan:.2} s, compare {compare:.2} s, store {store:.2} s{measured}");
    for (host, series) in series(part) {
        let name = &series.series;
        match (&series.error, &series.snapshot) {
            (Some(error), _) => {
                output::error(false, &format!("{name} on {host} was not backed up: {error}"), 1);
            }
            (None, Some(id)) => output::done(&format!(
                "{name} on {host}: snapshot {}, {} stored",
                &id[..8.min(id.len())],
                output::bytes(series.stored_bytes)
            )),
            (None, None) => output::line(&format!("part {number}: {name} on {host}")),
        }
    }
    if is_preview {
        output::line(&format!("part {number}: {expected}"));
        return;
    }
    if session.global.quiet {
        return;
    }
    output::line(&format!(
        "Part {number}: {} of {}, {}, {} shared ({} in {} stored)",
        output::count(series(part).count() as u64, "series"),
        output::count(part.hosts.len() as u64, "host"),
        output::count(part.requested_chunks, "new chunk"),
        part.shared_chunks,
        output::bytes(part.shared_bytes),
        output::bytes(part.stored_bytes),
    ));
    let [scan, compare, store] =
        part.took_ms.map(|ms| format!("{}.{:02} s", ms / 1000, ms % 1000 / 10));
    output::line(&format!("  took: scan {scan}, compare {compare}, store {store}; {expected}"));
    if let Some(why) = &part.unshared {
        output::note(&format!("silt: nothing new is shared: {why}"));
    }
}

fn print_json(number: usize, part: &PartReport) {
    for (host, series) in series(part) {
        let time = (series.time_ns > 0).then(|| output::rfc3339(series.time_ns));
        let value = json!({
            "part": number,
            "agent": host.as_str(),
            "series": series.series,
            "id": series.snapshot,
            "time": time,
            "stored_bytes": series.stored_bytes,
            "held_ms": series.held_ms,
            "error": series.error,
        });
        output::message("round_series", value);
    }
    let [requests, owners, answers] = part.exchanged_bytes;
    let [scan_s, compare_s, store_s] = part.predicted_s;
    let [scan_ms, compare_ms, store_ms] = part.took_ms;
    let value = json!({
        "part": number,
        "series": series(part).count(),
        "failed": series(part).filter(|(_, series)| series.error.is_some()).count(),
        "requested_chunks": part.requested_chunks,
        "shared_chunks": part.shared_chunks,
        "shared_bytes": part.shared_bytes,
        "stored_bytes": part.stored_bytes,
        "exchanged_bytes": {"requests": requests, "owners": owners, "answers": answers},
        "unshared": part.unshared,
        "scan_ms": scan_ms,
        "compare_ms": compare_ms,
        "store_ms": store_ms,
        "span_ms": part.took_ms.iter().sum::<u64>(),
        "expected": {
            "scan_s": scan_s, "compare_s": compare_s, "store_s": store_s,
            "span_s": part.predicted_s.iter().sum::<f64>(),
            "schedule": part.picking.map(Picking::name),
            "measured_hosts": part.measured_hosts,
        },
    });
    output::message("round_part", value);
}
