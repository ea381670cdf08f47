//! The protocol of similarity replication: fingerprints, sketches of what is missing, bases, and
//! deltas; every phase and direction counted, every delta decoded and compared.

use std::collections::HashMap;

use silt_similarity::{Candidate, DeltaCoder, PrefixCoder, XdeltaCoder};

use crate::destination::{Destination, Search};
use crate::prepare::{Cut, Prepared, Sketches};
use crate::{Result, now};
use silt_report::Random;

/// Bytes of a fingerprint on the wire, and of what a version says of itself: name, size, count.
const PRINT_BYTES: u64 = 20;
const VERSION_BYTES: u64 = 16;
const SUPER_FEATURE_BYTES: u64 = 8;
/// Level of the compression of what is left.
pub const LEVEL: i32 = 3;

/// Which of the bases that both ends have becomes the base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The one with most super-features in common.
    MostEqual,
    /// The one whose delta is the shortest, by trying all.
    Shortest,
    /// All of them, one after the other.
    Joined,
    /// Any chunk that both ends have: a control, which shows what resemblance is worth.
    Random,
}

/// The coder of deltas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coder {
    /// Copies and insertions; a compressor follows.
    Xdelta,
    /// Zstandard with the base in front.
    Prefix,
}

/// A way to replicate.
#[derive(Clone, Copy)]
pub struct Way {
    pub search: Search,
    /// Bases that the destination names for a chunk; 0 for no deltas.
    pub bases: usize,
    pub choice: Choice,
    pub coder: Coder,
    /// Rounds for which a source keeps what it sent; all of them if it is `None`.
    pub kept_rounds: Option<u32>,
    /// Whether deltas and chunks are encoded and counted. Otherwise, only look-ups are.
    pub encodes: bool,
}

/// What was counted after round 0. Bytes are uncompressed, except `packed`.
#[derive(Clone, Debug, Default)]
pub struct Sent {
    pub logical: u64,
    pub chunks: u64,
    /// Chunks that the destination has and the search found, and their bytes.
    pub duplicates: u64,
    pub duplicate_bytes: u64,
    /// Chunks that the destination has and the search did not find.
    pub lost: u64,
    /// Chunks sent as deltas.
    pub based: u64,
    /// Chunks for which a base was named, whether the source has it or not.
    pub named: u64,
    /// Fingerprints, sketches and versions upwards; bitmaps and bases downwards.
    pub up: u64,
    pub down: u64,
    pub deltas: u64,
    pub raw: u64,
    /// Deltas and chunks, compressed by version.
    pub packed: u64,
    /// Seconds of finding groups and fingerprints, of finding bases, of encoding, of decoding.
    pub find: f64,
    pub rank: f64,
    pub encode: f64,
    pub decode: f64,
    /// Chunks for which bases were looked for, and their bytes.
    pub looked_for: u64,
    pub missing_bytes: u64,
    pub groups: usize,
    /// Of all that is stored, what a search compares with, the mean.
    pub scope: f64,
    pub loads: u64,
    pub memory: usize,
}

impl Sent {
    /// All bytes to the destination, before compression and after it.
    pub fn plain(&self) -> u64 {
        self.up + self.deltas + self.raw
    }

    pub fn compressed(&self) -> u64 {
        self.up + self.packed
    }
}

/// Sends all versions of a set.
pub fn send(prepared: &Prepared, sketches: Option<&Sketches>, way: &Way) -> Result<Sent> {
    let mut sender = Sender {
        prepared,
        sketches,
        way: *way,
        destination: Destination::new(prepared, sketches, way.search),
        held: HashMap::new(),
        random: Random(7),
        stored: Vec::new(),
        xdelta: XdeltaCoder::new(None),
        prefix: PrefixCoder::new(LEVEL),
        sent: Sent::default(),
    };
    for version in &prepared.versions {
        sender.version(version)?;
    }
    let Sender { mut destination, mut sent, stored, .. } = sender;
    destination.measure();
    let whole = destination.searches * stored.len().max(1) as u64;
    sent.scope = destination.scope as f64 / whole.max(1) as f64;
    (sent.groups, sent.loads) = (destination.group_count(), destination.loads);
    sent.memory = destination.memory;
    Ok(sent)
}

struct Sender<'p> {
    prepared: &'p Prepared,
    sketches: Option<&'p Sketches>,
    way: Way,
    destination: Destination<'p>,
    /// Of each source and chunk, the round in which the source had it last.
    held: HashMap<(u32, u32), u32>,
    random: Random,
    /// Chunks of the destination, in the order in which they came.
    stored: Vec<u32>,
    xdelta: XdeltaCoder,
    prefix: PrefixCoder,
    sent: Sent,
}

impl Sender<'_> {
    fn version(&mut self, version: &Cut) -> Result<()> {
        let start = now();
        let groups = self.destination.groups_of(version);
        let mut missing: Vec<u32> = Vec::new();
        for chunk in &version.chunks {
            if !self.destination.finds(&groups, *chunk) && !missing.contains(chunk) {
                missing.push(*chunk);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        if version.round > 0 {
            self.sent.find += seconds;
            self.count(version, &missing);
            self.exchange(version, &groups, &missing)?;
        }
        for chunk in missing {
            if !self.destination.has(chunk) {
                self.stored.push(chunk);
            }
            self.destination.store(&groups, chunk);
        }
        for chunk in &version.chunks {
            self.held.insert((version.source, *chunk), version.round);
        }
        if self.way.search.group_chunks.is_some() && version.file.is_multiple_of(64) {
            self.destination.measure();
        }
        Ok(())
    }

    fn count(&mut self, version: &Cut, missing: &[u32]) {
        let bytes = |chunks: &[u32]| -> u64 {
            chunks.iter().map(|chunk| self.prepared.chunk(*chunk).len() as u64).sum()
        };
        let chunks = version.chunks.len() as u64;
        self.sent.logical += bytes(&version.chunks);
        self.sent.missing_bytes += bytes(missing);
        self.sent.duplicate_bytes += bytes(&version.chunks) - bytes(missing);
        self.sent.chunks += chunks;
        self.sent.duplicates += chunks - missing.len() as u64;
        let lost = missing.iter().filter(|chunk| self.destination.has(**chunk)).count();
        self.sent.lost += lost as u64;
        self.sent.up += VERSION_BYTES + PRINT_BYTES * chunks;
        self.sent.down += chunks.div_ceil(8);
    }

    /// Sketches, bases, then deltas and chunks.
    fn exchange(&mut self, version: &Cut, groups: &[u32], missing: &[u32]) -> Result<()> {
        let (mut plain, mut packed, mut delta) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in missing {
            let bases = self.bases(version, groups, *chunk);
            if !self.way.encodes {
                continue;
            }
            let start = now();
            delta.clear();
            let named = self.delta(&bases, *chunk, &mut delta)?;
            self.sent.encode += start.elapsed().as_secs_f64();
            let target = self.prepared.chunk(*chunk);
            if named == 0 || delta.len() >= target.len() {
                self.sent.raw += target.len() as u64;
                plain.extend_from_slice(target);
                continue;
            }
            self.sent.based += 1;
            self.sent.up += PRINT_BYTES * named;
            self.sent.deltas += delta.len() as u64;
            // A frame of Zstandard is not compressed twice.
            let into = if self.way.coder == Coder::Xdelta { &mut plain } else { &mut packed };
            into.extend_from_slice(&delta);
        }
        if self.way.encodes && !plain.is_empty() {
            packed.extend(zstd::bulk::compress(&plain, LEVEL)?);
        }
        self.sent.packed += packed.len() as u64;
        Ok(())
    }

    /// The bases that the destination names and the source has, the best first.
    fn bases(&mut self, version: &Cut, groups: &[u32], chunk: u32) -> Vec<u32> {
        let sketch = self.sketches.and_then(|sketches| sketches.of[chunk as usize]);
        let Some(sketch) = sketch.filter(|_| self.way.bases > 0) else { return Vec::new() };
        self.sent.up += SUPER_FEATURE_BYTES * sketch.values().len() as u64;
        self.sent.looked_for += 1;
        if self.way.choice == Choice::Random {
            let drawn = (0..1000).map(|_| self.stored[self.random.below(self.stored.len())]);
            let drawn: Vec<u32> = drawn.collect();
            let held = |base: &u32| is_held(&self.held, &self.way, version, *base);
            return drawn.into_iter().find(held).into_iter().collect();
        }
        let start = now();
        let found = self.destination.candidates(groups, &sketch, self.way.bases);
        self.sent.rank += start.elapsed().as_secs_f64();
        self.sent.named += u64::from(!found.is_empty());
        self.sent.down += 1 + PRINT_BYTES * found.len() as u64;
        let number = |found: &Candidate| u32::try_from(found.base).ok();
        let found = found.iter().filter_map(number);
        found.filter(|base| is_held(&self.held, &self.way, version, *base)).collect()
    }

    /// Encodes a chunk, and decodes it again. Returns how many bases it takes; 0 for no delta.
    fn delta(&mut self, bases: &[u32], chunk: u32, into: &mut Vec<u8>) -> Result<u64> {
        let (prepared, target) = (self.prepared, self.prepared.chunk(chunk));
        let joined: Vec<u8>;
        let mut named = 1;
        let mut base: &[u8] = match bases.first() {
            None => return Ok(0),
            Some(first) => prepared.chunk(*first),
        };
        match self.way.choice {
            Choice::Joined => {
                // The best last, where a coder looks first.
                let all = bases.iter().rev().flat_map(|base| prepared.chunk(*base));
                joined = all.copied().collect();
                (base, named) = (&joined, bases.len() as u64);
                self.coder().encode(base, target, into)?;
            }
            Choice::Shortest => {
                let mut trial = Vec::new();
                for other in bases {
                    trial.clear();
                    self.coder().encode(prepared.chunk(*other), target, &mut trial)?;
                    if into.is_empty() || trial.len() < into.len() {
                        base = prepared.chunk(*other);
                        into.clone_from(&trial);
                    }
                }
            }
            Choice::MostEqual | Choice::Random => self.coder().encode(base, target, into)?,
        }
        let start = now();
        let mut decoded = vec![0; target.len()];
        self.coder().decode(base, into, &mut decoded)?;
        self.sent.decode += start.elapsed().as_secs_f64();
        if decoded != target {
            return Err("a delta decodes to something else".into());
        }
        Ok(named)
    }

    fn coder(&mut self) -> &mut dyn DeltaCoder {
        match self.way.coder {
            Coder::Xdelta => &mut self.xdelta,
            Coder::Prefix => &mut self.prefix,
        }
    }
}

/// Whether the source of a version has a chunk that the destination names.
fn is_held(held: &HashMap<(u32, u32), u32>, way: &Way, version: &Cut, base: u32) -> bool {
    let since = held.get(&(version.source, base));
    since.is_some_and(|round| way.kept_rounds.is_none_or(|kept| version.round - round <= kept))
}
