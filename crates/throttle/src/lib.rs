//! Limits of bytes per second, so that a backup does not disturb the guests beside it.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use silt_format::number::{to_u64, to_usize};
use silt_format::tree::{Metadata, Timestamp};
use silt_format::{Error, Result};
use silt_repository::env::Env;
use silt_repository::sync::lock;
use silt_source::{ChangedMap, Extent, ExtentKind, SourceInfo, VolumeSource, VolumeTarget};
use silt_storage::{
    Block, ByteRange, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage, Usage,
};
use silt_tree::{FileSource, FileSystemTraits, Found, Owners, Step, TreeOrigin, TreeSource};

const SECOND_NS: u128 = 1_000_000_000;
/// How far a limit that catches up can lag behind, in nanoseconds.
const LAG_NS_MAX: i64 = 1_000_000_000;
/// How many times as fast as the limit bytes pass at most while it catches up.
const CATCH_UP: i64 = 2;
/// Bounds of the bytes that a writer of a stream takes at once.
const PIECE_BYTES_MIN: u64 = 512;
const PIECE_BYTES_MAX: u64 = 64 << 10;

/// A limit of bytes per second, shared by everything that takes bytes from it.
///
/// A call waits until the bytes taken before have had their time: a token bucket without depth, so
/// the rate holds over every second and not only on average, unless it [catches
/// up](Self::catching_up).
pub struct Throttle {
    env: Arc<dyn Env>,
    bytes_per_s: u64,
    /// How far the time of the bytes taken can lie in the past.
    lag_ns_max: i64,
    /// Since the first bytes were taken.
    times: Mutex<Option<Times>>,
}

/// When the next bytes may pass, both in nanoseconds since 1970.
struct Times {
    /// When the bytes taken so far have had their time; in the past if the limit lags behind.
    free_at_ns: i64,
    /// When they have had the time that they need while the limit catches up.
    caught_up_at_ns: i64,
}

impl Throttle {
    /// A limit of `bytes_per_s` bytes a second, at least one.
    pub fn new(env: Arc<dyn Env>, bytes_per_s: u64) -> Self {
        let (bytes_per_s, times) = (bytes_per_s.max(1), Mutex::default());
        Self { env, bytes_per_s, lag_ns_max: 0, times }
    }

    /// Catches up for pauses since the first bytes were taken, one second of them at most, at twice
    /// the rate. Beside the last bytes taken, no more pass in any time than in that time and one
    /// more second, and than in twice that time.
    #[must_use]
    pub fn catching_up(self) -> Self {
        Self { lag_ns_max: LAG_NS_MAX, ..self }
    }

    /// Waits until `bytes` more may pass, or until the user asks to stop: what follows then fails.
    /// Returns at once for no bytes.
    pub fn take(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let needed = u128::from(bytes) * SECOND_NS / u128::from(self.bytes_per_s);
        let needed_ns = i64::try_from(needed).unwrap_or(i64::MAX);
        let now = self.env.now_ns();
        let begin = {
            let mut times = lock(&self.times);
            let times = times.get_or_insert(Times { free_at_ns: now, caught_up_at_ns: now });
            let free_at = times.free_at_ns.max(now.saturating_sub(self.lag_ns_max));
            let begin = now.max(free_at).max(times.caught_up_at_ns);
            times.free_at_ns = free_at.saturating_add(needed_ns);
            times.caught_up_at_ns = begin.saturating_add(needed_ns / CATCH_UP);
            begin
        };
        if begin > now {
            self.env.sleep_ns(begin.abs_diff(now));
        }
    }

    /// How many bytes a writer of a stream should take at once, so that they pass evenly: as many
    /// as may pass in a tenth of a second, at least 512 bytes and at most 64 KiB.
    pub fn piece_bytes(&self) -> usize {
        to_usize((self.bytes_per_s / 10).clamp(PIECE_BYTES_MIN, PIECE_BYTES_MAX))
    }

    /// Whether the user has asked to stop, so that a wait may have ended early.
    pub fn is_interrupted(&self) -> bool {
        self.env.is_interrupted()
    }
}

/// A source, target or storage with limited reads and writes.
pub struct Throttled<T> {
    inner: T,
    read: Option<Arc<Throttle>>,
    write: Option<Arc<Throttle>>,
}

impl<T> Throttled<T> {
    /// Passes everything on to `inner`, without a limit yet.
    pub fn new(inner: T) -> Self {
        Self { inner, read: None, write: None }
    }

    /// Limits the bytes read; `None` is no limit.
    #[must_use]
    pub fn reads(self, limit: Option<Arc<Throttle>>) -> Self {
        Self { read: limit, ..self }
    }

    /// Limits the bytes written; `None` is no limit.
    #[must_use]
    pub fn writes(self, limit: Option<Arc<Throttle>>) -> Self {
        Self { write: limit, ..self }
    }

    fn take(throttle: Option<&Arc<Throttle>>, bytes: u64) {
        if let Some(throttle) = throttle {
            throttle.take(bytes);
        }
    }
}

/// The bytes of a range of a source that are data. Zeros are not read.
fn data_bytes(source: &dyn VolumeSource, offset: u64, length: u64) -> u64 {
    let size = if source.is_sequential() { None } else { source.info().size };
    let Some(size) = size else { return length };
    let end = offset.saturating_add(length).min(size);
    let (mut at, mut data) = (offset, 0);
    while at < end {
        // The read fails, too, if this does.
        let Ok(extent) = source.extent_at(at) else { return data + (end - at) };
        let extent_end = extent.offset.saturating_add(extent.length).clamp(at + 1, end);
        if extent.kind == ExtentKind::Data {
            data += extent_end - at;
        }
        at = extent_end;
    }
    data
}

impl VolumeSource for Throttled<Box<dyn VolumeSource>> {
    fn info(&self) -> SourceInfo {
        self.inner.info()
    }
    fn is_sequential(&self) -> bool {
        self.inner.is_sequential()
    }
    fn extent_at(&self, offset: u64) -> Result<Extent> {
        self.inner.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if let Some(limit) = &self.read {
            limit.take(data_bytes(&*self.inner, offset, to_u64(buf.len())));
        }
        self.inner.read_at(offset, buf)
    }
    fn changed_map(&self, grain: u64) -> Result<Option<ChangedMap>> {
        self.inner.changed_map(grain)
    }
    fn failure(&self) -> Option<Error> {
        self.inner.failure()
    }
}

impl TreeSource for Throttled<Box<dyn TreeSource>> {
    fn next(&mut self) -> Result<Option<Step>> {
        self.inner.next()
    }
    fn complete(&mut self, found: &mut Found) -> bool {
        self.inner.complete(found)
    }
    fn open_file(&mut self, found: &Found) -> Result<Box<dyn FileSource>> {
        let file = self.inner.open_file(found)?;
        Ok(Box::new(Throttled::new(file).reads(self.read.clone())))
    }
    fn born(&self) -> Option<Timestamp> {
        self.inner.born()
    }
    fn vanished(&self) -> u64 {
        self.inner.vanished()
    }
    fn traits(&self, file_system: u16) -> FileSystemTraits {
        self.inner.traits(file_system)
    }
    fn directory_path(&self) -> Vec<u8> {
        self.inner.directory_path()
    }
    fn owners(&self) -> Owners {
        self.inner.owners()
    }
}

impl TreeOrigin for Throttled<Box<dyn TreeOrigin>> {
    fn description(&self) -> String {
        self.inner.description()
    }
    fn walk(&self) -> Result<Box<dyn TreeSource>> {
        Ok(Box::new(Throttled::new(self.inner.walk()?).reads(self.read.clone())))
    }
    fn open_file(&self, path: &[u8]) -> Result<Box<dyn FileSource>> {
        let file = self.inner.open_file(path)?;
        Ok(Box::new(Throttled::new(file).reads(self.read.clone())))
    }
}

impl FileSource for Throttled<Box<dyn FileSource>> {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        Self::take(self.read.as_ref(), to_u64(buffer.len()));
        self.inner.read_at(offset, buffer)
    }
    fn status(&self) -> Result<Metadata> {
        self.inner.status()
    }
    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        self.inner.next_data(offset, size)
    }
}

impl VolumeTarget for Throttled<Box<dyn VolumeTarget>> {
    fn is_sequential(&self) -> bool {
        self.inner.is_sequential()
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        Self::take(self.write.as_ref(), to_u64(data.len()));
        self.inner.write_at(offset, data)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.write_zeroes(offset, length)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        Self::take(self.read.as_ref(), to_u64(buf.len()));
        self.inner.read_at(offset, buf)
    }
    fn can_read(&self) -> bool {
        self.inner.can_read()
    }
    fn finish(self: Box<Self>) -> Result<()> {
        self.inner.finish()
    }
}

impl Storage for Throttled<Arc<dyn Storage>> {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        let bytes = body.iter().map(|piece| to_u64(piece.len())).sum();
        Self::take(self.write.as_ref(), bytes);
        self.inner.put_bytes(key, body, mode)
    }
    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        let bytes = body.iter().map(|piece| to_u64(piece.len())).sum();
        Self::take(self.write.as_ref(), bytes);
        self.inner.put_tagged(key, body, mode)
    }
    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.inner.get(key, range, into)?;
        // The size is known only now; what follows waits for it.
        Self::take(self.read.as_ref(), to_u64(into.len()));
        Ok(())
    }
    fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
        let read = self.inner.get_blocks(key, blocks)?;
        // Without what lies between them.
        Self::take(self.read.as_ref(), read.iter().map(|block| to_u64(block.bytes.len())).sum());
        Ok(read)
    }
    fn copies(&self, key: &Key) -> usize {
        self.inner.copies(key)
    }
    fn get_from(&self, copy: usize, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.inner.get_from(copy, key, range, into)?;
        Self::take(self.read.as_ref(), to_u64(into.len()));
        Ok(())
    }
    fn settle(&self, key: &Key) -> Result<()> {
        self.inner.settle(key)
    }
    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.inner.head(key)
    }
    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.inner.delete(keys)
    }
    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.inner.list(prefix, after)
    }
    fn list_from(&self, copy: usize, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        self.inner.list_from(copy, prefix, after)
    }
    fn usage(&self) -> Option<Usage> {
        self.inner.usage()
    }
    fn forget(&self, key: &Key) -> bool {
        self.inner.forget(key)
    }
    fn uploads(&self) -> usize {
        self.inner.uploads()
    }

    fn requests_at_once(&self) -> usize {
        self.inner.requests_at_once()
    }

    fn request_bytes(&self) -> u64 {
        self.inner.request_bytes()
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.inner.soonest_answer_ns()
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.guarantees()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

#[cfg(test)]
mod tests;
