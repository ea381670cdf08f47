//! Extended headers of POSIX: records of a length, a key and a value.

use std::collections::BTreeSet;

use silt_format::tree::Timestamp;

use super::header::{decimal, time};
use super::sparse::SparseRecords;
use crate::attributes;

/// Maximum size of an extended header. One with all extended attributes that an entry can have and
/// the longest path is smaller.
pub(crate) const HEADER_BYTES_MAX: usize = 4 << 20;

/// The records of an extended header that mean something here.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    pub(crate) path: Option<Vec<u8>>,
    pub(crate) target: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    pub(crate) uid: Option<u64>,
    pub(crate) gid: Option<u64>,
    pub(crate) user: Option<Vec<u8>>,
    pub(crate) group: Option<Vec<u8>>,
    pub(crate) modified: Option<Timestamp>,
    pub(crate) changed: Option<Timestamp>,
    pub(crate) major: Option<u64>,
    pub(crate) minor: Option<u64>,
    /// Names as the archive has them, and values.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Names of attributes that libarchive wrote: it escapes more than GNU tar.
    pub(crate) escaped: BTreeSet<Vec<u8>>,
    pub(crate) acl: Option<Vec<u8>>,
    pub(crate) default_acl: Option<Vec<u8>>,
    pub(crate) flags: Option<Vec<u8>>,
    pub(crate) sparse: SparseRecords,
}

impl Records {
    /// Adds the records of a header. The error is the reason why the entry is refused.
    pub(crate) fn add(&mut self, mut bytes: &[u8]) -> Result<(), &'static str> {
        const MALFORMED: &str = "its extended header is malformed";
        while !bytes.is_empty() {
            // Some programs pad headers with zero bytes.
            if bytes.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            let space = bytes.iter().take(20).position(|byte| *byte == b' ').ok_or(MALFORMED)?;
            let length = decimal(&bytes[..space]).and_then(|length| usize::try_from(length).ok());
            let length = length.filter(|length| (space + 2..=bytes.len()).contains(length));
            let (record, rest) = bytes.split_at(length.ok_or(MALFORMED)?);
            let record = record[space + 1..].strip_suffix(b"\n").ok_or(MALFORMED)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or(MALFORMED)?;
            self.record(&record[..equals], &record[equals + 1..])?;
            bytes = rest;
        }
        Ok(())
    }

    fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        const NUMBER: &str = "its extended header has a number that is none";
        let number =
            || if value.is_empty() { Ok(None) } else { decimal(value).map(Some).ok_or(NUMBER) };
        let when = || if value.is_empty() { Ok(None) } else { time(value).map(Some).ok_or(NUMBER) };
        // An empty value takes back one of a global header.
        let bytes = || (!value.is_empty()).then(|| value.to_vec());
        match key {
            b"path" => self.path = bytes(),
            b"linkpath" => self.target = bytes(),
            b"size" => self.size = number()?,
            b"uid" => self.uid = number()?,
            b"gid" => self.gid = number()?,
            b"uname" => self.user = bytes(),
            b"gname" => self.group = bytes(),
            b"mtime" => self.modified = when()?,
            b"ctime" => self.changed = when()?,
            b"SCHILY.devmajor" => self.major = number()?,
            b"SCHILY.devminor" => self.minor = number()?,
            b"SCHILY.acl.access" => self.acl = bytes(),
            b"SCHILY.acl.default" => self.default_acl = bytes(),
            b"SCHILY.fflags" => self.flags = bytes(),
            b"RHT.security.selinux" => {
                // The kernel's value ends with a zero byte.
                let ended = value.ends_with(b"\0");
                let value = if ended { value.to_vec() } else { [value, b"\0"].concat() };
                self.xattrs.push((b"security.selinux".to_vec(), value));
            }
            _ if key.starts_with(b"GNU.sparse.") => return self.sparse.record(key, value),
            _ => {
                if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
                    self.xattrs.push((name.to_vec(), value.to_vec()));
                } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
                    self.escaped.insert(name.to_vec());
                }
            }
        }
        Ok(())
    }

    /// Takes the extended attributes, with their names as the kernel has them.
    pub(crate) fn take_xattrs(&mut self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let plain = |(name, value): (Vec<u8>, Vec<u8>)| {
            let is_escaped = self.escaped.contains(&name);
            (attributes::decoded(&name, is_escaped), value)
        };
        std::mem::take(&mut self.xattrs).into_iter().map(plain).collect()
    }
}
