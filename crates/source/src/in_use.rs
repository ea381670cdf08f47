//! Detects whether another program has a disk image open.
//!
//! QEMU holds open-file-description locks of one byte on every image it opens: byte 100 + n while
//! it uses permission n (0 consistent read, 1 write, 2 write unchanged, 3 resize). The test is a
//! snapshot: a program that starts afterwards is not seen.

use std::fs::File;
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use silt_format::{Advice, Error, ErrorKind, Result};

const PERMISSIONS_FIRST: libc::off_t = 100;
const WRITE: libc::off_t = PERMISSIONS_FIRST + 1;
const RESIZE: libc::off_t = PERMISSIONS_FIRST + 3;
const PERMISSIONS: libc::off_t = 4;

/// Fails if another program may write to the file, with `advice`.
pub(crate) fn refuse_written(file: &File, path: &Path, advice: Advice) -> Result<()> {
    if holds(file, path, WRITE, 1)? || holds(file, path, RESIZE, 1)? {
        let path = path.display();
        let message = format!("{path} is open for writing by another program (a running VM?)");
        return Err(Error::new(ErrorKind::Denied, message).with_advice(advice));
    }
    Ok(())
}

/// Fails if another program has the target open in any way.
pub(crate) fn refuse_open(file: &File, path: &Path) -> Result<()> {
    if holds(file, path, PERMISSIONS_FIRST, PERMISSIONS)? {
        let message = format!("{} is open in another program (a running VM?)", path.display());
        let error = Error::new(ErrorKind::Denied, message);
        return Err(error.with_advice(Advice::FreeTarget));
    }
    Ok(())
}

/// Returns whether another process's lock of any kind covers one of `length` bytes from `first` on.
fn holds(file: &File, path: &Path, first: libc::off_t, length: libc::off_t) -> Result<bool> {
    let exclusive = i16::try_from(libc::F_WRLCK).unwrap_or(i16::MAX);
    let unlocked = i16::try_from(libc::F_UNLCK).unwrap_or(i16::MAX);
    let mut lock =
        libc::flock { l_type: exclusive, l_whence: 0, l_start: first, l_len: length, l_pid: 0 };
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|error| {
        Error::io(format!("checking for locks on {}", path.display()), error.into())
    })?;
    Ok(lock.l_type != unlocked)
}
