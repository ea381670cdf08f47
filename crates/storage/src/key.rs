//! The names of objects.

#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::fmt;

use silt_format::{Error, Result};

/// Maximum length of a name in bytes.
pub const KEY_BYTES_MAX: usize = 512;

/// Maximum length of a part of a name in bytes: the limit of file systems for a file name.
pub const KEY_PART_BYTES_MAX: usize = 255;

/// The name of an object: parts of `a-z 0-9 . _ -` separated by `/`, compared byte by byte.
///
/// It holds 1 to [`KEY_BYTES_MAX`] bytes; no part is empty, begins with `.`, or exceeds
/// [`KEY_PART_BYTES_MAX`]. So every key is a relative path that stays below the folder it is joined
/// to, and a valid S3 key. It is lower case only, because some file systems fold case.
///
/// A name is either an object or a prefix of others: `a` and `a/b` cannot both exist, because a
/// folder cannot hold both.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(String);

impl Key {
    /// Checks `name`. Fails with `Invalid`, quoting it, if it breaks the rules.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        if let Some(fault) = fault_of(&name) {
            // The name may come from outside and have any length.
            let start: String = name.chars().take(80).collect();
            return Err(Error::invalid(format!("object name {start:?} is not allowed: {fault}")));
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name `self/below`; `below` may itself have several parts.
    pub fn join(&self, below: &str) -> Result<Self> {
        Self::new(format!("{}/{below}", self.0))
    }

    /// The proper prefixes of `self` in whole parts, shortest first: `a` and `a/b` for `a/b/c`.
    pub(crate) fn ancestors(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('/').map(|(at, _)| &self.0[..at])
    }
}

/// Whether `part` may stand between the slashes of a key.
pub(crate) fn is_part(part: &str) -> bool {
    part_fault(part).is_none()
}

fn fault_of(name: &str) -> Option<&'static str> {
    if name.len() > KEY_BYTES_MAX {
        return Some("it is longer than 512 bytes");
    }
    name.split('/').find_map(part_fault)
}

fn part_fault(part: &str) -> Option<&'static str> {
    let allowed = |byte: u8| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'_' | b'-')
    };
    if part.is_empty() {
        Some("one of its parts is empty")
    } else if part.len() > KEY_PART_BYTES_MAX {
        Some("one of its parts is longer than 255 bytes")
    } else if part.starts_with('.') {
        Some("one of its parts begins with a dot")
    } else if !part.bytes().all(allowed) {
        Some("it may contain only a-z, 0-9, '.', '_', '-' and '/'")
    } else {
        None
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}
