//! `silt replicate`, and the server that it talks to.

use std::io::{IsTerminal, Write};
use std::sync::Arc;

use serde_json::json;
use silt_format::ErrorKind;
use silt_format::replica::ReplicaRole;
use silt_location::names_of;
use silt_replicate::{
    Connection, Destination, Line, ListenOptions, Listener, Outcome, ReplicateOptions,
    ReplicateReport, SnapshotOutcome, Stream, Traffic as LineTraffic, replicate, replicate_over,
    serve,
};
use siltstone::{BackupOptions, Protection, Repository, Throttle};

use super::init::label;
use super::{Failure, PROGRAM, Session, Traffic, short};
use crate::cli::{Replicate, ServeReplica};
use crate::{output, secrets};

/// Some snapshots were not replicated.
const INCOMPLETE: u8 = 3;
/// Some snapshots are damaged here.
const DAMAGE_FOUND: u8 = 5;
/// The zstd level of what a replica sends: small messages.
const ANSWERS_LEVEL: i32 = 1;

pub fn run(session: &Session<'_>, args: &Replicate) -> Result<u8, Failure> {
    let to = Destination::parse(&args.to)?;
    let is_location = matches!(to, Destination::Location(_));
    if args.init && !is_location {
        let message = "--init needs a folder or bucket; on another machine, put the replica that \
                       was made in a folder where the server finds it";
        return Err(Failure::Usage(message.to_owned()));
    }
    let repository = session.open(Traffic::Restore, false)?;
    let options = ReplicateOptions {
        series: args.series.clone(),
        prefix: args.prefix.clone(),
        tags: args.tag.clone(),
        newest: args.newest.and_then(|newest| usize::try_from(newest).ok()),
        dry_run: args.dry_run,
        memory_bytes: session.global.memory << 20,
    };
    let (report, traffic) = if let Destination::Location(location) = &to {
        let replica = open_replica(session, &repository, location, args)?;
        (replicate(&repository, &replica, options, stored(session))?, None)
    } else {
        let (report, traffic) = send(session, &repository, &to, options, args)?;
        (report, Some(traffic))
    };
    session.reporter.finish();
    print(session, &report, traffic);
    Ok(status(&report))
}

fn stored(session: &Session<'_>) -> BackupOptions {
    BackupOptions {
        jobs: session.global.jobs,
        memory_bytes: session.global.memory << 20,
        program: PROGRAM.to_owned(),
        ..BackupOptions::default()
    }
}

/// Sends to a program at the other end of a line.
fn send(
    session: &Session<'_>,
    repository: &Repository,
    to: &Destination,
    options: ReplicateOptions,
    args: &Replicate,
) -> Result<(ReplicateReport, LineTraffic), Failure> {
    let (line, mut stream) = Line::open(repository, to, &args.remote_program)?;
    if let Some(throttle) = session.write_limit() {
        stream.writer = Box::new(Limited { to: stream.writer, throttle });
    }
    let opened = Connection::open(repository, ReplicaRole::Source, stream, args.compression);
    let sent = opened.and_then(|mut connection| {
        let report = replicate_over(repository, options, &mut connection)?;
        Ok((report, connection.traffic()))
    });
    let ended = line.end();
    match (sent, ended) {
        // Writing to the line fails in the middle of a record if the user asks to stop.
        (Err(_), _) if session.context.env.is_interrupted() => {
            Err(silt_format::Error::new(ErrorKind::Interrupted, "interrupted").into())
        }
        // The program has said why it ended, or ends because this one does.
        (Err(error), Err(ended)) if error.kind() == ErrorKind::Unavailable => {
            Err(error.context(ended.to_string()).into())
        }
        (sent, ended) => {
            let sent = sent?;
            ended?;
            Ok(sent)
        }
    }
}

/// Writes no faster than a limit.
struct Limited {
    to: Box<dyn Write + Send>,
    throttle: Arc<Throttle>,
}

impl Write for Limited {
    /// Writes a small piece, so that a large record passes evenly.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let piece = &bytes[..bytes.len().min(self.throttle.piece_bytes())];
        self.throttle.take(silt_format::number::to_u64(piece.len()));
        if self.throttle.is_interrupted() {
            return Err(std::io::Error::other("interrupted"));
        }
        self.to.write_all(piece)?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// Opens the replica at a location, or makes it.
fn open_replica(
    session: &Session<'_>,
    source: &Repository,
    location: &str,
    args: &Replicate,
) -> Result<Repository, Failure> {
    let storage = session.storage(location, Traffic::Backup, args.dry_run);
    let file = args.to_password_file.as_deref();
    let variables = &secrets::REPLICA;
    let password = |is_new: bool| {
        let prompt = if is_new { "Password of the new replica: " } else { "Replica's password: " };
        secrets::password(variables, file, "--to-password-file", prompt, is_new)
    };
    let opened = storage.map_err(Failure::from).and_then(|storage| {
        let attempt = || {
            let mut failure = None;
            let opened = Repository::open(Arc::clone(&storage), session.context.clone(), || {
                password(false).map_err(|failed| {
                    let error = silt_format::Error::invalid("no password");
                    failure = Some(failed);
                    error
                })
            });
            failure.map_or_else(|| opened.map_err(Failure::from), Err)
        };
        let repository = secrets::attempts(secrets::is_asked(variables, file), attempt)?;
        let open = |location: &str| session.storage(location, Traffic::Backup, args.dry_run);
        Ok(repository.with_places_by(&names_of(location), &open)?)
    });
    let is_missing = |failure: &Failure| {
        let missing = [ErrorKind::NoRepository, ErrorKind::NotFound];
        matches!(failure, Failure::Error(error) if missing.contains(&error.kind()))
    };
    match opened {
        Err(failure) if is_missing(&failure) && args.init => {}
        Err(failure) if is_missing(&failure) => {
            let message = format!("there is no replica in {location}; --init makes one");
            return Err(Failure::Usage(message));
        }
        opened => return opened,
    }
    let protection = if source.is_encrypted() {
        let (cost, label) = (args.cost.to_kdf()?, label(session, "replica"));
        Protection::Password { password: password(true)?, cost, label }
    } else {
        Protection::None
    };
    let storage = session.opener.create(location, session.unique())?;
    let replica = source.init_replica(storage, session.context.clone(), &protection, None)?;
    if !session.global.json {
        let id = replica.id().to_string();
        output::note(&format!("made the replica {} in {location}", &id[..8]));
    }
    Ok(replica)
}

fn status(report: &ReplicateReport) -> u8 {
    let is_damaged = |snapshot: &SnapshotOutcome| {
        matches!(snapshot.outcome, Outcome::Failed(ErrorKind::Corrupt, _))
    };
    if report.snapshots.iter().any(is_damaged) {
        return DAMAGE_FOUND;
    }
    if report.is_complete() { 0 } else { INCOMPLETE }
}

fn print(session: &Session<'_>, report: &ReplicateReport, traffic: Option<LineTraffic>) {
    let sent = |snapshot: &&SnapshotOutcome| matches!(snapshot.outcome, Outcome::Sent(_));
    let sent_count = report.snapshots.iter().filter(sent).count();
    if session.global.json {
        report.snapshots.iter().for_each(print_json);
        let refused = report.refused.iter();
        let refused = refused.map(|(series, reason)| json!({"series": series, "reason": reason}));
        let value = json!({
            "sent": sent_count,
            "present": report.present,
            "refused": refused.collect::<Vec<_>>(),
            "sent_bytes": traffic.map(|traffic| traffic.sent_bytes),
            "received_bytes": traffic.map(|traffic| traffic.received_bytes),
        });
        output::message("replication", value);
        return;
    }
    for snapshot in &report.snapshots {
        let SnapshotOutcome { series, to, snapshot: id, time_ns, bytes, sent_bytes, outcome } =
            snapshot;
        let name = if series == to { series.clone() } else { format!("{series} as {to}") };
        let name = format!("{name} {} of {}", short(*id), output::time(*time_ns));
        let size = output::bytes(*bytes);
        match outcome {
            Outcome::Planned => output::done(&format!("would send {name} ({size})")),
            Outcome::Sent(_) => {
                let new = output::bytes(*sent_bytes);
                output::done(&format!("sent {name}: {new} new of {size}"));
            }
            Outcome::Gone => output::done(&format!("{name} was deleted meanwhile")),
            Outcome::Failed(_, why) => output::note(&format!("silt: {name} was not sent: {why}")),
        }
    }
    for (series, why) in &report.refused {
        output::note(&format!("silt: {series} was not replicated: {why}"));
    }
    let link = traffic.map_or_else(String::new, |traffic| {
        let (out, back) =
            (output::bytes(traffic.sent_bytes), output::bytes(traffic.received_bytes));
        format!("; {out} sent, {back} received")
    });
    let is_plan = report.snapshots.iter().any(|s| matches!(s.outcome, Outcome::Planned));
    if !is_plan {
        output::done(&format!(
            "Replicated {}{link}.",
            output::count(silt_format::number::to_u64(sent_count), "snapshot")
        ));
    }
}

fn print_json(snapshot: &SnapshotOutcome) {
    let SnapshotOutcome { series, to, snapshot, time_ns, bytes, sent_bytes, outcome } = snapshot;
    let (name, id, error) = match outcome {
        Outcome::Planned => ("planned", None, None),
        Outcome::Sent(id) => ("sent", Some(id.to_string()), None),
        Outcome::Gone => ("gone", None, None),
        Outcome::Failed(_, why) => ("failed", None, Some(why)),
    };
    let value = json!({
        "series": series,
        "to": to,
        "snapshot": snapshot.to_string(),
        "time": output::rfc3339(*time_ns),
        "bytes": bytes,
        "sent_bytes": sent_bytes,
        "outcome": name,
        "id": id,
        "error": error,
    });
    output::message("replicated", value);
}

/// `silt serve replica`.
pub fn serve_replica(session: &Session<'_>, args: &ServeReplica) -> Result<u8, Failure> {
    if args.listen.is_none() && std::io::stdin().is_terminal() {
        let message = "a source speaks to this command on standard input: `silt replicate --to \
                       ssh://HOST/PATH` runs it; to wait for sources use --listen ADDR:PORT";
        return Err(Failure::Usage(message.to_owned()));
    }
    let repository = session.open(Traffic::Backup, false)?;
    repository.require_all_keys()?;
    let Some(address) = args.listen else {
        let stream = Stream {
            reader: Box::new(std::io::stdin()),
            writer: Box::new(std::io::stdout()),
            close: Box::new(|| {}),
        };
        let role = ReplicaRole::Replica;
        let mut connection = Connection::open(&repository, role, stream, ANSWERS_LEVEL)?;
        serve(&repository, stored(session), &mut connection)?;
        return Ok(0);
    };
    let listener = Listener::bind(address)?;
    let address = listener.address()?.to_string();
    if session.global.json {
        output::message("ready", json!({"address": address}));
    } else {
        output::note(&format!("serving at {address}"));
    }
    let options = ListenOptions {
        connections_max: usize::from(args.connections_max),
        backup: stored(session),
        level: ANSWERS_LEVEL,
    };
    listener.run(&repository, &options)?;
    Ok(0)
}
