//! One module per command, and code that commands share.

mod agent;
mod backup;
mod check;
mod cluster;
mod completion;
mod config;
mod copies;
mod delete;
mod diff;
mod due;
mod each;
mod files;
mod forget;
mod help;
mod import;
mod init;
mod key;
mod list;
mod made_here;
mod mount;
mod node;
mod optimize;
mod policy;
mod popular;
mod reclaim;
mod replicas;
mod replicate;
mod repo;
mod restore;
mod rounds;
mod series;
mod serve;
mod serve_replica;
mod stats;
mod status;
mod trees;
mod tune;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use clap::ArgMatches;
use serde_json::{Value, json};
use silt_format::{ByteSpan, Error, ErrorKind, Head, Level, LevelBytes, Snapshot, Volume};
use silt_location::{Cache, Opener, Prices, names_of};
use silt_storage::{DryRunStorage, Storage, Usage};
use silt_terminal::listing;
use siltstone::{Context, Found, FoundVolume, NotedEnv, Repository, Throttle, Throttled, Warning};

use self::config::Chosen;
use crate::Program;
use crate::cli::{Cli, Command, FilesCommand, Global, Popular, Repo, Rounds, Serve, volume_args};
pub use crate::failure::Failure;
use crate::failure::exit_code;
use crate::noted;
use crate::output;
use crate::progress::Reporter;
use crate::rate::Rate;
use crate::secrets;

/// The program's name and version, recorded in snapshots.
pub const PROGRAM: &str = concat!("silt ", env!("CARGO_PKG_VERSION"));

/// The priority of commands that yield to backups, lowered by this: a backup beside them then gets
/// 68 times their share of a processor.
const NICE_OF_WHAT_CAN_WAIT: i32 = 19;

/// The direction of a command's data.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Traffic {
    /// From sources to the repository.
    Backup,
    /// From the repository to a target.
    Restore,
    /// From the repository to the terminal: what it has, and not its data.
    List,
    /// Within the repository.
    Other,
}

/// The state that all commands use.
pub struct Session<'a> {
    pub global: &'a Global,
    pub reporter: Arc<Reporter>,
    pub context: Context,
    /// The environment of the context, for access to its notes.
    pub noted: Arc<NotedEnv>,
    pub opener: Opener,
    /// The profile of the configuration file.
    pub chosen: Chosen,
}

/// Runs a command and returns the exit status.
pub fn run(
    program: &Program,
    cli: &mut Cli,
    matches: &ArgMatches,
    interrupted: Arc<AtomicBool>,
) -> Result<u8, Failure> {
    // These need no settings, so that they work whatever the file is like.
    let needs_settings = !matches!(
        cli.command,
        Command::Help { .. }
            | Command::Completion { .. }
            | Command::Complete(_)
            | Command::Manual(_)
            | Command::Version
            | Command::Umount(_)
    );
    let chosen =
        if needs_settings { config::apply(&mut cli.global, matches)? } else { Chosen::default() };
    let cli = &*cli;
    // A tab is no run of the program.
    let log_file = cli.global.log_file.as_ref();
    if let Some(file) = log_file.filter(|_| !matches!(cli.command, Command::Complete(_))) {
        output::log_to(file)
            .map_err(|error| Error::io(format!("open the log {}", file.display()), error))?;
    }
    let global = &cli.global;
    let to_stdout = match &cli.command {
        Command::Restore(restore) => volume_args::is_stdin(&restore.target),
        Command::Files(files) => matches!(files.command, FilesCommand::Cat { .. }),
        Command::Cat(_) => true,
        Command::Dump(dump) => dump.output.is_none(),
        Command::Serve(Serve::Replica(serve)) => serve.listen.is_none(),
        _ => false,
    };
    if global.quiet {
        output::be_quiet();
    }
    let reporter = Arc::new(Reporter::new(global.json, global.quiet, to_stdout));
    let observer = Arc::clone(&reporter);
    let noted = Arc::new(noted::environment(global, interrupted));
    let mut context = Context::new(Arc::clone(&noted) as _, observer);
    context.memory_bytes = cli.global.memory << 20;
    let opener = Opener::new(global.connections, program.kinds);
    let session = Session { global, reporter, context, noted, opener, chosen };
    // These commands yield to backups unless --nice is given.
    let can_wait = matches!(
        cli.command,
        Command::Reclaim(_) | Command::Sweep(_) | Command::Popular(_) | Command::Optimize(_)
    );
    if let Some(steps) = global.nice.or(can_wait.then_some(NICE_OF_WHAT_CAN_WAIT)) {
        let lowered = rustix::process::nice(steps);
        lowered.map_err(|e| Error::io("lower the priority", e.into()))?;
    }
    let started_ns = session.context.env.now_ns();
    let result = dispatch(&session, program, &cli.command);
    session.reporter.finish();
    session.log_end(&result, started_ns);
    if let Some(requests) = session.opener.requests().filter(|_| result.is_ok() && !to_stdout) {
        print_requests(global, &requests)?;
    }
    result
}

/// Calls the module of a command.
fn dispatch(session: &Session<'_>, program: &Program, command: &Command) -> Result<u8, Failure> {
    match command {
        Command::Init(args) => init::run(session, args),
        Command::Backup(args) => backup::run(session, args),
        Command::Import(import) => import::run(session, import),
        Command::Snapshots(args) => list::snapshots(session, args),
        Command::Show(args) => list::show(session, args),
        Command::Ls(args) => list::ls(session, args),
        Command::Cat(args) => trees::cat(session, args),
        Command::Dump(args) => trees::dump(session, args),
        Command::Find(args) => trees::find(session, args),
        Command::Versions(args) => trees::versions(session, args),
        Command::Restore(args) => restore::run(session, args),
        Command::Files(args) => files::run(session, args),
        Command::Mount(args) => mount::run(session, args),
        Command::Umount(args) => mount::unmount(args),
        Command::Check(args) => check::run(session, args),
        Command::Copies(args) => copies::run(session, args),
        Command::Node(args) => node::run(session, args),
        Command::Repo(Repo::Probe { location }) => repo::probe(session, location),
        Command::Repo(Repo::Rollback(args)) => repo::rollback(session, args),
        Command::Diff(args) => diff::run(session, args),
        Command::Stats(args) => stats::run(session, args),
        Command::Status(args) => status::run(session, args),
        Command::Forget(args) => forget::run(session, args),
        Command::Delete(args) => delete::run(session, args),
        Command::Undelete(args) => delete::undelete(session, args),
        Command::Protect(args) => delete::protect(session, args, true),
        Command::Unprotect(args) => delete::protect(session, args, false),
        Command::Rename(args) => series::rename(session, args),
        Command::Remove(args) => series::remove(session, args),
        Command::Tag(args) => series::tag(session, args),
        Command::Reclaim(args) => reclaim::run(session, args),
        Command::Sweep(args) => reclaim::sweep(session, args),
        Command::Optimize(args) => optimize::run(session, args),
        Command::Popular(Popular::Plan(args)) => popular::plan(session, args),
        Command::Popular(Popular::Build(args)) => popular::build(session, args),
        Command::Rounds(Rounds::Plan(args)) => rounds::plan(session, args),
        Command::Serve(args) => serve::run(session, args),
        Command::Replicate(args) => replicate::run(session, args),
        Command::Agent(args) => agent::run(session, args),
        Command::Cluster(args) => cluster::run(session, args),
        Command::Recover { series } => reclaim::recover(session, series),
        Command::Tune(args) => tune::run(session, args),
        Command::Policy(args) => policy::run(session, args),
        Command::Key(args) => key::run(session, args),
        Command::Config(args) => Ok(config::run(session.global, &session.chosen, args)),
        Command::Completion { shell } => {
            completion::script(program, *shell);
            Ok(0)
        }
        Command::Complete(args) => {
            completion::candidates(program, args);
            Ok(0)
        }
        Command::Manual(args) => crate::cli::write_manual(args),
        Command::Help { words } => help::run(program.name, words),
        Command::Version => {
            version(session.global.json);
            Ok(0)
        }
    }
}

/// Prints the requests to object stores, and their cost if prices are known.
fn print_requests(global: &Global, requests: &Usage) -> Result<(), Failure> {
    let prices = global.s3_prices.as_deref().map(Prices::parse).transpose()?;
    let dollars = prices.map(|prices| prices.of(requests));
    let Usage { puts, gets, heads, lists, deletes, sent_bytes, received_bytes } = *requests;
    if global.json {
        let value = json!({
            "puts": puts, "gets": gets, "heads": heads, "lists": lists, "deletes": deletes,
            "sent_bytes": sent_bytes, "received_bytes": received_bytes, "cost_usd": dollars,
        });
        output::message("requests", value);
        return Ok(());
    }
    if global.quiet {
        return Ok(());
    }
    let cost = dollars.map_or_else(String::new, |dollars| format!("; {dollars:.6} USD"));
    output::note(&format!(
        "{}: {puts} put, {gets} get, {heads} head, {lists} list, {deletes} delete; {} sent, {} \
         received{cost}",
        output::count(puts + gets + heads + lists + deletes, "request"),
        output::bytes(sent_bytes),
        output::bytes(received_bytes),
    ));
    Ok(())
}

fn version(as_json: bool) {
    let format = silt_format::FORMAT_VERSION;
    if as_json {
        let version = env!("CARGO_PKG_VERSION");
        output::message("version", json!({"version": version, "format_version": format}));
    } else {
        output::line(&format!("{PROGRAM}, repository format {format}"));
    }
}

impl Session<'_> {
    /// Says how the command ended, in the log and with `--verbose`.
    fn log_end(&self, result: &Result<u8, Failure>, started_ns: i64) {
        let code = result.as_ref().map_or_else(Failure::exit_code, |code| *code);
        let ms = self.context.env.now_ns().saturating_sub(started_ns) / 1_000_000;
        let text = format!("exit status {code} after {}.{:03} s", ms / 1000, ms % 1000);
        self.detail(&text);
    }

    /// Prints what only `--verbose` asks for; the log has it always.
    fn detail(&self, text: &str) {
        if self.global.verbose && !self.global.json {
            output::note(text);
        } else {
            output::log(text);
        }
    }

    /// Returns the location of the repository.
    pub fn location(&self) -> Result<&str, Failure> {
        let none =
            || Failure::Usage("no repository: use -r PATH or set SILT_REPOSITORY".to_owned());
        self.global.repo.as_deref().filter(|repo| !repo.is_empty()).ok_or_else(none)
    }

    /// Opens the storage at a location, limited by `--limit-read` and `--limit-write`; a dry run
    /// writes nothing. In a backup, `--limit-read` applies to the sources instead; in a restore,
    /// `--limit-write` applies to the target instead.
    fn storage(
        &self,
        location: &str,
        traffic: Traffic,
        dry_run: bool,
    ) -> Result<Arc<dyn Storage>, Error> {
        let write = if traffic == Traffic::Restore { None } else { self.write_limit() };
        self.limited_storage(location, traffic, dry_run, write)
    }

    /// The same, with a limit of its own for what is written.
    fn limited_storage(
        &self,
        location: &str,
        traffic: Traffic,
        dry_run: bool,
        write: Option<Arc<Throttle>>,
    ) -> Result<Arc<dyn Storage>, Error> {
        let storage = self.opener.open_cached(location, &self.cache(traffic))?;
        let read = if traffic == Traffic::Backup { None } else { self.read_limit() };
        let storage: Arc<dyn Storage> = if read.is_none() && write.is_none() {
            storage
        } else {
            Arc::new(Throttled::new(storage).reads(read).writes(write))
        };
        Ok(if dry_run { Arc::new(DryRunStorage::new(storage)) } else { storage })
    }

    /// The cache for object stores. Checks and sweeps read the store itself.
    fn cache(&self, traffic: Traffic) -> Cache {
        let global = self.global;
        let home = || Some(global.home.as_ref()?.join(".cache"));
        let default = || Some(global.cache_home.clone().or_else(home)?.join("silt"));
        let is_used = !global.no_cache && traffic != Traffic::Other;
        let folder = global.cache_dir.clone().or_else(default).filter(|_| is_used);
        let is_for_readers = traffic == Traffic::Restore;
        Cache { folder, mib: global.cache_size, is_for_readers }
    }

    /// Prints a warning.
    pub fn warn(&self, message: &str) {
        self.context.warn(Warning::new(ErrorKind::Invalid, message));
    }

    /// Returns a random number.
    pub fn unique(&self) -> u64 {
        let mut bytes = [0; 8];
        self.context.env.entropy(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// The limit of `--limit-read`.
    pub fn read_limit(&self) -> Option<Arc<Throttle>> {
        self.global.limit_read.as_ref().map(|rate| Arc::new(self.limit(rate).catching_up()))
    }

    /// The limit of `--limit-write`. It stays even, as it may be that of a line.
    pub fn write_limit(&self) -> Option<Arc<Throttle>> {
        self.global.limit_write.as_ref().map(|limit| self.throttle(limit))
    }

    /// A limit of bytes per second, over every second.
    pub fn throttle(&self, limit: &Rate) -> Arc<Throttle> {
        Arc::new(self.limit(limit))
    }

    fn limit(&self, rate: &Rate) -> Throttle {
        Throttle::new(Arc::clone(&self.context.env), rate.bytes_per_s)
    }

    /// Opens the repository that the command line names, with all its places. A dry run writes to
    /// none of them.
    pub fn open(&self, traffic: Traffic, dry_run: bool) -> Result<Repository, Failure> {
        let here = self.location()?;
        if dry_run {
            self.noted.note_nothing();
        }
        let storage = self.storage(here, traffic, dry_run)?;
        let file = self.global.password_file.as_deref();
        let is_asked =
            self.global.password_command.is_none() && secrets::is_asked(&secrets::CURRENT, file);
        let repository = secrets::attempts(is_asked, || self.open_with_password(&storage))?;
        let open = |location: &str| self.storage(location, traffic, dry_run);
        let repository = repository.with_places_by(&names_of(here), &open)?;
        let key = repository.opened_by.map(|key| format!(", with key {}", short(key)));
        let id = &repository.id().to_string()[..8];
        self.detail(&format!(
            "opened repository {id} in {}{}",
            repository.location(),
            key.unwrap_or_default()
        ));
        Ok(repository)
    }

    fn open_with_password(&self, storage: &Arc<dyn Storage>) -> Result<Repository, Failure> {
        let mut usage = None;
        let opened = Repository::open(Arc::clone(storage), self.context.clone(), || {
            self.password(false).map_err(|failure| match failure {
                Failure::Error(error) => error,
                Failure::Usage(message) => {
                    usage = Some(message.clone());
                    Error::invalid(message)
                }
            })
        });
        match (opened, usage) {
            (Ok(repository), _) => Ok(repository),
            (Err(_), Some(message)) => Err(Failure::Usage(message)),
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Opens the repository for a change, with the administrator's password if it is append-only. A
    /// dry run writes nothing.
    pub fn repository_to_change(&self, dry_run: bool) -> Result<Repository, Failure> {
        let mut repository = self.open(Traffic::Other, dry_run)?;
        if repository.is_append_only() {
            let file = self.global.admin_password_file.as_deref();
            let is_asked = secrets::is_asked(&secrets::ADMINISTRATOR, file);
            secrets::attempts(
                is_asked,
                || Ok(repository.authorize(&self.admin_password(false)?)?),
            )?;
        }
        Ok(repository)
    }

    /// Returns the administrator's password; asks twice for a new one.
    pub fn admin_password(&self, is_new: bool) -> Result<Vec<u8>, Failure> {
        let file = self.global.admin_password_file.as_deref();
        let option = "--admin-password-file";
        secrets::password(
            &secrets::ADMINISTRATOR,
            file,
            option,
            "Administrator's password: ",
            is_new,
        )
    }

    /// Opens the repository that the command line names, to list what it has; what is in the cache
    /// is not read again.
    pub fn repository_to_list(&self) -> Result<Repository, Failure> {
        self.open(Traffic::List, false)
    }

    /// Opens the repository to read what storage has.
    pub fn repository(&self) -> Result<Repository, Failure> {
        self.open(Traffic::Other, false)
    }

    /// Returns the repository's password; asks twice for a new one.
    pub fn password(&self, is_new: bool) -> Result<Vec<u8>, Failure> {
        if let Some(command) = &self.global.password_command {
            return secrets::by_command(command);
        }
        let file = self.global.password_file.as_deref();
        let prompt = if is_new { "Password of the new repository: " } else { "Password: " };
        secrets::password(&secrets::CURRENT, file, "--password-file", prompt, is_new)
    }
}

/// Returns the volume with this name, or the only volume.
pub fn volume<'a>(found: &'a Found, name: Option<&str>) -> Result<FoundVolume<'a>, Failure> {
    let mut all = found.volumes();
    match (name, all.next(), all.next()) {
        (Some(name), _, _) => Ok(found.volume(name)?),
        (None, Some(only), None) => Ok(only),
        (None, first, _) => {
            let names: Vec<_> = found.volumes().map(|each| each.volume().name.as_str()).collect();
            Err(Failure::Usage(format!(
                "the snapshot has several volumes ({}); name one, as in {}@latest:{}",
                names.join(", "),
                found.head.shown(),
                first.map_or("root", |first| first.volume().name.as_str())
            )))
        }
    }
}

/// Returns the first eight digits of an id.
pub fn short(id: silt_format::Id) -> String {
    id.to_string()[..8].to_owned()
}

/// Ranges as JSON.
pub fn spans(spans: &[ByteSpan]) -> Value {
    spans.iter().map(|span| json!({"offset": span.offset, "length": span.length})).collect()
}

/// A snapshot as JSON.
pub fn snapshot_json(head: &Head, tags: &[String], snapshot: &Snapshot) -> Value {
    let mut value = made_json(head.shown(), tags, snapshot);
    value["own_name"] = head.alias.as_ref().map(|_| head.name.clone()).into();
    value
}

/// A snapshot that was just made, as JSON.
pub fn made_json(series: &str, tags: &[String], snapshot: &Snapshot) -> Value {
    let volumes: Vec<Value> = snapshot.volumes.iter().map(volume_json).collect();
    json!({
        "id": snapshot.id.to_string(),
        "short_id": short(snapshot.id),
        "series": series,
        "time": output::rfc3339(snapshot.time_ns),
        "duration_ms": snapshot.duration_ms,
        "parent": snapshot.parent.map(|id| id.to_string()),
        "copy_of": snapshot.origin.map(|origin| json!({
            "repository": origin.repository.to_string(),
            "snapshot": origin.snapshot.to_string(),
        })),
        "host": snapshot.host,
        "program": snapshot.program,
        "tags": tags,
        "stored_bytes": snapshot.stored_bytes(),
        "volumes": volumes,
    })
}

fn volume_json(volume: &Volume) -> Value {
    json!({
        "name": volume.name,
        "bytes": volume.bytes,
        "source": volume.source,
        "source_format": volume.source_format,
        "backing": volume.backing,
        "map": volume.map_proof.as_ref().map(|proof| json!({
            "unchanged_segments": proof.clean,
            "compared_segments": proof.compared,
            "proven_since": output::rfc3339(proof.since_ns()),
        })),
        "chunking": volume.chunking.to_string(),
        "stored_bytes": volume.stored_bytes,
        "levels": levels_json(&volume.levels),
        "kinds": trees::kinds_json(volume),
        "entries": trees::counts_json(volume),
        "unreadable": spans(&volume.unreadable),
    })
}

/// Bytes by level, as JSON.
pub fn levels_json(levels: &LevelBytes) -> Value {
    let pairs =
        Level::ALL.into_iter().map(|level| (level.name().to_owned(), json!(levels.get(level))));
    Value::Object(pairs.collect())
}

/// The default folder for temporary files.
fn temporary_folder() -> std::path::PathBuf {
    std::env::temp_dir()
}
