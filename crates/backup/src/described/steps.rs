//! Takes the entries of a described file tree.

use std::sync::Arc;

use silt_format::replica::{SourceMessage, TreeStep};
use silt_format::tree::{Entry, EntryKind, Tree};
use silt_format::{Error, Result, Volume};
use silt_repository::objects::Objects;
use silt_repository::tree::{Cursor, TreeReader, TreeWriter};

use super::{ReplicaPeer, unexpected};
use crate::session::BackupSession;

/// Maximum depth of directories.
const DEPTH_MAX: usize = 1 << 16;

/// A file tree that is being described.
struct Tracing<'v> {
    volume: &'v Volume,
    writer: TreeWriter,
    pages: TreeReader,
    /// The parent's root.
    old_root: Option<Entry>,
    /// Whether the parent's files may lie behind the end of this volume.
    is_shorter: bool,
    /// For each open directory, the place in the parent's directory of the same path.
    open: Vec<Option<Cursor>>,
}

impl BackupSession<'_> {
    /// Takes a tree's entries, and writes its pages.
    pub(super) fn take_steps(
        &mut self,
        volume: &Volume,
        tree: &Tree,
        peer: &mut dyn ReplicaPeer,
    ) -> Result<Tree> {
        let old = self.parent.as_ref().and_then(|parent| {
            let mut old = parent.volumes.iter().filter(|old| old.name == volume.name);
            old.find_map(|old| Some((old.tree()?, old.bytes)))
        });
        let is_shorter = old.is_some_and(|(_, bytes)| volume.bytes < bytes);
        let mut tracing = Tracing {
            volume,
            writer: TreeWriter::new(),
            pages: TreeReader::of(Arc::clone(&self.reader)),
            old_root: old.map(|(old, _)| old.root.clone()),
            is_shorter,
            open: Vec::new(),
        };
        let objects = Arc::clone(&self.repository.objects);
        let mut root = None;
        loop {
            self.lease.keep()?;
            self.context.check_interrupted()?;
            match peer.receive()? {
                SourceMessage::Steps(steps) => {
                    for step in steps {
                        if root.is_some() {
                            return Err(Error::invalid("entries come after the root's end"));
                        }
                        root = self.take_step(&mut tracing, step, &objects)?;
                    }
                }
                SourceMessage::End => break,
                other => return Err(unexpected(&other)),
            }
        }
        let root = root.ok_or_else(|| Error::invalid("the source ended a tree too early"))?;
        Ok(Tree { root, ..tree.clone() })
    }

    /// Takes a step; returns the root at its end.
    fn take_step(
        &mut self,
        tracing: &mut Tracing<'_>,
        step: TreeStep,
        objects: &Objects,
    ) -> Result<Option<Entry>> {
        let packs = &mut self.packs;
        match step {
            TreeStep::Enter(entry) => tracing.enter(*entry).map(|()| None),
            TreeStep::Entry(entry) => {
                tracing.require_sound(&entry)?;
                tracing.writer.add(objects, packs, *entry).map(|()| None)
            }
            TreeStep::Same(name) => {
                let entry = tracing.old(|cursor, pages| cursor.seek(pages, &name))?;
                let entry = require(entry, &name)?;
                tracing.require_within(&entry)?;
                tracing.writer.add(objects, packs, entry).map(|()| None)
            }
            TreeStep::SameRange(first, last) => {
                let mut entry =
                    require(tracing.old(|cursor, pages| cursor.seek(pages, &first))?, &first)?;
                loop {
                    let is_last = entry.name >= last;
                    tracing.require_within(&entry)?;
                    tracing.writer.add(objects, packs, entry)?;
                    if is_last {
                        return Ok(None);
                    }
                    entry = require(tracing.old(Cursor::next)?, &last)?;
                }
            }
            TreeStep::Leave => {
                tracing.open.pop();
                tracing.writer.leave(objects, packs)
            }
        }
    }
}

/// Fails unless the parent's directory has the entry.
fn require(entry: Option<Entry>, name: &[u8]) -> Result<Entry> {
    entry.ok_or_else(|| {
        let name = name.escape_ascii();
        Error::invalid(format!("the source says that the parent has '{name}', which it lacks"))
    })
}

impl Tracing<'_> {
    fn enter(&mut self, entry: Entry) -> Result<()> {
        self.require_sound(&entry)?;
        let is_root = self.open.is_empty();
        if entry.metadata.kind != EntryKind::Directory || entry.name.is_empty() != is_root {
            return Err(Error::invalid("the source entered what is no directory"));
        }
        if self.open.len() >= DEPTH_MAX {
            return Err(Error::invalid("directories are nested too deeply"));
        }
        let old = if is_root {
            self.old_root.clone()
        } else if self.open.last().is_some_and(Option::is_some) {
            self.old(|cursor, pages| cursor.seek(pages, &entry.name))?
        } else {
            None
        };
        let old = old.filter(|old| old.metadata.kind == EntryKind::Directory);
        self.open.push(old.map(|old| self.pages.entries(&old)));
        self.writer.enter(entry);
        Ok(())
    }

    /// Reads on in the parent's directory; its pages need not be written again.
    fn old(
        &mut self,
        read: impl FnOnce(&mut Cursor, &TreeReader) -> Result<Option<Entry>>,
    ) -> Result<Option<Entry>> {
        let Some(Some(cursor)) = self.open.last_mut() else {
            return Err(Error::invalid("the source refers to a directory that the parent lacks"));
        };
        let entry = read(cursor, &self.pages)?;
        self.writer.know(&cursor.take_read());
        Ok(entry)
    }

    /// Fails unless the content of all files of an entry of the parent is in the volume.
    fn require_within(&self, entry: &Entry) -> Result<()> {
        if !self.is_shorter {
            return Ok(());
        }
        self.require_sound(entry)?;
        let mut open = vec![self.pages.entries(entry)];
        while let Some(entries) = open.last_mut() {
            match entries.next(&self.pages)? {
                Some(entry) => {
                    self.require_sound(&entry)?;
                    if entry.subtree.is_some() {
                        open.push(self.pages.entries(&entry));
                    }
                }
                None => drop(open.pop()),
            }
        }
        Ok(())
    }

    /// Fails unless the content of a file is in the volume.
    fn require_sound(&self, entry: &Entry) -> Result<()> {
        let ends_within = entry.extents.iter().all(|extent| {
            let Some(address) = extent.address else { return true };
            address.checked_add(extent.bytes).is_some_and(|end| end <= self.volume.bytes)
        });
        if ends_within && !entry.name.is_empty() | self.open.is_empty() {
            return Ok(());
        }
        let name = entry.name.escape_ascii();
        Err(Error::corrupt(format!("the source sent an entry '{name}' that is not sound")))
    }
}
