//! Walking two states of a tree in parallel.

use silt_format::tree::Entry;
use silt_format::{Error, ErrorKind, Result};
use silt_repository::objects::is_damage;
use silt_repository::tree::{Cursor, TreeVolume};
use silt_tree::DEPTH_MAX;

/// A step of a walk through two trees.
#[expect(clippy::large_enum_variant, reason = "one at a time, taken apart at once")]
pub(super) enum PairStep {
    /// The old and the new entry of a name, if they differ or only one of them exists.
    Entry(Option<Entry>, Option<Entry>),
    /// Some entries of the current directory cannot be read.
    Failed(Error),
    /// The current directory ends.
    Leave,
}

/// A directory of one of the trees.
struct Side {
    entries: Cursor,
    next: Option<Entry>,
}

struct Open {
    old: Option<Side>,
    new: Option<Side>,
    path_bytes: usize,
}

/// Walks two states of a directory depth-first, in the order of names. Skips pages that both have,
/// so its time depends on the differences and not on the sizes of the trees.
pub(super) struct PairWalk<'v> {
    old: &'v TreeVolume,
    new: &'v TreeVolume,
    open: Vec<Open>,
    path: Vec<u8>,
}

impl<'v> PairWalk<'v> {
    pub(super) fn new(
        old: &'v TreeVolume,
        new: &'v TreeVolume,
        old_root: &Entry,
        new_root: &Entry,
    ) -> Self {
        let mut walk = Self { old, new, open: Vec::new(), path: Vec::new() };
        walk.push(Some(old_root), Some(new_root));
        walk
    }

    fn push(&mut self, old: Option<&Entry>, new: Option<&Entry>) {
        let side = |volume: &TreeVolume, directory: Option<&Entry>| {
            directory.map(|directory| Side { entries: volume.entries(directory), next: None })
        };
        let (old, new) = (side(self.old, old), side(self.new, new));
        self.open.push(Open { old, new, path_bytes: self.path.len() });
    }

    /// Enters a directory in the current one; `None` for a tree that does not have it.
    pub(super) fn enter(
        &mut self,
        name: &[u8],
        old: Option<&Entry>,
        new: Option<&Entry>,
    ) -> Result<()> {
        if self.open.len() >= DEPTH_MAX {
            let message = format!("deeper than {DEPTH_MAX} directories");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        self.push(old, new);
        self.path.extend_from_slice(name);
        self.path.push(b'/');
        Ok(())
    }

    /// Returns the path of an entry of the current directory, relative to the first directory.
    pub(super) fn path_of(&self, name: &[u8]) -> Vec<u8> {
        [&self.path, name].concat()
    }

    /// Returns the path of the current directory with a trailing slash; empty for the first one.
    pub(super) fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the next step; `None` after the first directory was left.
    pub(super) fn next_step(&mut self) -> Result<Option<PairStep>> {
        loop {
            let Some(open) = self.open.last_mut() else { return Ok(None) };
            match open.next(self.old, self.new) {
                Ok((None, None)) => {
                    self.path.truncate(open.path_bytes);
                    self.open.pop();
                    return Ok(Some(PairStep::Leave));
                }
                Ok((old, new)) if old == new => {}
                Ok((old, new)) => return Ok(Some(PairStep::Entry(old, new))),
                Err(error) if is_damage(&error) => return Ok(Some(PairStep::Failed(error))),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Open {
    /// Returns the old and the new entry of the next name.
    fn next(
        &mut self,
        old: &TreeVolume,
        new: &TreeVolume,
    ) -> Result<(Option<Entry>, Option<Entry>)> {
        if let (Some(here), Some(there)) = (&mut self.old, &mut self.new)
            && here.next.is_none()
            && there.next.is_none()
        {
            old.skip_same(&mut here.entries, new, &mut there.entries)?;
        }
        for (side, volume) in [(&mut self.old, old), (&mut self.new, new)] {
            if let Some(side) = side
                && side.next.is_none()
            {
                side.next = volume.next(&mut side.entries)?;
            }
        }
        let (takes_old, takes_new) =
            match (next_name(self.old.as_ref()), next_name(self.new.as_ref())) {
                (Some(old), Some(new)) => (old <= new, new <= old),
                (old, new) => (old.is_some(), new.is_some()),
            };
        let take = |side: &mut Option<Side>, is_taken: bool| {
            side.as_mut().filter(|_| is_taken).and_then(|side| side.next.take())
        };
        Ok((take(&mut self.old, takes_old), take(&mut self.new, takes_new)))
    }
}

fn next_name(side: Option<&Side>) -> Option<&[u8]> {
    side.and_then(|side| side.next.as_ref()).map(|entry| entry.name.as_slice())
}
