//! `silt mount` and `silt umount`.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use silt_export::catalog::{Catalog, CatalogOptions};
use silt_export::fuse::{self, MountOptions};
use silt_format::{Error, ErrorKind};

use super::{Failure, Session, Traffic};
use crate::cli::{Mount, Unmount};
use crate::output;

/// Threads that answer requests, at least: some wait for storage while others work.
const THREADS_MIN: usize = 4;
/// For how long a listing of the snapshots is used.
const REFRESH_NS: u64 = 5_000_000_000;
/// What a program in the background says once it serves.
const READY: &str = "mounted";

pub fn run(session: &Session<'_>, args: &Mount) -> Result<u8, Failure> {
    // Before a password is asked for.
    fuse::check_mount_point(&args.folder)?;
    if args.background {
        return in_background(session, args);
    }
    let repository = session.open(Traffic::Restore, false)?;
    repository.require_all_keys()?;
    let options = CatalogOptions {
        memory_bytes: session.global.memory << 20,
        refresh_ns: REFRESH_NS,
        ..CatalogOptions::default()
    };
    let catalog = Catalog::new(repository, options);
    // What can't be listed now is an error now.
    catalog.series()?;
    let threads = session.context.workers(session.global.jobs).max(THREADS_MIN);
    let options = MountOptions { threads, allow_other: args.allow_other };
    let mount = fuse::Mount::new(catalog, &args.folder, options)?;
    if args.detached {
        leave_terminal(args)?;
        output::line(READY);
    } else {
        announce(session, &mount.folder().display().to_string());
    }
    mount.serve(&*session.context.env)?;
    Ok(0)
}

/// The terminal, or the program that reads this one's errors, need not wait for its end.
fn leave_terminal(args: &Mount) -> Result<(), Failure> {
    let failed = |error| Error::io("leave the terminal", error);
    rustix::process::setsid().map_err(|error| failed(error.into()))?;
    let log = args.log.as_deref().unwrap_or(Path::new("/dev/null"));
    let file = OpenOptions::new().append(true).create(true).open(log);
    let file = file.map_err(|error| Error::io(format!("open {}", log.display()), error))?;
    rustix::stdio::dup2_stderr(&file).map_err(|error| failed(error.into()))?;
    Ok(())
}

fn announce(session: &Session<'_>, folder: &str) {
    if session.global.json {
        output::message(READY, json!({ "folder": folder }));
    } else if !session.global.quiet {
        output::done(&format!("Mounted at {folder}; Ctrl-C or `silt umount {folder}` ends it."));
    }
}

/// Starts this program once more, and waits until it serves.
fn in_background(session: &Session<'_>, args: &Mount) -> Result<u8, Failure> {
    let failed = |error| Error::io("start the program in the background", error);
    let program = std::env::current_exe().map_err(failed)?;
    let given = std::env::args_os().skip(1);
    let given = given.map(|word| if word == "--background" { "--detached".into() } else { word });
    let mut command = Command::new(program);
    command.args(given).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut said).map_err(failed)?;
    }
    if said.trim() == READY {
        announce(session, &args.folder.display().to_string());
        return Ok(0);
    }
    // It has said why on standard error.
    let status = child.wait().map_err(failed)?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1).max(1))
}

pub fn unmount(args: &Unmount) -> Result<u8, Failure> {
    fuse::unmount(&args.folder, args.force).map_err(|error| match error.kind() {
        ErrorKind::Busy => error.context("--force unmounts it anyway"),
        _ => error,
    })?;
    Ok(0)
}
