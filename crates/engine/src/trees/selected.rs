//! The entries of a tree that patterns select.

use std::collections::VecDeque;

use silt_format::tree::{Entry, EntryKind};
use silt_format::{Error, Result};
use silt_repository::tree::TreeVolume;
use silt_tree::{Choice, PathMatcher, PathRules};

use super::walk::{TreeStep, TreeWalk};

/// What comes next of the selected entries, with paths relative to the first directory.
pub(super) enum Selected {
    /// A directory that is entered. Its entries follow.
    Enter(Vec<u8>, Entry),
    /// Another entry.
    Entry(Vec<u8>, Entry),
    /// Entries at a path can't be read.
    Failed(Vec<u8>, Error),
    /// The current directory ends, and whether all its entries were read.
    Leave(bool),
}

/// A directory that was entered.
struct Frame {
    /// The directory with its path, until it is handed out.
    pending: Option<(Vec<u8>, Entry)>,
    is_taken: bool,
}

/// Goes through the entries that patterns select. A directory that is selected only for an entry
/// below it comes right before that entry; one without such an entry does not come.
pub(super) struct SelectedWalk<'v> {
    walk: TreeWalk<'v>,
    matcher: Option<PathMatcher>,
    frames: Vec<Frame>,
    /// What was found and not handed out, each with the number of directories around it.
    found: VecDeque<(usize, Selected)>,
    /// The number of directories around what was handed out last.
    depth: usize,
    /// The directory that was left last: its path, and whether it is taken.
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

    /// The next step; `None` after the first directory was left.
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
        if choice == Choice::Left {
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

    /// Hands out the directories on the way to an entry that is taken.
    fn hand_out_pending(&mut self) {
        for (depth, frame) in self.frames.iter_mut().enumerate() {
            if let Some((path, directory)) = frame.pending.take() {
                self.found.push_back((depth, Selected::Enter(path, directory)));
            }
        }
    }

    /// Passes over the directory that was handed out last and over everything in it.
    pub(super) fn skip(&mut self) {
        self.found.clear();
        while self.frames.len() > self.depth {
            self.frames.pop();
            self.walk.leave();
        }
    }

    /// Whether patterns select an entry of the directory that was left last, whatever its kind.
    pub(super) fn selects_in_left(&mut self, name: &[u8]) -> bool {
        let (directory, is_below) = (&self.left.0, self.left.1);
        let path = [directory, name].concat();
        let Some(matcher) = &mut self.matcher else { return true };
        [false, true]
            .iter()
            .all(|is_directory| matcher.choose(&path, *is_directory, is_below) == Choice::Taken)
    }
}
