//! Walking a directory tree.

mod complete;
mod listing;
mod unmet;
mod window;

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use silt_format::tree::{EntryKind, Metadata, Timestamp};
use silt_format::{Error, ErrorKind, Result};

use self::complete::{is_gone, note};
use self::listing::Listing;
use self::unmet::Unmet;
use self::window::{Frame, Seen, left_out, matching, read_statuses};
use crate::descent::Descent;
use crate::file::OpenFile;
use crate::listed::{Below, Selection};
use crate::mounts::{FileSystemTraits, is_pseudo, traits_of};
use crate::patterns::Matcher;
use crate::rules::{Reason, Rules};
use crate::status::{Status, open_at, shown, status_at, status_of};

/// Maximum depth of directories. The content of deeper ones is reported as a problem.
pub const DEPTH_MAX: usize = 65_536;
/// Number of entries of a directory whose status is read at a time.
const WINDOW: usize = 1024;
const THREADS_MAX: usize = 4;
/// Number of directories, from the current one upwards, that keep the status of their next entries.
const WINDOWS_MAX: usize = 64;

/// An entry that a walk found.
#[derive(Debug)]
pub struct Found {
    /// The name; empty for the root.
    pub name: Vec<u8>,
    /// Its metadata. [`Walk::complete`] adds flags, extended attributes and the target of a link.
    pub metadata: Metadata,
    /// The first error from reading the directory, the attributes or the file.
    pub problem: Option<Error>,
}

impl Found {
    /// Copies flags, extended attributes and link target from metadata that an earlier walk
    /// completed, instead of calling [`Walk::complete`]. Do this only if
    /// [`Trust::has_same_attributes`](crate::Trust::has_same_attributes) permits it.
    pub fn take_attributes(&mut self, from: &Metadata) {
        self.metadata.flags = from.flags;
        self.metadata.xattrs.clone_from(&from.xattrs);
        self.metadata.target.clone_from(&from.target);
    }
}

/// A step of a walk.
#[derive(Debug)]
pub enum Step {
    /// A directory begins. The steps up to its [`Step::Leave`] describe its entries.
    Enter(Found),
    /// An entry of the current directory that is not a directory itself.
    Entry(Found),
    /// The current directory ends. With an error, its remaining entries are missing because it was
    /// moved or replaced meanwhile.
    Leave(Option<Error>),
    /// This entry of the current directory was left out; with an empty name, the rest of the
    /// directory.
    Excluded(Vec<u8>, Reason),
    /// The status of this entry of the current directory could not be read; or this path below the
    /// root is in [`Rules::only`] and does not exist.
    Failed(Vec<u8>, Error),
}

/// The result of entering a directory.
enum Entered {
    Step(Step),
    Vanished,
    Failed(Errno),
    /// The name now belongs to an entry that is not a directory.
    Replaced(Status),
}

/// A walk through a directory tree: depth first, the entries of a directory in byte order of
/// their names. The same tree gives the same steps.
///
/// Nothing outside of the root is read, even if entries are renamed meanwhile: the walk goes
/// through descriptors of directories, one name at a time, and never follows symbolic links. At
/// most 128 directories are open.
///
/// In memory are up to 4 MiB of names of each directory from the root to the current one, and the
/// status of at most 1,024 entries in each of the 64 lowest. If a directory has more names, they
/// are in a temporary file. A status may be old: it was read before the entries in front of it were
/// walked.
pub struct Walk {
    root: Vec<u8>,
    rules: Rules,
    matcher: Matcher,
    /// The paths to which the walk is limited.
    selection: Option<Arc<Selection>>,
    unmet: Unmet,
    descent: Descent,
    frames: Vec<Frame>,
    /// The path of the current directory below the root, with a `/` behind each name.
    path: Vec<u8>,
    /// The root, until the first step returns it.
    start: Option<Found>,
    /// The file systems in the order in which the walk reached them.
    devices: Vec<((u32, u32), FileSystemTraits)>,
    /// The current file, if it was opened to complete its metadata.
    opened: Option<OpenFile>,
    /// When the entry of the last step was created.
    born: Option<Timestamp>,
    threads: usize,
    vanished: u64,
}

impl Walk {
    /// Starts at a directory. Follows `root` if it is a symbolic link, but no other link. Fails
    /// with `NotFound` if it does not exist, with `Invalid` if it is not a directory, and with
    /// `Unsupported` if `/proc` is not mounted.
    pub fn open(root: &Path, rules: &Rules) -> Result<Self> {
        let shown = root.display();
        // Attributes of links, pipes and devices are read through /proc.
        status_at(CWD, b"/proc/self/fd").map_err(|error| {
            Error::io("/proc, which must be mounted", error.into())
                .with_kind(ErrorKind::Unsupported)
        })?;
        let opened =
            openat(CWD, root, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let directory = opened.map_err(|error| match error {
            Errno::NOTDIR => Error::invalid(format!("'{shown}' is not a directory")),
            error => Error::io(format!("opening '{shown}'"), error.into()),
        })?;
        let failed = |error: Errno| Error::io(format!("status of '{shown}'"), error.into());
        let mut status = status_of(&directory).map_err(failed)?;
        let selection = rules.only.as_ref().map(|list| Selection::new(list, root)).transpose()?;
        let mut walk = Self {
            root: root.as_os_str().as_bytes().to_vec(),
            rules: rules.clone(),
            matcher: rules.matcher()?,
            selection: selection.map(Arc::new),
            unmet: Unmet::new(),
            descent: Descent::new(directory, status.id()),
            frames: Vec::new(),
            path: Vec::new(),
            start: None,
            devices: Vec::new(),
            opened: None,
            born: None,
            threads: std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX),
            vanished: 0,
        };
        let directory = walk.descent.current().map_err(failed)?;
        walk.number(&mut status, Some(&directory))?;
        let below = walk.selection.as_deref().map_or_else(Below::default, Selection::of_root);
        let (names, problem) = walk.listing(&directory, below);
        walk.note_lacking(&directory, &names);
        let problem = problem.map(|error| error.context(format!("reading directory '{shown}'")));
        walk.start = Some(Found { name: Vec::new(), metadata: status.metadata, problem });
        walk.frames.push(Frame::new(names, status.mount, 0, true));
        Ok(walk)
    }

    /// Returns the next step; `None` after the last, which leaves the root. Fails with
    /// `Unsupported` if the tree has more than 65,536 file systems.
    #[expect(clippy::should_implement_trait, reason = "an error ends no walk as it ends iterators")]
    pub fn next(&mut self) -> Result<Option<Step>> {
        self.opened = None;
        if let Some(root) = self.start.take() {
            return Ok(Some(Step::Enter(root)));
        }
        loop {
            if let Some(step) = self.next_unmet() {
                return Ok(Some(step));
            }
            let Some(frame) = self.frames.last_mut() else { return Ok(None) };
            let Some(seen) = frame.window.pop_front() else {
                if let Some(step) = self.refill() {
                    return Ok(Some(step));
                }
                continue;
            };
            let at = frame.next - frame.window.len() - 1;
            let (name, is_listed) = (frame.names.name(at).to_vec(), frame.names.is_listed());
            match seen {
                Seen::Excluded(reason) => return Ok(Some(Step::Excluded(name, reason))),
                Seen::Vanished if is_listed => self.note_missing(&name),
                Seen::Vanished => self.vanished += 1,
                Seen::Failed(error) => return Ok(Some(self.failed(name, error))),
                Seen::Status(status) => {
                    if let Some(step) = self.found(name, *status)? {
                        return Ok(Some(step));
                    }
                }
            }
        }
    }

    /// Adds flags, extended attributes and the target of a link to the entry of the last step, and
    /// updates its metadata. Returns `false` if the entry no longer exists. Any other error goes
    /// into [`Found::problem`].
    ///
    /// Opens a regular file, and keeps it open for [`open_file`](Self::open_file).
    pub fn complete(&mut self, found: &mut Found) -> bool {
        let result = match found.metadata.kind {
            EntryKind::Directory => self.complete_directory(found),
            EntryKind::File => self.complete_file(found),
            _ => self.complete_other(found),
        };
        let error = match result {
            Ok(()) => return true,
            Err(error) if is_gone(&error) => {
                self.vanished += 1;
                return false;
            }
            Err(error) => error,
        };
        let path = shown(&self.path_of(found));
        note(found, error.context(format!("reading '{path}'")));
        true
    }

    /// Opens the regular file of the last step for reading. Fails with `NotFound` if it no longer
    /// exists, and with `Conflict` if another file has its name now.
    pub fn open_file(&mut self, found: &Found) -> Result<OpenFile> {
        if let Some(file) = self.opened.take() {
            return Ok(file);
        }
        let path = self.path_of(found);
        let failed = |error: Errno| Error::io(format!("opening '{}'", shown(&path)), error.into());
        let directory = self.descent.current().map_err(failed)?;
        let file = open_at(&*directory, &found.name, OFlags::empty()).map_err(failed)?;
        let status = status_of(&file).map_err(failed)?.metadata;
        if status.kind != found.metadata.kind || status.inode != found.metadata.inode {
            let message = format!("'{}' was replaced meanwhile", shown(&path));
            return Err(Error::new(ErrorKind::Conflict, message));
        }
        Ok(OpenFile::new(file))
    }

    /// Returns when the file of the last step was created, if the file system says so. It tells a
    /// file from an earlier one of the same inode number.
    pub fn born(&self) -> Option<Timestamp> {
        self.born
    }

    /// Returns the number of entries that were removed after their directory was listed and before
    /// the walk reached them.
    pub fn vanished(&self) -> u64 {
        self.vanished
    }

    /// Returns the traits of a file system by its number in [`Metadata::file_system`].
    pub fn traits(&self, file_system: u16) -> FileSystemTraits {
        self.devices.get(usize::from(file_system)).map(|(_, traits)| *traits).unwrap_or_default()
    }

    /// Returns the path of the entry of the last step, beginning with the root as it was given.
    pub fn path_of(&self, found: &Found) -> Vec<u8> {
        let mut path = self.directory_path();
        if found.metadata.kind != EntryKind::Directory {
            path.push(b'/');
            path.extend_from_slice(&found.name);
        }
        path
    }

    /// Returns the path of the current directory, beginning with the root as it was given.
    pub fn directory_path(&self) -> Vec<u8> {
        let mut path = self.root.clone();
        if !self.path.is_empty() {
            if path.last() != Some(&b'/') {
                path.push(b'/');
            }
            path.extend_from_slice(&self.path[..self.path.len() - 1]);
        }
        path
    }

    /// Reads the next window of the current directory, or leaves it after the last.
    fn refill(&mut self) -> Option<Step> {
        let frame = self.frames.last_mut()?;
        if frame.next < frame.names.len() {
            if let Err(error) = self.fill() {
                let frame = self.frames.last_mut()?;
                frame.next = frame.names.len();
                frame.lost = Some(error);
            }
            return None;
        }
        if let Some((reason, _)) = frame.closed.take() {
            return Some(Step::Excluded(Vec::new(), reason));
        }
        let shown = shown(&self.directory_path());
        let frame = self.frames.pop()?;
        self.path.truncate(frame.path_bytes);
        if frame.is_open {
            self.descent.pop();
        }
        let lost = frame.lost.map(|error| error.context(format!("directory '{shown}'")));
        Some(Step::Leave(lost))
    }

    fn fill(&mut self) -> Result<()> {
        let moved = |error: Errno| Error::io("it was moved while it was read", error.into());
        let directory = self.descent.current().map_err(moved)?;
        let Some(frame) = self.frames.last_mut() else { return Ok(()) };
        let end = frame.names.len().min(frame.next + WINDOW);
        frame.names.load(frame.next..end)?;
        let mut window = Vec::with_capacity(end - frame.next);
        for at in frame.next..end {
            let excluded = match frame.names.is_directory(at) {
                Some(is_directory) => {
                    matching(&mut self.matcher, &mut self.path, frame.names.name(at), is_directory)
                }
                None => None,
            };
            window.push(excluded.map(Seen::Excluded));
        }
        let first = frame.next;
        read_statuses(&directory, &frame.names, first, &mut window, self.threads);
        for (at, seen) in (first..).zip(&mut window) {
            let name = frame.names.name(at);
            if let Some(Seen::Status(status)) = seen {
                let is_directory = status.metadata.kind == EntryKind::Directory;
                let mut reason = left_out(&self.rules, frame.mount, status);
                if reason.is_none() && frame.names.is_directory(at) != Some(is_directory) {
                    reason = matching(&mut self.matcher, &mut self.path, name, is_directory);
                }
                if let Some(reason) = reason {
                    *seen = Some(Seen::Excluded(reason));
                }
            }
        }
        frame.next = end;
        frame.window = window.into_iter().map(|seen| seen.unwrap_or(Seen::Vanished)).collect();
        Ok(())
    }

    /// Returns the step of an entry with this status; `None` if it vanished.
    fn found(&mut self, name: Vec<u8>, mut status: Status) -> Result<Option<Step>> {
        if status.metadata.kind == EntryKind::Directory {
            match self.enter(&name, status)? {
                Entered::Step(step) => return Ok(Some(step)),
                Entered::Vanished => {
                    self.vanished += 1;
                    return Ok(None);
                }
                Entered::Failed(error) => return Ok(Some(self.failed(name, error))),
                Entered::Replaced(by) => status = by,
            }
        }
        self.note_no_directory(&name);
        self.number(&mut status, None)?;
        self.born = status.born;
        Ok(Some(Step::Entry(Found { name, metadata: status.metadata, problem: None })))
    }

    /// Enters a directory. `status` is that of its name and may be old.
    fn enter(&mut self, name: &[u8], mut status: Status) -> Result<Entered> {
        let above = self.frames.last().map_or(status.mount, |frame| frame.mount);
        let mut closed = self.closed(above, &status);
        if closed.is_some() {
            // Do not even open it: that can trigger an automount.
            self.number(&mut status, None)?;
            return Ok(self.push(name, status, Listing::empty(), closed, None, None));
        }
        if self.frames.len() >= DEPTH_MAX {
            let limit = format!("deeper than {DEPTH_MAX} directories");
            let problem = Some(Error::new(ErrorKind::Unsupported, limit));
            return Ok(self.push(name, status, Listing::empty(), None, None, problem));
        }
        let parent = match self.descent.current() {
            Ok(parent) => parent,
            Err(error) => return Ok(Entered::Failed(error)),
        };
        let directory = match open_at(&*parent, name, OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => return Ok(Entered::Vanished),
            Err(error @ (Errno::NOTDIR | Errno::LOOP)) => {
                return Ok(match status_at(&*parent, name) {
                    Ok(now) if now.metadata.kind != EntryKind::Directory => Entered::Replaced(now),
                    Err(Errno::NOENT) => Entered::Vanished,
                    _ => Entered::Failed(error),
                });
            }
            Err(error) => {
                self.number(&mut status, None)?;
                let shown = shown(&[&self.directory_path()[..], b"/", name].concat());
                let problem = Error::io(format!("opening directory '{shown}'"), error.into());
                return Ok(self.push(name, status, Listing::empty(), None, None, Some(problem)));
            }
        };
        status = match status_of(&directory) {
            Ok(status) => status,
            Err(error) => return Ok(Entered::Failed(error)),
        };
        self.number(&mut status, Some(&directory))?;
        closed = self.closed(above, &status);
        let (names, problem) = if closed.is_some() {
            (Listing::empty(), None)
        } else {
            self.listing(&directory, self.below(name))
        };
        if problem.as_ref().is_some_and(is_gone) {
            // It was removed after it was opened.
            return Ok(Entered::Vanished);
        }
        let problem = problem.map(|error| error.context("reading a directory"));
        Ok(self.push(name, status, names, closed, Some(directory), problem))
    }

    /// Returns why the content of a directory is left out because of its mount.
    fn closed(&self, above: u64, status: &Status) -> Option<Reason> {
        if status.mount == above {
            None
        } else if is_pseudo(status.mount) {
            Some(Reason::PseudoFileSystem)
        } else {
            self.rules.one_file_system.then_some(Reason::OtherFileSystem)
        }
    }

    fn push(
        &mut self,
        name: &[u8],
        status: Status,
        names: Listing,
        closed: Option<Reason>,
        directory: Option<OwnedFd>,
        mut problem: Option<Error>,
    ) -> Entered {
        // Drop the window of a directory far above. It is read again when the walk comes back.
        if let Some(far) = self.frames.len().checked_sub(WINDOWS_MAX) {
            let far = &mut self.frames[far];
            far.next -= far.window.len();
            far.window = VecDeque::new();
        }
        let mut frame = Frame::new(names, status.mount, self.path.len(), directory.is_some());
        frame.closed = closed.map(|reason| (reason, Vec::new()));
        if let Some(directory) = directory {
            if frame.closed.is_none() {
                frame.closed = self.marked(&directory, &frame.names);
            }
            if let Some((_, marker)) = &frame.closed {
                problem = problem.or(frame.names.retain_only(marker).err());
            } else {
                self.note_lacking(&directory, &frame.names);
            }
            self.descent.push(name, directory, status.id());
        }
        self.path.extend_from_slice(name);
        self.path.push(b'/');
        self.frames.push(frame);
        let mut found = Found { name: name.to_vec(), metadata: status.metadata, problem: None };
        if let Some(problem) = problem {
            let path = shown(&self.directory_path());
            found.problem = Some(problem.context(format!("'{path}'")));
        }
        Entered::Step(Step::Enter(found))
    }

    /// Returns the marker that excludes the content of a directory: reason, and name of the marker.
    fn marked(&self, directory: &OwnedFd, names: &Listing) -> Option<(Reason, Vec<u8>)> {
        let mut markers = self.rules.all_markers();
        let found = markers.find(|(name, header, _)| {
            names.contains(directory, name)
                && (header.is_empty()
                    || window::begins_with(directory, name, header).unwrap_or(false))
        });
        found.map(|(name, _, reason)| (reason, name.to_vec()))
    }

    /// Sets the number of the file system in the metadata of a status. Fails with `Unsupported` if
    /// the tree has more than 65,536 file systems.
    fn number(&mut self, status: &mut Status, directory: Option<&OwnedFd>) -> Result<()> {
        let known = self.devices.iter().position(|(device, _)| *device == status.device);
        let number = known.unwrap_or(self.devices.len());
        if known.is_none() {
            let traits = directory.map(traits_of).unwrap_or_default();
            self.devices.push((status.device, traits));
        }
        status.metadata.file_system = u16::try_from(number).map_err(|_| {
            Error::new(ErrorKind::Unsupported, "the tree has more than 65,536 file systems")
        })?;
        Ok(())
    }

    fn failed(&self, name: Vec<u8>, error: Errno) -> Step {
        let path = shown(&[&self.directory_path()[..], b"/", &name].concat());
        Step::Failed(name, Error::io(format!("status of '{path}'"), error.into()))
    }
}
