//! Objects in a bucket of an S3-compatible store.
//!
//! Names are created with a condition (`If-None-Match: *`), so that of several hosts that create one
//! object exactly one succeeds, with no other server. The client's own calls are asynchronous; here they
//! are waited for, on a runtime of this storage's own.

mod credentials;
mod lock;
mod multipart;
mod request;
#[cfg(feature = "test-server")]
pub mod server;
mod settings;
mod usage;
mod versions;

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::time::Duration;

use http::Method;
use object_store::aws::AmazonS3;
use object_store::client::HttpClient;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, GetOptions, GetRange, ObjectMeta as Found, ObjectStore, ObjectStoreExt,
    PutMode as Mode, PutOptions, PutPayload,
};
use silt_format::{Error, ErrorKind, Result, ResultExt};
use silt_storage::{
    ByteRange, Guarantees, Key, LIST_PAGE_OBJECTS_MAX, ListPage, ObjectMeta, PutMode,
    READ_BYTES_MAX, Storage,
};
use tokio::runtime::Runtime;

pub use lock::{Extended, Lock, LockMode};
use request::{Answer, Signed};
use settings::Client;
pub use settings::Settings;
use usage::Counters;
pub use usage::Usage;
pub use versions::{Rollback, Version};

/// How long the first wait between tries is; each further one is twice as long, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// In what words servers, and the client for them, say that a range lies outside of an object.
const OUTSIDE: [&str; 3] = ["status code: 416", "InvalidRange", "CONTENT_RANGE"];

/// In what words servers refuse, where the client does not parse it.
const REFUSED: [&str; 3] = ["status code: 401", "status code: 403", "AccessDenied"];

/// A folder of a bucket.
pub struct S3Storage {
    client: AmazonS3,
    /// Creates objects, and repeats nothing by itself: whether an earlier try may have come through
    /// decides what an object that is there already means.
    creator: AmazonS3,
    /// What locks what is created, for a while; objects that come and go are created without.
    locker: Option<AmazonS3>,
    lock: Option<Lock>,
    http: HttpClient,
    region: String,
    /// Made when it is first needed.
    signer: OnceLock<Signed>,
    runtime: Runtime,
    bucket: String,
    /// What all names begin with: empty, or ends with a slash.
    prefix: String,
    location: String,
    storage_classes: Vec<(String, String)>,
    /// How often something is tried whose answer was lost or broke off; the client repeats all else by
    /// itself.
    tries: u32,
    counters: Counters,
}

impl S3Storage {
    /// The storage at `s3://BUCKET` or `s3://BUCKET/PREFIX`; nothing is asked of it yet.
    pub fn open(location: &str, settings: &Settings) -> Result<Self> {
        let (bucket, prefix) = split_location(location)?;
        let Client { s3: client, http, region } = settings.client(bucket, None)?;
        let once = Settings { retries: Some(0), ..settings.clone() };
        let creator = once.client(bucket, None)?.s3;
        let lock = settings.lock;
        let locker = lock.map(|lock| once.client(bucket, Some(lock))).transpose()?;
        let locker = locker.map(|locker| locker.s3);
        let tries = u32::try_from(settings.retries()).unwrap_or(u32::MAX).saturating_add(1);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("s3")
            .enable_all()
            .build()
            .map_err(|error| Error::io("start the network client", error))?;
        let storage_classes = settings.storage_classes.clone();
        let location = location.trim_end_matches('/').to_owned();
        Ok(Self {
            client,
            creator,
            locker,
            lock,
            http,
            region,
            signer: OnceLock::new(),
            runtime,
            bucket: bucket.to_owned(),
            prefix,
            location,
            storage_classes,
            tries,
            counters: Counters::default(),
        })
    }

    /// What has been asked of the store so far.
    pub fn usage(&self) -> Usage {
        self.counters.usage()
    }

    fn path(&self, key: &Key) -> Result<Path> {
        let name = format!("{}{key}", self.prefix);
        Path::parse(&name).map_err(|error| Error::invalid(format!("{name}: {error}")))
    }

    /// The client's error as this program's own, with what was done.
    fn failed(&self, what: &str, error: &object_store::Error) -> Error {
        use object_store::Error as Cause;

        let text = error.to_string();
        if text.contains("NoSuchBucket") {
            let message = format!("{what}: there is no such bucket in {}", self.location);
            return Error::new(ErrorKind::NoRepository, message);
        }
        // Where the client asks for credentials that nobody has given it.
        if text.contains("169.254.169.254") {
            let message = format!(
                "{what} in {}: there are no credentials; set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or use a profile",
                self.location
            );
            return Error::new(ErrorKind::Denied, message);
        }
        if text.contains("ObjectLockConfiguration") {
            let message = format!(
                "{what}: the bucket of {} has no Object Lock; make one that has, or unset SILT_S3_LOCK",
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
            // A range outside of the object.
            _ if text.contains("status code: 400") => ErrorKind::Unsupported,
            _ if OUTSIDE.iter().any(|words| text.contains(words)) => ErrorKind::Invalid,
            _ => ErrorKind::Unavailable,
        };
        Error::new(kind, format!("{what} in {}: {}", self.location, short(&text)))
    }

    /// Waits before the next try: half of the time is drawn, so that hosts that failed together do not
    /// come back together.
    fn wait(&self, tries: u32) {
        let most = (FIRST_WAIT * 2_u32.pow(tries.min(8))).min(LONGEST_WAIT);
        let [drawn, ..] = RandomState::new().hash_one(tries).to_le_bytes();
        let time = most / 2 + most / 2 * u32::from(drawn) / 256;
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    /// Asks as often as it may help: what the client does not repeat by itself are answers that break off.
    fn ask<T>(&self, what: &str, ask: impl Fn() -> object_store::Result<T>) -> Result<T> {
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

    fn signer(&self) -> Result<&Signed> {
        if self.signer.get().is_none() {
            let made = Signed::new(&self.client, self.http.clone(), self.region.clone());
            // Another thread's is as good.
            let _ = self.signer.set(self.runtime.block_on(made)?);
        }
        self.signer.get().ok_or_else(|| Error::invalid("there is no way to sign requests"))
    }

    fn storage_class(&self, key: &Key) -> Option<&str> {
        let mut classes = self.storage_classes.iter();
        let fits = classes.find(|(prefix, _)| key.as_str().starts_with(prefix.as_str()));
        fits.map(|(_, class)| class.as_str())
    }

    /// A request of our own, tried as often as it may help.
    fn signed(
        &self,
        method: &Method,
        name: &str,
        query: &[(&str, &str)],
        headers: &[(&str, String)],
        body: &[u8],
    ) -> Result<Answer> {
        let (signer, mut tries) = (self.signer()?, 0);
        loop {
            let ask = signer.send(method.clone(), name, query, headers, body.to_vec());
            tries += 1;
            match self.runtime.block_on(ask) {
                Err(error) if error.kind() == ErrorKind::Unavailable && tries < self.tries => {
                    self.wait(tries);
                }
                other => return other.context(|| format!("ask {}", self.location)),
            }
        }
    }

    fn put_once(
        &self,
        key: &Key,
        path: &Path,
        body: &PutPayload,
        mode: PutMode,
    ) -> object_store::Result<()> {
        let mut attributes = Attributes::new();
        if let Some(class) = self.storage_class(key) {
            attributes.insert(Attribute::StorageClass, class.to_owned().into());
        }
        let options = PutOptions { mode: Mode::Create, attributes, ..PutOptions::default() };
        self.counters.put(body.content_length());
        let creator = match (&self.locker, mode) {
            (Some(locker), PutMode::Create) => locker,
            _ => &self.creator,
        };
        self.runtime.block_on(creator.put_opts(path, body.clone(), options)).map(drop)
    }

    fn read(&self, key: &Key, range: Option<&GetRange>, into: &mut Vec<u8>) -> Result<()> {
        let path = self.path(key)?;
        into.clear();
        let bytes = self.ask(&format!("read object {key}"), || {
            self.counters.get();
            let options = GetOptions { range: range.cloned(), ..GetOptions::default() };
            self.runtime.block_on(async {
                let found = self.client.get_opts(&path, options).await?;
                found.bytes().await
            })
        })?;
        self.counters.received(bytes.len());
        into.extend_from_slice(&bytes);
        Ok(())
    }

    fn found(&self, key: &Key) -> Result<Found> {
        let path = self.path(key)?;
        self.ask(&format!("look at object {key}"), || {
            self.counters.head();
            self.runtime.block_on(self.client.head(&path))
        })
    }
}

/// What a client's error says, once: it repeats itself, and shows whole answers of servers.
fn short(text: &str) -> &str {
    let line = text.lines().next().unwrap_or(text);
    let line = line.split(": Error performing").take(2).last().unwrap_or(line);
    &line[..line.floor_char_boundary(400)]
}

/// The bucket and the prefix of names of `s3://BUCKET/PREFIX`.
fn split_location(location: &str) -> Result<(&str, String)> {
    let rest = location.strip_prefix("s3://").unwrap_or(location);
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(Error::invalid(format!("{location} names no bucket; use s3://BUCKET/PREFIX")));
    }
    let prefix = prefix.trim_matches('/');
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
    Ok((bucket, prefix))
}

impl Storage for S3Storage {
    fn put(&self, key: &Key, body: &[&[u8]], mode: PutMode) -> Result<()> {
        let path = self.path(key)?;
        if body.iter().map(|piece| piece.len()).sum::<usize>() > multipart::WHOLE_BYTES_MAX {
            return self.put_in_parts(key, body, mode);
        }
        let payload = PutPayload::from(body.concat());
        let mut tries = 0_u32;
        loop {
            let error = match self.put_once(key, &path, &payload, mode) {
                Ok(()) => return Ok(()),
                Err(error) => self.failed(&format!("create object {key}"), &error),
            };
            tries += 1;
            match error.kind() {
                // An earlier try may have come through although its answer did not.
                ErrorKind::AlreadyExists if tries > 1 && self.is_ours(key, body) => return Ok(()),
                ErrorKind::AlreadyExists => {
                    let message = format!("object {key} already exists in {}", self.location);
                    return Err(Error::new(ErrorKind::AlreadyExists, message));
                }
                ErrorKind::Unavailable if tries < self.tries => self.wait(tries),
                _ => return Err(error),
            }
        }
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        // Not every server takes a number as large as this.
        let range = match range {
            ByteRange::Tail(length) if length > READ_BYTES_MAX => {
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

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        let found = self.found(key)?;
        let modified_ms = u64::try_from(found.last_modified.timestamp_millis()).ok();
        Ok(ObjectMeta { size: found.size, modified_ms })
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        // One by one: the order is part of the promise.
        for key in keys {
            let path = self.path(key)?;
            let deleted = self.ask(&format!("delete object {key}"), || {
                self.counters.delete();
                self.runtime.block_on(self.client.delete(&path))
            });
            match deleted {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        // What can't begin a name begins none; some servers refuse to look for it.
        if Key::new(format!("{prefix}0")).is_err() {
            return Ok(ListPage { objects: Vec::new(), truncated: false });
        }
        let prefix = format!("{}{prefix}", self.prefix);
        let offset = after.map(|after| format!("{}{after}", self.prefix));
        let asked = (!prefix.is_empty()).then_some(prefix.as_str());
        let page = self.ask(&format!("list {prefix}"), || {
            self.counters.list();
            let options = PaginatedListOptions {
                offset: offset.clone(),
                max_keys: Some(LIST_PAGE_OBJECTS_MAX),
                ..PaginatedListOptions::default()
            };
            self.runtime.block_on(self.client.list_paginated(asked, options))
        })?;
        let truncated = page.page_token.is_some();
        let mut objects = Vec::with_capacity(page.result.objects.len());
        for object in page.result.objects {
            let name = object.location.as_ref().strip_prefix(self.prefix.as_str());
            // What is no name of ours is not ours.
            if let Some(Ok(key)) = name.map(Key::new) {
                objects.push((key, object.size));
            }
        }
        Ok(ListPage { truncated: truncated && !objects.is_empty(), objects })
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        self.location.clone()
    }
}
