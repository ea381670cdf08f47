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

/// Reads the segment at an offset, and hashes it.
type Way<'a> = dyn Fn(&mut Vec<u8>, u64) -> Result<()> + Sync + 'a;

fn main() -> Result<()> {
    let path = std::env::args_os().nth(1);
    let path = path.ok_or_else(|| Error::other("the name of a file is missing"))?;
    let file = File::open(path)?;
    let bytes = file.metadata()?.len() / SEGMENT_BYTES as u64 * SEGMENT_BYTES as u64;
    let hasher = SegmentHasher::new([7; 16]);
    let read_only = |buffer: &mut Vec<u8>, offset| file.read_exact_at(buffer, offset);
    let whole = |buffer: &mut Vec<u8>, offset| {
        file.read_exact_at(buffer, offset)?;
        black_box(hasher.hash(buffer));
        Ok(())
    };
    let pieces = |bytes: usize| {
        let (file, hasher) = (&file, &hasher);
        move |buffer: &mut Vec<u8>, offset: u64| {
            for (piece, at) in buffer.chunks_mut(bytes).zip((offset..).step_by(bytes)) {
                file.read_exact_at(piece, at)?;
                // As fast as continuing one hash.
                black_box(hasher.hash(piece));
            }
            Ok(())
        }
    };
    let mapped = |_: &mut Vec<u8>, offset| map(&file, offset, &hasher);
    let hash_only = |buffer: &mut Vec<u8>, _| {
        black_box(hasher.hash(black_box(buffer)));
        Ok(())
    };
    let ways: [(&str, &Way<'_>); 7] = [
        ("hash alone", &hash_only),
        ("pread alone", &read_only),
        ("pread 2 MiB, then hash", &whole),
        ("pread and hash 512 KiB", &pieces(512 << 10)),
        ("pread and hash 256 KiB", &pieces(256 << 10)),
        ("pread and hash 128 KiB", &pieces(128 << 10)),
        ("mmap 2 MiB, populate, hash", &mapped),
    ];
    let mut best = [f64::INFINITY; 7];
    // In turns, so that a change of the machine's load meets all of them.
    for _ in 0..ROUNDS {
        for (best, (_, way)) in best.iter_mut().zip(ways) {
            *best = best.min(measure(bytes, way)?);
        }
    }
    let megabytes = u32::try_from(bytes / 1_000_000).map_err(Error::other)?;
    for (seconds, (what, _)) in best.into_iter().zip(ways) {
        println!("{what:30} {:6.2} GB/s", f64::from(megabytes) / seconds / 1e3);
    }
    Ok(())
}

/// The processor time of reading all segments.
fn measure(bytes: u64, way: &Way<'_>) -> Result<f64> {
    let (next, begin) = (AtomicU64::new(0), processor_s());
    std::thread::scope(|scope| {
        let work = || {
            let mut buffer = vec![1; SEGMENT_BYTES];
            loop {
                let offset = next.fetch_add(SEGMENT_BYTES as u64, Ordering::Relaxed);
                if offset >= bytes {
                    return Ok(());
                }
                way(&mut buffer, offset)?;
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
