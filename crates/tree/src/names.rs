//! The names in a directory, stored compactly: ten million of them must fit in memory.

use std::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;
use silt_format::number::to_u32;

/// Size of the buffer for `getdents64` in bytes.
const BUFFER_BYTES: usize = 128 << 10;
/// Maximum size in bytes of all names of a directory, so that offsets fit into 32 bits.
const NAMES_BYTES_MAX: usize = u32::MAX as usize;
const HEADER_BYTES: usize = 2;

/// The names in a directory in byte order, each with its type if the file system lists types.
///
/// Takes six bytes for each name besides the name itself.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// For each name: one byte for its type, one for its length, then the name.
    bytes: Vec<u8>,
    /// Offsets of the entries in `bytes`, in the order of the names.
    starts: Vec<u32>,
}

impl Names {
    /// Reads the names in an open directory, from the current position of its descriptor. Returns
    /// the names read up to the first error, and that error.
    pub(crate) fn read(directory: &OwnedFd) -> (Self, Option<Errno>) {
        let mut names = Self::default();
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(directory.as_fd(), &mut buffer);
        let mut problem = None;
        while let Some(entry) = entries.next() {
            match entry {
                Ok(entry) => {
                    let name = entry.file_name().to_bytes();
                    if let Err(error) = names.push(name, entry.file_type()) {
                        problem = Some(error);
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => {
                    problem = Some(error);
                    break;
                }
            }
        }
        let bytes = &names.bytes;
        names.starts.sort_unstable_by(|&a, &b| name_at(bytes, a).cmp(name_at(bytes, b)));
        // If a file is renamed meanwhile, a name can be listed twice.
        names.starts.dedup_by(|a, b| name_at(bytes, *a) == name_at(bytes, *b));
        (names, problem)
    }

    fn push(&mut self, name: &[u8], kind: FileType) -> Result<(), Errno> {
        if name == b"." || name == b".." {
            return Ok(());
        }
        // A damaged file system, or a FUSE server, can list invalid names.
        if !is_name(name) {
            return Err(Errno::IO);
        }
        let length = u8::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)?;
        if self.bytes.len() + HEADER_BYTES + name.len() > NAMES_BYTES_MAX {
            return Err(Errno::OVERFLOW);
        }
        self.starts.push(to_u32(self.bytes.len()));
        let kind = match kind {
            FileType::Directory => 1,
            FileType::Unknown => 2,
            _ => 0,
        };
        self.bytes.extend([kind, length]);
        self.bytes.extend_from_slice(name);
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// Returns the name with this position in the order.
    pub(crate) fn name(&self, at: usize) -> &[u8] {
        name_at(&self.bytes, self.starts[at])
    }

    /// Returns whether the entry is a directory; `None` if the file system does not list types.
    pub(crate) fn is_directory(&self, at: usize) -> Option<bool> {
        match self.bytes[self.starts[at] as usize] {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Removes all names but one.
    pub(crate) fn retain_only(&mut self, name: &[u8]) {
        let bytes = &self.bytes;
        self.starts.retain(|&start| name_at(bytes, start) == name);
    }

    pub(crate) fn contains(&self, name: &[u8]) -> bool {
        self.starts.binary_search_by(|&start| name_at(&self.bytes, start).cmp(name)).is_ok()
    }
}

fn name_at(bytes: &[u8], start: u32) -> &[u8] {
    let name = start as usize + HEADER_BYTES;
    &bytes[name..name + usize::from(bytes[name - 1])]
}

/// Returns whether a directory can have an entry of this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=silt_format::tree::NAME_BYTES_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
