//! Describes segments in the terms of a repository with another secret: their bytes are read, and
//! get the fingerprints and digests that they have there.

use std::collections::BTreeMap;
use std::ops::Range;

use silt_backup::Recognition;
use silt_format::number::to_u64;
use silt_format::replica::Described;
use silt_format::{Error, MapRoot, Recipe, Result, SegmentDigest, Signatures};
use silt_repository::volume_reader::{Placed, ReadBuffers, placed};
use silt_repository::{Repository, VolumeReader};

/// Threads that read, at most. Each holds up to three segments.
const WORKERS_MAX: usize = 8;

/// A segment whose bytes were read.
struct Translated {
    /// Its chunks, with their fingerprints in the other repository.
    recipe: Recipe,
    digest: SegmentDigest,
    signatures: Signatures,
    data: Vec<u8>,
}

/// Translates the segments of a volume.
pub(super) struct Translation {
    to: Recognition,
    /// One for each thread that reads.
    buffers: Vec<ReadBuffers>,
    /// Segments that were described and not placed: of the newest message, and some before.
    held: BTreeMap<u64, Translated>,
    reread_bytes: u64,
}

impl Translation {
    /// Prepares to translate with as many threads as the memory limit of `memory_bytes` allows.
    pub fn new(repository: &Repository, to: Recognition, jobs: usize, memory_bytes: u64) -> Self {
        let context = &repository.objects.context;
        let wanted = silt_repository::jobs::jobs(jobs).min(WORKERS_MAX);
        let workers = context.workers(context.budget(memory_bytes).workers(wanted)).max(1);
        let buffers = (0..workers).map(|_| ReadBuffers::default()).collect();
        Self { to, buffers, held: BTreeMap::new(), reread_bytes: 0 }
    }

    /// Number of segments that are described at once, at most.
    pub fn segments_max(&self) -> usize {
        self.buffers.len()
    }

    /// Bytes that were read for their fingerprints, since this was called last.
    pub fn take_reread_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.reread_bytes)
    }

    /// Translates the segments in `all`, whose first one has the number `from`.
    ///
    /// Fails with `Corrupt` or `NotFound` if one can't be read.
    pub fn describe(
        &mut self,
        (reader, root): (&VolumeReader, MapRoot),
        from: u64,
        all: &mut [Described],
    ) -> Result<()> {
        let mut at = from;
        let mut wanted = Vec::new();
        for described in all {
            match described {
                Described::Zeros(count) | Described::Parent(count) => at += *count,
                Described::Segment(..) => {
                    wanted.push((at, described));
                    at += 1;
                }
            }
        }
        while self.held.len() > self.buffers.len() {
            self.held.pop_first();
        }
        let numbers: Vec<u64> = wanted.iter().map(|(number, _)| *number).collect();
        for ((number, described), read) in
            wanted.into_iter().zip(self.read((reader, root), &numbers))
        {
            let read = read?;
            *described = Described::Segment(read.digest, read.signatures);
            self.reread_bytes += to_u64(read.data.len());
            self.held.insert(number, read);
        }
        Ok(())
    }

    /// Reads segments, one in each thread, at most as many as there are threads.
    fn read(&mut self, of: (&VolumeReader, MapRoot), numbers: &[u64]) -> Vec<Result<Translated>> {
        let mut all: Vec<Option<Result<Translated>>> = numbers.iter().map(|_| None).collect();
        let to = &self.to;
        std::thread::scope(|scope| {
            let mut work = all.iter_mut().zip(numbers).zip(&mut self.buffers);
            let own = work.next();
            for ((read, number), buffers) in work {
                scope.spawn(move || *read = Some(translated(to, of, *number, buffers)));
            }
            if let Some(((read, number), buffers)) = own {
                *read = Some(translated(to, of, *number, buffers));
            }
        });
        let unread = || Err(Error::invalid("more segments at once than threads"));
        all.into_iter().map(|read| read.unwrap_or_else(unread)).collect()
    }

    /// Gives the chunks of a segment their fingerprints in the other repository.
    pub fn rewrite(
        &mut self,
        of: (&VolumeReader, MapRoot),
        segment: u64,
        chunks: &mut Recipe,
    ) -> Result<()> {
        let again;
        let found = if let Some(held) = self.held.get(&segment) {
            held
        } else {
            // It is described as in the parent, where it is damaged; or it was held long ago.
            again = translated(&self.to, of, segment, &mut self.buffers[0])?;
            self.reread_bytes += to_u64(again.data.len());
            &again
        };
        for (chunk, found) in chunks.chunks.iter_mut().zip(&found.recipe.chunks) {
            chunk.fingerprint = found.fingerprint;
        }
        Ok(())
    }

    /// Bytes of a segment, if they are held.
    pub fn bytes(&self, segment: u64, range: Range<usize>) -> Option<&[u8]> {
        self.held.get(&segment)?.data.get(range)
    }

    /// Forgets the segments before `end`, which are placed.
    pub fn placed(&mut self, end: u64) {
        self.held = self.held.split_off(&end);
    }
}

/// Reads a segment; every chunk is verified.
fn translated(
    to: &Recognition,
    (reader, root): (&VolumeReader, MapRoot),
    segment: u64,
    buffers: &mut ReadBuffers,
) -> Result<Translated> {
    let entry = reader.map().entry(root, segment)?;
    let entry = entry.ok_or_else(|| Error::invalid(format!("segment {segment} is all zeros")))?;
    let mut recipe = reader.recipe(segment, &entry, buffers)?;
    let mut data = vec![0; recipe.segment_bytes() as usize];
    let stored = placed(&recipe).filter(|(chunk, _)| !chunk.reference.is_zero());
    let stored: Vec<Placed> = stored.collect();
    reader.read_chunks(&stored, &mut data, buffers, &mut |_, error| Err(error))?;
    let (digest, signatures) = to.translate(&mut recipe, &data, entry.digest.kind)?;
    Ok(Translated { recipe, digest, signatures, data })
}
