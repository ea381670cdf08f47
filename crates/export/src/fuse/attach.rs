//! Mounting and unmounting: by system calls as root, by `fusermount3` as another user.

use std::ffi::CString;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use silt_format::{Advice, Error, ErrorKind, Result};

use super::protocol::READ_BYTES_MAX;

/// Size of the kernel's read-ahead: two reads of the maximum size.
const READ_AHEAD_BYTES: usize = 2 * READ_BYTES_MAX;
const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const TYPE: &str = "fuse.silt";

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks that a repository can be mounted at `folder`. Fails with `Invalid` if it is not a folder,
/// and with `Denied` if it is not empty or something is mounted there.
pub fn check_mount_point(folder: &Path) -> Result<()> {
    let shown = folder.display();
    let failed = |error: std::io::Error| {
        if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) {
            let message =
                format!("{shown} is still mounted, but the program that served it has ended");
            let advice = Advice::Unmount { folder: shown.to_string() };
            return Error::new(ErrorKind::Denied, message).with_advice(advice);
        }
        Error::io(format!("mount at {shown}"), error)
    };
    let found = std::fs::metadata(folder).map_err(failed)?;
    if !found.is_dir() {
        return Err(Error::invalid(format!("{shown} is not a folder")));
    }
    // If its server is dead, the kernel may still know the folder's status, but not its entries.
    let mut entries = std::fs::read_dir(folder).map_err(failed)?;
    let above = std::fs::metadata(folder.join("..")).map_err(failed)?;
    if (above.dev(), above.ino()) == (found.dev(), found.ino()) || above.dev() != found.dev() {
        let message = format!("something is mounted at {shown} already");
        return Err(Error::new(ErrorKind::Denied, message));
    }
    if entries.next().is_some() {
        let message = format!("{shown} is not empty; a mount would hide its content");
        return Err(Error::new(ErrorKind::Denied, message));
    }
    Ok(())
}

/// Returns the mount options that let other users see the folder, with the permissions of the
/// files. Without them, the user who mounts can read all files, as he can read the repository.
fn others(allow_other: bool) -> &'static str {
    if allow_other { ",allow_other,default_permissions" } else { "" }
}

/// Mounts at a folder. Returns the FUSE device, from which requests are read.
pub fn mount(folder: &Path, allow_other: bool) -> Result<OwnedFd> {
    if is_root() { mount_directly(folder, allow_other) } else { ask_helper(folder, allow_other) }
}

fn mount_directly(folder: &Path, allow_other: bool) -> Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
    let device = device.map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => {
            let message = format!("there is no {DEVICE}: the kernel has no FUSE (`modprobe fuse`)");
            Error::new(ErrorKind::Unsupported, message)
        }
        error => Error::io(format!("open {DEVICE}"), error.into()),
    })?;
    let other = others(allow_other);
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let options = format!(
        "fd={},rootmode=40555,user_id={},group_id={},max_read={READ_BYTES_MAX}{other}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw(),
    );
    let options = CString::new(options).map_err(|_| Error::invalid("an option with a zero"))?;
    let flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOATIME;
    rustix::mount::mount("silt", folder, TYPE, flags, Some(options.as_c_str()))
        .map_err(|error| Error::io(format!("mount at {}", folder.display()), error.into()))?;
    Ok(device)
}

/// Raises the kernel's read-ahead so that reads have the maximum size. Only root may do this.
/// Ignores errors: reads are then smaller.
pub fn read_far_ahead(folder: &Path) {
    let Ok(found) = std::fs::metadata(folder) else { return };
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let setting = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let _ = std::fs::write(setting, (READ_AHEAD_BYTES >> 10).to_string());
}

/// Lets `fusermount3` mount, which may do this for every user. Returns the device that it passes
/// back.
fn ask_helper(folder: &Path, allow_other: bool) -> Result<OwnedFd> {
    let failed = |error: std::io::Error| Error::io(format!("run {HELPER}"), error);
    let (ours, theirs) = UnixStream::pair().map_err(failed)?;
    // The helper inherits its end of the socket, and gets the number in a variable.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty()).map_err(|error| failed(error.into()))?;
    let other = others(allow_other);
    let options = format!(
        "ro,nosuid,nodev,noatime,fsname=silt,subtype=silt,max_read={READ_BYTES_MAX}{other}"
    );
    let mut command = Command::new(HELPER);
    command.args(["-o", &options, "--"]).arg(folder);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn();
    let child = child.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            let message = format!("{HELPER} is not installed; install the package fuse3");
            Error::new(ErrorKind::Unsupported, message)
        }
        _ => failed(error),
    })?;
    drop(theirs);
    let received = receive(&ours);
    let output = child.wait_with_output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let hint = if said.contains("user_allow_other") {
            " (the administrator can allow it with `user_allow_other` in /etc/fuse.conf)"
        } else {
            ""
        };
        let message = format!("mount at {}: {}{hint}", folder.display(), said.trim());
        return Err(Error::new(ErrorKind::Denied, message));
    }
    received
        .map_err(failed)?
        .ok_or_else(|| Error::new(ErrorKind::Unavailable, format!("{HELPER} passed no device")))
}

/// Receives a file descriptor through a socket; `None` if the message has none.
fn receive(socket: &UnixStream) -> std::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket.as_fd(), &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut files) = message {
            return Ok(files.next());
        }
    }
    Ok(None)
}

/// Unmounts a folder. Fails with `Busy` if a program uses it, unless `is_forced`: programs that use
/// it then get errors.
pub fn unmount(folder: &Path, is_forced: bool) -> Result<()> {
    let shown = folder.display();
    if is_root() {
        let flags = if is_forced {
            UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW
        } else {
            UnmountFlags::NOFOLLOW
        };
        return rustix::mount::unmount(folder, flags).map_err(|error| match error {
            Errno::BUSY => Error::new(ErrorKind::Busy, format!("{shown} is in use")),
            Errno::INVAL => Error::invalid(format!("nothing is mounted at {shown}")),
            error => Error::io(format!("unmount {shown}"), error.into()),
        });
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(is_forced.then_some("-z")).arg("--").arg(folder);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| Error::io(format!("run {HELPER}"), error))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let is_busy = said.contains("busy");
    let kind = if is_busy { ErrorKind::Busy } else { ErrorKind::Unavailable };
    Err(Error::new(kind, format!("unmount {shown}: {}", said.trim())))
}
