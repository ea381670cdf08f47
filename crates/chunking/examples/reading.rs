//! Measures ways to read a file that is in the page cache and to hash its segments, on two threads.
//!
//! `cargo run --release -p silt-chunking --example reading -- FILE`
//!
//! Prints GB for each second of processor time, of user and kernel together, which other programs
//! that run at the same time change less than the wall time.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(unsafe_code, reason = "one of the ways maps the file")]

use std::fs::File;
use std::hint::black_box;
use std::io::{Error, Result};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::time::{ClockId, clock_gettime};
use silt_chunking::SegmentHasher;
use silt_format::SEGMENT_BYTES;

const THREADS: usize = 2;
const ROUNDS: usize = 5;
const PAGE_BYTES: usize = 4096;
/// Far enough from the begin of a page that the kernel's copy is fast.
const APART: usize = 64;

/// Reads the segment at an offset, and hashes it.
type Way<'a> = dyn Fn(&mut [u8], u64) -> Result<()> + Sync + 'a;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1);
    let path = path.ok_or_else(|| Error::other("the name of a file is missing"))?;
    let file = File::open(path)?;
    let bytes = file.metadata()?.len() / SEGMENT_BYTES as u64 * SEGMENT_BYTES as u64;
    let hasher = SegmentHasher::new([7; 16]);
    let read_only = |buffer: &mut [u8], offset| file.read_exact_at(buffer, offset);
    let whole = |buffer: &mut [u8], offset| {
        file.read_exact_at(buffer, offset)?;
        black_box(hasher.hash(buffer));
        Ok(())
    };
    let pieces = |bytes: usize| {
        let (file, hasher) = (&file, &hasher);
        move |buffer: &mut [u8], offset: u64| {
            for (piece, at) in buffer.chunks_mut(bytes).zip((offset..).step_by(bytes)) {
                file.read_exact_at(piece, at)?;
                // As fast as continuing one hash.
                black_box(hasher.hash(piece));
            }
            Ok(())
        }
    };
    // Every piece into the same place, which stays in the cache of the core.
    let window = |bytes: usize| {
        let (file, hasher) = (&file, &hasher);
        move |buffer: &mut [u8], offset: u64| {
            let pieces = (offset..offset + SEGMENT_BYTES as u64).step_by(bytes);
            for at in pieces {
                file.read_exact_at(&mut buffer[..bytes], at)?;
                black_box(hasher.hash(&buffer[..bytes]));
            }
            Ok(())
        }
    };
    let mapped = |_: &mut [u8], offset| map(&file, offset, &hasher);
    let hash_only = |buffer: &mut [u8], _| {
        black_box(hasher.hash(black_box(buffer)));
        Ok(())
    };
    let ways: [(&str, usize, &Way<'_>); 9] = [
        ("hash alone", APART, &hash_only),
        ("pread alone", APART, &read_only),
        ("pread alone, 16 bytes behind a page", 16, &read_only),
        ("pread 2 MiB, then hash", APART, &whole),
        ("pread and hash 512 KiB", APART, &pieces(512 << 10)),
        ("pread and hash 256 KiB", APART, &pieces(256 << 10)),
        ("pread and hash 128 KiB", APART, &pieces(128 << 10)),
        ("the same in one place, 128 KiB", APART, &window(128 << 10)),
        ("mmap 2 MiB, populate, hash", APART, &mapped),
    ];
    let mut best = [f64::INFINITY; 9];
    // In turns, so that a change of the machine's load meets all of them.
    for _ in 0..ROUNDS {
        for (best, (_, shift, way)) in best.iter_mut().zip(ways) {
            *best = best.min(measure(bytes, shift, way)?);
        }
    }
    let megabytes = u32::try_from(bytes / 1_000_000).map_err(Error::other)?;
    for (seconds, (what, ..)) in best.into_iter().zip(ways) {
        println!("{what:36} {:6.2} GB/s", f64::from(megabytes) / seconds / 1e3);
    }
    Ok(())
}

/// The processor time of reading all segments to `shift` bytes behind the begin of a page.
fn measure(bytes: u64, shift: usize, way: &Way<'_>) -> Result<f64> {
    let (next, begin) = (AtomicU64::new(0), processor_s());
    std::thread::scope(|scope| {
        let work = || {
            let mut memory = vec![1; SEGMENT_BYTES + 2 * PAGE_BYTES];
            let start = memory.as_ptr().align_offset(PAGE_BYTES) + shift;
            let buffer = &mut memory[start..start + SEGMENT_BYTES];
            loop {
                let offset = next.fetch_add(SEGMENT_BYTES as u64, Ordering::Relaxed);
                if offset >= bytes {
                    return Ok(());
                }
                way(buffer, offset)?;
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let mut ended = threads.into_iter().map(ScopedJoinHandle::join);
        let failed = || Err(Error::other("a thread panicked"));
        ended.try_for_each(|end| end.unwrap_or_else(|_| failed()))
    })
    .map(|()| processor_s() - begin)
}

fn processor_s() -> f64 {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).unwrap_or_default().as_secs_f64()
}

fn map(file: &File, offset: u64, hasher: &SegmentHasher) -> Result<()> {
    // SAFETY: the mapping is new, and unmapped once nothing refers to it. If another process cuts
    // the file meanwhile, this one is killed: good enough for a measurement, and for nothing else.
    unsafe {
        let flags = MapFlags::SHARED;
        let at = mmap(std::ptr::null_mut(), SEGMENT_BYTES, ProtFlags::READ, flags, file, offset)?;
        madvise(at, SEGMENT_BYTES, Advice::LinuxPopulateRead)?;
        black_box(hasher.hash(std::slice::from_raw_parts(at.cast(), SEGMENT_BYTES)));
        munmap(at, SEGMENT_BYTES)?;
    }
    Ok(())
}
