//! The files of the cache: the parts of an object that each holds, and their places in the file.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;

/// Size of the beginning that distinguishes an object from another of the same name.
pub const BEGINNING_BYTES: usize = 96;
const DIGEST_BYTES: usize = 32;
/// Digest, object size and where the rest begins; then come the beginning and the rest.
const HEAD_BYTES: usize = DIGEST_BYTES + 16;

/// What a file ends with once a store has told its object's tag: a hash of both.
type Mark = [u8; DIGEST_BYTES];

fn mark(digest: &[u8], tag: &str) -> Mark {
    let mut hasher = blake3::Hasher::new();
    *hasher.update(digest).update(tag.as_bytes()).finalize().as_bytes()
}

/// A file that is whole.
pub(super) struct Opened<'f> {
    pub(super) kept: Kept,
    /// The object's first bytes.
    pub(super) beginning: &'f [u8],
    digest: &'f [u8],
    mark: Option<&'f [u8]>,
}

impl Opened<'_> {
    /// Whether the file was found to be the object's when that had this tag.
    pub(super) fn has_tag(&self, tag: &str) -> bool {
        self.mark.is_some_and(|noted| noted == mark(self.digest, tag))
    }

    /// Whether a tag of the object was noted.
    pub(super) fn is_tagged(&self) -> bool {
        self.mark.is_some()
    }

    /// Notes that the file is the object's, which has this tag; failing to is no error.
    pub(super) fn note_tag(&self, file: &Path, tag: &str) {
        let opened = OpenOptions::new().write(true).open(file);
        let _ = opened
            .and_then(|file| file.write_all_at(&mark(self.digest, tag), self.kept.file_bytes()));
    }
}

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
        // Whoever writes objects decides what their ends say of their size.
        let rest_bytes = self.size - self.rest_offset;
        rest_bytes.saturating_add((HEAD_BYTES + BEGINNING_BYTES) as u64)
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
    pub(super) fn write(
        &self,
        file: &Path,
        pieces: &[&[u8]],
        tag: Option<&str>,
    ) -> std::io::Result<()> {
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
        let mark = tag.map(|tag| mark(digest.as_bytes(), tag));
        let mark = mark.as_ref().map_or(&[][..], |mark| &mark[..]);
        fs::write(file, [&[&head[..]], pieces, &[mark]].concat().concat())
    }

    /// What a file holds, if it is whole.
    pub(super) fn open(file: &[u8]) -> Option<Opened<'_>> {
        let (digest, bytes) = file.split_at_checked(DIGEST_BYTES)?;
        let (numbers, _) = bytes.split_at_checked(HEAD_BYTES - DIGEST_BYTES)?;
        let (size, rest_offset) = numbers.split_at(8);
        let size = u64::from_le_bytes(size.try_into().ok()?);
        let rest_offset = u64::from_le_bytes(rest_offset.try_into().ok()?);
        let is_kept = (BEGINNING_BYTES as u64..=size).contains(&rest_offset);
        let kept = Some(Self { size, rest_offset }).filter(|_| is_kept)?;
        let file_bytes = usize::try_from(kept.file_bytes()).ok()?;
        let (bytes, behind) = bytes.split_at_checked(file_bytes - DIGEST_BYTES)?;
        if *digest != *blake3::hash(bytes).as_bytes() {
            return None;
        }
        let beginning = bytes[HEAD_BYTES - DIGEST_BYTES..].first_chunk::<BEGINNING_BYTES>()?;
        let mark = Some(behind).filter(|behind| behind.len() == DIGEST_BYTES);
        Some(Opened { kept, beginning, digest, mark })
    }
}
