//! Whether a changed-blocks map can be believed, and what it leaves to be read.

use std::collections::HashSet;

use silt_chunking::is_zero;
use silt_format::number::{to_u64, to_usize};
use silt_format::{ByteSpan, Result, SEGMENT_BYTES, segment_count};
use silt_source::{ChangedMap, VolumeSource};

use super::feed::read_or_mark;
use super::scan::{ParentVolume, ScanBuffers, Scanner};
use crate::env::Context;
use crate::objects::is_damage;

/// The share of clean segments that is read and compared: one in so many.
const SAMPLE_ONE_IN: u64 = 200;
const SAMPLES_MIN: u64 = 8;
const SAMPLES_MAX: u64 = 256;

/// The segments that need not be read: clean by the map, and whole in the parent.
pub(crate) struct CleanSegments<'a> {
    map: &'a ChangedMap,
    /// Segments that could not be read last time.
    rescan: HashSet<u64>,
    segments: u64,
}

/// What came of checking a map.
pub(crate) enum MapCheck<'a> {
    /// The samples were as the map says.
    Trusted(CleanSegments<'a>),
    /// It can't be used, for a reason that is nobody's fault.
    Unusable(String),
    /// A segment that it calls clean has changed.
    Wrong(String),
}

impl<'a> CleanSegments<'a> {
    fn new(map: &'a ChangedMap, volume_bytes: u64, unreadable: &[ByteSpan]) -> Self {
        let segment = to_u64(SEGMENT_BYTES);
        let rescan = unreadable.iter().flat_map(|span| {
            let end = span.offset.saturating_add(span.length);
            span.offset / segment..end.div_ceil(segment)
        });
        Self { map, rescan: rescan.collect(), segments: segment_count(volume_bytes) }
    }

    /// Whether the parent's entry of a segment is taken over unseen.
    pub(crate) fn is_clean(&self, segment: u64) -> bool {
        !self.map.is_changed(segment) && !self.rescan.contains(&segment)
    }

    /// The segments that a scan has found to be as in the parent, or `None` if the parent's map can't
    /// be read.
    pub(crate) fn scanned(
        map: &'a ChangedMap,
        volume_bytes: u64,
        parent: &ParentVolume,
    ) -> Result<Option<Self>> {
        match parent.reader.walk(parent.root, &mut |_, _| Ok(())) {
            Err(error) if is_damage(&error) => Ok(None),
            other => other.map(|()| Some(Self::new(map, volume_bytes, &[]))),
        }
    }

    /// Reads a random sample of clean segments, and the first one, and compares them with the parent.
    ///
    /// A map that misses a share p of the clean segments passes n samples with probability (1-p)^n.
    pub(crate) fn check(
        map: &'a ChangedMap,
        source: &dyn VolumeSource,
        volume_bytes: u64,
        parent: &ParentVolume,
        unreadable: &[ByteSpan],
        scanner: &Scanner,
        context: &Context,
    ) -> Result<MapCheck<'a>> {
        // Every page must be readable now: clean segments are not read later.
        match parent.reader.walk(parent.root, &mut |_, _| Ok(())) {
            Err(error) if is_damage(&error) => return Ok(MapCheck::Unusable(error.to_string())),
            other => other?,
        }
        let clean = Self::new(map, volume_bytes, unreadable);
        let (mut buffer, mut buffers) = (Vec::new(), ScanBuffers::new());
        for segment in clean.samples(context) {
            let start = segment * to_u64(SEGMENT_BYTES);
            let length = (volume_bytes - start).min(to_u64(SEGMENT_BYTES));
            buffer.resize(to_usize(length), 0);
            if read_or_mark(source, start, &mut buffer, &mut Vec::new()).is_some() {
                return Ok(MapCheck::Unusable(format!("bytes at {start} cannot be read")));
            }
            let same = match parent.reader.entry(parent.root, segment)? {
                None => is_zero(&buffer),
                Some(entry) => scanner.digest(&buffer, &mut buffers).0 == entry.digest,
            };
            if !same {
                return Ok(MapCheck::Wrong(format!(
                    "bytes {start}..{} have changed, the map says they have not",
                    start + length
                )));
            }
        }
        Ok(MapCheck::Trusted(clean))
    }

    /// The first clean segment and others at random.
    fn samples(&self, context: &Context) -> Vec<u64> {
        let clean = (0..self.segments).filter(|segment| self.is_clean(*segment));
        let count = to_u64(clean.clone().count());
        if count == 0 {
            return Vec::new();
        }
        let wanted = (count / SAMPLE_ONE_IN).clamp(SAMPLES_MIN, SAMPLES_MAX).min(count);
        let mut ranks: Vec<u64> =
            (1..wanted).map(|_| u64::from_le_bytes(context.random()) % count).collect();
        ranks.push(0);
        ranks.sort_unstable();
        ranks.dedup();
        let mut ranks = ranks.into_iter().peekable();
        let chosen = (0..).zip(clean).filter(|(rank, _)| ranks.next_if_eq(rank).is_some());
        chosen.map(|(_, segment)| segment).collect()
    }
}
