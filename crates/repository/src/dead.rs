//! Sets of dead slots: ranges in order, in memory and in storage.

use silt_format::number::to_u16;
use silt_format::{
    DEAD_RANGES_MAX, DeadListRef, DeadRange, Hashed, Id, ObjectKind, PRIVATE_STORE, Reference,
    Result, ResultExt, SeriesId, decode_dead_ranges, encode_dead_ranges, names,
};

use crate::hashes::PartHashes;
use crate::objects::{Address, Objects};

/// Slots of a series' containers, as ranges in ascending order that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeadSlots(Vec<DeadRange>);

impl DeadSlots {
    /// The set of all that `ranges` hold.
    pub fn of(mut ranges: Vec<DeadRange>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<DeadRange> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last)
                    if last.container == range.container
                        && u32::from(range.first) <= u32::from(last.last) + 1 =>
                {
                    last.last = last.last.max(range.last);
                }
                _ => merged.push(range),
            }
        }
        Self(merged)
    }

    /// The set of the slots that references name.
    pub fn of_references(references: &[u64]) -> Self {
        let range = |bits: &u64| {
            let reference = Reference::from_bits(*bits);
            let slot = reference.slot();
            DeadRange { container: reference.container(), first: slot, last: slot }
        };
        Self::of(references.iter().map(range).collect())
    }

    /// The ranges, by container and slot.
    pub fn ranges(&self) -> &[DeadRange] {
        &self.0
    }

    /// Whether none is dead.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many slots.
    pub fn slots(&self) -> u64 {
        self.0.iter().map(DeadRange::slots).sum()
    }

    /// The ranges of each container that has any, in order.
    pub fn by_container(&self) -> impl Iterator<Item = (u32, &[DeadRange])> {
        let same = |a: &DeadRange, b: &DeadRange| a.container == b.container;
        self.0.chunk_by(same).map(|ranges| (ranges[0].container, ranges))
    }

    /// The ranges of one container.
    pub fn of_container(&self, number: u32) -> &[DeadRange] {
        let start = self.0.partition_point(|range| range.container < number);
        let end = self.0.partition_point(|range| range.container <= number);
        &self.0[start..end]
    }

    /// The slots that are in both; by whole numbers of slots, as many as `other` lists one by one.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let theirs: std::collections::HashMap<_, _> = other.by_container().collect();
        let both = self.references().filter(|bits| {
            let reference = Reference::from_bits(*bits);
            theirs.get(&reference.container()).is_some_and(|slots| holds(slots, reference.slot()))
        });
        Self::of_references(&both.collect::<Vec<_>>())
    }

    /// The slots that `other` does not have.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let theirs: std::collections::HashMap<_, _> = other.by_container().collect();
        let mut left = Vec::new();
        for range in &self.0 {
            let gone = theirs.get(&range.container).copied().unwrap_or_default();
            let mut push = |first: u32, end: u32| {
                if first < end {
                    let (first, last) = (to_u16(first as usize), to_u16(end as usize - 1));
                    left.push(DeadRange { container: range.container, first, last });
                }
            };
            let mut next = u32::from(range.first);
            let start = gone.partition_point(|gone| gone.last < range.first);
            for gone in gone[start..].iter().take_while(|gone| gone.first <= range.last) {
                push(next, u32::from(gone.first));
                next = u32::from(gone.last) + 1;
            }
            push(next, u32::from(range.last) + 1);
        }
        Self(left)
    }

    /// Whether a slot is among them.
    pub fn has(&self, reference: Reference) -> bool {
        holds(self.of_container(reference.container()), reference.slot())
    }

    /// Returns the slots that are in either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        let mut ranges = self.0;
        ranges.extend(other.0);
        Self::of(ranges)
    }

    /// Those in containers that `keep` is true for.
    pub fn retain_containers(&mut self, mut keep: impl FnMut(u32) -> bool) {
        self.0.retain(|range| keep(range.container));
    }

    /// Every slot as a reference, in order.
    pub fn references(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|range| {
            let container = range.container;
            (range.first..=range.last)
                .map(move |slot| Reference::new(PRIVATE_STORE, container, slot).bits())
        })
    }
}

/// Whether sorted ranges of one container hold `slot`.
pub fn holds(ranges: &[DeadRange], slot: u16) -> bool {
    let at = ranges.partition_point(|range| range.first <= slot);
    at.checked_sub(1).is_some_and(|at| slot <= ranges[at].last)
}

/// Reads dead lists.
pub fn read(objects: &Objects, series: SeriesId, lists: &[DeadListRef]) -> Result<DeadSlots> {
    let mut ranges = Vec::new();
    for list in lists {
        let mut hashes = PartHashes::default();
        for part in 0..list.parts {
            let name = names::dead_list(series, list.id, part);
            let (kind, number) = (ObjectKind::DeadList, list.id.0);
            let address = Address::of_part(kind, series, number, part);
            let plain = objects.get(&name, address)?;
            hashes.add(objects, Hashed::DeadPart, &plain);
            ranges.extend(decode_dead_ranges(&plain).context(|| format!("read {name}"))?);
        }
        let what = || format!("dead list {}", names::dead_list(series, list.id, 0));
        hashes.require(objects, Hashed::DeadList, list.hash, what)?;
    }
    Ok(DeadSlots::of(ranges))
}

/// Writes a dead list, durable on return; none for an empty set.
pub fn write(objects: &Objects, series: SeriesId, dead: &DeadSlots) -> Result<Option<DeadListRef>> {
    if dead.is_empty() {
        return Ok(None);
    }
    let id = Id(objects.context.random_id());
    let (mut parts, mut hashes) = (0, PartHashes::default());
    for ranges in dead.ranges().chunks(DEAD_RANGES_MAX) {
        let name = names::dead_list(series, id, parts);
        let (kind, number) = (ObjectKind::DeadList, id.0);
        let address = Address::of_part(kind, series, number, parts);
        let plain = encode_dead_ranges(ranges);
        hashes.add(objects, Hashed::DeadPart, &plain);
        objects.put(&name, address, &plain)?;
        parts += 1;
    }
    let hash = hashes.whole(objects, Hashed::DeadList);
    Ok(Some(DeadListRef { id, parts, slots: dead.slots(), hash }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(container: u32, first: u16, last: u16) -> DeadRange {
        DeadRange { container, first, last }
    }

    #[test]
    fn what_another_set_has_is_taken_out() {
        let set = DeadSlots(vec![DeadRange::whole(1), range(2, 5, 9), range(2, 20, 30)]);
        let other = DeadSlots::of(vec![
            range(0, 1, 2),
            range(1, 0, 0),
            range(1, 7, 8),
            range(1, u16::MAX, u16::MAX),
            range(2, 0, 5),
            range(2, 9, 22),
            range(2, 30, 31),
        ]);
        let left = set.without(&other);
        let expected =
            [range(1, 1, 6), range(1, 9, u16::MAX - 1), range(2, 6, 8), range(2, 23, 29)];
        assert_eq!(left.ranges(), expected);
        assert!(set.without(&set).is_empty());
        assert_eq!(set.without(&DeadSlots::default()), set);
    }

    #[test]
    fn ranges_that_touch_or_overlap_become_one() {
        let set = DeadSlots::of(vec![
            range(2, 5, 9),
            range(1, 65_530, u16::MAX),
            range(2, 0, 3),
            range(2, 4, 4),
            range(2, 8, 20),
            range(1, 0, 0),
        ]);
        assert_eq!(set.ranges(), [range(1, 0, 0), range(1, 65_530, u16::MAX), range(2, 0, 20)]);
        assert_eq!(set.slots(), 1 + 6 + 21);
        let back: Vec<u64> = set.references().collect();
        assert_eq!(DeadSlots::of_references(&back), set);
        let (container, ranges) = set.by_container().last().unwrap_or_default();
        assert!(container == 2 && holds(ranges, 20) && !holds(ranges, 21));
    }
}
