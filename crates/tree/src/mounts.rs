//! Types of file systems, and how far their metadata can be trusted.

use std::path::Path;

use rustix::fd::AsFd;
use rustix::fs::{fstatfs, statfs};
use silt_format::{Error, Result};

/// Types of file systems in which the kernel shows its own state, as named in `mountinfo`.
const PSEUDO: [&str; 23] = [
    "autofs",
    "binder",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "cpuset",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];
/// A tmpfs here holds the state of running programs. One elsewhere, such as `/tmp`, holds files.
const RUN: [&str; 2] = ["/run", "/var/run"];
/// Maximum number of bytes of the mount table that are searched.
const TABLE_BYTES_MAX: u64 = 64 << 20;

/// Returns whether a mount is a file system of the kernel, such as `/proc`, or holds the state of
/// running programs, such as `/run`. `false` if the mount is no longer in the table.
pub(crate) fn is_pseudo(mount: u64) -> bool {
    use std::io::Read as _;
    let mut table = Vec::new();
    let Ok(file) = std::fs::File::open("/proc/self/mountinfo") else { return false };
    if file.take(TABLE_BYTES_MAX).read_to_end(&mut table).is_err() {
        return false;
    }
    is_pseudo_in(&String::from_utf8_lossy(&table), mount)
}

fn is_pseudo_in(table: &str, mount: u64) -> bool {
    let line = table
        .lines()
        .find(|line| line.split(' ').next().and_then(|id| id.parse().ok()) == Some(mount));
    let Some((before, after)) = line.and_then(|line| line.split_once(" - ")) else { return false };
    let kind = after.split(' ').next().unwrap_or_default();
    let point = before.split(' ').nth(4).unwrap_or_default();
    let is_run = RUN.iter().any(|run| {
        point.strip_prefix(run).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    PSEUDO.contains(&kind) || kind == "tmpfs" && is_run
}

/// How far the inode numbers and times of a file system can be trusted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystemTraits {
    /// The name of the type if its inode numbers or times are known to be unreliable.
    pub name: Option<&'static str>,
    /// The inode number of a file may change from one mount to the next.
    pub has_unstable_inodes: bool,
    /// The change time may come from the clock of this machine or from a cache.
    pub has_unstable_changed: bool,
}

/// Returns the traits of the file system that a path is on. Follows symbolic links.
pub fn file_system_traits(path: &Path) -> Result<FileSystemTraits> {
    let found = statfs(path)
        .map_err(|error| Error::io(format!("file system of '{}'", path.display()), error.into()))?;
    Ok(traits(magic(found.f_type)))
}

pub(crate) fn traits_of(file: impl AsFd) -> FileSystemTraits {
    fstatfs(file).map_or_else(|_| FileSystemTraits::default(), |found| traits(magic(found.f_type)))
}

/// Returns the magic number of a file system type: the low 32 bits of a field that is wider, and
/// signed on some platforms.
fn magic(field: impl Into<i64>) -> u32 {
    let bytes = field.into().to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn traits(magic: u32) -> FileSystemTraits {
    let (name, has_unstable_inodes, has_unstable_changed) = match magic {
        0x6573_5546 => ("FUSE", true, true),
        0x6969 => ("NFS", false, true),
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => ("SMB", true, true),
        0x0102_1997 => ("9p", true, true),
        0x4d44 | 0x2011_bab0 => ("FAT", true, true),
        0x794c_7630 => ("overlayfs", true, false),
        _ => return FileSystemTraits::default(),
    };
    FileSystemTraits { name: Some(name), has_unstable_inodes, has_unstable_changed }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pseudo_file_systems_are_told_by_type_and_place() {
        let table = "22 28 0:21 / /proc rw,relatime shared:14 - proc proc rw\n\
                     23 28 8:1 / / rw - ext4 /dev/sda1 rw\n\
                     24 28 0:25 / /run rw,nosuid shared:2 - tmpfs tmpfs rw\n\
                     25 28 0:26 / /tmp rw - tmpfs tmpfs rw\n\
                     26 28 0:27 / /run/user/1000 rw master:1 propagate_from:2 - tmpfs tmpfs rw\n\
                     27 28 0:28 / /runner rw - tmpfs tmpfs rw\n\
                     28 28 8:2 / /run/media/disk rw - ext4 /dev/sdb rw\n";
        let pseudo: Vec<u64> = (20..30).filter(|&mount| is_pseudo_in(table, mount)).collect();
        assert_eq!(pseudo, [22, 24, 26]);
    }

    #[test]
    fn file_systems_of_others_are_known() {
        assert_eq!(traits(0x6573_5546).name, Some("FUSE"));
        assert!(traits(0x6573_5546).has_unstable_inodes);
        assert!(!traits(0x6969).has_unstable_inodes);
        assert_eq!(traits(0xEF53), FileSystemTraits::default());
        assert_eq!(magic(-11_317_950_i64), 0xff53_4d42);
        assert!(file_system_traits(Path::new("/proc")).unwrap().name.is_none());
    }
}
