//! Writing the pages of a tree once its files have addresses.

use std::collections::{BTreeSet, HashMap};

use silt_format::number::to_u64;
use silt_format::tree::{
    Entry, EntryKind, Extent, FileKind, KindCounts, Metadata, State, Timestamp, TreeCounts,
};
use silt_format::{Error, Result, SEGMENT_BYTES};
use silt_repository::objects::Objects;
use silt_repository::packs::PackWriter;
use silt_repository::tree::TreeWriter;
use silt_tree::{ACCESS_ACL, AclOwner, DEFAULT_ACL, acl_owners};

use super::events::TreeEvent;
use super::map::NewMap;

/// A file with several names: its content, with the times that it had then.
struct Linked {
    extents: Vec<Extent>,
    state: State,
    content: FileKind,
    size: u64,
    modified: Timestamp,
    changed: Timestamp,
}

/// The tree that is being written.
pub(crate) struct Assembly {
    writer: TreeWriter,
    pub(crate) map: NewMap,
    /// The content of the next file so far.
    extents: Vec<Extent>,
    /// The files of which further names may come, by number of the file system and inode number.
    linked: HashMap<(u16, u64), Linked>,
    pub(crate) counts: TreeCounts,
    pub(crate) kinds: [KindCounts; FileKind::ALL.len()],
    pub(crate) users: BTreeSet<u32>,
    pub(crate) groups: BTreeSet<u32>,
    pub(crate) root: Option<Entry>,
}

impl Assembly {
    pub(crate) fn new(map: NewMap) -> Self {
        Self {
            writer: TreeWriter::new(),
            map,
            extents: Vec::new(),
            linked: HashMap::new(),
            counts: TreeCounts::default(),
            kinds: Default::default(),
            users: BTreeSet::new(),
            groups: BTreeSet::new(),
            root: None,
        }
    }

    /// Processes the next event. `segment` is the number of the segment that pieces are in.
    pub(crate) fn take(
        &mut self,
        event: TreeEvent,
        segment: Option<u64>,
        objects: &Objects,
        packs: &mut PackWriter,
    ) -> Result<()> {
        match event {
            TreeEvent::Enter(entry) => {
                self.count(&entry);
                self.writer.enter(*entry);
                Ok(())
            }
            TreeEvent::Pages(pages) => {
                self.writer.know(&pages);
                Ok(())
            }
            TreeEvent::Large { .. } => Ok(()),
            TreeEvent::Piece { start, bytes } => {
                let Some(segment) = segment else {
                    return Err(Error::invalid("content of a file has no segment"));
                };
                let address = segment * to_u64(SEGMENT_BYTES) + to_u64(start);
                self.extend(Extent { address: Some(address), bytes: to_u64(bytes) });
                Ok(())
            }
            TreeEvent::Held { address, bytes } => {
                self.extend(Extent { address: Some(address), bytes: to_u64(bytes) });
                Ok(())
            }
            TreeEvent::Hole(bytes) => {
                self.extend(Extent { address: None, bytes });
                Ok(())
            }
            TreeEvent::Again => {
                self.extents.clear();
                Ok(())
            }
            TreeEvent::File { name, metadata, state, content, has_more_names } => {
                let extents = std::mem::take(&mut self.extents);
                let metadata = *metadata;
                let entry = Entry { name, metadata, state, content, extents, subtree: None };
                self.note_link(&entry, has_more_names);
                self.add(entry, objects, packs)
            }
            TreeEvent::Link { name, metadata, has_more_names } => {
                let id = (metadata.file_system, metadata.inode);
                let Some(linked) = self.linked.get(&id) else {
                    return Err(Error::invalid("the first name of a hard link is missing"));
                };
                let (extents, state, content) =
                    (linked.extents.clone(), linked.state, linked.content);
                // The file may have changed since: later times would prove what was not read.
                let Linked { size, modified, changed, .. } = *linked;
                let metadata = Metadata { size, modified, changed, ..*metadata };
                let entry = Entry { name, metadata, state, content, extents, subtree: None };
                self.note_link(&entry, has_more_names);
                self.add(entry, objects, packs)
            }
            TreeEvent::Entry { entry, has_more_names } => {
                if entry.metadata.kind == EntryKind::File {
                    self.note_link(&entry, has_more_names);
                }
                self.add(*entry, objects, packs)
            }
            TreeEvent::Leave => {
                self.root = self.writer.leave(objects, packs)?;
                Ok(())
            }
        }
    }

    /// Appends to the content of the next file. Adjacent extents become one.
    fn extend(&mut self, next: Extent) {
        let joins = |last: &Extent| match (last.address, next.address) {
            (Some(address), Some(behind)) => address + last.bytes == behind,
            (None, None) => true,
            _ => false,
        };
        match self.extents.last_mut() {
            Some(last) if joins(last) => last.bytes += next.bytes,
            _ => self.extents.push(next),
        }
    }

    fn add(&mut self, entry: Entry, objects: &Objects, packs: &mut PackWriter) -> Result<()> {
        self.count(&entry);
        let segment_bytes = to_u64(SEGMENT_BYTES);
        for extent in &entry.extents {
            let Some(address) = extent.address else { continue };
            let (mut at, end) = (address, address + extent.bytes);
            while at < end {
                let next = (at / segment_bytes + 1) * segment_bytes;
                self.map.refer(at / segment_bytes, next.min(end) - at);
                at = next;
            }
        }
        self.writer.add(objects, packs, entry)
    }

    /// Remembers the content of a file with hard links until its last name.
    fn note_link(&mut self, entry: &Entry, has_more_names: bool) {
        let metadata = &entry.metadata;
        let id = (metadata.file_system, metadata.inode);
        if !has_more_names {
            self.linked.remove(&id);
            return;
        }
        let (extents, state, content) = (entry.extents.clone(), entry.state, entry.content);
        let Metadata { size, modified, changed, .. } = *metadata;
        let linked = Linked { extents, state, content, size, modified, changed };
        self.linked.insert(id, linked);
    }

    fn count(&mut self, entry: &Entry) {
        let metadata = &entry.metadata;
        match metadata.kind {
            EntryKind::File => {
                self.counts.files += 1;
                let kind = &mut self.kinds[entry.content.index()];
                kind.files += 1;
                kind.bytes += metadata.size;
            }
            EntryKind::Directory => self.counts.directories += 1,
            _ => self.counts.others += 1,
        }
        match entry.state {
            State::Unreadable => self.counts.unreadable += 1,
            State::Changed => self.counts.changed += 1,
            State::Whole | State::Fresh => {}
        }
        self.users.insert(metadata.uid);
        self.groups.insert(metadata.gid);
        let is_acl = |name: &[u8]| name == ACCESS_ACL || name == DEFAULT_ACL;
        let acls = metadata.xattrs.iter().filter(|xattr| is_acl(&xattr.name));
        for owner in acls.flat_map(|xattr| acl_owners(&xattr.value)) {
            match owner {
                AclOwner::User(id) => self.users.insert(id),
                AclOwner::Group(id) => self.groups.insert(id),
            };
        }
    }
}
