//! A staged archive as a tree for a backup.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{DeviceNumber, Entry, EntryKind, Extent, Metadata, Timestamp};
use silt_format::{Error, Result};
use silt_tree::{FileSource, FileSystemTraits, Found, Owners, Step, TreeSource};

use crate::join::{FinalPath, Links, Paths};
use crate::paths;
use crate::sorter::Sorted;
use crate::spool::SpoolReader;

/// Mode of directories that the archive does not have.
const MISSING_MODE: u16 = 0o755;

/// A staged archive.
pub(crate) struct Contents {
    pub(crate) entries: Sorted,
    pub(crate) spool: SpoolReader,
    pub(crate) links: Arc<Links>,
    pub(crate) owners: Owners,
    pub(crate) missing_modified: Timestamp,
}

/// Goes through a staged archive in the order of names.
pub(crate) struct Source {
    paths: Paths,
    links: Arc<Links>,
    spool: SpoolReader,
    owners: Owners,
    missing_modified: Timestamp,
    /// The names of the open directories below the root.
    open: Vec<Vec<u8>>,
    steps: VecDeque<Step>,
    /// The content of the file of the last step.
    extents: Vec<Extent>,
    is_begun: bool,
    is_ended: bool,
}

impl Source {
    pub(crate) fn new(staged: &Contents) -> Result<Self> {
        Ok(Self {
            paths: Paths::new(&staged.entries, &staged.links)?,
            links: Arc::clone(&staged.links),
            spool: staged.spool.clone(),
            owners: staged.owners.clone(),
            missing_modified: staged.missing_modified,
            open: Vec::new(),
            steps: VecDeque::new(),
            extents: Vec::new(),
            is_begun: false,
            is_ended: false,
        })
    }

    /// Adds the steps up to the next path of the archive, or to the end.
    fn advance(&mut self) -> Result<()> {
        let Some(path) = self.paths.next(&self.links)? else {
            self.begin();
            let open = self.open.drain(..).count();
            self.steps.extend((0..=open).map(|_| Step::Leave(None)));
            self.is_ended = true;
            return Ok(());
        };
        if path.last.is_none() {
            return Ok(());
        }
        let (entry, inode) = self.entry(&path)?;
        let metadata = Metadata { inode, ..entry.metadata };
        let names: Vec<Vec<u8>> = paths::names(&path.key).map(<[u8]>::to_vec).collect();
        let Some((name, above)) = names.split_last() else {
            self.is_begun = true;
            self.steps.push_back(enter(Vec::new(), metadata));
            return Ok(());
        };
        self.begin();
        let common = self.open.iter().zip(above).take_while(|(open, name)| open == name).count();
        self.steps.extend(self.open.drain(common..).map(|_| Step::Leave(None)));
        for missing in &above[common..] {
            self.open.push(missing.clone());
            self.steps.push_back(enter(missing.clone(), self.missing_directory()));
        }
        if metadata.kind == EntryKind::Directory {
            self.open.push(name.clone());
            self.steps.push_back(enter(name.clone(), metadata));
        } else {
            self.extents = entry.extents;
            let found = Found { name: name.clone(), metadata, problem: None };
            self.steps.push_back(Step::Entry(found));
        }
        Ok(())
    }

    /// Enters the root if the archive does not have it.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.is_begun, true) {
            self.steps.push_back(enter(Vec::new(), self.missing_directory()));
        }
    }

    /// The entry of a path, and its inode number.
    ///
    /// The number of a file with several names is that of its entry, so no other such file has it.
    /// That of any other is a hash of its path, so that it is the same in the next archive.
    fn entry(&self, path: &FinalPath) -> Result<(Entry, u64)> {
        let Some(last) = &path.last else { return Err(Error::invalid("a path without an entry")) };
        let file = self.links.file(last);
        let version = file.map_or(last.version, |file| file.version);
        let mut buffer = Vec::new();
        let bytes = to_usize(u64::from(version.bytes));
        let mut entry = Entry::decode(self.spool.block(version.start, bytes, &mut buffer)?)?;
        match file.filter(|file| file.names > 1) {
            Some(file) => {
                entry.metadata.links = file.names;
                Ok((entry, file.number))
            }
            None => Ok((entry, hash(&path.key))),
        }
    }

    fn missing_directory(&self) -> Metadata {
        Metadata {
            kind: EntryKind::Directory,
            mode: MISSING_MODE,
            uid: 0,
            gid: 0,
            modified: self.missing_modified,
            changed: self.missing_modified,
            size: 0,
            inode: 0,
            file_system: 0,
            links: 1,
            target: Vec::new(),
            device: DeviceNumber::default(),
            flags: 0,
            xattrs: Vec::new(),
        }
    }
}

fn enter(name: Vec<u8>, metadata: Metadata) -> Step {
    Step::Enter(Found { name, metadata, problem: None })
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl TreeSource for Source {
    fn next(&mut self) -> Result<Option<Step>> {
        while self.steps.is_empty() && !self.is_ended {
            self.advance()?;
        }
        Ok(self.steps.pop_front())
    }

    fn complete(&mut self, _: &mut Found) -> bool {
        true
    }

    fn open_file(&mut self, found: &Found) -> Result<Box<dyn FileSource>> {
        let extents = std::mem::take(&mut self.extents);
        Ok(Box::new(StagedFile::new(self.spool.clone(), &extents, found.metadata.clone())))
    }

    /// No two files of an archive get the same number.
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
        self.owners.clone()
    }
}

/// A file in the spool.
struct StagedFile {
    spool: SpoolReader,
    /// The ranges that are not holes, and where they begin in the spool.
    data: Vec<(Range<u64>, u64)>,
    metadata: Metadata,
}

impl StagedFile {
    fn new(spool: SpoolReader, extents: &[Extent], metadata: Metadata) -> Self {
        let (mut data, mut behind) = (Vec::new(), 0);
        for extent in extents {
            let range = behind..behind + extent.bytes;
            behind = range.end;
            data.extend(extent.address.map(|address| (range, address)));
        }
        Self { spool, data, metadata }
    }

    /// The ranges that end behind an offset.
    fn behind(&self, offset: u64) -> &[(Range<u64>, u64)] {
        &self.data[self.data.partition_point(|(range, _)| range.end <= offset)..]
    }
}

impl FileSource for StagedFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let end = self.metadata.size.min(offset.saturating_add(to_u64(buffer.len())));
        let read = to_usize(end.saturating_sub(offset));
        buffer[..read].fill(0);
        for (range, address) in self.behind(offset) {
            if range.start >= end {
                break;
            }
            let (start, until) = (range.start.max(offset), range.end.min(end));
            let to = &mut buffer[to_usize(start - offset)..to_usize(until - offset)];
            self.spool.read((*address, range.end - range.start), start - range.start, to)?;
        }
        Ok(read)
    }

    fn status(&self) -> Result<Metadata> {
        Ok(self.metadata.clone())
    }

    fn next_data(&self, offset: u64, _: u64) -> Result<Option<Range<u64>>> {
        let next = self.behind(offset).first();
        Ok(next.map(|(range, _)| range.start.max(offset)..range.end))
    }
}
