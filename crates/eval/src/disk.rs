//! A machine's disk on one day of a trace, as a volume that the product backs up.

use std::collections::BTreeMap;

use silt_format::{BLOCK_BYTES, Result, SEGMENT_BYTES};
use silt_source::{ChangedMap, Extent, ExtentKind, SourceFormat, SourceInfo, VolumeSource};

use crate::trace::{Day, Machine, Print};

const SEGMENT: u64 = SEGMENT_BYTES as u64;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// A disk: a chunk is its fingerprint of the trace, followed by zeros.
#[derive(Clone)]
pub struct Disk<'t> {
    segments: BTreeMap<u64, &'t [Print]>,
    bytes: u64,
}

impl<'t> Disk<'t> {
    /// The disk before its first day, as large as it is on all of them.
    pub fn of(machine: &Machine) -> Self {
        let places = machine.days.iter().flat_map(|day| day.changed.keys());
        let segments = places.max().map_or(1, |last| u64::from(*last) + 1);
        Self { segments: BTreeMap::new(), bytes: segments * SEGMENT }
    }

    /// Makes the changes of a day.
    pub fn change(&mut self, day: &'t Day) {
        let changed = day.changed.iter();
        self.segments.extend(changed.map(|(place, segment)| (u64::from(*place), &**segment)));
    }

    /// The dirty bits of a day.
    pub fn changed_map(&self, day: &Day) -> Result<ChangedMap> {
        let changed: Vec<u64> = day.changed.keys().map(|place| u64::from(*place)).collect();
        ChangedMap::of_grains(self.bytes, SEGMENT, &changed)
    }

    fn chunk(&self, offset: u64) -> Print {
        let segment = self.segments.get(&(offset / SEGMENT));
        let place = usize::try_from(offset % SEGMENT / BLOCK).unwrap_or(0);
        segment.and_then(|segment| segment.get(place).copied()).unwrap_or(0)
    }
}

impl VolumeSource for Disk<'_> {
    fn info(&self) -> SourceInfo {
        let (description, format) = ("a trace".to_owned(), SourceFormat::Raw);
        SourceInfo { description, format, size: Some(self.bytes), backing: Vec::new() }
    }

    fn is_sequential(&self) -> bool {
        false
    }

    fn extent_at(&self, offset: u64) -> Result<Extent> {
        let holds = |segment: u64| self.segments.get(&segment).is_some_and(|s| !s.is_empty());
        let kind = if holds(offset / SEGMENT) { ExtentKind::Data } else { ExtentKind::Zero };
        Ok(Extent { offset, length: SEGMENT - offset % SEGMENT, kind })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
        let length = buf.len().min(left);
        let skipped = usize::try_from(offset % BLOCK).unwrap_or(0);
        let mut rest = &mut buf[..length];
        let mut at = offset - offset % BLOCK;
        let mut skip = skipped;
        while !rest.is_empty() {
            let (now, later) = rest.split_at_mut(rest.len().min(BLOCK_BYTES - skip));
            let bytes = self.chunk(at).to_le_bytes();
            now.fill(0);
            for (byte, print) in now.iter_mut().zip(bytes.into_iter().skip(skip)) {
                *byte = print;
            }
            (rest, at, skip) = (later, at + BLOCK, 0);
        }
        Ok(length)
    }
}
