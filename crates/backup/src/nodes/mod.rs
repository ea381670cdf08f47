//! Backups to storage nodes: which node a super-chunk goes to, and what the nodes have of it.
//!
//! Super-chunks are routed as AppDedupe does: the application names its nodes, and a handprint
//! chooses among them by what they have and how full they are. The nodes' indexes answer, as they
//! were when the backup last changed the node's head. A wrong choice costs deduplication, never
//! data.

mod registration;
mod writers;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use silt_format::number::{to_u32, to_u64};
use silt_format::{
    ALONE, CheckRecord, ErrorKind, FIRST_NODE, Head, Level, NodePlaces, Reference, Result,
};
use silt_repository::Repository;
use silt_repository::beside::each_beside;
use silt_repository::event::Warning;
use silt_repository::objects::{Objects, is_damage};
use silt_repository::packs::PackWriter;
use silt_routing::{Answers, AppDedupe, Application, Chunk, Piece, Print, Router, SuperChunks};
use silt_runs::avoided::{Avoided, warn_of_older};
use silt_runs::marks::Marks;
use silt_runs::neighbourhoods::Neighbourhoods;
use silt_runs::shared_index::{SharedIndex, SharedLookup, name_store, newest_head};

use crate::detect::Detector;
use crate::draft::{DISKS, DraftChunk, print_of};
use crate::known::Known;
use crate::places::{HELD_REPRESENTATIVES, NodeAnswers, StoreLookup, wanted};
use crate::scan::SegmentDraft;

pub(crate) use writers::NodeWriters;

/// Containers of all nodes whose fingerprints are held, and of each node at least.
const NEAR: usize = 12;
const NEAR_MIN: usize = 4;

/// New data stays with one node until that has so many bytes more than the least loaded one: a
/// share of what nodes have on average, within bounds.
const RUN_SHARE: u64 = 4;
const RUN_BYTES_MIN: u64 = 16 << 20;
const RUN_BYTES_MAX: u64 = 64 << 20;

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

    /// How many of these representatives its index has; `chunks` are the super-chunks'.
    fn count(&self, chunks: &HashMap<Print, &DraftChunk>, handprint: &[Print]) -> Result<usize> {
        let Some(lookup) = self.lookup() else { return Ok(0) };
        let (mut find, mut count) = (lookup.index.begin(), 0);
        for chunk in handprint.iter().filter_map(|print| chunks.get(print)) {
            count += usize::from(find(&chunk.fingerprint, chunk.range.len())?.is_some());
        }
        Ok(count)
    }

    /// Takes over what other backups have registered meanwhile.
    ///
    /// The series' head keeps the generation that it has named first: a sweep that condemns a chunk
    /// after that waits for this backup, also if the chunk was only found in a later head.
    fn renew(&self, repository: &Repository, head: &Head) -> Result<()> {
        let (memory_bytes, near) = self.held;
        let index = SharedIndex::of_head(&repository.objects, self.number, head, memory_bytes)?;
        let index = index.holding(near);
        let lookup = match self.lookup() {
            Some(before) if !index.is_empty() => {
                Some(StoreLookup::new(before.index.renewed(index), None))
            }
            _ => lookup_of(index, &self.avoided),
        };
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
    pub(crate) all: Vec<Arc<Node>>,
    /// Who is asked about them first.
    answers: Option<Arc<dyn NodeAnswers>>,
    /// Whether nothing will be stored, so that chunks that are alone in a node count as found.
    pub(crate) is_survey: bool,
    /// Sealed bytes at which a container is closed, as configured; with several nodes, sooner.
    container_bytes: u64,
}

/// What the storage shows of a node.
pub(crate) struct Shown {
    node: NodePlaces,
    /// Its newest head; `None` if it has none.
    head: Option<Head>,
    /// The generation of a head that it has lost, or 0.
    lost: u64,
    /// Its newest check record.
    pub(crate) checked: CheckRecord,
}

impl Shown {
    /// The number of the node.
    pub(crate) fn number(&self) -> u16 {
        self.node.number
    }

    /// Whether it has lost what this series or others refer to.
    fn is_behind(&self, head: &Head) -> bool {
        self.lost > 0 || self.generation() < head.seen(self.number())
    }

    /// The generation of its head; 0 if it has none.
    fn generation(&self) -> u64 {
        self.head.as_ref().map_or(0, |newest| newest.generation)
    }
}

/// Reads the heads of the nodes that can be reached, side by side; also returns the numbers of
/// those that have lost what the series with this head refers to. A series that shares nothing uses
/// none.
///
/// Must be after reading the series' record and head: condemning chunks relies on it.
pub(crate) fn read(repository: &Repository, head: &Head) -> Result<(Vec<Shown>, Vec<u16>)> {
    let domain = head.domain;
    let (out, nodes): (Vec<_>, Vec<_>) =
        repository.nodes().iter().cloned().partition(NodePlaces::is_taken_out);
    let out = out.iter().filter(|node| node.is_lost()).map(|node| node.number);
    let mut lost: Vec<u16> = out.filter(|number| head.names(*number)).collect();
    if domain == ALONE || !repository.objects.keys.opens_all() {
        return Ok((Vec::new(), lost));
    }
    let mut all = Vec::new();
    let show = |repository: &Repository, node: NodePlaces| {
        let objects = &repository.objects;
        // The marks first: others raise them while the head is read.
        let read = Marks::list(repository, node.number).and_then(|marks| {
            let newest = newest_head(objects, (domain, node.number))?;
            let lost = marks.lost(newest.as_ref().map(|(head, _)| head))?;
            let (head, check) = newest.unzip();
            let store = repository.store(node.number).id;
            let (_, checked) = objects.read_check_record(store, check.flatten())?;
            Ok((head, lost, checked))
        });
        (node, read)
    };
    each_beside(repository, nodes, show, |(node, read)| {
        match read {
            Ok((head, lost, checked)) => all.push(Shown { node, head, lost, checked }),
            Err(error) => {
                lost.extend((error.kind() == ErrorKind::Corrupt).then_some(node.number));
                leave_out(repository, (node.number, head), error)?;
            }
        }
        Ok(())
    })?;
    lost.extend(all.iter().filter(|node| node.is_behind(head)).map(Shown::number));
    Ok((all, lost))
}

/// Warns that a node is not used, unless the user has asked to stop.
fn leave_out(
    repository: &Repository,
    (number, head): (u16, &Head),
    error: silt_format::Error,
) -> Result<()> {
    if error.kind() == ErrorKind::Interrupted {
        return Err(error);
    }
    let mut consequence = format!("{} is not written to", repository.store(number).shown);
    if head.names(number) && !is_damage(&error) {
        consequence += ", and what needs its chunks cannot be restored until it is back";
    }
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
        for it in shown {
            let (is_behind, seen) = (it.is_behind(head), it.generation());
            let Shown { node, head: newest, lost, .. } = it;
            let (number, store) = (node.number, repository.store(node.number));
            if is_behind {
                warn_of_older(repository, lost.max(head.seen(number)), number, seen);
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
                leave_out(repository, (number, head), error)?;
                continue;
            }
            name_store(head, (number, store.id), seen);
            nodes.push(opened);
        }
        Ok(Self { all: nodes, answers: answers.cloned(), is_survey: false, container_bytes })
    }

    /// The numbers of the nodes that are used.
    pub(crate) fn numbers(&self) -> Vec<u16> {
        self.all.iter().map(|node| node.number).collect()
    }

    /// The level that looks for chunks in the nodes; `None` if there are none.
    pub(crate) fn level(&self, objects: &Arc<Objects>) -> Option<Box<dyn Detector>> {
        if self.all.is_empty() {
            return None;
        }
        let (open, closed): (Vec<_>, Vec<_>) =
            self.all.iter().cloned().partition(|node| node.takes_chunks);
        let mut router = AppDedupe::default();
        if self.answers.is_some() {
            router.held = HELD_REPRESENTATIVES;
        }
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
        let objects = Arc::clone(objects);
        let leaves = !self.is_survey && !open.is_empty();
        let near = leaves.then(|| Neighbourhoods::new(self.container_bytes));
        Some(Box::new(NodeLevel { open, closed, router, answers, objects, near }))
    }
}

/// For how many bytes new data stays with one of these nodes.
fn run_bytes(open: &[Arc<Node>]) -> u64 {
    let used: u64 = open.iter().map(|node| node.used_bytes.load(Ordering::Relaxed)).sum();
    let mean = used / to_u64(open.len().max(1));
    (mean / RUN_SHARE).clamp(RUN_BYTES_MIN, RUN_BYTES_MAX)
}

/// Routes super-chunks to nodes, and looks for their chunks there.
struct NodeLevel {
    open: Vec<Arc<Node>>,
    /// These get no new chunks, but those that they have are used.
    closed: Vec<Arc<Node>>,
    router: AppDedupe,
    answers: Option<Arc<dyn NodeAnswers>>,
    objects: Arc<Objects>,
    /// Where the nodes have what the backup's last segments consist of; `None` if all is used.
    near: Option<Neighbourhoods>,
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
            self.leave_lonely(&mut draft.chunks, &[]);
            return Ok(());
        }
        self.router.run_bytes = run_bytes(&self.open);
        let mut ranges = super_chunks(&draft.chunks);
        ranges.retain(|range| draft.chunks[range.clone()].iter().any(is_unresolved));
        let routed = self.route_all(draft.application, &draft.chunks, &ranges)?;
        let mut asked: Vec<_> = self.open.iter().map(|node| (node, Vec::new())).collect();
        for (place, range) in routed.into_iter().zip(&ranges) {
            let Some((node, own)) = asked.get_mut(place) else { continue };
            let chunks = draft.chunks[range.clone()].iter_mut();
            chunks.filter(|it| is_unresolved(it)).for_each(|chunk| chunk.node = node.number);
            own.push(range.clone());
        }
        let application = draft.application;
        self.find(application, &mut draft.chunks, &asked)?;
        // These can't be asked at the same time: several may have a chunk.
        self.closed.iter().try_for_each(|node| {
            self.find(application, &mut draft.chunks, &[(node, ranges.clone())])
        })?;
        self.leave_lonely(&mut draft.chunks, &ranges);
        Ok(())
    }
}

impl NodeLevel {
    /// Takes chunks of these ranges that are alone where the nodes have them for new ones: each
    /// restore would read them by themselves.
    fn leave_lonely(&mut self, chunks: &mut [DraftChunk], ranges: &[Range<usize>]) {
        let Some(near) = &mut self.near else { return };
        let is_of_node = |place: &Reference| place.store() >= FIRST_NODE && !place.is_zero();
        let found = chunks.iter().filter_map(|it| Some((it.found?.0, to_u64(it.range.len()))));
        near.refer(found.filter(|(place, _)| is_of_node(place)));
        for chunk in ranges.iter().flat_map(Clone::clone) {
            let chunk = &mut chunks[chunk];
            let (may_leave, bytes) = (chunk.is_read, to_u64(chunk.range.len()));
            chunk.found.take_if(|(place, level)| {
                let may_leave = may_leave && *level == Level::Shared && is_of_node(place);
                may_leave && near.leave(*place, bytes)
            });
        }
    }

    /// Looks for chunks in ranges of a segment that do not overlap, each in a node.
    fn find(
        &self,
        application: Application,
        chunks: &mut [DraftChunk],
        asked: &[(&Arc<Node>, Vec<Range<usize>>)],
    ) -> Result<()> {
        let of_nodes = unresolved_in(chunks, asked.iter().map(|(_, ranges)| &ranges[..]));
        let mut all: Vec<Asked<'_>> = Vec::new();
        for ((node, _), chunks) in asked.iter().zip(of_nodes) {
            if let Some(lookup) = node.lookup().filter(|_| !chunks.is_empty()) {
                all.push(Asked { number: node.number, lookup, chunks });
            }
        }
        let mut told = Vec::new();
        if let Some(answers) = &self.answers {
            let questions: Vec<_> =
                all.iter().map(|asked| (asked.number, wanted(&asked.chunks))).collect();
            told = answers.find(application.0, &questions);
        }
        told.resize(all.len(), None);
        let mut read = Vec::new();
        for (mut asked, told) in all.into_iter().zip(told) {
            match told {
                Some(told) => asked.lookup.enter(&mut asked.chunks, told),
                None => read.push(asked),
            }
        }
        let look = |_: &Arc<Objects>, mut asked: Asked<'_>| asked.lookup.read(&mut asked.chunks);
        each_beside(&self.objects, read, look, |done| done)
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
        let counts = self.ask(application, chunks, &pieces)?;
        let mut told = Told { nodes: &self.open, piece: 0, counts };
        let mut routed = Vec::with_capacity(pieces.len());
        for (number, piece) in pieces.iter().enumerate() {
            told.piece = number;
            routed.push(self.router.route(piece, &told));
        }
        Ok(routed)
    }

    /// Asks nodes how many representatives they have, each node once for all super-chunks for which
    /// it may be chosen: the process beside it, or else its index in the storage.
    fn ask(
        &self,
        application: Application,
        chunks: &[DraftChunk],
        pieces: &[Piece],
    ) -> Result<Counts> {
        let mut questions = Questions { nodes: &self.open, piece: 0, asked: RefCell::default() };
        // It only notes what the router would ask.
        let mut router = self.router.clone();
        for (number, piece) in pieces.iter().enumerate() {
            questions.piece = number;
            router.route(piece, &questions);
        }
        let mut all = Vec::new();
        for (place, questions) in questions.asked.into_inner() {
            let (pieces, handprints) = questions.into_iter().unzip();
            all.push(Similar { place, pieces, handprints });
        }
        let mut answers = Vec::new();
        if let Some(processes) = &self.answers {
            let number = |similar: &Similar| self.open[similar.place].number;
            let asked = all.iter().map(|it| (number(it), it.handprints.clone()));
            answers = processes.similar(application.0, &asked.collect::<Vec<_>>());
        }
        answers.resize(all.len(), None);
        let (mut counts, mut unanswered) = (Counts::new(), Vec::new());
        for (similar, answer) in all.into_iter().zip(answers) {
            match answer {
                Some(answer) => counts.extend(similar.keys().zip(answer)),
                None => unanswered.push(similar),
            }
        }
        self.count(chunks, unanswered, &mut counts)?;
        Ok(counts)
    }

    /// Counts representatives in the nodes' indexes.
    fn count(&self, chunks: &[DraftChunk], asked: Vec<Similar>, counts: &mut Counts) -> Result<()> {
        if asked.is_empty() {
            return Ok(());
        }
        let stored = chunks.iter().filter(|chunk| !chunk.is_zeros());
        let of_print: HashMap<Print, &DraftChunk> =
            stored.map(|chunk| (print_of(&chunk.fingerprint), chunk)).collect();
        let count = |_: &Arc<Objects>, similar: Similar| {
            let (node, handprints) = (&self.open[similar.place], similar.handprints.iter());
            let of_pieces = handprints.map(|handprint| node.count(&of_print, handprint));
            let of_pieces: Vec<usize> = of_pieces.collect::<Result<_>>()?;
            Ok(similar.keys().zip(of_pieces).collect::<Counts>())
        };
        each_beside(&self.objects, asked, count, |counted| {
            counts.extend(counted?);
            Ok(())
        })
    }
}

/// The super-chunks for which a node may be chosen.
struct Similar {
    place: usize,
    pieces: Vec<usize>,
    handprints: Vec<Vec<Print>>,
}

impl Similar {
    fn keys(&self) -> impl Iterator<Item = (usize, usize)> {
        self.pieces.iter().map(|piece| (self.place, *piece))
    }
}

/// How many representatives nodes have, by the node's place and the super-chunk.
type Counts = BTreeMap<(usize, usize), usize>;

/// Chunks that a node is asked about.
struct Asked<'c> {
    number: u16,
    lookup: StoreLookup,
    chunks: Vec<&'c mut DraftChunk>,
}

/// A super-chunk as routers take it: without zeros.
fn piece(application: Application, chunks: &[DraftChunk]) -> Piece {
    let stored = chunks.iter().filter(|chunk| !chunk.is_zeros());
    Piece { application, stream: 0, chunks: stored.map(chunk_of).collect() }
}

fn is_unresolved(chunk: &DraftChunk) -> bool {
    chunk.found.is_none()
}

/// The chunks that no level has found, in order, for each list of ranges.
fn unresolved_in<'c, 'r>(
    chunks: &'c mut [DraftChunk],
    lists: impl Iterator<Item = &'r [Range<usize>]>,
) -> Vec<Vec<&'c mut DraftChunk>> {
    let (mut of_chunk, mut count) = (vec![None; chunks.len()], 0);
    for (list, ranges) in lists.enumerate() {
        ranges.iter().for_each(|range| of_chunk[range.clone()].fill(Some(list)));
        count = list + 1;
    }
    let mut found: Vec<Vec<&mut DraftChunk>> = (0..count).map(|_| Vec::new()).collect();
    for (chunk, list) in chunks.iter_mut().zip(of_chunk) {
        if let Some(list) = list.filter(|_| is_unresolved(chunk)) {
            found[list].push(chunk);
        }
    }
    found
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

/// What nodes have answered about super-chunks.
struct Told<'a> {
    nodes: &'a [Arc<Node>],
    piece: usize,
    counts: Counts,
}

impl Answers for Told<'_> {
    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn used_bytes(&self, node: usize) -> u64 {
        self.nodes[node].used_bytes.load(Ordering::Relaxed)
    }

    fn similar(&self, node: usize, _application: Application, _handprint: &[Print]) -> usize {
        self.counts.get(&(node, self.piece)).copied().unwrap_or(0)
    }

    fn known(&self, node: usize, sample: &[Print]) -> usize {
        self.similar(node, DISKS, sample)
    }
}
