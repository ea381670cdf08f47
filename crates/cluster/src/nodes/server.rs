//! The process of a node.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use silt_backup::print_of;
use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, ErrorKind, ObjectSet, Reference, Result};
use silt_repository::container::open_container;
use silt_repository::event::{Activity, Progress};
use silt_repository::heads;
use silt_repository::objects::{Objects, is_damage};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_routing::{Chunk, SuperChunks, handprint};
use silt_runs::shared_index::SharedIndex;

use super::messages::{Question, decode, encode_counts};
use super::similar::Similar;
use super::{number_of, service_of};
use crate::index::messages::{Wanted, encode_answer};
use crate::{Answering, Bus, Messages, Respond};

/// Representatives that are held of a super-chunk. Backups ask for eight, of which the smallest are
/// these: what both have in common is found nearly as often, for half the memory.
const REPRESENTATIVES: usize = 4;
/// Containers whose directories are held: eight super-chunks may each name as many as they have
/// representatives.
const DIRECTORIES: usize = 64;
/// Memory for representatives and parts of the index together; the latter have a quarter of what
/// they may have at least.
const TOGETHER_BYTES: usize = 64 << 20;
/// Directories that are read before what they hold is entered.
const BATCH: usize = 256;

/// How a process answers.
#[derive(Clone, Copy, Debug)]
pub struct NodeServerOptions {
    /// Memory for parts of the node's index in the storage, in bytes.
    pub memory_bytes: usize,
    /// Whether chunks are looked up there that are not near a representative.
    pub is_exact: bool,
}

impl NodeServerOptions {
    /// With memory for so many MiB of the index.
    pub fn new(index_mib: u32, is_exact: bool) -> Self {
        Self { memory_bytes: to_usize(u64::from(index_mib) << 20), is_exact }
    }
}

impl Default for NodeServerOptions {
    /// Exact, with 32 MiB.
    fn default() -> Self {
        Self { memory_bytes: 32 << 20, is_exact: true }
    }
}

/// What a process holds and has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeHolds {
    /// The generation of the node's head.
    pub generation: u64,
    /// Containers whose representatives are held.
    pub containers: u64,
    /// Containers whose directories could not be read.
    pub unreadable: u64,
    /// Representatives.
    pub representatives: u64,
    /// Chunks that were asked for, and those that were known.
    pub asked: u64,
    /// See `asked`.
    pub found: u64,
}

/// Answers for a storage node until it is dropped.
pub struct NodeServer {
    objects: Arc<Objects>,
    node: u16,
    options: NodeServerOptions,
    held: Arc<RwLock<Held>>,
    /// Containers whose directories were read, or can't be.
    read: Mutex<(BTreeSet<u32>, u64)>,
    answered: Arc<Answered>,
    _answering: Box<dyn Answering>,
}

#[derive(Default)]
struct Answered {
    asked: AtomicU64,
    found: AtomicU64,
}

#[derive(Default)]
struct Held {
    index: Option<Mutex<SharedIndex>>,
    similar: Similar,
    is_exact: bool,
}

impl Held {
    fn similar(&self, handprint: &[u64]) -> usize {
        handprint.iter().filter(|print| self.similar.find(**print).is_some()).count()
    }

    /// Where chunks are, which come in the order of their volume.
    fn find(&self, wanted: &[Wanted]) -> Result<Vec<Option<Reference>>> {
        let Some(index) = &self.index else { return Ok(vec![None; wanted.len()]) };
        let mut index = index.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::with_capacity(wanted.len());
        for piece in super_chunks(wanted) {
            let prints = piece.iter().map(|(fingerprint, _)| print_of(fingerprint));
            for print in handprint(prints, REPRESENTATIVES) {
                let Some(container) = self.similar.find(print) else { continue };
                match index.fetch(container) {
                    // It may be gone by now.
                    Err(error) if is_damage(&error) || error.kind() == ErrorKind::NotFound => {}
                    fetched => fetched?,
                }
            }
            for (fingerprint, length) in piece {
                let length = to_usize(u64::from(*length));
                let near = index.get_near(fingerprint, length);
                found.push(match near {
                    None if self.is_exact => index.get(fingerprint, length)?,
                    near => near,
                });
            }
        }
        Ok(found)
    }
}

/// Chunks in the order of their volume, cut as backups cut them.
fn super_chunks(wanted: &[Wanted]) -> impl Iterator<Item = &[Wanted]> {
    let mut cutter = SuperChunks::default();
    wanted.chunk_by(move |(fingerprint, bytes), _| {
        !cutter.ends_with(Chunk { print: print_of(fingerprint), bytes: *bytes })
    })
}

impl NodeServer {
    /// Begins to answer for the node with this number. Nothing is held before
    /// [`refresh`](Self::refresh).
    ///
    /// Fails with `Denied` if the repository is opened with a key that does not read data: nobody
    /// would believe its answers.
    pub fn start(
        bus: &dyn Bus,
        messages: &Messages,
        node: u16,
        options: NodeServerOptions,
    ) -> Result<Self> {
        if !messages.are_believed()? {
            let message = "a key that does not read data cannot answer for a storage node";
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let held = Held { is_exact: options.is_exact, ..Held::default() };
        let (held, answered) = (Arc::new(RwLock::new(held)), Arc::<Answered>::default());
        let respond = respond(node, Arc::clone(&held), Arc::clone(&answered), messages.clone());
        let answering = bus.answer(&service_of(node)?, respond)?;
        let (objects, read) = (Arc::clone(&messages.objects), Mutex::default());
        Ok(Self { objects, node, options, held, read, answered, _answering: answering })
    }

    /// Reads the node's head, and the directories of containers that were not there before.
    pub fn refresh(&self) -> Result<NodeHolds> {
        let objects = &self.objects;
        if !objects.keys.has_domain(DEFAULT_DOMAIN) {
            return Ok(self.holds());
        }
        let store = objects.keys.store_id(DEFAULT_DOMAIN, self.node);
        let generation = heads::newest(objects, store)?.map_or(0, |head| head.generation);
        if generation == self.holds().generation {
            return Ok(self.holds());
        }
        let memory_bytes = self.index_bytes();
        let Some(containers) = self.open_index(memory_bytes)? else { return Ok(self.holds()) };
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let before = read.0.len();
        read.0.retain(|number| containers.tag(*number).is_some());
        if read.0.len() < before {
            self.write().similar.retain(|number| containers.tag(number).is_some());
        }
        let new: Vec<_> =
            containers.iter().filter(|(number, _)| !read.0.contains(number)).collect();
        for batch in new.chunks(BATCH) {
            let mut prints = Vec::new();
            for (number, tag) in batch {
                match open_container(objects, store, *number, *tag) {
                    Ok(container) => {
                        let slots = container.directory.slots().map(|(_, slot)| {
                            let index = to_usize(u64::from(slot.index));
                            (container.directory.fingerprints[index], slot.length)
                        });
                        let slots: Vec<Wanted> = slots.collect();
                        prints.extend(representatives(&slots).map(|print| (print, *number)));
                    }
                    // A sweep may have removed or rewritten it since.
                    Err(error) if is_damage(&error) || error.kind() == ErrorKind::NotFound => {
                        read.1 += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
            self.write().similar.add(prints.into_iter());
            read.0.extend(batch.iter().map(|(number, _)| *number));
            let done = to_u64(read.0.len());
            let progress = Progress::objects(Activity::ReadNode, done, Some(containers.len()));
            objects.context.report(progress);
        }
        drop(read);
        if self.index_bytes() < memory_bytes {
            self.open_index(self.index_bytes())?;
        }
        Ok(self.holds())
    }

    /// Memory for parts of the index, beside the representatives that are held.
    fn index_bytes(&self) -> usize {
        let (held, most) = (self.held().similar.bytes(), self.options.memory_bytes);
        TOGETHER_BYTES.saturating_sub(held).clamp(most / 4, most)
    }

    /// Opens the node's index as it is now. Returns the node's containers, if it has any.
    fn open_index(&self, memory_bytes: usize) -> Result<Option<ObjectSet>> {
        let place = (DEFAULT_DOMAIN, self.node);
        let opened = SharedIndex::open(&self.objects, place, memory_bytes)?;
        let Some((index, _)) = opened else { return Ok(None) };
        let index = index.holding(DIRECTORIES);
        let containers = index.containers().clone();
        self.write().index = Some(Mutex::new(index));
        Ok(Some(containers))
    }

    /// What it holds, and what it has answered.
    pub fn holds(&self) -> NodeHolds {
        let (read, held) = (self.read.lock(), self.held());
        let read = read.unwrap_or_else(PoisonError::into_inner);
        let generation = |index: &Mutex<SharedIndex>| {
            index.lock().unwrap_or_else(PoisonError::into_inner).generation()
        };
        NodeHolds {
            generation: held.index.as_ref().map_or(0, generation),
            containers: to_u64(read.0.len()),
            unreadable: read.1,
            representatives: to_u64(held.similar.len()),
            asked: self.answered.asked.load(Ordering::Relaxed),
            found: self.answered.found.load(Ordering::Relaxed),
        }
    }

    fn held(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The representatives of the super-chunks that a container holds, by its directory.
fn representatives(slots: &[Wanted]) -> impl Iterator<Item = u64> {
    super_chunks(slots).flat_map(|piece| {
        handprint(piece.iter().map(|(fingerprint, _)| print_of(fingerprint)), REPRESENTATIVES)
    })
}

fn respond(
    node: u16,
    held: Arc<RwLock<Held>>,
    answered: Arc<Answered>,
    messages: Messages,
) -> Respond {
    Arc::new(move |question: &[u8]| {
        let answer = || -> Result<Vec<u8>> {
            let question = messages.open(number_of(node), question)?;
            let (nonce, question) = decode(&question.plain)?;
            let held = held.read().unwrap_or_else(PoisonError::into_inner);
            let answer = match question {
                Question::Similar(handprints) => {
                    encode_counts(handprints.iter().map(|handprint| held.similar(handprint)))
                }
                Question::Find(wanted) => {
                    let found = held.find(&wanted)?;
                    answered.asked.fetch_add(to_u64(found.len()), Ordering::Relaxed);
                    let known = to_u64(found.iter().flatten().count());
                    answered.found.fetch_add(known, Ordering::Relaxed);
                    encode_answer(&found)
                }
            };
            drop(held);
            messages.seal(nonce, &answer)
        };
        // What can't be read is nobody's question; what fails here, the host reads itself.
        answer().unwrap_or_default()
    })
}
