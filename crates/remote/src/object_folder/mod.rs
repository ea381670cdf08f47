//! A folder of an object store: names, reads, deletions and retries, independent of the store's
//! client.

mod pages;
mod tries;

use std::panic::resume_unwind;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta as Found, ObjectStore, ObjectStoreExt};
use silt_format::number::to_usize;
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{Block, ByteRange, Filling, Key, ObjectMeta, READ_BYTES_MAX, Usage};
use tokio::runtime::Runtime;

use crate::counters::Counters;
use crate::failure::{Failure, KindOf};
use crate::network::Network;
use crate::parts::Parts;
use crate::witness::witnessed;

pub(crate) use pages::tagged;
pub(crate) use tries::FIRST_WAIT;

/// Number of bytes that arrive in about the time of one request: 5 ms at 100 MB/s, inside one data
/// centre. From farther away it is more.
pub const REQUEST_BYTES: u64 = 512 << 10;

/// The objects below one prefix of a store for which the crate `object_store` has a client.
///
/// A [`Storage`](silt_storage::Storage) of such a store is built on one: `get`, `head` and `delete`
/// implement the methods of that trait; `ask` and `create` send a request and repeat it if it
/// fails. The client is asynchronous; the folder waits for its calls on the runtime of a
/// [`Network`]. So do not call any method from a runtime.
pub struct ObjectFolder {
    store: Arc<dyn ObjectStore>,
    pub(crate) network: Arc<Network>,
    /// The prefix of all names: empty, or ends with a slash.
    pub(crate) prefix: String,
    pub(crate) location: String,
    /// Number of attempts if a response was lost or broke off; the client repeats other failures
    /// itself.
    pub(crate) tries: u32,
    pub(crate) counters: Counters,
    /// Whether the store can read the end of an object whose size is unknown.
    pub(crate) has_tails: bool,
    /// The kinds of the client's own errors; applied before the common rules.
    kind_of: KindOf,
}

/// Whether no object name can begin with `prefix`. Some servers refuse to list such a prefix.
pub fn begins_no_name(prefix: &str) -> bool {
    Key::new(format!("{prefix}0")).is_err()
}

impl ObjectFolder {
    /// Returns the folder `prefix` of a store; messages call it `location`. The folder waits for
    /// the client's calls on the runtime of `network`. If the store cannot be reached, a request is
    /// repeated up to `retries` times.
    pub fn new(
        store: Arc<dyn ObjectStore>,
        network: Arc<Network>,
        prefix: &str,
        location: &str,
        retries: usize,
    ) -> Self {
        let prefix = prefix.trim_matches('/');
        Self {
            store,
            network,
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            location: location.trim_end_matches('/').to_owned(),
            tries: u32::try_from(retries).unwrap_or(u32::MAX).saturating_add(1),
            counters: Counters::default(),
            has_tails: true,
            kind_of: |_| None,
        }
    }

    /// Returns the same folder with a rule for errors that only its client has. If the rule returns
    /// `None`, the common rules decide.
    #[must_use]
    pub fn with_error_kinds(self, kind_of: KindOf) -> Self {
        Self { kind_of, ..self }
    }

    /// Returns the runtime on which the folder waits for calls.
    pub fn runtime(&self) -> &Runtime {
        self.network.runtime()
    }

    /// Returns the location for messages, without a slash at the end.
    pub fn location(&self) -> &str {
        &self.location
    }

    /// Returns the prefix of all names in the store: empty, or ends with a slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Counts an attempt to create an object of `bytes` bytes.
    pub fn count_put(&self, bytes: usize) {
        self.counters.put(bytes);
    }

    /// Counts a request for a page of names.
    pub fn count_list(&self) {
        self.counters.list();
    }

    /// Returns the number of requests so far.
    pub fn usage(&self) -> Usage {
        self.counters.usage()
    }

    /// Returns the shortest time in which an answer began so far, in nanoseconds; `None` until
    /// there were enough answers to tell.
    pub(crate) fn soonest_answer_ns(&self) -> Option<u64> {
        self.counters.soonest_answer_ns()
    }

    /// Returns the object's name in the store. Fails with `Invalid` if the store does not allow the
    /// name.
    pub fn path(&self, key: &Key) -> Result<Path> {
        let name = format!("{}{key}", self.prefix);
        Path::parse(&name).map_err(|error| Error::invalid(format!("{name}: {error}")))
    }

    /// Returns the key of an object by its name in the store; `None` if the name is not one of a
    /// repository.
    pub fn key(&self, path: &Path) -> Option<Key> {
        Key::new(path.as_ref().strip_prefix(self.prefix.as_str())?).ok()
    }

    fn failed(&self, what: &str, failure: &Failure) -> Error {
        failure.told(&self.location, what, self.kind_of)
    }

    /// Waits for a call of the client, and returns its result.
    pub fn wait_for<T>(
        &self,
        call: impl Future<Output = object_store::Result<T>>,
    ) -> Result<T, Failure> {
        let (result, outcome) = self.runtime().block_on(witnessed(call));
        self.counters.answered(&outcome);
        result.map_err(|error| Failure::new(error, outcome))
    }

    /// Returns whether the object holds exactly these bytes. Then an earlier attempt created it,
    /// and its response was lost. Also returns `false` if the object cannot be read.
    pub fn is_ours(&self, key: &Key, body: &[Bytes]) -> bool {
        let length = body.iter().map(|piece| piece.len() as u64).sum::<u64>();
        if !self.head(key).is_ok_and(|found| found.size == length) {
            return false;
        }
        let (mut offset, mut there) = (0, Vec::new());
        Parts::new(body).all(|part| {
            let range = ByteRange::Bounded { offset, length: part.len() as u64 };
            offset += part.len() as u64;
            self.get(key, range, &mut there).is_ok() && there == part
        })
    }

    fn read(&self, key: &Key, range: Option<&GetRange>, into: &mut Vec<u8>) -> Result<()> {
        let path = self.path(key)?;
        let too_large = self.ask(&format!("read object {key}"), || {
            let (body, too_large) = self.read_once(&path, range, std::mem::take(into))?;
            *into = body;
            Ok(too_large)
        })?;
        if let Some(size) = too_large {
            return ByteRange::Full.resolve(key, size).map(drop);
        }
        self.counters.received(into.len());
        Ok(())
    }

    /// Adds an object's bytes to `body`; the size of the object instead if they are too many.
    fn read_once<B: Body>(
        &self,
        path: &Path,
        range: Option<&GetRange>,
        body: B,
    ) -> Result<(B, Option<u64>), Failure> {
        self.counters.get();
        let options = GetOptions { range: range.cloned(), ..GetOptions::default() };
        // The connection reads into the same memory again once a piece has been copied from it, so
        // pieces are copied by the thread that reads them.
        let reading = witnessed(body_of(Arc::clone(&self.store), path.clone(), options, body));
        let read = self.runtime().block_on(self.runtime().spawn(reading));
        let (read, outcome) = read.unwrap_or_else(|ended| resume_unwind(ended.into_panic()));
        self.counters.answered(&outcome);
        read.map_err(|error| Failure::new(error, outcome))
    }

    /// Reads blocks of an object, as [`Storage::get_blocks`](silt_storage::Storage::get_blocks)
    /// does.
    pub fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
        let filling = Filling::new(key, blocks)?;
        let ByteRange::Bounded { offset, length } = filling.range() else { return Ok(Vec::new()) };
        if length == 0 {
            return filling.full(key);
        }
        let (path, range) = (self.path(key)?, GetRange::Bounded(offset..offset + length));
        // A try that fails takes the buffers with it.
        let (again, mut filling) = (filling.clone(), Some(filling));
        let (filled, _) = self.ask(&format!("read object {key}"), || {
            let filling = filling.take().unwrap_or_else(|| again.clone());
            self.read_once(&path, Some(&range), filling)
        })?;
        self.counters.received(to_usize(length));
        filled.full(key)
    }

    fn found(&self, key: &Key) -> Result<Found> {
        let path = self.path(key)?;
        self.ask(&format!("look at object {key}"), || {
            self.counters.head();
            self.wait_for(self.store.head(&path))
        })
    }

    /// Reads a range of an object, as [`Storage::get`](silt_storage::Storage::get) does.
    pub fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        // Not every server takes a number as large as this.
        let range = match range {
            ByteRange::Tail(length) if length > READ_BYTES_MAX || !self.has_tails => {
                let size = self.found(key)?.size;
                let range = range.resolve(key, size)?;
                ByteRange::Bounded { offset: range.start, length: range.end - range.start }
            }
            other => other,
        };
        let wanted = match range {
            ByteRange::Full => None,
            ByteRange::Bounded { offset, length }
                if length > 0 && offset.checked_add(length).is_some() =>
            {
                Some(GetRange::Bounded(offset..offset + length))
            }
            ByteRange::Tail(length) if length > 0 => Some(GetRange::Suffix(length)),
            // Nothing to read, or a range that no object has.
            _ => {
                into.clear();
                return range.resolve(key, self.found(key)?.size).map(drop);
            }
        };
        let read = self.read(key, wanted.as_ref(), into);
        let is_whole = match range {
            ByteRange::Bounded { length, .. } => into.len() as u64 == length,
            _ => true,
        };
        if read.is_ok() && is_whole {
            return Ok(());
        }
        into.clear();
        match read {
            Err(error) if error.kind() != ErrorKind::Invalid => Err(error),
            // The server refuses ranges that lie outside of the object, or cuts them.
            read => {
                let resolved = range.resolve(key, self.found(key)?.size)?;
                if resolved.is_empty() {
                    return Ok(());
                }
                let shorter = || Error::corrupt(format!("object {key} is shorter than it was"));
                read.and_then(|()| Err(shorter()))
            }
        }
    }

    /// Returns the size and age of an object. Fails with `NotFound` if it does not exist.
    pub fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let found = self.found(key)?;
        let modified_ms = u64::try_from(found.last_modified.timestamp_millis()).ok();
        Ok(ObjectMeta { size: found.size, modified_ms })
    }

    /// Deletes objects one after the other, in the given order; missing ones are ignored.
    pub fn delete(&self, keys: &[Key]) -> Result<()> {
        // One by one: the order is part of the promise.
        for key in keys {
            let path = self.path(key)?;
            let deleted = self.ask(&format!("delete object {key}"), || {
                self.counters.delete();
                self.wait_for(self.store.delete(&path))
            });
            match deleted {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// What takes the bytes that arrive of an object.
trait Body: Send + 'static {
    /// So many bytes come.
    fn begin(&mut self, bytes: usize);

    /// The next bytes.
    fn add(&mut self, piece: &[u8]);
}

/// In place of the bytes that are there.
impl Body for Vec<u8> {
    fn begin(&mut self, bytes: usize) {
        self.clear();
        self.reserve(bytes);
    }

    fn add(&mut self, piece: &[u8]) {
        self.extend_from_slice(piece);
    }
}

impl Body for Filling {
    fn begin(&mut self, _: usize) {}

    fn add(&mut self, piece: &[u8]) {
        Self::add(self, piece);
    }
}

/// An object's bytes in `body`; the object's size instead if they are too many.
async fn body_of<B: Body>(
    store: Arc<dyn ObjectStore>,
    path: Path,
    options: GetOptions,
    mut body: B,
) -> object_store::Result<(B, Option<u64>)> {
    let found = store.get_opts(&path, options).await?;
    let bytes = found.range.end.saturating_sub(found.range.start);
    if bytes > READ_BYTES_MAX {
        return Ok((body, Some(found.meta.size.max(bytes))));
    }
    body.begin(to_usize(bytes));
    let mut pieces = found.into_stream();
    while let Some(piece) = pieces.next().await {
        body.add(&piece?);
    }
    Ok((body, None))
}

#[cfg(test)]
mod tests;
