//! The file of a memo: a header with the secret, and pages of pairs in the order of segments.
//!
//! | bytes of the header | |
//! |---|---|
//! | 8 | [`MAGIC`] |
//! | 32 | the secret, from which the keys are derived |
//! | 32 | keyed BLAKE3 of the above |
//!
//! A page has 4 KiB: keyed BLAKE3 of its number and its pairs, and 127 pairs of 16 bytes of hash
//! and 16 bytes of digest; zeros stand for no pair. Page 0 is at offset 4,096. A page that is
//! absent, or that its hash does not prove, counts as one without pairs: a changed digest could be
//! that of another segment.

use std::fs::{File, FileTimes};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use silt_format::number::to_u64;
use silt_format::{Error, Result, SeriesId};
use silt_storage::durable::TempFile;

use super::Pair;

const MAGIC: [u8; 8] = *b"siltmem1";
/// Separates the keys that are derived here from all others.
const KEYS: &[u8] = b"siltstone: keys of the memo of segments, version 1";
const NAMES: &[u8] = b"siltstone: name of the memo of segments, version 1";
const SECRET_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const HEADER_BYTES: usize = MAGIC.len() + SECRET_BYTES + PROOF_BYTES;
const PAIR_BYTES: usize = 32;
const PAGE_BYTES: usize = 4096;
/// Pairs of a page.
pub(super) const PAGE_PAIRS: usize = (PAGE_BYTES - PROOF_BYTES) / PAIR_BYTES;
/// Pages in memory: workers are at most at two places side by side, and a third one may lag.
const PAGES_KEPT: usize = 3;

type Page = [u8; PAGE_BYTES];

/// The name of a volume's file, which does not show the volume's name.
pub(super) fn name(segment_key: &[u8; 32], series: SeriesId, volume: &str) -> String {
    let mut hasher = blake3::Hasher::new_keyed(segment_key);
    hasher.update(NAMES).update(&series.0).update(volume.as_bytes());
    hasher.finalize().to_hex()[..32].to_owned()
}

/// The secret and its keys. They are bound to the volume, and to the key of its digests: another
/// volume's file proves nothing here, and the file alone does not give the keys away.
#[derive(Clone)]
pub(super) struct Binding {
    secret: [u8; SECRET_BYTES],
    pub(super) hash_key: [u8; 16],
    proof_key: [u8; 32],
}

impl Binding {
    pub(super) fn new(
        secret: [u8; SECRET_BYTES],
        (segment_key, series, volume): (&[u8; 32], SeriesId, &str),
    ) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&secret);
        hasher.update(KEYS).update(segment_key).update(&series.0).update(volume.as_bytes());
        let mut keys = hasher.finalize_xof();
        let (mut hash_key, mut proof_key) = ([0; 16], [0; 32]);
        keys.fill(&mut hash_key);
        keys.fill(&mut proof_key);
        Self { secret, hash_key, proof_key }
    }

    fn header(&self) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..MAGIC.len()].copy_from_slice(&MAGIC);
        header[MAGIC.len()..MAGIC.len() + SECRET_BYTES].copy_from_slice(&self.secret);
        let (said, proof) = header.split_at_mut(MAGIC.len() + SECRET_BYTES);
        proof.copy_from_slice(blake3::keyed_hash(&self.proof_key, said).as_bytes());
        header
    }

    /// Proves that a page was written here, and that it is this one. No header is as long.
    fn proof(&self, number: u64, page: &Page) -> [u8; PROOF_BYTES] {
        let mut hasher = blake3::Hasher::new_keyed(&self.proof_key);
        hasher.update(&number.to_le_bytes()).update(&page[PROOF_BYTES..]);
        *hasher.finalize().as_bytes()
    }
}

/// Where a page begins.
fn offset(page: u64) -> u64 {
    (page + 1).saturating_mul(to_u64(PAGE_BYTES))
}

/// The page of a segment, and its place there.
fn place(segment: u64) -> (u64, usize) {
    let pairs = to_u64(PAGE_PAIRS);
    (segment / pairs, silt_format::number::to_usize(segment % pairs))
}

fn place_in_page(pair: usize) -> std::ops::Range<usize> {
    let start = PROOF_BYTES + pair * PAIR_BYTES;
    start..start + PAIR_BYTES
}

/// A memo that was written earlier.
pub(super) struct OldMemo {
    file: File,
    /// Pages that were read, the newest last; `None` for one that proves nothing.
    pages: Mutex<Vec<(u64, Option<Box<Page>>)>>,
}

impl OldMemo {
    /// Opens a file; `None` if it is no memo of this volume.
    pub(super) fn open(
        path: &Path,
        volume: (&[u8; 32], SeriesId, &str),
    ) -> Option<(Self, Binding)> {
        let file = File::open(path).ok()?;
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0).ok()?;
        let secret = *header[MAGIC.len()..].first_chunk()?;
        let binding = Binding::new(secret, volume);
        let pages = Mutex::default();
        (header == binding.header()).then_some((Self { file, pages }, binding))
    }

    /// The pair of a segment.
    pub(super) fn pair(&self, binding: &Binding, segment: u64) -> Option<Pair> {
        let (number, place) = place(segment);
        // What was read is kept whole or not at all, so a panic leaves nothing half done.
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = pages.iter().position(|(kept, _)| *kept == number);
        let kept = kept.unwrap_or_else(|| {
            if pages.len() == PAGES_KEPT {
                pages.remove(0);
            }
            pages.push((number, self.read(binding, number)));
            pages.len() - 1
        });
        let (hash, digest) = pages[kept].1.as_ref()?[place_in_page(place)].split_at(16);
        let pair = Pair { hash: hash.try_into().ok()?, digest: digest.try_into().ok()? };
        Some(pair).filter(|pair| *pair != Pair::NONE)
    }

    fn read(&self, binding: &Binding, number: u64) -> Option<Box<Page>> {
        let mut page = Box::new([0; PAGE_BYTES]);
        self.file.read_exact_at(&mut *page, offset(number)).ok()?;
        let is_proven = page[..PROOF_BYTES] == binding.proof(number, &page);
        is_proven.then_some(page)
    }

    /// Notes that the file was used.
    pub(super) fn touch(&self, now_ns: i64) -> Result<()> {
        let now = UNIX_EPOCH + Duration::from_nanos(u64::try_from(now_ns).unwrap_or(0));
        let set = self.file.set_times(FileTimes::new().set_modified(now));
        set.map_err(|error| Error::io("note that the memo of segments was used", error))
    }
}

impl Pair {
    /// Stands for no pair.
    const NONE: Self = Self { hash: [0; 16], digest: [0; 16] };
}

/// Writes a memo. Pages without pairs are holes of the file.
pub(super) struct MemoWriter {
    binding: Binding,
    file: TempFile,
    page: Box<Page>,
    /// Number of the next segment.
    next: u64,
    has_pairs: bool,
}

impl MemoWriter {
    pub(super) fn create_in(folder: &Path, binding: Binding) -> Result<Self> {
        let mut file = TempFile::create_in(folder)?;
        file.write_pieces(&[&binding.header()])?;
        let page = Box::new([0; PAGE_BYTES]);
        Ok(Self { binding, file, page, next: 0, has_pairs: false })
    }

    /// Adds the pair of the next segment.
    pub(super) fn push(&mut self, pair: Pair) -> Result<()> {
        let (number, place) = place(self.next);
        let (hash, digest) = self.page[place_in_page(place)].split_at_mut(16);
        hash.copy_from_slice(&pair.hash);
        digest.copy_from_slice(&pair.digest);
        self.has_pairs = true;
        self.next += 1;
        if place + 1 == PAGE_PAIRS { self.write_page(number) } else { Ok(()) }
    }

    /// Goes over segments without pairs.
    pub(super) fn skip(&mut self, segments: u64) -> Result<()> {
        let (before, _) = place(self.next);
        self.next = self.next.saturating_add(segments);
        if place(self.next).0 == before { Ok(()) } else { self.write_page(before) }
    }

    fn write_page(&mut self, number: u64) -> Result<()> {
        if self.has_pairs {
            let proof = self.binding.proof(number, &self.page);
            self.page[..PROOF_BYTES].copy_from_slice(&proof);
            let written = self.file.file().write_all_at(&self.page[..], offset(number));
            let path = self.file.path().display();
            written.map_err(|error| Error::io(format!("write {path}"), error))?;
            self.page.fill(0);
            self.has_pairs = false;
        }
        Ok(())
    }

    /// Writes the last page, and replaces the file at `path`.
    pub(super) fn publish(mut self, path: &Path) -> Result<()> {
        self.write_page(place(self.next).0)?;
        self.file.replace_transient(path)
    }
}
