//! The files of the cache: what each holds of its object, and where.

use std::fs::{self, DirBuilder, File};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;

/// How much of an object's beginning tells it from another of the same name.
pub(super) const BEGINNING_BYTES: usize = 96;
const DIGEST_BYTES: usize = 32;
/// Digest, object size and where the rest begins; then come the beginning and the rest.
const HEAD_BYTES: usize = DIGEST_BYTES + 16;

/// What a file holds of an object: its beginning, and its rest from some offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Bytes of the object.
    pub(super) size: u64,
    /// Where the rest begins: right behind the beginning if all of the object is held.
    pub(super) rest_offset: u64,
}

impl Kept {
    /// A whole object of `size` bytes, which are at least those of a beginning.
    pub(super) fn whole(size: u64) -> Self {
        Self { size, rest_offset: BEGINNING_BYTES as u64 }
    }

    /// Bytes of the file.
    pub(super) fn file_bytes(&self) -> u64 {
        (HEAD_BYTES + BEGINNING_BYTES) as u64 + self.size - self.rest_offset
    }

    /// Where in the file a range of the object begins, if the file holds all of it.
    fn place(&self, range: &Range<u64>) -> Option<u64> {
        let beginning = BEGINNING_BYTES as u64;
        if range.start >= self.rest_offset {
            Some(HEAD_BYTES as u64 + beginning + (range.start - self.rest_offset))
        } else if range.end <= beginning || self.rest_offset == beginning {
            Some(HEAD_BYTES as u64 + range.start)
        } else {
            None
        }
    }

    /// Whether the file holds all of a range of the object.
    pub(super) fn holds(&self, range: &Range<u64>) -> bool {
        self.place(range).is_some()
    }

    /// Reads a range of the object, which the file holds; whether the file is still there.
    pub(super) fn read(&self, file: &Path, range: &Range<u64>, into: &mut Vec<u8>) -> bool {
        let place = self.place(range);
        let (Some(place), Ok(length)) = (place, usize::try_from(range.end - range.start)) else {
            return false;
        };
        into.clear();
        into.resize(length, 0);
        File::open(file).and_then(|file| file.read_exact_at(into, place)).is_ok()
    }

    /// Writes the file: `pieces` are the beginning and the rest.
    pub(super) fn write(&self, file: &Path, pieces: &[&[u8]]) -> std::io::Result<()> {
        let (size, rest_offset) = (self.size.to_le_bytes(), self.rest_offset.to_le_bytes());
        let mut digest = blake3::Hasher::new();
        for piece in [&size[..], &rest_offset].iter().chain(pieces) {
            digest.update(piece);
        }
        let digest = digest.finalize();
        if let Some(folder) = file.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        // Whoever reads a half-written file finds that its digest is wrong.
        let head = [&digest.as_bytes()[..], &size, &rest_offset].concat();
        fs::write(file, [&[&head[..]], pieces].concat().concat())
    }

    /// What a file holds, and the object's beginning, if the file is whole.
    pub(super) fn open(file: &[u8]) -> Option<(Self, &[u8])> {
        let (digest, bytes) = file.split_at_checked(DIGEST_BYTES)?;
        let (numbers, held) = bytes.split_at_checked(HEAD_BYTES - DIGEST_BYTES)?;
        let (size, rest_offset) = numbers.split_at(8);
        let size = u64::from_le_bytes(size.try_into().ok()?);
        let rest_offset = u64::from_le_bytes(rest_offset.try_into().ok()?);
        let rest_bytes = held.len().checked_sub(BEGINNING_BYTES)? as u64;
        let is_whole = *digest == *blake3::hash(bytes).as_bytes()
            && rest_offset >= BEGINNING_BYTES as u64
            && rest_offset.checked_add(rest_bytes) == Some(size);
        is_whole.then_some((Self { size, rest_offset }, &held[..BEGINNING_BYTES]))
    }
}
