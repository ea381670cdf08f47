//! `silt cluster`.

use serde_json::json;
use silt_agent::{Asked, Board, BusSettings, Group, choose, host_name, run_ended, running};
use silt_format::Head;
use siltstone::{Activity, Progress, Repository};

mod counting;
mod round;

pub use counting::Agents;

use super::{Failure, Session};
use crate::cli::{BusOptions, Cluster, ClusterBackup, ClusterCancel, ClusterStatus};
use crate::output;

/// The exit status where something is not backed up as it should be.
const NOT_PROTECTED: u8 = 20;

pub fn run(session: &Session<'_>, args: &Cluster) -> Result<u8, Failure> {
    match args {
        Cluster::Status(args) => status(session, args),
        Cluster::Agents(bus) => agents(session, bus),
        Cluster::Backup(args) => backup(session, args),
        Cluster::Round(args) => round::run(session, args),
        Cluster::Cancel(args) => cancel(session, args),
    }
}

/// The bus of the command line, or else that of the agent.
fn bus(session: &Session<'_>, args: &BusOptions) -> Result<BusSettings, Failure> {
    let of_agent = session.chosen.agent.as_ref().and_then(|agent| agent.bus.clone());
    let mut bus = of_agent.unwrap_or_default();
    if !args.bus_server.is_empty() {
        // What belongs to other servers is not sent to these.
        bus = BusSettings { servers: args.bus_server.clone(), ..BusSettings::default() };
    }
    if args.bus_user.is_some() {
        bus.user.clone_from(&args.bus_user);
        bus.password_file.clone_from(&args.bus_password_file);
    }
    if args.bus_certificate.is_some() {
        bus.certificate.clone_from(&args.bus_certificate);
        bus.key.clone_from(&args.bus_key);
    }
    if args.bus_certificates.is_some() {
        bus.certificates.clone_from(&args.bus_certificates);
    }
    bus.tls_first |= args.bus_tls_first;
    if bus.servers.is_empty() {
        let message = "no bus: use --bus-server nats://HOST:4222, or set servers in [agent.bus]";
        return Err(Failure::Usage(message.to_owned()));
    }
    match bus.problem() {
        Some((key, what)) => Err(Failure::Usage(format!("{key}: {what}"))),
        None => Ok(bus),
    }
}

/// Opens the repository, whose keys seal what is said, and connects to the bus.
pub fn connect(session: &Session<'_>, args: &BusOptions) -> Result<(Repository, Group), Failure> {
    // What is mistyped is found before a password is asked for.
    bus(session, args)?;
    let repository = session.repository()?;
    let group = connect_with(session, args, &repository)?;
    Ok((repository, group))
}

/// Connects to the bus with a repository that is open.
fn connect_with(
    session: &Session<'_>,
    args: &BusOptions,
    repository: &Repository,
) -> Result<Group, Failure> {
    let bus = bus(session, args)?;
    let named = session.chosen.agent.as_ref().and_then(|agent| agent.name.clone());
    let host = || host_name(&session.context.env.process().host);
    // Answers come to an inbox of this name, and a user may have the right to read no other.
    let member = match &args.bus_user {
        Some(user) => host_name(user)?,
        None => named.map_or_else(host, Ok)?,
    };
    Group::connect(&bus, &member, &session.context.env, repository)
}

fn agents(session: &Session<'_>, args: &BusOptions) -> Result<u8, Failure> {
    let (_, group) = connect(session, args)?;
    let fleet = group.fleet()?;
    session.reporter.finish();
    Board { fleet: &fleet, json: session.global.json }.print_agents();
    Ok(0)
}

fn status(session: &Session<'_>, args: &ClusterStatus) -> Result<u8, Failure> {
    let (repository, group) = connect(session, &args.bus)?;
    let fleet = group.fleet()?;
    let heads = repository.all_heads(&[])?.heads;
    session.reporter.finish();
    let board = Board { fleet: &fleet, json: session.global.json };
    let after_ns = i64::try_from(args.overdue_after).unwrap_or(i64::MAX);
    let overdue = board.print_tasks(after_ns.saturating_mul(1_000_000_000));
    let is_ignored = |head: &&Head| {
        args.ignore.iter().any(|pattern| match pattern.strip_suffix('*') {
            Some(beginning) => head.shown().starts_with(beginning),
            None => head.shown() == pattern,
        })
    };
    // One whose snapshots were all deleted was removed, or is about to be.
    let living = heads.iter().filter(|head| !head.snapshots.is_empty());
    let alone = living.filter(|head| !is_ignored(head) && !board.lists(head));
    let alone: Vec<&Head> = alone.collect();
    for head in &alone {
        let last_ns = head.snapshots.iter().map(|entry| entry.time_ns).max();
        let last = last_ns.map(output::rfc3339);
        if session.global.json {
            output::message("without_agent", json!({"series": head.shown(), "last": last}));
        } else {
            let last = last_ns.map_or_else(|| "-".to_owned(), output::time);
            output::note(&format!("silt: {}: no agent is there; last {last}", head.shown()));
        }
    }
    board.print_director();
    if session.global.json {
        let alone: Vec<&str> = alone.iter().map(|head| head.shown()).collect();
        let value = json!({
            "agents": fleet.agents.len(),
            "unreadable_members": fleet.unreadable,
            "overdue": overdue,
            "without_agent": alone,
        });
        output::message("summary", value);
    } else if !overdue.is_empty() {
        output::note(&format!("silt: overdue: {}", overdue.join(", ")));
    }
    Ok(if overdue.is_empty() && alone.is_empty() { 0 } else { NOT_PROTECTED })
}

fn backup(session: &Session<'_>, args: &ClusterBackup) -> Result<u8, Failure> {
    let (_, group) = connect(session, &args.bus)?;
    let fleet = group.fleet()?;
    session.reporter.finish();
    // A mistyped name is found before anything begins.
    let mut chosen = Vec::new();
    for series in &args.series {
        chosen.push((series, choose(&fleet, series, args.agent.as_deref())?));
    }
    let mut watch = group.watch()?;
    let mut waiting = Vec::new();
    for (series, agent) in chosen {
        let asked = group.backup(agent, series, args.now)?;
        tell_asked(session, series, &asked);
        waiting.push((series, asked));
    }
    let mut code = 0;
    for (series, asked) in waiting.iter().filter(|_| args.follow) {
        let progress = |done: u64, total: Option<u64>| {
            session.context.report(Progress::bytes(Activity::Backup, done, total));
        };
        let last = group.wait(asked, &mut watch, progress)?;
        session.reporter.finish();
        let of_series = run_ended(&asked.agent, series, &last, session.global.json);
        if code == 0 {
            code = of_series;
        }
    }
    Ok(code)
}

fn tell_asked(session: &Session<'_>, series: &str, asked: &Asked) {
    if session.global.json {
        let value = json!({
            "agent": asked.agent.as_str(),
            "series": series,
            "time": output::rfc3339(asked.at_ns),
            "was_running": asked.was_running,
        });
        output::message("asked", value);
    } else if asked.was_running {
        output::done(&format!("{series}: agent {} is backing it up already", asked.agent));
    } else {
        output::done(&format!("{series}: agent {} will back it up", asked.agent));
    }
}

fn cancel(session: &Session<'_>, args: &ClusterCancel) -> Result<u8, Failure> {
    let (_, group) = connect(session, &args.bus)?;
    let fleet = group.fleet()?;
    session.reporter.finish();
    let agent = running(&fleet, &args.series, args.agent.as_deref())?;
    group.cancel(agent, &args.series)?;
    if session.global.json {
        let value = json!({"agent": agent.as_str(), "series": args.series});
        output::message("cancelled", value);
    } else {
        output::done(&format!("{}: agent {agent} ends it", args.series));
    }
    Ok(0)
}
