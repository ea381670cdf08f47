//! A file tree in memory, as one of the series of the random sequences in [`model`](crate::model).

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use silt_format::Result;
use silt_format::tree::{DeviceNumber, Entry, EntryKind, Metadata, Timestamp};
use silt_tree::{FileSource, FileSystemTraits, Found as Seen, Owners, Step, TreeSource};
use siltstone::{BackupReport, Found, Repository, TreeOptions, TreeVolume};

use crate::kit::{self, Random};

const BLOCK: usize = 4096;
const FOLDERS: usize = 3;
const VOLUME: &str = "files";

/// A file, with one name or several.
#[derive(Clone)]
struct Node {
    content: Arc<Vec<u8>>,
    changed: i64,
}

/// Folders with files in them.
#[derive(Clone)]
pub struct Files {
    nodes: BTreeMap<u64, Node>,
    /// The inode number behind each name in each folder.
    folders: [BTreeMap<Vec<u8>, u64>; FOLDERS],
    /// The number of changes, which is also the time of each.
    changes: i64,
}

impl Files {
    pub fn new(seed: u64) -> Self {
        let mut files =
            Self { nodes: BTreeMap::new(), folders: Default::default(), changes: 1_700_000_000 };
        files.change(seed);
        files
    }

    /// Adds, removes, edits, links and moves some files.
    pub fn change(&mut self, seed: u64) {
        let mut random = Random(seed | 1);
        for _ in 0..=random.below(5) {
            self.changes += 10;
            self.change_one(&mut random);
        }
        self.nodes.retain(|inode, _| {
            self.folders.iter().any(|folder| folder.values().any(|named| named == inode))
        });
    }

    fn change_one(&mut self, random: &mut Random) {
        let folder = random.below(FOLDERS);
        let name = format!("file {}", random.below(12)).into_bytes();
        let from = random.below(FOLDERS);
        let names: Vec<_> = self.folders[from].keys().cloned().collect();
        let some = names.get(random.below(names.len().max(1))).cloned();
        match (random.below(7), some) {
            (0, Some(some)) => drop(self.folders[from].remove(&some)),
            (1, Some(some)) => {
                let inode = self.folders[from].remove(&some).unwrap();
                self.folders[folder].insert(name, inode);
                self.node(inode).changed = self.changes;
            }
            (2, Some(some)) => {
                let inode = self.folders[from][&some];
                self.folders[folder].insert(name, inode);
                self.node(inode).changed = self.changes;
            }
            (3 | 4, Some(some)) => {
                let inode = self.folders[from][&some];
                let mut bytes = self.node(inode).content.to_vec();
                let at = random.below(bytes.len() + 1);
                match random.below(3) {
                    0 => bytes.truncate(at),
                    1 => drop(bytes.splice(at..at, content(random))),
                    _ => bytes.iter_mut().skip(at).take(100).for_each(|byte| *byte ^= 1),
                }
                let changed = self.changes;
                *self.node(inode) = Node { content: Arc::new(bytes), changed };
            }
            _ => {
                // The number of a removed file is given again.
                let inode = (2..=u64::MAX).find(|inode| !self.is_used(*inode)).unwrap();
                let node = Node { content: Arc::new(content(random)), changed: self.changes };
                self.nodes.insert(inode, node);
                self.folders[folder].insert(name, inode);
            }
        }
    }

    fn is_used(&self, inode: u64) -> bool {
        self.names_of(inode) > 0
    }

    fn names_of(&self, inode: u64) -> usize {
        let of =
            |folder: &BTreeMap<Vec<u8>, u64>| folder.values().filter(|it| **it == inode).count();
        self.folders.iter().map(of).sum()
    }

    fn node(&mut self, inode: u64) -> &mut Node {
        self.nodes.get_mut(&inode).unwrap()
    }

    /// All that must come back, as bytes.
    pub fn manifest(&self) -> Vec<u8> {
        let mut all = Vec::new();
        for (number, folder) in self.folders.iter().enumerate() {
            for (name, inode) in folder {
                add(&mut all, &folder_name(number), name, &self.metadata(*inode));
                all.extend_from_slice(&self.nodes[inode].content);
            }
        }
        all
    }

    fn metadata(&self, inode: u64) -> Metadata {
        let node = &self.nodes[&inode];
        let links = u32::try_from(self.names_of(inode)).unwrap();
        metadata((EntryKind::File, inode), node.changed, node.content.len() as u64, links)
    }

    fn steps(&self) -> VecDeque<Step> {
        let enter = |name: Vec<u8>, inode: u64| {
            let metadata = metadata((EntryKind::Directory, inode), self.changes, 0, 1);
            Step::Enter(Seen { name, metadata, problem: None })
        };
        let mut steps = VecDeque::from([enter(Vec::new(), 1)]);
        for (number, folder) in self.folders.iter().enumerate() {
            steps.push_back(enter(folder_name(number), 1_000_000 + number as u64));
            steps.extend(folder.iter().map(|(name, inode)| {
                let metadata = self.metadata(*inode);
                Step::Entry(Seen { name: name.clone(), metadata, problem: None })
            }));
            steps.push_back(Step::Leave(None));
        }
        steps.push_back(Step::Leave(None));
        steps
    }
}

fn folder_name(number: usize) -> Vec<u8> {
    format!("folder {number}").into_bytes()
}

/// Some blocks of an image, which other series may have, too, and odd bytes behind them.
fn content(random: &mut Random) -> Vec<u8> {
    let mut bytes = kit::image(random.next() % 3, 1 + random.below(40));
    let cut = random.below(bytes.len() + 1);
    bytes.truncate(cut);
    bytes
}

fn metadata((kind, inode): (EntryKind, u64), changed: i64, size: u64, links: u32) -> Metadata {
    let changed = Timestamp { seconds: changed, nanoseconds: 0 };
    Metadata {
        kind,
        mode: 0o640,
        uid: 0,
        gid: 0,
        modified: changed,
        changed,
        size,
        inode,
        file_system: 0,
        links,
        target: Vec::new(),
        device: DeviceNumber::default(),
        flags: 0,
        xattrs: Vec::new(),
    }
}

fn add(all: &mut Vec<u8>, folder: &[u8], name: &[u8], metadata: &Metadata) {
    all.extend_from_slice(folder);
    all.extend_from_slice(name);
    all.extend_from_slice(format!("{metadata:?}").as_bytes());
}

struct Source {
    files: Files,
    steps: VecDeque<Step>,
}

impl TreeSource for Source {
    fn next(&mut self) -> Result<Option<Step>> {
        Ok(self.steps.pop_front())
    }
    fn complete(&mut self, _: &mut Seen) -> bool {
        true
    }
    fn open_file(&mut self, found: &Seen) -> Result<Box<dyn FileSource>> {
        let content = self.files.nodes[&found.metadata.inode].content.clone();
        Ok(Box::new(Content { content, metadata: found.metadata.clone() }))
    }
    /// The files stand still during a backup, so no number is given twice.
    fn born(&self) -> Option<Timestamp> {
        Some(Timestamp { seconds: 0, nanoseconds: 0 })
    }
    fn vanished(&self) -> u64 {
        0
    }
    fn traits(&self, _: u16) -> FileSystemTraits {
        FileSystemTraits::default()
    }
    fn owners(&self) -> Owners {
        Owners::default()
    }
}

struct Content {
    content: Arc<Vec<u8>>,
    metadata: Metadata,
}

impl FileSource for Content {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let start = self.content.len().min(usize::try_from(offset).unwrap());
        let bytes = &self.content[start..self.content.len().min(start + buffer.len())];
        buffer[..bytes.len()].copy_from_slice(bytes);
        Ok(bytes.len())
    }
    fn status(&self) -> Result<Metadata> {
        Ok(self.metadata.clone())
    }
    /// Blocks of zeros are holes.
    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        let first = usize::try_from(offset).unwrap() / BLOCK;
        let is_data = |block: &usize| {
            self.content
                .chunks(BLOCK)
                .nth(*block)
                .is_some_and(|it| it.iter().any(|byte| *byte != 0))
        };
        let blocks = self.content.len().div_ceil(BLOCK);
        let Some(start) = (first..blocks).find(is_data) else { return Ok(None) };
        let end = (start..blocks).find(|block| !is_data(block)).unwrap_or(blocks);
        let start = offset.max((start * BLOCK) as u64);
        Ok(Some(start..size.min((end * BLOCK) as u64)))
    }
}

pub fn backup(repository: &Repository, series: &str, files: &Files) -> Result<BackupReport> {
    let mut session = repository.backup(series, kit::options())?;
    let source = Box::new(Source { files: files.clone(), steps: files.steps() });
    session.add_tree_from(VOLUME, "memory", source, &TreeOptions::default())?;
    session.finish()
}

/// What a snapshot holds, as [`Files::manifest`] tells it.
pub fn manifest(repository: &Repository, found: &Found) -> Result<Vec<u8>> {
    let volume = TreeVolume::open(repository, found.volume(VOLUME).unwrap(), 0)?;
    let mut all = Vec::new();
    let root = volume.tree().root.clone();
    let mut folders = volume.entries(&root);
    while let Some(folder) = volume.next(&mut folders)? {
        let mut files = volume.entries(&folder);
        while let Some(file) = volume.next(&mut files)? {
            add(&mut all, &folder.name, &file.name, &file.metadata);
            all.extend(read(&volume, &file)?);
        }
    }
    Ok(all)
}

fn read(volume: &TreeVolume, file: &Entry) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(file.metadata.size).unwrap()];
    let read = volume.read_at(file, 0, &mut bytes)?;
    assert_eq!(read, bytes.len());
    Ok(bytes)
}
