//! Dead lists: slots that no living snapshot refers to.

use crate::codec::{Decoder, Encoder, REQUIRED};
use crate::{Error, Result};

const RANGES: u16 = 1;

/// Maximum number of ranges in one object of a dead list.
pub const DEAD_RANGES_MAX: usize = 1 << 20;
/// Maximum number of objects of a dead list.
pub const DEAD_LIST_PARTS_MAX: u32 = 1 << 16;

/// Consecutive slots of one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeadRange {
    /// The container.
    pub container: u32,
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
}

impl DeadRange {
    /// All slots that a container may have.
    pub fn whole(container: u32) -> Self {
        Self { container, first: 0, last: u16::MAX }
    }

    /// The number of slots.
    pub fn slots(&self) -> u64 {
        u64::from(self.last) + 1 - u64::from(self.first)
    }
}

/// The stored form of a part of a dead list: ranges in ascending order that do not touch.
pub fn encode_dead_ranges(ranges: &[DeadRange]) -> Vec<u8> {
    let mut to = Encoder::default();
    to.section(RANGES, REQUIRED, |to| {
        to.count(ranges.len());
        for range in ranges {
            to.u32(range.container);
            to.u16(range.first);
            to.u16(range.last);
        }
    });
    to.bytes
}

/// Reads a part of a dead list.
pub fn decode_dead_ranges(bytes: &[u8]) -> Result<Vec<DeadRange>> {
    let mut ranges = None;
    Decoder::new(bytes, "dead list").sections(|tag, body| {
        if tag == RANGES {
            ranges = Some(body.list(8, |item| {
                let (container, first) = (item.u32()?, item.u16()?);
                Ok(DeadRange { container, first, last: item.u16()? })
            })?);
        }
        Ok(tag == RANGES)
    })?;
    let ranges = ranges.ok_or_else(|| Error::corrupt("dead list: it has no ranges"))?;
    let ordered = ranges.windows(2).all(|pair| {
        (pair[0].container, u32::from(pair[0].last) + 1)
            < (pair[1].container, u32::from(pair[1].first))
    });
    if !ordered || ranges.iter().any(|range| range.first > range.last) {
        return Err(Error::corrupt("dead list: its ranges are out of order"));
    }
    Ok(ranges)
}
