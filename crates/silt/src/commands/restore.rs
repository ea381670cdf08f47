//! `silt restore`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde_json::json;
use silt_format::{ByteSpan, Error, ErrorKind, Volume, VolumeKind};
use silt_source::{
    StreamTarget, TargetFormat as Format, TargetMode, TargetOptions, VolumeTarget, open_target,
};
use siltstone::{
    Activity, Found, FoundVolume, Repository, RestoreOptions, RestoreReport, Throttled,
};

use super::volume_args::is_stdin;
use super::{Failure, Session, Traffic, short, spans, trees, volume};
use crate::cli::{Restore, TargetFormat};
use crate::{output, snapshot_name};

pub fn run(session: &Session<'_>, args: &Restore) -> Result<u8, Failure> {
    let named = snapshot_name::parse_with_path(&args.snapshot)?;
    let (selector, name) = (named.selector, named.volume);
    let repository = session.open(Traffic::Restore, false)?;
    repository.require_all_keys()?;
    let found = repository.find(&selector)?;
    warn_of_future(session, &found);
    if let Some(path) = named.path {
        let of = trees::tree(&found, name.as_deref())?;
        return trees::restore(session, args, &repository, of, &path, &args.target);
    }
    let one = Restoring { session, args, repository: &repository, found: &found };
    if !is_folder(&args.target) {
        let of = volume(&found, name.as_deref())?;
        if is_tree(&of) {
            return trees::restore(session, args, &repository, of, b"/", &args.target);
        }
        return one.restore(of, &args.target);
    }
    let named = name.as_deref().map(|name| volume(&found, Some(name))).transpose()?;
    let wanted = named.map_or_else(|| found.volumes().collect(), |one| vec![one]);
    if let ([of], true) = (wanted.as_slice(), wanted.iter().all(is_tree)) {
        return trees::restore(session, args, &repository, *of, b"/", &args.target);
    }
    one.restore_all(&wanted)
}

fn is_tree(of: &FoundVolume<'_>) -> bool {
    matches!(of.volume().kind, VolumeKind::Tree(_))
}

/// Whether a target takes volumes as files of its own: it ends with a slash, or is a folder.
fn is_folder(target: &Path) -> bool {
    !is_stdin(target) && (target.as_os_str().as_bytes().ends_with(b"/") || target.is_dir())
}

/// A snapshot that volumes are restored from.
struct Restoring<'a> {
    session: &'a Session<'a>,
    args: &'a Restore,
    repository: &'a Repository,
    found: &'a Found,
}

impl Restoring<'_> {
    /// Restores volumes to files in a folder, each called as the volume. A volume that can't be
    /// restored does not stop the others; the exit status is that of the first that failed.
    fn restore_all(&self, volumes: &[FoundVolume<'_>]) -> Result<u8, Failure> {
        let folder = &self.args.target;
        if self.args.range.is_some() && volumes.len() > 1 {
            let message = "--range is for one volume: name it as SNAPSHOT:VOLUME".to_owned();
            return Err(Failure::Usage(message));
        }
        if !self.args.dry_run {
            std::fs::create_dir_all(folder)
                .map_err(|error| Error::io(format!("create {}", folder.display()), error))?;
        }
        let suffix = match self.args.format {
            Some(TargetFormat::Qcow2) => "qcow2",
            _ => "raw",
        };
        let sizes: Vec<_> = volumes.iter().map(|volume| Some(volume.volume().bytes)).collect();
        self.session.reporter.expect(Activity::Restore, &sizes);
        let mut worst = 0;
        for (number, volume) in (1..).zip(volumes) {
            let name = &volume.volume().name;
            let restored = if is_tree(volume) {
                let target = folder.join(name);
                trees::restore(self.session, self.args, self.repository, *volume, b"/", &target)
            } else {
                self.restore(*volume, &folder.join(format!("{name}.{suffix}")))
            };
            let code = restored.unwrap_or_else(|failure| {
                self.session.reporter.finish();
                let code = failure.exit_code();
                output::error(self.session.global.json, &failure.to_string(), code);
                code
            });
            worst = if worst == 0 { code } else { worst };
            self.session.reporter.end_parts(Activity::Restore, volumes.len() - number);
        }
        Ok(worst)
    }

    fn restore(&self, of: FoundVolume<'_>, target: &Path) -> Result<u8, Failure> {
        if !self.args.tree.include.is_empty() || !self.args.tree.exclude.is_empty() {
            let message = "--include and --exclude are for file trees, not for disks".to_owned();
            return Err(Failure::Usage(message));
        }
        let Self { session, args, found, .. } = self;
        let volume = of.volume();
        let range = args.range.as_deref();
        let range = range.map(|text| snapshot_name::parse_range(text, volume.bytes)).transpose()?;
        let to_stdout = is_stdin(target);
        if to_stdout && (args.in_place || args.format == Some(TargetFormat::Qcow2)) {
            let message =
                "standard output takes a raw image only, and cannot be read back".to_owned();
            return Err(Failure::Usage(message));
        }
        let size = range.map_or(volume.bytes, |range| range.length);
        if args.dry_run {
            announce(session, target, found, volume, size);
            return Ok(0);
        }
        let limit = session.write_limit();
        let open = open(args, target, size)?;
        let writer: Box<dyn VolumeTarget> = Box::new(Throttled::new(open).writes(limit));
        let options = RestoreOptions {
            range,
            in_place: args.in_place,
            salvage: args.salvage,
            jobs: session.global.jobs,
            memory_bytes: session.global.memory << 20,
        };
        let restored = self.repository.restore(of, writer.as_ref(), options);
        let report = match restored {
            Ok(report) => report,
            Err(error) => return Err(unfinished(args, target, error).into()),
        };
        writer.finish()?;
        session.reporter.finish();
        Ok(conclude(session, target, found, volume, &report))
    }
}

/// Warns if the snapshot is dated in the future: newer ones then count as older.
pub fn warn_of_future(session: &Session<'_>, found: &Found) {
    if found.snapshot.time_ns > session.context.env.now_ns() {
        let message = format!(
            "snapshot {} of {} is dated in the future ({}): newer ones may exist",
            short(found.snapshot.id),
            found.head.shown(),
            output::time(found.snapshot.time_ns)
        );
        session.warn(&message);
    }
}

fn open(args: &Restore, target: &Path, size: u64) -> Result<Box<dyn VolumeTarget>, Failure> {
    if is_stdin(target) {
        return Ok(Box::new(StreamTarget::new(Box::new(output::data()?), size)));
    }
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
fn unfinished(args: &Restore, target: &Path, error: Error) -> Error {
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

fn announce(session: &Session<'_>, target: &Path, found: &Found, volume: &Volume, size: u64) {
    if session.global.json {
        let value = json!({
            "dry_run": true,
            "snapshot": found.snapshot.id.to_string(),
            "volume": volume.name,
            "target": target.to_string_lossy(),
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
        found.head.shown(),
        output::time(found.snapshot.time_ns),
        target.display()
    ));
}

fn conclude(
    session: &Session<'_>,
    target: &Path,
    found: &Found,
    volume: &Volume,
    report: &RestoreReport,
) -> u8 {
    let damaged: u64 = report.damaged.iter().map(|span| span.length).sum();
    let to_stdout = is_stdin(target);
    if session.global.json {
        let value = json!({
            "snapshot": found.snapshot.id.to_string(),
            "volume": volume.name,
            "target": target.to_string_lossy(),
            "bytes": report.bytes,
            "written_bytes": report.written_bytes,
            "unreadable": spans(&report.unreadable),
            "damaged": spans(&report.damaged),
        });
        output::message_beside("summary", value, to_stdout);
    } else {
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
            found.head.shown(),
            output::time(found.snapshot.time_ns),
            if to_stdout { Path::new("standard output") } else { target }.display(),
            output::bytes(report.bytes),
        );
        match to_stdout {
            true if session.global.quiet => output::log(&text),
            true => output::note(&text),
            false => output::done(&text),
        }
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
