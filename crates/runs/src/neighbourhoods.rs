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
/// Fewer bytes of chunks than these in a whole container are not, either; where containers are
/// small, a sixteenth of one.
const CONTAINER_BYTES_FEW: u64 = 512 << 10;
const CONTAINER_SHARE: u64 = 16;
/// Of so many bytes that were found for the stream, one may be left.
const LEFT_SHARE: u64 = 32;
/// Neighbourhoods that are remembered at most, and those of one more segment: about 2 MiB. As many
/// containers.
const NEIGHBOURHOODS_MAX: usize = 1 << 16;

/// How much of each neighbourhood of containers, and of each container, the last segments of a
/// stream have referred to.
///
/// A restore reads by one request what lies near each other. A chunk that is alone where it lies
/// costs a request and a frame that is decompressed whole, at each restore; left there and stored
/// again, it lies beside what the stream needs before and after it. This is capping (Lillibridge,
/// Eshghi and Bhagwat, FAST 2013), but of neighbourhoods, too, and for at most one in 32 of the
/// bytes found, so that deduplication loses no more even if all are scattered.
#[derive(Debug)]
pub struct Neighbourhoods {
    /// By the neighbourhood: chunks, and the segment that has last referred to one.
    chunks: HashMap<u64, (u32, u64)>,
    /// By the container: bytes, and the segment that has last referred to some.
    bytes: HashMap<u64, (u64, u64)>,
    segment: u64,
    /// The container that the segment refers to last: the next segment may go on there.
    last: Option<u64>,
    /// Bytes that [`leave`](Self::leave) was asked about, and those that were left.
    found: u64,
    left: u64,
    /// Fewer bytes of a container are few.
    container_bytes_few: u64,
}

impl Neighbourhoods {
    /// Nothing was referred to yet; containers are closed at about `container_bytes`.
    pub fn new(container_bytes: u64) -> Self {
        Self {
            chunks: HashMap::new(),
            bytes: HashMap::new(),
            segment: 0,
            last: None,
            found: 0,
            left: 0,
            container_bytes_few: CONTAINER_BYTES_FEW.min(container_bytes / CONTAINER_SHARE),
        }
    }

    /// Begins a segment, which refers to these chunks of so many bytes.
    pub fn refer(&mut self, references: impl Iterator<Item = (Reference, u64)>) {
        self.segment += 1;
        for (reference, chunk_bytes) in references {
            let (chunks, last) = self.chunks.entry(neighbourhood_of(reference)).or_default();
            *chunks = chunks.saturating_add(1);
            *last = self.segment;
            let (bytes, last) = self.bytes.entry(container_of(reference)).or_default();
            *bytes = bytes.saturating_add(chunk_bytes);
            *last = self.segment;
            self.last = Some(container_of(reference));
        }
        let is_full = self.chunks.len() > NEIGHBOURHOODS_MAX;
        if is_full || self.segment.is_multiple_of(SEGMENTS / 4) {
            let kept = if is_full { 1 } else { SEGMENTS };
            let before = self.segment.saturating_sub(kept);
            self.chunks.retain(|_, (_, last)| *last > before);
            self.bytes.retain(|_, (_, last)| *last > before);
        }
    }

    /// Whether a chunk of so many bytes that was found, which the segment refers to, is to be left
    /// where it is and stored again: the stream has referred to little near it.
    pub fn leave(&mut self, reference: Reference, chunk_bytes: u64) -> bool {
        self.found += chunk_bytes;
        let leaves = self.left + chunk_bytes <= self.found / LEFT_SHARE
            && (self.is_lonely(reference) || self.is_of_lonely_container(reference));
        self.left += if leaves { chunk_bytes } else { 0 };
        leaves
    }

    fn is_lonely(&self, reference: Reference) -> bool {
        let own = neighbourhood_of(reference);
        let near = [own.wrapping_sub(1), own, own.wrapping_add(1)];
        let chunks = near.iter().filter_map(|it| Some(self.chunks.get(it)?.0));
        chunks.fold(0, u32::saturating_add) < CHUNKS_FEW
    }

    fn is_of_lonely_container(&self, reference: Reference) -> bool {
        let container = container_of(reference);
        let bytes = self.bytes.get(&container).map_or(0, |(bytes, _)| *bytes);
        bytes < self.container_bytes_few && self.last != Some(container)
    }
}

fn container_of(reference: Reference) -> u64 {
    reference.bits() >> u16::BITS
}

fn neighbourhood_of(reference: Reference) -> u64 {
    reference.bits() >> SLOTS_LOG2
}

#[cfg(test)]
mod tests {
    use silt_format::Reference;

    use super::Neighbourhoods;

    const CHUNK_BYTES: u64 = 4 << 10;

    fn places(container: u32, slots: std::ops::Range<u16>) -> Vec<Reference> {
        slots.map(move |slot| Reference::new(2, container, slot)).collect()
    }

    impl Neighbourhoods {
        fn refer_to(&mut self, places: &[Reference]) {
            self.refer(places.iter().map(|place| (*place, CHUNK_BYTES)));
        }

        fn leaves(&mut self, place: Reference) -> bool {
            self.leave(place, CHUNK_BYTES)
        }
    }

    /// Asks about enough chunks that are not alone, so that others may be left.
    fn find_many(near: &mut Neighbourhoods) {
        let places = places(0, 0..500);
        near.refer_to(&places);
        assert!(places.into_iter().all(|place| !near.leaves(place)));
    }

    #[test]
    fn what_is_alone_is_left_until_others_are_near() {
        let mut near = Neighbourhoods::new(8 << 20);
        find_many(&mut near);
        near.refer_to(&places(1, 300..303));
        near.refer_to(&places(1, 900..1100));
        assert!(near.leaves(Reference::new(2, 1, 301)));
        near.refer_to(&places(1, 330..343));
        assert!(!near.leaves(Reference::new(2, 1, 301)), "16 in all");
        assert!(near.leaves(Reference::new(2, 1, 600)), "far from them");
    }

    /// Whatever is near it: a restore reads little more of it by its request.
    #[test]
    fn what_is_of_a_container_of_little_use_is_left() {
        let mut near = Neighbourhoods::new(8 << 20);
        find_many(&mut near);
        near.refer_to(&places(1, 0..127));
        assert!(!near.leaves(Reference::new(2, 1, 60)), "the next segment may go on there");
        near.refer_to(&places(0, 0..1));
        assert!(near.leaves(Reference::new(2, 1, 60)));
        near.refer_to(&places(1, 1000..1001));
        assert!(!near.leaves(Reference::new(2, 1, 60)), "512 KiB in all");
        // Few large chunks are as much.
        near.refer([(Reference::new(2, 2, 5), 300 << 10)].into_iter());
        near.refer((6..22).map(|slot| (Reference::new(2, 2, slot), 16 << 10)));
        near.refer_to(&places(0, 0..1));
        assert!(!near.leaves(Reference::new(2, 2, 5)));
    }

    #[test]
    fn what_was_long_ago_is_forgotten() {
        let mut near = Neighbourhoods::new(8 << 20);
        find_many(&mut near);
        near.refer_to(&places(0, 0..30));
        for segment in 1..=94 {
            near.refer_to(&places(segment, 0..100));
        }
        assert!(!near.leaves(Reference::new(2, 0, 20)));
        (95..130).for_each(|segment| near.refer_to(&places(segment, 0..100)));
        assert!(near.leaves(Reference::new(2, 0, 20)));
        assert!(near.chunks.len() < 300 && near.bytes.len() < 150, "{}", near.chunks.len());
    }

    /// However scattered they are: otherwise nothing would be found in a disk whose blocks are
    /// another's in another order. Nor do they take more memory.
    #[test]
    fn at_most_one_byte_in_32_is_left() {
        let (mut near, mut left, mut most) = (Neighbourhoods::new(8 << 20), 0, 0);
        for segment in 0..100 {
            let scattered: Vec<_> =
                (0..2048).map(|it| Reference::new(2, segment * 2048 + it, 7)).collect();
            near.refer_to(&scattered);
            left += scattered.into_iter().filter(|place| near.leaves(*place)).count();
            most = most.max(near.chunks.len()).max(near.bytes.len());
        }
        assert_eq!(left, 100 * 2048 / 32);
        assert!(most <= super::NEIGHBOURHOODS_MAX, "{most}");
        // A chunk that is longer than what may be left stays.
        let mut near = Neighbourhoods::new(8 << 20);
        find_many(&mut near);
        near.refer([(Reference::new(2, 1, 5), 100 << 10)].into_iter());
        assert!(!near.leave(Reference::new(2, 1, 5), 100 << 10));
    }
}
