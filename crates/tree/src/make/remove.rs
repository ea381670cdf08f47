//! Removing an entry and everything below it.

use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, OFlags, unlinkat};
use rustix::io::Errno;
use silt_format::{Error, ErrorKind, Result};

use super::apply::{clear_flags, unlock};
use crate::attributes::{APPEND, IMMUTABLE};
use crate::descent::Descent;
use crate::names::Names;
use crate::status::{Status, open_at, status_of};
use crate::walk::DEPTH_MAX;

/// A directory that is being emptied.
struct Emptied {
    name: Vec<u8>,
    names: Names,
    next: usize,
}

/// Removes an entry of a directory and everything below it; returns the number of entries removed.
/// Follows no symbolic links. Fails with `Busy` if a file system is mounted below it.
pub(super) fn remove(directory: &OwnedFd, name: &[u8]) -> Result<u64> {
    let Err(error) = unlink(directory, name) else { return Ok(1) };
    let is_directory = matches!(error, Errno::ISDIR | Errno::PERM);
    let opened =
        if is_directory { open_at(directory, name, OFlags::DIRECTORY) } else { Err(error) };
    let opened = opened.map_err(|_| failed(error))?;
    let mount = status_of(directory).map_err(failed)?.mount;
    let status = entered(&opened, mount)?;
    let mut removed = 0;
    let mut stack = vec![Emptied { name: name.to_vec(), names: names(&opened)?, next: 0 }];
    let mut descent = Descent::new(opened, status.id());
    loop {
        let depth = stack.len();
        let Some(top) = stack.last_mut() else { return Ok(removed) };
        let current = descent.current().map_err(failed)?;
        if top.next < top.names.len() {
            top.names.load(top.next..top.next + 1)?;
            let name = top.names.name(top.next).to_vec();
            top.next += 1;
            match unlink(&current, &name) {
                Ok(()) | Err(Errno::NOENT) => removed += 1,
                Err(Errno::ISDIR | Errno::PERM) if depth < DEPTH_MAX => {
                    let below = open_at(&*current, &name, OFlags::DIRECTORY).map_err(failed)?;
                    let status = entered(&below, mount)?;
                    stack.push(Emptied { names: names(&below)?, name: name.clone(), next: 0 });
                    descent.push(&name, below, status.id());
                }
                Err(error) => return Err(failed(error)),
            }
            continue;
        }
        let name = std::mem::take(&mut top.name);
        stack.pop();
        if stack.is_empty() {
            unlinkat(directory, &*name, AtFlags::REMOVEDIR).map_err(failed)?;
        } else {
            descent.pop();
            let above = descent.current().map_err(failed)?;
            unlinkat(&*above, &*name, AtFlags::REMOVEDIR).map_err(failed)?;
        }
        removed += 1;
    }
}

/// Removes an entry that is not a directory, even if it is immutable.
pub(super) fn unlink(directory: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
    match unlinkat(directory, name, AtFlags::empty()) {
        Err(Errno::PERM) => {
            unlock(directory, name);
            unlinkat(directory, name, AtFlags::empty())
        }
        removed => removed,
    }
}

/// Prepares a directory to be emptied and returns its status. Fails with `Busy` if it is on another
/// mount.
fn entered(directory: &OwnedFd, mount: u64) -> Result<Status> {
    let status = status_of(directory).map_err(failed)?;
    if status.mount != mount {
        return Err(Error::new(ErrorKind::Busy, "something is mounted on it"));
    }
    clear_flags(directory, IMMUTABLE | APPEND);
    Ok(status)
}

fn names(directory: &OwnedFd) -> Result<Names> {
    let (names, problem) = Names::read(directory);
    problem.map_or(Ok(names), Err)
}

fn failed(error: Errno) -> Error {
    Error::io("removing it", error.into())
}
