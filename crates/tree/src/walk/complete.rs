//! Metadata that `statx` does not report: flags, extended attributes, targets of links.

use rustix::fd::AsFd;
use rustix::fs::{OFlags, readlinkat};
use rustix::io::Errno;
use silt_format::tree::{EntryKind, TARGET_BYTES_MAX};
use silt_format::{Error, ErrorKind, Result};

use super::{Found, Walk};
use crate::attributes::{Subject, flags, xattrs};
use crate::file::OpenFile;
use crate::status::{open_at, status_at, status_of};

impl Walk {
    pub(super) fn complete_directory(&mut self, found: &mut Found) -> Result<()> {
        let is_open = self.frames.last().is_none_or(|frame| frame.is_open);
        // If the directory could not be opened, the descent is still at the one above it.
        let directory = self.descent.current().map_err(|error| failed("opening", error))?;
        if !is_open {
            let name = found.name.clone();
            return read_xattrs(found, Subject::Name(directory.as_fd(), &name));
        }
        read_xattrs(found, Subject::Open(directory.as_fd()))?;
        found.metadata.flags = flags(&*directory).map_err(|error| failed("flags", error))?;
        Ok(())
    }

    pub(super) fn complete_file(&mut self, found: &mut Found) -> Result<()> {
        let directory = self.descent.current().map_err(|error| failed("opening", error))?;
        let file = match open_at(&*directory, &found.name, OFlags::empty()) {
            Ok(file) => file,
            Err(error) => {
                let name = found.name.clone();
                read_xattrs(found, Subject::Name(directory.as_fd(), &name))?;
                return Err(failed("opening", error));
            }
        };
        let status = status_of(&file).map_err(|error| failed("status", error))?;
        if status.metadata.kind != EntryKind::File {
            return Err(replaced());
        }
        let file_system = found.metadata.file_system;
        self.born = status.born;
        found.metadata = status.metadata;
        found.metadata.file_system = file_system;
        read_xattrs(found, Subject::Open(file.as_fd()))?;
        found.metadata.flags = flags(&file).map_err(|error| failed("flags", error))?;
        self.opened = Some(OpenFile::new(file));
        Ok(())
    }

    /// Completes a link, pipe, socket or device without opening it: opening a pipe can block, and
    /// opening a device can have effects.
    pub(super) fn complete_other(&mut self, found: &mut Found) -> Result<()> {
        let directory = self.descent.current().map_err(|error| failed("opening", error))?;
        let name = found.name.clone();
        if found.metadata.kind == EntryKind::Symlink {
            let target = readlinkat(&*directory, &*name, Vec::new()).map_err(|error| {
                // `INVAL`: it is no longer a link.
                if error == Errno::INVAL { replaced() } else { failed("reading the link", error) }
            })?;
            found.metadata.target = target.into_bytes();
            if found.metadata.target.len() > TARGET_BYTES_MAX {
                found.metadata.target.clear();
                return Err(Error::new(ErrorKind::Unsupported, "the link's target is too long"));
            }
        }
        read_xattrs(found, Subject::Name(directory.as_fd(), &name))?;
        let now = status_at(&*directory, &name).map_err(|error| failed("status", error))?;
        if now.metadata.inode != found.metadata.inode {
            return Err(replaced());
        }
        Ok(())
    }
}

fn read_xattrs(found: &mut Found, of: Subject<'_>) -> Result<()> {
    let (xattrs, problem) = xattrs(of)?;
    found.metadata.xattrs = xattrs;
    if let Some(problem) = problem {
        note(found, problem);
    }
    Ok(())
}

/// Notes a problem. The first one counts.
pub(super) fn note(found: &mut Found, problem: Error) {
    found.problem.get_or_insert(problem);
}

/// Returns whether an error means that the file no longer exists.
pub(super) fn is_gone(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound
}

fn failed(operation: &str, error: Errno) -> Error {
    Error::io(operation, error.into())
}

fn replaced() -> Error {
    Error::new(ErrorKind::Conflict, "it was replaced meanwhile")
}
