//! The streams of all sets as they reach the nodes: one client for each, all at the same time.

use silt_routing::{Application, Chunk, Cutter, Grain, Piece};

use super::sets::{PROFILES, Part, Stream, published_gigabytes};

/// How the sets are cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Chunking {
    /// All by this many units.
    Units(u64),
    /// Each application by its own size.
    Own,
}

impl Chunking {
    pub fn units(self, set: usize) -> u64 {
        match self {
            Self::Units(units) => units,
            Self::Own => PROFILES[set].own_units,
        }
    }
}

/// Which sets, and how large they are together.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    pub sets: Vec<usize>,
    pub seed: u64,
    /// Bytes of all seven sets; those that are left out are not replaced.
    pub bytes: f64,
    /// Whether a backup ends the last super-chunk of its stream. Otherwise, what is at one place of
    /// a backup is at another place of its super-chunk in the next.
    pub is_aligned: bool,
}

impl Data {
    pub fn all(seed: u64, bytes: f64) -> Self {
        Self { sets: (0..PROFILES.len()).collect(), seed, bytes, is_aligned: true }
    }

    /// Only the sets whose published traces have files.
    pub fn with_files(&self) -> Self {
        let sets = self.sets.iter().copied().filter(|set| PROFILES[*set].has_files).collect();
        Self { sets, ..self.clone() }
    }

    /// One set, of this many bytes.
    pub fn one(set: usize, seed: u64, bytes: f64) -> Self {
        let bytes = bytes * published_gigabytes() / PROFILES[set].gigabytes;
        Self { sets: vec![set], seed, bytes, is_aligned: true }
    }

    pub fn stream(&self, set: usize, chunking: Chunking) -> Stream {
        let share = PROFILES[set].gigabytes / published_gigabytes();
        Stream::new(&PROFILES[set], self.seed, self.bytes * share, chunking.units(set))
    }

    /// Calls `each` with every piece, in the order in which the pieces are complete: clients read
    /// at rates that let all of them end at the same time.
    pub fn feed(&self, chunking: Chunking, grain: Grain, each: &mut dyn FnMut(Piece)) {
        let mut clients: Vec<Client> =
            self.sets.iter().map(|set| Client::new(self, *set, chunking, grain)).collect();
        while let Some(next) = clients
            .iter_mut()
            .filter(|client| !client.has_ended)
            .min_by(|a, b| a.progress().total_cmp(&b.progress()))
        {
            next.step(each);
        }
    }

    /// Calls `each` with the chunks of a set.
    pub fn chunks(&self, set: usize, chunking: Chunking, each: &mut dyn FnMut(Chunk)) {
        let (mut stream, mut chunks) = (self.stream(set, chunking), Vec::new());
        while stream.part(&mut chunks) != Part::Stream {
            chunks.drain(..).for_each(&mut *each);
        }
    }
}

struct Client {
    stream: Stream,
    cutter: Cutter,
    chunks: Vec<Chunk>,
    done: u64,
    bytes: u64,
    is_aligned: bool,
    has_ended: bool,
}

impl Client {
    fn new(data: &Data, set: usize, chunking: Chunking, grain: Grain) -> Self {
        let stream = data.stream(set, chunking);
        let number = u16::try_from(set).unwrap_or(0);
        let cutter = Cutter::new(grain, Application(number), number.into());
        let bytes = stream.bytes().max(1);
        let is_aligned = data.is_aligned;
        Self { stream, cutter, chunks: Vec::new(), done: 0, bytes, is_aligned, has_ended: false }
    }

    fn progress(&self) -> f64 {
        self.done as f64 / self.bytes as f64
    }

    fn step(&mut self, each: &mut dyn FnMut(Piece)) {
        let part = self.stream.part(&mut self.chunks);
        for chunk in self.chunks.drain(..) {
            self.done += u64::from(chunk.bytes);
            self.cutter.push(chunk).into_iter().for_each(&mut *each);
        }
        if matches!(part, Part::File | Part::Backup) {
            self.cutter.end_file().into_iter().for_each(&mut *each);
        }
        self.has_ended = part == Part::Stream;
        if self.has_ended || (self.is_aligned && part == Part::Backup) {
            self.cutter.end().into_iter().for_each(each);
        }
    }
}
