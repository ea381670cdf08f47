//! Setting attributes, in the order in which none erases another.

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
use crate::attributes::{APPEND, EARLY_FLAGS, IMMUTABLE, SETTABLE_FLAGS, Subject, xattr_names};
use crate::status::{Status, open_at, status_at, status_of};

/// Set-user-id and set-group-id: not for the files of another owner.
const SET_ID: u16 = 0o6000;
/// Flags that most file systems have, for one that refuses the others.
const COMMON_FLAGS: u32 = IMMUTABLE | APPEND | 0x8 | 0x40 | 0x80 | 0x1_0000;
/// Namespaces whose attributes are removed if they are not in the metadata: a new file may have
/// inherited ACLs. Labels of security modules are the machine's own.
const OWNED: [&[u8]; 4] = [b"user.", b"trusted.", b"system.posix_acl_", b"security.capability"];

/// A file whose attributes are set.
#[derive(Clone, Copy)]
pub(super) enum Handle<'a> {
    /// Open for reading or writing.
    Open(&'a OwnedFd),
    /// Open as a path: a symbolic link, pipe, socket or device.
    Path(&'a OwnedFd),
}

/// Whose a file is.
#[derive(Clone, Copy)]
enum Owned {
    /// As it should be.
    Right,
    /// The user's who makes it, by choice.
    Otherwise,
    /// Another's, as a privilege is missing.
    Denied,
}

impl Handle<'_> {
    fn file(&self) -> &OwnedFd {
        match self {
            Self::Open(file) | Self::Path(file) => file,
        }
    }

    /// The path that the kernel resolves to the file itself, even if that is a symbolic link.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.file().as_raw_fd())
    }

    /// Sets everything but flags. What a privilege is missing for is counted and no error. After
    /// an error the rest is set, too.
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
                // A user may give a file to another of its groups; if not, it is counted anyway.
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
            // The path has no second part: the link in /proc must be followed here.
            Self::Path(_) => xattr_names(Subject::Path(self.path().as_bytes())),
        };
        names.map_err(|error| failed("listing attributes", error))
    }

    /// Sets the modification time. The access time stays: it is not part of metadata.
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

/// Makes a directory writable that is there already, and sets flags that only an empty one can
/// get. Whether that succeeds shows when it is filled.
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
        // A refusal is noticed when all flags are set.
        let _ = ioctl_setflags(file, IFlags::from_bits_retain(present.bits() | early));
    }
}

/// Clears flags of a name of a directory that forbid its removal. Devices and pipes are not opened
/// and have none.
pub(super) fn unlock(directory: &OwnedFd, name: &[u8]) {
    let has_flags = status_at(directory, name)
        .is_ok_and(|status| matches!(status.metadata.kind, EntryKind::File | EntryKind::Directory));
    if has_flags && let Ok(present) = open_at(directory, name, OFlags::empty()) {
        clear_flags(&present, IMMUTABLE | APPEND);
    }
}

/// Clears flags that forbid changes, if they are set.
pub(super) fn clear_flags(file: &OwnedFd, flags: u32) {
    if let Ok(present) = ioctl_getflags(file)
        && present.bits() & flags != 0
    {
        // If it fails, so does the change that they forbid.
        let _ = ioctl_setflags(file, IFlags::from_bits_retain(present.bits() & !flags));
    }
}

/// Sets the inode flags. Those that the file system does not have are counted as missing.
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
        // Part of them is better than none, and it is counted as missing already.
        let _ = set(wanted & COMMON_FLAGS);
    }
}

fn failed(operation: &str, error: Errno) -> Error {
    Error::io(operation, error.into())
}
