//! `silt import`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};
use silt_format::tree::Timestamp;
use silt_format::{Error, ErrorKind};
use silt_import::{
    Origin, OriginFilter, OriginSnapshot, StageOptions, StagedTree, decompressed, mixed_hosts,
    stage,
};
use silt_tree::Trust;
use siltstone::{BackupOptions, BackupReport, Repository, Taken, Throttled, TreeOptions};

use super::trees::failures_json;
use super::{Failure, PROGRAM, Session, Traffic, made_json, short, temporary_folder};
use crate::cli::{Import, ImportHow, ImportTar};
use crate::failure::exit_code;
use crate::{output, snapshot_name};

/// The name of a volume if there is no other.
const VOLUME: &str = "files";
/// The exit status of an import that left entries out, as of a backup that could not read some.
const SOME_REFUSED: u8 = 3;
/// Refused entries that are printed.
const REFUSALS_SHOWN: usize = 20;

pub fn run(session: &Session<'_>, import: &Import) -> Result<u8, Failure> {
    let filter = OriginFilter::default();
    match import {
        Import::Tar(args) => tar(session, args),
        Import::Restic(args) => {
            let (hosts, paths) = (args.host.clone(), args.path.clone());
            let filter = OriginFilter { hosts, paths, tags: args.tag.clone(), ..filter };
            let (repository, password_file) = (args.from.clone(), args.from_password_file.clone());
            let origin = Origin::Restic { repository, password_file };
            all(session, &origin, &filter, args.series.as_deref(), &args.how)
        }
        Import::Borg(args) => {
            let (hosts, names) = (args.host.clone(), args.archives.clone());
            let filter = OriginFilter { hosts, names, ..filter };
            let origin = Origin::Borg { repository: args.from.clone() };
            all(session, &origin, &filter, args.series.as_deref(), &args.how)
        }
    }
}

/// A series and a volume of it.
fn parse_place(text: &str) -> (&str, Option<&str>) {
    text.split_once(':').map_or((text, None), |(series, volume)| (series, Some(volume)))
}

fn tar(session: &Session<'_>, args: &ImportTar) -> Result<u8, Failure> {
    let time_ns = args.time.as_deref().map(snapshot_name::parse_nanoseconds).transpose()?;
    let place = parse_place(&args.series);
    let (input, from): (Box<dyn Read + Send>, _) = match &args.file {
        Some(name) => {
            let shown = name.display().to_string();
            let file = File::open(name).map_err(|e| Error::io(format!("open {shown}"), e))?;
            (Box::new(file), shown)
        }
        None => (Box::new(std::io::stdin()), "-".to_owned()),
    };
    let repository = session.open(Traffic::Backup, args.how.dry_run)?;
    let staged = staged(session, &repository, decompressed(input)?, &args.how, time_ns)?;
    let options = BackupOptions {
        tags: args.tag.clone(),
        taken: Taken { time_ns, host: args.host.clone(), ..Taken::default() },
        ..basic(session)
    };
    let report = back_up(session, &repository, place, (&staged, &from), options)?;
    session.reporter.finish();
    conclude(session, args.how.dry_run, ("tar", None), &staged, &report);
    let done = Done { imported: 1, refused: staged.refused(), ..Done::default() };
    Ok(done.end(session, "tar", args.how.dry_run))
}

fn staged(
    session: &Session<'_>,
    repository: &Repository,
    input: impl Read,
    how: &ImportHow,
    time_ns: Option<i64>,
) -> Result<StagedTree, Error> {
    let time_ns = time_ns.unwrap_or_else(|| session.context.env.now_ns());
    let seconds = time_ns.div_euclid(1_000_000_000);
    let missing_modified = Timestamp { seconds, nanoseconds: 0 };
    let root = how.root.as_bytes();
    let root = root.strip_prefix(b"/").unwrap_or(root).to_vec();
    stage(repository, input, &temporary_folder(), &StageOptions { root, missing_modified })
}

fn basic(session: &Session<'_>) -> BackupOptions {
    BackupOptions {
        jobs: session.global.jobs,
        memory_bytes: session.global.memory << 20,
        program: PROGRAM.to_owned(),
        ..BackupOptions::default()
    }
}

/// Backs up a staged archive as the only volume of a snapshot.
fn back_up(
    session: &Session<'_>,
    repository: &Repository,
    (series, volume): (&str, Option<&str>),
    (staged, from): (&StagedTree, &str),
    options: BackupOptions,
) -> Result<BackupReport, Error> {
    let mut backup = repository.backup(&repository.own_name(series)?, options)?;
    let only = match backup.parent().map(|parent| parent.volumes.as_slice()) {
        Some([only]) => only.name.clone(),
        _ => VOLUME.to_owned(),
    };
    let source = Box::new(Throttled::new(staged.source()?).reads(session.read_limit()));
    // Other archives can have the same times and sizes with another content.
    let trust = Trust { ignore_inode: true, ignore_changed: true };
    let tree_options = TreeOptions { trust, reread: true, ..TreeOptions::default() };
    let made = backup.add_tree_from(volume.unwrap_or(&only), from, source, &tree_options)?;
    if made.tree().is_none_or(|tree| tree.counts.unreadable > 0) {
        let message = "the temporary file with the archive's content can't be read";
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    backup.finish()
}

/// What an import did.
#[derive(Default)]
struct Done {
    imported: u64,
    skipped: u64,
    failed: u64,
    refused: u64,
    /// The exit status of the first failure.
    code: Option<u8>,
}

impl Done {
    /// Prints the sums, and returns the exit status.
    fn end(self, session: &Session<'_>, origin: &str, dry_run: bool) -> u8 {
        let Self { imported, skipped, failed, refused, code } = self;
        if session.global.json {
            let value = json!({
                "origin": origin, "dry_run": dry_run, "imported": imported, "skipped": skipped,
                "failed": failed, "refused_entries": refused,
            });
            output::message("summary", value);
        } else if origin != "tar" {
            let verb = if dry_run { "Would import" } else { "Imported" };
            let imported = output::count(imported, "snapshot");
            let text = format!(
                "{verb} {imported} of {origin}; {skipped} were imported before, {failed} failed"
            );
            output::outcome(dry_run, &text);
        }
        if refused > 0 {
            output::note(&format!("silt: {refused} entries are NOT imported as a whole"));
        }
        code.unwrap_or(if refused > 0 { SOME_REFUSED } else { 0 })
    }
}

/// Imports the snapshots of another repository that were not imported yet.
fn all(
    session: &Session<'_>,
    origin: &Origin,
    filter: &OriginFilter,
    place: Option<&str>,
    how: &ImportHow,
) -> Result<u8, Failure> {
    let repository = session.open(Traffic::Backup, how.dry_run)?;
    let snapshots = origin.snapshots(filter)?;
    if snapshots.is_empty() {
        session.warn(&format!("the repository of {} has no such snapshot", origin.program()));
    }
    let mixed = if place.is_none() { mixed_hosts(&snapshots) } else { BTreeSet::new() };
    for host in mixed {
        session.warn(&format!(
            "host {host} has snapshots of several sets of paths, which all go into its series; \
             choose with --path, and name a series for each"
        ));
    }
    let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let (mut done, dry_run) = (Done::default(), how.dry_run);
    for snapshot in &snapshots {
        let (series, volume) = place.map_or((snapshot.host.as_str(), None), parse_place);
        if !known.contains_key(series) {
            known.insert(series.to_owned(), marks(&repository, series)?);
        }
        let of = (origin, snapshot, series);
        if known.get(series).is_some_and(|marks| marks.contains(&snapshot.mark(origin))) {
            done.skipped += 1;
            if session.global.json {
                output::message("skipped", named_json(of));
            }
            continue;
        }
        if dry_run {
            done.imported += 1;
            announce(session, of);
            continue;
        }
        match one(session, &repository, of, volume, how) {
            Ok(refused) => {
                done.imported += 1;
                done.refused += refused;
            }
            // What is wrong with this snapshot need not be wrong with the next one.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                session.reporter.finish();
                let error = error.context(format!("import {}", name_of(snapshot)));
                output::error(session.global.json, &error.to_string(), exit_code(&error));
                done.failed += 1;
                done.code.get_or_insert(exit_code(&error));
            }
            Err(error) => {
                return Err(error.context(format!("import {}", name_of(snapshot))).into());
            }
        }
    }
    Ok(done.end(session, origin.program(), dry_run))
}

/// Imports one snapshot; returns how many entries were refused.
fn one(
    session: &Session<'_>,
    repository: &Repository,
    (origin, snapshot, series): (&Origin, &OriginSnapshot, &str),
    volume: Option<&str>,
    how: &ImportHow,
) -> Result<u64, Error> {
    let time_ns = Some(snapshot.time_ns);
    let staged = staged(session, repository, origin.archive(snapshot)?, how, time_ns)?;
    let taken = Taken { time_ns, host: Some(snapshot.host.clone()), ..Taken::default() };
    let options = BackupOptions { tags: snapshot.labels(origin), taken, ..basic(session) };
    let from = format!("{}:{}", origin.program(), snapshot.id);
    let report = back_up(session, repository, (series, volume), (&staged, &from), options)?;
    session.reporter.finish();
    conclude(session, false, (origin.program(), Some(snapshot)), &staged, &report);
    Ok(staged.refused())
}

/// The marks of the snapshots that a series has, and of those that it had and that are not purged.
fn marks(repository: &Repository, series: &str) -> Result<BTreeSet<String>, Error> {
    let heads = match repository.heads(&[series.to_owned()]) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        heads => heads?,
    };
    let entries = heads.iter().flat_map(|head| {
        head.snapshots.iter().chain(head.deleted.iter().map(|deleted| &deleted.entry))
    });
    Ok(entries.flat_map(|entry| entry.labels.iter().cloned()).collect())
}

/// The name of a snapshot elsewhere, for people.
fn name_of(snapshot: &OriginSnapshot) -> String {
    snapshot.name.clone().unwrap_or_else(|| snapshot.id.chars().take(8).collect())
}

fn named_json((origin, snapshot, series): (&Origin, &OriginSnapshot, &str)) -> Value {
    json!({
        "origin": origin.program(), "origin_id": snapshot.id, "origin_name": snapshot.name,
        "series": series, "time": output::rfc3339(snapshot.time_ns), "host": snapshot.host,
        "tags": snapshot.labels(origin),
    })
}

/// Prints a snapshot that would be imported.
fn announce(session: &Session<'_>, of: (&Origin, &OriginSnapshot, &str)) {
    if session.global.json {
        output::message("planned_import", named_json(of));
        return;
    }
    let (_, snapshot, series) = of;
    let time = output::time(snapshot.time_ns);
    let paths = snapshot.paths.join(", ");
    output::line(&format!("{} of {time} to {series} {paths}", name_of(snapshot)));
}

/// Prints a snapshot that was imported, and the entries that it lacks.
fn conclude(
    session: &Session<'_>,
    dry_run: bool,
    (origin, from): (&str, Option<&OriginSnapshot>),
    staged: &StagedTree,
    report: &BackupReport,
) {
    let snapshot = &report.snapshot;
    if session.global.json {
        let mut value = made_json(&report.series, &report.tags, snapshot);
        value["dry_run"] = json!(dry_run);
        value["origin"] = json!(origin);
        value["origin_id"] = json!(from.map(|from| &from.id));
        value["origin_name"] = json!(from.and_then(|from| from.name.as_ref()));
        value["entries"] = json!(staged.entries());
        value["left_out"] = json!(staged.left_out());
        value["written_bytes"] = json!(report.stored_bytes);
        value["refused"] = json!(staged.refused());
        value["refusals"] = failures_json(staged.refusals());
        output::message("imported", value);
    } else {
        let verb = if dry_run { "Would import" } else { "Imported" };
        let written = if dry_run { "to be written" } else { "written" };
        let id = if dry_run { String::new() } else { format!(" {}", short(snapshot.id)) };
        output::outcome(
            dry_run,
            &format!(
                "{verb} {} as snapshot{id} of {} ({}): {} entries, {}; {} {written}",
                from.map_or(origin.to_owned(), name_of),
                report.series,
                output::time(snapshot.time_ns),
                staged.entries(),
                output::bytes(staged.bytes()),
                output::bytes(report.stored_bytes)
            ),
        );
    }
    for refusal in staged.refusals().iter().take(REFUSALS_SHOWN) {
        let path = String::from_utf8_lossy(&refusal.path);
        output::note(&format!("silt: {path}: {}", refusal.error));
    }
}
