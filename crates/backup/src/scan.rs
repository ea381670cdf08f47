//! Processes a segment in a worker: zeros, digest, chunks, fingerprints, signatures.

use std::ops::Range;
use std::sync::Arc;

use silt_chunking::{Chunker, DigestedBlocks, Fingerprinter, SegmentDigester, is_zero, signatures};
use silt_format::tree::FileKind;
use silt_format::{
    BLOCK_BYTES, ByteSpan, Error, Fingerprint, Level, Reference, Result, SEGMENT_BYTES,
    SegmentDigest, SegmentEntry, Signatures,
};
use silt_repository::event::Warning;
use silt_repository::objects::{Scratch, is_damage};
use silt_routing::Application;
use silt_runs::avoided::Avoided;

pub use crate::draft::DraftChunk;

use crate::draft::{DISKS, application_of};
use crate::memo::{Hashed, Memo, MemoNotes, Noted};
use crate::parent::ParentVolume;
use crate::places::StoreLookup;
use crate::tree::{Cut, CutSegment, Cutter, OldSegments, TreeClaim, TreeEvent};

/// A segment that differs from the parent's: its bytes and chunks.
pub struct SegmentDraft {
    /// Its number in the volume.
    pub index: u64,
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its chunks in order.
    pub chunks: Vec<DraftChunk>,
    /// The digest of the whole segment.
    pub digest: SegmentDigest,
    /// The signatures of its stored chunks.
    pub signatures: Signatures,
    /// Segments of the parent with similar content: the one at the same offset of a disk, or those
    /// that held the same files of a tree.
    pub parents: Vec<SegmentEntry>,
    /// The numbers of these segments, for a tree.
    pub(crate) parent_numbers: Vec<u64>,
    /// Whether it was made from the record of a scan; the shared store was then searched already.
    pub recalled: bool,
    /// Whether it is part of a large file of a tree, so that its frames are large.
    pub is_large: bool,
    /// The application that chooses the storage nodes for it.
    pub application: Application,
}

impl SegmentDraft {
    /// A segment of a disk that is like no other, with its signatures.
    pub(crate) fn new(
        index: u64,
        data: Vec<u8>,
        chunks: Vec<DraftChunk>,
        digest: SegmentDigest,
    ) -> Self {
        let stored = chunks.iter().filter(|chunk| !chunk.is_zeros());
        let signatures = signatures(stored.map(|chunk| &chunk.fingerprint));
        Self {
            index,
            data,
            chunks,
            digest,
            signatures,
            parents: Vec::new(),
            parent_numbers: Vec::new(),
            recalled: false,
            is_large: false,
            application: DISKS,
        }
    }

    /// Returns the number of chunks that no level has found yet.
    pub fn unresolved(&self) -> usize {
        self.chunks.iter().filter(|chunk| chunk.found.is_none()).count()
    }

    /// Returns whether there is a chunk that no level has found and that was not read.
    pub fn lacks_bytes(&self) -> bool {
        self.recalled && self.chunks.iter().any(|chunk| chunk.found.is_none() && !chunk.is_read)
    }
}

/// The result of a claim.
pub(crate) enum Scanned {
    /// Segments of zeros.
    Zeros { segments: u64, bytes: u64 },
    /// Segments that are taken from the parent without being read.
    Clean { first: u64, segments: u64, bytes: u64 },
    /// A segment equal to the parent's.
    Same { entry: SegmentEntry, bytes: u64 },
    /// A segment to deduplicate.
    Draft(Box<SegmentDraft>),
    /// Part of a file tree.
    Tree(Vec<TreeEvent>, TreeSegment),
    /// A part of a file tree that is not any more what a record says.
    Changed,
}

/// The segment of a part of a file tree.
pub(crate) enum TreeSegment {
    /// The part has no content to store.
    None,
    /// The parent has the same segment under this number.
    Same(u64),
    /// A segment to deduplicate.
    Draft(Box<SegmentDraft>),
}

/// The result of a claim, with unreadable ranges and warnings.
pub(crate) struct Outcome {
    pub scanned: Scanned,
    pub unreadable: Vec<ByteSpan>,
    pub warnings: Vec<Warning>,
    /// What the memo of segments is to hold of a segment that was read.
    pub noted: Option<Noted>,
    /// Whether the segment was recognized by its hash, and not digested.
    pub is_recognized: bool,
}

impl Outcome {
    /// Returns an outcome without problems.
    pub fn of(scanned: Scanned) -> Self {
        let (unreadable, warnings) = (Vec::new(), Vec::new());
        Self { scanned, unreadable, warnings, noted: None, is_recognized: false }
    }

    /// Tells the memo what it is to hold of the segments.
    pub fn note_in(&self, notes: Option<&mut MemoNotes<'_>>) {
        let Some(notes) = notes else { return };
        let segments = match self.scanned {
            Scanned::Zeros { segments, .. } | Scanned::Clean { segments, .. } => segments,
            Scanned::Same { .. } | Scanned::Tree(..) | Scanned::Changed | Scanned::Draft(_) => 1,
        };
        notes.take(segments, self.noted, self.is_recognized);
    }
}

/// State that all workers of one volume share.
pub struct Scanner {
    pub chunker: Chunker,
    pub fingerprinter: Fingerprinter,
    pub digester: SegmentDigester,
    pub parent: Option<ParentVolume>,
    pub avoided: Arc<Avoided>,
    pub shared: Option<StoreLookup>,
    /// What this machine remembers of the volume's segments.
    pub memo: Option<Memo>,
}

/// One worker's buffers.
pub struct ScanBuffers {
    blocks: DigestedBlocks,
    lengths: Vec<u32>,
    pub(super) fingerprints: Vec<Fingerprint>,
    scratch: Scratch,
    raw: Vec<u8>,
}

impl ScanBuffers {
    pub fn new() -> Self {
        Self {
            blocks: DigestedBlocks::default(),
            lengths: Vec::new(),
            fingerprints: Vec::new(),
            scratch: Scratch::default(),
            raw: Vec::new(),
        }
    }
}

impl Scanner {
    /// Scans the segment number `index` with the bytes `data`. Returns `data` for reuse unless a
    /// draft keeps it.
    pub fn scan(
        &self,
        index: u64,
        data: Vec<u8>,
        buffers: &mut ScanBuffers,
    ) -> Result<(Outcome, Option<Vec<u8>>)> {
        let bytes = silt_format::number::to_u64(data.len());
        if is_zero(&data) {
            return Ok((Outcome::of(Scanned::Zeros { segments: 1, bytes }), Some(data)));
        }
        let mut warnings = Vec::new();
        let parent = self.parent_entry(index, &mut warnings)?;
        let hashed = self.memo.as_ref().map(|memo| memo.hash(index, &data));
        let outcome = |scanned, warnings, digest, is_recognized| {
            let noted = hashed.as_ref().and_then(|hashed| hashed.with(digest));
            Outcome { scanned, unreadable: Vec::new(), warnings, noted, is_recognized }
        };
        let remembered = hashed.as_ref().and_then(Hashed::digest);
        if let Some(digest) = remembered
            && let Some(entry) = parent.filter(|entry| entry.digest == digest)
            && self.is_usable(&entry, buffers)?
        {
            let same = Scanned::Same { entry, bytes };
            return Ok((outcome(same, warnings, &digest, true), Some(data)));
        }
        let (digest, chunks) = self.digest(&data, buffers);
        if let Some(entry) = parent.filter(|entry| entry.digest == digest)
            && self.is_usable(&entry, buffers)?
        {
            let same = Scanned::Same { entry, bytes };
            return Ok((outcome(same, warnings, &digest, false), Some(data)));
        }
        let chunks = chunks.unwrap_or_else(|| self.blocks(&data, buffers));
        let mut draft = SegmentDraft::new(index, data, chunks, digest);
        draft.parents = parent.into_iter().collect();
        Ok((outcome(Scanned::Draft(Box::new(draft)), warnings, &digest, false), None))
    }

    /// Returns the digest of a segment. Also returns its chunks if the digest was made of chunks
    /// and not of blocks.
    pub(super) fn digest(
        &self,
        data: &[u8],
        buffers: &mut ScanBuffers,
    ) -> (SegmentDigest, Option<Vec<DraftChunk>>) {
        if self.chunker.cuts_blocks() {
            return (self.digester.digest(data, &mut buffers.blocks), None);
        }
        let mut chunks = self.cut(data, buffers);
        self.fingerprint(data, &mut chunks, buffers);
        (self.digest_chunks(&chunks), Some(chunks))
    }

    /// The parent's entry; a damaged map counts as no parent, with a warning.
    pub(crate) fn parent_entry(
        &self,
        index: u64,
        warnings: &mut Vec<Warning>,
    ) -> Result<Option<SegmentEntry>> {
        let Some(parent) = &self.parent else { return Ok(None) };
        match parent.reader.entry(parent.root, index) {
            Err(error) if is_damage(&error) => {
                warnings.push(Warning::after(&error, "its segments are read and stored again"));
                Ok(None)
            }
            other => other,
        }
    }

    /// Whether the parent's recipe can be shared: it refers to nothing known to be damaged.
    pub(crate) fn is_usable(
        &self,
        entry: &SegmentEntry,
        buffers: &mut ScanBuffers,
    ) -> Result<bool> {
        if self.avoided.is_empty() {
            return Ok(true);
        }
        let Some(parent) = &self.parent else { return Ok(false) };
        if self.avoided.has_recipe(entry.recipe) {
            return Ok(false);
        }
        let read = parent.reader.segment_recipe(entry, &mut buffers.scratch, &mut buffers.raw);
        match read {
            Ok(recipe) => Ok(!recipe.chunks.iter().any(|chunk| self.avoided.has(chunk.reference))),
            Err(error) if is_damage(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Processes a part of a file tree. Returns the buffer for reuse unless a draft keeps it.
    pub(crate) fn scan_tree(
        &self,
        claim: TreeClaim,
        mut data: Vec<u8>,
        (cutter, old): (&Cutter, &OldSegments),
        buffers: &mut ScanBuffers,
    ) -> Result<(Scanned, Option<Vec<u8>>)> {
        let TreeClaim { mut events, cuts, lengths, before, bytes, is_large } = claim;
        let application = most_bytes(&cuts);
        if bytes == 0 {
            return Ok((Scanned::Tree(events, TreeSegment::None), Some(data)));
        }
        let lengths = cutter.cut(&data, &cuts, lengths);
        let mut chunks = in_a_row(&lengths);
        self.fingerprint(&data, &mut chunks, buffers);
        let mut digest = self.digest_padded(&mut chunks);
        let (mut parents, mut parent_numbers) = (Vec::new(), Vec::new());
        for number in before {
            let Some(entry) = old.entry(number)? else { continue };
            if entry.digest == digest && old.are_usable([number].into_iter())? {
                return Ok((Scanned::Tree(events, TreeSegment::Same(number)), Some(data)));
            }
            parents.push(entry);
            parent_numbers.push(number);
        }
        let mut segment =
            CutSegment { cuts: &cuts, chunks: &mut chunks, data: &mut data, events: &mut events };
        if segment.leave_out_held(old)? {
            if data.is_empty() {
                return Ok((Scanned::Tree(events, TreeSegment::None), Some(data)));
            }
            digest = self.digest_padded(&mut chunks);
        }
        let mut draft = SegmentDraft::new(0, data, chunks, digest);
        (draft.parents, draft.is_large, draft.application) = (parents, is_large, application);
        draft.parent_numbers = parent_numbers;
        Ok((Scanned::Tree(events, TreeSegment::Draft(Box::new(draft))), None))
    }

    /// Adds a chunk of zeros that fills up the segment, and returns the segment's digest.
    fn digest_padded(&self, chunks: &mut Vec<DraftChunk>) -> SegmentDigest {
        let end = chunks.last().map_or(0, |last| last.range.end);
        if end < SEGMENT_BYTES {
            chunks.push(zeros(end..SEGMENT_BYTES));
        }
        self.digest_chunks(chunks)
    }

    fn digest_chunks(&self, chunks: &[DraftChunk]) -> SegmentDigest {
        let digested = chunks.iter().map(|chunk| {
            let length = silt_format::number::to_u32(chunk.range.len());
            (length, chunk.found.is_none().then_some(&chunk.fingerprint))
        });
        self.digester.digest_chunks(digested)
    }

    /// Cuts a segment. All chunks count as zeros until [`fingerprint`](Self::fingerprint).
    fn cut(&self, data: &[u8], buffers: &mut ScanBuffers) -> Vec<DraftChunk> {
        self.chunker.cut(data, &mut buffers.lengths);
        in_a_row(&buffers.lengths)
    }

    /// Returns the chunks of a segment whose digest was just made, if the chunks are the blocks of
    /// the digest.
    fn blocks(&self, data: &[u8], buffers: &mut ScanBuffers) -> Vec<DraftChunk> {
        let mut chunks = self.cut(data, buffers);
        for (range, fingerprint) in buffers.blocks.stored() {
            let chunk = &mut chunks[range.start / BLOCK_BYTES];
            (chunk.fingerprint, chunk.found) = (fingerprint, None);
        }
        chunks
    }

    /// Finds the chunks that are not zeros, and computes their fingerprints.
    fn fingerprint(&self, data: &[u8], chunks: &mut [DraftChunk], buffers: &mut ScanBuffers) {
        let mut stored = Vec::with_capacity(chunks.len());
        for chunk in chunks.iter_mut().filter(|chunk| !is_zero(&data[chunk.range.clone()])) {
            stored.push(chunk.range.clone());
            chunk.found = None;
        }
        let fingerprints = &mut buffers.fingerprints;
        self.fingerprinter.fingerprint_many(data, &stored, fingerprints);
        let stored = chunks.iter_mut().filter(|chunk| chunk.found.is_none());
        for (chunk, fingerprint) in stored.zip(fingerprints.iter()) {
            chunk.fingerprint = *fingerprint;
        }
    }
}

/// Returns chunks of these lengths that count as zeros until their fingerprints are known.
fn in_a_row(lengths: &[u32]) -> Vec<DraftChunk> {
    let mut start = 0;
    let chunks = lengths.iter().map(|&length| {
        let range = start..start + length as usize;
        start = range.end;
        zeros(range)
    });
    chunks.collect()
}

/// Returns a chunk that counts as zeros until its fingerprint is known.
/// The application of most bytes of a segment of a file tree.
fn most_bytes(cuts: &[Cut]) -> Application {
    let mut bytes = [0; FileKind::ALL.len()];
    for cut in cuts {
        bytes[cut.kind.index()] += cut.bytes;
    }
    let most = FileKind::ALL.into_iter().max_by_key(|kind| bytes[kind.index()]);
    application_of(most.unwrap_or_default())
}

fn zeros(range: Range<usize>) -> DraftChunk {
    let found = Some((Reference::ZERO, Level::Zero));
    DraftChunk { range, fingerprint: Fingerprint([0; 20]), found, is_read: true, node: 0 }
}

/// Adds the offset in the source to an error that ends the backup.
pub(crate) fn source_error(error: Error, offset: u64) -> Error {
    error.context(format!("read the source at byte {offset}"))
}
