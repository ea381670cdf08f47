//! `silt backup`.

use std::collections::HashMap;
use std::io::Read;
use std::path::Path;

use serde_json::json;
use silt_agent::Lookups;
use silt_format::{Chunking, Error, ErrorKind, Level, ResultExt, SEGMENT_BYTES, Snapshot, Volume};
use silt_source::{
    ChangedMap, FormatChoice, MapForm, SourceOptions, StreamSource, VolumeSource, open_source,
};
use silt_tree::{TreeSource, Walk};
use siltstone::{
    Activity, BackupOptions, BackupReport, BackupSession, Repository, Taken, Throttled, TreeOptions,
};

use super::made_here::MadeHere;
use super::volume_args::{PathText, VolumeArg, changed_args, changed_context, is_stdin};
use super::{Failure, PROGRAM, Session, Traffic, due, forget, made_json, rounds, short, trees};
use crate::cli::{Backup, ChangedForm, SourceFormat};
use crate::failure::exit_code;
use crate::{output, snapshot_name};

/// Where a volume comes from.
enum Source<'a> {
    Disk(Throttled<Box<dyn VolumeSource>>),
    Tree(&'a Path),
}

impl Source<'_> {
    fn size(&self) -> Option<u64> {
        match self {
            Self::Disk(disk) => disk.info().size,
            Self::Tree(_) => None,
        }
    }
}

pub fn run(session: &Session<'_>, args: &Backup) -> Result<u8, Failure> {
    let Some(series) = args.series.as_ref().filter(|_| !args.volumes.is_empty()) else {
        return rounds::run(session, args);
    };
    // Before commands run and sources are opened: there may be nothing to do.
    let mut opened = None;
    if let Some(since_ns) = due::since(args)? {
        let repository = repository(session, args)?;
        let own_name = MadeHere::new(session, &repository).own_name(&repository, series)?;
        if due::is_done(session, &repository, &own_name, since_ns)? {
            return Ok(0);
        }
        opened = Some(repository);
    }
    let taken = taken_now(session);
    if let Some(command) = &args.before {
        rounds::run_hook(series, "before", command)?;
    }
    let result = run_one(session, args, (series, taken), opened);
    let after = args.after.as_ref().map(|command| rounds::run_hook(series, "after", command));
    match (result, after) {
        (Ok(0), Some(Err(error))) => Err(error.into()),
        // What went wrong first decides the exit status.
        (result, Some(Err(error))) => {
            session.reporter.finish();
            output::error(session.global.json, &error.to_string(), exit_code(&error));
            result
        }
        (result, _) => result,
    }
}

/// Backs up one series, to the repository if it is open already.
fn run_one(
    session: &Session<'_>,
    args: &Backup,
    (series, taken): (&str, Taken),
    opened: Option<Repository>,
) -> Result<u8, Failure> {
    let chunking = args.chunking.as_deref().map(snapshot_name::parse_chunking).transpose()?;
    let volumes: Vec<VolumeArg<'_>> =
        args.volumes.iter().map(|text| VolumeArg::parse(text)).collect();
    let changed = changed_args(&args.changed, &volumes)?;
    let from_stdin = volumes.iter().filter(|volume| volume.is_stdin()).count();
    if from_stdin + args.tree.lists().filter(|list| is_stdin(list)).count() > 1 {
        let message = "only one volume or list can come from standard input".to_owned();
        return Err(Failure::Usage(message));
    }
    if args.stdin_command.is_some() && !volumes.iter().any(VolumeArg::is_stdin) {
        return Err(Failure::Usage("--stdin-command needs a volume whose path is -".to_owned()));
    }
    let roots: Vec<_> = volumes.iter().map(|it| it.path).filter(|it| trees::is_tree(it)).collect();
    let tree_options = args.tree.options(&roots, args.dry_run)?;
    // Sources are opened first: a mistyped path should not take a lease.
    let sources = open_sources(session, args, &volumes, &changed)?;
    let repository = opened.map_or_else(|| repository(session, args), Ok)?;
    let Lookups { places, nodes: node_answers } = lookups(session, args, &repository);
    let looked_up = BackupOptions { places, node_answers, ..options(session, args, chunking) };
    let options = BackupOptions { taken, due_since_ns: due::since(args)?, ..looked_up };
    let made_here = MadeHere::new(session, &repository);
    let own_name = made_here.own_name(&repository, series)?;
    let mut backup = match repository.backup(&own_name, options) {
        Err(error) if due::is_done_meanwhile(session, (&repository, args), &own_name, &error) => {
            return Ok(0);
        }
        begun => begun?,
    };
    let only = match backup.parent().map(|parent| parent.volumes.as_slice()) {
        Some([only]) if volumes.len() == 1 => Some(only.name.clone()),
        _ => None,
    };
    let sizes: Vec<_> = sources.iter().map(Source::size).collect();
    session.reporter.expect(Activity::Backup, &sizes);
    let mut made = rounds::Series::default();
    for (index, (volume, source)) in volumes.iter().zip(&sources).enumerate() {
        let name = match (volume.name, &only) {
            (Some(name), _) => name.to_owned(),
            // A series' only volume keeps its name if its file has another name.
            (None, Some(only)) => only.clone(),
            (None, None) => volume.default_name(),
        };
        let map = changed.get(&index);
        match source {
            Source::Tree(root) => add_tree(session, &mut backup, (&name, root), &tree_options)?,
            Source::Disk(disk) => {
                let grain = silt_format::number::to_u64(SEGMENT_BYTES);
                let map = match map {
                    Some(map) if changed_context(map).is_some() => disk.changed_map(grain)?,
                    Some(path) => Some(read_map(path, disk, args)?),
                    None => None,
                };
                backup.add_volume(&name, disk, map.as_ref())?;
            }
        }
        made.volumes.insert(name, PathText(volume.path.to_owned()));
    }
    warn_of_missing(session, backup.parent(), &made);
    let report = backup.finish()?;
    session.reporter.finish();
    if sources.iter().any(|source| matches!(source, Source::Tree(_))) {
        made.tree = Some(args.tree.clone());
    }
    if !args.dry_run {
        made_here.note(repository.series_id(&own_name), &own_name, &made);
    }
    let code = conclude(session, args, &report);
    let forgotten =
        if args.forget { forget::after_backup(session, &repository, &own_name)? } else { 0 };
    Ok(if code == 0 { forgotten } else { code })
}

/// Backs up a directory as a volume.
fn add_tree(
    session: &Session<'_>,
    backup: &mut BackupSession<'_>,
    (name, root): (&str, &Path),
    options: &TreeOptions,
) -> Result<(), Error> {
    let walk: Box<dyn TreeSource> = Box::new(Walk::open(root, &options.rules)?);
    let source = Box::new(Throttled::new(walk).reads(session.read_limit()));
    backup.add_tree_from(name, &root.display().to_string(), source, options).map(drop)
}

/// Opens the sources of a snapshot.
fn open_sources<'a>(
    session: &Session<'_>,
    args: &Backup,
    volumes: &[VolumeArg<'a>],
    changed: &HashMap<usize, &Path>,
) -> Result<Vec<Source<'a>>, Failure> {
    let limit = session.read_limit();
    let mut sources = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let map = changed.get(&index);
        if trees::is_tree(volume.path) {
            if map.is_some() {
                let shown = volume.path.display();
                let message = format!("--changed is for disks, but {shown} is a directory");
                return Err(Failure::Usage(message));
            }
            sources.push(Source::Tree(volume.path));
            continue;
        }
        warn_of_mount(session, volume.path);
        let source = open_with(volume.path, args, map.and_then(|map| changed_context(map)))?;
        sources.push(Source::Disk(Throttled::new(source).reads(limit.clone())));
    }
    Ok(sources)
}

/// Warns of volumes that the last snapshot has and this one lacks: most likely they were forgotten.
fn warn_of_missing(session: &Session<'_>, parent: Option<&Snapshot>, made: &rounds::Series) {
    let before = parent.into_iter().flat_map(|parent| &parent.volumes);
    for volume in before.filter(|volume| !made.volumes.contains_key(&volume.name)) {
        session.warn(&format!(
            "volume '{}' of the last snapshot is missing from this one; name it too if it still \
             exists",
            volume.name
        ));
    }
}

/// Warns if a device is mounted: its content changes while it is read.
pub fn warn_of_mount(session: &Session<'_>, path: &Path) {
    let Ok(device) = std::fs::canonicalize(path) else { return };
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mut mounts = mounts.lines().filter_map(|line| line.split_once(' '));
    let mount =
        mounts.find(|(from, _)| std::fs::canonicalize(from).is_ok_and(|from| from == device));
    if let Some((_, rest)) = mount.filter(|_| device.starts_with("/dev")) {
        let mounted = rest.split(' ').next().unwrap_or_default();
        session.warn(&format!(
            "{} is mounted on {mounted}: if it changes while it is read, the backup is not of a \
             single moment; take a snapshot first",
            path.display()
        ));
    }
}

/// The output of a shell command; reading its end fails if the command failed.
struct CommandOutput {
    command: String,
    child: std::process::Child,
}

impl CommandOutput {
    fn start(command: &str) -> Result<Self, Error> {
        let child = rounds::shell(command)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .map_err(|error| Error::io(format!("start the command `{command}`"), error))?;
        Ok(Self { command: command.to_owned(), child })
    }
}

impl Read for CommandOutput {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let Some(stdout) = &mut self.child.stdout else { return Ok(0) };
        let count = stdout.read(buf)?;
        if count > 0 || buf.is_empty() {
            return Ok(count);
        }
        let status = self.child.wait()?;
        if status.success() {
            return Ok(0);
        }
        let message = format!("the command `{}` failed: {status}", self.command);
        Err(std::io::Error::other(message))
    }
}

/// Opens the repository to back up to.
pub fn repository(session: &Session<'_>, args: &Backup) -> Result<Repository, Failure> {
    let mut repository = session.open(Traffic::Backup, args.dry_run)?;
    if let Some(level) = args.compression.or(session.chosen.profile.compression) {
        repository.config.zstd_level = level;
    }
    if args.forget {
        forget::require_right(&repository)?;
    }
    Ok(repository)
}

pub fn options(session: &Session<'_>, args: &Backup, chunking: Option<Chunking>) -> BackupOptions {
    BackupOptions {
        tags: args.tag.clone(),
        chunking,
        jobs: session.global.jobs,
        memory_bytes: session.global.memory << 20,
        no_parent: args.no_parent,
        no_share: args.no_share,
        program: PROGRAM.to_owned(),
        ..BackupOptions::default()
    }
}

/// Who is asked over the bus for chunks: the agents that are named, and the processes of storage
/// nodes. Without them, the storage has all that is asked for.
pub fn lookups(session: &Session<'_>, args: &Backup, repository: &Repository) -> Lookups {
    let (agent, host) = (session.chosen.agent.as_ref(), &session.context.env.process().host);
    Lookups::of_agent(agent, host, repository, &args.index_hosts).unwrap_or_else(|failure| {
        session.detail(&failure.to_string());
        Lookups::default()
    })
}

/// The time of a snapshot whose volumes are opened from now on. It may have to wait for the series
/// or for the other series of a round, and must not seem newer than what it holds.
pub fn taken_now(session: &Session<'_>) -> Taken {
    Taken { time_ns: Some(session.context.env.now_ns()), ..Taken::default() }
}

/// Opens a volume, even if another program has it open for writing.
pub fn open_any(path: &Path) -> Result<Box<dyn VolumeSource>, Error> {
    open_source(path, &SourceOptions { allow_in_use: true, ..SourceOptions::default() })
}

/// Opens a volume with the options of the command line.
pub fn open(path: &Path, args: &Backup) -> Result<Box<dyn VolumeSource>, Error> {
    open_with(path, args, None)
}

/// The same; an NBD server is also asked for a metadata context that tells changes.
fn open_with(
    path: &Path,
    args: &Backup,
    context: Option<&str>,
) -> Result<Box<dyn VolumeSource>, Error> {
    if is_stdin(path) {
        let stream: Box<dyn Read + Send> = match &args.stdin_command {
            Some(command) => Box::new(CommandOutput::start(command)?),
            None => Box::new(std::io::stdin()),
        };
        return Ok(Box::new(StreamSource::new(stream)));
    }
    let format = match args.format {
        SourceFormat::Auto => FormatChoice::Auto,
        SourceFormat::Raw => FormatChoice::Raw,
        SourceFormat::Qcow2 => FormatChoice::Qcow2,
    };
    let allow_backing = args.allow_backing.clone();
    let changed_context = context.map(str::to_owned);
    let options =
        SourceOptions { format, allow_in_use: args.allow_in_use, allow_backing, changed_context };
    open_source(path, &options).map_err(|error| match error.kind() {
        // Exit status 5 is for damage in the repository.
        ErrorKind::Corrupt => error.with_kind(ErrorKind::Invalid),
        _ => error,
    })
}

fn read_map(path: &Path, source: &dyn VolumeSource, args: &Backup) -> Result<ChangedMap, Failure> {
    let Some(size) = source.info().size else {
        let message = "a changed-blocks map needs a source of known size".to_owned();
        return Err(Failure::Usage(message));
    };
    let reader: Box<dyn Read> = if is_stdin(path) {
        Box::new(std::io::stdin())
    } else {
        let file = std::fs::File::open(path);
        Box::new(
            file.map_err(|error| Error::io(format!("open the map {}", path.display()), error))?,
        )
    };
    let reader = std::io::BufReader::new(reader);
    let grain = silt_format::number::to_u64(SEGMENT_BYTES);
    let form = args.changed_form.map(|form| match form {
        ChangedForm::Qemu => MapForm::QemuImg,
        ChangedForm::Nbd => MapForm::NbdInfo,
        ChangedForm::Rbd => MapForm::RbdDiff,
    });
    Ok(ChangedMap::parse(reader, size, grain, form)
        .context(|| format!("read the map {}", path.display()))?)
}

/// Prints the summary and returns the exit status.
pub fn conclude(session: &Session<'_>, args: &Backup, report: &BackupReport) -> u8 {
    let snapshot = &report.snapshot;
    let unreadable: u64 =
        snapshot.volumes.iter().flat_map(|volume| &volume.unreadable).map(|span| span.length).sum();
    let trees = snapshot.volumes.iter().filter_map(Volume::tree);
    let missed: u64 = trees.map(|tree| tree.counts.unreadable).sum();
    if session.global.json {
        let mut value = made_json(&report.series, &report.tags, snapshot);
        value["dry_run"] = json!(args.dry_run);
        value["written_bytes"] = json!(report.stored_bytes);
        value["map_distrusted"] = json!(report.map_distrusted);
        value["recognized_segments"] = json!(report.recognized_segments);
        value["adopted_containers"] = json!(report.adopted_containers);
        value["unreadable_bytes"] = json!(unreadable);
        value["unreadable_entries"] = json!(missed);
        output::message("summary", value);
    } else {
        print_summary(args, report);
    }
    if unreadable > 0 {
        let lost = output::bytes(unreadable);
        output::note(&format!(
            "silt: {lost} could not be read and were stored as zeros; `silt show {}` lists the \
             ranges",
            short(snapshot.id)
        ));
        return 3;
    }
    if missed > 0 {
        let entries = output::count(missed, "entry");
        output::note(&format!(
            "silt: {entries} could not be read completely; the snapshot lacks the rest"
        ));
        return 3;
    }
    if report.map_distrusted { 4 } else { 0 }
}

fn print_summary(args: &Backup, report: &BackupReport) {
    let print = |text: &str| output::outcome(args.dry_run, text);
    let snapshot = &report.snapshot;
    let print_trees = || {
        for volume in &snapshot.volumes {
            let Some(tree) = volume.tree() else { continue };
            print(&format!("  '{}': {}", volume.name, trees::counts_text(tree)));
        }
    };
    let levels = snapshot.levels();
    let zeros = levels.get(Level::Zero);
    let read = levels.total() - zeros;
    let seconds = snapshot.duration_ms.max(1);
    let bytes = snapshot.volumes.iter().map(Volume::logical_bytes).sum::<u64>();
    let rate = u128::from(bytes) * 1000 / u128::from(seconds);
    // Files of trees that did not change are not read.
    let has_tree = snapshot.volumes.iter().any(|volume| volume.tree().is_some());
    let part = if has_tree { "read" } else { "data" };
    let what = if args.dry_run { "Would make snapshot of" } else { "Made snapshot of" };
    let parent =
        snapshot.parent.map_or("no parent".to_owned(), |id| format!("parent {}", short(id)));
    let id = if args.dry_run { String::new() } else { format!(" {}", short(snapshot.id)) };
    print(&format!("{what} {}:{id} ({parent})", report.series));
    print(&format!(
        "  {} in {}, {} of it {part}; {}.{:03} s, {}/s",
        output::bytes(bytes),
        output::count(snapshot.volumes.len(), "volume"),
        output::bytes(read),
        seconds / 1000,
        seconds % 1000,
        output::bytes(u64::try_from(rate).unwrap_or(u64::MAX)),
    ));
    print(&format!(
        "  {} new ({}), {} written",
        output::bytes(levels.get(Level::New)),
        output::percent(levels.get(Level::New), read),
        output::bytes(report.stored_bytes),
    ));
    for (volume, proof) in
        snapshot.volumes.iter().filter_map(|volume| Some((volume, volume.map_proof.as_ref()?)))
    {
        print(&format!(
            "  volume '{}': {} unchanged according to the map, {} of them compared",
            volume.name,
            output::count(proof.clean, "segment"),
            proof.compared
        ));
    }
    if report.adopted_containers > 0 {
        let containers = output::count(report.adopted_containers, "container");
        print(&format!("  reused {containers} of an interrupted backup"));
    }
    print_trees();
}
