//! Snapshots: committed points in time of a series.

use crate::codec::{Decoder, Encoder, REQUIRED, unsupported};
use crate::envelope::{Id, SeriesId};
use crate::page::MapRoot;
use crate::recipe::{decode_chunking, encode_chunking};
use crate::replica::Origin;
use crate::summary::SummaryGeometry;
use crate::tree::Tree;
use crate::{Chunking, ContentHash, Error, Result};

const CORE: u16 = 1;
const VOLUMES: u16 = 2;
const SUMMARY: u16 = 3;
const CHECKPOINTS: u16 = 4;
const ORIGIN: u16 = 5;

/// The sections of a volume.
const DISK: u16 = 1;
const MAP: u16 = 2;
const COUNTED: u16 = 3;
const UNREADABLE: u16 = 4;
const BACKING: u16 = 5;
const MAP_PROOF: u16 = 6;
const TREE: u16 = 7;
/// The keys of a volume's map are ranges of 2 MiB: its segments.
const KEYS_SEGMENTS: u8 = 1;
/// Bytes of a volume before its sections.
const VOLUME_PREFIX_BYTES: usize = 5;

/// The detection level of bytes of a volume. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Level {
    /// Zeros, which are never stored.
    Zero = 1,
    /// The changed-blocks map said that the segment had not changed.
    Map = 2,
    /// The segment's digest equalled its parent's.
    Digest = 3,
    /// Found in the parent's segment at the same offset.
    SameOffset = 4,
    /// Found in a segment with equal signatures.
    Similar = 5,
    /// Found among the chunks seen shortly before in this backup.
    Recent = 6,
    /// Found in a container of an interrupted backup.
    Adopted = 7,
    /// Not found: stored.
    New = 8,
    /// Found in the shared store's index.
    Shared = 9,
}

impl Level {
    /// Every level in the order in which they are tried.
    pub const ALL: [Self; 9] = [
        Self::Zero,
        Self::Map,
        Self::Digest,
        Self::SameOffset,
        Self::Similar,
        Self::Recent,
        Self::Adopted,
        Self::Shared,
        Self::New,
    ];
    /// The level's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Zero => "zero",
            Self::Map => "map",
            Self::Digest => "digest",
            Self::SameOffset => "same-offset",
            Self::Similar => "similar",
            Self::Recent => "recent",
            Self::Adopted => "adopted",
            Self::New => "new",
            Self::Shared => "shared",
        }
    }
}

/// Bytes of a volume by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelBytes([u64; Level::ALL.len()]);

impl LevelBytes {
    /// Bytes that `level` accounted for.
    pub fn get(&self, level: Level) -> u64 {
        self.0[level as usize - 1]
    }
    fn set(&mut self, level: Level, bytes: u64) {
        self.0[level as usize - 1] = bytes;
    }
    /// Adds `bytes` to `level`.
    pub fn add(&mut self, level: Level, bytes: u64) {
        self.0[level as usize - 1] += bytes;
    }
    /// Adds all that `other` counted.
    pub fn merge(&mut self, other: &Self) {
        Level::ALL.into_iter().for_each(|level| self.add(level, other.get(level)));
    }
    /// All bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A range of a volume, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteSpan {
    /// Its offset.
    pub offset: u64,
    /// Its length.
    pub length: u64,
}

const KIND_DISK: u8 = 1;
const KIND_TREE: u8 = 2;

/// The kind of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VolumeKind {
    /// A disk: a range of bytes.
    Disk,
    /// A file tree; the volume's bytes are the content of its files.
    Tree(Box<Tree>),
}

/// A source's name for the point in time of a snapshot; a later backup can ask the source what has
/// changed since.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The volume's name.
    pub volume: String,
    /// The program that gave the name.
    pub kind: String,
    /// The name.
    pub id: String,
}

/// One volume of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its kind.
    pub kind: VolumeKind,
    /// Its name in the series.
    pub name: String,
    /// Its size in bytes; of a file tree, the size of its address space.
    pub bytes: u64,
    /// The path that it was read from.
    pub source: String,
    /// The source's format, such as `raw` or `qcow2`.
    pub source_format: String,
    /// The chunking of its segments.
    pub chunking: Chunking,
    /// Its map.
    pub root: MapRoot,
    /// The bytes that each level accounted for.
    pub levels: LevelBytes,
    /// Bytes that this volume added to storage: sealed frames and metadata blocks.
    pub stored_bytes: u64,
    /// Ranges that could not be read and were stored as zeros, in offset order.
    pub unreadable: Vec<ByteSpan>,
    /// The backing files of the source, from the top down. The volume holds the combined content.
    pub backing: Vec<String>,
    /// The use of a changed-blocks map; `None` if everything was read.
    pub map_proof: Option<MapProof>,
}

/// The segments that a backup did not read because of a changed-blocks map, and the time since
/// which all segments are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapProof {
    /// Segments that the map called unchanged, including those that were compared anyway.
    pub clean: u64,
    /// Of those, segments that were read and compared anyway.
    pub compared: u64,
    /// Segment `i` was read or compared at time number `i` modulo their count, or later. In
    /// nanoseconds since 1970; at least one.
    pub compared_ns: Vec<i64>,
}

impl MapProof {
    /// The oldest time at which a segment was last read or compared.
    pub fn since_ns(&self) -> i64 {
        self.compared_ns.iter().copied().min().unwrap_or(0)
    }
}

/// A snapshot's summary vector: the Bloom filter of its private references.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SummaryRef {
    /// The summary object's id.
    pub id: Id,
    /// Its size and hash functions.
    pub geometry: SummaryGeometry,
    /// The number of references inserted.
    pub references: u64,
    /// Its content hash.
    pub hash: ContentHash,
}

/// One committed point in time of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its id.
    pub id: Id,
    /// Its series.
    pub series: SeriesId,
    /// When the backup began, in nanoseconds since 1970.
    pub time_ns: i64,
    /// How long the backup took, in milliseconds.
    pub duration_ms: u64,
    /// The snapshot that the backup compared with.
    pub parent: Option<Id>,
    /// The host that made it.
    pub host: String,
    /// The program that made it, with its version.
    pub program: String,
    /// Its volumes.
    pub volumes: Vec<Volume>,
    /// The names that the sources of its volumes give this point in time.
    pub checkpoints: Vec<Checkpoint>,
    /// Its summary vector, if it refers to anything.
    pub summary: Option<SummaryRef>,
    /// The snapshot that it is a copy of, if it was replicated.
    pub origin: Option<Origin>,
}

impl Snapshot {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            to.u64(self.id.0);
            to.raw(&self.series.0);
            to.i64(self.time_ns);
            to.u64(self.duration_ms);
            to.u8(u8::from(self.parent.is_some()));
            to.u64(self.parent.map_or(0, |id| id.0));
            to.string(&self.host);
            to.string(&self.program);
        });
        to.section(VOLUMES, REQUIRED, |to| {
            to.count(self.volumes.len());
            self.volumes.iter().for_each(|volume| volume.encode(to));
        });
        if let Some(summary) = &self.summary {
            to.section(SUMMARY, 0, |to| {
                to.u64(summary.id.0);
                summary.geometry.encode(to);
                to.u64(summary.references);
                to.raw(&summary.hash.0);
            });
        }
        if !self.checkpoints.is_empty() {
            to.section(CHECKPOINTS, 0, |to| {
                to.count(self.checkpoints.len());
                for checkpoint in &self.checkpoints {
                    to.string(&checkpoint.volume);
                    to.string(&checkpoint.kind);
                    to.string(&checkpoint.id);
                }
            });
        }
        if let Some(origin) = &self.origin {
            to.section(ORIGIN, 0, |to| origin.encode(to));
        }
        to.bytes
    }

    /// Reads a snapshot.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut snapshot = None;
        let (mut volumes, mut summary, mut checkpoints) = (None, None, Vec::new());
        let mut origin = None;
        Decoder::new(bytes, "snapshot").sections(|tag, body| {
            match tag {
                CORE => snapshot = Some(decode_core(body)?),
                VOLUMES => volumes = Some(decode_volumes(body)?),
                SUMMARY => {
                    summary = Some(SummaryRef {
                        id: Id(body.u64()?),
                        geometry: SummaryGeometry::decode(body)?,
                        references: body.u64()?,
                        hash: ContentHash(body.array()?),
                    });
                }
                CHECKPOINTS => checkpoints = body.list(6, decode_checkpoint)?,
                ORIGIN => origin = Some(Origin::decode(body)?),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        match (snapshot, volumes) {
            (Some(snapshot), Some(volumes)) => {
                Ok(Self { volumes, checkpoints, summary, origin, ..snapshot })
            }
            _ => Err(Error::corrupt("snapshot: a section is missing")),
        }
    }

    /// Bytes that the snapshot added to storage, without the head and the snapshot object.
    pub fn stored_bytes(&self) -> u64 {
        self.volumes.iter().map(|volume| volume.stored_bytes).sum()
    }

    /// The bytes that each level accounted for, over all volumes.
    pub fn levels(&self) -> LevelBytes {
        let mut all = LevelBytes::default();
        self.volumes.iter().for_each(|volume| all.merge(&volume.levels));
        all
    }
}

fn decode_core(body: &mut Decoder<'_>) -> Result<Snapshot> {
    let (id, series) = (Id(body.u64()?), SeriesId(body.array()?));
    let (time_ns, duration_ms) = (body.i64()?, body.u64()?);
    let (has_parent, parent) = (body.u8()?, Id(body.u64()?));
    Ok(Snapshot {
        id,
        series,
        time_ns,
        duration_ms,
        parent: (has_parent != 0).then_some(parent),
        host: body.string()?,
        program: body.string()?,
        volumes: Vec::new(),
        checkpoints: Vec::new(),
        summary: None,
        origin: None,
    })
}

fn decode_checkpoint(item: &mut Decoder<'_>) -> Result<Checkpoint> {
    Ok(Checkpoint { volume: item.string()?, kind: item.string()?, id: item.string()? })
}

/// Decodes the volumes one by one. A volume of an unknown kind may be shorter than any known one,
/// so the count does not bound the memory that they need.
fn decode_volumes(body: &mut Decoder<'_>) -> Result<Vec<Volume>> {
    let mut volumes = Vec::new();
    for _ in 0..body.count(VOLUME_PREFIX_BYTES)? {
        volumes.push(Volume::decode(body)?);
    }
    Ok(volumes)
}

/// The required sections of a volume.
#[derive(Default)]
struct Found {
    disk: Option<(String, u64, String, String)>,
    map: Option<(Chunking, MapRoot)>,
}

impl Volume {
    /// The file tree, if the volume is one.
    pub fn tree(&self) -> Option<&Tree> {
        match &self.kind {
            VolumeKind::Disk => None,
            VolumeKind::Tree(tree) => Some(tree),
        }
    }

    /// Returns the size of a disk, or the total size of the files of a tree, in bytes. A file with
    /// several names counts for each.
    pub fn logical_bytes(&self) -> u64 {
        let Some(tree) = self.tree() else { return self.bytes };
        tree.root.subtree.as_ref().map_or(0, |below| below.bytes_below)
    }

    fn encode(&self, to: &mut Encoder) {
        to.u8(match &self.kind {
            VolumeKind::Disk => KIND_DISK,
            VolumeKind::Tree(_) => KIND_TREE,
        });
        let mut body = Encoder::default();
        self.encode_sections(&mut body);
        to.count(body.bytes.len());
        to.raw(&body.bytes);
    }

    fn encode_sections(&self, to: &mut Encoder) {
        to.section(DISK, REQUIRED, |to| {
            to.string(&self.name);
            to.u64(self.bytes);
            to.string(&self.source);
            to.string(&self.source_format);
        });
        to.section(MAP, REQUIRED, |to| {
            to.u8(KEYS_SEGMENTS);
            encode_chunking(self.chunking, to);
            self.root.encode(to);
        });
        to.section(COUNTED, 0, |to| {
            to.u64(self.stored_bytes);
            // A level added later is omitted if it is zero.
            let is_counted = |level: &Level| *level <= Level::New || self.levels.get(*level) > 0;
            let mut levels: Vec<Level> = Level::ALL.into_iter().filter(is_counted).collect();
            levels.sort_unstable();
            to.count(levels.len());
            for level in levels {
                to.u8(level as u8);
                to.u64(self.levels.get(level));
            }
        });
        if !self.unreadable.is_empty() {
            to.section(UNREADABLE, 0, |to| {
                to.count(self.unreadable.len());
                for span in &self.unreadable {
                    to.u64(span.offset);
                    to.u64(span.length);
                }
            });
        }
        if !self.backing.is_empty() {
            to.section(BACKING, 0, |to| to.strings(&self.backing));
        }
        if let Some(proof) = &self.map_proof {
            to.section(MAP_PROOF, 0, |to| {
                to.u64(proof.clean);
                to.u64(proof.compared);
                to.count(proof.compared_ns.len());
                proof.compared_ns.iter().for_each(|time_ns| to.i64(*time_ns));
            });
        }
        if let VolumeKind::Tree(tree) = &self.kind {
            to.section(TREE, REQUIRED, |to| tree.encode(to));
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let number = from.u8()?;
        if number != KIND_DISK && number != KIND_TREE {
            return Err(unsupported("snapshot", &format!("volume kind {number}")));
        }
        let length = from.u32()? as usize;
        let body = Decoder::new(from.take(length)?, "volume");
        let mut found = Found::default();
        let (mut stored_bytes, mut levels) = (0, LevelBytes::default());
        let (mut unreadable, mut backing, mut map_proof) = (Vec::new(), Vec::new(), None);
        let mut tree = None;
        body.sections(|tag, body| {
            match tag {
                DISK => {
                    let (name, bytes) = (body.string()?, body.u64()?);
                    found.disk = Some((name, bytes, body.string()?, body.string()?));
                }
                MAP => found.map = Some(decode_map(body)?),
                COUNTED => {
                    stored_bytes = body.u64()?;
                    levels = decode_levels(body)?;
                }
                UNREADABLE => unreadable = body.list(16, decode_span)?,
                BACKING => backing = body.strings()?,
                MAP_PROOF => map_proof = Some(decode_proof(body)?),
                TREE => tree = Some(Box::new(Tree::decode(body)?)),
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let (Some((name, bytes, source, source_format)), Some((chunking, root))) =
            (found.disk, found.map)
        else {
            return Err(Error::corrupt("volume: a section is missing"));
        };
        let root = root.check(bytes)?;
        let kind = match (number, tree) {
            (KIND_DISK, None) => VolumeKind::Disk,
            (KIND_TREE, Some(tree)) => VolumeKind::Tree(tree),
            _ => return Err(Error::corrupt("volume: its tree does not fit its kind")),
        };
        Ok(Self {
            kind,
            name,
            bytes,
            source,
            source_format,
            chunking,
            root,
            levels,
            stored_bytes,
            unreadable,
            backing,
            map_proof,
        })
    }
}

fn decode_map(body: &mut Decoder<'_>) -> Result<(Chunking, MapRoot)> {
    let keys = body.u8()?;
    if keys != KEYS_SEGMENTS {
        return Err(unsupported("volume", &format!("a map with keys of kind {keys}")));
    }
    Ok((decode_chunking(body)?, MapRoot::decode(body)?))
}

fn decode_proof(body: &mut Decoder<'_>) -> Result<MapProof> {
    let (clean, compared) = (body.u64()?, body.u64()?);
    let compared_ns = body.list(8, Decoder::i64)?;
    if compared_ns.is_empty() {
        return Err(body.corrupt("a map's proof has no times".to_owned()));
    }
    Ok(MapProof { clean, compared, compared_ns })
}

fn decode_span(item: &mut Decoder<'_>) -> Result<ByteSpan> {
    Ok(ByteSpan { offset: item.u64()?, length: item.u64()? })
}

fn decode_levels(body: &mut Decoder<'_>) -> Result<LevelBytes> {
    let mut levels = LevelBytes::default();
    for _ in 0..body.count(9)? {
        let (number, count) = (body.u8()?, body.u64()?);
        // Levels of newer programs are omitted from the sums.
        if let Some(level) = Level::ALL.into_iter().find(|level| *level as u8 == number) {
            levels.set(level, count);
        }
    }
    Ok(levels)
}
