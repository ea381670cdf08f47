//! What all object stores have in common here: names, errors, tries, and what they answer.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta as Found, ObjectStore, ObjectStoreExt};
use silt_format::number::to_usize;
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{ByteRange, Key, LIST_PAGE_OBJECTS_MAX, ObjectMeta, READ_BYTES_MAX};
use tokio::runtime::Runtime;

use crate::counters::Counters;
use crate::parts::Parts;

/// How long the first wait between tries is; each further one is twice as long, up to the longest.
pub(crate) const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// How many bytes arrive in about the time that a request takes by itself: 5 ms at 100 MB/s, within
/// one data centre; from farther away it is more.
pub(crate) const REQUEST_BYTES: u64 = 512 << 10;

/// In what words servers, and the client for them, say that a range lies outside of an object.
const OUTSIDE: [&str; 4] = ["status code: 416", "InvalidRange", "CONTENT_RANGE", "Wanted range"];

/// In what words HDFS says that a name is below that of an object, or that of a folder.
const NOT_OBJECTS: [&str; 2] = ["is not a directory", "is non empty"];

/// In what words servers say, with status 400, that a body came too slowly or broken: it is sent
/// again.
pub(crate) const AGAIN: [&str; 3] = ["RequestTimeout<", "IncompleteBody", "BadDigest"];

/// In what words servers say that there is no such bucket.
const NO_BUCKET: [&str; 2] = ["NoSuchBucket", "ContainerNotFound"];

/// Where the client asks for credentials when nobody has given it any.
const NO_CREDENTIALS: [&str; 3] =
    ["169.254.169.254", "metadata.google.internal", "metadata/identity/oauth2"];

/// In what words servers refuse, where the client does not parse it.
const REFUSED: [&str; 3] = ["status code: 401", "status code: 403", "AccessDenied"];

/// How many pages in a row may have no name of ours: some hundred millions of others' objects.
const PAGES_WITHOUT_OURS_MAX: usize = 1 << 17;

/// A folder of an object store. The client's calls are asynchronous; here they are waited for, on a
/// runtime of its own.
pub(crate) struct Base {
    store: Arc<dyn ObjectStore>,
    pub(crate) runtime: Runtime,
    /// What all names begin with: empty, or ends with a slash.
    pub(crate) prefix: String,
    pub(crate) location: String,
    /// How often something is tried whose answer was lost or broke off; the client repeats all else
    /// by itself.
    pub(crate) tries: u32,
    pub(crate) counters: Counters,
    /// Whether the store reads the end of an object whose size it was not told.
    pub(crate) has_tails: bool,
}

/// Whether no name begins so; some servers refuse to look for what can't be a name.
pub(crate) fn begins_no_name(prefix: &str) -> bool {
    Key::new(format!("{prefix}0")).is_err()
}

impl Base {
    /// The folder `prefix` of a store, called `location` in messages.
    pub(crate) fn new(
        store: Arc<dyn ObjectStore>,
        runtime: Runtime,
        prefix: &str,
        location: &str,
        retries: usize,
    ) -> Self {
        let prefix = prefix.trim_matches('/');
        Self {
            store,
            runtime,
            prefix: if prefix.is_empty() { String::new() } else { format!("{prefix}/") },
            location: location.trim_end_matches('/').to_owned(),
            tries: u32::try_from(retries).unwrap_or(u32::MAX).saturating_add(1),
            counters: Counters::default(),
            has_tails: true,
        }
    }

    pub(crate) fn path(&self, key: &Key) -> Result<Path> {
        let name = format!("{}{key}", self.prefix);
        Path::parse(&name).map_err(|error| Error::invalid(format!("{name}: {error}")))
    }

    /// The client's error as this program's own, with what was done.
    pub(crate) fn failed(&self, what: &str, error: &object_store::Error) -> Error {
        use object_store::Error as Cause;

        let text = error.to_string();
        if NO_BUCKET.iter().any(|words| text.contains(words)) {
            let message = format!("{what}: there is no such bucket in {}", self.location);
            return Error::new(ErrorKind::NoRepository, message);
        }
        // Where the client asks for credentials that nobody has given it.
        if NO_CREDENTIALS.iter().any(|words| text.contains(words)) {
            let message = format!(
                "{what} in {}: there are no credentials; {}",
                self.location,
                credentials(&self.location)
            );
            return Error::new(ErrorKind::Denied, message);
        }
        if text.contains("ObjectLockConfiguration") {
            let message = format!(
                "{what}: the bucket of {} has no Object Lock; make one that has, or unset \
                 SILT_S3_LOCK",
                self.location
            );
            return Error::new(ErrorKind::Unsupported, message);
        }
        let kind = match error {
            Cause::NotFound { .. } => ErrorKind::NotFound,
            Cause::AlreadyExists { .. } | Cause::Precondition { .. } => ErrorKind::AlreadyExists,
            Cause::PermissionDenied { .. } | Cause::Unauthenticated { .. } => ErrorKind::Denied,
            Cause::NotSupported { .. } | Cause::NotImplemented { .. } => ErrorKind::Unsupported,
            Cause::InvalidPath { .. } => ErrorKind::Invalid,
            // Not every request of the client's parses these.
            _ if REFUSED.iter().any(|words| text.contains(words)) => ErrorKind::Denied,
            _ if NOT_OBJECTS.iter().any(|words| text.contains(words)) => ErrorKind::NotFound,
            _ if AGAIN.iter().any(|words| text.contains(words)) => ErrorKind::Unavailable,
            _ if text.contains("status code: 400") => ErrorKind::Unsupported,
            // A range outside of the object.
            _ if OUTSIDE.iter().any(|words| text.contains(words)) => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("{what} in {}: {}", self.location, short(&text)))
    }

    /// Waits before the next try: half of the time is drawn, so that hosts that failed together do
    /// not come back together.
    pub(crate) fn wait(&self, tries: u32) {
        let most = (FIRST_WAIT * 2_u32.pow(tries.min(8))).min(LONGEST_WAIT);
        let [drawn, ..] = RandomState::new().hash_one(tries).to_le_bytes();
        let time = most / 2 + most / 2 * u32::from(drawn) / 256;
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// Asks as often as it may help: what the client does not repeat by itself are answers that
    /// break off.
    pub(crate) fn ask<T>(
        &self,
        what: &str,
        mut ask: impl FnMut() -> object_store::Result<T>,
    ) -> Result<T> {
        let mut tries = 0;
        loop {
            let error = match ask() {
                Ok(answer) => return Ok(answer),
                Err(error) => self.failed(what, &error),
            };
            tries += 1;
            if error.kind() != ErrorKind::Unavailable || tries == self.tries {
                return Err(error);
            }
            self.wait(tries);
        }
    }

    /// Creates an object by `put_once`, which repeats nothing by itself: whether an earlier try may
    /// have come through decides what an object that is there already means; `is_ours` finds out.
    pub(crate) fn create(
        &self,
        key: &Key,
        put_once: impl Fn() -> object_store::Result<()>,
        is_ours: impl Fn() -> bool,
    ) -> Result<()> {
        let mut tries = 0_u32;
        loop {
            let error = match put_once() {
                Ok(()) => return Ok(()),
                Err(error) => self.failed(&format!("create object {key}"), &error),
            };
            tries += 1;
            match error.kind() {
                // An earlier try may have come through although its answer did not.
                ErrorKind::AlreadyExists if tries > 1 && is_ours() => return Ok(()),
                ErrorKind::AlreadyExists => {
                    let message = format!("object {key} already exists in {}", self.location);
                    return Err(Error::new(ErrorKind::AlreadyExists, message));
                }
                ErrorKind::Unavailable if tries < self.tries => self.wait(tries),
                _ => return Err(error),
            }
        }
    }

    /// Whether the object holds just these bytes: then it was this storage that created it, and the
    /// answer was lost.
    pub(crate) fn is_ours(&self, key: &Key, body: &[Bytes]) -> bool {
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
        self.ask(&format!("read object {key}"), || {
            self.counters.get();
            let options = GetOptions { range: range.cloned(), ..GetOptions::default() };
            into.clear();
            self.runtime.block_on(async {
                let found = self.store.get_opts(&path, options).await?;
                let bytes = (found.range.end - found.range.start).min(READ_BYTES_MAX);
                into.reserve(to_usize(bytes));
                let mut pieces = found.into_stream();
                while let Some(piece) = pieces.next().await {
                    into.extend_from_slice(&piece?);
                }
                Ok(())
            })
        })?;
        self.counters.received(into.len());
        Ok(())
    }

    fn found(&self, key: &Key) -> Result<Found> {
        let path = self.path(key)?;
        self.ask(&format!("look at object {key}"), || {
            self.counters.head();
            self.runtime.block_on(self.store.head(&path))
        })
    }

    pub(crate) fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
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

    /// One page of the names below `prefix`, which is a beginning of whole names.
    pub(crate) fn page(
        &self,
        lister: &impl PaginatedListStore,
        prefix: &str,
        options: &PaginatedListOptions,
    ) -> Result<PaginatedListResult> {
        let asked = (!prefix.is_empty()).then_some(prefix);
        self.ask(&format!("list {prefix}"), || {
            self.counters.list();
            let options = PaginatedListOptions {
                max_keys: Some(LIST_PAGE_OBJECTS_MAX),
                offset: options.offset.clone(),
                page_token: options.page_token.clone(),
                ..PaginatedListOptions::default()
            };
            self.runtime.block_on(lister.list_paginated(asked, options))
        })
    }

    /// The objects of the next page that has any of ours behind `after`; `options` say then whether
    /// and where more follow. Pages without are passed over: whoever may create objects can fill
    /// them, and a server may give empty ones.
    pub(crate) fn next_objects(
        &self,
        options: &mut PaginatedListOptions,
        after: Option<&Key>,
        page: &dyn Fn(&PaginatedListOptions) -> Result<PaginatedListResult>,
    ) -> Result<Vec<(Key, u64)>> {
        for _ in 0..PAGES_WITHOUT_OURS_MAX {
            let found = page(options)?;
            let token = found.page_token.clone();
            let mut objects = self.named(found);
            objects.retain(|(key, _)| after.is_none_or(|after| key > after));
            let repeats = token.is_some() && token == options.page_token;
            options.page_token = token;
            if !objects.is_empty() || options.page_token.is_none() {
                return Ok(objects);
            }
            if repeats {
                break;
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("listing {} does not come to an end: the server repeats itself", self.location),
        ))
    }

    /// The objects of a page and their sizes; what is no name of ours is not ours.
    fn named(&self, page: PaginatedListResult) -> Vec<(Key, u64)> {
        let objects = page.result.objects.into_iter();
        let named = objects.filter_map(|object| {
            let name = object.location.as_ref().strip_prefix(self.prefix.as_str())?;
            Some((Key::new(name).ok()?, object.size))
        });
        named.collect()
    }

    pub(crate) fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let found = self.found(key)?;
        let modified_ms = u64::try_from(found.last_modified.timestamp_millis()).ok();
        Ok(ObjectMeta { size: found.size, modified_ms })
    }

    pub(crate) fn delete(&self, keys: &[Key]) -> Result<()> {
        // One by one: the order is part of the promise.
        for key in keys {
            let path = self.path(key)?;
            let deleted = self.ask(&format!("delete object {key}"), || {
                self.counters.delete();
                self.runtime.block_on(self.store.delete(&path))
            });
            match deleted {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// How a store at a location is given credentials.
fn credentials(location: &str) -> &'static str {
    match location.split_once("://") {
        Some(("az", _)) => "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
        Some(("gs", _)) => "set GOOGLE_APPLICATION_CREDENTIALS to the file of a service account",
        _ => "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile",
    }
}

/// What a client's error says, once: it repeats itself, and shows whole answers of servers.
fn short(text: &str) -> &str {
    let line = text.lines().next().unwrap_or(text);
    let line = line.split(": Error performing").take(2).last().unwrap_or(line);
    &line[..line.floor_char_boundary(400)]
}

/// What a storage's calls are waited for on.
pub(crate) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("network")
        .enable_all()
        .build()
        .map_err(|error| Error::io("start the network client", error))
}
