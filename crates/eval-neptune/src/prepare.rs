//! Chunks, fingerprints and sketches of a set by the product's code, and how long each took.

use std::collections::HashMap;

use silt_chunking::{Chunker, Fingerprinter};
use silt_format::{Chunking, Fingerprint, SEGMENT_BYTES};
use silt_similarity::{Sketch, SketchParameters, Sketcher};

use crate::set::{DIMENSIONS, Version};
use crate::{Result, now};

/// Chunks of the published size.
pub const CHUNKING: Chunking = Chunking::FastCdc { min: 2 << 10, avg: 8 << 10, max: 64 << 10 };

/// A chunk that is in a set at least once.
pub struct Chunk {
    pub print: Fingerprint,
    pub bytes: Box<[u8]>,
}

/// A version by its chunks.
pub struct Cut {
    pub file: u32,
    pub round: u32,
    pub source: u32,
    pub vector: [f64; DIMENSIONS],
    /// Places in the list of chunks.
    pub chunks: Vec<u32>,
}

/// A set that is cut.
pub struct Prepared {
    pub name: String,
    pub chunks: Vec<Chunk>,
    pub versions: Vec<Cut>,
    /// Bytes of all versions.
    pub bytes: u64,
    /// What cutting and fingerprinting them took on one thread.
    pub seconds: f64,
}

/// The sketches of all chunks.
pub struct Sketches {
    pub of: Vec<Option<Sketch>>,
    pub parameters: SketchParameters,
    /// What a byte took on one thread.
    pub seconds_per_byte: f64,
}

/// Cuts versions as they come.
pub struct Preparing {
    chunker: Chunker,
    fingerprinter: Fingerprinter,
    numbers: HashMap<Fingerprint, u32>,
    prepared: Prepared,
}

impl Preparing {
    pub fn new(name: &str) -> Result<Self> {
        let prepared = Prepared {
            name: name.to_owned(),
            chunks: Vec::new(),
            versions: Vec::new(),
            bytes: 0,
            seconds: 0.0,
        };
        Ok(Self {
            chunker: Chunker::new(CHUNKING)?,
            fingerprinter: Fingerprinter::new([5; 32]),
            numbers: HashMap::new(),
            prepared,
        })
    }

    pub fn add(&mut self, version: &Version) -> Result<()> {
        let start = now();
        let (mut ranges, mut lengths, mut at) = (Vec::new(), Vec::new(), 0);
        for segment in version.bytes.chunks(SEGMENT_BYTES) {
            self.chunker.cut(segment, &mut lengths);
            for length in &lengths {
                let end = at + usize::try_from(*length)?;
                ranges.push(at..end);
                at = end;
            }
        }
        let mut prints = Vec::new();
        self.fingerprinter.fingerprint_many(&version.bytes, &ranges, &mut prints);
        self.prepared.seconds += start.elapsed().as_secs_f64();
        self.prepared.bytes += version.bytes.len() as u64;
        let mut chunks = Vec::with_capacity(ranges.len());
        for (range, print) in ranges.into_iter().zip(prints) {
            let next = u32::try_from(self.prepared.chunks.len())?;
            let number = *self.numbers.entry(print).or_insert(next);
            if number == next {
                let bytes = version.bytes[range].into();
                self.prepared.chunks.push(Chunk { print, bytes });
            }
            chunks.push(number);
        }
        let Version { file, round, source, vector, .. } = *version;
        self.prepared.versions.push(Cut { file, round, source, vector, chunks });
        Ok(())
    }

    pub fn finish(self) -> Prepared {
        self.prepared
    }
}

impl Prepared {
    /// A chunk's bytes.
    pub fn chunk(&self, number: u32) -> &[u8] {
        &self.chunks[number as usize].bytes
    }

    /// The bytes of a version.
    pub fn version(&self, version: &Cut) -> Vec<u8> {
        version.chunks.iter().flat_map(|chunk| self.chunk(*chunk)).copied().collect()
    }

    /// Bytes of the versions that are sent, which are those behind round 0.
    pub fn sent_bytes(&self) -> u64 {
        let sent = self.versions.iter().filter(|version| version.round > 0);
        sent.flat_map(|version| &version.chunks).map(|chunk| self.chunk(*chunk).len() as u64).sum()
    }

    /// Sketches every chunk.
    pub fn sketch(&self, parameters: SketchParameters) -> Sketches {
        let sketcher = Sketcher::new(parameters);
        let start = now();
        let of = self.chunks.iter().map(|chunk| sketcher.sketch(&chunk.bytes)).collect();
        let seconds = start.elapsed().as_secs_f64();
        let bytes: usize = self.chunks.iter().map(|chunk| chunk.bytes.len()).sum();
        Sketches {
            of,
            parameters: sketcher.parameters(),
            seconds_per_byte: seconds / bytes.max(1) as f64,
        }
    }
}
