//! Listed paths that a walk cannot reach.

use std::collections::VecDeque;
use std::ops::Range;

use rustix::fd::OwnedFd;
use silt_format::{Error, ErrorKind};

use super::listing::Listing;
use super::{Step, Walk};
use crate::listed::Below;
use crate::status::shown;

/// Why listed paths cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// They do not exist.
    Missing,
    /// A name above them is not a directory.
    NotDirectory,
}

/// Listed paths that cannot be reached and were not reported yet: ranges of the selection.
pub(super) type Unmet = VecDeque<(Range<usize>, Obstacle)>;

impl Walk {
    /// Reads the names of a directory, or takes those that lead to listed paths.
    pub(super) fn listing(&self, directory: &OwnedFd, below: Below) -> (Listing, Option<Error>) {
        match &self.selection {
            Some(selection) if !below.is_taken => {
                (Listing::of(selection.names(&below), below), None)
            }
            _ => Listing::read(directory, below),
        }
    }

    /// Returns the listed paths below an entry of the current directory.
    pub(super) fn below(&self, name: &[u8]) -> Below {
        match (&self.selection, self.frames.last()) {
            (Some(selection), Some(frame)) => selection.below(&frame.names.below, name),
            _ => Below::default(),
        }
    }

    /// Notes the listed paths of a directory that it does not have. Its own names are known if it
    /// was read as a whole.
    pub(super) fn note_lacking(&mut self, directory: &OwnedFd, listing: &Listing) {
        let Some(selection) = &self.selection else { return };
        if listing.is_listed() || listing.below.range.is_empty() {
            return;
        }
        let names = selection.names(&listing.below);
        for name in (0..names.len()).map(|at| names.name(at)) {
            if !listing.contains(directory, name) {
                let lacking = selection.within(&listing.below, name);
                note(&mut self.unmet, lacking, Obstacle::Missing);
            }
        }
    }

    /// Notes that a listed name of the current directory does not exist.
    pub(super) fn note_missing(&mut self, name: &[u8]) {
        if let (Some(selection), Some(frame)) = (&self.selection, self.frames.last()) {
            let missing = selection.within(&frame.names.below, name);
            note(&mut self.unmet, missing, Obstacle::Missing);
        }
    }

    /// Notes the listed paths below an entry of the current directory that is not a directory.
    pub(super) fn note_no_directory(&mut self, name: &[u8]) {
        let unmet = self.below(name).range;
        note(&mut self.unmet, unmet, Obstacle::NotDirectory);
    }

    /// Returns the step of the next listed path that cannot be reached.
    pub(super) fn next_unmet(&mut self) -> Option<Step> {
        let (range, obstacle) = self.unmet.front_mut()?;
        let (at, obstacle) = (range.start, *obstacle);
        range.start += 1;
        if range.start >= range.end {
            self.unmet.pop_front();
        }
        let path = self.selection.as_deref()?.path(at);
        let full = shown(&[self.root.as_slice(), b"/", path].concat());
        let error = match obstacle {
            Obstacle::Missing => {
                Error::new(ErrorKind::NotFound, format!("'{full}' is listed, but does not exist"))
            }
            Obstacle::NotDirectory => Error::new(
                ErrorKind::NotFound,
                format!("'{full}' is listed, but a name above it is not a directory"),
            ),
        };
        Some(Step::Failed(path.to_vec(), error))
    }
}

fn note(unmet: &mut Unmet, range: Range<usize>, obstacle: Obstacle) {
    match unmet.back_mut() {
        _ if range.is_empty() => {}
        Some((last, of)) if last.end == range.start && *of == obstacle => last.end = range.end,
        _ => unmet.push_back((range, obstacle)),
    }
}
