//! Decides whether a changed-blocks map can be trusted, and which segments must be read.

use std::collections::HashSet;
use std::ops::Range;

use silt_chunking::is_zero;
use silt_format::number::{to_u64, to_usize};
use silt_format::{ByteSpan, MapProof, Result, SEGMENT_BYTES, Volume, segment_count};
use silt_repository::env::Context;
use silt_repository::objects::is_damage;
use silt_source::{ChangedMap, VolumeSource};

use super::feed::read_or_mark;
use super::parent::ParentVolume;
use super::scan::{ScanBuffers, Scanner};

/// One in this many clean segments is compared, chosen at random.
const SAMPLE_ONE_IN: u64 = 200;
/// In addition, each backup compares one in this many, in turns. After this number of backups,
/// every segment has been read or compared.
const TURNS: usize = 30;
const SAMPLES_MIN: u64 = 8;
const SAMPLES_MAX: u64 = 256;

/// The segments that need not be read: clean by the map, and readable in the parent.
pub(crate) struct CleanSegments<'a> {
    map: &'a ChangedMap,
    /// Segments that could not be read last time.
    rescan: HashSet<u64>,
    segments: u64,
}

/// The result of checking a map.
pub(crate) enum MapCheck<'a> {
    /// The compared segments agree with the map.
    Trusted(CleanSegments<'a>, MapProof),
    /// The map cannot be used, for this reason, which is not an error.
    Unusable(String),
    /// A segment has changed that the map calls clean: its range in bytes, and the time since which
    /// it may have been wrong.
    Wrong(Range<u64>, Option<i64>),
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

    /// Returns whether the parent's entry of a segment is reused without reading the segment.
    pub(crate) fn is_clean(&self, segment: u64) -> bool {
        !self.map.is_changed(segment) && !self.rescan.contains(&segment)
    }

    /// Returns the segments that a scan found equal to the parent's; `None` if the parent's map
    /// cannot be read.
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

    /// Reads a random sample of clean segments, the first one, and those whose turn it is, and
    /// compares them with the parent, which is `volume` of a snapshot of `parent_ns`. `now_ns` is
    /// the time of this one.
    ///
    /// A map that misses a share p of the clean segments passes n samples with probability (1-p)^n.
    pub(crate) fn check(
        map: &'a ChangedMap,
        source: &dyn VolumeSource,
        (volume, parent_ns): (&Volume, i64),
        scanner: &Scanner,
        context: &Context,
        now_ns: i64,
    ) -> Result<MapCheck<'a>> {
        let Some(parent) = &scanner.parent else {
            return Ok(MapCheck::Unusable("there is nothing to compare with".to_owned()));
        };
        let volume_bytes = volume.bytes;
        // Every page must be readable now: clean segments are not read later.
        match parent.reader.walk(parent.root, &mut |_, _| Ok(())) {
            Err(error) if is_damage(&error) => return Ok(MapCheck::Unusable(error.to_string())),
            other => other?,
        }
        let clean = Self::new(map, volume_bytes, &volume.unreadable);
        let (mut buffer, mut buffers) = (Vec::new(), ScanBuffers::new());
        let (proof, turn) = Self::next_turn(volume, parent_ns, now_ns);
        let (samples, count) = clean.samples(context, turn);
        let compared = to_u64(samples.len());
        for segment in samples {
            context.check_interrupted()?;
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
                let since = volume.map_proof.as_ref().map(|_| proof.since_ns());
                return Ok(MapCheck::Wrong(start..start + length, since));
            }
        }
        let mut proof = MapProof { clean: count, compared, ..proof };
        proof.compared_ns[turn] = now_ns;
        Ok(MapCheck::Trusted(clean, proof))
    }

    /// Returns the times when the segments of each turn were last compared, from the parent, and
    /// the next turn: the one with the earliest time.
    fn next_turn(volume: &Volume, parent_ns: i64, now_ns: i64) -> (MapProof, usize) {
        let known = volume.map_proof.as_ref().map(|proof| &proof.compared_ns);
        let compared_ns = match known {
            Some(known) if known.len() == TURNS => known.clone(),
            // Written by a program with another number of turns.
            Some(known) => vec![known.iter().copied().min().unwrap_or(parent_ns); TURNS],
            // The parent read the whole volume.
            None => vec![parent_ns.min(now_ns); TURNS],
        };
        let turn = (0..TURNS).min_by_key(|turn| compared_ns[*turn]).unwrap_or(0);
        (MapProof { clean: 0, compared: 0, compared_ns }, turn)
    }

    /// Returns the segments to compare, which are the first clean one, some at random, and those of
    /// this turn; and the number of clean segments.
    fn samples(&self, context: &Context, turn: usize) -> (Vec<u64>, u64) {
        let clean = (0..self.segments).filter(|segment| self.is_clean(*segment));
        let count = to_u64(clean.clone().count());
        if count == 0 {
            return (Vec::new(), 0);
        }
        let wanted = (count / SAMPLE_ONE_IN).clamp(SAMPLES_MIN, SAMPLES_MAX).min(count);
        let mut ranks: Vec<u64> =
            (1..wanted).map(|_| u64::from_le_bytes(context.random()) % count).collect();
        ranks.push(0);
        ranks.sort_unstable();
        ranks.dedup();
        let mut ranks = ranks.into_iter().peekable();
        let chosen = (0..).zip(clean).filter(|(rank, segment)| {
            let is_drawn = ranks.next_if_eq(rank).is_some();
            is_drawn || segment % to_u64(TURNS) == to_u64(turn)
        });
        (chosen.map(|(_, segment)| segment).collect(), count)
    }
}
