//! Setting attributes, in an order in which none resets another.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Gid, IFlags, Mode, OFlags, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags,
    chmodat, chownat, fchmod, fchown, fremovexattr, fsetxattr, futimens, ioctl_getflags,
    ioctl_setflags, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;
use silt_format::tree::{EntryKind, Metadata};
use silt_format::{Error, Result};

use super::options::{MakeOptions, Missing, OwnerChoice, XattrChoice};
use crate::attributes::{
    APPEND, EARLY_FLAGS, IMMUTABLE, SETTABLE_FLAGS, Subject, flags, xattr_names, xattrs,
};
use crate::status::{Status, open_at, status_at, status_of};

/// Set-user-id and set-group-id. Not set if the owner could not be set: the program would run as
/// the wrong user.
const SET_ID: u16 = 0o6000;
/// Flags that most file systems have; tried if a file system refuses all of the flags.
const COMMON_FLAGS: u32 = IMMUTABLE | APPEND | 0x8 | 0x40 | 0x80 | 0x1_0000;
/// Prefixes of attributes that are removed if the metadata does not have them, such as ACLs that a
/// new file inherited. Labels of security modules belong to the machine and stay.
const OWNED: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];

/// An open file, to set its attributes.
#[derive(Clone, Copy)]
pub(super) enum Handle<'a> {
    /// Open for reading or writing.
    Open(&'a OwnedFd),
    /// Open as a path: a symbolic link, pipe, socket or device.
    Path(&'a OwnedFd),
}

/// The owner of a file after an attempt to set it.
#[derive(Clone, Copy)]
enum Owned {
    /// The wanted owner.
    Right,
    /// The user who restores, as the options ask for.
    Otherwise,
    /// Not the wanted owner: a privilege is missing.
    Denied,
}

impl Handle<'_> {
    fn file(&self) -> &OwnedFd {
        match self {
            Self::Open(file) | Self::Path(file) => file,
        }
    }

    /// Returns a path that resolves to the file itself, even if that is a symbolic link.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file().as_raw_fd())
    }

    /// Sets all attributes but flags. An attribute that needs a missing privilege is counted in
    /// `missing` and is no error. After an error it still sets the others.
    pub(super) fn apply(
        &self,
        metadata: &Metadata,
        options: &MakeOptions,
        missing: &mut Missing,
    ) -> Result<()> {
        let status = status_of(self.file()).map_err(|error| failed("status", error))?;
        let mut mode = metadata.mode;
        let owned = self.set_owner(&status, metadata, options);
        if let Ok(Owned::Otherwise | Owned::Denied) | Err(_) = owned
            && metadata.kind != EntryKind::Directory
        {
            mode &= !SET_ID;
        }
        missing.owners += u64::from(matches!(owned, Ok(Owned::Denied)));
        let attributes = self.set_xattrs(metadata, options, missing);
        let bits = Mode::from_bits_retain(mode.into());
        let moded = match self {
            _ if metadata.kind == EntryKind::Symlink => Ok(()),
            Self::Open(file) => fchmod(file, bits),
            Self::Path(_) => chmodat(CWD, self.path(), bits, AtFlags::empty()),
        };
        let timed = self.set_times(metadata);
        owned.map_err(|error| failed("setting the owner", error))?;
        attributes?;
        moded.map_err(|error| failed("setting the mode", error))?;
        timed.map_err(|error| failed("setting times", error))
    }

    fn set_owner(
        &self,
        status: &Status,
        metadata: &Metadata,
        options: &MakeOptions,
    ) -> Result<Owned, Errno> {
        let (uid, gid) = match &options.owners {
            OwnerChoice::Mapped(map) => (map.user(metadata.uid), map.group(metadata.gid)),
            OwnerChoice::Numbers | OwnerChoice::Maker => (metadata.uid, metadata.gid),
        };
        if (status.metadata.uid, status.metadata.gid) == (uid, gid) {
            return Ok(Owned::Right);
        }
        if options.owners == OwnerChoice::Maker {
            return Ok(Owned::Otherwise);
        }
        // The highest number means "unchanged" to the kernel and belongs to nobody.
        if uid == u32::MAX || gid == u32::MAX {
            return Ok(Owned::Denied);
        }
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        match self.chown(Some(user), Some(group)) {
            Ok(()) => Ok(Owned::Right),
            Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP) => {
                // Users may give their files to another group that they are in. The file counts as
                // denied in either case.
                if status.metadata.gid != gid {
                    let _ = self.chown(None, Some(group));
                }
                Ok(Owned::Denied)
            }
            Err(error) => Err(error),
        }
    }

    fn chown(&self, user: Option<Uid>, group: Option<Gid>) -> Result<(), Errno> {
        match self {
            Self::Open(file) => fchown(file, user, group),
            Self::Path(file) => chownat(file, c"", user, group, AtFlags::EMPTY_PATH),
        }
    }

    fn set_xattrs(
        &self,
        metadata: &Metadata,
        options: &MakeOptions,
        missing: &mut Missing,
    ) -> Result<()> {
        let is_chosen = |name: &[u8]| match options.xattrs {
            XattrChoice::All => true,
            XattrChoice::User => name.starts_with(b"user."),
            XattrChoice::None => false,
        };
        if options.xattrs == XattrChoice::None {
            return Ok(());
        }
        let wanted = || metadata.xattrs.iter().filter(|xattr| is_chosen(&xattr.name));
        for name in self.xattr_names()? {
            let is_owned = OWNED.iter().any(|prefix| name.starts_with(prefix));
            if is_owned && is_chosen(&name) && wanted().all(|xattr| xattr.name != name) {
                let removed = match self {
                    Self::Open(file) => fremovexattr(file, &*name),
                    Self::Path(_) => removexattr(self.path(), &*name),
                };
                match removed {
                    Ok(()) | Err(Errno::NODATA) => {}
                    Err(Errno::PERM | Errno::ACCESS) => missing.xattrs += 1,
                    Err(error) => return Err(failed("removing an attribute", error)),
                }
            }
        }
        for xattr in wanted() {
            let (name, value) = (&*xattr.name, &*xattr.value);
            let set = match self {
                Self::Open(file) => fsetxattr(file, name, value, XattrFlags::empty()),
                Self::Path(_) => setxattr(self.path(), name, value, XattrFlags::empty()),
            };
            match set {
                Ok(()) => {}
                Err(Errno::PERM | Errno::ACCESS | Errno::NOTSUP) => missing.xattrs += 1,
                Err(error) => {
                    let name = name.escape_ascii();
                    return Err(failed(&format!("setting attribute '{name}'"), error));
                }
            }
        }
        Ok(())
    }

    fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        let names = match self {
            Self::Open(file) => xattr_names(Subject::Open(file.as_fd())),
            // The link in /proc must be followed: it leads to the file itself.
            Self::Path(_) => xattr_names(Subject::Path(self.path().as_bytes())),
        };
        names.map_err(|error| failed("listing attributes", error))
    }

    /// Sets the modification time. Keeps the access time, which is not part of the metadata.
    fn set_times(&self, metadata: &Metadata) -> Result<(), Errno> {
        let modified = Timespec {
            tv_sec: metadata.modified.seconds,
            tv_nsec: metadata.modified.nanoseconds.into(),
        };
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: modified,
        };
        match self {
            Self::Open(file) => futimens(file, &times),
            Self::Path(_) => utimensat(CWD, self.path(), &times, AtFlags::empty()),
        }
    }
}

/// Returns whether a file has all these attributes, so that setting them would change nothing.
/// Returns `false` if the attributes to set depend on `options`, or if they forbid hard links.
pub(super) fn has_attributes(
    file: &OwnedFd,
    found: &Metadata,
    wanted: &Metadata,
    options: &MakeOptions,
) -> bool {
    let numbers = |of: &Metadata| (of.mode, of.uid, of.gid, of.modified);
    options.owners == OwnerChoice::Numbers
        && options.xattrs == XattrChoice::All
        && numbers(found) == numbers(wanted)
        && wanted.flags & (IMMUTABLE | APPEND) == 0
        && (options.ignores_flags || flags(file) == Ok(wanted.flags & SETTABLE_FLAGS))
        && xattrs(Subject::Open(file.as_fd()))
            .is_ok_and(|(found, problem)| problem.is_none() && found == wanted.xattrs)
}

/// Makes an existing directory writable, and sets the flags that only an empty directory can get.
/// Ignores errors: if they matter, filling the directory or setting its flags fails later.
pub(super) fn prepare_directory(
    directory: &OwnedFd,
    status: &Status,
    metadata: &Metadata,
    options: &MakeOptions,
) {
    clear_flags(directory, IMMUTABLE | APPEND);
    if status.metadata.mode & 0o700 != 0o700 {
        let mode = Mode::from_bits_retain((status.metadata.mode | 0o700).into());
        let _ = fchmod(directory, mode);
    }
    set_early_flags(directory, metadata, options);
}

/// Sets the flags that only an empty file or directory can get.
pub(super) fn set_early_flags(file: &OwnedFd, metadata: &Metadata, options: &MakeOptions) {
    let early = metadata.flags & EARLY_FLAGS;
    if early != 0
        && !options.ignores_flags
        && let Ok(present) = ioctl_getflags(file)
    {
        // Setting all flags at the end counts a refusal.
        let _ = ioctl_setflags(file, IFlags::from_bits_retain(present.bits() | early));
    }
}

/// Clears the flags of an entry that forbid its removal. Does nothing for devices and pipes: they
/// have no flags, and must not be opened.
pub(super) fn unlock(directory: &OwnedFd, name: &[u8]) {
    let has_flags = status_at(directory, name)
        .is_ok_and(|status| matches!(status.metadata.kind, EntryKind::File | EntryKind::Directory));
    if has_flags && let Ok(present) = open_at(directory, name, OFlags::empty()) {
        clear_flags(&present, IMMUTABLE | APPEND);
    }
}

/// Clears those of `flags` that are set.
pub(super) fn clear_flags(file: &OwnedFd, flags: u32) {
    if let Ok(present) = ioctl_getflags(file)
        && present.bits() & flags != 0
    {
        // If this fails, the change that they forbid fails as well.
        let _ = ioctl_setflags(file, IFlags::from_bits_retain(present.bits() & !flags));
    }
}

/// Sets the inode flags. Counts the file in `missing` if some of them cannot be set.
pub(super) fn set_flags(file: &OwnedFd, flags: u32, options: &MakeOptions, missing: &mut Missing) {
    let wanted = flags & SETTABLE_FLAGS;
    if options.ignores_flags {
        return;
    }
    let Ok(present) = ioctl_getflags(file) else {
        missing.flags += u64::from(wanted != 0);
        return;
    };
    let present = present.bits();
    if present & SETTABLE_FLAGS == wanted {
        return;
    }
    let set =
        |wanted| ioctl_setflags(file, IFlags::from_bits_retain(present & !SETTABLE_FLAGS | wanted));
    if set(wanted).is_err() {
        missing.flags += 1;
        // Some flags are better than none. The file is counted already.
        let _ = set(wanted & COMMON_FLAGS);
    }
}

fn failed(operation: &str, error: Errno) -> Error {
    Error::io(operation, error.into())
}
