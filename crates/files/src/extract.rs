//! Copying files and directories out of an image into a folder.
//!
//! Every name is created inside a folder that is held open. It must be new there, and is never
//! followed if it is a link. So nothing is written outside the folder, whatever an image holds, and
//! whatever another program does to the folder meanwhile.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use siltstone::{Error, ErrorKind, Result};

use crate::ext::{Entry, Ext, Inode, Kind, Time};

/// How much of a file is copied at once.
const BUFFER_BYTES: usize = 1 << 20;
/// Deepest folder: each level holds one open file, of which a process has 1024 unless told
/// otherwise.
const DEPTH_MAX: usize = 500;
/// Most files of one folder; their names are held in memory.
const ENTRIES_MAX: usize = 1 << 22;
/// Most files with several names that are linked instead of copied again.
const LINKED_MAX: usize = 1 << 20;
/// The permissions that an image may give: others' programs must not run with one's own rights.
const PERMISSIONS: u16 = 0o777;

/// How to copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyOptions {
    /// Give files the numbers of owner and group that they have in the image, and their setuid,
    /// setgid and sticky bits. Takes the right to do so.
    pub owners: bool,
}

/// The result of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Number of regular files; a file with several names counts once.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// The sizes of the files.
    pub bytes: u64,
    /// Files that could not be copied, with the reason.
    pub left_out: Vec<String>,
    /// How many were left out; `left_out` has the first of them.
    pub left_out_count: u64,
    /// Whether any was left out because the image or the repository is damaged.
    pub found_damage: bool,
}

/// Most messages that are kept.
const MESSAGES_MAX: usize = 1000;

/// A file that was made, for further names of it.
struct Made {
    path: PathBuf,
    device: u64,
    number: u64,
}

struct Copy<'a> {
    ext: &'a Ext,
    root: OwnedFd,
    options: CopyOptions,
    report: CopyReport,
    buffer: Vec<u8>,
    /// Files with several names, by their inode.
    made: HashMap<u32, Made>,
    /// Directories that were entered.
    entered: HashSet<u32>,
    on_left_out: &'a mut dyn FnMut(&str),
}

/// Copies a file, link or directory with its contents into the folder `target`, as `name`; without
/// a name, a directory's contents go directly into the folder. Links are copied as links.
///
/// Creates the folder if it does not exist. Overwrites nothing: fails with `AlreadyExists` if the
/// name exists. Files that cannot be copied are skipped and reported, also through `on_left_out`.
pub fn copy_out(
    ext: &Ext,
    inode: &Inode,
    name: Option<&OsStr>,
    target: &Path,
    options: CopyOptions,
    on_left_out: &mut dyn FnMut(&str),
) -> Result<CopyReport> {
    let failed =
        |what: &str, error: Errno| Error::io(format!("{what} {}", target.display()), error.into());
    match fs::mkdir(target, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed("make the folder", error)),
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let root =
        fs::open(target, flags, Mode::empty()).map_err(|error| failed("open the folder", error))?;
    let here = root.try_clone().map_err(|error| Error::io("open the folder", error))?;
    let mut copy = Copy {
        ext,
        root,
        options,
        report: CopyReport::default(),
        buffer: vec![0; BUFFER_BYTES],
        made: HashMap::new(),
        entered: HashSet::new(),
        on_left_out,
    };
    match name {
        Some(name) => copy.any(inode, here.as_fd(), name, Path::new(""), 0)?,
        None => copy.contents(inode, here.as_fd(), Path::new(""), 0)?,
    }
    Ok(copy.report)
}

impl Copy<'_> {
    /// Copies one file of any type into the folder `parent`, which is at `below` in the target.
    fn any(
        &mut self,
        inode: &Inode,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        below: &Path,
        depth: usize,
    ) -> Result<()> {
        let path = below.join(name);
        match inode.kind {
            Kind::Directory => self.directory(inode, parent, name, &path, depth),
            Kind::File => self.file(inode, parent, name, &path),
            Kind::Symlink => self.symlink(inode, parent, name, &path),
            _ => {
                let message = "devices, pipes and sockets are not copied";
                Err(Error::new(ErrorKind::Unsupported, message))
            }
        }
    }

    fn directory(
        &mut self,
        inode: &Inode,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
        depth: usize,
    ) -> Result<()> {
        if depth >= DEPTH_MAX {
            let message = format!("folders are copied {DEPTH_MAX} deep");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        fs::mkdirat(parent, name, Mode::RWXU).map_err(|error| failed(path, error))?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = fs::openat(parent, name, flags, Mode::empty());
        let folder = folder.map_err(|error| failed(path, error))?;
        self.report.directories += 1;
        self.contents(inode, folder.as_fd(), path, depth + 1)?;
        self.finish(inode, folder.as_fd(), path)
    }

    /// Copies what a directory holds into a folder.
    fn contents(
        &mut self,
        inode: &Inode,
        folder: BorrowedFd<'_>,
        path: &Path,
        depth: usize,
    ) -> Result<()> {
        if !self.entered.insert(inode.number) {
            let message = "the image has this directory in two places";
            return Err(Error::corrupt(message));
        }
        let mut entries: Vec<Entry> = Vec::new();
        let listed = self.ext.entries(inode, &mut |entry| {
            if entries.len() == ENTRIES_MAX {
                let message = format!("more than {ENTRIES_MAX} files in a folder are not copied");
                return Err(Error::new(ErrorKind::Unsupported, message));
            }
            entries.push(entry);
            Ok(())
        });
        if let Err(error) = listed {
            self.left_out(path, error)?;
        }
        for entry in entries {
            let name = OsString::from(OsStr::from_bytes(&entry.name));
            let copied = if entry.is_sound() {
                let inode = self.ext.inode(entry.inode);
                inode.and_then(|inode| self.any(&inode, folder, &name, path, depth))
            } else {
                Err(Error::corrupt("this is no name of a file"))
            };
            if let Err(error) = copied {
                self.left_out(&path.join(&name), error)?;
            }
        }
        Ok(())
    }

    /// Notes what can't be copied; fails where nothing else can be, either.
    fn left_out(&mut self, path: &Path, error: Error) -> Result<()> {
        let is_full = error.cause().is_some_and(|cause| {
            let cause = cause.downcast_ref::<std::io::Error>();
            let code = cause.and_then(std::io::Error::raw_os_error);
            [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::MFILE]
                .iter()
                .any(|full| code == Some(full.raw_os_error()))
        });
        if is_full || error.kind() == ErrorKind::Interrupted {
            return Err(error);
        }
        let message = format!("{} is left out: {error}", path.display());
        (self.on_left_out)(&message);
        self.report.found_damage |= error.kind() == ErrorKind::Corrupt;
        self.report.left_out_count += 1;
        if self.report.left_out.len() < MESSAGES_MAX {
            self.report.left_out.push(message);
        }
        Ok(())
    }

    fn file(
        &mut self,
        inode: &Inode,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> Result<()> {
        if let Some(made) = self.made.get(&inode.number)
            && link(&self.root, made, parent, name).is_ok()
        {
            self.report.hard_links += 1;
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let file = fs::openat(parent, name, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let file = File::from(file.map_err(|error| failed(path, error))?);
        let written = self.ext.read(inode, &mut self.buffer, &mut |offset, bytes| {
            file.write_all_at(bytes, offset).map_err(|error| Error::io("write", error))
        });
        let filled = written.and_then(|()| {
            // What is behind the last data is a hole.
            file.set_len(inode.bytes).map_err(|error| Error::io("write", error))
        });
        if let Err(error) = filled {
            // A file with wrong content would be taken for the right one.
            let _ = fs::unlinkat(parent, name, AtFlags::empty());
            return Err(error);
        }
        self.finish(inode, file.as_fd(), path)?;
        self.report.files += 1;
        self.report.bytes += inode.bytes;
        if inode.links > 1 && self.made.len() < LINKED_MAX {
            let found = fs::fstat(&file).map_err(|error| failed(path, error))?;
            let made = Made { path: path.to_owned(), device: found.st_dev, number: found.st_ino };
            self.made.insert(inode.number, made);
        }
        Ok(())
    }

    fn symlink(
        &mut self,
        inode: &Inode,
        parent: BorrowedFd<'_>,
        name: &OsStr,
        path: &Path,
    ) -> Result<()> {
        let target = self.ext.target(inode)?;
        let target = OsStr::from_bytes(&target);
        fs::symlinkat(target, parent, name).map_err(|error| failed(path, error))?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if self.options.owners {
            let (uid, gid) = owner(inode)?;
            fs::chownat(parent, name, Some(uid), Some(gid), flags)
                .map_err(|error| failed(path, error))?;
        }
        fs::utimensat(parent, name, &times(inode), flags).map_err(|error| failed(path, error))?;
        self.report.symlinks += 1;
        Ok(())
    }

    /// Gives a file or folder its owner, permissions and times, in the order in which none undoes
    /// another.
    fn finish(&self, inode: &Inode, file: BorrowedFd<'_>, path: &Path) -> Result<()> {
        let mut mode = inode.mode & PERMISSIONS;
        if self.options.owners {
            let (uid, gid) = owner(inode)?;
            fs::fchown(file, Some(uid), Some(gid)).map_err(|error| failed(path, error))?;
            mode = inode.mode;
        }
        fs::fchmod(file, Mode::from_raw_mode(mode.into())).map_err(|error| failed(path, error))?;
        fs::futimens(file, &times(inode)).map_err(|error| failed(path, error))
    }
}

fn failed(path: &Path, error: Errno) -> Error {
    Error::io(format!("write {}", path.display()), error.into())
}

/// Gives a file that was made another name. Fails where it is not at its path any more.
fn link(root: &OwnedFd, made: &Made, parent: BorrowedFd<'_>, name: &OsStr) -> Result<()> {
    let wrong = |error: Errno| failed(&made.path, error);
    let folder = made.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let first = made.path.file_name().ok_or_else(|| wrong(Errno::NOENT))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let folder = folder.unwrap_or(Path::new("."));
    let folder = fs::openat2(root, folder, flags, Mode::empty(), within).map_err(wrong)?;
    let found = fs::statat(&folder, first, AtFlags::SYMLINK_NOFOLLOW).map_err(wrong)?;
    if (found.st_dev, found.st_ino) != (made.device, made.number) {
        return Err(wrong(Errno::STALE));
    }
    fs::linkat(&folder, first, parent, name, AtFlags::empty()).map_err(wrong)
}

fn owner(inode: &Inode) -> Result<(Uid, Gid)> {
    // All ones mean "as it is" to the system.
    if inode.uid == u32::MAX || inode.gid == u32::MAX {
        return Err(Error::corrupt("the image gives an owner that there can't be"));
    }
    Ok((Uid::from_raw(inode.uid), Gid::from_raw(inode.gid)))
}

fn times(inode: &Inode) -> Timestamps {
    let time = |time: Time| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    Timestamps { last_access: time(inode.accessed), last_modification: time(inode.modified) }
}
