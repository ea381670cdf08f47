//! Which paths of a tree are taken.

use silt_format::Result;

use crate::patterns::{Matcher, Patterns};

/// Patterns that choose entries of a tree by their paths, in the syntax of gitignore and relative
/// to the directory at which the choice begins.
#[derive(Clone, Debug, Default)]
pub struct PathRules {
    includes: Patterns,
    excludes: Patterns,
}

impl PathRules {
    /// Takes only what matches this pattern, or another one of this method. A directory that
    /// matches is taken with everything below it.
    pub fn include(&mut self, pattern: &str, ignores_case: bool) -> Result<()> {
        self.includes.add(pattern, ignores_case)
    }

    /// Leaves out what matches this pattern, also of what is included.
    pub fn exclude(&mut self, pattern: &str, ignores_case: bool) -> Result<()> {
        self.excludes.add(pattern, ignores_case)
    }

    /// Whether all entries are taken.
    pub fn is_empty(&self) -> bool {
        self.includes.is_empty() && self.excludes.is_empty()
    }

    /// Whether only what matches a pattern is taken.
    pub fn has_includes(&self) -> bool {
        !self.includes.is_empty()
    }

    /// The patterns, compiled. `Invalid` if they are too complex.
    pub fn matcher(&self) -> Result<PathMatcher> {
        let includes = self.has_includes().then(|| self.includes.compiled()).transpose()?;
        Ok(PathMatcher { includes, excludes: self.excludes.compiled()? })
    }
}

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// It is taken, and of a directory everything below it that is not excluded.
    Taken,
    /// A directory that is not taken itself; entries below it may be.
    Passed,
    /// It is left out, with everything below it.
    Left,
}

/// Compiled [`PathRules`].
pub struct PathMatcher {
    includes: Option<Matcher>,
    excludes: Matcher,
}

impl PathMatcher {
    /// Whether an entry matches by itself, whatever holds for the directories above it.
    pub fn includes(&mut self, path: &[u8], is_directory: bool) -> bool {
        self.choose(path, is_directory, false) == Choice::Taken
    }

    /// Decides about the entry at a path without a leading slash. `is_below` says that a directory
    /// above it is [`Choice::Taken`]; a directory that is [`Choice::Left`] is not to be looked
    /// into.
    pub fn choose(&mut self, path: &[u8], is_directory: bool, is_below: bool) -> Choice {
        if self.excludes.excludes(path, is_directory).is_some() {
            return Choice::Left;
        }
        let Some(includes) = &mut self.includes else { return Choice::Taken };
        if is_below || includes.excludes(path, is_directory).is_some() {
            return Choice::Taken;
        }
        if is_directory { Choice::Passed } else { Choice::Left }
    }
}
