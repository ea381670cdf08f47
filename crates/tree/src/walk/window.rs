//! Directories that are being walked, and the status of the next entries of each.

use std::collections::VecDeque;

use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use silt_format::Result;
use silt_format::tree::EntryKind;

use crate::file::OpenFile;
use crate::mounts::is_pseudo;
use crate::names::Names;
use crate::patterns::Matcher;
use crate::rules::{Reason, Rules};
use crate::status::{Status, open_at, status_at, status_of};

/// From how many entries on several threads read them: below, starting threads takes longer.
const PARALLEL_MIN: usize = 256;

/// What is known of an entry of a window.
pub(super) enum Seen {
    Status(Box<Status>),
    Excluded(Reason),
    Vanished,
    Failed(Errno),
}

/// A directory that is being walked.
pub(super) struct Frame {
    pub(super) names: Names,
    /// The next name that is not in the window.
    pub(super) next: usize,
    pub(super) window: VecDeque<Seen>,
    pub(super) mount: u64,
    /// Length of the path of the directory above.
    pub(super) path_bytes: usize,
    /// Whether its descriptor is in the descent.
    pub(super) is_open: bool,
    /// Why its content is left out, but for the file of this name.
    pub(super) closed: Option<(Reason, Vec<u8>)>,
    /// Why its remaining entries are missing.
    pub(super) lost: Option<Errno>,
}

impl Frame {
    pub(super) fn new(names: Names, mount: u64, path_bytes: usize, is_open: bool) -> Self {
        let window = VecDeque::new();
        Self { names, next: 0, window, mount, path_bytes, is_open, closed: None, lost: None }
    }
}

/// Reads the status of the names from `first` on that have none in `window` yet, on `threads`
/// threads if they are many.
pub(super) fn read_statuses(
    directory: &OwnedFd,
    names: &Names,
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
            scope.spawn(move || read_some(directory, names, first + number * part, window));
        }
    });
}

fn read_some(directory: &OwnedFd, names: &Names, first: usize, window: &mut [Option<Seen>]) {
    for (at, seen) in (first..).zip(window).filter(|(_, seen)| seen.is_none()) {
        *seen = Some(match status_at(directory, names.name(at)) {
            Ok(status) => Seen::Status(Box::new(status)),
            Err(Errno::NOENT) => Seen::Vanished,
            Err(error) => Seen::Failed(error),
        });
    }
}

/// The pattern that excludes a name in the directory with `path`.
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

/// Why an entry is left out by its status.
pub(super) fn left_out(rules: &Rules, mount: u64, status: &Status) -> Option<Reason> {
    let is_file = status.metadata.kind == EntryKind::File;
    if rules.nodump && status.is_nodump {
        return Some(Reason::NoDump);
    }
    if is_file && rules.larger_than.is_some_and(|limit| status.metadata.size > limit) {
        return Some(Reason::TooLarge);
    }
    // Of a directory only the content is left out, as what it is mounted on must be there again.
    if status.metadata.kind == EntryKind::Directory || status.mount == mount {
        return None;
    }
    if rules.one_file_system {
        return Some(Reason::OtherFileSystem);
    }
    is_pseudo(status.mount).then_some(Reason::PseudoFileSystem)
}

/// Whether a regular file of a directory begins with these bytes.
pub(super) fn begins_with(directory: &OwnedFd, name: &[u8], header: &[u8]) -> Result<bool> {
    let failed = |error: Errno| silt_format::Error::io("opening a marker", error.into());
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
