//! The names in a directory, however many there are: those that exceed a limit of memory are sorted
//! in a temporary file.

mod spill;

use std::mem::MaybeUninit;
use std::ops::Range;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{FileType, RawDir};
use rustix::io::Errno;
use silt_format::number::to_u32;
use silt_format::{Error, ErrorKind, Result};

use self::spill::{Runs, Sorted};

/// Size of the buffer for `getdents64` in bytes.
const BUFFER_BYTES: usize = 128 << 10;
const HEADER_BYTES: usize = 2;
/// Maximum memory for the names of a directory in bytes. More names go to a temporary file.
const MEMORY_BYTES: usize = 4 << 20;

/// Names with their types, in the order in which they were added until they are sorted.
#[derive(Debug, Default)]
struct Batch {
    /// For each name: one byte for its type, one for its length, then the name.
    bytes: Vec<u8>,
    /// Offsets of the entries in `bytes`, in the order of the names.
    starts: Vec<u32>,
}

impl Batch {
    fn push(&mut self, name: &[u8], kind: u8) {
        self.starts.push(to_u32(self.bytes.len()));
        // The callers have checked the name.
        self.bytes.extend([kind, u8::try_from(name.len()).unwrap_or(u8::MAX)]);
        self.bytes.extend_from_slice(name);
    }

    fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.starts.len() * size_of::<u32>()
    }

    fn name(&self, at: usize) -> &[u8] {
        name_at(&self.bytes, self.starts[at])
    }

    fn kind(&self, at: usize) -> u8 {
        self.bytes[self.starts[at] as usize]
    }

    fn sort(&mut self) {
        let bytes = &self.bytes;
        self.starts.sort_unstable_by(|&a, &b| name_at(bytes, a).cmp(name_at(bytes, b)));
        // If a file is renamed meanwhile, a name can be listed twice.
        self.starts.dedup_by(|a, b| name_at(bytes, *a) == name_at(bytes, *b));
    }
}

fn name_at(bytes: &[u8], start: u32) -> &[u8] {
    let name = start as usize + HEADER_BYTES;
    &bytes[name..name + usize::from(bytes[name - 1])]
}

/// The error of a temporary file that cannot be created: its folder may be missing, and not the
/// directory that is read.
fn unsorted(error: Error) -> Error {
    let is_gone = error.kind() == ErrorKind::NotFound;
    if is_gone { error.with_kind(ErrorKind::Unavailable) } else { error }
}

/// The names in a directory in byte order, each with its type if the file system lists types.
///
/// Takes six bytes for each name besides the name itself. Beyond 4 MiB, the names are in a
/// temporary file, and in memory are only those that [`load`](Self::load) was called for last.
#[derive(Debug, Default)]
pub(crate) struct Names {
    loaded: Batch,
    /// Position of the first name in `loaded`.
    first: usize,
    sorted: Option<Sorted>,
}

impl Names {
    /// Reads the names in an open directory, from the current position of its descriptor. Returns
    /// the names read up to the first error, and that error. It is `NotFound` only if the directory
    /// was removed since it was opened.
    pub(crate) fn read(directory: &OwnedFd) -> (Self, Option<Error>) {
        let mut sorter = Sorter::default();
        let mut buffer = vec![MaybeUninit::uninit(); BUFFER_BYTES];
        let mut entries = RawDir::new(directory.as_fd(), &mut buffer);
        let mut problem = None;
        while let Some(entry) = entries.next() {
            let added = match entry {
                Ok(entry) => {
                    let added = sorter.add(entry.file_name().to_bytes(), entry.file_type());
                    added.map_err(unsorted)
                }
                Err(Errno::INTR) => Ok(()),
                Err(error) => Err(Error::io("listing it", error.into())),
            };
            if let Err(error) = added {
                problem = Some(error);
                break;
            }
        }
        match sorter.finish() {
            Ok(names) => (names, problem),
            Err(error) => (Self::default(), problem.or(Some(unsorted(error)))),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.sorted.as_ref().map_or(self.loaded.starts.len(), Sorted::len)
    }

    /// Loads the names at these positions, of which the caller may then ask for each.
    pub(crate) fn load(&mut self, range: Range<usize>) -> Result<()> {
        let Some(sorted) = &self.sorted else { return Ok(()) };
        let loaded = self.first..self.first + self.loaded.starts.len();
        if loaded.start <= range.start && range.end <= loaded.end {
            return Ok(());
        }
        (self.first, self.loaded) = sorted.load(range)?;
        Ok(())
    }

    /// Returns the name with this position in the order, which must be loaded.
    pub(crate) fn name(&self, at: usize) -> &[u8] {
        self.loaded.name(at - self.first)
    }

    /// Returns whether the entry is a directory; `None` if the file system does not list types.
    pub(crate) fn is_directory(&self, at: usize) -> Option<bool> {
        match self.loaded.kind(at - self.first) {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    /// Removes all names but one.
    pub(crate) fn retain_only(&mut self, name: &[u8]) -> Result<()> {
        if let Some((at, loaded)) = self.sorted.as_ref().map(|it| it.find(name)).transpose()? {
            (self.first, self.loaded) = (at, loaded);
        }
        (self.first, self.sorted) = (0, None);
        let Batch { bytes, starts } = &mut self.loaded;
        starts.retain(|&start| name_at(bytes, start) == name);
        Ok(())
    }

    pub(crate) fn contains(&self, name: &[u8]) -> Result<bool> {
        let found = self.sorted.as_ref().map(|it| it.find(name)).transpose()?;
        let batch = found.as_ref().map_or(&self.loaded, |(_, batch)| batch);
        Ok(batch.starts.binary_search_by(|&start| name_at(&batch.bytes, start).cmp(name)).is_ok())
    }
}

/// Sorts names. Holds about 4 MiB of them, and the rest in a temporary file.
#[derive(Debug)]
pub(crate) struct Sorter {
    batch: Batch,
    runs: Option<Runs>,
    memory_bytes: usize,
}

impl Default for Sorter {
    fn default() -> Self {
        Self::within(MEMORY_BYTES)
    }
}

impl Sorter {
    fn within(memory_bytes: usize) -> Self {
        Self { batch: Batch::default(), runs: None, memory_bytes }
    }

    fn add(&mut self, name: &[u8], kind: FileType) -> Result<()> {
        if name == b"." || name == b".." {
            return Ok(());
        }
        // A damaged file system, or a FUSE server, can list invalid names.
        if !is_name(name) {
            return Err(Error::io("listing it", Errno::IO.into()));
        }
        let kind = match kind {
            FileType::Directory => 1,
            FileType::Unknown => 2,
            _ => 0,
        };
        self.push(name, kind)
    }

    /// Adds a valid name. Fails if no temporary file can be written.
    pub(crate) fn push(&mut self, name: &[u8], kind: u8) -> Result<()> {
        self.batch.push(name, kind);
        if self.batch.memory_bytes() < self.memory_bytes {
            return Ok(());
        }
        self.batch.sort();
        let runs = match &mut self.runs {
            Some(runs) => runs,
            None => self.runs.insert(Runs::new()?),
        };
        runs.add(&self.batch)?;
        self.batch.bytes.clear();
        self.batch.starts.clear();
        Ok(())
    }

    /// Returns the names in order, each once.
    pub(crate) fn finish(mut self) -> Result<Names> {
        self.batch.sort();
        let Some(mut runs) = self.runs else {
            self.batch.bytes.shrink_to_fit();
            self.batch.starts.shrink_to_fit();
            return Ok(Names { loaded: self.batch, ..Names::default() });
        };
        if !self.batch.starts.is_empty() {
            runs.add(&self.batch)?;
        }
        drop(self.batch);
        Ok(Names { sorted: Some(runs.merge()?), ..Names::default() })
    }
}

/// Returns whether a directory can have an entry of this name.
pub(crate) fn is_name(name: &[u8]) -> bool {
    (1..=silt_format::tree::NAME_BYTES_MAX).contains(&name.len())
        && name != b"."
        && name != b".."
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

#[cfg(test)]
mod tests;
