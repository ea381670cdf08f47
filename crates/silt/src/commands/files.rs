//! `silt files`.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use silt_files::{
    Budget, CopyOptions, Ext, FileSystem, Inode, Kind, Layout, Partition, Region, TableKind,
    copy_out,
};
use silt_format::tree::EntryKind;
use silt_format::{Error, ErrorKind};
use siltstone::VolumeReader;

use super::listing::{self, Listed};
use super::restore::warn_of_future;
use super::{Failure, Session, Traffic, volume};
use crate::cli::{Files, FilesCommand};
use crate::{output, snapshot_name};

/// How much of a file is written at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Zeros are written in pieces of this size.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

pub fn run(session: &Session<'_>, args: &Files) -> Result<u8, Failure> {
    let (selector, name) = snapshot_name::parse_with_volume(&args.snapshot)?;
    let repository = session.open(Traffic::Restore, false)?;
    repository.require_all_keys()?;
    let found = repository.find(&selector)?;
    warn_of_future(session, &found);
    let of = volume(&found, name.as_deref())?;
    of.require_disk()?;
    let reader = VolumeReader::open(&repository, of, session.global.memory << 20)?;
    let budget = Arc::new(Budget::of_disk(reader.bytes(), &session.context));
    let disk = Region::whole(Arc::new(reader), budget);
    let layout = Layout::read(&disk)?;
    let open = || -> Result<Ext, Failure> {
        let partition = choose(args, &layout)?;
        let context = |error: Error| error.context(title(partition));
        Ok(Ext::open(disk.part(partition.offset, partition.bytes)).map_err(context)?)
    };
    match &args.command {
        FilesCommand::Ls { path: None }
            if args.partition.is_none() && layout.partitions.len() > 1 =>
        {
            partitions(session, &layout);
            Ok(0)
        }
        FilesCommand::Ls { path } => {
            list(session, &open()?, path.as_deref().unwrap_or(OsStr::new("/")))
        }
        FilesCommand::Cat { paths } => {
            let ext = open()?;
            for path in paths {
                cat(&ext, path)?;
            }
            Ok(0)
        }
        FilesCommand::Get { path, folder, owners } => {
            get(session, &open()?, path, folder, CopyOptions { owners: *owners })
        }
    }
}

/// A partition for messages.
fn title(partition: &Partition) -> String {
    match partition.number {
        0 => "the disk".to_owned(),
        number => format!("partition {number}"),
    }
}

/// The partition that is asked for, or the only one that can be read.
fn choose<'l>(args: &Files, layout: &'l Layout) -> Result<&'l Partition, Failure> {
    let all = &layout.partitions;
    let listed = || {
        let shown = all.iter().map(|each| format!("{} ({})", each.number, each.file_system));
        shown.collect::<Vec<_>>().join(", ")
    };
    let chosen = if let Some(number) = args.partition {
        all.iter().find(|each| each.number == number).ok_or_else(|| {
            Failure::Usage(format!("there is no partition {number}; there are: {}", listed()))
        })?
    } else {
        let mut readable = all.iter().filter(|each| each.file_system == FileSystem::Ext);
        match (readable.next(), readable.next(), all.as_slice()) {
            (Some(only), None, _) | (None, _, [only]) => only,
            (None, ..) => {
                return Err(unread(&format!("the partitions are: {}", listed())).into());
            }
            (Some(_), Some(_), _) => {
                return Err(Failure::Usage(format!(
                    "several partitions can be read; choose one with --partition: {}",
                    listed()
                )));
            }
        }
    };
    match chosen.file_system {
        FileSystem::Ext => Ok(chosen),
        FileSystem::Empty => Err(unread(&format!("{} is empty", title(chosen))).into()),
        FileSystem::Unknown => {
            Err(unread(&format!("{} holds no known file system", title(chosen))).into())
        }
        FileSystem::Other(name) => Err(unread(&format!("{} holds {name}", title(chosen))).into()),
    }
}

fn unread(what: &str) -> Error {
    let message = format!(
        "{what}; `silt files` reads only ext2, ext3 and ext4. `silt mount FOLDER` shows the disk \
         as a file that the system (losetup, mount) or guestfish can open: see OPERATIONS, \
         \"Single files\""
    );
    Error::new(ErrorKind::Unsupported, message)
}

fn partitions(session: &Session<'_>, layout: &Layout) {
    if session.global.json {
        for partition in &layout.partitions {
            let value = json!({
                "number": partition.number,
                "offset": partition.offset,
                "bytes": partition.bytes,
                "name": partition.name,
                "file_system": partition.file_system.to_string(),
                "readable": partition.file_system == FileSystem::Ext,
            });
            output::message("partition", value);
        }
        return;
    }
    let kind = match layout.table {
        TableKind::Gpt => "GPT",
        TableKind::Mbr => "MBR",
        TableKind::None => "none",
    };
    let rows: Vec<Vec<String>> = layout
        .partitions
        .iter()
        .map(|partition| {
            vec![
                partition.number.to_string(),
                output::bytes(partition.offset),
                output::bytes(partition.bytes),
                partition.file_system.to_string(),
                partition.name.clone(),
            ]
        })
        .collect();
    output::table(&[kind, "OFFSET", "SIZE", "HOLDS", "NAME"], &rows, &[0, 1, 2]);
}

fn list(session: &Session<'_>, ext: &Ext, path: &OsStr) -> Result<u8, Failure> {
    let found = ext.find(path.as_bytes(), true)?;
    let mut shown = Vec::new();
    let mut damaged = false;
    if found.kind == Kind::Directory {
        let mut entries = Vec::new();
        let complete = ext.entries(&found, &mut |entry| {
            entries.push(entry);
            Ok(())
        });
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            match ext.inode(entry.inode) {
                Ok(inode) => shown.push((entry.name, inode)),
                Err(error) if error.kind() == ErrorKind::Interrupted => return Err(error.into()),
                Err(error) => {
                    damaged = true;
                    let name = String::from_utf8_lossy(&entry.name);
                    session.context.warn(&error.context(name));
                }
            }
        }
        complete?;
    } else {
        shown.push((path.as_bytes().to_vec(), found));
    }
    let mut rows = Vec::new();
    for (name, inode) in &shown {
        let target = (inode.kind == Kind::Symlink).then(|| ext.target(inode)).transpose()?;
        let listed = listed(name, inode, target.as_deref());
        if session.global.json {
            output::message("file", listed.json());
        } else {
            rows.push(listed.row());
        }
    }
    if !session.global.json {
        output::table(&listing::HEADER, &rows, &listing::RIGHT);
    }
    Ok(if damaged { 5 } else { 0 })
}

fn listed<'a>(name: &'a [u8], inode: &Inode, target: Option<&'a [u8]>) -> Listed<'a> {
    Listed {
        name,
        kind: kind(inode.kind),
        mode: inode.mode,
        inode: u64::from(inode.number),
        links: u32::from(inode.links),
        uid: inode.uid,
        gid: inode.gid,
        user: None,
        group: None,
        bytes: inode.bytes,
        modified_ns: inode.modified.nanoseconds_since_1970(),
        accessed_ns: Some(inode.accessed.nanoseconds_since_1970()),
        target,
        xattrs: &[],
        acl: None,
        default_acl: None,
    }
}

fn kind(kind: Kind) -> EntryKind {
    match kind {
        Kind::File => EntryKind::File,
        Kind::Directory => EntryKind::Directory,
        Kind::Symlink => EntryKind::Symlink,
        Kind::CharacterDevice => EntryKind::CharDevice,
        Kind::BlockDevice => EntryKind::BlockDevice,
        Kind::Fifo => EntryKind::Fifo,
        Kind::Socket => EntryKind::Socket,
    }
}

fn cat(ext: &Ext, path: &OsStr) -> Result<(), Failure> {
    let context = |error: Error| error.context(Path::new(path).display().to_string());
    let inode = ext.find(path.as_bytes(), true)?;
    if inode.kind != Kind::File {
        return Err(context(Error::invalid(format!(
            "is a {}",
            listing::kind_name(kind(inode.kind))
        )))
        .into());
    }
    let mut out = std::io::stdout().lock();
    let mut at = 0;
    let failed = |error| Error::io("write to standard output", error);
    let mut buffer = vec![0; BUFFER_BYTES];
    let written = ext.read(&inode, &mut buffer, &mut |offset, bytes| {
        zeros(&mut out, offset - at).and_then(|()| out.write_all(bytes)).map_err(failed)?;
        at = offset + bytes.len() as u64;
        Ok(())
    });
    written.map_err(context)?;
    zeros(&mut out, inode.bytes - at).and_then(|()| out.flush()).map_err(failed)?;
    Ok(())
}

/// Writes what a hole reads as.
fn zeros(out: &mut impl Write, mut count: u64) -> std::io::Result<()> {
    while count > 0 {
        let length = usize::try_from(count).unwrap_or(usize::MAX).min(ZEROS.len());
        out.write_all(&ZEROS[..length])?;
        count -= length as u64;
    }
    Ok(())
}

fn get(
    session: &Session<'_>,
    ext: &Ext,
    path: &OsStr,
    folder: &Path,
    options: CopyOptions,
) -> Result<u8, Failure> {
    let inode = ext.find(path.as_bytes(), false)?;
    let name = Path::new(path).file_name();
    let has_name = name.is_some() && inode.kind == Kind::Directory || inode.kind != Kind::Directory;
    let name = name.filter(|_| has_name);
    let warning = &mut |message: &str| session.warn(message);
    let copied = copy_out(ext, &inode, name, folder, options, warning);
    let report = copied.map_err(|error| match error.kind() {
        // Nothing has failed: what is there is kept.
        ErrorKind::AlreadyExists => error.with_kind(ErrorKind::Denied),
        _ => error,
    })?;
    session.reporter.finish();
    if session.global.json {
        let value = json!({
            "files": report.files,
            "directories": report.directories,
            "symlinks": report.symlinks,
            "hard_links": report.hard_links,
            "bytes": report.bytes,
            "left_out": report.left_out_count,
        });
        output::message("summary", value);
    } else if !session.global.quiet {
        let left_out = match report.left_out_count {
            0 => String::new(),
            count => format!("; {count} left out"),
        };
        output::line(&format!(
            "Copied {}, {} and {} to {}, {}{left_out}",
            output::count(report.files, "file"),
            output::count(report.directories, "directory"),
            output::count(report.symlinks + report.hard_links, "link"),
            folder.display(),
            output::bytes(report.bytes),
        ));
    }
    Ok(if report.found_damage { 5 } else { 0 })
}
