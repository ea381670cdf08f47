//! Backups to storage nodes: which node a super-chunk goes to, and what the nodes have of it.
//!
//! Super-chunks are routed as AppDedupe does: the application names its nodes, and a handprint
//! chooses among them by what they have and how full they are. The nodes' indexes answer, as they
//! were when the backup began. A wrong choice costs deduplication, never data.

mod writers;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use silt_format::number::{to_u32, to_u64};
use silt_format::{ALONE, ErrorKind, Head, Level, Result};
use silt_repository::Repository;
use silt_repository::check_record::Avoided;
use silt_repository::event::Warning;
use silt_repository::heads;
use silt_repository::packs::PackWriter;
use silt_routing::{Answers, AppDedupe, Application, Chunk, Piece, Print, Router};
use silt_runs::shared_index::{SharedIndex, SharedLookup, name_store};

use crate::detect::Detector;
use crate::draft::{DISKS, DraftChunk};
use crate::known::Known;
use crate::scan::SegmentDraft;

pub(crate) use writers::NodeWriters;

/// A storage node as a backup sees it.
pub(crate) struct Node {
    number: u16,
    /// What messages call it.
    shown: String,
    /// Its index; `None` if it is empty.
    index: Option<SharedLookup>,
    /// Whether new chunks may go there.
    takes_chunks: bool,
    /// About how many bytes it has, with those of this backup.
    used_bytes: AtomicU64,
    applications: Vec<u16>,
}

/// The storage nodes of a backup.
#[derive(Default)]
pub(crate) struct Nodes(pub(crate) Vec<Arc<Node>>);

impl Nodes {
    /// Opens the nodes that can be reached, and names them in the series' head. A series that
    /// shares nothing uses none.
    pub(crate) fn open(
        repository: &Repository,
        head: &mut Head,
        avoided: &Arc<Avoided>,
        memory_bytes: usize,
    ) -> Result<Self> {
        let (objects, domain) = (&repository.objects, head.domain);
        let listed = repository.nodes();
        if listed.is_empty() || domain == ALONE || !objects.keys.opens_all() {
            return Ok(Self::default());
        }
        let may_write = repository.required_authority().is_ok();
        let container_bytes = u64::from(repository.config.container_bytes);
        let mut nodes = Vec::new();
        for node in listed {
            let store = repository.store(node.number);
            let number = node.number;
            // Must be after reading the series' record and head: condemning chunks relies on it.
            let opened = SharedIndex::open(objects, (domain, number), memory_bytes / listed.len());
            let opened = opened.and_then(|opened| Ok((opened, heads::newest(objects, store.id)?)));
            let (index, newest) = match opened {
                Ok((opened, newest)) => (opened.map(|(index, _)| index), newest),
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    return Err(error);
                }
                Err(error) => {
                    let consequence = format!("{} is not written to", store.shown);
                    objects.context.warn(Warning::after(&error, &consequence));
                    continue;
                }
            };
            let seen = index.as_ref().map_or(0, SharedIndex::generation);
            let known = head.seen(number);
            if seen < known {
                // Its index may have chunks that were deleted since.
                let message = format!(
                    "the storage shows {} as it was before (generation {seen} instead of {known}); \
                     it is not used",
                    store.shown
                );
                objects.context.warn(Warning::new(ErrorKind::Corrupt, message));
                continue;
            }
            name_store(head, (number, store.id), seen);
            let containers = newest.as_ref().map_or(0, |head| head.containers.len());
            nodes.push(Arc::new(Node {
                number,
                shown: store.shown,
                index: index
                    .filter(|index| !index.is_empty())
                    .map(|index| SharedLookup::new(index, avoided)),
                takes_chunks: may_write && !node.is_closed,
                used_bytes: AtomicU64::new(containers * container_bytes),
                applications: newest.map_or_else(Vec::new, |head| head.applications),
            }));
        }
        Ok(Self(nodes))
    }

    /// The level that looks for chunks in the nodes; `None` if there are none.
    pub(crate) fn level(&self) -> Option<Box<dyn Detector>> {
        if self.0.is_empty() {
            return None;
        }
        let (open, closed): (Vec<_>, Vec<_>) =
            self.0.iter().cloned().partition(|node| node.takes_chunks);
        let mut router = AppDedupe::default();
        let mut table: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
        for (place, node) in open.iter().enumerate() {
            for application in &node.applications {
                table.entry(*application).or_default().push(place);
            }
        }
        for (application, nodes) in table {
            router.director.assign(Application(application), nodes);
        }
        Some(Box::new(NodeLevel { open, closed, router }))
    }
}

/// Routes super-chunks to nodes, and looks for their chunks there.
struct NodeLevel {
    open: Vec<Arc<Node>>,
    /// These get no new chunks, but those that they have are used.
    closed: Vec<Arc<Node>>,
    router: AppDedupe,
}

impl Detector for NodeLevel {
    fn level(&self) -> Level {
        Level::Shared
    }

    fn resolve(
        &mut self,
        draft: &mut SegmentDraft,
        _known: &mut Known,
        _packs: &PackWriter,
    ) -> Result<()> {
        if draft.unresolved() == 0 {
            return Ok(());
        }
        for range in super_chunks(&draft.chunks, self.router.super_chunk_bytes) {
            let chunks = &mut draft.chunks[range];
            if chunks.iter().all(|chunk| chunk.found.is_some()) {
                continue;
            }
            if let Some(node) = self.route(draft.application, chunks)? {
                find(&node, chunks)?;
                for chunk in chunks.iter_mut().filter(|chunk| chunk.found.is_none()) {
                    chunk.node = node.number;
                }
            }
            self.closed.iter().try_for_each(|node| find(node, chunks))?;
        }
        Ok(())
    }
}

impl NodeLevel {
    fn route(
        &mut self,
        application: Application,
        chunks: &[DraftChunk],
    ) -> Result<Option<Arc<Node>>> {
        if self.open.len() < 2 {
            return Ok(self.open.first().cloned());
        }
        let stored = chunks.iter().filter(|chunk| !is_zeros(chunk));
        let chunk =
            |chunk: &DraftChunk| Chunk { print: print_of(chunk), bytes: to_u32(chunk.range.len()) };
        let piece = Piece { application, stream: 0, chunks: stored.map(chunk).collect() };
        let answers = Indexes { nodes: &self.open, chunks, failure: Cell::default() };
        let place = self.router.route(&piece, &answers);
        match answers.failure.take() {
            Some(error) => Err(error),
            None => Ok(self.open.get(place).cloned()),
        }
    }
}

/// Looks for the chunks that no level has found in a node.
fn find(node: &Node, chunks: &mut [DraftChunk]) -> Result<()> {
    let Some(index) = &node.index else { return Ok(()) };
    let mut find = index.begin();
    for chunk in chunks.iter_mut().filter(|chunk| chunk.found.is_none()) {
        let found = find(&chunk.fingerprint, chunk.range.len())?;
        chunk.found = found.map(|found| (found, Level::Shared));
    }
    Ok(())
}

/// Consecutive chunks of at least so many bytes, and the rest.
fn super_chunks(chunks: &[DraftChunk], bytes_min: u64) -> Vec<Range<usize>> {
    let (mut ranges, mut first, mut bytes) = (Vec::new(), 0, 0);
    for (number, chunk) in chunks.iter().enumerate() {
        bytes += to_u64(chunk.range.len());
        if bytes >= bytes_min {
            ranges.push(first..number + 1);
            (first, bytes) = (number + 1, 0);
        }
    }
    if first < chunks.len() {
        ranges.push(first..chunks.len());
    }
    ranges
}

fn is_zeros(chunk: &DraftChunk) -> bool {
    chunk.found.is_some_and(|(reference, _)| reference.is_zero())
}

/// The beginning of a fingerprint.
fn print_of(chunk: &DraftChunk) -> Print {
    let mut print = [0; 8];
    print.copy_from_slice(&chunk.fingerprint.0[..8]);
    Print::from_le_bytes(print)
}

/// What the indexes of nodes answer about a super-chunk.
struct Indexes<'a> {
    nodes: &'a [Arc<Node>],
    chunks: &'a [DraftChunk],
    failure: Cell<Option<silt_format::Error>>,
}

impl Indexes<'_> {
    fn count(&self, node: usize, prints: &[Print]) -> Result<usize> {
        let Some(index) = &self.nodes[node].index else { return Ok(0) };
        let (mut find, mut count) = (index.begin(), 0);
        for print in prints {
            let chunk = self.chunks.iter().find(|it| !is_zeros(it) && print_of(it) == *print);
            let Some(chunk) = chunk else { continue };
            count += usize::from(find(&chunk.fingerprint, chunk.range.len())?.is_some());
        }
        Ok(count)
    }
}

impl Answers for Indexes<'_> {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn used_bytes(&self, node: usize) -> u64 {
        self.nodes[node].used_bytes.load(Ordering::Relaxed)
    }

    fn similar(&self, node: usize, _application: Application, handprint: &[Print]) -> usize {
        self.count(node, handprint).unwrap_or_else(|error| {
            self.failure.set(Some(error));
            0
        })
    }

    fn known(&self, node: usize, sample: &[Print]) -> usize {
        self.similar(node, DISKS, sample)
    }
}
