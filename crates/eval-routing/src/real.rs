//! Real files and disk images as a trace: read once, and cut as the product cuts them.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use silt_chunking::{Chunker, Fingerprinter};
use silt_format::SEGMENT_BYTES;
use silt_format::number::{to_u32, to_u64, to_usize};
use silt_format::tree::{EntryKind, FileChunking, FileKind};
use silt_report::Result;
use silt_routing::{Application, Chunk};
use silt_tree::{MAGIC_BYTES, Rules, Step, Walk, kind_of};

/// The key of fingerprints: the same in all snapshots.
const KEY: [u8; 32] = *b"silt-eval appdedupe, real files.";

/// The chunks of a directory or of a disk image, in the order in which they are backed up.
#[derive(Default)]
pub struct Snapshot {
    chunks: Vec<Chunk>,
    /// For each file its application and the number of its chunks.
    files: Vec<(Application, usize)>,
}

/// A file begins, or a chunk of it.
pub enum Part {
    File(Application),
    Chunk(Chunk),
}

impl Snapshot {
    /// Reads a directory, or a file as a disk image. Chunks of zeros are left out: nobody stores
    /// them. Entries of a directory that cannot be read are left out, too.
    pub fn read(path: &Path) -> Result<Self> {
        let fingerprinter = Fingerprinter::new(KEY);
        let mut snapshot = Self::default();
        if !path.is_dir() {
            let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
            let size = file.metadata()?.len();
            let read = |at: u64, into: &mut [u8]| file.read_at(into, at).ok();
            snapshot.file(&fingerprinter, FileKind::DiskImage, size, &read);
            return Ok(snapshot);
        }
        let mut walk = Walk::open(path, &Rules::default())?;
        while let Some(step) = walk.next()? {
            let Step::Entry(found) = step else { continue };
            if found.metadata.kind != EntryKind::File {
                continue;
            }
            let Ok(file) = walk.open_file(&found) else { continue };
            let read = |at: u64, into: &mut [u8]| file.read_at(at, into).ok();
            let mut start = [0; MAGIC_BYTES];
            let Some(begun) = read(0, &mut start) else { continue };
            let kind = kind_of(&start[..begun], &found.name);
            snapshot.file(&fingerprinter, kind, found.metadata.size, &read);
        }
        Ok(snapshot)
    }

    /// Cuts a file, segment by segment.
    fn file(
        &mut self,
        fingerprinter: &Fingerprinter,
        kind: FileKind,
        size: u64,
        read: &dyn Fn(u64, &mut [u8]) -> Option<usize>,
    ) {
        let Ok(chunker) = Chunker::new(FileChunking::default().of(kind)) else { return };
        let before = self.chunks.len();
        let mut data = vec![0; SEGMENT_BYTES];
        let (mut lengths, mut ranges, mut prints) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = 0;
        while at < size {
            let want = to_usize((size - at).min(to_u64(SEGMENT_BYTES)));
            let Some(got @ 1..) = read(at, &mut data[..want]) else { break };
            let segment = &data[..got];
            at += to_u64(got);
            if silt_chunking::is_zero(segment) {
                continue;
            }
            chunker.cut(segment, &mut lengths);
            let mut end = 0;
            ranges.clear();
            for length in &lengths {
                let start = end;
                end += *length as usize;
                ranges.push(start..end);
            }
            ranges.retain(|range| !silt_chunking::is_zero(&segment[range.clone()]));
            fingerprinter.fingerprint_many(segment, &ranges, &mut prints);
            self.chunks.extend(ranges.iter().zip(&prints).map(|(range, fingerprint)| {
                let print = fingerprint.0.first_chunk().copied().unwrap_or_default();
                Chunk { print: u64::from_be_bytes(print), bytes: to_u32(range.len()) }
            }));
        }
        let application = Application(u16::try_from(kind.index()).unwrap_or(0));
        self.files.push((application, self.chunks.len() - before));
    }

    /// Calls `each` with its files and chunks in order.
    pub fn each(&self, each: &mut dyn FnMut(Part)) {
        let mut chunks = self.chunks.iter();
        for (application, count) in &self.files {
            each(Part::File(*application));
            chunks.by_ref().take(*count).for_each(|chunk| each(Part::Chunk(*chunk)));
        }
    }
}
