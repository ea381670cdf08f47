//! `silt replicate`.

use std::io::Write;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::json;
use silt_format::replica::ReplicaRole;
use silt_format::{ErrorKind, RepositoryId};
use silt_location::names_of;
use silt_replicate::{
    Connection, Destination, Line, Outcome, ReplicateOptions, ReplicateReport, SnapshotOutcome,
    Traffic as LineTraffic, foreign, make_replica, replicate, replicate_over,
};
use siltstone::{Administrator, BackupOptions, Protection, Repository, Throttle};

use super::init::label;
use super::replicas::{self, Attempt, Records, ReplicaSettings, Target};
use super::{Failure, PROGRAM, Session, Traffic, short};
use crate::cli::Replicate;
use crate::window::Window;
use crate::{output, secrets};

/// Some snapshots were not replicated.
const INCOMPLETE: u8 = 3;
/// The window of the replica is closed; the rest follows when it opens.
const POSTPONED: u8 = 7;
/// The user asked to stop.
const INTERRUPTED: u8 = 130;
/// Some snapshots are damaged here.
const DAMAGE_FOUND: u8 = 5;

pub fn run(session: &Session<'_>, args: &Replicate) -> Result<u8, Failure> {
    let targets = replicas::targets(session, args)?;
    let destinations: Vec<Destination> = targets
        .iter()
        .map(|target| Destination::parse(&target.settings.to))
        .collect::<Result<_, _>>()?;
    require_sound(args, &targets, &destinations)?;
    let repository = session.open(Traffic::Restore, false)?;
    let records = Records::new(session, &repository);
    if args.forget {
        return forget(&records, &targets);
    }
    let mut worst = 0;
    for (target, to) in targets.iter().zip(&destinations) {
        let failure = match bring(session, &repository, (target, to), args) {
            Ok(status) => {
                worst = worse(worst, status);
                continue;
            }
            Err(failure) => failure,
        };
        if !args.dry_run {
            records.note(session, target, &Attempt::Failed(&failure));
        }
        let code = failure.exit_code();
        // One that is away does not keep the next one from being done.
        if targets.len() == 1 || code == INTERRUPTED {
            return Err(failure);
        }
        session.reporter.finish();
        let message = format!("replica {}: {failure}", target.shown());
        output::error(session.global.json, &message, code);
        worst = worse(worst, code);
    }
    Ok(worst)
}

fn is_foreign(args: &Replicate, target: &Target) -> bool {
    args.foreign || target.settings.foreign
}

/// Fails unless the destinations can do what is asked for.
fn require_sound(
    args: &Replicate,
    targets: &[Target],
    destinations: &[Destination],
) -> Result<(), Failure> {
    for (target, to) in targets.iter().zip(destinations) {
        if is_foreign(args, target) && !matches!(to, Destination::Location(_)) {
            let message = "a replica with another secret is in a folder or bucket that this \
                           machine reaches";
            return Err(Failure::Usage(message.to_owned()));
        }
        if args.init && matches!(to, Destination::Tcp(_)) {
            let message = "a server on a TCP port has a replica already, by whose secret it knows \
                           its sources; make the replica over ssh, or in a folder or bucket";
            return Err(Failure::Usage(message.to_owned()));
        }
    }
    Ok(())
}

/// The exit status of several replications: damage, then a failure, then snapshots that were not
/// sent, then a rest that follows later.
fn worse(one: u8, other: u8) -> u8 {
    let rank = |status: u8| match status {
        0 => 0,
        POSTPONED => 1,
        INCOMPLETE => 2,
        DAMAGE_FOUND => 4,
        _ => 3,
    };
    if rank(other) > rank(one) { other } else { one }
}

/// Forgets replicas that are no longer used.
fn forget(records: &Records<'_>, targets: &[Target]) -> Result<u8, Failure> {
    for target in targets {
        let shown = target.shown();
        if records.forget(&target.settings)? {
            output::done(&format!("Forgot the replica {shown}."));
        } else {
            output::done(&format!("Nothing is recorded of the replica {shown}."));
        }
    }
    Ok(0)
}

/// Replicates to one replica; returns the exit status.
fn bring(
    session: &Session<'_>,
    repository: &Repository,
    (target, to): (&Target, &Destination),
    args: &Replicate,
) -> Result<u8, Failure> {
    let mut options = target.settings.options();
    (options.dry_run, options.memory_bytes) = (args.dry_run, session.global.memory << 20);
    // The profile may name a series that is backed up later.
    options.may_be_absent = !target.is_partial;
    if let Some(window) = target.settings.window.as_ref().filter(|_| !args.dry_run) {
        options.until_ns = window.end_ns(session.context.env.now_ns(), &TimeZone::system());
        if options.until_ns.is_none() {
            postponed(session, target, window);
            return Ok(POSTPONED);
        }
    }
    options.foreign = is_foreign(args, target);
    options.jobs = session.global.jobs;
    let mut reads_anew = false;
    let (report, traffic, replica) = if let Destination::Location(location) = to {
        let replica = open_replica(session, repository, (target, location), args)?;
        let why = foreign(repository, &replica)?.filter(|_| options.foreign);
        reads_anew = why.is_some();
        if let Some(why) = why.filter(|_| !session.global.json) {
            output::note(&format!("silt: {why}"));
        }
        (replicate(repository, &replica, options, stored(session))?, None, replica.id())
    } else {
        let (report, traffic, replica) = send(session, repository, (to, target), options, args)?;
        (report, Some(traffic), replica)
    };
    session.reporter.finish();
    if !args.dry_run {
        let attempt = Attempt::Ended(replica, &report);
        Records::new(session, repository).note(session, target, &attempt);
    }
    print(session, target, &report, (traffic, reads_anew));
    if let Some(window) = target.settings.window.as_ref().filter(|_| report.is_postponed()) {
        postponed(session, target, window);
    }
    Ok(status(&report))
}

/// Says that a window is closed, and when it opens.
fn postponed(session: &Session<'_>, target: &Target, window: &Window) {
    let opens_ns = window.next_begin_ns(session.context.env.now_ns(), &TimeZone::system());
    if session.global.json {
        let value = json!({
            "replica": target.name,
            "destination": target.settings.to,
            "window": window,
            "opens": opens_ns.map(output::rfc3339),
        });
        output::message("replication_postponed", value);
        return;
    }
    let opens = opens_ns.map_or_else(String::new, |ns| format!(" until {}", output::time(ns)));
    output::note(&format!(
        "silt: replica {}: the window {window} is closed{opens}; what is left is sent then",
        target.shown()
    ));
}

pub(super) fn stored(session: &Session<'_>) -> BackupOptions {
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
    (to, target): (&Destination, &Target),
    options: ReplicateOptions,
    args: &Replicate,
) -> Result<(ReplicateReport, LineTraffic, RepositoryId), Failure> {
    let settings = &target.settings;
    let program = settings.remote_program.as_deref().unwrap_or("silt");
    let init = if args.init { " --init" } else { "" };
    let command = format!("{program} serve replica{init}");
    let (line, mut stream) = Line::open(repository, to, &command)?;
    if let Some(limit) = &settings.limit_write {
        let throttle = session.throttle(limit);
        stream.writer = Box::new(Limited { to: stream.writer, throttle });
    }
    let protection = || protection(session, repository, settings, args);
    let made = if args.init { make_replica(repository, &mut stream, protection) } else { Ok(None) };
    let sent = made.and_then(|made| {
        if let Some(id) = made {
            made_replica(session, id, &settings.to);
        } else if args.append_only {
            output::note("silt: the replica was made before: --append-only changes nothing there");
        }
        let role = ReplicaRole::Source;
        let mut connection = Connection::open(repository, role, stream, settings.level())?;
        if settings.compression.is_none() {
            connection.adapt();
        }
        let report = replicate_over(repository, options, &mut connection)?;
        Ok((report, connection.traffic(), connection.peer()))
    });
    let ended = line.end();
    match (sent, ended) {
        // Writing to the line fails in the middle of a record if the user asks to stop.
        (Err(_), _) if session.context.env.is_interrupted() => {
            Err(silt_format::Error::new(ErrorKind::Interrupted, "interrupted").into())
        }
        // The program has said why it ended, or ends because this one does.
        (Err(Failure::Error(error)), Err(ended)) if error.kind() == ErrorKind::Unavailable => {
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
    (target, location): (&Target, &str),
    args: &Replicate,
) -> Result<Repository, Failure> {
    let settings = &target.settings;
    let open = |location: &str| {
        let limit = settings.limit_write.as_ref().map(|limit| session.throttle(limit));
        session.limited_storage(location, Traffic::Backup, args.dry_run, limit)
    };
    let storage = open(location);
    let password = |is_new: bool| password(settings, args, is_new);
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
        let file = args.to_password_file.as_deref().or(settings.password_file.as_deref());
        let is_asked =
            secrets::is_asked(&secrets::REPLICA, file) && settings.password_command.is_none();
        let repository = secrets::attempts(is_asked, attempt)?;
        Ok(repository.with_places_by(&names_of(location), &open)?)
    });
    match opened {
        Err(Failure::Error(error)) if is_missing(&error) && args.init => {}
        Err(Failure::Error(error)) if is_missing(&error) => {
            let names: Vec<_> = replicas::of_profile(session).into_keys().collect();
            let names = match &names[..] {
                [] => String::new(),
                _ if target.name.is_some() => String::new(),
                names => format!("; the profile has the replicas {}", names.join(", ")),
            };
            let message = format!("there is no replica in {location}; --init makes one{names}");
            return Err(Failure::Usage(message));
        }
        Ok(replica) if args.append_only && !replica.is_append_only() => {
            let message = format!("the replica in {location} was made before, not append-only");
            return Err(Failure::Usage(message));
        }
        opened => return opened,
    }
    let (protection, administrator) = protection(session, source, settings, args)?;
    let storage = session.opener.create(location, session.unique())?;
    let context = session.context.clone();
    let replica = source.init_replica(storage, context, &protection, administrator.as_ref())?;
    made_replica(session, replica.id(), location);
    Ok(replica)
}

/// Whether there is no repository.
pub(super) fn is_missing(error: &silt_format::Error) -> bool {
    matches!(error.kind(), ErrorKind::NoRepository | ErrorKind::NotFound)
}

/// The replica's password. One that the command line or the environment names leaves out both of
/// the profile.
fn password(
    settings: &ReplicaSettings,
    args: &Replicate,
    is_new: bool,
) -> Result<Vec<u8>, Failure> {
    let (given, variables) = (args.to_password_file.as_deref(), &secrets::REPLICA);
    let is_given = !secrets::is_asked(variables, given);
    if let Some(command) = settings.password_command.as_deref().filter(|_| !is_given) {
        return secrets::by_command(command);
    }
    let of_profile = settings.password_file.as_deref().filter(|_| !is_given);
    let prompt = if is_new { "Password of the new replica: " } else { "Replica's password: " };
    secrets::password(variables, given.or(of_profile), "--to-password-file", prompt, is_new)
}

/// The protection of a new replica, and its administrator if it is to be append-only.
fn protection(
    session: &Session<'_>,
    source: &Repository,
    settings: &ReplicaSettings,
    args: &Replicate,
) -> Result<(Protection, Option<Administrator>), Failure> {
    let (cost, label) = (args.cost.to_kdf()?, label(session, "replica"));
    let protection = if source.is_encrypted() {
        let password = password(settings, args, true)?;
        Protection::Password { password, cost, label: label.clone() }
    } else {
        Protection::None
    };
    let administrator = if args.append_only {
        let password = session.admin_password(true)?;
        Some(Administrator { password, cost, label })
    } else {
        None
    };
    Ok((protection, administrator))
}

fn made_replica(session: &Session<'_>, id: RepositoryId, place: &str) {
    if !session.global.json {
        output::note(&format!("made the replica {} in {place}", &id.to_string()[..8]));
    }
}

fn status(report: &ReplicateReport) -> u8 {
    let is_damaged = |snapshot: &SnapshotOutcome| {
        matches!(snapshot.outcome, Outcome::Failed(ErrorKind::Corrupt, _))
    };
    if report.snapshots.iter().any(is_damaged) {
        return DAMAGE_FOUND;
    }
    match report.is_complete() {
        false => INCOMPLETE,
        true if report.is_postponed() => POSTPONED,
        true => 0,
    }
}

fn print(
    session: &Session<'_>,
    target: &Target,
    report: &ReplicateReport,
    (traffic, reads_anew): (Option<LineTraffic>, bool),
) {
    let sent = |snapshot: &&SnapshotOutcome| matches!(snapshot.outcome, Outcome::Sent(_));
    let sent_count = report.snapshots.iter().filter(sent).count();
    if session.global.json {
        report.snapshots.iter().for_each(|it| print_json(target, it));
        let refused = report.refused.iter();
        let refused = refused.map(|(series, reason)| json!({"series": series, "reason": reason}));
        let value = json!({
            "replica": target.name,
            "destination": target.settings.to,
            "sent": sent_count,
            "present": report.present,
            "foreign": reads_anew,
            "refused": refused.collect::<Vec<_>>(),
            "sent_bytes": traffic.map(|traffic| traffic.sent.total()),
            "received_bytes": traffic.map(|traffic| traffic.received.total()),
            "phases": traffic.map(replicas::phases),
        });
        output::message("replication", value);
        return;
    }
    for snapshot in &report.snapshots {
        let SnapshotOutcome { series, to, snapshot: id, time_ns, bytes, .. } = snapshot;
        let name = if series == to { series.clone() } else { format!("{series} as {to}") };
        let name = format!("{name} {} of {}", short(*id), output::time(*time_ns));
        let size = output::bytes(*bytes);
        match &snapshot.outcome {
            Outcome::Planned => {
                let new = snapshot.new_bytes.map(output::bytes);
                let new = new.map_or_else(String::new, |new| format!(", about {new} new"));
                output::done(&format!("would send {name} ({size}{new})"));
            }
            Outcome::Sent(_) => {
                let new = output::bytes(snapshot.sent_bytes);
                let reread = output::bytes(snapshot.reread_bytes);
                let reread = if reads_anew { format!("; {reread} reread") } else { String::new() };
                let deltas = match snapshot.delta_bytes {
                    0 => String::new(),
                    bytes => format!(", {} of it as deltas", output::bytes(bytes)),
                };
                output::done(&format!("sent {name}: {new} new of {size}{deltas}{reread}"));
            }
            Outcome::Postponed => output::done(&format!("{name} follows later")),
            Outcome::Gone => output::done(&format!("{name} was deleted meanwhile")),
            Outcome::Failed(_, why) => output::note(&format!("silt: {name} was not sent: {why}")),
        }
    }
    for (series, why) in &report.refused {
        output::note(&format!("silt: {series} was not replicated: {why}"));
    }
    let link = traffic.map_or_else(String::new, |traffic| {
        let (out, back) =
            (output::bytes(traffic.sent.total()), output::bytes(traffic.received.total()));
        format!("; {out} sent, {back} received")
    });
    let site = target.name.as_ref().map_or_else(String::new, |name| format!(" to {name}"));
    let is_plan = |it: &SnapshotOutcome| matches!(it.outcome, Outcome::Planned);
    let count = |count: usize| output::count(silt_format::number::to_u64(count), "snapshot");
    if report.snapshots.is_empty() && report.refused.is_empty() {
        output::done(&format!("Nothing to send{site}{link}."));
    } else if report.snapshots.iter().any(is_plan) {
        let new: Option<u64> = report.snapshots.iter().map(|it| it.new_bytes).sum();
        let new = new.map_or_else(String::new, |new| format!(", about {} new", output::bytes(new)));
        output::done(&format!("Would send {}{site}{new}.", count(report.snapshots.len())));
    } else {
        output::done(&format!("Replicated {}{site}{link}.", count(sent_count)));
    }
}

fn print_json(target: &Target, sent: &SnapshotOutcome) {
    let SnapshotOutcome { series, to, snapshot, time_ns, bytes, outcome, .. } = sent;
    let (name, id, error) = match outcome {
        Outcome::Postponed => ("postponed", None, None),
        Outcome::Planned => ("planned", None, None),
        Outcome::Sent(id) => ("sent", Some(id.to_string()), None),
        Outcome::Gone => ("gone", None, None),
        Outcome::Failed(_, why) => ("failed", None, Some(why)),
    };
    let value = json!({
        "replica": target.name,
        "series": series,
        "to": to,
        "snapshot": snapshot.to_string(),
        "time": output::rfc3339(*time_ns),
        "bytes": bytes,
        "new_bytes": sent.new_bytes,
        "sent_bytes": sent.sent_bytes,
        "delta_bytes": sent.delta_bytes,
        "reread_bytes": sent.reread_bytes,
        "outcome": name,
        "id": id,
        "error": error,
    });
    output::message("replicated", value);
}
