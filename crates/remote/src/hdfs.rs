//! Objects in a folder of HDFS.
//!
//! An object is written under another name and then renamed to its own, unless that is taken: the
//! name node lets one of several do so.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use hdfs_native::{Client, ClientBuilder};
use hdfs_native_object_store::HdfsObjectStore;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode as Mode, PutOptions, PutPayload};
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{
    ByteRange, Guarantees, Key, LIST_PAGE_OBJECTS_MAX, ListPage, ObjectMeta, PutMode, Storage,
    Usage,
};

use crate::base::{Base, REQUEST_BYTES, begins_no_name, runtime};

const RETRIES: usize = 1;
/// How often the client asks a name node that does not answer, each time twice as long after the
/// last; of a name service, what its settings say counts.
const ATTEMPTS: &str = "3";

/// A folder of HDFS.
pub struct HdfsStorage {
    base: Base,
    store: Arc<HdfsObjectStore>,
    client: Client,
    /// How many data nodes hold each block, if not as many as HDFS is set to.
    replication: Option<u32>,
}

impl HdfsStorage {
    /// The storage at `hdfs://NAMENODE:PORT/FOLDER`, or at a name service that the files in
    /// `HADOOP_CONF_DIR` know. Nothing is asked of it yet.
    pub fn open(location: &str, replication: Option<u32>) -> Result<Self> {
        let rest = location.strip_prefix("hdfs://").unwrap_or(location);
        let (authority, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let runtime = runtime()?;
        let mut client = ClientBuilder::new()
            .with_url(format!("hdfs://{authority}"))
            .with_io_runtime(runtime.handle().clone());
        if authority.contains(':') {
            client = client.with_config([("dfs.client.failover.max.attempts", ATTEMPTS)]);
        }
        let client =
            client.build().map_err(|error| Error::invalid(format!("{location}: {error}")))?;
        let store = Arc::new(HdfsObjectStore::new(client.clone()));
        let base = Base::new(Arc::clone(&store) as _, runtime, folder, location, RETRIES);
        Ok(Self { base, store, client, replication })
    }

    /// How many data nodes are to hold an object's blocks.
    pub fn replication(&self, key: &Key) -> Result<Option<u32>> {
        let path = format!("/{}", self.base.path(key)?);
        let found = self.base.runtime.block_on(self.client.get_file_info(&path));
        let failed = |error| Error::new(ErrorKind::Unavailable, format!("{path}: {error}"));
        Ok(found.map_err(failed)?.replication)
    }

    fn put_once(&self, path: &Path, body: &PutPayload) -> object_store::Result<()> {
        self.base.counters.put(body.content_length());
        let options = PutOptions { mode: Mode::Create, ..PutOptions::default() };
        self.base.runtime.block_on(self.store.put_opts(path, body.clone(), options)).map(drop)
    }

    /// Asks for as many copies of an object that is there as this storage is to have.
    fn replicate(&self, path: &Path) -> Result<()> {
        let Some(replication) = self.replication else { return Ok(()) };
        let name = format!("/{path}");
        self.base.ask(&format!("replicate {name}"), || {
            let set = self.client.set_replication(&name, replication);
            self.base.runtime.block_on(set).map(drop).map_err(|error| {
                object_store::Error::Generic { store: "HDFS", source: Box::new(error) }
            })
        })
    }
}

impl Storage for HdfsStorage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], _mode: PutMode) -> Result<()> {
        let path = self.base.path(key)?;
        let payload = body.iter().cloned().collect::<PutPayload>();
        let is_ours = || self.base.is_ours(key, body);
        let created = self.base.create(key, || self.put_once(&path, &payload), is_ours);
        created.map_err(|error| match error.kind() {
            // Part of the name is an object's.
            ErrorKind::NotFound => Error::new(ErrorKind::Invalid, error.to_string()),
            _ => error,
        })?;
        self.replicate(&path)
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.base.get(key, range, into)
    }

    fn settle(&self, _: &Key) -> Result<()> {
        // The name node has written down what it shows.
        Ok(())
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.base.head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.base.delete(keys)
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        if begins_no_name(prefix) {
            return Ok(ListPage { objects: Vec::new(), truncated: false });
        }
        // HDFS lists folders, in an order of its own: the folder that the prefix lies in, as a
        // whole.
        let whole = format!("{}{prefix}", self.base.prefix);
        let folder = whole.rsplit_once('/').map_or("", |(folder, _)| folder);
        let wrong = |error| Error::invalid(format!("{folder}: {error}"));
        let folder = Path::parse(folder).map_err(wrong)?;
        let found = self.base.ask(&format!("list {prefix}"), || {
            self.base.counters.list();
            let found: object_store::Result<Vec<_>> =
                self.base.runtime.block_on(self.store.list(Some(&folder)).try_collect());
            match found {
                Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
                other => other,
            }
        })?;
        let mut objects: Vec<(Key, u64)> = Vec::new();
        for object in found {
            let name = object.location.as_ref().strip_prefix(self.base.prefix.as_str());
            // What is no name of ours is not ours: files that are being written among them.
            let Some(Ok(key)) = name.map(Key::new) else { continue };
            if key.as_str().starts_with(prefix) && after.is_none_or(|after| key > *after) {
                objects.push((key, object.size));
            }
        }
        objects.sort();
        let truncated = objects.len() > LIST_PAGE_OBJECTS_MAX;
        objects.truncate(LIST_PAGE_OBJECTS_MAX);
        Ok(ListPage { objects, truncated })
    }

    fn request_bytes(&self) -> u64 {
        REQUEST_BYTES
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.base.counters.usage())
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        self.base.location.clone()
    }
}
