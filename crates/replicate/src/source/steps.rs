//! Walks a file tree beside the one that the replica has.

use silt_format::Result;
use silt_format::replica::{SourceMessage, TreeStep};
use silt_format::tree::{Entry, EntryKind};
use silt_format::{Volume, VolumeKind};
use silt_repository::Repository;
use silt_repository::tree::{Cursor as TreeCursor, TreeReader};

use super::Current;

/// Size of a message with entries in bytes: once it has as many, it is sent.
const STEPS_BYTES: usize = 64 << 10;

/// A directory that is open.
struct Open {
    entries: TreeCursor,
    /// The parent's directory of the same path.
    old: Option<TreeCursor>,
    /// The next entry of that.
    next_old: Option<Entry>,
}

/// Goes through a tree depth-first, in the order of names.
pub(super) struct StepWalk {
    reader: TreeReader,
    old_reader: TreeReader,
    root: Option<(Entry, Option<Entry>)>,
    open: Vec<Open>,
    /// Consecutive entries that are as in the parent.
    same: Option<(Vec<u8>, Vec<u8>)>,
    has_ended: bool,
}

impl StepWalk {
    /// Begins with the current volume; `None` if it is a disk.
    pub fn begin(repository: &Repository, current: &Current) -> Option<Self> {
        let volume = &current.found.snapshot.volumes[current.volume];
        let VolumeKind::Tree(tree) = &volume.kind else { return None };
        let old = current.parent.as_ref().and_then(|parent| {
            parent
                .snapshot
                .volumes
                .iter()
                .filter(|old| old.name == volume.name)
                .find_map(Volume::tree)
        });
        let head = &current.found.head;
        let old_head = current.parent.as_ref().map_or(head, |parent| &parent.head);
        Some(Self {
            reader: TreeReader::new(&repository.objects, head),
            old_reader: TreeReader::new(&repository.objects, old_head),
            root: Some((tree.root.clone(), old.map(|old| old.root.clone()))),
            open: Vec::new(),
            same: None,
            has_ended: false,
        })
    }

    /// The next message; `None` at the end.
    pub fn produce(&mut self) -> Result<Option<SourceMessage>> {
        if self.has_ended {
            return Ok(None);
        }
        let (mut steps, mut bytes) = (Vec::new(), 0);
        if let Some((root, old)) = self.root.take() {
            self.enter(root, old, &mut steps);
        }
        while bytes < STEPS_BYTES && !self.open.is_empty() {
            let before = steps.len();
            self.step(&mut steps)?;
            bytes += steps[before..].iter().map(size).sum::<usize>();
        }
        if self.open.is_empty() && steps.is_empty() {
            self.has_ended = true;
            return Ok(Some(SourceMessage::End));
        }
        Ok(Some(SourceMessage::Steps(steps)))
    }

    /// Takes the next entry of the innermost directory.
    fn step(&mut self, steps: &mut Vec<TreeStep>) -> Result<()> {
        let Some(open) = self.open.last_mut() else { return Ok(()) };
        let Some(entry) = open.entries.next(&self.reader)? else {
            self.end_same(steps);
            steps.push(TreeStep::Leave);
            self.open.pop();
            return Ok(());
        };
        let mut is_skipped = false;
        while open.next_old.as_ref().is_some_and(|old| old.name < entry.name) {
            open.next_old = advance(open.old.as_mut(), &self.old_reader);
            is_skipped = true;
        }
        let is_beside = open.next_old.as_ref().is_some_and(|old| old.name == entry.name);
        let old = if is_beside {
            let next = advance(open.old.as_mut(), &self.old_reader);
            std::mem::replace(&mut open.next_old, next)
        } else {
            None
        };
        if is_skipped {
            // The parent has names between that are gone.
            self.end_same(steps);
        }
        if old.as_ref() == Some(&entry) {
            match &mut self.same {
                Some((_, last)) => *last = entry.name,
                none => *none = Some((entry.name.clone(), entry.name)),
            }
            return Ok(());
        }
        self.end_same(steps);
        if entry.metadata.kind == EntryKind::Directory {
            self.enter(entry, old, steps);
            return Ok(());
        }
        steps.push(TreeStep::Entry(Box::new(entry)));
        Ok(())
    }

    fn end_same(&mut self, steps: &mut Vec<TreeStep>) {
        match self.same.take() {
            Some((first, last)) if first == last => steps.push(TreeStep::Same(first)),
            Some((first, last)) => steps.push(TreeStep::SameRange(first, last)),
            None => {}
        }
    }

    fn enter(&mut self, mut entry: Entry, old: Option<Entry>, steps: &mut Vec<TreeStep>) {
        let old = old.filter(|old| old.metadata.kind == EntryKind::Directory);
        let mut old = old.map(|old| self.old_reader.entries(&old));
        let next_old = advance(old.as_mut(), &self.old_reader);
        self.open.push(Open { entries: self.reader.entries(&entry), old, next_old });
        entry.subtree = None;
        steps.push(TreeStep::Enter(Box::new(entry)));
    }
}

/// The next entry of the parent's directory; what can't be read has nothing in common.
fn advance(cursor: Option<&mut TreeCursor>, reader: &TreeReader) -> Option<Entry> {
    cursor.and_then(|cursor| cursor.next(reader).ok().flatten())
}

/// About the encoded size of a step.
fn size(step: &TreeStep) -> usize {
    match step {
        TreeStep::Enter(entry) | TreeStep::Entry(entry) => {
            let xattrs = &entry.metadata.xattrs;
            let xattrs = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len());
            128 + entry.name.len() + entry.extents.len() * 16 + xattrs.sum::<usize>()
        }
        TreeStep::Same(name) => 3 + name.len(),
        TreeStep::SameRange(first, last) => 5 + first.len() + last.len(),
        TreeStep::Leave => 1,
    }
}
