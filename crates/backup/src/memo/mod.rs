//! What this machine remembers of the segments that it has digested.
//!
//! For each segment of a volume, a file on this machine holds a pair: the segment's fast hash under
//! a secret key, and its digest. Bytes with the same hash have the same digest, so a backup need
//! not compute it. A pair says nothing else: neither which snapshot has the segment, nor where it
//! is. So a file that is old, lost, damaged or another volume's costs time, and never leads to
//! wrong data, whoever has made backups meanwhile.
//!
//! The key is random and stays in the file. Otherwise who has stolen a key of the repository could
//! make a segment of any hash, which a later backup would take for one that it has stored.

mod cleaning;
mod file;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use silt_chunking::SegmentHasher;
use silt_format::{SegmentDigest, SeriesId};
use silt_repository::Repository;
use silt_repository::env::Context;
use silt_repository::event::Warning;
use silt_storage::durable;

use self::file::{Binding, MemoWriter, OldMemo};

/// One in this many written files is followed by a search for old ones.
const CLEANED_ONE_IN: u8 = 128;

/// A segment's hash and digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    hash: [u8; 16],
    digest: [u8; 16],
}

/// What a worker found out about a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Noted {
    pair: Pair,
    /// Whether the file has the pair already.
    is_old: bool,
}

/// The memo of one volume, for all workers.
pub(crate) struct Memo {
    hasher: SegmentHasher,
    binding: Binding,
    path: PathBuf,
    old: Option<OldMemo>,
}

/// A segment that was hashed.
pub(crate) struct Hashed {
    hash: [u8; 16],
    old: Option<Pair>,
}

impl Hashed {
    /// The digest that a segment with this hash had.
    pub(crate) fn digest(&self) -> Option<SegmentDigest> {
        let pair = self.old.filter(|old| old.hash == self.hash)?;
        Some(SegmentDigest { kind: SegmentDigest::OF_BLOCKS, bytes: pair.digest })
    }

    /// What is known once the digest is.
    pub(crate) fn with(&self, digest: &SegmentDigest) -> Option<Noted> {
        let pair = Pair { hash: self.hash, digest: digest.bytes };
        let noted = Noted { pair, is_old: self.old == Some(pair) };
        (digest.kind == SegmentDigest::OF_BLOCKS).then_some(noted)
    }
}

impl Memo {
    /// Opens the memo of a volume that is cut into blocks, or begins a new one. `None` if this
    /// machine remembers nothing, or if its processor hashes no faster than it digests.
    pub(crate) fn open(
        repository: &Repository,
        (domain, series): (u32, SeriesId),
        volume: &str,
        context: &Context,
    ) -> Option<Self> {
        let folder = context.env.segment_notes(repository.id())?;
        let key = repository.objects.keys.segment_key(domain, series);
        Self::open_in(&folder, &key, series, volume, context)
    }

    fn open_in(
        folder: &Path,
        segment_key: &[u8; 32],
        series: SeriesId,
        volume: &str,
        context: &Context,
    ) -> Option<Self> {
        let path = folder.join(file::name(segment_key, series, volume));
        let volume = (segment_key, series, volume);
        let old = OldMemo::open(&path, volume);
        let (old, binding) = old.unzip();
        let binding = binding.unwrap_or_else(|| Binding::new(context.random(), volume));
        let hasher = SegmentHasher::new(binding.hash_key);
        hasher.is_fast().then_some(Self { hasher, binding, path, old })
    }

    /// Hashes a segment, and looks up what the segment with this number had.
    pub(crate) fn hash(&self, segment: u64, data: &[u8]) -> Hashed {
        let old = self.old.as_ref().and_then(|old| old.pair(&self.binding, segment));
        Hashed { hash: self.hasher.hash(data), old }
    }

    /// Begins to write the memo anew.
    pub(crate) fn notes(&self) -> MemoNotes<'_> {
        MemoNotes { memo: self, writer: None, failure: None, is_new: false, recognized: 0 }
    }
}

/// Writes the memo of a volume anew, in the order of its segments.
pub(crate) struct MemoNotes<'m> {
    memo: &'m Memo,
    writer: Option<MemoWriter>,
    /// The first error; nothing is written after it.
    failure: Option<silt_format::Error>,
    /// Whether there is a pair that the old file does not have.
    is_new: bool,
    /// Number of segments that were not digested.
    recognized: u64,
}

impl MemoNotes<'_> {
    /// Takes what was found out about the next `segments` segments.
    pub(crate) fn take(&mut self, segments: u64, noted: Option<Noted>, is_recognized: bool) {
        self.recognized += u64::from(is_recognized);
        self.is_new |= noted.is_some_and(|noted| !noted.is_old);
        if self.failure.is_some() {
            return;
        }
        let taken = self.writer().and_then(|writer| match noted {
            Some(noted) => writer.push(noted.pair),
            None => writer.skip(segments),
        });
        self.failure = taken.err();
    }

    fn writer(&mut self) -> silt_format::Result<&mut MemoWriter> {
        if self.writer.is_none() {
            let folder = self.memo.path.parent().unwrap_or(Path::new("."));
            durable::create_folders(folder)?;
            self.writer = Some(MemoWriter::create_in(folder, self.memo.binding.clone())?);
        }
        self.writer.as_mut().ok_or_else(|| silt_format::Error::invalid("there is no writer"))
    }

    /// Replaces the file, if there is something new. A failure is a warning: the next backup
    /// digests more segments. Returns the number of segments that were not digested.
    pub(crate) fn finish(mut self, context: &Context) -> u64 {
        let finished = self.failure.take().map_or(Ok(()), Err).and_then(|()| self.publish(context));
        if let Err(error) = finished {
            context.warn(Warning::after(
                &error,
                "the next backup of this volume takes longer, since this machine does not \
                 remember its segments",
            ));
        }
        self.recognized
    }

    fn publish(&mut self, context: &Context) -> silt_format::Result<()> {
        if !self.is_new {
            // So that it does not count as forgotten.
            return self.memo.old.as_ref().map_or(Ok(()), |old| old.touch(context.env.now_ns()));
        }
        if let Some(writer) = self.writer.take() {
            writer.publish(&self.memo.path)?;
            if context.random::<1>()[0].is_multiple_of(CLEANED_ONE_IN) {
                cleaning::clean(&self.memo.path, context.env.now_ns())?;
            }
        }
        Ok(())
    }
}
