//! Measuring which chunking works best for each kind of file of a tree.

use std::path::{Path, PathBuf};

use super::distinct::Distinct;
use silt_chunking::{Chunker, Fingerprinter};
use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::tree::{EntryKind, FileChunking, FileKind};
use silt_format::{Chunking, Result, SEGMENT_BYTES};
use silt_repository::env::Context;
use silt_repository::event::{Activity, Progress};

use silt_tree::{MAGIC_BYTES, Rules, Step, Walk, kind_of};

/// Sizes in KiB that are measured. The format has no fixed sizes below 4 KiB, so these are never
/// proposed.
const FIXED_KIB: [u32; 6] = [1, 2, 4, 8, 16, 32];
const CONTENT_KIB: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Maximum number of bytes of a file that are cut at a time.
const PART_BYTES: u64 = 16 << 20;
/// Size of a chunk in a recipe: its length and its fingerprint.
const RECIPE_BYTES: u64 = 24;
/// A proposed chunking saves at least this percentage of the bytes that the best one saves.
const ENOUGH_PERCENT: u64 = 95;
/// There is no proposal if the best chunking saves less than one byte in this many.
const LEAST_SAVED: u64 = 100;

/// Options for [`tune`].
///
/// ```
/// # use siltstone::*;
/// # let folder = tempfile::tempdir().unwrap();
/// # std::fs::write(folder.path().join("notes.txt"), b"remember").unwrap();
/// let options = TuneOptions { bytes_max: 4, ..TuneOptions::default() };
/// let report = tune(&SystemEnv::context(), folder.path(), &options)?;
/// assert_eq!((report.kinds[0].bytes, report.kinds[0].measured_bytes), (8, 0));
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TuneOptions {
    /// The entries to leave out.
    pub rules: Rules,
    /// Maximum number of bytes of each kind that are measured. A file that would exceed it is not
    /// measured at all.
    pub bytes_max: u64,
    /// A folder for temporary files: 12 bytes for each chunk of each chunking, about 5 % of what is
    /// measured.
    pub temp: PathBuf,
}

impl Default for TuneOptions {
    fn default() -> Self {
        Self { rules: Rules::default(), bytes_max: 512 << 20, temp: std::env::temp_dir() }
    }
}

/// The result of one chunking for the files of a kind.
///
/// ```
/// # use siltstone::{Chunking, TuneMeasure};
/// let chunking = Chunking::Fixed { bytes: 4096 };
/// let time_ns = 500_000_000;
/// let measure = TuneMeasure { chunking, chunks: 100, unique_bytes: 200_000, time_ns };
/// assert_eq!(measure.saved_bytes(409_600), 409_600 - 200_000 - 100 * 24);
/// assert_eq!(measure.efficiency(409_600), 2.0 * 207_200.0);
/// assert!(measure.is_selectable());
/// assert!(!TuneMeasure { chunking: Chunking::Fixed { bytes: 1024 }, ..measure }.is_selectable());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TuneMeasure {
    /// The chunking.
    pub chunking: Chunking,
    /// Number of chunks, without those that are all zeros.
    pub chunks: u64,
    /// Sum of the sizes of distinct chunks.
    pub unique_bytes: u64,
    /// Time to cut and fingerprint on one core, in nanoseconds.
    pub time_ns: u64,
}

impl TuneMeasure {
    /// Returns whether a repository can use the chunking. Fixed sizes of 1 and 2 KiB are only
    /// measured.
    pub fn is_selectable(&self) -> bool {
        self.chunking.validate().is_ok()
    }

    /// Returns how many of `bytes` need not be stored: those that are neither in a distinct chunk
    /// nor taken by recipes. Does not consider compression.
    pub fn saved_bytes(&self, bytes: u64) -> u64 {
        bytes.saturating_sub(self.unique_bytes + RECIPE_BYTES * self.chunks)
    }

    /// Returns the deduplication efficiency: bytes saved per second (AppDedupe's DE).
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn efficiency(&self, bytes: u64) -> f64 {
        self.saved_bytes(bytes) as f64 * 1e9 / self.time_ns.max(1) as f64
    }
}

/// The results for the files of one kind.
///
/// ```
/// # use siltstone::*;
/// # let folder = tempfile::tempdir().unwrap();
/// for name in ["a.txt", "b.txt"] {
///     std::fs::write(folder.path().join(name), "all work and no play\n".repeat(3000)).unwrap();
/// }
/// let report = tune(&SystemEnv::context(), folder.path(), &TuneOptions::default())?;
/// let text: &TunedKind = &report.kinds[0];
/// assert_eq!((text.kind.name(), text.files, text.measures.len()), ("text", 2, 12));
/// assert!(text.proposed.is_some(), "one of the two is saved");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TunedKind {
    /// The kind.
    pub kind: FileKind,
    /// Number of its files.
    pub files: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
    /// Number of bytes that were measured. Segments that are all zeros, as disk images have them,
    /// are not counted: they cost nothing with any chunking.
    pub measured_bytes: u64,
    /// The results of each chunking: fixed sizes, then content-defined ones, from small to large.
    pub measures: Vec<TuneMeasure>,
    /// Of the chunkings that a repository can use, the most efficient one of those that save at
    /// least 95 % as much as the best one; `None` if the best one saves less than 1 % of the bytes.
    pub proposed: Option<Chunking>,
}

/// The results for each kind of file of a tree.
///
/// ```
/// # use siltstone::*;
/// # let folder = tempfile::tempdir().unwrap();
/// # std::fs::write(folder.path().join("song"), b"ID3 la la").unwrap();
/// let report = tune(&SystemEnv::context(), folder.path(), &TuneOptions::default())?;
/// assert_eq!(report.kinds.len(), 1, "there is only a song");
/// let before = FileChunking::default();
/// assert_eq!(report.proposal(before), before, "and nothing in it twice");
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct TuneReport {
    /// The kinds that occur, those with the most bytes first.
    pub kinds: Vec<TunedKind>,
    /// Number of files that could not be read.
    pub unreadable: u64,
}

impl TuneReport {
    /// Returns `present` with the proposed chunkings in place of the present ones.
    pub fn proposal(&self, present: FileChunking) -> FileChunking {
        let mut chunking = present;
        for kind in &self.kinds {
            if let Some(proposed) = kind.proposed {
                // This cannot fail: all measured chunkings are within the format's bounds.
                let _ = chunking.set(kind.kind, proposed);
            }
        }
        chunking
    }
}

/// Cuts the files of a directory with each chunking, and measures how much each saves.
///
/// Uses at most 16 MiB of memory for data, 10 MiB for buffers, and in the end 32 MiB for
/// fingerprints. Counts files that cannot be read. Fails with `NotFound` if there is no such
/// directory.
///
/// ```
/// # use siltstone::*;
/// # let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("notes.txt"), "remember the milk\n".repeat(5000)).unwrap();
/// let report = tune(&SystemEnv::context(), folder.path(), &TuneOptions::default())?;
/// assert_eq!(report.kinds[0].measured_bytes, 90_000);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub fn tune(context: &Context, root: &Path, options: &TuneOptions) -> Result<TuneReport> {
    let mut tuning = Tuning {
        context,
        fingerprinter: Fingerprinter::new(context.random()),
        options,
        kinds: Vec::new(),
        data: Vec::new(),
        read: 0,
    };
    let mut walk = Walk::open(root, &options.rules)?;
    let mut unreadable = 0;
    while let Some(step) = walk.next()? {
        context.check_interrupted()?;
        match step {
            Step::Entry(found) if found.metadata.kind == EntryKind::File => {
                let Ok(file) = walk.open_file(&found) else {
                    unreadable += 1;
                    continue;
                };
                let is_read = tuning.file(&file, &found.name, found.metadata.size)?;
                unreadable += u64::from(!is_read);
            }
            Step::Failed(..) => unreadable += 1,
            _ => {}
        }
    }
    let kinds = tuning.kinds.into_iter().map(KindTuning::end);
    let mut kinds = kinds.collect::<Result<Vec<TunedKind>>>()?;
    kinds.sort_by_key(|kind| std::cmp::Reverse(kind.bytes));
    Ok(TuneReport { kinds, unreadable })
}

struct Tuning<'a> {
    context: &'a Context,
    fingerprinter: Fingerprinter,
    options: &'a TuneOptions,
    kinds: Vec<KindTuning>,
    data: Vec<u8>,
    read: u64,
}

struct KindTuning {
    kind: FileKind,
    files: u64,
    bytes: u64,
    measured_bytes: u64,
    ways: Vec<Way>,
}

/// One chunking, and its result so far.
struct Way {
    /// `None` for a size that the format does not have.
    chunker: Option<Chunker>,
    measure: TuneMeasure,
    chunks: Distinct,
}

impl Tuning<'_> {
    /// Measures a file; whether it could be read.
    fn file(&mut self, file: &silt_tree::OpenFile, name: &[u8], bytes: u64) -> Result<bool> {
        let mut start = [0; MAGIC_BYTES];
        let Ok(read) = file.read_at(0, &mut start) else { return Ok(false) };
        let kind = kind_of(&start[..read], name);
        let known = self.kinds.iter().position(|tuning| tuning.kind == kind);
        let place = known.unwrap_or(self.kinds.len());
        if known.is_none() {
            self.kinds.push(KindTuning::new(kind, &self.options.temp));
        }
        let tuning = &mut self.kinds[place];
        tuning.files += 1;
        tuning.bytes += bytes;
        if tuning.measured_bytes + bytes > self.options.bytes_max {
            return Ok(true);
        }
        let mut at = 0;
        while at < bytes {
            self.data.resize(to_usize((bytes - at).min(PART_BYTES)), 0);
            let Ok(read) = file.read_at(at, &mut self.data) else { return Ok(false) };
            if read == 0 {
                break;
            }
            for run in runs(&self.data[..read]) {
                for way in &mut tuning.ways {
                    way.take(self.context, &self.fingerprinter, run)?;
                }
                tuning.measured_bytes += to_u64(run.len());
            }
            at += to_u64(read);
            self.read += to_u64(read);
            self.context.report(Progress::bytes(Activity::Scan, self.read, None));
        }
        Ok(true)
    }
}

/// The parts of a file's content between segments that are all zeros.
fn runs(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut segments = data.chunks(SEGMENT_BYTES).peekable();
    let mut at = 0;
    std::iter::from_fn(move || {
        while let Some(zeros) = segments.next_if(|segment| silt_chunking::is_zero(segment)) {
            at += zeros.len();
        }
        let start = at;
        while let Some(segment) = segments.next_if(|segment| !silt_chunking::is_zero(segment)) {
            at += segment.len();
        }
        (at > start).then(|| &data[start..at])
    })
}

impl KindTuning {
    fn new(kind: FileKind, temp: &Path) -> Self {
        let fixed = FIXED_KIB.map(|kib| Chunking::Fixed { bytes: kib << 10 });
        let content = CONTENT_KIB.map(|kib| {
            let avg = kib << 10;
            Chunking::FastCdc { min: avg / 4, avg, max: avg * 8 }
        });
        let ways = fixed.into_iter().chain(content).map(|way| Way::new(way, temp)).collect();
        Self { kind, files: 0, bytes: 0, measured_bytes: 0, ways }
    }

    fn end(self) -> Result<TunedKind> {
        let Self { kind, files, bytes, measured_bytes, ways } = self;
        let end = |way: Way| -> Result<TuneMeasure> {
            Ok(TuneMeasure { unique_bytes: way.chunks.bytes()?, ..way.measure })
        };
        let measures = ways.into_iter().map(end).collect::<Result<Vec<TuneMeasure>>>()?;
        let saved = |measure: &&TuneMeasure| measure.saved_bytes(measured_bytes);
        let selectable = || measures.iter().filter(|measure| measure.is_selectable());
        let best = selectable().map(|measure| saved(&measure)).max().unwrap_or(0);
        let enough = selectable().filter(|measure| {
            best > measured_bytes / LEAST_SAVED && saved(measure) >= best * ENOUGH_PERCENT / 100
        });
        let proposed = enough
            .max_by(|a, b| a.efficiency(measured_bytes).total_cmp(&b.efficiency(measured_bytes)));
        let proposed = proposed.map(|measure| measure.chunking);
        Ok(TunedKind { kind, files, bytes, measured_bytes, measures, proposed })
    }
}

impl Way {
    fn new(chunking: Chunking, temp: &Path) -> Self {
        let measure = TuneMeasure { chunking, chunks: 0, unique_bytes: 0, time_ns: 0 };
        Self { chunker: Chunker::new(chunking).ok(), measure, chunks: Distinct::new(temp) }
    }

    fn cut(&self, data: &[u8], lengths: &mut Vec<u32>) {
        match (&self.chunker, self.measure.chunking) {
            (Some(chunker), _) => chunker.cut(data, lengths),
            (None, Chunking::Fixed { bytes: size } | Chunking::FastCdc { avg: size, .. }) => {
                lengths.clear();
                let size = size as usize;
                lengths.extend(data.chunks(size).map(|chunk| to_u32(chunk.len())));
            }
        }
    }

    fn take(
        &mut self,
        context: &Context,
        fingerprinter: &Fingerprinter,
        data: &[u8],
    ) -> Result<()> {
        let began = context.env.now_ns();
        let (mut at, mut ranges, mut lengths) = (0, Vec::new(), Vec::new());
        while at < data.len() {
            let end = data.len().min(at + SEGMENT_BYTES);
            self.cut(&data[at..end], &mut lengths);
            // The last chunk ends with the window, not at a cut: cut it again in the next window.
            if end < data.len() && lengths.len() > 1 {
                lengths.pop();
            }
            for length in &lengths {
                ranges.push(at..at + *length as usize);
                at += *length as usize;
            }
        }
        ranges.retain(|range| !silt_chunking::is_zero(&data[range.clone()]));
        let mut fingerprints = Vec::new();
        fingerprinter.fingerprint_many(data, &ranges, &mut fingerprints);
        let took = context.env.now_ns().saturating_sub(began);
        self.measure.time_ns += u64::try_from(took).unwrap_or(0);
        self.measure.chunks += to_u64(ranges.len());
        for (range, fingerprint) in ranges.iter().zip(&fingerprints) {
            let key = fingerprint.0[..8].iter().fold(0, |key, byte| key << 8 | u64::from(*byte));
            self.chunks.add(key, to_u32(range.len()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "tune/tests.rs"]
mod tests;
