//! The messages of the replica.

use crate::codec::{Decoder, Encoder};
use crate::replica::{KNOWN_SNAPSHOTS_MAX, ORIGIN_BYTES, Origin};
use crate::{ErrorKind, Id, Result};

const KNOWN: u8 = 1;
const READY: u8 = 2;
const NEED: u8 = 3;
const WANT: u8 = 4;
const PLACED: u8 = 5;
const COMMITTED: u8 = 6;
const FAILED: u8 = 7;

/// Consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The first number.
    pub first: u64,
    /// How many.
    pub count: u64,
}

impl Span {
    /// Adds a number, greater than all before it, to spans in ascending order.
    pub fn push(spans: &mut Vec<Self>, number: u64) {
        match spans.last_mut() {
            Some(last) if last.first + last.count == number => last.count += 1,
            _ => spans.push(Self { first: number, count: 1 }),
        }
    }

    /// The numbers.
    pub fn numbers(&self) -> std::ops::Range<u64> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// A snapshot that a replica has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownSnapshot {
    /// The snapshot that it is a copy of; a backup that was made there has itself.
    pub origin: Origin,
    /// When the backup began, in nanoseconds since 1970.
    pub time_ns: i64,
    /// Whether it was deleted and can still be brought back.
    pub is_deleted: bool,
}

/// A message of the replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaMessage {
    /// The snapshots of a series, in the order of its head.
    Known(Vec<KnownSnapshot>),
    /// The replica is ready for a snapshot, and compares it with this one.
    Ready {
        /// The parent.
        parent: Option<Origin>,
    },
    /// The segments whose chunks the replica needs, of those that were described last.
    Need(Vec<Span>),
    /// The chunks of a segment that the replica lacks.
    Want {
        /// The segment's number in the volume.
        segment: u64,
        /// Numbers of chunks in the segment.
        chunks: Vec<Span>,
    },
    /// Segments of the volume before this one are in the replica.
    Placed {
        /// A segment's number in the volume.
        end: u64,
    },
    /// The snapshot is committed.
    Committed {
        /// Its id at the replica.
        snapshot: Id,
        /// The generation of the head that names it.
        generation: u64,
        /// Bytes that it added to the replica's storage.
        stored_bytes: u64,
    },
    /// The replica does not take the snapshot. It ignores messages until the next `Begin`, `Ask` or
    /// `Bye`.
    Failed {
        /// What can be done about it.
        kind: ErrorKind,
        /// The error.
        message: String,
    },
}

impl ReplicaMessage {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        match self {
            Self::Known(known) => {
                to.u8(KNOWN);
                to.count(known.len());
                for snapshot in known {
                    snapshot.origin.encode(&mut to);
                    to.i64(snapshot.time_ns);
                    to.u8(u8::from(snapshot.is_deleted));
                }
            }
            Self::Ready { parent } => {
                to.u8(READY);
                to.u8(u8::from(parent.is_some()));
                if let Some(parent) = parent {
                    parent.encode(&mut to);
                }
            }
            Self::Need(segments) => {
                to.u8(NEED);
                encode_spans(segments, &mut to);
            }
            Self::Want { segment, chunks } => {
                to.u8(WANT);
                to.u64(*segment);
                encode_spans(chunks, &mut to);
            }
            Self::Placed { end } => {
                to.u8(PLACED);
                to.u64(*end);
            }
            Self::Committed { snapshot, generation, stored_bytes } => {
                to.u8(COMMITTED);
                to.u64(snapshot.0);
                to.u64(*generation);
                to.u64(*stored_bytes);
            }
            Self::Failed { kind, message } => {
                to.u8(FAILED);
                to.u8(kind_number(*kind));
                to.string(message);
            }
        }
        to.bytes
    }

    /// Decodes a message.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "message of a replica");
        let message = match from.u8()? {
            KNOWN => {
                let known = from.list(ORIGIN_BYTES + 9, |item| {
                    Ok(KnownSnapshot {
                        origin: Origin::decode(item)?,
                        time_ns: item.i64()?,
                        is_deleted: item.u8()? != 0,
                    })
                })?;
                if known.len() > KNOWN_SNAPSHOTS_MAX {
                    return Err(from.corrupt(format!("{} snapshots", known.len())));
                }
                Self::Known(known)
            }
            READY => {
                let has_parent = from.u8()? != 0;
                let parent = if has_parent { Some(Origin::decode(&mut from)?) } else { None };
                Self::Ready { parent }
            }
            NEED => Self::Need(decode_spans(&mut from)?),
            WANT => Self::Want { segment: from.u64()?, chunks: decode_spans(&mut from)? },
            PLACED => Self::Placed { end: from.u64()? },
            COMMITTED => Self::Committed {
                snapshot: Id(from.u64()?),
                generation: from.u64()?,
                stored_bytes: from.u64()?,
            },
            FAILED => {
                let kind = kind_of(from.u8()?);
                Self::Failed { kind, message: from.string()? }
            }
            other => return Err(from.corrupt(format!("a message of kind {other}"))),
        };
        from.end()?;
        Ok(message)
    }
}

fn encode_spans(spans: &[Span], to: &mut Encoder) {
    to.count(spans.len());
    for span in spans {
        to.u64(span.first);
        to.u64(span.count);
    }
}

/// Spans in ascending order that do not touch.
fn decode_spans(from: &mut Decoder<'_>) -> Result<Vec<Span>> {
    let spans = from.list(16, |item| Ok(Span { first: item.u64()?, count: item.u64()? }))?;
    let mut end = None;
    for span in &spans {
        let is_behind = end.is_none_or(|end| span.first > end);
        let Some(next) = span.first.checked_add(span.count).filter(|_| is_behind) else {
            return Err(from.corrupt("its numbers are not in order"));
        };
        if span.count == 0 {
            return Err(from.corrupt("a span of nothing"));
        }
        end = Some(next);
    }
    Ok(spans)
}

/// The kinds of errors, whose places here are their numbers on the wire.
const KINDS: [ErrorKind; 12] = [
    ErrorKind::NotFound,
    ErrorKind::AlreadyExists,
    ErrorKind::Conflict,
    ErrorKind::Corrupt,
    ErrorKind::Unavailable,
    ErrorKind::Denied,
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
    ErrorKind::Busy,
    ErrorKind::WrongPassword,
    ErrorKind::NoRepository,
    ErrorKind::Interrupted,
];

pub(super) fn kind_number(kind: ErrorKind) -> u8 {
    let place = KINDS.iter().position(|known| *known == kind);
    place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX)
}

pub(super) fn kind_of(number: u8) -> ErrorKind {
    KINDS.get(usize::from(number)).copied().unwrap_or(ErrorKind::Unavailable)
}
