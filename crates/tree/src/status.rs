//! The status of files, from one call of `statx`.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Statx, StatxAttributes, StatxFlags, StatxTimestamp, openat,
    statx,
};
use rustix::io::Errno;
use silt_format::tree::{DeviceNumber, EntryKind, Metadata, Timestamp};

const FIELDS: StatxFlags =
    StatxFlags::BASIC_STATS.union(StatxFlags::MNT_ID).union(StatxFlags::BTIME);
/// Does not follow links, and does not trigger automounts.
const AT_NAME: AtFlags = AtFlags::SYMLINK_NOFOLLOW.union(AtFlags::NO_AUTOMOUNT);
const MODE_BITS: u16 = 0o7777;

/// Identifies a file on this machine as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
}

/// The status of a file.
#[derive(Clone, Debug)]
pub(crate) struct Status {
    /// The metadata without flags, extended attributes, link target and number of the file system.
    pub(crate) metadata: Metadata,
    /// The device number of the file system: major, minor.
    pub(crate) device: (u32, u32),
    /// The id of the mount; made from the device number if the kernel reports no mount ids.
    pub(crate) mount: u64,
    /// Whether the flag that excludes files from dumps is set.
    pub(crate) is_nodump: bool,
    /// When it was created, if the file system tells.
    pub(crate) born: Option<Timestamp>,
}

impl Status {
    pub(crate) fn id(&self) -> FileId {
        FileId { device: self.device, inode: self.metadata.inode }
    }
}

/// Returns the status of a name in a directory. Does not follow symbolic links.
pub(crate) fn status_at(directory: impl AsFd, name: &[u8]) -> Result<Status, Errno> {
    status(&statx(directory, name, AT_NAME, FIELDS)?)
}

/// Returns the status of an open file.
pub(crate) fn status_of(file: impl AsFd) -> Result<Status, Errno> {
    status(&statx(file, c"", AtFlags::EMPTY_PATH, FIELDS)?)
}

fn status(found: &Statx) -> Result<Status, Errno> {
    let kind = match FileType::from_raw_mode(found.stx_mode.into()) {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Symlink,
        FileType::Fifo => EntryKind::Fifo,
        FileType::Socket => EntryKind::Socket,
        FileType::CharacterDevice => EntryKind::CharDevice,
        FileType::BlockDevice => EntryKind::BlockDevice,
        FileType::Unknown => return Err(Errno::OPNOTSUPP),
    };
    let is_device = matches!(kind, EntryKind::CharDevice | EntryKind::BlockDevice);
    let device = (found.stx_dev_major, found.stx_dev_minor);
    let has_mount = found.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    let has_born = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    let metadata = Metadata {
        kind,
        mode: found.stx_mode & MODE_BITS,
        uid: found.stx_uid,
        gid: found.stx_gid,
        modified: timestamp(found.stx_mtime),
        changed: timestamp(found.stx_ctime),
        size: if kind == EntryKind::File { found.stx_size } else { 0 },
        inode: found.stx_ino,
        file_system: 0,
        links: if kind == EntryKind::Directory { 1 } else { found.stx_nlink },
        target: Vec::new(),
        device: if is_device {
            DeviceNumber { major: found.stx_rdev_major, minor: found.stx_rdev_minor }
        } else {
            DeviceNumber::default()
        },
        flags: 0,
        xattrs: Vec::new(),
    };
    Ok(Status {
        metadata,
        device,
        mount: if has_mount {
            found.stx_mnt_id
        } else {
            u64::from(device.0) << 32 | u64::from(device.1)
        },
        is_nodump: found.stx_attributes.contains(StatxAttributes::NODUMP),
        born: has_born.then(|| timestamp(found.stx_btime)),
    })
}

fn timestamp(found: StatxTimestamp) -> Timestamp {
    Timestamp { seconds: found.tv_sec, nanoseconds: found.tv_nsec.min(999_999_999) }
}

/// Opens a name in a directory for reading. Does not wait for a pipe or a lease, and does not
/// change the access time if this user may prevent that. `name` is a single component, so
/// `O_NOFOLLOW` protects all of it; `openat2` would add nothing, and many containers forbid it.
pub(crate) fn open_at(directory: impl AsFd, name: &[u8], kind: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | kind;
    match openat(&directory, name, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => openat(&directory, name, flags, Mode::empty()),
        opened => opened,
    }
}

/// Opens a name in a directory as a path: the descriptor can neither read nor write. Works for
/// every type of entry.
pub(crate) fn open_path(directory: impl AsFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// Formats a path for a message.
pub(crate) fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}
