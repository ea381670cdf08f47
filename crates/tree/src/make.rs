//! Recreating a directory tree from names and metadata.

mod apply;
mod file;
mod options;
mod others;
mod remove;

use std::path::Path;
use std::sync::Arc;

use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, readlinkat,
    renameat, symlinkat, syncfs, unlinkat,
};
use rustix::io::Errno;
use silt_format::tree::{EntryKind, Metadata};
use silt_format::{Error, ErrorKind, Result};

pub use self::file::{FileStep, NewFile, PresentFile};
pub use self::options::{
    Existing, FAILURES_MAX, Failure, MakeOptions, Missing, OwnerChoice, Report, XattrChoice,
};
pub use self::others::OtherNames;

use self::apply::{Handle, prepare_directory, set_flags, unlock};
use self::others::Others;
use crate::descent::Descent;
use crate::names::is_name;
use crate::status::{Status, open_at, open_path, shown, status_at, status_of};
use crate::walk::DEPTH_MAX;

/// Permissions of a new directory until its own are set.
const PRIVATE: Mode = Mode::RWXU;
/// Maximum number of temporary names that are tried for one entry.
const ATTEMPTS: usize = 1000;
/// Maximum number of files with hard links whose flags are set at the end, because these forbid
/// further links. The flags of other such files are counted as missing.
const DEFERRED_MAX: usize = 65_536;
/// Maximum number of file systems that are synced at the end. The kernel writes others to disk
/// later.
const SYNCED_MAX: usize = 64;

/// A directory that is being made.
struct Frame {
    /// `None` for the target, unless [`Maker::root`] was called.
    metadata: Option<Metadata>,
    /// Length of the path of the directory above.
    path_bytes: usize,
    /// Cloned into the new files of the directory. More than one reference means that some of them
    /// are not complete.
    open: Arc<()>,
    others: Others,
    /// Whether the directory was made by this restore.
    is_new: bool,
}

/// A directory that was left and whose attributes are not set yet, as files in it may be
/// incomplete.
struct Left {
    directory: Arc<OwnedFd>,
    metadata: Metadata,
    path: Vec<u8>,
    open: Arc<()>,
}

/// Recreates a directory tree below a target.
///
/// The caller goes top down: it enters a directory, makes its entries in ascending order of their
/// names, and leaves it. In a directory that existed before, all entries but directories are made
/// under a temporary name and renamed when they are complete. In a directory that the maker made
/// itself, they have their names at once; a name that is taken nevertheless is treated as above.
///
/// Nothing outside of the target is changed, even by hostile names, and even if another process
/// swaps directories meanwhile: every entry is reached through the descriptor of its directory, one
/// name at a time, without following symbolic links.
///
/// Attributes are set in an order in which none resets another: content, owner, extended
/// attributes, mode, times, and last flags such as immutable. Those of a directory are set after it
/// is left. An entry that fails does not stop the others: the [`Report`] collects the failures.
pub struct Maker {
    target: Vec<u8>,
    options: MakeOptions,
    descent: Descent,
    frames: Vec<Frame>,
    left: Vec<Left>,
    path: Vec<u8>,
    report: Report,
    /// Files whose flags forbid further hard links, and are therefore set at the end: the path
    /// below the target, and the flags.
    deferred: Vec<(Vec<Vec<u8>>, u32)>,
    /// The file systems that were written to: device number, and a directory on it.
    synced: Vec<((u32, u32), Arc<OwnedFd>)>,
    temporary: u64,
}

impl Maker {
    /// Opens the directory `target`. Creates it and the directories above it if they do not exist.
    /// Follows `target` if it is a symbolic link.
    pub fn open(target: &Path, options: MakeOptions) -> Result<Self> {
        use std::os::unix::ffi::OsStrExt as _;
        let shown = target.display();
        std::fs::create_dir_all(target)
            .map_err(|error| Error::io(format!("making directory '{shown}'"), error))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |error: Errno| Error::io(format!("opening '{shown}'"), error.into());
        let directory = openat(CWD, target, flags, Mode::empty()).map_err(failed)?;
        let status = status_of(&directory).map_err(failed)?;
        let others = if options.lists_others { Others::of(&directory) } else { Others::default() };
        let mut maker = Self {
            target: target.as_os_str().as_bytes().to_vec(),
            options,
            descent: Descent::new(directory, status.id()),
            frames: Vec::new(),
            left: Vec::new(),
            path: Vec::new(),
            report: Report::default(),
            deferred: Vec::new(),
            synced: Vec::new(),
            temporary: 0,
        };
        let directory = maker.descent.current().map_err(failed)?;
        maker.will_sync(&status, &directory);
        maker.frames.push(Frame {
            metadata: None,
            path_bytes: 0,
            open: Arc::default(),
            others,
            is_new: false,
        });
        Ok(maker)
    }

    /// Requests that the target itself gets these attributes, at the end.
    pub fn root(&mut self, metadata: &Metadata) {
        if let Some(root) = self.frames.first_mut() {
            root.metadata = Some(metadata.clone());
        }
    }

    /// Makes a directory, or uses the existing one, and enters it. Returns `false` if that failed.
    /// The caller must then skip its entries, and must not call [`leave`](Self::leave) for it.
    pub fn enter(&mut self, name: &[u8], metadata: &Metadata) -> bool {
        let entered = self.check(name, metadata.kind == EntryKind::Directory).and_then(|parent| {
            if self.frames.len() >= DEPTH_MAX {
                let message = format!("deeper than {DEPTH_MAX} directories");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            self.open_directory(&parent, name)
        });
        let (directory, status, is_new) = match entered {
            Ok(entered) => entered,
            Err(error) => return self.fail(name, error),
        };
        prepare_directory(&directory, &status, metadata, &self.options);
        let others = if self.options.lists_others && !is_new {
            Others::of(&directory)
        } else {
            Others::default()
        };
        self.descent.push(name, directory, status.id());
        if let Ok(directory) = self.descent.current() {
            self.will_sync(&status, &directory);
        }
        self.frames.push(Frame {
            metadata: Some(metadata.clone()),
            path_bytes: self.path.len(),
            open: Arc::default(),
            others,
            is_new,
        });
        self.path.extend_from_slice(name);
        self.path.push(b'/');
        true
    }

    /// Goes up to the directory above, and sets the attributes of the current one. If new files in
    /// it are not complete, its attributes are set after the last of them is.
    pub fn leave(&mut self) {
        if self.frames.len() < 2 {
            return;
        }
        let directory = self.descent.current();
        let Some(frame) = self.frames.pop() else { return };
        let path = self.path.clone();
        self.path.truncate(frame.path_bytes);
        self.descent.pop();
        match directory {
            Ok(directory) => self.left(directory, frame, path),
            Err(error) => {
                let error = Error::io("opening the directory again", error.into());
                self.report.fail(path, error);
            }
        }
    }

    fn left(&mut self, directory: Arc<OwnedFd>, frame: Frame, path: Vec<u8>) {
        if let Some(metadata) = frame.metadata {
            self.left.push(Left { directory, metadata, path, open: frame.open });
        }
        self.sweep();
    }

    /// Sets the attributes of those directories that were left and have no incomplete files.
    fn sweep(&mut self) {
        let mut at = 0;
        while at < self.left.len() {
            if Arc::strong_count(&self.left[at].open) > 1 {
                at += 1;
                continue;
            }
            let left = self.left.remove(at);
            let handle = Handle::Open(&left.directory);
            match handle.apply(&left.metadata, &self.options, &mut self.report.missing) {
                Ok(()) => {
                    let flags = left.metadata.flags;
                    set_flags(&left.directory, flags, &self.options, &mut self.report.missing);
                    self.report.made += 1;
                }
                Err(error) => {
                    self.report.fail(left.path, error);
                }
            }
        }
    }

    /// Makes a hard link to the file whose path below the target is `first`. Returns `false` if
    /// that failed.
    pub fn link_to(&mut self, name: &[u8], metadata: &Metadata, first: &[Vec<u8>]) -> bool {
        let is_file = metadata.kind != EntryKind::Directory;
        let result = self
            .check(name, is_file && !first.is_empty())
            .and_then(|directory| self.link_in(&directory, name, metadata, first));
        self.made(name, result)
    }

    fn link_in(
        &mut self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        metadata: &Metadata,
        first: &[Vec<u8>],
    ) -> Result<()> {
        let (source, source_name) = self.find(first)?;
        let failed = |error: Errno| Error::io("making a hard link", error.into());
        let status = status_at(&*source, source_name).map_err(failed)?;
        if status.metadata.kind != metadata.kind {
            return Err(Error::new(ErrorKind::Conflict, "the file to link to was replaced"));
        }
        if let Ok(present) = status_at(&**directory, name) {
            if present.id() == status.id() {
                return Ok(());
            }
            self.may_replace(&present)?;
        }
        let temporary = self.temporary(|temporary| {
            linkat(&*source, source_name, &**directory, temporary, AtFlags::empty())
        })?;
        let made = status_at(&**directory, &temporary).map(|made| made.id());
        let published = if made == Ok(status.id()) {
            publish(directory, &temporary, name)
        } else {
            Err(Error::new(ErrorKind::Conflict, "the file to link to was replaced"))
        };
        discard_unless(published, directory, &temporary)
    }

    /// Makes a symbolic link, pipe, socket or device. Returns `false` if that failed. A device that
    /// this user may not make is no failure: [`Missing::devices`] counts it.
    pub fn other(&mut self, name: &[u8], metadata: &Metadata) -> bool {
        let is_other = !matches!(metadata.kind, EntryKind::Directory | EntryKind::File);
        let result = self.check(name, is_other).and_then(|directory| {
            let make = |name: &[u8]| make_other(&directory, name, metadata);
            if self.is_in_new() && make(name).is_ok() {
                let dressed = self.dress_other(&directory, name, metadata);
                return match dressed {
                    Err(error) if error.kind() != ErrorKind::Conflict => {
                        discard_unless(Err(error), &directory, name)
                    }
                    dressed => dressed,
                };
            }
            if let Some(present) = self.same_other(&directory, name, metadata)? {
                return self.apply_path(&present, metadata);
            }
            let temporary = match self.temporary(make) {
                Err(error)
                    if error.kind() == ErrorKind::Denied
                        && matches!(
                            metadata.kind,
                            EntryKind::CharDevice | EntryKind::BlockDevice
                        ) =>
                {
                    self.report.missing.devices += 1;
                    return Ok(());
                }
                temporary => temporary?,
            };
            let published = self
                .dress_other(&directory, &temporary, metadata)
                .and_then(|()| publish(&directory, &temporary, name));
            discard_unless(published, &directory, &temporary)
        });
        self.made(name, result)
    }

    /// Returns the existing entry with this name if only its attributes may differ from `metadata`,
    /// and if [`Existing`] permits to keep it. Fails if it exists and may not be replaced.
    fn same_other(
        &self,
        directory: &Arc<OwnedFd>,
        name: &[u8],
        metadata: &Metadata,
    ) -> Result<Option<OwnedFd>> {
        let failed = |error: Errno| Error::io("reading the existing entry", error.into());
        let present = match open_path(&**directory, name) {
            Ok(present) => present,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let status = status_of(&present).map_err(failed)?;
        self.may_replace(&status)?;
        let is_same = status.metadata.kind == metadata.kind
            && status.metadata.links == 1
            && match metadata.kind {
                EntryKind::Symlink => readlinkat(&present, c"", Vec::new())
                    .is_ok_and(|target| target.as_bytes() == metadata.target),
                _ => status.metadata.device == metadata.device,
            };
        Ok((is_same && self.options.existing == Existing::KeepIfSame).then_some(present))
    }

    /// Sets the attributes of a new entry. Fails with `Conflict` if it was replaced.
    fn dress_other(
        &mut self,
        directory: &Arc<OwnedFd>,
        temporary: &[u8],
        metadata: &Metadata,
    ) -> Result<()> {
        let failed = |error: Errno| Error::io("opening the new entry", error.into());
        let made = open_path(&**directory, temporary).map_err(failed)?;
        let status = status_of(&made).map_err(failed)?.metadata;
        if status.kind != metadata.kind || status.links != 1 {
            return Err(Error::new(ErrorKind::Conflict, "it was replaced meanwhile"));
        }
        self.apply_path(&made, metadata)
    }

    fn apply_path(&mut self, file: &OwnedFd, metadata: &Metadata) -> Result<()> {
        Handle::Path(file).apply(metadata, &self.options, &mut self.report.missing)
    }

    /// Returns the names that the current directory had before and that were not made this time.
    /// Call it once, after all entries were made in ascending order of their names and before
    /// [`leave`](Self::leave). Empty unless [`MakeOptions::lists_others`] is set. Fails if the
    /// directory could not be listed.
    pub fn others(&mut self) -> Result<OtherNames> {
        let others = self.frames.last_mut().map(|frame| std::mem::take(&mut frame.others));
        others.unwrap_or_default().finish()
    }

    /// Removes an entry of the current directory, and everything below it except mounted file
    /// systems. Returns `false` if something could not be removed.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let directory = match self.check_name(name) {
            Ok(directory) => directory,
            Err(error) => return self.fail(name, error),
        };
        match remove::remove(&directory, name) {
            Ok(removed) => {
                self.report.removed += removed;
                true
            }
            Err(error) => self.fail(name, error),
        }
    }

    /// Leaves all directories, sets the remaining attributes and syncs the file systems that were
    /// written to. Fails if a sync fails: the tree may then not be on disk.
    pub fn finish(mut self) -> Result<Report> {
        while self.frames.len() > 1 {
            self.leave();
        }
        self.set_deferred_flags();
        if let (Some(frame), Ok(root)) = (self.frames.pop(), self.descent.current()) {
            self.left(root, frame, Vec::new());
        }
        for left in std::mem::take(&mut self.left) {
            let error = Error::new(ErrorKind::Invalid, "files in it are not complete");
            self.report.fail(left.path, error);
        }
        for (_, directory) in &self.synced {
            syncfs(directory).map_err(|error| {
                let target = shown(&self.target);
                Error::io(format!("syncing the file system of '{target}'"), error.into())
            })?;
        }
        Ok(self.report)
    }

    fn set_deferred_flags(&mut self) {
        for (path, flags) in std::mem::take(&mut self.deferred) {
            let opened = self.find(&path).and_then(|(directory, name)| {
                open_at(&*directory, name, OFlags::empty())
                    .map_err(|error| Error::io("opening it to set flags", error.into()))
            });
            match opened {
                Ok(file) => set_flags(&file, flags, &self.options, &mut self.report.missing),
                Err(error) => self.report.fail(path.join(&b'/'), error),
            }
        }
    }

    /// Opens the directory of a path below the target; returns it with the last name of the path.
    fn find<'a>(&mut self, path: &'a [Vec<u8>]) -> Result<(Arc<OwnedFd>, &'a [u8])> {
        let Some((name, above)) = path.split_last() else {
            return Err(Error::invalid("the path of the file to link to is empty"));
        };
        if !path.iter().all(|name| is_name(name)) {
            return Err(Error::invalid("its path contains an invalid file name"));
        }
        let failed = |error: Errno| Error::io("opening a directory above it", error.into());
        let mut directory = self.descent.root().ok_or(Errno::STALE).map_err(failed)?;
        for name in above {
            let below = open_at(&*directory, name, OFlags::DIRECTORY).map_err(failed)?;
            directory = Arc::new(below);
        }
        Ok((directory, name))
    }

    /// Returns the current directory. Fails if `name` cannot be a file name, or if `kind_fits` is
    /// false.
    fn check(&mut self, name: &[u8], kind_fits: bool) -> Result<Arc<OwnedFd>> {
        let directory = self.check_name(name)?;
        if !kind_fits {
            return Err(Error::invalid("its metadata has another type"));
        }
        if let Some(frame) = self.frames.last_mut() {
            frame.others.up_to(Some(name));
        }
        Ok(directory)
    }

    fn check_name(&mut self, name: &[u8]) -> Result<Arc<OwnedFd>> {
        if !is_name(name) {
            return Err(Error::invalid("it is not a valid file name"));
        }
        self.descent
            .current()
            .map_err(|error| Error::io("opening its directory again", error.into()))
    }

    /// Returns whether the maker made the current directory itself, so that it has no other entries
    /// unless another process makes them.
    fn is_in_new(&self) -> bool {
        self.frames.last().is_some_and(|frame| frame.is_new)
    }

    /// Fails if an existing file may not be replaced.
    fn may_replace(&self, present: &Status) -> Result<()> {
        if self.options.existing == Existing::Refuse {
            return Err(Error::new(ErrorKind::AlreadyExists, "it exists already"));
        }
        if present.metadata.kind == EntryKind::Directory {
            return Err(Error::new(ErrorKind::AlreadyExists, "a directory has its name"));
        }
        Ok(())
    }

    /// Makes a directory, or opens the existing one; returns it with its status, and whether it is
    /// new.
    fn open_directory(
        &mut self,
        parent: &Arc<OwnedFd>,
        name: &[u8],
    ) -> Result<(OwnedFd, Status, bool)> {
        let failed = |error: Errno| Error::io("making a directory", error.into());
        let mut is_new = true;
        match mkdirat(&**parent, name, PRIVATE) {
            Err(Errno::EXIST) => {
                let present = status_at(&**parent, name).map_err(failed)?;
                is_new = present.metadata.kind != EntryKind::Directory;
                if is_new {
                    self.may_replace(&present)?;
                    remove::unlink(parent, name).map_err(failed)?;
                    mkdirat(&**parent, name, PRIVATE).map_err(failed)?;
                }
            }
            made => made.map_err(failed)?,
        }
        let directory = open_at(&**parent, name, OFlags::DIRECTORY).map_err(failed)?;
        let status = status_of(&directory).map_err(failed)?;
        Ok((directory, status, is_new))
    }

    fn will_sync(&mut self, status: &Status, directory: &Arc<OwnedFd>) {
        let is_known = self.synced.iter().any(|(device, _)| *device == status.device);
        if !is_known && self.synced.len() < SYNCED_MAX {
            self.synced.push((status.device, directory.clone()));
        }
    }

    /// Calls `make` with temporary names until one of them is free, and returns that name.
    fn temporary(&mut self, make: impl Fn(&[u8]) -> Result<(), Errno>) -> Result<Vec<u8>> {
        let process = rustix::process::getpid().as_raw_pid();
        for _ in 0..ATTEMPTS {
            self.temporary += 1;
            let name = format!(".silt-{process}-{}", self.temporary).into_bytes();
            match make(&name) {
                Ok(()) => return Ok(name),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(Error::io("making it", error.into())),
            }
        }
        Err(Error::new(ErrorKind::AlreadyExists, "all temporary names are taken"))
    }

    /// Counts an entry that was made, or notes its failure.
    fn made(&mut self, name: &[u8], result: Result<()>) -> bool {
        match result {
            Ok(()) => {
                self.report.made += 1;
                true
            }
            Err(error) => self.fail(name, error),
        }
    }

    /// How many entries were made so far.
    pub fn made_so_far(&self) -> u64 {
        self.report.made
    }

    /// Notes that the entry at a path below the target cannot be made, for a reason that the
    /// caller knows.
    pub fn note_failure(&mut self, path: Vec<u8>, error: Error) {
        self.report.fail(path, error);
    }

    /// Notes the failure of an entry of the current directory; returns `false`.
    fn fail(&mut self, name: &[u8], error: Error) -> bool {
        self.report.fail([&self.path, name].concat(), error);
        false
    }
}

fn make_other(directory: &OwnedFd, name: &[u8], metadata: &Metadata) -> Result<(), Errno> {
    let device = makedev(metadata.device.major, metadata.device.minor);
    let (kind, device) = match metadata.kind {
        EntryKind::Symlink => return symlinkat(&*metadata.target, directory, name),
        EntryKind::Fifo => (FileType::Fifo, 0),
        EntryKind::Socket => (FileType::Socket, 0),
        EntryKind::CharDevice => (FileType::CharacterDevice, device),
        EntryKind::BlockDevice => (FileType::BlockDevice, device),
        EntryKind::File | EntryKind::Directory => return Err(Errno::INVAL),
    };
    mknodat(directory, name, kind, Mode::RUSR | Mode::WUSR, device)
}

/// Renames a complete entry from its temporary name to its name.
fn publish(directory: &OwnedFd, temporary: &[u8], name: &[u8]) -> Result<()> {
    let renamed = match renameat(directory, temporary, directory, name) {
        // An immutable file is in the way.
        Err(Errno::PERM) => {
            unlock(directory, name);
            renameat(directory, temporary, directory, name)
        }
        renamed => renamed,
    };
    renamed.map_err(|error| Error::io("renaming it into place", error.into()))
}

/// Removes the temporary name if it is still there; returns `published`.
fn discard_unless(published: Result<()>, directory: &OwnedFd, temporary: &[u8]) -> Result<()> {
    // It can be there after success: renaming onto a hard link of the same file keeps both names.
    match unlinkat(directory, temporary, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => published,
        Err(error) => published.and(Err(Error::io("removing a temporary name", error.into()))),
    }
}
