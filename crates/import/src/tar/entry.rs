//! An entry of an archive: its header and extended headers together.

use std::ops::Range;

use silt_format::tree::{
    DeviceNumber, EntryKind, Metadata, TARGET_BYTES_MAX, Timestamp, XATTRS_BYTES_MAX,
};
use silt_tree::Owners;

use super::header::Header;
use super::pax::Records;
use crate::attributes::{self, ACCESS_ACL, DEFAULT_ACL};

/// Maximum length of the name of an owner that is kept.
const OWNER_BYTES_MAX: usize = 255;

/// An entry of an archive. The bytes of its ranges follow in the archive.
#[derive(Clone, Debug)]
pub struct TarEntry {
    /// Its path as the archive has it.
    pub path: Vec<u8>,
    /// Its metadata; inode number and number of links are not known.
    pub metadata: Metadata,
    /// The path of an earlier entry that is the same file.
    pub link_to: Option<Vec<u8>>,
    /// The name of the owner, if the archive has it.
    pub user: Vec<u8>,
    /// The name of the group, if the archive has it.
    pub group: Vec<u8>,
    /// The ranges of a regular file that are not holes, in ascending order.
    pub ranges: Vec<Range<u64>>,
    /// Attributes that the archive has and that can't be stored.
    pub lost: Vec<String>,
}

/// The parts of an entry before its content is known.
pub(crate) struct Parts<'p> {
    pub(crate) header: &'p Header,
    pub(crate) records: Records,
    /// The path and the target of GNU tar's long names.
    pub(crate) long_path: Option<Vec<u8>>,
    pub(crate) long_target: Option<Vec<u8>>,
    pub(crate) machine: &'p Owners,
    pub(crate) archive: &'p Owners,
}

impl Parts<'_> {
    /// The path, wherever it is.
    pub(crate) fn path(&self) -> Vec<u8> {
        let sparse = self.records.sparse.name.as_ref();
        let path = sparse.or(self.records.path.as_ref()).or(self.long_path.as_ref());
        path.cloned().unwrap_or_else(|| self.header.path())
    }

    /// The type of the file; `None` for a hard link. The error is the reason why it is refused.
    fn kind(&self, path: &[u8]) -> Result<Option<EntryKind>, String> {
        Ok(Some(match self.header.kind() {
            b'1' => return Ok(None),
            // Programs before POSIX have no type for directories.
            0 | b'0' if path.ends_with(b"/") => EntryKind::Directory,
            0 | b'0' | b'7' | b'S' => EntryKind::File,
            b'2' => EntryKind::Symlink,
            b'3' => EntryKind::CharDevice,
            b'4' => EntryKind::BlockDevice,
            b'5' | b'D' => EntryKind::Directory,
            b'6' => EntryKind::Fifo,
            b'M' => return Err("it continues a file of another archive".to_owned()),
            other => {
                let shown = [other].escape_ascii().to_string();
                return Err(format!("entries of type '{shown}' are not known"));
            }
        }))
    }

    /// The entry without its content. The error is the reason why it is refused.
    pub(crate) fn entry(mut self, size: u64, ranges: Vec<Range<u64>>) -> Result<TarEntry, String> {
        let path = self.path();
        let kind = self.kind(&path)?;
        let target = self.target();
        let (user, group) = self.owner_names();
        let (xattrs, lost) = self.attributes();
        let has_target = matches!(kind, None | Some(EntryKind::Symlink));
        if has_target && (target.is_empty() || target.contains(&0)) {
            return Err("it links to nothing".to_owned());
        }
        if kind == Some(EntryKind::Symlink) && target.len() > TARGET_BYTES_MAX {
            return Err("the target of the link is longer than 4 KiB".to_owned());
        }
        let modified = self.modified()?;
        let acl = xattrs.iter().find(|xattr| xattr.name == ACCESS_ACL);
        let mode = self.mode()?;
        let mode = acl.map_or(mode, |acl| attributes::mode_of(mode, &acl.value));
        let is_file = kind == Some(EntryKind::File);
        let metadata = Metadata {
            kind: kind.unwrap_or(EntryKind::File),
            mode,
            uid: self.owner(self.records.uid, 108)?,
            gid: self.owner(self.records.gid, 116)?,
            modified,
            changed: self.records.changed.unwrap_or(modified),
            size: if is_file { size } else { 0 },
            inode: 0,
            file_system: 0,
            links: 1,
            target: if kind == Some(EntryKind::Symlink) { target.clone() } else { Vec::new() },
            device: self.device(kind)?,
            flags: self.records.flags.as_ref().map_or(0, |flags| attributes::flags(flags).0),
            xattrs,
        };
        let link_to = kind.is_none().then_some(target);
        let ranges = if is_file { ranges } else { Vec::new() };
        Ok(TarEntry { path, metadata, link_to, user, group, ranges, lost })
    }

    fn target(&mut self) -> Vec<u8> {
        let target = self.records.target.take().or(self.long_target.take());
        target.unwrap_or_else(|| self.header.text(157, 100).to_vec())
    }

    fn owner_names(&mut self) -> (Vec<u8>, Vec<u8>) {
        let field = |at| {
            if self.header.has_owners() { self.header.text(at, 32).to_vec() } else { Vec::new() }
        };
        let user = self.records.user.clone().unwrap_or_else(|| field(265));
        let group = self.records.group.clone().unwrap_or_else(|| field(297));
        let kept = |name: Vec<u8>| if name.len() > OWNER_BYTES_MAX { Vec::new() } else { name };
        (kept(user), kept(group))
    }

    fn mode(&self) -> Result<u16, String> {
        let mode = self.header.number(100, 8).ok_or("its mode is not a number")?;
        Ok(u16::try_from(mode & 0o7777).unwrap_or(0))
    }

    fn owner(&self, record: Option<u64>, at: usize) -> Result<u32, String> {
        let number = match record {
            Some(number) => Some(i128::from(number)),
            None => self.header.number(at, 8),
        };
        let number = number.and_then(|number| u32::try_from(number).ok());
        number.ok_or_else(|| "the number of its owner is not one that Linux has".to_owned())
    }

    fn modified(&self) -> Result<Timestamp, String> {
        if let Some(modified) = self.records.modified {
            return Ok(modified);
        }
        let seconds = self.header.number(136, 12).and_then(|number| i64::try_from(number).ok());
        let seconds = seconds.ok_or("its time is not a number")?;
        Ok(Timestamp { seconds, nanoseconds: 0 })
    }

    fn device(&self, kind: Option<EntryKind>) -> Result<DeviceNumber, String> {
        if !matches!(kind, Some(EntryKind::CharDevice | EntryKind::BlockDevice)) {
            return Ok(DeviceNumber::default());
        }
        let number = |record: Option<u64>, at| {
            let number = record.map(i128::from).or_else(|| self.header.number(at, 8));
            number.and_then(|number| u32::try_from(number).ok())
        };
        match (number(self.records.major, 329), number(self.records.minor, 337)) {
            (Some(major), Some(minor)) => Ok(DeviceNumber { major, minor }),
            _ => Err("the number of the device is not one that Linux has".to_owned()),
        }
    }

    /// Extended attributes and access control lists, and what can't be stored of them.
    fn attributes(&mut self) -> (Vec<silt_format::tree::Xattr>, Vec<String>) {
        let mut lost = Vec::new();
        let mut xattrs = self.records.take_xattrs();
        let lists =
            [(ACCESS_ACL, self.records.acl.take()), (DEFAULT_ACL, self.records.default_acl.take())];
        for (name, text) in lists {
            let Some(text) = text else { continue };
            match attributes::acl(&text, &[self.archive, self.machine]) {
                Some(acl) if name == ACCESS_ACL && attributes::is_mode_only(&acl) => {}
                Some(acl) => xattrs.push((name.to_vec(), acl)),
                None => lost.push("an access control list that can't be read".to_owned()),
            }
        }
        if self.records.flags.as_ref().is_some_and(|flags| !attributes::flags(flags).1) {
            lost.push("flags that Linux does not have".to_owned());
        }
        let (xattrs, left_out) = attributes::sorted(xattrs);
        lost.extend(left_out.iter().map(|name| {
            let shown = name[..name.len().min(OWNER_BYTES_MAX)].escape_ascii();
            format!("the extended attribute '{shown}', which is larger than Linux allows")
        }));
        (xattrs, lost)
    }
}

const _: () = assert!(XATTRS_BYTES_MAX < super::pax::HEADER_BYTES_MAX);
