//! Where large buffers begin in memory.
//!
//! The kernel copies from the page cache with `rep movsb`, whose speed on x86 depends on where in a
//! page its two ends lie. If the target begins up to 16 bytes behind the source, modulo the size of
//! a page, a core of an AMD EPYC copies 2 GB/s instead of 10. That is the usual case: pages of the
//! page cache begin where pages begin, and the C library's `malloc` places a large buffer 16 bytes
//! behind the begin of a page.
//!
//! What a connection or a frame needs for a moment is a few hundred KiB, which the C library would
//! get from the kernel and give back each time, with a fault and a zeroed page for every 4 KiB: a
//! tenth of the processor time of a restore. A few such buffers are kept for the next one who asks.
//!
//! The largest buffers are made of huge pages: the kernel hands out 2 MiB at once instead of 512
//! pages, each for a fault of its own, and the processor finds them with fewer look-ups.

#![expect(unsafe_code, reason = "an allocator hands out raw memory")]

use std::alloc::{GlobalAlloc, Layout};
use std::ops::RangeInclusive;
use std::sync::Mutex;

/// Buffers of at least this many bytes count as large.
const LARGE_BYTES: usize = 64 << 10;
/// The address of a large buffer is a multiple of this: a line of the processor's cache.
const LARGE_ALIGNMENT: usize = 64;
/// Buffers of at least this many bytes ask for huge pages. They are few and filled at once, such as
/// the memory of Argon2id: the last huge page of a buffer that is not filled would be wasted.
const HUGE_BYTES: usize = 16 << 20;
/// Bytes of a huge page, and the alignment of what is made of them.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Sizes of the buffers that are kept when they are freed, for the next one of just that size.
const KEPT_SIZES: RangeInclusive<usize> = (256 << 10)..=(1 << 20);
/// Bytes of all buffers that are kept, and how many they are at most.
const KEPT_BYTES_MAX: usize = 2 << 20;
const KEPT_MAX: usize = 16;
const _: () = assert!(*KEPT_SIZES.end() <= KEPT_BYTES_MAX, "there must be room for each of them");

/// Freed buffers, those that were freed first in front.
static KEPT: Mutex<Kept> = Mutex::new(Kept { buffers: [(0, 0); KEPT_MAX], count: 0, bytes: 0 });

struct Kept {
    /// The address and the size of each.
    buffers: [(usize, usize); KEPT_MAX],
    count: usize,
    bytes: usize,
}

impl Kept {
    fn remove(&mut self, at: usize) -> (usize, usize) {
        let removed = self.buffers[at];
        self.buffers.copy_within(at + 1..self.count, at);
        self.count -= 1;
        self.bytes -= removed.1;
        removed
    }

    /// A buffer of this size: the one that was freed last, since the processor may have it at hand.
    fn take(&mut self, size: usize) -> Option<usize> {
        let at = self.buffers[..self.count].iter().rposition(|kept| kept.1 == size)?;
        Some(self.remove(at).0)
    }

    fn has_room(&self, size: usize) -> bool {
        self.count < KEPT_MAX && self.bytes + size <= KEPT_BYTES_MAX
    }

    /// Keeps a buffer; there must be room for it.
    fn put(&mut self, address: usize, size: usize) {
        self.buffers[self.count] = (address, size);
        self.count += 1;
        self.bytes += size;
    }
}

/// Whether buffers like this are kept. Their addresses are multiples of [`LARGE_ALIGNMENT`].
fn is_kept(layout: Layout) -> bool {
    layout.align() <= LARGE_ALIGNMENT && KEPT_SIZES.contains(&layout.size())
}

/// A kept buffer. Nobody waits: who finds another thread at them asks the C library.
fn take_kept(layout: Layout) -> Option<*mut u8> {
    if !is_kept(layout) {
        return None;
    }
    let address = KEPT.try_lock().ok()?.take(layout.size())?;
    Some(std::ptr::with_exposed_provenance_mut(address))
}

/// Keeps a buffer that is freed, if it can; what had to make room for it is freed.
fn keep(memory: *mut u8, layout: Layout) -> bool {
    if !is_kept(layout) || memory.align_offset(LARGE_ALIGNMENT) != 0 {
        return false;
    }
    let Ok(mut kept) = KEPT.try_lock() else { return false };
    while !kept.has_room(layout.size()) {
        let (address, _) = kept.remove(0);
        // SAFETY: it is the C library's, and nobody else has it: it was freed by its owner.
        unsafe { libc::free(std::ptr::with_exposed_provenance_mut(address)) };
    }
    kept.put(memory.expose_provenance(), layout.size());
    true
}

/// The C library's allocator, but large buffers begin at a multiple of 64 bytes, and those of
/// 16 MiB or more are made of huge pages where Linux allows them.
///
/// For a program that reads sources: `#[global_allocator] static …: LargeAligned = LargeAligned;`.
/// Buffers that are allocated as zeros, and those that grow, stay where the C library puts them: it
/// zeroes and moves their pages without touching them.
#[derive(Clone, Copy, Debug)]
pub struct LargeAligned;

/// From this size on, memory that is freed goes back to the system at once, in bytes.
#[cfg(target_env = "gnu")]
const RETURNED_BYTES: i32 = 256 << 10;

/// Heaps for the buffers below that size. Each thread uses one of them.
#[cfg(target_env = "gnu")]
const HEAPS_MAX: i32 = 2;

/// Makes the C library give memory back to the system when it is freed, for a program to call when
/// it begins.
///
/// By default glibc raises the size from which it gives large buffers back to that of the largest
/// one that was freed, and has up to eight heaps for each processor: what one thread has freed is
/// then not used by another.
pub fn keep_heap_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: parameters of the allocator, whose values are in the allowed ranges.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, RETURNED_BYTES);
        libc::mallopt(libc::M_ARENA_MAX, HEAPS_MAX);
    }
}

/// The alignment to ask for; `None` if that of `malloc` is enough.
fn alignment(layout: Layout) -> Option<usize> {
    let least = match layout.size() {
        HUGE_BYTES.. => HUGE_PAGE_BYTES,
        LARGE_BYTES.. => LARGE_ALIGNMENT,
        _ => 1,
    };
    let alignment = layout.align().max(least);
    (alignment > align_of::<libc::max_align_t>()).then_some(alignment)
}

/// Asks the kernel to make a buffer of huge pages if it is large enough.
fn ask_for_huge_pages(memory: *mut libc::c_void, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_BYTES {
        let whole = bytes - bytes % HUGE_PAGE_BYTES;
        // SAFETY: the memory has as many bytes and begins at a page. The advice changes none of
        // them, and a kernel without huge pages refuses it.
        unsafe { libc::madvise(memory, whole, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (memory, bytes);
}

// SAFETY: all memory comes from the C library's `malloc` and its relatives, of at least the size
// and alignment that the layout asks for, and goes back to its `free`, which takes all of them.
// What is kept in between is handed out once, for a layout of the same size that needs no more
// alignment.
unsafe impl GlobalAlloc for LargeAligned {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if let Some(memory) = take_kept(layout) {
            return memory;
        }
        let Some(alignment) = alignment(layout) else {
            // SAFETY: the caller promises a size that is not zero.
            return unsafe { libc::malloc(layout.size()) }.cast();
        };
        let mut memory = std::ptr::null_mut();
        // SAFETY: the alignment is a power of two and a multiple of the size of a pointer.
        match unsafe { libc::posix_memalign(&raw mut memory, alignment, layout.size()) } {
            0 => {
                ask_for_huge_pages(memory, layout.size());
                memory.cast()
            }
            _ => std::ptr::null_mut(),
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= align_of::<libc::max_align_t>() {
            // SAFETY: as for `malloc`.
            return unsafe { libc::calloc(layout.size(), 1) }.cast();
        }
        // SAFETY: the caller's promises hold for both; the memory has as many bytes.
        unsafe {
            let memory = self.alloc(layout);
            if !memory.is_null() {
                memory.write_bytes(0, layout.size());
            }
            memory
        }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= align_of::<libc::max_align_t>() {
            // SAFETY: the memory is the C library's, and `realloc` keeps the alignment of `malloc`.
            return unsafe { libc::realloc(memory.cast(), size) }.cast();
        }
        // SAFETY: the caller promises that the layout is that of the memory, and that the size is
        // allowed for its alignment.
        unsafe {
            let larger = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !larger.is_null() {
                larger.copy_from_nonoverlapping(memory, layout.size().min(size));
                self.dealloc(memory, layout);
            }
            larger
        }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if !keep(memory, layout) {
            // SAFETY: the memory is the C library's.
            unsafe { libc::free(memory.cast()) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn byte(at: usize) -> u8 {
        at.to_le_bytes()[0]
    }

    /// Fills memory with a pattern, lets it grow and shrink, and checks what is left of it.
    #[test]
    fn memory_is_aligned_and_keeps_its_content() {
        for (size, align) in
            [(1, 1), (24, 8), (100, 16), (100, 64), (4096, 4096), (65_535, 1), (70_000, 4096)]
        {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: sizes are not zero, and each piece of memory is given back with its layout.
            unsafe {
                let memory = LargeAligned.alloc(layout);
                assert_eq!(memory.align_offset(align), 0, "{layout:?}");
                for at in 0..size {
                    memory.add(at).write(byte(at));
                }
                let (larger, smaller) = (3 * size + 100_000, size.div_ceil(2));
                let memory = LargeAligned.realloc(memory, layout, larger);
                assert_eq!(memory.align_offset(align), 0, "{layout:?}");
                assert!((0..size).all(|at| memory.add(at).read() == byte(at)), "{layout:?}");
                let layout = Layout::from_size_align(larger, align).unwrap();
                let memory = LargeAligned.realloc(memory, layout, smaller);
                assert!((0..smaller).all(|at| memory.add(at).read() == byte(at)), "{layout:?}");
                LargeAligned.dealloc(memory, Layout::from_size_align(smaller, align).unwrap());
                let layout = Layout::from_size_align(size, align).unwrap();
                let zeros = LargeAligned.alloc_zeroed(layout);
                assert_eq!(zeros.align_offset(align), 0, "{layout:?}");
                assert!((0..size).all(|at| zeros.add(at).read() == 0), "{layout:?}");
                LargeAligned.dealloc(zeros, layout);
            }
        }
    }

    /// Checks that no byte is lost where memory begins to be made of huge pages, and ends to be.
    #[test]
    fn the_largest_buffers_begin_at_a_huge_page() {
        for size in [HUGE_BYTES, HUGE_BYTES + 1, HUGE_BYTES + HUGE_PAGE_BYTES - 1] {
            let layout = Layout::from_size_align(size, 64).unwrap();
            // SAFETY: as above.
            unsafe {
                let memory = LargeAligned.alloc(layout);
                assert_eq!(memory.align_offset(HUGE_PAGE_BYTES), 0, "{size}");
                let places = [0, HUGE_PAGE_BYTES, HUGE_BYTES - 1, size - 1];
                for at in places {
                    memory.add(at).write(byte(at));
                }
                let memory = LargeAligned.realloc(memory, layout, HUGE_BYTES - 1);
                assert!(places[..2].iter().all(|&at| memory.add(at).read() == byte(at)), "{size}");
                let layout = Layout::from_size_align(HUGE_BYTES - 1, 64).unwrap();
                let memory = LargeAligned.realloc(memory, layout, size);
                assert!(places[..2].iter().all(|&at| memory.add(at).read() == byte(at)), "{size}");
                LargeAligned.dealloc(memory, Layout::from_size_align(size, 64).unwrap());
            }
        }
    }

    #[test]
    fn few_buffers_are_kept_and_handed_out_once() {
        let mut kept = Kept { buffers: [(0, 0); KEPT_MAX], count: 0, bytes: 0 };
        assert_eq!(kept.take(300), None);
        kept.put(1, 300);
        kept.put(2, 400);
        kept.put(3, 300);
        assert_eq!(kept.take(500), None);
        assert_eq!((kept.take(300), kept.take(300), kept.take(300)), (Some(3), Some(1), None));
        assert_eq!((kept.count, kept.bytes), (1, 400));
        for address in 10..10 + KEPT_MAX - 1 {
            assert!(kept.has_room(1));
            kept.put(address, 1);
        }
        assert!(!kept.has_room(1));
        assert_eq!(kept.remove(0), (2, 400));
        assert!(kept.has_room(KEPT_BYTES_MAX - kept.bytes));
        assert!(!kept.has_room(KEPT_BYTES_MAX - kept.bytes + 1));
    }

    /// Threads give buffers to each other; each writes its own number and finds nobody else's.
    #[test]
    fn no_two_owners_get_the_same_buffer() {
        let owner = |number: u8| {
            move || {
                for round in 0..2_000_usize {
                    let size = *KEPT_SIZES.start() + (round + usize::from(number)) % 3 * 4096;
                    let layout = Layout::from_size_align(size, 1 << (round % 7)).unwrap();
                    // SAFETY: the size is not zero; the memory is given back with its layout.
                    unsafe {
                        let memory = LargeAligned.alloc(layout);
                        assert_eq!(memory.align_offset(LARGE_ALIGNMENT), 0, "{layout:?}");
                        for at in [0, size / 2, size - 1] {
                            memory.add(at).write(number);
                        }
                        std::thread::yield_now();
                        for at in [0, size / 2, size - 1] {
                            assert_eq!(memory.add(at).read(), number);
                        }
                        LargeAligned.dealloc(memory, layout);
                    }
                }
            }
        };
        let threads: Vec<_> = (1..=4).map(|number| std::thread::spawn(owner(number))).collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(KEPT.lock().unwrap().bytes <= KEPT_BYTES_MAX);
    }

    #[test]
    fn large_buffers_begin_at_a_line_of_the_cache() {
        for size in [LARGE_BYTES, 1 << 20, (2 << 20) + 1] {
            let layout = Layout::from_size_align(size, 1).unwrap();
            // SAFETY: as above.
            unsafe {
                let memory = LargeAligned.alloc(layout);
                assert_eq!(memory.align_offset(LARGE_ALIGNMENT), 0, "{size}");
                LargeAligned.dealloc(memory, layout);
            }
        }
    }
}
