//! Which entries a walk leaves out.

use std::sync::Arc;

use silt_format::{Error, Result};

use crate::listed::PathList;
use crate::names::is_name;
use crate::patterns::{Matcher, Patterns};

/// Name and first bytes of the file that marks a directory as a cache
/// (<https://bford.info/cachedir/>).
const CACHE_MARKER: &[u8] = b"CACHEDIR.TAG";
const CACHE_HEADER: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// Maximum length of a marker's header in bytes.
const HEADER_BYTES_MAX: usize = 4096;

/// Why an entry was left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// It matches the pattern with this number; [`Rules::pattern`] returns the text.
    Pattern(usize),
    /// It is in a directory that `CACHEDIR.TAG` marks as a cache.
    Cache,
    /// It is in a directory with a marker: an index into [`Rules::markers`].
    Marker(usize),
    /// It is a file larger than the limit.
    TooLarge,
    /// Its flag `nodump` is set.
    NoDump,
    /// It is on another mount than its directory.
    OtherFileSystem,
    /// It is on a file system of the kernel, such as `/proc`, or on the tmpfs of `/run`.
    PseudoFileSystem,
}

/// A file whose presence excludes everything else in its directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The name of the file.
    pub name: Vec<u8>,
    /// The bytes that it must begin with; empty to accept any content.
    pub header: Vec<u8>,
}

impl Marker {
    /// Parses `NAME` or `NAME:HEADER`. Fails with `Invalid` if `NAME` cannot be a file name or
    /// `HEADER` is longer than 4,096 bytes.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, header) = text.split_once(':').unwrap_or((text, ""));
        if !is_name(name.as_bytes()) || header.len() > HEADER_BYTES_MAX {
            return Err(Error::invalid(format!("'{text}' is not a valid marker")));
        }
        Ok(Self { name: name.into(), header: header.into() })
    }
}

/// Which entries a walk leaves out. The root itself is never left out.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    patterns: Patterns,
    /// Markers such as `.nobackup`. Of a directory that contains one, only the directory and the
    /// marker are kept.
    pub markers: Vec<Marker>,
    /// Leaves out the content of directories with a valid `CACHEDIR.TAG`, except that file.
    pub caches: bool,
    /// Leaves out files larger than this number of bytes.
    pub larger_than: Option<u64>,
    /// Leaves out entries whose flag `nodump` is set.
    pub nodump: bool,
    /// Leaves out files on other mounts than the root, and the content of mounted directories.
    pub one_file_system: bool,
    /// Takes only these paths, what is below them, and the directories above them. Each path that
    /// does not exist becomes a [`Step::Failed`](crate::Step::Failed).
    pub only: Option<Arc<PathList>>,
}

impl Rules {
    /// Adds an exclude pattern in the syntax of gitignore, relative to the root. Later patterns
    /// override earlier ones. `!` includes an entry again, unless its directory is left out. With
    /// `ignores_case`, ASCII letters match in either case. In a pattern that is not UTF-8, each
    /// byte counts as a character.
    pub fn exclude(&mut self, pattern: impl AsRef<[u8]>, ignores_case: bool) -> Result<()> {
        self.patterns.add(pattern.as_ref(), ignores_case)
    }

    /// Adds the patterns in the content of a file, one per line. Ignores empty lines and those that
    /// begin with `#`. Fails with `Invalid`, and the number of the line, if a line is not a valid
    /// pattern.
    pub fn exclude_lines(&mut self, file: &[u8], ignores_case: bool) -> Result<()> {
        let text = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            self.exclude(line, ignores_case)
                .map_err(|error| error.context(format!("line {number} of the patterns")))?;
        }
        Ok(())
    }

    /// Returns the text of the pattern with this number.
    pub fn pattern(&self, number: usize) -> Option<&[u8]> {
        self.patterns.text(number)
    }

    pub(crate) fn matcher(&self) -> Result<Matcher> {
        self.patterns.compiled()
    }

    /// Returns all files that exclude the rest of their directory: name, header, reason.
    pub(crate) fn all_markers(&self) -> impl Iterator<Item = (&[u8], &[u8], Reason)> {
        let cache = self.caches.then_some((CACHE_MARKER, CACHE_HEADER, Reason::Cache));
        let others = self
            .markers
            .iter()
            .enumerate()
            .map(|(number, marker)| (&*marker.name, &*marker.header, Reason::Marker(number)));
        cache.into_iter().chain(others)
    }
}
