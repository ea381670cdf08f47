use std::ops::Range;

use proptest::prelude::*;
use silt_chunking::Fingerprinter;
use silt_format::{BLOCK_BYTES, Fingerprint};

use crate::sample::noise;

const DATA_BYTES: usize = 40 * BLOCK_BYTES;

fn many(fingerprinter: &Fingerprinter, data: &[u8], chunks: &[Range<usize>]) -> Vec<Fingerprint> {
    // What is there already must not show.
    let mut out = vec![Fingerprint([1; 20]); 3];
    fingerprinter.fingerprint_many(data, chunks, &mut out);
    out
}

/// Golden: the keyed test vectors published with BLAKE3, cut to 20 bytes.
#[test]
fn fingerprints_of_the_published_vectors() {
    let fingerprinter = Fingerprinter::new(*b"whats the Elvish word for friend");
    let data: Vec<u8> = (0..=250).cycle().take(8192).collect();
    for (length, expected) in [
        (0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3"),
        (1, "6d7878dfff2f485635d39013278ae14f1454b8c0"),
        (1025, "357dc55de0c7e382c900fd6e320acc04146be01d"),
        (4096, "befc660aea2f1718884cd8deb9902811d332f4fc"),
        (4097, "00df940cd36bb9fa7cbbc3556744e0dbc8191401"),
        (8192, "dc9637c8845a770b4cbf76b8daec0eebf7dc2eac"),
    ] {
        assert_eq!(fingerprinter.fingerprint(&data[..length]).to_string(), expected);
        for fingerprint in many(&fingerprinter, &data, &vec![0..length; 16]) {
            assert_eq!(fingerprint.to_string(), expected, "{length} bytes");
        }
    }
}

/// Golden: blocks that go through the lanes; computed by another implementation of BLAKE3.
#[test]
fn fingerprints_of_known_blocks() {
    let key = std::array::from_fn(|index| u8::try_from(index).unwrap());
    let data = noise(3, 16 * BLOCK_BYTES);
    let blocks: Vec<_> =
        (0..16).map(|index| index * BLOCK_BYTES..(index + 1) * BLOCK_BYTES).collect();
    let fingerprints = many(&Fingerprinter::new(key), &data, &blocks);
    for (index, expected) in [
        (0, "568eb53b63e43b0e4d45a1e5e9e5701178bb333b"),
        (1, "a42ee8d40e165048c603145307ef4b77d24a8c36"),
        (15, "277096663fe3e751f0f06ec5ed954d37023f0bf4"),
    ] {
        assert_eq!(fingerprints[index].to_string(), expected, "block {index}");
    }
}

#[test]
fn debug_output_shows_no_key() {
    let shown = format!("{:?}", Fingerprinter::new([0xab; 32]));
    assert_eq!(shown, "Fingerprinter(secret)");
}

#[test]
#[should_panic(expected = "out of range")]
fn a_range_outside_the_data_is_refused() {
    many(&Fingerprinter::new([0; 32]), &[0; 10], &[Range { start: 5, end: 11 }]);
}

/// Mostly whole blocks at any offset, sometimes chunks of other lengths.
fn chunk() -> impl Strategy<Value = Range<usize>> {
    let length = prop_oneof![4 => Just(BLOCK_BYTES), 2 => 0..5 * BLOCK_BYTES];
    (length, 0..DATA_BYTES - 5 * BLOCK_BYTES).prop_map(|(length, begin)| begin..begin + length)
}

proptest! {
    #[test]
    fn many_are_what_the_hash_gives_for_each(
        key: [u8; 32],
        seed: u64,
        chunks in prop::collection::vec(chunk(), 0..80),
    ) {
        let data = noise(seed, DATA_BYTES);
        let expected: Vec<_> = chunks
            .iter()
            .map(|range| {
                let digest = blake3::keyed_hash(&key, &data[range.clone()]);
                Fingerprint(digest.as_bytes()[..20].try_into().unwrap())
            })
            .collect();
        prop_assert_eq!(many(&Fingerprinter::new(key), &data, &chunks), expected);
    }
}

/// Memory whose end is followed by a page that nobody may read.
#[cfg(target_os = "linux")]
mod guarded {
    #![expect(unsafe_code, reason = "a page that may not be read")]

    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    const PAGE_BYTES: usize = 4096;
    const BYTES: usize = 16 * PAGE_BYTES;

    pub struct Guarded(*mut std::ffi::c_void);

    impl Guarded {
        pub fn new() -> Self {
            let flags = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: new memory, of which only the last page becomes unreadable.
            unsafe {
                let whole = BYTES + PAGE_BYTES;
                let memory =
                    mmap_anonymous(std::ptr::null_mut(), whole, flags, MapFlags::PRIVATE).unwrap();
                mprotect(memory.byte_add(BYTES), PAGE_BYTES, MprotectFlags::empty()).unwrap();
                Self(memory)
            }
        }

        /// All bytes before the page.
        pub fn bytes(&mut self) -> &mut [u8] {
            // SAFETY: they are readable and writable, and borrowed from the memory.
            unsafe { std::slice::from_raw_parts_mut(self.0.cast(), BYTES) }
        }
    }

    impl Drop for Guarded {
        fn drop(&mut self) {
            // SAFETY: nothing borrows the memory any more.
            let _ = unsafe { munmap(self.0, BYTES + PAGE_BYTES) };
        }
    }
}

/// blake3's code for AVX-512 reads up to 48 bytes behind the first of four inputs.
#[cfg(target_os = "linux")]
#[test]
fn nothing_behind_the_chunks_is_read() {
    let fingerprinter = Fingerprinter::new([1; 32]);
    let mut memory = guarded::Guarded::new();
    let data = memory.bytes();
    data.iter_mut().zip(0_u32..).for_each(|(byte, at)| *byte = at.to_le_bytes()[1]);
    let mut found = Vec::new();
    for count in 1..=9 {
        for length in [1, 64, 1024, 1025, 2048, 3072, 4096, 5120, 6144, 7168] {
            // From the last one on, so that each is once the first.
            let end = data.len();
            let chunk = |at: usize| end - (at + 1) * length..end - at * length;
            let chunks: Vec<_> = (0..count).map(chunk).collect();
            fingerprinter.fingerprint_many(data, &chunks, &mut found);
            let each = chunks.iter().map(|range| fingerprinter.fingerprint(&data[range.clone()]));
            assert!(found.iter().copied().eq(each), "{count} of {length}");
        }
    }
}
