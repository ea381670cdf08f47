//! No count that a layout holds makes its decoder take memory that the input's bytes do not
//! justify.
//!
//! One test in a binary of its own: its allocator counts the bytes that are alive.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use silt_format::{PAGE_ENTRIES, SegmentEntry};

#[path = "format/decoders.rs"]
mod decoders;

/// What a decoder may take: this many bytes for each of the input, and some for contexts and
/// errors.
const BYTES_PER_BYTE: usize = 64;
const BYTES_ON_TOP: usize = 64 << 10;
/// The entries of a page are counted by a bitmap, and never more than 1,024.
const PAGE_BYTES: usize = PAGE_ENTRIES * size_of::<Option<SegmentEntry>>();

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(unsafe_code, reason = "an allocator is unsafe to implement; this one forwards every call")]
// SAFETY: every call goes to the system's allocator with the same arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Decodes `bytes` and returns the most bytes that were alive on top of those before.
fn peak_of(name: &str, bytes: &[u8]) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let _ = decoders::decode(name, bytes);
    PEAK.load(Ordering::Relaxed) - before
}

#[test]
fn no_count_takes_more_memory_than_the_bytes_that_are_there() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/format/v1");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(root).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 20, "{} golden files", files.len());
    for file in files {
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let golden = std::fs::read(&file).unwrap();
        let on_top = if name.starts_with("page-") { PAGE_BYTES } else { 0 };
        let bound = golden.len() * BYTES_PER_BYTE + BYTES_ON_TOP.max(on_top);
        let mut changed = golden.clone();
        for at in 0..golden.len() {
            let counts: [&[u8]; 6] = [
                &u16::MAX.to_le_bytes(),
                &u32::MAX.to_le_bytes(),
                &(1_u32 << 31).to_le_bytes(),
                &(1_u32 << 20).to_le_bytes(),
                &(1_u16 << 15).to_le_bytes(),
                &(1_u16 << 10).to_le_bytes(),
            ];
            for count in counts {
                let end = golden.len().min(at + count.len());
                changed[at..end].copy_from_slice(&count[..end - at]);
                let peak = peak_of(&name, &changed);
                assert!(peak <= bound, "{name}: {count:?} at {at} took {peak} bytes of {bound}");
                changed[at..end].copy_from_slice(&golden[at..end]);
            }
        }
        assert_eq!(changed, golden);
    }
}
