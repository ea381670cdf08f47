//! File trees in memory, and their random changes.

use std::collections::BTreeMap;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{DeviceNumber, Entry, EntryKind, Metadata, State, Timestamp, Xattr};
use silt_format::{Error, Result};
use siltstone::TreeVolume;

use crate::random::Random;

/// Content is made of blocks of this size; those of zeros are holes.
pub const BLOCK: usize = 4096;
/// The most entries that a tree begins with.
const ENTRIES: usize = 12;
/// The number of changes in a day is below this.
const CHANGES: usize = 10;
/// Sizes of large files in bytes. They have segments of their own, or leave a shared one sparse.
const LARGE: [usize; 3] = [700_000, 1_200_000, 2_500_000];

/// A file, directory, link or pipe.
#[derive(Clone)]
pub struct Node {
    /// All that is known of it but its content.
    pub metadata: Metadata,
    /// What a file holds.
    pub content: Arc<Vec<u8>>,
    /// What a directory holds.
    pub entries: BTreeMap<Vec<u8>, u64>,
    /// When it was created.
    pub born: Timestamp,
}

/// A file tree. As on a real file system, inode numbers of removed files are reused.
#[derive(Clone)]
pub struct MemoryTree {
    /// The number of the root, the least of all.
    pub root: u64,
    nodes: BTreeMap<u64, Node>,
    /// Whether some files are large. Such histories take longer, so they are rare.
    has_large: bool,
    /// Whether it is known when its files were created, as most file systems tell.
    pub tells_births: bool,
}

/// A directory's inode number, and the name of an entry in it.
type Place = (u64, Vec<u8>);

impl MemoryTree {
    /// A tree with a few entries.
    pub fn new(root: u64, random: &mut Random, now: Timestamp) -> Self {
        // Not drawn from `random`, so that histories that are kept stay what they are.
        let tells_births = Random(random.0 ^ 0x000b_0124).once_in(2);
        let has_large = random.once_in(6);
        let mut tree = Self { root, nodes: BTreeMap::new(), has_large, tells_births };
        tree.nodes.insert(root, node(EntryKind::Directory, root, now));
        for _ in 0..=random.below(ENTRIES) {
            tree.add(random, now);
        }
        tree
    }

    /// Changes the tree as in a day. All changes get the time `now`.
    pub fn change(&mut self, random: &mut Random, now: Timestamp) {
        for _ in 0..random.below(CHANGES) {
            match random.below(9) {
                0 => self.remove_one(random, now),
                1 => self.rename(random, now),
                2 => self.link(random, now),
                3 => self.change_metadata(random, now),
                4..=6 => self.write(random, now),
                _ => self.add(random, now),
            }
        }
    }

    /// A file, directory, link or pipe by its number.
    pub fn get(&self, inode: u64) -> Option<&Node> {
        self.nodes.get(&inode)
    }

    /// The number of a file, or of anything.
    pub fn some_number(&self, random: &mut Random) -> u64 {
        let some = self.some(random, EntryKind::File).filter(|_| !random.once_in(4));
        let numbers: Vec<u64> = self.nodes.keys().copied().collect();
        some.map_or_else(|| numbers[random.below(numbers.len())], |(_, inode)| inode)
    }

    /// Changes an entry at a time that may be the one that it has: a file gets other bytes, of
    /// which there are as many; others, and those without content, get another attribute.
    pub fn change_in_place(&mut self, inode: u64, random: &mut Random, now: Timestamp) {
        let node = self.node(inode);
        if node.content.is_empty() {
            // The names of a file are looked at one by one.
            if node.metadata.links == 1 {
                let mut value = vec![0; 8];
                random.fill(&mut value);
                node.metadata.xattrs = vec![Xattr { name: b"user.note".to_vec(), value }];
                node.metadata.changed = now;
            }
            return;
        }
        let mut bytes = node.content.to_vec();
        let at = random.below(bytes.len());
        let end = bytes.len().min(at + BLOCK);
        random.fill(&mut bytes[at..end]);
        bytes[at] = !node.content[at];
        node.content = Arc::new(bytes);
        node.metadata.changed = now;
        // Some programs set the time back.
        if !random.once_in(3) {
            node.metadata.modified = now;
        }
    }

    /// Whether an entry is what it is in another tree.
    pub fn is_as_in(&self, other: &Self, inode: u64) -> bool {
        match (self.nodes.get(&inode), other.nodes.get(&inode)) {
            (Some(here), Some(there)) => {
                here.metadata == there.metadata
                    && here.entries == there.entries
                    && Arc::ptr_eq(&here.content, &there.content)
            }
            _ => false,
        }
    }

    /// Lets an entry have the extended attributes that it has in another tree.
    pub fn keep_attributes(&mut self, other: &Self, inode: u64) {
        if let Some(there) = other.nodes.get(&inode) {
            self.node(inode).metadata.xattrs.clone_from(&there.metadata.xattrs);
        }
    }

    /// Lets an entry be what it is in another tree.
    pub fn copy_from(&mut self, other: &Self, inode: u64) {
        if let Some(node) = other.nodes.get(&inode) {
            self.nodes.insert(inode, node.clone());
        }
    }

    fn node(&mut self, inode: u64) -> &mut Node {
        let lost = || node(EntryKind::Directory, inode, Timestamp { seconds: 0, nanoseconds: 0 });
        self.nodes.entry(inode).or_insert_with(lost)
    }

    /// Returns all names, by ascending inode number of their directories.
    fn places(&self) -> Vec<Place> {
        let of = |(inode, node): (&u64, &Node)| {
            let inode = *inode;
            node.entries.keys().map(|name| (inode, name.clone())).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }

    fn at(&self, place: &Place) -> Option<u64> {
        self.nodes.get(&place.0)?.entries.get(&place.1).copied()
    }

    fn some(&self, random: &mut Random, kind: EntryKind) -> Option<(Place, u64)> {
        let found = |place: Place| self.at(&place).map(|inode| (place, inode));
        let is_kind = |(_, inode): &(Place, u64)| {
            self.nodes.get(inode).is_some_and(|node| node.metadata.kind == kind)
        };
        let mut all: Vec<_> = self.places().into_iter().filter_map(found).filter(is_kind).collect();
        if all.is_empty() {
            return None;
        }
        Some(all.swap_remove(random.below(all.len())))
    }

    /// Returns the root, or another directory.
    fn directory(&self, random: &mut Random) -> u64 {
        if random.once_in(2) {
            return self.root;
        }
        self.some(random, EntryKind::Directory).map_or(self.root, |(_, inode)| inode)
    }

    /// Adds an entry. Replaces an existing entry of the same name.
    fn add(&mut self, random: &mut Random, now: Timestamp) {
        let place = (self.directory(random), name(random));
        self.remove(&place, now);
        let inode =
            (self.root..u64::MAX).find(|inode| !self.nodes.contains_key(inode)).unwrap_or(u64::MAX);
        let kind = random.of(&[
            EntryKind::File,
            EntryKind::File,
            EntryKind::File,
            EntryKind::File,
            EntryKind::Directory,
            EntryKind::Symlink,
            EntryKind::Fifo,
        ]);
        let mut new = node(kind, inode, now);
        match kind {
            EntryKind::File => {
                new.content = Arc::new(content(random, self.has_large));
                new.metadata.size = to_u64(new.content.len());
            }
            EntryKind::Symlink => new.metadata.target = name(random),
            _ => {}
        }
        self.nodes.insert(inode, new);
        self.enter(place, inode, now);
    }

    fn enter(&mut self, place: Place, inode: u64, now: Timestamp) {
        let directory = self.node(place.0);
        (directory.metadata.modified, directory.metadata.changed) = (now, now);
        directory.entries.insert(place.1, inode);
    }

    fn remove_one(&mut self, random: &mut Random, now: Timestamp) {
        let places = self.places();
        if !places.is_empty() {
            self.remove(&places[random.below(places.len())], now);
        }
    }

    /// Removes a name. Removes a directory with everything below it.
    fn remove(&mut self, place: &Place, now: Timestamp) {
        let directory = self.node(place.0);
        let Some(inode) = directory.entries.remove(&place.1) else { return };
        (directory.metadata.modified, directory.metadata.changed) = (now, now);
        let below: Vec<_> = self.node(inode).entries.keys().cloned().collect();
        below.into_iter().for_each(|name| self.remove(&(inode, name), now));
        let node = self.node(inode);
        node.metadata.changed = now;
        node.metadata.links -= 1;
        if node.metadata.links == 0 {
            self.nodes.remove(&inode);
        }
    }

    /// Renames an entry. Replaces an existing entry of the new name.
    fn rename(&mut self, random: &mut Random, now: Timestamp) {
        let kind = random.of(&[EntryKind::File, EntryKind::Directory]);
        let Some((from, inode)) = self.some(random, kind) else { return };
        let to = (self.directory(random), name(random));
        if from == to || self.is_below(to.0, inode) {
            return;
        }
        // Do not replace the entry itself, or a directory above it.
        if self.at(&to).is_some_and(|replaced| replaced == inode || self.is_below(from.0, replaced))
        {
            return;
        }
        self.remove(&to, now);
        self.node(from.0).entries.remove(&from.1);
        (self.node(from.0).metadata.modified, self.node(from.0).metadata.changed) = (now, now);
        self.enter(to, inode, now);
        self.node(inode).metadata.changed = now;
    }

    /// Returns whether `inode` is `above` or below it.
    fn is_below(&self, inode: u64, above: u64) -> bool {
        let Some(node) = self.nodes.get(&above) else { return false };
        inode == above || node.entries.values().any(|below| self.is_below(inode, *below))
    }

    fn link(&mut self, random: &mut Random, now: Timestamp) {
        let Some((_, inode)) = self.some(random, EntryKind::File) else { return };
        let place = (self.directory(random), name(random));
        if self.at(&place).is_none() {
            let node = self.node(inode);
            node.metadata.links += 1;
            node.metadata.changed = now;
            self.enter(place, inode, now);
        }
    }

    fn change_metadata(&mut self, random: &mut Random, now: Timestamp) {
        let Some((_, inode)) = self.some(random, EntryKind::File) else { return };
        let value = vec![0; random.below(3000)];
        let metadata = &mut self.node(inode).metadata;
        metadata.mode ^= 0o111;
        metadata.uid = random.of(&[0, 1000]);
        metadata.xattrs = vec![Xattr { name: b"user.note".to_vec(), value }];
        metadata.changed = now;
    }

    /// Changes the content of a file: overwrites, inserts, truncates or replaces it.
    fn write(&mut self, random: &mut Random, now: Timestamp) {
        let Some((_, inode)) = self.some(random, EntryKind::File) else { return };
        let has_large = self.has_large;
        let node = self.node(inode);
        let mut bytes = node.content.to_vec();
        let keeps_modified = random.once_in(3);
        let at = random.below(bytes.len() + 1);
        match random.below(4) {
            0 => {
                let end = bytes.len().min(at + 100);
                random.fill(&mut bytes[at..end]);
            }
            1 => drop(bytes.splice(at..at, content(random, false))),
            2 => bytes.truncate(at),
            _ => bytes = content(random, has_large),
        }
        node.metadata.size = to_u64(bytes.len());
        node.content = Arc::new(bytes);
        node.metadata.changed = now;
        if !keeps_modified {
            node.metadata.modified = now;
        }
    }

    /// Returns everything that a restore must bring back, as bytes that can be compared.
    pub fn manifest(&self) -> Vec<u8> {
        let mut manifest = Manifest::default();
        Self::list((self.root, &mut Vec::new()), &mut |_| self, &mut manifest);
        manifest.0
    }

    /// What a restore may bring back if a file with several names changed between two of them: its
    /// first names have what it was `before`, and the others what it is here.
    pub fn manifests_between(&self, before: &Self, inode: u64) -> Vec<Vec<u8>> {
        let names = self.nodes.get(&inode).map_or(0, |node| node.metadata.links);
        let until = |first: u32| {
            let (mut manifest, mut met) = (Manifest::default(), 0);
            let mut tree_of = |of| {
                met += u32::from(of == inode);
                if of == inode && met <= first { before } else { self }
            };
            Self::list((self.root, &mut Vec::new()), &mut tree_of, &mut manifest);
            manifest.0
        };
        (1..names).map(until).collect()
    }

    /// Lists an entry and those below it, each as it is in the tree that `tree_of` names.
    fn list<'t>(
        (inode, path): (u64, &mut Vec<u8>),
        tree_of: &mut dyn FnMut(u64) -> &'t Self,
        manifest: &mut Manifest,
    ) {
        let Some(node) = tree_of(inode).nodes.get(&inode) else { return };
        manifest.add(path, &node.metadata, &node.content);
        for (name, below) in &node.entries {
            let length = path.len();
            path.push(b'/');
            path.extend_from_slice(name);
            Self::list((*below, path), tree_of, manifest);
            path.truncate(length);
        }
    }
}

fn node(kind: EntryKind, inode: u64, now: Timestamp) -> Node {
    let metadata = Metadata {
        kind,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        modified: now,
        changed: now,
        size: 0,
        inode,
        file_system: 0,
        links: 1,
        target: Vec::new(),
        device: DeviceNumber::default(),
        flags: 0,
        xattrs: Vec::new(),
    };
    Node { metadata, content: Arc::default(), entries: BTreeMap::new(), born: now }
}

/// Returns one of a few names, so that names repeat. Some are not UTF-8.
fn name(random: &mut Random) -> Vec<u8> {
    let mut name = random.of(&[&b"a"[..], b"b.txt", b"c.db", b"d\xff", b"e e"]).to_vec();
    if random.once_in(2) {
        name.push(random.of(b"0123456789"));
    }
    name
}

/// Returns the content of a file: random bytes, text and zeros; mostly small.
fn content(random: &mut Random, may_be_large: bool) -> Vec<u8> {
    if may_be_large && random.once_in(4) {
        let mut bytes = vec![random.of(b"xyz"); random.of(&LARGE)];
        random.fill(&mut bytes[..8192]);
        return bytes;
    }
    let most = random.of(&[0, 10, 2000, 2000, 10_000, 40_000]);
    let mut bytes = vec![b'a'; random.below(most + 1)];
    for block in bytes.chunks_mut(BLOCK) {
        match random.below(6) {
            0 => block.fill(0),
            1 => {}
            _ => random.fill(block),
        }
    }
    bytes
}

/// A description of a tree as bytes, to compare trees.
#[derive(Default)]
struct Manifest(Vec<u8>);

impl Manifest {
    fn add(&mut self, path: &[u8], metadata: &Metadata, content: &[u8]) {
        self.0.extend_from_slice(path.escape_ascii().to_string().as_bytes());
        self.0.extend_from_slice(format!(": {metadata:?} ").as_bytes());
        self.0.extend_from_slice(blake3::hash(content).to_hex().as_bytes());
        self.0.push(b'\n');
    }
}

/// Reads a whole tree from a snapshot, and returns it as [`MemoryTree::manifest`] does.
pub fn restored(volume: &TreeVolume) -> Result<Vec<u8>> {
    let mut manifest = Manifest::default();
    restored_below(volume, &volume.tree().root, &mut Vec::new(), &mut manifest)?;
    Ok(manifest.0)
}

fn restored_below(
    volume: &TreeVolume,
    entry: &Entry,
    path: &mut Vec<u8>,
    manifest: &mut Manifest,
) -> Result<()> {
    let mut content = vec![0; to_usize(entry.metadata.size)];
    if entry.metadata.kind == EntryKind::File {
        let read = volume.read_at(entry, 0, &mut content)?;
        content.truncate(read);
    }
    if !matches!(entry.state, State::Whole | State::Fresh) {
        let path = path.escape_ascii();
        return Err(Error::invalid(format!("{path} is {:?}, and never changed", entry.state)));
    }
    manifest.add(path, &entry.metadata, &content);
    let mut entries = volume.entries(entry);
    while let Some(below) = volume.next(&mut entries)? {
        let length = path.len();
        path.push(b'/');
        path.extend_from_slice(&below.name);
        restored_below(volume, &below, path, manifest)?;
        path.truncate(length);
    }
    Ok(())
}
