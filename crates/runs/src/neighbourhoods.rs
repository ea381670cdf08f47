//! Where the stream of a backup has lately referred to, so that it does not refer to what is alone
//! there.

use std::collections::HashMap;

use silt_format::Reference;

/// Slots of one neighbourhood, as a power of two. With those on both sides of it, it is about what
/// a restore from near reads by one request.
const SLOTS_LOG2: u32 = 6;
/// Segments for which a neighbourhood is remembered: as many as a restore plans together.
const SEGMENTS: u64 = 96;
/// Fewer chunks than these are not worth the request that reads them.
const CHUNKS_FEW: u32 = 16;
/// Of so many chunks that were found for the stream, one may be left.
const LEFT_SHARE: u64 = 32;
/// Neighbourhoods that are remembered at most, and those of one more segment: about 2 MiB.
const NEIGHBOURHOODS_MAX: usize = 1 << 16;

/// How many chunks of each neighbourhood of containers the last segments of a stream have referred
/// to.
///
/// A restore reads by one request what lies near each other. A chunk that is alone where it lies
/// costs a request and a frame that is decompressed whole, at each restore; left there and stored
/// again, it lies beside what the stream needs before and after it. This is capping (Lillibridge,
/// Eshghi and Bhagwat, FAST 2013), but of neighbourhoods in place of containers, and for at most
/// one in 32 of the chunks found, so that deduplication loses no more even if all are scattered.
#[derive(Debug, Default)]
pub struct Neighbourhoods {
    /// By the neighbourhood: chunks, and the segment that has last referred to one.
    chunks: HashMap<u64, (u32, u64)>,
    segment: u64,
    /// Chunks that [`leave`](Self::leave) was asked about, and those that were left.
    found: u64,
    left: u64,
}

impl Neighbourhoods {
    /// Begins a segment, which refers to these.
    pub fn refer(&mut self, references: impl Iterator<Item = Reference>) {
        self.segment += 1;
        for reference in references {
            let (chunks, last) = self.chunks.entry(neighbourhood_of(reference)).or_default();
            *chunks = chunks.saturating_add(1);
            *last = self.segment;
        }
        let is_full = self.chunks.len() > NEIGHBOURHOODS_MAX;
        if is_full || self.segment.is_multiple_of(SEGMENTS / 4) {
            let kept = if is_full { 1 } else { SEGMENTS };
            let before = self.segment.saturating_sub(kept);
            self.chunks.retain(|_, (_, last)| *last > before);
        }
    }

    /// Whether a chunk that was found, which the segment refers to, is to be left where it is and
    /// stored again: the stream has referred to few chunks near it.
    pub fn leave(&mut self, reference: Reference) -> bool {
        let own = neighbourhood_of(reference);
        let near = [own.wrapping_sub(1), own, own.wrapping_add(1)];
        let chunks = near.iter().filter_map(|it| Some(self.chunks.get(it)?.0));
        let is_lonely = chunks.fold(0, u32::saturating_add) < CHUNKS_FEW;
        self.found += 1;
        let leaves = is_lonely && self.left < self.found / LEFT_SHARE;
        self.left += u64::from(leaves);
        leaves
    }
}

fn neighbourhood_of(reference: Reference) -> u64 {
    reference.bits() >> SLOTS_LOG2
}

#[cfg(test)]
mod tests {
    use silt_format::Reference;

    use super::Neighbourhoods;

    fn places(container: u32, slots: std::ops::Range<u16>) -> impl Iterator<Item = Reference> {
        slots.map(move |slot| Reference::new(2, container, slot))
    }

    /// Asks about enough chunks that are not alone, so that others may be left.
    fn find_many(near: &mut Neighbourhoods) {
        near.refer(places(0, 0..500));
        assert!(places(0, 0..500).all(|place| !near.leave(place)));
    }

    #[test]
    fn what_is_alone_is_left_until_others_are_near() {
        let mut near = Neighbourhoods::default();
        find_many(&mut near);
        near.refer(places(1, 300..303));
        assert!(near.leave(Reference::new(2, 1, 301)));
        near.refer(places(1, 330..343));
        assert!(!near.leave(Reference::new(2, 1, 301)), "16 in all");
        assert!(near.leave(Reference::new(2, 1, 600)), "far from them");
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut near = Neighbourhoods::default();
        find_many(&mut near);
        near.refer(places(0, 0..30));
        for segment in 1..=94 {
            near.refer(places(segment, 0..100));
        }
        assert!(!near.leave(Reference::new(2, 0, 20)));
        (95..130).for_each(|segment| near.refer(places(segment, 0..100)));
        assert!(near.leave(Reference::new(2, 0, 20)));
        assert!(near.chunks.len() < 300, "{}", near.chunks.len());
    }

    /// However scattered they are: otherwise nothing would be found in a disk whose blocks are
    /// another's in another order. Nor do they take more memory.
    #[test]
    fn at_most_one_chunk_in_32_is_left() {
        let (mut near, mut left, mut most) = (Neighbourhoods::default(), 0, 0);
        for segment in 0..100 {
            let scattered = (0..2048).map(|it| Reference::new(2, segment * 2048 + it, 7));
            near.refer(scattered.clone());
            left += scattered.filter(|place| near.leave(*place)).count();
            most = most.max(near.chunks.len());
        }
        assert_eq!(left, 100 * 2048 / 32);
        assert!(most <= super::NEIGHBOURHOODS_MAX, "{most}");
    }
}
