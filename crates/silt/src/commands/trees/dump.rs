//! `silt dump`.

use std::fs::File;
use std::io::{BufWriter, Write};

use serde_json::json;
use silt_format::Error;
use silt_storage::durable::sync_file;
use siltstone::ArchiveFormat;

use super::restore::{failed, failures_json};
use super::tree;
use crate::cli::{Archive, Dump};
use crate::commands::restore::warn_of_future;
use crate::commands::{Failure, Session, Traffic, listing};
use crate::{output, snapshot_name};

/// Bytes that are written at a time.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes a file tree as an archive.
pub fn dump(session: &Session<'_>, args: &Dump) -> Result<u8, Failure> {
    let named = snapshot_name::parse_with_path(&args.snapshot)?;
    let repository = session.open(Traffic::Restore, false)?;
    repository.require_all_keys()?;
    let found = repository.find(&named.selector)?;
    warn_of_future(session, &found);
    let of = tree(&found, named.volume.as_deref())?;
    let path = named.path.unwrap_or_default();
    let format = match args.format {
        Archive::Tar => ArchiveFormat::Tar,
        Archive::Zip => ArchiveFormat::Zip,
    };
    let (out, file): (Box<dyn Write>, _) = match &args.output {
        None => (Box::new(output::data()?), None),
        Some(name) => {
            let create = |error| Error::io(format!("create {}", name.display()), error);
            let file = File::options().write(true).create_new(true).open(name).map_err(create)?;
            let copy = file.try_clone().map_err(create)?;
            (Box::new(file), Some(copy))
        }
    };
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
    let memory = session.global.memory << 20;
    let dumped = repository.dump_tree(of, &path, format, memory, &mut out);
    let flushed = out.flush().map_err(|error| Error::io("write the archive", error));
    drop(out);
    if let (Some(name), true) = (&args.output, dumped.is_err() || flushed.is_err()) {
        // Part of an archive would pass for all of it. The error matters more than this one.
        let _ = std::fs::remove_file(name);
    }
    let report = dumped?;
    flushed?;
    if let Some(file) = &file {
        sync_file(file)?;
    }
    session.reporter.finish();
    if session.global.json {
        let mut value = json!({
            "snapshot": found.snapshot.id.to_string(),
            "volume": of.volume().name,
            "target": args.output.as_ref().map_or("-".into(), |name| name.to_string_lossy()),
            "entries": report.entries,
            "bytes": report.bytes,
            "left_out": report.left_out,
            "unreadable": report.unreadable,
            "failed": report.failures.count,
            "failures": failures_json(&report.failures.first),
        });
        listing::set_bytes(&mut value, "path", &path);
        output::message_beside("summary", value, file.is_none());
    }
    for (count, what) in [
        (report.left_out, "left out: the archive format does not support the type"),
        (report.unreadable, "incomplete: the backup could not read everything"),
    ] {
        if count > 0 {
            session.warn(&format!("{} {what}", output::count(count, "entry")));
        }
    }
    Ok(failed(&report.failures.first, report.failures.count, "NOT complete in the archive"))
}
