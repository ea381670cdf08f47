//! What this machine can do with these disks, whatever program backs them up.
//!
//! Each bound does one unavoidable part of the work on all cores and nothing else.

use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use silt_chunking::{DigestedBlocks, Fingerprinter, SegmentDigester, is_zero};
use silt_format::{BLOCK_BYTES, SEGMENT_BYTES};
use silt_source::{ExtentKind, SourceOptions, open_source};
use silt_storage::{AlignedBuffer, DirectFile};

use crate::disks::{DAYS, Disks};
use crate::{BoundsOptions, Result};

/// Chunks of one frame.
const FRAME_BYTES: usize = 256 << 10;
/// The level that silt uses.
const ZSTD_LEVEL: i32 = 1;
/// Each figure is that of the fastest of this many rounds.
const ROUNDS: usize = 3;

/// The bounds of one set of disks, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bounds {
    /// Bytes of the first day's disks that are not holes.
    pub data_bytes: u64,
    /// Bytes of the first day's chunks, each once a disk, zeros not at all.
    pub unique_bytes: u64,
    /// Reading a day's data from the page cache.
    pub read_s: f64,
    /// Reading it and the digest of every segment.
    pub digest_s: f64,
    /// Compressing the unique chunks, which lie in memory.
    pub zstd_s: f64,
    /// Decompressing a day's data, verifying every chunk, writing it to files and their disk.
    pub restore_s: f64,
}

/// Prints the bounds as JSON; in a process of its own, so that its memory is not taken for that of
/// the programs that are measured.
pub fn print(options: &BoundsOptions) -> Result<()> {
    let disks = Disks::find(&options.disks, &options.vms, DAYS)?;
    println!("{}", serde_json::to_string(&measure(&disks, &options.work)?)?);
    Ok(())
}

/// A segment that is not a hole: its disk and where it begins.
#[derive(Clone, Copy)]
struct Piece {
    disk: usize,
    offset: u64,
    bytes: usize,
}

/// The open disks of one day, and their segments.
struct Day {
    files: Vec<File>,
    bytes: Vec<u64>,
    pieces: Vec<Piece>,
}

fn measure(disks: &Disks, work: &Path) -> Result<Bounds> {
    let (first, last) = (open_day(disks, 0)?, open_day(disks, disks.last())?);
    for_each_piece(&first, |_, _| ());
    for_each_piece(&last, |_, _| ());
    let read_s = fastest(|| for_each_piece(&last, |_, _| ()));
    let digest_s = digest_s(&last);
    let (unique_bytes, zstd_s) = zstd_s(&first)?;
    let restore_s = restore_bound(&last, work)?;
    let data_bytes = first.pieces.iter().map(|piece| piece.bytes as u64).sum();
    Ok(Bounds { data_bytes, unique_bytes, read_s, digest_s, zstd_s, restore_s })
}

/// Seconds to read the last day's data from the page cache, with the digest of every segment.
pub fn digest_bound(disks: &Disks) -> Result<f64> {
    Ok(digest_s(&open_day(disks, disks.last())?))
}

/// Seconds to compress the first day's chunks, each once a disk, in memory.
pub fn zstd_bound(disks: &Disks) -> Result<f64> {
    Ok(zstd_s(&open_day(disks, 0)?)?.1)
}

fn digest_s(day: &Day) -> f64 {
    let digester = SegmentDigester::new([7; 32], Fingerprinter::new([8; 32]));
    fastest(|| {
        for_each_piece(day, |_, data| {
            std::hint::black_box(digester.digest(data, &mut DigestedBlocks::default()));
        });
    })
}

/// The bytes of the day's different chunks, and the seconds to compress them.
fn zstd_s(day: &Day) -> Result<(u64, f64)> {
    let (unique_bytes, frames) = unique_frames(day)?;
    let seconds = fastest(|| {
        in_parallel(frames.len(), |number, buffers| {
            compress(&frames[number], buffers);
        });
    });
    Ok((unique_bytes, seconds))
}

fn fastest(work: impl Fn()) -> f64 {
    let rounds = (0..ROUNDS).map(|_| {
        let begin = Instant::now();
        work();
        begin.elapsed().as_secs_f64()
    });
    rounds.fold(f64::INFINITY, f64::min)
}

fn open_day(disks: &Disks, day: usize) -> Result<Day> {
    let mut found = Day { files: Vec::new(), bytes: Vec::new(), pieces: Vec::new() };
    for (disk, machine) in disks.machines.iter().enumerate() {
        let path = disks.path(machine, day);
        let source = open_source(&path, &SourceOptions::default())?;
        let bytes = source.info().size.unwrap_or(0);
        let mut offset = 0;
        while offset < bytes {
            let extent = source.extent_at(offset)?;
            let end = (extent.offset + extent.length).min(bytes);
            let next = offset + SEGMENT_BYTES as u64;
            if extent.kind == ExtentKind::Zero && end >= next.min(bytes) {
                // Whole segments of the hole are passed over.
                offset = (end / SEGMENT_BYTES as u64 * SEGMENT_BYTES as u64).max(next);
                continue;
            }
            let length = usize::try_from(bytes - offset)?.min(SEGMENT_BYTES);
            found.pieces.push(Piece { disk, offset, bytes: length });
            offset = next;
        }
        found.files.push(File::open(&path)?);
        found.bytes.push(bytes);
    }
    Ok(found)
}

/// One thread's memory.
struct Buffers {
    raw: AlignedBuffer,
    coded: Vec<u8>,
    compressor: zstd::bulk::Compressor<'static>,
    decompressor: zstd::bulk::Decompressor<'static>,
}

/// Calls `work` with each number below `count`, on one thread a core.
fn in_parallel(count: usize, work: impl Fn(usize, &mut Buffers) + Sync) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let Ok(mut buffers) = Buffers::new() else { return };
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    work(number, &mut buffers);
                }
            });
        }
    });
}

impl Buffers {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            raw: AlignedBuffer::new(SEGMENT_BYTES),
            coded: Vec::with_capacity(SEGMENT_BYTES * 2),
            compressor: zstd::bulk::Compressor::new(ZSTD_LEVEL)?,
            decompressor: zstd::bulk::Decompressor::new()?,
        })
    }
}

/// Reads every segment, and calls `work` with it.
fn for_each_piece(day: &Day, work: impl Fn(usize, &[u8]) + Sync) {
    in_parallel(day.pieces.len(), |number, buffers| {
        let piece = day.pieces[number];
        let segment = &mut buffers.raw[..piece.bytes];
        let read = day.files[piece.disk].read_exact_at(segment, piece.offset);
        assert!(read.is_ok(), "a disk that was opened can be read");
        work(number, segment);
    });
}

/// The first day's chunks, each once a disk, as frames.
fn unique_frames(day: &Day) -> Result<(u64, Vec<Vec<u8>>)> {
    let fingerprinter = Fingerprinter::new([7; 32]);
    let mut seen = HashSet::new();
    let mut frames = vec![Vec::with_capacity(FRAME_BYTES)];
    let mut segment = Vec::new();
    let mut disk = 0;
    for piece in &day.pieces {
        if piece.disk != disk {
            // Each disk is a series of its own, and has its own chunks.
            disk = piece.disk;
            seen.clear();
        }
        segment.resize(piece.bytes, 0);
        day.files[piece.disk].read_exact_at(&mut segment, piece.offset)?;
        for chunk in segment.chunks(BLOCK_BYTES) {
            if is_zero(chunk) || !seen.insert(fingerprinter.fingerprint(chunk)) {
                continue;
            }
            if frames.last().is_none_or(|frame| frame.len() + chunk.len() > FRAME_BYTES) {
                frames.push(Vec::with_capacity(FRAME_BYTES));
            }
            if let Some(frame) = frames.last_mut() {
                frame.extend_from_slice(chunk);
            }
        }
    }
    Ok((frames.iter().map(|frame| frame.len() as u64).sum(), frames))
}

fn compress(frame: &[u8], buffers: &mut Buffers) {
    buffers.coded.clear();
    let coded = buffers.compressor.compress_to_buffer(frame, &mut buffers.coded);
    assert!(coded.is_ok(), "the buffer is large enough for any frame");
}

/// A segment to be written: where, its chunks without zeros compressed, and each chunk's place.
struct Stored {
    piece: Piece,
    coded: Vec<u8>,
    runs: Vec<std::ops::Range<usize>>,
}

/// Restores the disks of a day from frames in memory.
fn restore_bound(day: &Day, work: &Path) -> Result<f64> {
    let mut compressor = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
    let mut stored = Vec::with_capacity(day.pieces.len());
    let (mut segment, mut dense) = (Vec::new(), Vec::new());
    for piece in &day.pieces {
        segment.resize(piece.bytes, 0);
        day.files[piece.disk].read_exact_at(&mut segment, piece.offset)?;
        dense.clear();
        let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
        for (number, chunk) in segment.chunks(BLOCK_BYTES).enumerate() {
            if is_zero(chunk) {
                continue;
            }
            let start = number * BLOCK_BYTES;
            dense.extend_from_slice(chunk);
            match runs.last_mut() {
                Some(run) if run.end == start => run.end += chunk.len(),
                _ => runs.push(start..start + chunk.len()),
            }
        }
        if !runs.is_empty() {
            stored.push(Stored { piece: *piece, coded: compressor.compress(&dense)?, runs });
        }
    }
    let fingerprinter = Fingerprinter::new([7; 32]);
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        rustix::fs::sync();
        let begin = Instant::now();
        // Disk after disk, as a program that restores one disk at a time does it.
        for (disk, bytes) in day.bytes.iter().enumerate() {
            let path = work.join("bound.raw");
            let target = File::create(&path)?;
            target.set_len(*bytes)?;
            let direct = DirectFile::open(&target);
            let mine: Vec<_> = stored.iter().filter(|stored| stored.piece.disk == disk).collect();
            in_parallel(mine.len(), |number, buffers| {
                let done =
                    write_back(mine[number], &fingerprinter, &target, direct.as_ref(), buffers);
                assert!(done.is_ok(), "the bound's file can be written");
            });
            target.sync_all()?;
        }
        least = least.min(begin.elapsed().as_secs_f64());
        std::fs::remove_file(work.join("bound.raw"))?;
    }
    Ok(least)
}

fn write_back(
    stored: &Stored,
    fingerprinter: &Fingerprinter,
    target: &File,
    direct: Option<&DirectFile>,
    buffers: &mut Buffers,
) -> std::io::Result<()> {
    let bytes = buffers.decompressor.decompress_to_buffer(&stored.coded, &mut buffers.raw[..])?;
    let raw = &buffers.raw[..bytes];
    let end = |number: usize| ((number + 1) * BLOCK_BYTES).min(bytes);
    let chunks = 0..bytes.div_ceil(BLOCK_BYTES);
    let ranges: Vec<_> = chunks.map(|number| number * BLOCK_BYTES..end(number)).collect();
    let mut found = Vec::new();
    fingerprinter.fingerprint_many(raw, &ranges, &mut found);
    std::hint::black_box(&found);
    let mut at = 0;
    for run in &stored.runs {
        let (data, offset) = (&raw[at..at + run.len()], stored.piece.offset + run.start as u64);
        let written = direct.map_or(Ok(false), |direct| direct.write_all_at(data, offset))?;
        if !written {
            target.write_all_at(data, offset)?;
        }
        at += run.len();
    }
    Ok(())
}
