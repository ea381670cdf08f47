//! Finds objects that a head lists and storage lacks, as ranges, because a forged head can list far
//! more objects than exist.

use silt_format::{ObjectSet, ObjectTag, Result, names};
use silt_repository::objects::Objects;

/// How many missing containers are noted one by one in the check record, besides those that a
/// recipe refers to: more than a damaged head is worth, enough for 1 TiB.
pub(super) const NOTED_MAX: usize = 1 << 16;

/// Consecutive numbers of one range of a head of which storage has no object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Gap {
    first: u32,
    last: u32,
    tag: ObjectTag,
}

/// A folder of numbered objects against the set of a head.
pub(super) struct Compared {
    prefix: String,
    /// In ascending order; at most one for each range of the head and for each listed object.
    gaps: Vec<Gap>,
    /// The objects that are there and that the head lists.
    pub(super) listed: Vec<(u32, ObjectTag)>,
    /// Number of existing objects that the head does not list.
    pub(super) unreferenced: u64,
}

impl Compared {
    /// Lists what is below `prefix`, and finds what of `set` is not there.
    pub(super) fn new(objects: &Objects, prefix: String, set: &ObjectSet) -> Result<Self> {
        let (mut listed, mut unreferenced) = (Vec::new(), 0);
        for item in objects.names(&prefix, None)? {
            let (name, _) = item?;
            match names::number_and_tag(&name) {
                Some((number, tag)) if set.tag(number) == Some(tag) => listed.push((number, tag)),
                _ => unreferenced += 1,
            }
        }
        listed.sort_unstable();
        listed.dedup();
        let gaps = gaps(set, &listed);
        Ok(Self { prefix, gaps, listed, unreferenced })
    }

    /// What each gap is called: the object's name, or the first one's number and the last one's.
    pub(super) fn missing(&self) -> impl Iterator<Item = String> + '_ {
        self.gaps.iter().map(|gap| self.name(*gap))
    }

    /// What a number is called that is missing.
    pub(super) fn missing_name(&self, number: u32) -> Option<String> {
        let at = self.gaps.partition_point(|gap| gap.last < number);
        let gap = self.gaps.get(at).filter(|gap| gap.first <= number)?;
        Some(self.name(*gap))
    }

    /// The first of the missing numbers.
    pub(super) fn to_note(&self) -> impl Iterator<Item = (u32, ObjectTag)> + '_ {
        let all = self.gaps.iter();
        all.flat_map(|gap| (gap.first..=gap.last).map(|number| (number, gap.tag))).take(NOTED_MAX)
    }

    fn name(&self, gap: Gap) -> String {
        let Gap { first, last, tag } = gap;
        if first == last {
            return format!("{}{first:08x}.{tag}", self.prefix);
        }
        format!("{}{first:08x}..{last:08x}", self.prefix)
    }
}

/// What of `set` is not among `listed`, which is sorted.
fn gaps(set: &ObjectSet, listed: &[(u32, ObjectTag)]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut listed = listed.iter().map(|(number, _)| *number).peekable();
    for range in set.ranges() {
        let (first, last, tag) = (*range.numbers().start(), *range.numbers().end(), range.tag);
        // The first number that is not looked at yet, none behind the last of all.
        let mut from = Some(first);
        while let Some(number) = listed.next_if(|number| *number <= last) {
            if let Some(from) = from.filter(|from| *from < number) {
                gaps.push(Gap { first: from, last: number - 1, tag });
            }
            from = number.checked_add(1);
        }
        if let Some(from) = from.filter(|from| *from <= last) {
            gaps.push(Gap { first: from, last, tag });
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_listed_nowhere() {
        let (one, two) = (ObjectTag::first(1), ObjectTag::first(2));
        let mut set = ObjectSet::default();
        for (number, tag) in [(0, one), (1, one), (2, one), (3, one), (4, two), (9, two)] {
            set.push(number, tag);
        }
        set.push(u32::MAX, two);
        let gap = |first, last, tag| Gap { first, last, tag };
        let all = [gap(0, 3, one), gap(4, 4, two), gap(9, 9, two), gap(u32::MAX, u32::MAX, two)];
        assert_eq!(gaps(&set, &[]), all);
        let listed = [(1, one), (9, two), (u32::MAX, two)];
        let left = [gap(0, 0, one), gap(2, 3, one), gap(4, 4, two)];
        assert_eq!(gaps(&set, &listed), left);
        let whole: Vec<_> = set.iter().collect();
        assert_eq!(gaps(&set, &whole), []);
    }
}
