//! `silt backup --fleet`: a round.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde_json::json;
use silt_format::Error;
use silt_source::VolumeSource;
use siltstone::{RoundMember, RoundOptions, RoundReport, Throttled};

use super::{conclude, open, options, repository};
use crate::cli::Backup;
use crate::commands::{Failure, Session, exit_code, forget, temporary_folder};
use crate::{output, snapshot_name};

/// Most bytes of a fleet file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// An open volume and its name.
type NamedSource = (String, Throttled<Box<dyn VolumeSource>>);

/// A fleet file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fleet {
    #[serde(default)]
    tags: Vec<String>,
    series: BTreeMap<String, Series>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Series {
    volumes: BTreeMap<String, String>,
}

pub fn run(session: &Session<'_>, args: &Backup) -> Result<u8, Failure> {
    let Some(file) = &args.fleet else {
        return Err(Failure::Usage("a backup needs a series, or --fleet".to_owned()));
    };
    if args.dry_run {
        let message = "--dry-run does not go with --fleet; `silt popular plan` counts what series \
                       have in common";
        return Err(Failure::Usage(message.to_owned()));
    }
    let fleet = read(file)?;
    let chunking = args.chunking.as_deref().map(snapshot_name::parse_chunking).transpose()?;
    let mut backup_options = options(session, args, chunking);
    backup_options.tags.extend(fleet.tags);
    let repository = repository(session, args)?;
    // A machine whose disk can't be opened keeps none of the others from being backed up.
    let mut code = 0;
    let mut opened = Vec::new();
    for (series, volumes) in &fleet.series {
        match open_all(session, args, &volumes.volumes) {
            Ok(sources) => opened.push((series, sources)),
            Err(error) => failed(session, series, &error, &mut code),
        }
    }
    let members: Vec<RoundMember<'_>> = opened
        .iter()
        .map(|(series, sources)| RoundMember {
            series: (*series).clone(),
            volumes: sources
                .iter()
                .map(|(name, source)| (name.clone(), source as &dyn VolumeSource))
                .collect(),
            options: backup_options.clone(),
        })
        .collect();
    let round = RoundOptions {
        spool: args.temp.clone().unwrap_or_else(temporary_folder),
        memory_bytes: session.global.memory << 20,
    };
    let report = repository.backup_round(&members, &round)?;
    session.reporter.finish();
    for (member, backup) in members.iter().zip(&report.backups) {
        match backup {
            Ok(backup) => note_code(&mut code, conclude(session, args, backup)),
            Err(error) => failed(session, &member.series, error, &mut code),
        }
    }
    print(session, &report);
    if args.forget {
        for (member, _) in members.iter().zip(&report.backups).filter(|(_, backup)| backup.is_ok())
        {
            forget::apply_stored(session, &repository, &member.series)?;
        }
    }
    Ok(code)
}

/// The exit status is that of the first series that has one.
fn note_code(code: &mut u8, of_series: u8) {
    if *code == 0 {
        *code = of_series;
    }
}

fn failed(session: &Session<'_>, series: &str, error: &Error, code: &mut u8) {
    let of_series = exit_code(error);
    let message = format!("series '{series}' was not backed up: {error}");
    output::error(session.global.json, &message, of_series);
    note_code(code, of_series);
}

fn open_all(
    session: &Session<'_>,
    args: &Backup,
    volumes: &BTreeMap<String, String>,
) -> Result<Vec<NamedSource>, Error> {
    let limit = session.read_limit();
    let open = |(name, path): (&String, &String)| {
        Ok((name.clone(), Throttled::new(open(path, args)?, limit.clone(), None)))
    };
    volumes.iter().map(open).collect()
}

fn read(file: &Path) -> Result<Fleet, Failure> {
    let failed = |error| Error::io(format!("read the fleet file {}", file.display()), error);
    if std::fs::metadata(file).map_err(failed)?.len() > FILE_BYTES_MAX {
        let message = format!("{} is no fleet file: it is too large", file.display());
        return Err(Failure::Usage(message));
    }
    let text = std::fs::read_to_string(file).map_err(failed)?;
    let fleet: Fleet = toml::from_str(&text).map_err(|error| {
        Failure::Usage(format!("the fleet file {} is wrong: {error}", file.display()))
    })?;
    let empty = fleet.series.iter().find(|(_, series)| series.volumes.is_empty());
    match empty {
        Some((name, _)) => Err(Failure::Usage(format!("series '{name}' has no volumes"))),
        None if fleet.series.is_empty() => {
            Err(Failure::Usage(format!("{} lists no series", file.display())))
        }
        None => Ok(fleet),
    }
}

fn print(session: &Session<'_>, report: &RoundReport) {
    if session.global.json {
        let value = json!({
            "series": report.backups.len(),
            "failed": report.backups.iter().filter(|backup| backup.is_err()).count(),
            "requested_chunks": report.requested_chunks,
            "shared_chunks": report.shared_chunks,
            "shared_bytes": report.shared_bytes,
            "stored_bytes": report.stored_bytes,
            "scan_ms": report.scan_ms,
            "compare_ms": report.compare_ms,
            "share_ms": report.share_ms,
            "backup_ms": report.backup_ms,
        });
        output::message("round", value);
        return;
    }
    output::line(&format!(
        "Round of {} series: {} new chunks, {} shared by several ({} in {} stored)",
        report.backups.len(),
        report.requested_chunks,
        report.shared_chunks,
        output::bytes(report.shared_bytes),
        output::bytes(report.stored_bytes)
    ));
    output::line(&format!(
        "  scanned in {} ms, compared in {} ms, shared in {} ms, backed up in {} ms",
        report.scan_ms, report.compare_ms, report.share_ms, report.backup_ms
    ));
}
