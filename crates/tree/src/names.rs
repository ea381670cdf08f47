//! The names of a directory, compactly: ten million of them must fit in memory.

use std::mem::MaybeUninit;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;
use silt_format::number::to_u32;

/// Size of the buffer for `getdents64` in bytes.
const BUFFER_BYTES: usize = 128 << 10;
/// Maximum size of all names of a directory in bytes, so that 32 bits say where one begins.
const NAMES_BYTES_MAX: usize = u32::MAX as usize;
const HEADER_BYTES: usize = 2;

/// The names of a directory in byte order, each with its type if the file system says it.
///
/// Takes the bytes of the names and six bytes for each.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Of each name: its type, its length, its bytes.
    bytes: Vec<u8>,
    /// Where the names begin in `bytes`, in the order of the names.
    starts: Vec<u32>,
}

impl Names {
    /// Reads the names of an open directory, from where its descriptor is. Returns those that were
    /// read before an error, and the error.
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
        // A file that is renamed meanwhile may be listed twice under one name.
        names.starts.dedup_by(|a, b| name_at(bytes, *a) == name_at(bytes, *b));
        (names, problem)
    }

    fn push(&mut self, name: &[u8], kind: FileType) -> Result<(), Errno> {
        if name == b"." || name == b".." {
            return Ok(());
        }
        // A damaged file system, or one of FUSE, can list names that are none.
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

    /// The name at a place in the order.
    pub(crate) fn name(&self, at: usize) -> &[u8] {
        name_at(&self.bytes, self.starts[at])
    }

    /// Whether the name is one of a directory; `None` if the file system does not say.
    pub(crate) fn is_directory(&self, at: usize) -> Option<bool> {
        match self.bytes[self.starts[at] as usize] {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Forgets all names but one.
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

/// Whether bytes can name an entry of a directory.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=silt_format::tree::NAME_BYTES_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
