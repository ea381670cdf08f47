//! Backups to storage nodes: which node a super-chunk goes to, and what the nodes have of it.
//!
//! Super-chunks are routed as AppDedupe does: the application names its nodes, and a handprint
//! chooses among them by what they have and how full they are. The nodes' indexes answer, as they
//! were when the backup began. A wrong choice costs deduplication, never data.

mod writers;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use silt_format::number::to_u32;
use silt_format::{ALONE, CheckRecord, ErrorKind, Head, Level, NodePlaces, Result};
use silt_repository::Repository;
use silt_repository::beside::each_beside;
use silt_repository::check_record::Avoided;
use silt_repository::event::Warning;
use silt_repository::packs::PackWriter;
use silt_routing::{Answers, AppDedupe, Application, Chunk, Piece, Print, Router, SuperChunks};
use silt_runs::shared_index::{SharedIndex, SharedLookup, name_store, newest_head};

use crate::detect::Detector;
use crate::draft::{DISKS, DraftChunk, print_of};
use crate::known::Known;
use crate::places::{NodeAnswers, StoreLookup, is_older, wanted};
use crate::scan::SegmentDraft;

pub(crate) use writers::NodeWriters;

/// Containers of all nodes whose fingerprints are held, and of each node at least.
const NEAR: usize = 6;
const NEAR_MIN: usize = 2;

/// A storage node as a backup sees it.
pub(crate) struct Node {
    number: u16,
    /// What messages call it.
    shown: String,
    /// Its index; `None` if it is empty.
    lookup: RwLock<Option<StoreLookup>>,
    avoided: Arc<Avoided>,
    /// Memory for its index, and containers whose fingerprints are held.
    held: (usize, usize),
    /// Whether new chunks may go there.
    takes_chunks: bool,
    /// About how many bytes it has, with those of this backup.
    used_bytes: AtomicU64,
    applications: Vec<u16>,
}

impl Node {
    /// Its index, as it was read last.
    fn lookup(&self) -> Option<StoreLookup> {
        self.lookup.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes over what other backups have registered meanwhile.
    ///
    /// The series' head keeps the generation that it has named first: a sweep that condemns a chunk
    /// after that waits for this backup, also if the chunk was only found in a later head.
    fn renew(&self, repository: &Repository, head: &Head) -> Result<()> {
        let (memory_bytes, near) = self.held;
        let index = SharedIndex::of_head(&repository.objects, self.number, head, memory_bytes)?;
        let lookup = lookup_of(index.holding(near), &self.avoided);
        *self.lookup.write().unwrap_or_else(PoisonError::into_inner) = lookup;
        Ok(())
    }
}

/// Looks up in an index, unless it is empty.
fn lookup_of(index: SharedIndex, avoided: &Arc<Avoided>) -> Option<StoreLookup> {
    (!index.is_empty()).then(|| StoreLookup::new(SharedLookup::new(index, avoided), None))
}

/// The storage nodes of a backup.
#[derive(Default)]
pub(crate) struct Nodes {
    pub(crate) nodes: Vec<Arc<Node>>,
    /// Who is asked about them first.
    answers: Option<Arc<dyn NodeAnswers>>,
}

/// What the storage shows of a node.
pub(crate) struct Shown {
    node: NodePlaces,
    /// Its newest head; `None` if it has none.
    head: Option<Head>,
    /// Its newest check record.
    pub(crate) checked: CheckRecord,
}

impl Shown {
    /// The number of the node.
    pub(crate) fn number(&self) -> u16 {
        self.node.number
    }
}

/// Reads the heads of the nodes that can be reached, side by side. A series that shares nothing
/// uses none.
///
/// Must be after reading the series' record and head: condemning chunks relies on it.
pub(crate) fn read(repository: &Repository, domain: u32) -> Result<Vec<Shown>> {
    if domain == ALONE || !repository.objects.keys.opens_all() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    let show = |repository: &Repository, node: NodePlaces| {
        let objects = &repository.objects;
        let read = newest_head(objects, (domain, node.number)).and_then(|newest| {
            let (head, check) = newest.unzip();
            let store = repository.store(node.number).id;
            let (_, checked) = objects.read_check_record(store, check.flatten())?;
            Ok((head, checked))
        });
        (node, read)
    };
    each_beside(repository, repository.nodes().to_vec(), show, |(node, read)| {
        match read {
            Ok((head, checked)) => all.push(Shown { node, head, checked }),
            Err(error) => leave_out(repository, node.number, error)?,
        }
        Ok(())
    })?;
    Ok(all)
}

/// Warns that a node is not used, unless the user has asked to stop.
fn leave_out(repository: &Repository, number: u16, error: silt_format::Error) -> Result<()> {
    if error.kind() == ErrorKind::Interrupted {
        return Err(error);
    }
    let consequence = format!("{} is not written to", repository.store(number).shown);
    repository.warn(Warning::after(&error, &consequence));
    Ok(())
}

impl Nodes {
    /// Opens the indexes of nodes, and names them in the series' head.
    pub(crate) fn open(
        repository: &Repository,
        head: &mut Head,
        shown: Vec<Shown>,
        (avoided, answers): (&Arc<Avoided>, Option<&Arc<dyn NodeAnswers>>),
        memory_bytes: usize,
    ) -> Result<Self> {
        let may_write = repository.required_authority().is_ok();
        let container_bytes = u64::from(repository.config.container_bytes);
        let count = shown.len().max(1);
        let held = (memory_bytes / count, (NEAR / count).max(NEAR_MIN));
        let mut nodes = Vec::new();
        for Shown { node, head: newest, .. } in shown {
            let (number, store) = (node.number, repository.store(node.number));
            let seen = newest.as_ref().map_or(0, |newest| newest.generation);
            if is_older(repository, head, number, seen) {
                continue;
            }
            let opened = Arc::new(Node {
                number,
                shown: store.shown,
                lookup: RwLock::default(),
                avoided: Arc::clone(avoided),
                held,
                takes_chunks: may_write && !node.is_closed,
                used_bytes: AtomicU64::new(
                    newest.as_ref().map_or(0, |newest| newest.containers.len()) * container_bytes,
                ),
                applications: newest.as_ref().map_or_else(Vec::new, |it| it.applications.clone()),
            });
            if let Some(newest) = newest
                && let Err(error) = opened.renew(repository, &newest)
            {
                leave_out(repository, number, error)?;
                continue;
            }
            name_store(head, (number, store.id), seen);
            nodes.push(opened);
        }
        Ok(Self { nodes, answers: answers.cloned() })
    }

    /// The level that looks for chunks in the nodes; `None` if there are none.
    pub(crate) fn level(&self) -> Option<Box<dyn Detector>> {
        if self.nodes.is_empty() {
            return None;
        }
        let (open, closed): (Vec<_>, Vec<_>) =
            self.nodes.iter().cloned().partition(|node| node.takes_chunks);
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
        let answers = self.answers.clone();
        Some(Box::new(NodeLevel { open, closed, router, answers }))
    }
}

/// Routes super-chunks to nodes, and looks for their chunks there.
struct NodeLevel {
    open: Vec<Arc<Node>>,
    /// These get no new chunks, but those that they have are used.
    closed: Vec<Arc<Node>>,
    router: AppDedupe,
    answers: Option<Arc<dyn NodeAnswers>>,
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
        let mut ranges = super_chunks(&draft.chunks);
        ranges.retain(|range| draft.chunks[range.clone()].iter().any(is_unresolved));
        let routed = self.route_all(draft.application, &draft.chunks, &ranges)?;
        let of_place = |place: usize| {
            let own = routed.iter().zip(&ranges).filter(move |(routed, _)| **routed == place);
            own.map(|(_, range)| range.clone()).collect::<Vec<_>>()
        };
        let mut asked = Vec::new();
        for (place, node) in self.open.iter().enumerate() {
            let ranges = of_place(place);
            unresolved_in(&mut draft.chunks, &ranges)
                .into_iter()
                .for_each(|chunk| chunk.node = node.number);
            asked.push((node, ranges));
        }
        self.find(&mut draft.chunks, &asked)?;
        // These can't be asked at the same time: several may have a chunk.
        self.closed
            .iter()
            .try_for_each(|node| self.find(&mut draft.chunks, &[(node, ranges.clone())]))
    }
}

impl NodeLevel {
    /// Looks for chunks in ranges of a segment that do not overlap, each in a node.
    fn find(
        &self,
        chunks: &mut [DraftChunk],
        asked: &[(&Arc<Node>, Vec<Range<usize>>)],
    ) -> Result<()> {
        let mut all: Vec<(StoreLookup, u16, Vec<Range<usize>>)> = Vec::new();
        for (node, ranges) in asked {
            let is_asked = !unresolved_in(chunks, ranges).is_empty();
            if let Some(lookup) = node.lookup().filter(|_| is_asked) {
                all.push((lookup, node.number, ranges.clone()));
            }
        }
        let mut told = Vec::new();
        if let Some(answers) = &self.answers {
            let mut question = |(_, node, ranges): &(_, u16, Vec<Range<usize>>)| {
                (*node, wanted(&unresolved_in(chunks, ranges)))
            };
            told = answers.find(&all.iter().map(&mut question).collect::<Vec<_>>());
        }
        told.resize(all.len(), None);
        for ((lookup, _, ranges), told) in all.into_iter().zip(told) {
            let mut own = unresolved_in(chunks, &ranges);
            match told {
                Some(told) => lookup.enter(&mut own, told),
                None => lookup.read(&mut own)?,
            }
        }
        Ok(())
    }

    /// The place of the node for each super-chunk, among those that take chunks.
    fn route_all(
        &mut self,
        application: Application,
        chunks: &[DraftChunk],
        ranges: &[Range<usize>],
    ) -> Result<Vec<usize>> {
        if self.open.len() < 2 {
            return Ok(vec![0; ranges.len()]);
        }
        let pieces: Vec<Piece> =
            ranges.iter().map(|range| piece(application, &chunks[range.clone()])).collect();
        let told = self.ask(&pieces);
        let mut indexes =
            Indexes { nodes: &self.open, chunks: &[], told, piece: 0, failure: Cell::default() };
        let mut routed = Vec::with_capacity(pieces.len());
        for (number, (piece, range)) in pieces.iter().zip(ranges).enumerate() {
            (indexes.piece, indexes.chunks) = (number, &chunks[range.clone()]);
            routed.push(self.router.route(piece, &indexes));
            if let Some(error) = indexes.failure.take() {
                return Err(error);
            }
        }
        Ok(routed)
    }

    /// Asks the processes of nodes how many representatives they have, each node once for all
    /// super-chunks for which it may be chosen. The answers, by node and super-chunk.
    fn ask(&mut self, pieces: &[Piece]) -> BTreeMap<(usize, usize), usize> {
        let mut told = BTreeMap::new();
        let Some(answers) = &self.answers else { return told };
        let mut questions = Questions { nodes: &self.open, piece: 0, asked: RefCell::default() };
        for (number, piece) in pieces.iter().enumerate() {
            questions.piece = number;
            self.router.route(piece, &questions);
        }
        let (mut places, mut asked) = (Vec::new(), Vec::new());
        for (place, questions) in questions.asked.into_inner() {
            let (pieces, handprints): (Vec<_>, Vec<_>) = questions.into_iter().unzip();
            places.push((place, pieces));
            asked.push((self.open[place].number, handprints));
        }
        for ((place, pieces), found) in places.into_iter().zip(answers.similar(&asked)) {
            let counts = pieces.into_iter().zip(found.unwrap_or_default());
            told.extend(counts.map(|(piece, count)| ((place, piece), count)));
        }
        told
    }
}

/// A super-chunk as routers take it: without zeros.
fn piece(application: Application, chunks: &[DraftChunk]) -> Piece {
    let stored = chunks.iter().filter(|chunk| !chunk.is_zeros());
    Piece { application, stream: 0, chunks: stored.map(chunk_of).collect() }
}

fn is_unresolved(chunk: &DraftChunk) -> bool {
    chunk.found.is_none()
}

/// The chunks in these ranges, in order, that no level has found.
fn unresolved_in<'c>(
    chunks: &'c mut [DraftChunk],
    ranges: &[Range<usize>],
) -> Vec<&'c mut DraftChunk> {
    let mut ranges = ranges.iter().peekable();
    let is_in = move |number: usize| {
        while ranges.next_if(|range| range.end <= number).is_some() {}
        ranges.peek().is_some_and(|range| range.contains(&number))
    };
    let (mut is_in, chunks) = (is_in, chunks.iter_mut().enumerate());
    let chunks = chunks.filter(|(number, chunk)| is_in(*number) && is_unresolved(chunk));
    chunks.map(|(_, chunk)| chunk).collect()
}

/// The super-chunks of a segment.
fn super_chunks(chunks: &[DraftChunk]) -> Vec<Range<usize>> {
    let (mut cutter, mut first) = (SuperChunks::default(), 0);
    let ends = chunks.iter().map(|chunk| cutter.ends_with(chunk_of(chunk)));
    let mut ranges = Vec::new();
    for (number, ends) in ends.enumerate() {
        if ends || number + 1 == chunks.len() {
            ranges.push(first..number + 1);
            first = number + 1;
        }
    }
    ranges
}

/// A chunk as routers take it.
fn chunk_of(chunk: &DraftChunk) -> Chunk {
    Chunk { print: print_of(&chunk.fingerprint), bytes: to_u32(chunk.range.len()) }
}

/// A super-chunk, and its handprint.
type Question = (usize, Vec<Print>);

/// Notes which nodes a router would ask about a super-chunk. Which these are depends on the
/// handprint and on loads, not on answers.
struct Questions<'a> {
    nodes: &'a [Arc<Node>],
    piece: usize,
    /// By node: super-chunks, with their handprints.
    asked: RefCell<BTreeMap<usize, Vec<Question>>>,
}

impl Answers for Questions<'_> {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn used_bytes(&self, node: usize) -> u64 {
        self.nodes[node].used_bytes.load(Ordering::Relaxed)
    }

    fn similar(&self, node: usize, _application: Application, handprint: &[Print]) -> usize {
        if self.nodes[node].lookup().is_some() {
            let mut asked = self.asked.borrow_mut();
            asked.entry(node).or_default().push((self.piece, handprint.to_vec()));
        }
        0
    }

    fn known(&self, node: usize, sample: &[Print]) -> usize {
        self.similar(node, DISKS, sample)
    }
}

/// What nodes answer about a super-chunk: their processes, or their indexes in the storage.
struct Indexes<'a> {
    nodes: &'a [Arc<Node>],
    chunks: &'a [DraftChunk],
    /// What processes have told, by node and super-chunk.
    told: BTreeMap<(usize, usize), usize>,
    piece: usize,
    failure: Cell<Option<silt_format::Error>>,
}

impl Indexes<'_> {
    fn count(&self, node: usize, prints: &[Print]) -> Result<usize> {
        if let Some(told) = self.told.get(&(node, self.piece)) {
            return Ok(*told);
        }
        let Some(lookup) = self.nodes[node].lookup() else { return Ok(0) };
        let (mut find, mut count) = (lookup.index.begin(), 0);
        for print in prints {
            let chunk =
                self.chunks.iter().find(|it| !it.is_zeros() && print_of(&it.fingerprint) == *print);
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
