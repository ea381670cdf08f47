//! The process of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use silt_backup::{HELD_REPRESENTATIVES, print_of};
use silt_format::number::{to_u64, to_usize};
use silt_format::{Directory, Error, ErrorKind, Result};
use silt_repository::container::open_container;
use silt_repository::event::{Activity, Progress};
use silt_repository::heads;
use silt_repository::objects::{Objects, is_damage};
use silt_repository::series::DEFAULT_DOMAIN;
use silt_routing::handprint;
use silt_runs::shared_index::SharedIndex;

use super::domains::{Domains, super_chunks};
use super::messages::{Asked, Question, decode, encode_counts};
use super::{number_of, service_of};
use crate::index::messages::{Wanted, encode_answer};
use crate::{Answering, Bus, Messages, Respond};

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
    /// Applications that have a table of them.
    pub applications: u64,
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
    domains: Arc<Domains>,
    generation: AtomicU64,
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
        let domains = Arc::new(Domains::new(options.is_exact));
        let answered = Arc::<Answered>::default();
        let respond = respond(node, Arc::clone(&domains), Arc::clone(&answered), messages.clone());
        let answering = bus.answer(&service_of(node)?, respond)?;
        Ok(Self {
            objects: Arc::clone(&messages.objects),
            node,
            options,
            domains,
            generation: AtomicU64::new(0),
            read: Mutex::default(),
            answered,
            _answering: answering,
        })
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
        let opened = SharedIndex::open(objects, (DEFAULT_DOMAIN, self.node), 0)?;
        let Some((index, _)) = opened else { return Ok(self.holds()) };
        self.domains.use_index(&index, self.index_bytes());
        let containers = index.containers();
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let before = read.0.len();
        read.0.retain(|number| containers.tag(*number).is_some());
        if read.0.len() < before {
            self.domains.retain(containers);
        }
        let new: Vec<_> =
            containers.iter().filter(|(number, _)| !read.0.contains(number)).collect();
        for batch in new.chunks(BATCH) {
            let mut prints = BTreeMap::new();
            for (number, tag) in batch {
                match open_container(objects, store, *number, *tag) {
                    Ok(container) => representatives(&container.directory, *number, &mut prints),
                    // A sweep may have removed or rewritten it since.
                    Err(error) if is_damage(&error) || error.kind() == ErrorKind::NotFound => {
                        read.1 += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
            self.domains.add(prints);
            read.0.extend(batch.iter().map(|(number, _)| *number));
            let done = to_u64(read.0.len());
            let progress = Progress::objects(Activity::ReadNode, done, Some(containers.len()));
            objects.context.report(progress);
        }
        drop(read);
        // Only now: what could not be read is read the next time.
        self.generation.store(index.generation(), Ordering::Relaxed);
        if !new.is_empty() {
            // There may be more tables now, and less memory for the rest.
            self.domains.use_index(&index, self.index_bytes());
        }
        Ok(self.holds())
    }

    /// Memory for parts of the index, beside the representatives that are held.
    fn index_bytes(&self) -> usize {
        let (held, most) = (self.domains.bytes(), self.options.memory_bytes);
        TOGETHER_BYTES.saturating_sub(held).clamp(most / 4, most)
    }

    /// What it holds, and what it has answered.
    pub fn holds(&self) -> NodeHolds {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        NodeHolds {
            generation: self.generation.load(Ordering::Relaxed),
            containers: to_u64(read.0.len()),
            unreadable: read.1,
            representatives: to_u64(self.domains.representatives()),
            applications: to_u64(self.domains.applications()),
            asked: self.answered.asked.load(Ordering::Relaxed),
            found: self.answered.found.load(Ordering::Relaxed),
        }
    }
}

/// Adds the representatives of the super-chunks that a container holds, by application, as its
/// directory names them.
fn representatives(
    directory: &Directory,
    number: u32,
    prints: &mut BTreeMap<u16, Vec<(u64, u32)>>,
) {
    let slots: Vec<_> = directory.slots().collect();
    let application = |slot: u16| directory.application(slot);
    for of_one in slots.chunk_by(|(one, _), (next, _)| application(*one) == application(*next)) {
        let chunks = of_one.iter().map(|(_, slot)| {
            (directory.fingerprints[to_usize(u64::from(slot.index))], slot.length)
        });
        let chunks: Vec<Wanted> = chunks.collect();
        let added = prints.entry(application(of_one[0].0)).or_default();
        for piece in super_chunks(&chunks) {
            let piece = piece.iter().map(|(fingerprint, _)| print_of(fingerprint));
            added.extend(handprint(piece, HELD_REPRESENTATIVES).into_iter().map(|it| (it, number)));
        }
    }
}

fn respond(
    node: u16,
    domains: Arc<Domains>,
    answered: Arc<Answered>,
    messages: Messages,
) -> Respond {
    Arc::new(move |question: &[u8]| {
        let answer = || -> Result<Vec<u8>> {
            let question = messages.open(number_of(node), question)?;
            let Asked { nonce, application, question } = decode(&question.plain)?;
            let answer = match question {
                Question::Similar(handprints) => {
                    encode_counts(domains.similar(application, &handprints).into_iter())
                }
                Question::Find(wanted) => {
                    let found = domains.find(application, &wanted)?;
                    answered.asked.fetch_add(to_u64(found.len()), Ordering::Relaxed);
                    let known = to_u64(found.iter().flatten().count());
                    answered.found.fetch_add(known, Ordering::Relaxed);
                    encode_answer(&found)
                }
            };
            messages.seal(nonce, &answer)
        };
        // What can't be read is nobody's question; what fails here, the host reads itself.
        answer().unwrap_or_default()
    })
}
