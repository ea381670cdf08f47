//! A file that is written beside its name and published once it is complete.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;
use silt_format::{Error, ErrorKind, Result};
use silt_storage::durable;

use crate::positioned::set_length;

/// The suffix of the name of an unfinished file.
pub const PARTIAL_SUFFIX: &str = ".silt-partial";

/// Maximum number of attempts, in case other restores keep publishing files meanwhile.
const TRIES_MAX: u32 = 16;

/// An empty file under `<target>.silt-partial`, locked against other restores. If dropped, it stays
/// for the user to see; the next run for the same target overwrites it.
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    target: PathBuf,
    replace: bool,
}

impl Partial {
    pub(super) fn create(target: &Path, replace: bool) -> Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(Error::invalid(format!("{} is not a file name", target.display())));
        };
        let mut name = OsString::from(name);
        name.push(PARTIAL_SUFFIX);
        let path = target.with_file_name(name);
        let file = open_locked(&path)?;
        let partial = Self { file, path, target: target.to_owned(), replace };
        set_length(&partial.file, &partial.path, 0)?;
        Ok(partial)
    }
    pub(super) fn file(&self) -> &File {
        &self.file
    }
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the file durable and gives it its name.
    pub(super) fn publish(self) -> Result<()> {
        durable::sync_file(&self.file)
            .map_err(|error| error.context(format!("{} is not complete", self.path.display())))?;
        if !is_at(&self.file, &self.path) {
            let what = format!("{} was moved or replaced meanwhile", self.path.display());
            return Err(Error::new(ErrorKind::Denied, what));
        }
        if self.replace {
            self.take_over_permissions()?;
            return durable::publish_replacing(&self.path, &self.target);
        }
        // Publishing would remove a file that it cannot publish, but this one took long to write.
        if self.target.symlink_metadata().is_ok() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "{} was created by someone else meanwhile; the restored volume is in {}",
                    self.target.display(),
                    self.path.display()
                ),
            ));
        }
        durable::publish_new(&self.path, &self.target)
    }

    /// A file that replaces another gets its owner and mode. If the owner cannot be set, only this
    /// program's user may access the file.
    fn take_over_permissions(&self) -> Result<()> {
        let failed =
            |error| Error::io(format!("setting the mode of {}", self.path.display()), error);
        let chmod = |mode| rustix::fs::fchmod(&self.file, mode).map_err(io::Error::from);
        let Ok(old) = self.target.metadata() else { return Ok(()) };
        let own = self.file.metadata().map_err(failed)?;
        let owner = |file: &Metadata| (file.uid(), file.gid());
        if owner(&old) != owner(&own) {
            let (uid, gid) = (Uid::from_raw(old.uid()), Gid::from_raw(old.gid()));
            match rustix::fs::fchown(&self.file, Some(uid), Some(gid)) {
                Ok(()) => {}
                Err(Errno::PERM) => return Ok(()),
                Err(error) => return Err(failed(error.into())),
            }
        }
        chmod(Mode::from_raw_mode(old.permissions().mode() & 0o777)).map_err(failed)
    }
}

/// Whether no other user can have the file open or hard-linked. Users who can write to the folder
/// could create the file beforehand, and read and alter the restored data.
fn is_private(file: &Metadata) -> bool {
    file.is_file()
        && file.nlink() == 1
        && file.uid() == rustix::process::geteuid().as_raw()
        && !Mode::from_raw_mode(file.mode()).intersects(Mode::RWXG | Mode::RWXO)
}

/// Whether an open file is the one currently at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    let now = path.symlink_metadata().map(identity);
    file.metadata().map(identity).is_ok_and(|own| now.is_ok_and(|now| now == own))
}

/// Opens and locks the file at `path`, new or stale.
fn open_locked(path: &Path) -> Result<File> {
    let failed = |error| Error::io(format!("creating {}", path.display()), error);
    for _ in 0..TRIES_MAX {
        let mut open = OpenOptions::new();
        open.read(true).write(true).mode(0o600);
        open.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
        let file = match open.clone().create_new(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match open.open(path) {
                // Another restore has just published it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                there => there.map_err(failed)?,
            },
            new => new.map_err(failed)?,
        };
        if !is_private(&file.metadata().map_err(failed)?) {
            let what = format!(
                "{} exists and was not left by a restore of this user; remove it",
                path.display()
            );
            return Err(Error::invalid(what));
        }
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => {
                let what = format!("another restore is writing {}", path.display());
                return Err(Error::new(ErrorKind::Busy, what));
            }
            // Some network file systems cannot lock.
            Ok(()) | Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(failed(error.into())),
        }
        // Between opening and locking, another restore may have published the file.
        if is_at(&file, path) {
            return Ok(file);
        }
    }
    Err(Error::new(ErrorKind::Busy, format!("other restores keep writing {}", path.display())))
}
