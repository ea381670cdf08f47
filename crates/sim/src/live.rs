//! A file tree that is being backed up, and may change meanwhile.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{EntryKind, Metadata, Timestamp};
use silt_format::{Error, ErrorKind, Result};
use silt_tree::{FileSource, FileSystemTraits, Found, Owners, Step, TreeOrigin, TreeSource};
use siltstone::{BackupSession, Env, RoundVolume, TreeOptions};

use crate::content::{Content, Data};
use crate::disk::Source;
use crate::model::{Attempt, Model, timestamp};
use crate::process::Process;
use crate::race::{Moment, Race};
use crate::tree::{BLOCK, MemoryTree, Node};

/// How long a machine stands still where a backup would not expect it.
const PAUSE_NS: u64 = 5_000_000_000;

/// A tree of a series during a backup, or during a round, which walks it twice.
#[derive(Clone)]
pub struct LiveTree(Arc<Live>);

struct Live {
    /// The tree as the backup sees it.
    tree: Mutex<MemoryTree>,
    /// A change that is still to come.
    race: Mutex<Option<Race>>,
    process: Arc<Process>,
    model: Arc<Mutex<Model>>,
    attempt: Attempt,
    /// Which of the attempt's volumes.
    volume: usize,
}

impl LiveTree {
    /// A tree that is about to be backed up.
    pub fn new(
        tree: MemoryTree,
        race: Option<Race>,
        process: &Arc<Process>,
        model: &Arc<Mutex<Model>>,
        (attempt, volume): (Attempt, usize),
    ) -> Self {
        let (tree, race) = (Mutex::new(tree), Mutex::new(race));
        let (process, model) = (Arc::clone(process), Arc::clone(model));
        Self(Arc::new(Live { tree, race, process, model, attempt, volume }))
    }
}

impl TreeOrigin for LiveTree {
    fn description(&self) -> String {
        "memory".to_owned()
    }

    fn walk(&self) -> Result<Box<dyn TreeSource>> {
        let live = Arc::clone(&self.0);
        Ok(Box::new(Reading { live, open: Vec::new(), has_begun: false, last: None }))
    }

    fn open_file(&self, path: &[u8]) -> Result<Box<dyn FileSource>> {
        let mut inode = self.0.tree().root;
        for name in path.split(|byte| *byte == b'/') {
            let found = self.0.node(inode).and_then(|node| node.entries.get(name).copied());
            inode = found.ok_or_else(absent)?;
        }
        Ok(Box::new(OpenFile { live: Arc::clone(&self.0), inode }))
    }
}

fn absent() -> Error {
    Error::new(ErrorKind::NotFound, "there is no such file")
}

impl Live {
    fn tree(&self) -> MutexGuard<'_, MemoryTree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A file, directory, link or pipe as it is now.
    fn node(&self, inode: u64) -> Option<Node> {
        self.tree().get(inode).cloned()
    }

    /// This moment has come for an entry. Returns whether it has changed.
    fn reach(&self, inode: u64, moment: Moment) -> bool {
        let mut race = self.race.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(mut race) = race.take_if(|race| race.inode == inode && race.moment == moment)
        else {
            return false;
        };
        let now_ns = self.process.now_ns();
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tree = self.tree();
        let now = timestamp(model.stamp_ns(now_ns));
        let mut changed = tree.clone();
        changed.change_in_place(inode, &mut race.random, now);
        // Others may have changed it already since the backup began.
        if model.races(&self.attempt, self.volume, (&tree, &changed), inode) {
            *tree = changed;
            let note = format_args!("number {inode} changes at {now:?} during its backup");
            self.process.world.state().note(note);
        }
        true
    }
}

/// A tree that is being backed up.
struct Reading {
    live: Arc<Live>,
    /// The entries to come of each open directory.
    open: Vec<std::vec::IntoIter<(Vec<u8>, u64)>>,
    has_begun: bool,
    /// The entry of the last step.
    last: Option<u64>,
}

impl Reading {
    fn enter(&mut self, name: &[u8], node: &Node) -> Step {
        let entries: Vec<_> = node.entries.clone().into_iter().collect();
        self.open.push(entries.into_iter());
        Step::Enter(found(name, node))
    }
}

/// An entry as the status of a file shows it.
fn found(name: &[u8], node: &Node) -> Found {
    let (flags, target, xattrs) = (0, Vec::new(), Vec::new());
    let metadata = Metadata { flags, target, xattrs, ..node.metadata.clone() };
    Found { name: name.to_vec(), metadata, problem: None }
}

impl TreeSource for Reading {
    fn next(&mut self) -> Result<Option<Step>> {
        let lost = || Error::invalid("an entry of a tree has no file");
        if let Some(last) = self.last.take() {
            self.live.reach(last, Moment::Done);
        }
        if !self.has_begun {
            let root = self.live.tree().root;
            (self.has_begun, self.last) = (true, Some(root));
            return Ok(Some(self.enter(b"", &self.live.node(root).ok_or_else(lost)?)));
        }
        let Some(entries) = self.open.last_mut() else { return Ok(None) };
        let Some((name, inode)) = entries.next() else {
            self.open.pop();
            return Ok(Some(Step::Leave(None)));
        };
        self.last = Some(inode);
        let node = self.live.node(inode).ok_or_else(lost)?;
        Ok(Some(match node.metadata.kind {
            EntryKind::Directory => self.enter(&name, &node),
            _ => Step::Entry(found(&name, &node)),
        }))
    }

    fn complete(&mut self, found: &mut Found) -> bool {
        let inode = found.metadata.inode;
        let Some(node) = self.live.node(inode) else { return false };
        found.metadata.clone_from(&node.metadata);
        if self.live.reach(inode, Moment::Completed) {
            self.live.process.sleep_ns(PAUSE_NS);
        }
        true
    }

    fn open_file(&mut self, found: &Found) -> Result<Box<dyn FileSource>> {
        let inode = found.metadata.inode;
        self.live.reach(inode, Moment::Opened);
        self.live.node(inode).ok_or_else(absent)?;
        Ok(Box::new(OpenFile { live: Arc::clone(&self.live), inode }))
    }

    fn born(&self) -> Option<Timestamp> {
        let tree = self.live.tree();
        let known = self.last.filter(|_| tree.tells_births);
        known.and_then(|inode| tree.get(inode)).map(|node| node.born)
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

/// A file that is being read. Its blocks of zeros are holes.
struct OpenFile {
    live: Arc<Live>,
    inode: u64,
}

impl OpenFile {
    fn node(&self) -> Result<Node> {
        self.live.node(self.inode).ok_or_else(|| Error::invalid("an open file is gone"))
    }
}

impl FileSource for OpenFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let node = self.node()?;
        let rest = node.content.get(to_usize(offset)..).unwrap_or_default();
        let length = buffer.len().min(rest.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.live.reach(self.inode, Moment::Read);
        Ok(length)
    }

    fn status(&self) -> Result<Metadata> {
        self.live.reach(self.inode, Moment::Status);
        Ok(self.node()?.metadata)
    }

    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        let node = self.node()?;
        let is_zero = |block: &[u8]| block.iter().all(|byte| *byte == 0);
        let first = to_usize(offset) / BLOCK;
        let mut blocks = (first..).zip(node.content.chunks(BLOCK).skip(first));
        let start = blocks.by_ref().find(|(_, block)| !is_zero(block)).map(|(at, _)| at);
        let end = blocks.find(|(_, block)| is_zero(block)).map(|(at, _)| to_u64(at * BLOCK));
        let start = start.map(|at| to_u64(at * BLOCK).max(offset)).filter(|start| *start < size);
        Ok(start.map(|start| start..end.unwrap_or(size).min(size)))
    }
}

/// Backs all volumes up.
pub fn add_to(
    session: &mut BackupSession<'_>,
    content: Content,
    process: &Arc<Process>,
    model: &Arc<Mutex<Model>>,
    attempt: Attempt,
) -> Result<()> {
    for (name, volume) in volumes(content, process, model, attempt) {
        match volume {
            RoundVolume::Disk(disk) => session.add_volume(name, &*disk, None)?,
            RoundVolume::Tree(tree, options) => {
                session.add_tree_from(name, &tree.description(), tree.walk()?, &options)?
            }
        };
    }
    Ok(())
}

/// The volumes of a backup, ready to be read.
pub fn volumes(
    content: Content,
    process: &Arc<Process>,
    model: &Arc<Mutex<Model>>,
    attempt: Attempt,
) -> Vec<(&'static str, RoundVolume<'static>)> {
    let volume = |(number, (name, data))| match data {
        Data::Disk(bytes) => (name, RoundVolume::Disk(Box::new(Source(bytes)))),
        Data::Tree(tree, race) => {
            let live = LiveTree::new(*tree, race, process, model, (attempt, number));
            (name, RoundVolume::Tree(Box::new(live), TreeOptions::default()))
        }
    };
    content.volumes.into_iter().enumerate().map(volume).collect()
}
