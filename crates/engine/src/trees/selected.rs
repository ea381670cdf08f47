//! Walking the entries of a tree that patterns select.

use std::collections::VecDeque;

use silt_format::tree::{Entry, EntryKind};
use silt_format::{Error, Result};
use silt_repository::tree::TreeVolume;
use silt_tree::{Choice, PathMatcher, PathRules};

use super::walk::{TreeStep, TreeWalk};

/// A step through the selected entries. Paths are relative to the first directory.
pub(super) enum Selected {
    /// A directory begins. Its entries follow.
    Enter(Vec<u8>, Entry),
    /// An entry that is not a directory.
    Entry(Vec<u8>, Entry),
    /// Some entries of the directory at this path, or below it, cannot be read.
    Failed(Vec<u8>, Error),
    /// The current directory ends. `true` if all its entries were read.
    Leave(bool),
}

/// A directory that was entered.
struct Frame {
    /// The directory with its path, until it is returned as a step.
    pending: Option<(Vec<u8>, Entry)>,
    is_taken: bool,
}

/// Walks the entries that patterns select. Of the directories that are not selected themselves,
/// returns only those on the path to a selected entry, right before the first such entry.
pub(super) struct SelectedWalk<'v> {
    walk: TreeWalk<'v>,
    matcher: Option<PathMatcher>,
    frames: Vec<Frame>,
    /// Steps that were not returned yet, each with the depth of its directory.
    found: VecDeque<(usize, Selected)>,
    /// The depth of the directory of the step that was returned last.
    depth: usize,
    /// The directory that was left last: its path, and whether it is selected.
    left: (Vec<u8>, bool),
}

impl<'v> SelectedWalk<'v> {
    pub(super) fn new(
        volume: &'v TreeVolume,
        directory: &Entry,
        rules: &PathRules,
    ) -> Result<Self> {
        let matcher = (!rules.is_empty()).then(|| rules.matcher()).transpose()?;
        Ok(Self {
            walk: TreeWalk::new(volume, directory),
            matcher,
            frames: vec![Frame { pending: None, is_taken: !rules.has_includes() }],
            found: VecDeque::new(),
            depth: 0,
            left: (Vec::new(), true),
        })
    }

    /// Returns the next step; `None` after the first directory was left.
    pub(super) fn next_step(&mut self) -> Result<Option<Selected>> {
        loop {
            if let Some((depth, selected)) = self.found.pop_front() {
                self.depth = depth;
                return Ok(Some(selected));
            }
            match self.walk.next_step()? {
                None => return Ok(None),
                Some(TreeStep::Failed(error)) => {
                    let path = self.walk.path_of(b"");
                    return Ok(Some(Selected::Failed(path, error)));
                }
                Some(TreeStep::Leave { path, is_whole }) => {
                    let left = self.frames.pop();
                    if let Some(frame) = left.filter(|frame| frame.pending.is_none()) {
                        self.left = (path, frame.is_taken);
                        return Ok(Some(Selected::Leave(is_whole)));
                    }
                }
                Some(TreeStep::Entry(entry)) => self.entry(entry),
            }
        }
    }

    fn entry(&mut self, entry: Entry) {
        let path = self.walk.path_of(&entry.name);
        let is_directory = entry.metadata.kind == EntryKind::Directory;
        let is_below = self.frames.last().is_some_and(|frame| frame.is_taken);
        let choice = match &mut self.matcher {
            Some(matcher) => matcher.choose(&path, is_directory, is_below),
            None => Choice::Taken,
        };
        let is_taken = choice == Choice::Taken;
        if choice == Choice::LeftOut {
            return;
        }
        if is_taken && self.matcher.is_some() {
            self.hand_out_pending();
        }
        let depth = self.frames.len();
        if !is_directory {
            self.found.push_back((depth, Selected::Entry(path, entry)));
            return;
        }
        if let Err(error) = self.walk.enter(&entry) {
            self.found.push_back((depth, Selected::Failed(path, error)));
            return;
        }
        let pending = if is_taken {
            self.found.push_back((depth, Selected::Enter(path, entry)));
            None
        } else {
            Some((path, entry))
        };
        self.frames.push(Frame { pending, is_taken });
    }

    /// Queues the directories on the path to a selected entry.
    fn hand_out_pending(&mut self) {
        for (depth, frame) in self.frames.iter_mut().enumerate() {
            if let Some((path, directory)) = frame.pending.take() {
                self.found.push_back((depth, Selected::Enter(path, directory)));
            }
        }
    }

    /// Skips everything in the directory that the last step has entered.
    pub(super) fn skip(&mut self) {
        self.found.clear();
        while self.frames.len() > self.depth {
            self.frames.pop();
            self.walk.leave();
        }
    }

    /// Returns whether patterns select this name in the directory that was left last, both as a
    /// file and as a directory.
    pub(super) fn selects_in_left(&mut self, name: &[u8]) -> bool {
        let (directory, is_below) = (&self.left.0, self.left.1);
        let path = [directory, name].concat();
        let Some(matcher) = &mut self.matcher else { return true };
        [false, true]
            .iter()
            .all(|is_directory| matcher.choose(&path, *is_directory, is_below) == Choice::Taken)
    }
}
