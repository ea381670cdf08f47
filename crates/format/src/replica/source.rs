//! The messages of the source.

use crate::codec::{Decoder, Encoder};
use crate::replica::{
    DELTA_BASE_BYTES_MAX, DELTA_BASES_MAX, DELTA_BYTES_MAX, ORIGIN_BYTES, Origin,
    SEGMENTS_PER_MESSAGE_MAX, TreeStep,
};
use crate::{Recipe, Result, SIGNATURES, SegmentDigest, Signatures, Snapshot};

const ASK: u8 = 1;
const BEGIN: u8 = 2;
const SEGMENTS: u8 = 3;
const CHUNKS: u8 = 4;
const DATA: u8 = 5;
const STEPS: u8 = 6;
const END: u8 = 7;
const COMMIT: u8 = 8;
const ABORT: u8 = 9;
const BYE: u8 = 10;
const FRAME: u8 = 11;
const DELTA: u8 = 12;

const ZEROS: u8 = 0;
const PARENT: u8 = 1;
const SEGMENT: u8 = 2;

/// The snapshot that a source is going to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The series at the replica.
    pub series: String,
    /// The domain of the series.
    pub domain: u32,
    /// The snapshot's labels.
    pub labels: Vec<String>,
    /// The snapshot that it is a copy of.
    pub origin: Origin,
    /// The snapshot as it is at the source. References and sums of it are not used.
    pub snapshot: Snapshot,
}

/// Segments of a volume, in the order of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Described {
    /// This many segments of zeros.
    Zeros(u64),
    /// This many segments as in the parent, at the same place.
    Parent(u64),
    /// A segment with this digest and these signatures.
    Segment(SegmentDigest, Signatures),
}

/// A range of the parent's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaBase {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its size in bytes, at least 1.
    pub length: u32,
}

/// Chunks that were asked for, by what they have in common with the parent's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkDelta {
    /// Size of the chunks in bytes.
    pub bytes: u32,
    /// Ranges of the parent's volume: what they hold, one after the other, is the base.
    pub bases: Vec<DeltaBase>,
    /// A zstd frame of the chunks whose window begins with the base.
    pub frame: Vec<u8>,
}

impl ChunkDelta {
    /// Size of the base in bytes.
    pub fn base_bytes(&self) -> u64 {
        self.bases.iter().map(|base| u64::from(base.length)).sum()
    }

    fn encode(&self, to: &mut Encoder) {
        to.u32(self.bytes);
        to.count(self.bases.len());
        for base in &self.bases {
            to.u64(base.offset);
            to.u32(base.length);
        }
        to.raw(&self.frame);
    }

    /// Fails with `Corrupt` for more than a delta may have of anything.
    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let bytes = from.u32()?;
        let bases =
            from.list(12, |item| Ok(DeltaBase { offset: item.u64()?, length: item.u32()? }))?;
        let delta = Self { bytes, bases, frame: from.take(from.rest_len())?.to_vec() };
        let is_empty = |base: &DeltaBase| {
            base.length == 0 || base.offset.checked_add(u64::from(base.length)).is_none()
        };
        let is_bounded = (1..=DELTA_BYTES_MAX).contains(&bytes)
            && (1..=DELTA_BASES_MAX).contains(&delta.bases.len())
            && delta.base_bytes() <= u64::from(DELTA_BASE_BYTES_MAX);
        if !is_bounded || delta.bases.iter().any(is_empty) {
            return Err(from.corrupt("a delta that is too large, or of nothing"));
        }
        Ok(delta)
    }
}

/// A message of the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceMessage {
    /// Asks which snapshots of a series the replica has. The answer is `Known`.
    Ask {
        /// The series at the replica.
        series: String,
    },
    /// Begins a snapshot. The answer is `Ready` or `Failed`.
    Begin(Box<Begin>),
    /// The next segments of the volume. The answer is `Need`.
    Segments(Vec<Described>),
    /// The chunks of a segment, of which only zero or not zero, lengths and fingerprints count. The
    /// answer is `Want`.
    Chunks {
        /// The segment's number in the volume.
        segment: u64,
        /// Its recipe in the stored form.
        recipe: Vec<u8>,
    },
    /// Bytes of the chunks that were asked for, in the order in which they were asked for.
    Data(Vec<u8>),
    /// The same as a frame that the source has stored: a block that decodes to whole chunks that
    /// were asked for. A replica may store it as it is.
    Frame(Vec<u8>),
    /// The same as a delta, from version 2 of the protocol on.
    Delta(ChunkDelta),
    /// Entries of a file tree, after its segments.
    Steps(Vec<TreeStep>),
    /// The volume has no more segments, or the tree no more steps.
    End,
    /// The snapshot is complete. The answer is `Committed` or `Failed`.
    Commit,
    /// The snapshot will not be completed.
    Abort,
    /// Ends the connection.
    Bye,
}

impl SourceMessage {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        match self {
            Self::Ask { series } => {
                to.u8(ASK);
                to.string(series);
            }
            Self::Begin(begin) => {
                to.u8(BEGIN);
                to.string(&begin.series);
                to.u32(begin.domain);
                to.strings(&begin.labels);
                begin.origin.encode(&mut to);
                to.raw(&begin.snapshot.encode());
            }
            Self::Segments(segments) => {
                to.u8(SEGMENTS);
                to.count(segments.len());
                segments.iter().for_each(|segment| segment.encode(&mut to));
            }
            Self::Chunks { segment, recipe } => {
                to.u8(CHUNKS);
                to.u64(*segment);
                to.raw(recipe);
            }
            Self::Data(bytes) => {
                to.u8(DATA);
                to.raw(bytes);
            }
            Self::Frame(block) => {
                to.u8(FRAME);
                to.raw(block);
            }
            Self::Delta(delta) => {
                to.u8(DELTA);
                delta.encode(&mut to);
            }
            Self::Steps(steps) => {
                to.u8(STEPS);
                to.count(steps.len());
                steps.iter().for_each(|step| step.encode(&mut to));
            }
            Self::End => to.u8(END),
            Self::Commit => to.u8(COMMIT),
            Self::Abort => to.u8(ABORT),
            Self::Bye => to.u8(BYE),
        }
        to.bytes
    }

    /// Decodes a message.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "message of a replication's source");
        let message = match from.u8()? {
            ASK => Self::Ask { series: from.string()? },
            BEGIN => {
                let (series, domain) = (from.string()?, from.u32()?);
                let (labels, origin) = (from.strings()?, Origin::decode(&mut from)?);
                let snapshot = Snapshot::decode(from.take(from.rest_len())?)?;
                Self::Begin(Box::new(Begin { series, domain, labels, origin, snapshot }))
            }
            SEGMENTS => {
                let segments = from.list(1, Described::decode)?;
                if segments.len() > SEGMENTS_PER_MESSAGE_MAX {
                    return Err(from.corrupt(format!("{} segments at once", segments.len())));
                }
                Self::Segments(segments)
            }
            CHUNKS => {
                let segment = from.u64()?;
                let recipe = from.take(from.rest_len())?;
                // What is not a recipe is refused here.
                Recipe::decode(recipe)?;
                Self::Chunks { segment, recipe: recipe.to_vec() }
            }
            DATA => Self::Data(from.take(from.rest_len())?.to_vec()),
            FRAME => Self::Frame(from.take(from.rest_len())?.to_vec()),
            DELTA => Self::Delta(ChunkDelta::decode(&mut from)?),
            STEPS => Self::Steps(from.list(1, TreeStep::decode)?),
            END => Self::End,
            COMMIT => Self::Commit,
            ABORT => Self::Abort,
            BYE => Self::Bye,
            other => return Err(from.corrupt(format!("a message of kind {other}"))),
        };
        from.end()?;
        Ok(message)
    }
}

impl Described {
    fn encode(&self, to: &mut Encoder) {
        match self {
            Self::Zeros(count) => {
                to.u8(ZEROS);
                to.u64(*count);
            }
            Self::Parent(count) => {
                to.u8(PARENT);
                to.u64(*count);
            }
            Self::Segment(digest, signatures) => {
                to.u8(SEGMENT);
                to.u8(digest.kind);
                to.raw(&digest.bytes);
                signatures.0.iter().for_each(|signature| to.u32(*signature));
            }
        }
    }

    fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        match from.u8()? {
            ZEROS => Ok(Self::Zeros(from.u64()?)),
            PARENT => Ok(Self::Parent(from.u64()?)),
            SEGMENT => {
                let digest = SegmentDigest { kind: from.u8()?, bytes: from.array()? };
                let mut signatures = [0; SIGNATURES];
                for signature in &mut signatures {
                    *signature = from.u32()?;
                }
                Ok(Self::Segment(digest, Signatures(signatures)))
            }
            other => Err(from.corrupt(format!("a segment of kind {other}"))),
        }
    }
}

const _: () = assert!(ORIGIN_BYTES == 24);
