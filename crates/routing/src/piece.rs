//! Pieces of streams: what is routed as one.

use crate::print::Print;

/// A kind of data that is deduplicated apart from others, such as videos or disks of machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Application(pub u16);

/// A chunk: its fingerprint, and its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The fingerprint.
    pub print: Print,
    /// The size in bytes.
    pub bytes: u32,
}

/// Consecutive chunks of one application's stream that go to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// The kind of data.
    pub application: Application,
    /// The stream, which has a container of its own that is being filled.
    pub stream: u32,
    /// The chunks in the order of the stream.
    pub chunks: Vec<Chunk>,
}

impl Piece {
    /// The size in bytes.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }

    /// The `count` smallest different fingerprints, in order.
    pub fn handprint(&self, count: usize) -> Vec<Print> {
        handprint(self.chunks.iter().map(|chunk| chunk.print), count)
    }
}

/// The `count` smallest different fingerprints, in order.
///
/// Two pieces with the share J of their fingerprints in common (Jaccard) have at least one
/// representative in common with a probability of about 1 - (1 - J)^count (Broder; Sigma-Dedupe,
/// section 3.1).
pub fn handprint(prints: impl Iterator<Item = Print>, count: usize) -> Vec<Print> {
    let mut least: Vec<Print> = Vec::with_capacity(count + 1);
    for print in prints {
        if least.len() == count && least.last().is_none_or(|last| *last <= print) {
            continue;
        }
        if let Err(place) = least.binary_search(&print) {
            least.insert(place, print);
            least.truncate(count);
        }
    }
    least
}

/// Finds where super-chunks end that are cut by content: data that moved within a stream is cut as
/// before, which fixed sizes miss.
///
/// A super-chunk ends behind the first chunk from 128 KiB on whose fingerprint is a multiple of 64
/// but for its lowest 20 bits, and has 1 MiB at most: with chunks of 4 KiB, 370 KiB on average.
/// Smaller ones save more and ask more: with eight representatives and three nodes, these ask for
/// a quarter of the fingerprints beyond those of the chunks themselves. (AppDedupe's have 1 MiB;
/// whether content ends them is not published.)
#[derive(Debug, Default)]
pub struct SuperChunks {
    bytes: u64,
}

impl SuperChunks {
    const BYTES_MIN: u64 = 128 << 10;
    const BYTES_MAX: u64 = 1 << 20;
    /// Handprints take the smallest fingerprints, so the highest bits would not do.
    const SHIFT: u32 = 20;
    const DIVISOR: u64 = 64;

    /// Adds a chunk. Returns whether a super-chunk ends with it.
    pub fn ends_with(&mut self, chunk: Chunk) -> bool {
        self.bytes += u64::from(chunk.bytes);
        let is_marked = (chunk.print >> Self::SHIFT).is_multiple_of(Self::DIVISOR);
        let ends = self.bytes >= Self::BYTES_MAX || self.bytes >= Self::BYTES_MIN && is_marked;
        if ends {
            self.bytes = 0;
        }
        ends
    }
}

/// What a router takes as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grain {
    /// Each chunk by itself.
    Chunk,
    /// Consecutive chunks of at least this many bytes.
    Bytes(u64),
    /// Whole files.
    File,
}

/// Groups the chunks of one stream into pieces.
#[derive(Debug)]
pub struct Cutter {
    grain: Grain,
    piece: Piece,
    bytes: u64,
}

impl Cutter {
    /// A cutter for a stream of one application.
    pub fn new(grain: Grain, application: Application, stream: u32) -> Self {
        let piece = Piece { application, stream, chunks: Vec::new() };
        Self { grain, piece, bytes: 0 }
    }

    /// Adds a chunk. Returns the piece that it completes.
    pub fn push(&mut self, chunk: Chunk) -> Option<Piece> {
        self.piece.chunks.push(chunk);
        self.bytes += u64::from(chunk.bytes);
        let is_full = match self.grain {
            Grain::Chunk => true,
            Grain::Bytes(bytes) => self.bytes >= bytes,
            Grain::File => false,
        };
        if is_full { self.cut() } else { None }
    }

    /// Ends a file. Returns the piece that ends with it, if pieces are files.
    pub fn end_file(&mut self) -> Option<Piece> {
        if self.grain == Grain::File { self.cut() } else { None }
    }

    /// Ends the stream. Returns the chunks that have not made a whole piece.
    pub fn end(&mut self) -> Option<Piece> {
        self.cut()
    }

    fn cut(&mut self) -> Option<Piece> {
        self.bytes = 0;
        let chunks = std::mem::take(&mut self.piece.chunks);
        if chunks.is_empty() {
            return None;
        }
        Some(Piece { chunks, ..self.piece.clone() })
    }
}
