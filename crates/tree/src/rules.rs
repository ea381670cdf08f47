//! Which entries a walk leaves out.

use silt_format::{Error, Result};

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
    /// It matches a pattern, which [`Rules::pattern`] returns for this number.
    Pattern(usize),
    /// The content of a directory that is marked as a cache by `CACHEDIR.TAG`.
    Cache,
    /// The content of a directory with a marker, by its number among those given.
    Marker(usize),
    /// A file larger than the limit.
    TooLarge,
    /// Its flag `nodump` is set.
    NoDump,
    /// It is on another mount than the root.
    OtherFileSystem,
    /// It is on a file system of the kernel, such as `/proc`, or on that of `/run`.
    PseudoFileSystem,
}

/// A file whose presence excludes everything beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The name of the file.
    pub name: Vec<u8>,
    /// The bytes it must begin with; empty for any file.
    pub header: Vec<u8>,
}

impl Marker {
    /// A marker from `NAME` or `NAME:HEADER`.
    pub fn parse(text: &str) -> Result<Self> {
        let (name, header) = text.split_once(':').unwrap_or((text, ""));
        if !is_name(name.as_bytes()) || header.len() > HEADER_BYTES_MAX {
            return Err(Error::invalid(format!("'{text}' is not the name of a marker file")));
        }
        Ok(Self { name: name.into(), header: header.into() })
    }
}

/// Which entries a walk leaves out. The root itself is never left out.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    patterns: Patterns,
    /// Markers, such as `.nobackup`: a directory with such a file is kept with nothing but it.
    pub markers: Vec<Marker>,
    /// Leaves out the content of directories with a valid `CACHEDIR.TAG`, but for that file.
    pub caches: bool,
    /// Leaves out files with more bytes than this.
    pub larger_than: Option<u64>,
    /// Leaves out entries whose flag `nodump` is set.
    pub nodump: bool,
    /// Leaves out the content of directories on other mounts than the root, and such files.
    pub one_file_system: bool,
}

impl Rules {
    /// Adds an exclude pattern in the syntax of gitignore, relative to the root: a later pattern
    /// wins, `!` takes an entry in again unless its directory is left out. With `ignores_case`,
    /// ASCII letters match either case.
    pub fn exclude(&mut self, pattern: &str, ignores_case: bool) -> Result<()> {
        self.patterns.add(pattern, ignores_case)
    }

    /// Adds the patterns of a file, one a line. Lines that are empty or begin with `#` are
    /// comments.
    pub fn exclude_lines(&mut self, file: &[u8], ignores_case: bool) -> Result<()> {
        let text = file.strip_prefix(b"\xef\xbb\xbf").unwrap_or(file);
        for (number, line) in (1..).zip(text.split(|&byte| byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = std::str::from_utf8(line).map_err(|error| {
                Error::invalid(format!("line {number} of the patterns")).with_source(error)
            })?;
            self.exclude(line, ignores_case)
                .map_err(|error| error.context(format!("line {number} of the patterns")))?;
        }
        Ok(())
    }

    /// The text of the pattern with a number, for messages.
    pub fn pattern(&self, number: usize) -> Option<&str> {
        self.patterns.text(number)
    }

    pub(crate) fn matcher(&self) -> Result<Matcher> {
        self.patterns.compiled()
    }

    /// The files that exclude what is beside them: name, header, reason.
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
