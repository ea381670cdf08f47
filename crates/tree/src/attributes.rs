//! Extended attributes and inode flags.

use std::io::Write as _;

use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{
    fgetxattr, flistxattr, getxattr, ioctl_getflags, lgetxattr, listxattr, llistxattr,
};
use rustix::io::Errno;
use silt_format::tree::{XATTR_BYTES_MAX, XATTRS_BYTES_MAX, Xattr};
use silt_format::{Error, ErrorKind, Result};

/// Maximum size of the list of names in bytes: the limit of Linux.
const LIST_BYTES_MAX: usize = 64 << 10;
const NAME_BYTES_MAX: usize = 255;
/// Maximum number of attempts to read a list or value that grows meanwhile.
const ATTEMPTS: usize = 8;

/// The inode flags that a program can set. Flags that only report a state of the file system are
/// not among them. In ascending order of their bits: secure removal, undelete, compression,
/// synchronous, immutable, append only, no dump, no access times, journalled data, no tail,
/// synchronous directory, top directory, no copy on write, direct access, project inheritance,
/// case folding.
pub(crate) const SETTABLE_FLAGS: u32 = 0x1
    | 0x2
    | 0x4
    | 0x8
    | IMMUTABLE
    | APPEND
    | 0x40
    | 0x80
    | 0x4000
    | 0x8000
    | 0x1_0000
    | 0x2_0000
    | EARLY_FLAGS
    | 0x200_0000
    | 0x2000_0000;
/// Forbids every change.
pub(crate) const IMMUTABLE: u32 = 0x10;
/// Forbids every change but appending.
pub(crate) const APPEND: u32 = 0x20;
/// Flags that only an empty file or directory can get: no copy on write, case folding.
pub(crate) const EARLY_FLAGS: u32 = 0x80_0000 | 0x4000_0000;

/// A file whose extended attributes are read.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// Open for reading or writing.
    Open(BorrowedFd<'a>),
    /// A name in a directory; not followed if it is a symbolic link. The path goes through
    /// `/proc/self/fd`: kernels before 6.13 have no call that takes a directory's descriptor.
    Name(BorrowedFd<'a>, &'a [u8]),
    /// A link in `/proc/self/fd`, which is followed.
    Path(&'a [u8]),
}

impl Subject<'_> {
    fn path(directory: BorrowedFd<'_>, name: &[u8]) -> Vec<u8> {
        let mut path = Vec::with_capacity(name.len() + 32);
        // Writing into memory cannot fail.
        let _ = write!(path, "/proc/self/fd/{}/", directory.as_raw_fd());
        path.extend_from_slice(name);
        path
    }

    fn list(self, buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(file) => flistxattr(file, buffer),
            Self::Name(directory, name) => {
                llistxattr(Self::path(directory, name).as_slice(), buffer)
            }
            Self::Path(path) => listxattr(path, buffer),
        }
    }

    fn value(self, attribute: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Open(file) => fgetxattr(file, attribute, buffer),
            Self::Name(directory, name) => {
                lgetxattr(Self::path(directory, name).as_slice(), attribute, buffer)
            }
            Self::Path(path) => getxattr(path, attribute, buffer),
        }
    }
}

/// Returns the names of the extended attributes of a file, in ascending order.
pub(crate) fn xattr_names(of: Subject<'_>) -> Result<Vec<Vec<u8>>, Errno> {
    let mut buffer = vec![0; 1024];
    for _ in 0..ATTEMPTS {
        match of.list(&mut buffer) {
            Ok(length) => {
                let names = buffer[..length].split(|&byte| byte == 0);
                let mut names: Vec<Vec<u8>> =
                    names.filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect();
                names.sort_unstable();
                names.dedup();
                return Ok(names);
            }
            Err(Errno::RANGE) if buffer.len() < LIST_BYTES_MAX => {
                buffer.resize(LIST_BYTES_MAX, 0);
            }
            // The file system does not have extended attributes.
            Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(Vec::new()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::AGAIN)
}

/// Returns the extended attributes of a file in the order of their names, and the error of the
/// first one that could not be read. Attributes that cannot be read, or that were removed
/// meanwhile, are left out. Fails with `Unsupported` if they exceed the limits of the format.
pub(crate) fn xattrs(of: Subject<'_>) -> Result<(Vec<Xattr>, Option<Error>)> {
    let failed = |error: Errno| Error::io("reading extended attributes", error.into());
    let names = xattr_names(of).map_err(failed)?;
    let (mut found, mut total, mut problem) = (Vec::with_capacity(names.len()), 0, None);
    for name in names {
        let value = match value(of, &name) {
            Ok(Some(value)) => value,
            Ok(None) => continue,
            Err(error) => {
                let shown = name.escape_ascii();
                let failed = Error::io(format!("extended attribute '{shown}'"), error.into());
                problem.get_or_insert(failed);
                continue;
            }
        };
        total += name.len() + value.len();
        if name.len() > NAME_BYTES_MAX || total > XATTRS_BYTES_MAX {
            let message = format!("more than {XATTRS_BYTES_MAX} bytes of extended attributes");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        found.push(Xattr { name, value });
    }
    Ok((found, problem))
}

fn value(of: Subject<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    let mut buffer = vec![0; 256];
    for _ in 0..ATTEMPTS {
        match of.value(name, &mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(Some(buffer));
            }
            Err(Errno::RANGE) if buffer.len() < XATTR_BYTES_MAX => {
                buffer.resize(XATTR_BYTES_MAX, 0);
            }
            Err(Errno::NODATA) => return Ok(None),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::AGAIN)
}

/// Returns those inode flags of an open file that can be set; 0 if the file system has no flags.
pub(crate) fn flags(file: impl AsFd) -> Result<u32, Errno> {
    match ioctl_getflags(file) {
        Ok(flags) => Ok(flags.bits() & SETTABLE_FLAGS),
        Err(Errno::NOTTY | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => Ok(0),
        Err(error) => Err(error),
    }
}
