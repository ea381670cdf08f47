//! A bounded cache, in a local folder, of objects of which many small parts are read.
//!
//! A name may come to hold another object: what an interrupted backup left is removed, and the number is
//! used again. So nothing is taken from the cache before the object's beginning was read from the storage
//! itself, once a process, and was the same; objects begin with random bytes of their own. Names that never
//! hold anything else are an exception.

use std::collections::HashMap;
use std::fs::{self, DirBuilder};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use silt_format::Result;

use crate::{ByteRange, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage};

/// How much of an object's beginning tells it from another of the same name.
const BEGINNING_BYTES: usize = 96;
/// Objects that are larger are not kept.
const OBJECT_BYTES_MAX: u64 = 32 << 20;
const DIGEST_BYTES: usize = 32;

/// Keeps whole objects below some prefixes, as files with a digest each.
pub struct CachedStorage {
    inner: Arc<dyn Storage>,
    folder: PathBuf,
    prefixes: Prefixes,
    bytes_max: u64,
    state: Mutex<State>,
}

/// Beginnings of the names of objects that are kept.
#[derive(Clone, Copy, Debug)]
pub struct Prefixes {
    /// Names that may come to hold another object.
    pub reused: &'static [&'static str],
    /// Names that hold one object or none, for good.
    pub settled: &'static [&'static str],
}

#[derive(Default)]
struct State {
    /// Objects whose file is known to be whole and the storage's own, and their sizes.
    verified: HashMap<Key, u64>,
    /// Bytes of all files, once they were counted.
    bytes: Option<u64>,
}

/// A file of the cache.
struct Cached {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl CachedStorage {
    /// A cache of at most about `bytes_max` in `folder`. A folder that can't be used makes no difference
    /// but to speed.
    pub fn new(
        inner: Arc<dyn Storage>,
        folder: impl Into<PathBuf>,
        prefixes: Prefixes,
        bytes_max: u64,
    ) -> Self {
        Self { inner, folder: folder.into(), prefixes, bytes_max, state: Mutex::default() }
    }

    fn is_kept(&self, key: &Key) -> bool {
        let Prefixes { reused, settled } = self.prefixes;
        reused.iter().chain(settled).any(|prefix| key.as_str().starts_with(prefix))
    }

    fn is_settled(&self, key: &Key) -> bool {
        self.prefixes.settled.iter().any(|prefix| key.as_str().starts_with(prefix))
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(key.as_str())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object's size, if the cache has it whole and it is the storage's.
    fn verified(&self, key: &Key) -> Result<Option<u64>> {
        if let Some(bytes) = self.state().verified.get(key) {
            return Ok(Some(*bytes));
        }
        let Ok(file) = fs::read(self.file(key)) else { return Ok(None) };
        let whole = file.split_at_checked(DIGEST_BYTES).filter(|(digest, bytes)| {
            bytes.len() >= BEGINNING_BYTES && *digest == blake3::hash(bytes).as_bytes()
        });
        let Some((_, bytes)) = whole else {
            self.drop_file(key);
            return Ok(None);
        };
        if !self.is_settled(key) {
            let mut beginning = Vec::new();
            let length = BEGINNING_BYTES as u64;
            self.inner.get(key, ByteRange::Bounded { offset: 0, length }, &mut beginning)?;
            if bytes[..BEGINNING_BYTES] != beginning {
                self.drop_file(key);
                return Ok(None);
            }
        }
        let size = bytes.len() as u64;
        self.state().verified.insert(key.clone(), size);
        Ok(Some(size))
    }

    /// Reads a part of a verified file; whether it is still there.
    fn read(&self, key: &Key, range: &Range<u64>, into: &mut Vec<u8>) -> bool {
        let Ok(length) = usize::try_from(range.end - range.start) else { return false };
        into.clear();
        into.resize(length, 0);
        let file = fs::File::open(self.file(key));
        let start = range.start + DIGEST_BYTES as u64;
        file.and_then(|file| file.read_exact_at(into, start)).is_ok()
    }

    /// Whether there was a file.
    fn drop_file(&self, key: &Key) -> bool {
        self.state().verified.remove(key);
        fs::remove_file(self.file(key)).is_ok()
    }

    /// Keeps an object; failing to is no error.
    fn keep(&self, key: &Key, pieces: &[&[u8]]) {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if bytes > OBJECT_BYTES_MAX.min(self.bytes_max) || bytes < BEGINNING_BYTES as u64 {
            return;
        }
        let mut state = self.state();
        let held = state.bytes.unwrap_or_else(|| files(&self.folder).iter().map(|f| f.bytes).sum());
        let held = if held + bytes > self.bytes_max { self.make_room(bytes) } else { held };
        state.bytes = Some(held + bytes);
        if self.write(key, pieces).is_ok() {
            state.verified.insert(key.clone(), bytes);
        }
    }

    fn write(&self, key: &Key, pieces: &[&[u8]]) -> std::io::Result<()> {
        let mut digest = blake3::Hasher::new();
        for piece in pieces {
            digest.update(piece);
        }
        let digest = digest.finalize();
        let path = self.file(key);
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        // Whoever reads a half-written file finds that its digest is wrong.
        fs::write(path, [&[digest.as_bytes().as_slice()], pieces].concat().concat())
    }

    /// Removes the files that were written the longest time ago, until there is room, and a tenth more;
    /// the bytes that are left.
    fn make_room(&self, wanted: u64) -> u64 {
        let mut all = files(&self.folder);
        all.sort_by_key(|file| file.used);
        let mut held: u64 = all.iter().map(|file| file.bytes).sum();
        for file in all {
            if held + wanted <= self.bytes_max / 10 * 9 {
                break;
            }
            if fs::remove_file(&file.path).is_ok() {
                held -= file.bytes;
            }
        }
        held
    }
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<Cached> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => {
                    let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                    found.push(Cached { path: entry.path(), bytes: metadata.len(), used });
                }
                // Somebody else has removed it.
                Err(_) => {}
            }
        }
    }
    found
}

impl Storage for CachedStorage {
    fn put(&self, key: &Key, body: &[&[u8]], mode: PutMode) -> Result<()> {
        if self.is_kept(key) {
            self.drop_file(key);
        }
        self.inner.put(key, body, mode)?;
        if self.is_kept(key) {
            self.keep(key, body);
        }
        Ok(())
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        if !self.is_kept(key) {
            return self.inner.get(key, range, into);
        }
        if let Some(size) = self.verified(key)? {
            let range = range.resolve(key, size).inspect_err(|_| into.clear())?;
            if self.read(key, &range, into) {
                return Ok(());
            }
            // Another process has made room.
            self.drop_file(key);
        }
        let mut bytes = Vec::new();
        into.clear();
        self.inner.get(key, ByteRange::Full, &mut bytes)?;
        self.keep(key, &[&bytes]);
        let range = range.resolve(key, bytes.len() as u64)?;
        let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
        into.extend_from_slice(&bytes[at(range.start)..at(range.end)]);
        Ok(())
    }

    fn copies(&self, key: &Key) -> usize {
        self.inner.copies(key)
    }

    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.inner.get_from(copy, key, range, into)
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        for key in keys.iter().filter(|key| self.is_kept(key)) {
            self.drop_file(key);
        }
        self.inner.delete(keys)
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.inner.list(prefix, after)
    }

    fn forget(&self, key: &Key) -> bool {
        let was_kept = self.is_kept(key) && self.drop_file(key);
        self.inner.forget(key) || was_kept
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
