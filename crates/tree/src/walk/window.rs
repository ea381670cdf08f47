//! The directories that are being walked, each with the status of its next entries.

use std::collections::VecDeque;

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use silt_format::tree::EntryKind;
use silt_format::{Error, Result};

use super::listing::Listing;
use crate::file::OpenFile;
use crate::mounts::is_pseudo;
use crate::patterns::Matcher;
use crate::rules::{Reason, Rules};
use crate::status::{Status, open_at, status_at, status_of};

/// Minimum number of entries to use several threads. For fewer, starting threads costs more than it
/// saves.
const PARALLEL_MIN: usize = 256;

/// The state of an entry of a window.
pub(super) enum Seen {
    Status(Box<Status>),
    Excluded(Reason),
    Vanished,
    Failed(Errno),
}

/// A directory that is being walked.
pub(super) struct Frame {
    pub(super) names: Listing,
    /// Position of the first name after the window.
    pub(super) next: usize,
    pub(super) window: VecDeque<Seen>,
    pub(super) mount: u64,
    /// Length of the path of the directory above.
    pub(super) path_bytes: usize,
    /// Whether the directory could be opened and is a level of the descent.
    pub(super) is_open: bool,
    /// Why its content is left out, except the marker file of this name.
    pub(super) closed: Option<(Reason, Vec<u8>)>,
    /// The error that makes its remaining entries unreachable.
    pub(super) lost: Option<Error>,
}

impl Frame {
    pub(super) fn new(names: Listing, mount: u64, path_bytes: usize, is_open: bool) -> Self {
        let window = VecDeque::new();
        Self { names, next: 0, window, mount, path_bytes, is_open, closed: None, lost: None }
    }
}

/// Fills the empty places of `window`, which begins at the name `first`, with the status of the
/// names. Uses up to `threads` threads if the window is large.
pub(super) fn read_statuses(
    directory: &OwnedFd,
    names: &Listing,
    first: usize,
    window: &mut [Option<Seen>],
    threads: usize,
) {
    if window.len() < PARALLEL_MIN || threads < 2 {
        return read_some(directory, names, first, window);
    }
    let part = window.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (number, window) in window.chunks_mut(part).enumerate() {
            let read = move || read_some(directory, names, first + number * part, window);
            if std::thread::Builder::new().spawn_scoped(scope, read).is_err() {
                break;
            }
        }
    });
    // Places stay empty if a thread could not be started.
    read_some(directory, names, first, window);
}

fn read_some(directory: &OwnedFd, names: &Listing, first: usize, window: &mut [Option<Seen>]) {
    for (at, seen) in (first..).zip(window).filter(|(_, seen)| seen.is_none()) {
        *seen = Some(match status_at(directory, names.name(at)) {
            Ok(status) => Seen::Status(Box::new(status)),
            Err(Errno::NOENT) => Seen::Vanished,
            Err(error) => Seen::Failed(error),
        });
    }
}

/// Returns the pattern that excludes a name in the directory `path`, which is restored on return.
pub(super) fn matching(
    matcher: &mut Matcher,
    path: &mut Vec<u8>,
    name: &[u8],
    is_directory: bool,
) -> Option<Reason> {
    if matcher.is_empty() {
        return None;
    }
    let length = path.len();
    path.extend_from_slice(name);
    let pattern = matcher.excludes(path, is_directory);
    path.truncate(length);
    pattern.map(Reason::Pattern)
}

/// Returns why an entry is left out because of its status.
pub(super) fn left_out(rules: &Rules, mount: u64, status: &Status) -> Option<Reason> {
    let is_file = status.metadata.kind == EntryKind::File;
    if rules.nodump && status.is_nodump {
        return Some(Reason::NoDump);
    }
    if is_file && rules.larger_than.is_some_and(|limit| status.metadata.size > limit) {
        return Some(Reason::TooLarge);
    }
    // Of a mounted directory, only the content is left out: the mount point is needed again.
    if status.metadata.kind == EntryKind::Directory || status.mount == mount {
        return None;
    }
    if rules.one_file_system {
        return Some(Reason::OtherFileSystem);
    }
    is_pseudo(status.mount).then_some(Reason::PseudoFileSystem)
}

/// Returns whether a name in a directory is a regular file that begins with these bytes.
pub(super) fn begins_with(directory: &OwnedFd, name: &[u8], header: &[u8]) -> Result<bool> {
    let failed = |error: Errno| Error::io("opening a marker", error.into());
    if status_at(directory, name).map_err(failed)?.metadata.kind != EntryKind::File {
        return Ok(false);
    }
    let file = open_at(directory, name, OFlags::empty()).map_err(failed)?;
    if status_of(&file).map_err(failed)?.metadata.kind != EntryKind::File {
        return Ok(false);
    }
    let mut bytes = vec![0; header.len()];
    let read = OpenFile::new(file).read_at(0, &mut bytes)?;
    Ok(read == header.len() && bytes == header)
}
