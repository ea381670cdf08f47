//! Storage in a bucket of an S3-compatible store.
//!
//! Objects are created conditionally (`If-None-Match: *`): if several hosts create one object,
//! exactly one succeeds. No other server is needed.

mod client;
mod credentials;
mod lock;
mod multipart;
mod put_headers;
mod request;
mod versions;

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::Method;
use object_store::aws::AmazonS3;
use object_store::client::HttpClient;
use object_store::list::PaginatedListOptions;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode as Mode, PutOptions, PutPayload};
use silt_format::{Error, ErrorKind, Result, ResultExt};
use silt_storage::{
    Block, ByteRange, Guarantees, Key, ListPage, ObjectMeta, PutMode, Storage, TaggedPage, Usage,
};

pub use lock::Extended;
use request::{Answer, Signed};
pub use versions::{Rollback, Version};

use crate::failure::Failure;
use crate::object_folder::{ObjectFolder, REQUEST_BYTES, begins_no_name, tagged};
use crate::object_lock::Lock;
use crate::settings::Settings;

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
    pub(crate) folder: ObjectFolder,
    bucket: String,
    settings: Settings,
}

impl S3Storage {
    /// Opens the storage at `s3://BUCKET` or `s3://BUCKET/PREFIX`. Sends no request.
    pub fn open(location: &str, settings: &Settings) -> Result<Self> {
        let (bucket, prefix) = split_location(location)?;
        let reached = settings.bucket(bucket)?;
        let client = reached.client()?;
        let creator = reached.creator(&client, None)?;
        let lock = settings.lock;
        let locker = lock.map(|lock| reached.creator(&client, Some(lock))).transpose()?;
        let store = Arc::new(client.clone());
        let network = reached.connections.network();
        let folder = ObjectFolder::new(store, network, prefix, location, settings.retries());
        Ok(Self {
            client,
            creator,
            locker,
            lock,
            http: reached.connections.http().clone(),
            region: reached.region,
            signer: OnceLock::new(),
            folder,
            bucket: bucket.to_owned(),
            settings: settings.clone(),
        })
    }

    pub(crate) fn signer(&self) -> Result<&Signed> {
        if self.signer.get().is_none() {
            let made = Signed::new(&self.client, self.http.clone(), self.region.clone());
            // Another thread's is as good.
            let _ = self.signer.set(self.folder.runtime().block_on(made)?);
        }
        self.signer.get().ok_or_else(|| Error::invalid("there is no way to sign requests"))
    }

    /// A request of our own, tried as often as it may help.
    pub(crate) fn signed(
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
            match self.folder.runtime().block_on(ask) {
                Err(error)
                    if error.kind() == ErrorKind::Unavailable && tries < self.folder.tries =>
                {
                    self.folder.wait(tries);
                }
                other => return other.context(|| format!("ask {}", self.folder.location)),
            }
        }
    }

    fn put_once(
        &self,
        key: &Key,
        path: &Path,
        body: &PutPayload,
        mode: PutMode,
    ) -> Result<Option<String>, Failure> {
        let attributes = self.settings.attributes(key);
        let options = PutOptions { mode: Mode::Create, attributes, ..PutOptions::default() };
        self.folder.counters.put(body.content_length());
        let creator = match (&self.locker, mode) {
            (Some(locker), PutMode::Create) => locker,
            _ => &self.creator,
        };
        self.folder.wait_for(creator.put_opts(path, body.clone(), options)).map(|put| put.e_tag)
    }
}

/// The bucket and the prefix of names of `s3://BUCKET/PREFIX`.
fn split_location(location: &str) -> Result<(&str, &str)> {
    let rest = location.strip_prefix("s3://").unwrap_or(location);
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err(Error::invalid(format!("{location} names no bucket; use s3://BUCKET/PREFIX")));
    }
    Ok((bucket, prefix))
}

impl Storage for S3Storage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
        self.put_tagged(key, body, mode).map(drop)
    }

    fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
        let path = self.folder.path(key)?;
        if body.iter().map(Bytes::len).sum::<usize>() > multipart::WHOLE_BYTES_MAX {
            return self.put_in_parts(key, body, mode).map(|()| None);
        }
        let payload = body.iter().cloned().collect::<PutPayload>();
        let tag = RefCell::new(None);
        let put_once = || self.put_once(key, &path, &payload, mode).map(|told| tag.replace(told));
        self.folder.create(key, || put_once().map(drop), || self.folder.is_ours(key, body))?;
        Ok(tag.into_inner())
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.folder.get(key, range, into)
    }

    fn get_blocks(&self, key: &Key, blocks: Vec<Block>) -> Result<Vec<Block>> {
        self.folder.get_blocks(key, blocks)
    }

    fn settle(&self, _: &Key) -> Result<()> {
        // What a bucket shows is durable.
        Ok(())
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.folder.head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.folder.delete(keys)
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        Ok(self.list_tagged(prefix, after)?.page)
    }

    fn list_tagged(&self, prefix: &str, after: Option<&Key>) -> Result<TaggedPage> {
        if begins_no_name(prefix) {
            return Ok(tagged(Vec::new(), false));
        }
        let prefix = format!("{}{prefix}", self.folder.prefix);
        let offset = after.map(|after| format!("{}{after}", self.folder.prefix));
        let mut options = PaginatedListOptions { offset, ..PaginatedListOptions::default() };
        let page =
            |options: &PaginatedListOptions| self.folder.page(&self.client, &prefix, options);
        let listed = self.folder.next_objects(&mut options, after, &page)?;
        let truncated = options.page_token.is_some() && !listed.is_empty();
        Ok(tagged(listed, truncated))
    }

    fn uploads(&self) -> usize {
        self.settings.connections()
    }

    fn requests_at_once(&self) -> usize {
        self.settings.requests_at_once()
    }

    fn request_bytes(&self) -> u64 {
        REQUEST_BYTES
    }

    fn soonest_answer_ns(&self) -> Option<u64> {
        self.folder.soonest_answer_ns()
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.folder.usage())
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        self.folder.location.clone()
    }
}
