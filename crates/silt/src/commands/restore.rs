//! `silt restore`.

use std::path::Path;

use serde_json::json;
use silt_format::{ByteSpan, ErrorKind, Volume};
use silt_source::{
    StreamTarget, TargetFormat as Format, TargetMode, TargetOptions, VolumeTarget, open_target,
};
use siltstone::{Found, RestoreOptions, RestoreReport, Throttled};

use super::volume_args::is_stdin;
use super::{Failure, Session, Traffic, short, spans, volume};
use crate::cli::{Restore, TargetFormat};
use crate::{output, snapshot_name};

pub fn run(session: &Session<'_>, args: &Restore) -> Result<u8, Failure> {
    let (selector, name) = snapshot_name::parse_with_volume(&args.snapshot)?;
    let repository = session.open(Traffic::Restore, false)?;
    repository.require_all_keys()?;
    let found = repository.find(&selector)?;
    warn_of_future(session, &found);
    let of = volume(&found, name.as_deref())?;
    let volume = of.volume();
    let range = args.range.as_deref();
    let range = range.map(|text| snapshot_name::parse_range(text, volume.bytes)).transpose()?;
    let to_stdout = is_stdin(&args.target);
    if to_stdout && (args.in_place || args.format == Some(TargetFormat::Qcow2)) {
        let message = "standard output takes a raw image only, and cannot be read back".to_owned();
        return Err(Failure::Usage(message));
    }
    let size = range.map_or(volume.bytes, |range| range.length);
    if args.dry_run {
        announce(session, args, &found, volume, size);
        return Ok(0);
    }
    let limit = session.write_limit();
    let target: Box<dyn VolumeTarget> = Box::new(Throttled::new(open(args, size)?, None, limit));
    let options = RestoreOptions {
        range,
        in_place: args.in_place,
        salvage: args.salvage,
        jobs: if to_stdout { 1 } else { session.global.jobs },
        memory_bytes: session.global.memory << 20,
    };
    let restored = repository.restore(of, target.as_ref(), options);
    let report = match restored {
        Ok(report) => report,
        Err(error) => return Err(unfinished(args, error).into()),
    };
    target.finish()?;
    session.reporter.finish();
    Ok(conclude(session, args, &found, volume, &report))
}

/// Warns if the snapshot is dated in the future: newer ones then count as older.
fn warn_of_future(session: &Session<'_>, found: &Found) {
    if found.snapshot.time_ns > session.context.env.now_ns() {
        let message = format!(
            "snapshot {} of {} is dated in the future ({}): newer ones may exist",
            short(found.snapshot.id),
            found.head.name,
            output::time(found.snapshot.time_ns)
        );
        session.warn(&message);
    }
}

fn open(args: &Restore, size: u64) -> Result<Box<dyn VolumeTarget>, Failure> {
    if is_stdin(&args.target) {
        return Ok(Box::new(StreamTarget::new(Box::new(std::io::stdout()), size)));
    }
    let target = args.target.as_path();
    let is_named_qcow2 =
        target.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("qcow2"));
    let format = match args.format {
        Some(TargetFormat::Qcow2) => Format::Qcow2,
        // In place, the target's bytes are compared.
        None if is_named_qcow2 && !args.in_place && !is_device(target) => Format::Qcow2,
        _ => Format::Raw,
    };
    let mode = match (args.in_place, args.force) {
        (true, _) => TargetMode::InPlace,
        (_, true) => TargetMode::Replace,
        _ => TargetMode::New,
    };
    open_target(target, TargetOptions { format, size, mode }).map_err(|error| match error.kind() {
        // The existing target was kept: a refusal, not a failure.
        ErrorKind::AlreadyExists => error.with_kind(ErrorKind::Denied).into(),
        _ => error.into(),
    })
}

/// Adds the state of the target to the error.
fn unfinished(args: &Restore, error: silt_format::Error) -> silt_format::Error {
    let target = args.target.as_path();
    if is_stdin(target) {
        return error;
    }
    let shown = target.display();
    if target.exists() && (args.in_place || is_device(target)) {
        let what = format!(
            "{shown} is NOT restored; if anything was written, it starts with a marker block"
        );
        return error.context(what);
    }
    error.context(format!(
        "{shown} is NOT restored; the written part is in {shown}{}",
        silt_source::PARTIAL_SUFFIX
    ))
}

fn is_device(target: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    std::fs::metadata(target).is_ok_and(|meta| meta.file_type().is_block_device())
}

fn announce(session: &Session<'_>, args: &Restore, found: &Found, volume: &Volume, size: u64) {
    if session.global.json {
        let value = json!({
            "dry_run": true,
            "snapshot": found.snapshot.id.to_string(),
            "volume": volume.name,
            "target": args.target.to_string_lossy(),
            "bytes": size,
        });
        output::message("summary", value);
        return;
    }
    output::line(&format!(
        "Would restore {} of volume '{}' of snapshot {} ({}, {}) to {}",
        output::bytes(size),
        volume.name,
        short(found.snapshot.id),
        found.head.name,
        output::time(found.snapshot.time_ns),
        args.target.display()
    ));
}

fn conclude(
    session: &Session<'_>,
    args: &Restore,
    found: &Found,
    volume: &Volume,
    report: &RestoreReport,
) -> u8 {
    let damaged: u64 = report.damaged.iter().map(|span| span.length).sum();
    let to_stdout = is_stdin(&args.target);
    if session.global.json {
        let value = json!({
            "snapshot": found.snapshot.id.to_string(),
            "volume": volume.name,
            "target": args.target.to_string_lossy(),
            "bytes": report.bytes,
            "written_bytes": report.written_bytes,
            "unreadable": spans(&report.unreadable),
            "damaged": spans(&report.damaged),
        });
        output::message_beside("summary", value, to_stdout);
    } else if !session.global.quiet {
        // Zeros become holes in a file and are skipped in place; a stream gets every byte.
        let written = if to_stdout {
            String::new()
        } else {
            format!(", {} written", output::bytes(report.written_bytes))
        };
        let text = format!(
            "Restored volume '{}' of snapshot {} ({}, {}) to {}: {}{written}",
            volume.name,
            short(found.snapshot.id),
            found.head.name,
            output::time(found.snapshot.time_ns),
            if to_stdout { Path::new("standard output") } else { &args.target }.display(),
            output::bytes(report.bytes),
        );
        if to_stdout { output::note(&text) } else { output::line(&text) }
    }
    for span in &report.unreadable {
        warn(session, "could not be read when the backup was made", span);
    }
    for span in &report.damaged {
        warn(session, "were damaged in the repository", span);
    }
    if damaged > 0 { 5 } else { 0 }
}

fn warn(session: &Session<'_>, what: &str, span: &ByteSpan) {
    let end = span.offset + span.length;
    let message = format!("bytes {}..{end} {what} and were replaced by zeros", span.offset);
    session.warn(&message);
}
