//! Takes the entries of a described file tree.

use std::sync::Arc;

use silt_format::number::to_u64;
use silt_format::replica::{SourceMessage, TreeStep};
use silt_format::tree::{Entry, EntryKind, Extent, Tree};
use silt_format::{Error, MapRoot, Result, SEGMENT_BYTES, Volume};
use silt_repository::packs::PackWriter;
use silt_repository::tree::{Cursor, TreeReader, TreeWriter};

use super::coverage::Coverage;
use super::{ReplicaPeer, unexpected};
use crate::session::BackupSession;

/// Maximum depth of directories.
const DEPTH_MAX: usize = 1 << 16;

/// A file tree that is being described.
struct Tracing<'v> {
    volume: &'v Volume,
    coverage: Coverage,
    writer: TreeWriter,
    pages: TreeReader,
    /// The parent's root.
    old_root: Option<Entry>,
    /// Whether files of the parent may have content in segments that have no data here.
    loses_data: bool,
    /// For each open directory, the place in the parent's directory of the same path.
    open: Vec<Option<Cursor>>,
}

impl BackupSession<'_> {
    /// Takes the entries of a tree whose map is complete, and writes its pages. `loses_data` tells
    /// whether a segment has no data that has some in the parent.
    pub(super) fn take_steps(
        &mut self,
        (volume, tree): (&Volume, &Tree),
        (root, loses_data): (MapRoot, bool),
        peer: &mut dyn ReplicaPeer,
    ) -> Result<Tree> {
        let parent = self.parent.as_ref().filter(|_| self.parent_is_trusted);
        let old = parent.and_then(|parent| {
            let mut old = parent.volumes.iter().filter(|old| old.name == volume.name);
            old.find_map(Volume::tree)
        });
        let mut tracing = Tracing {
            volume,
            coverage: Coverage::new(&self.reader, root),
            writer: TreeWriter::new(),
            pages: TreeReader::of(Arc::clone(&self.reader)),
            old_root: old.map(|old| old.root.clone()),
            loses_data,
            open: Vec::new(),
        };
        let mut root = None;
        loop {
            self.keep()?;
            match peer.receive()? {
                SourceMessage::Steps(steps) => {
                    for step in steps {
                        if root.is_some() {
                            return Err(Error::invalid("entries come after the root's end"));
                        }
                        root = self.take_step(&mut tracing, step)?;
                    }
                }
                SourceMessage::End => break,
                other => return Err(unexpected(&other)),
            }
        }
        let root = root.ok_or_else(|| Error::invalid("the source ended a tree too early"))?;
        Ok(Tree { root, ..tree.clone() })
    }

    fn keep(&mut self) -> Result<()> {
        self.lease.keep()?;
        self.context.check_interrupted()
    }

    /// Takes a step; returns the root at its end.
    fn take_step(&mut self, tracing: &mut Tracing<'_>, step: TreeStep) -> Result<Option<Entry>> {
        match step {
            TreeStep::Enter(entry) => {
                tracing.require_sound(&entry, &self.packs)?;
                tracing.enter(*entry).map(|()| None)
            }
            TreeStep::Entry(entry) => {
                tracing.require_sound(&entry, &self.packs)?;
                self.add_entry(tracing, *entry).map(|()| None)
            }
            TreeStep::Same(name) => {
                let entry = tracing.old(|cursor, pages| cursor.seek(pages, &name))?;
                self.add_same(tracing, require(entry, &name)?).map(|()| None)
            }
            TreeStep::SameRange(first, last) => {
                let mut entry =
                    require(tracing.old(|cursor, pages| cursor.seek(pages, &first))?, &first)?;
                loop {
                    let is_last = entry.name >= last;
                    self.add_same(tracing, entry)?;
                    if is_last {
                        return Ok(None);
                    }
                    entry = require(tracing.old(Cursor::next)?, &last)?;
                }
            }
            TreeStep::Leave => {
                tracing.open.pop();
                tracing.writer.leave(&self.repository.objects, &mut self.packs)
            }
        }
    }

    fn add_entry(&mut self, tracing: &mut Tracing<'_>, entry: Entry) -> Result<()> {
        tracing.writer.add(&self.repository.objects, &mut self.packs, entry)
    }

    /// Adds an entry of the parent. If segments of the parent are gone, first looks for the content
    /// of every file in it.
    fn add_same(&mut self, tracing: &mut Tracing<'_>, entry: Entry) -> Result<()> {
        if tracing.loses_data {
            tracing.require_sound(&entry, &self.packs)?;
            let mut open = vec![tracing.pages.entries(&entry)];
            while let Some(entries) = open.last_mut() {
                self.keep()?;
                let Some(below) = entries.next(&tracing.pages)? else {
                    open.pop();
                    continue;
                };
                tracing.require_sound(&below, &self.packs)?;
                if below.subtree.is_some() {
                    open.push(tracing.pages.entries(&below));
                }
            }
        }
        self.add_entry(tracing, entry)
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

    /// Fails with `Corrupt` unless all content of a file has data in the volume.
    fn require_sound(&mut self, entry: &Entry, packs: &PackWriter) -> Result<()> {
        let wrong = |why: &str| {
            let name = entry.name.escape_ascii();
            Error::corrupt(format!("the source sent an entry '{name}' {why}"))
        };
        if entry.name.is_empty() && !self.open.is_empty() {
            return Err(wrong("without a name"));
        }
        let content = |extent: &Extent| extent.address.map(|address| (address, extent.bytes));
        for (address, bytes) in entry.extents.iter().filter_map(content) {
            let end = address.checked_add(bytes).filter(|end| *end <= self.volume.bytes);
            let end = end.ok_or_else(|| wrong("whose content lies behind the volume"))?;
            let segment_bytes = to_u64(SEGMENT_BYTES);
            let segments = address / segment_bytes..end.div_ceil(segment_bytes);
            if let Some(segment) = self.coverage.first_without_data(segments, packs)? {
                let why = format!("whose content is in segment {segment}, which has no data");
                return Err(wrong(&why));
            }
        }
        Ok(())
    }
}
