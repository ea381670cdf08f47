//! Choosing entries of a tree by their paths.

use silt_format::Result;

use crate::patterns::{Matcher, Patterns};

/// Patterns that choose entries of a tree by their paths, in the syntax of gitignore. Paths are
/// relative to the directory at which the choice begins. In a pattern that is not UTF-8, each byte
/// counts as a character.
#[derive(Clone, Debug, Default)]
pub struct PathRules {
    includes: Patterns,
    excludes: Patterns,
}

impl PathRules {
    /// Takes only entries that match this pattern or another include pattern. A directory that
    /// matches is taken with everything below it.
    pub fn include(&mut self, pattern: impl AsRef<[u8]>, ignores_case: bool) -> Result<()> {
        self.includes.add(pattern.as_ref(), ignores_case)
    }

    /// Leaves out entries that match this pattern, even if they match an include pattern.
    pub fn exclude(&mut self, pattern: impl AsRef<[u8]>, ignores_case: bool) -> Result<()> {
        self.excludes.add(pattern.as_ref(), ignores_case)
    }

    /// Returns whether there are no patterns, so that all entries are taken.
    pub fn is_empty(&self) -> bool {
        self.includes.is_empty() && self.excludes.is_empty()
    }

    /// Returns whether there are include patterns.
    pub fn has_includes(&self) -> bool {
        !self.includes.is_empty()
    }

    /// Compiles the patterns. Fails with `Invalid` if they are too complex.
    pub fn matcher(&self) -> Result<PathMatcher> {
        let includes = self.has_includes().then(|| self.includes.compiled()).transpose()?;
        Ok(PathMatcher { includes, excludes: self.excludes.compiled()? })
    }
}

/// The decision about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Take it; if it is a directory, also everything below it that is not excluded.
    Taken,
    /// A directory that is not taken itself. Entries below it may be.
    Passed,
    /// Leave it out with everything below it.
    LeftOut,
}

/// Compiled [`PathRules`].
pub struct PathMatcher {
    includes: Option<Matcher>,
    excludes: Matcher,
}

impl PathMatcher {
    /// Returns whether an entry is taken by its own path, regardless of the directories above it.
    pub fn includes(&mut self, path: &[u8], is_directory: bool) -> bool {
        self.choose(path, is_directory, false) == Choice::Taken
    }

    /// Decides about the entry at a path without a leading slash. `is_below` tells whether a
    /// directory above it is [`Choice::Taken`]. The caller must not enter directories that are
    /// [`Choice::LeftOut`].
    pub fn choose(&mut self, path: &[u8], is_directory: bool, is_below: bool) -> Choice {
        if self.excludes.excludes(path, is_directory).is_some() {
            return Choice::LeftOut;
        }
        let Some(includes) = &mut self.includes else { return Choice::Taken };
        if is_below || includes.excludes(path, is_directory).is_some() {
            return Choice::Taken;
        }
        if is_directory { Choice::Passed } else { Choice::LeftOut }
    }
}
