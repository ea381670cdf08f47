//! The locations of stored chunks and metadata blocks.

use std::fmt;
use std::ops::RangeInclusive;

use crate::codec::{Decoder, Encoder};
use crate::{ContentHash, Error, ObjectTag, Result};

/// The store number of a series' own private store in its head's store table.
pub const PRIVATE_STORE: u16 = 0;

/// The store number of the domain's shared store in a series' table.
pub const SHARED_STORE: u16 = 1;

/// The store number of the first storage node; the numbers from here on are those of nodes.
pub const FIRST_NODE: u16 = 2;

/// The location of a chunk: store (16 bits, resolved by the head's table), container (32), slot
/// (16).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference(u64);

impl Reference {
    /// Means a chunk of zeros, which is never stored.
    pub const ZERO: Self = Self(u64::MAX);

    /// Returns the reference to `slot` of `container` in `store`.
    pub const fn new(store: u16, container: u32, slot: u16) -> Self {
        Self((store as u64) << 48 | (container as u64) << 16 | slot as u64)
    }
    /// Decodes the stored form.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
    /// The stored form.
    pub const fn bits(self) -> u64 {
        self.0
    }
    /// Returns whether this means zeros.
    pub fn is_zero(self) -> bool {
        self == Self::ZERO
    }
    /// The store's number in the head's table.
    pub const fn store(self) -> u16 {
        let bytes = self.0.to_le_bytes();
        u16::from_le_bytes([bytes[6], bytes[7]])
    }
    /// The container's number in its store.
    pub const fn container(self) -> u32 {
        let bytes = self.0.to_le_bytes();
        u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]])
    }
    /// The chunk's slot in its container.
    pub const fn slot(self) -> u16 {
        let bytes = self.0.to_le_bytes();
        u16::from_le_bytes([bytes[0], bytes[1]])
    }
    /// Returns whether `next` is the next slot of the same container.
    pub fn precedes(self, next: Self) -> bool {
        self.slot() < u16::MAX && next.0 == self.0 + 1
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("zero");
        }
        write!(f, "{}:{:08x}:{}", self.store(), self.container(), self.slot())
    }
}

/// The location of a metadata block (recipe or map page), a byte range of a recipe pack, and its
/// content hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockRef {
    /// The pack's number in its series.
    pub pack: u32,
    /// Offset of the sealed block in the pack, in bytes.
    pub offset: u32,
    /// Size of the sealed block in bytes.
    pub length: u32,
    /// The hash of its kind and plain bytes, so that another block is not mistaken for it.
    pub hash: ContentHash,
}

impl BlockRef {
    /// Size of the stored form in bytes.
    pub(crate) const BYTES: usize = 28;

    pub(crate) fn encode(self, to: &mut Encoder) {
        to.u32(self.pack);
        to.u32(self.offset);
        to.u32(self.length);
        to.raw(&self.hash.0);
    }
    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let (pack, offset, length) = (from.u32()?, from.u32()?, from.u32()?);
        Ok(Self { pack, offset, length, hash: ContentHash(from.array()?) })
    }
}

/// A range of numbered objects with one tag, as listed in heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectRange {
    /// The first number.
    pub first: u32,
    /// Number of objects, at least one.
    pub count: u32,
    /// The tag of the session that wrote them.
    pub tag: ObjectTag,
}

/// The number of objects in the range.
const NUMBERS: u64 = 1 << 32;

impl ObjectRange {
    /// The last number plus one.
    fn end(&self) -> u64 {
        u64::from(self.first) + u64::from(self.count)
    }
    /// The range of numbers, which must not be empty.
    pub fn numbers(&self) -> RangeInclusive<u32> {
        self.first..=self.first.saturating_add(self.count - 1)
    }
}

/// A sorted set of numbered objects with their tags.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectSet(Vec<ObjectRange>);

impl ObjectSet {
    /// The ranges in ascending order.
    pub fn ranges(&self) -> &[ObjectRange] {
        &self.0
    }
    /// The number of objects in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|range| u64::from(range.count)).sum()
    }
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Returns the tag of object `number`, if it is in the set.
    pub fn tag(&self, number: u32) -> Option<ObjectTag> {
        let at = self.0.partition_point(|range| range.first <= number);
        let range = self.0.get(at.checked_sub(1)?)?;
        (number - range.first < range.count).then_some(range.tag)
    }
    /// The greatest number plus one; 0 if the set is empty.
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, |range| range.first + range.count)
    }
    /// Returns whether the set equals `before` below `from`, and is empty from `to` on.
    pub(crate) fn extends(&self, before: &Self, from: u32, to: u32) -> bool {
        self.end() <= to && self.below(from) == before.below(u32::MAX)
    }
    /// Returns the objects below `end`, in as few ranges as possible.
    fn below(&self, end: u32) -> Vec<ObjectRange> {
        let mut below: Vec<ObjectRange> = Vec::new();
        for range in self.0.iter().filter(|range| range.first < end && range.count > 0) {
            let count = range.count.min(end - range.first);
            match below.last_mut() {
                Some(last) if last.first + last.count == range.first && last.tag == range.tag => {
                    last.count += count;
                }
                _ => below.push(ObjectRange { count, ..*range }),
            }
        }
        below
    }
    /// Adds `number`, which must be greater than all numbers in the set.
    pub fn push(&mut self, number: u32, tag: ObjectTag) {
        if let Some(last) = self.0.last_mut() {
            let end = last.end();
            assert!(u64::from(number) >= end, "object numbers are added in ascending order");
            // A range of all 2^32 numbers would overflow the count.
            if u64::from(number) == end && tag == last.tag && last.count < u32::MAX {
                last.count += 1;
                return;
            }
        }
        self.0.push(ObjectRange { first: number, count: 1, tag });
    }
    /// Every number with its tag, ascending.
    ///
    /// A damaged or forged set may have 2^32 numbers: check its size before iterating.
    pub fn iter(&self) -> impl Iterator<Item = (u32, ObjectTag)> + '_ {
        self.0.iter().flat_map(|range| range.numbers().map(|number| (number, range.tag)))
    }
    /// Returns whether the set has every number of `other` with the same tag. Takes time linear in
    /// the number of ranges of both.
    pub fn has_all_of(&self, other: &Self) -> bool {
        let mut mine = self.0.iter().peekable();
        other.0.iter().all(|theirs| {
            let mut from = u64::from(theirs.first);
            while from < theirs.end() {
                while mine.next_if(|range| range.end() <= from).is_some() {}
                match mine.peek() {
                    Some(range) if u64::from(range.first) <= from && range.tag == theirs.tag => {
                        from = range.end();
                    }
                    _ => return false,
                }
            }
            true
        })
    }
    pub(crate) fn encode(&self, to: &mut Encoder) {
        to.count(self.0.len());
        for range in &self.0 {
            to.u32(range.first);
            to.u32(range.count);
            to.u64(range.tag.bits());
        }
    }
    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let ranges = from.list(16, |item| {
            let (first, count) = (item.u32()?, item.u32()?);
            Ok(ObjectRange { first, count, tag: ObjectTag::from_bits(item.u64()?) })
        })?;
        let mut end = 0;
        for range in &ranges {
            if u64::from(range.first) < end || range.count == 0 || range.end() > NUMBERS {
                return Err(Error::corrupt("a set of objects is out of order"));
            }
            end = range.end();
        }
        Ok(Self(ranges))
    }
}
