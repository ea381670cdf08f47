//! The messages of the source.

use crate::codec::{Decoder, Encoder};
use crate::replica::{ORIGIN_BYTES, Origin, SEGMENTS_PER_MESSAGE_MAX, TreeStep};
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
