//! Objects in a folder of HDFS.
//!
//! An object is written under another name and then renamed to its own, unless that is taken: the
//! name node lets one of several do so.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt;
use hdfs_native::{Client, ClientBuilder, HdfsError};
use hdfs_native_object_store::HdfsObjectStore;
use object_store::path::Path;
use object_store::{ObjectStore, PutMode as Mode, PutOptions, PutPayload};
use silt_format::{Error, ErrorKind, Result};
use silt_remote::{Failure, Network, ObjectFolder, REQUEST_BYTES, begins_no_name};
use silt_storage::{
    ByteRange, Guarantees, Key, LIST_PAGE_OBJECTS_MAX, ListPage, ObjectMeta, PutMode, Storage,
    Usage,
};

const RETRIES: usize = 1;
/// How often the client asks a name node that does not answer, each time twice as long after the
/// last; of a name service, what its settings say counts.
const ATTEMPTS: &str = "3";

/// A folder of HDFS.
pub struct HdfsStorage {
    folder: ObjectFolder,
    store: Arc<HdfsObjectStore>,
    client: Client,
    /// How many data nodes hold each block, if not as many as HDFS is set to.
    replication: Option<u32>,
}

/// What the message says of a name below that of an object: the exception is that of a permission
/// that lacks, as the name node finds it where it checks those of each folder on the way
/// (`FSPermissionChecker`).
const NOT_A_FOLDER: &str = "is not a directory";

/// What errors of HDFS mean, by the exceptions of Hadoop that the name node reports.
fn kind_of(error: &object_store::Error) -> Option<ErrorKind> {
    let object_store::Error::Generic { source, .. } = error else { return None };
    let (exception, message) = match source.downcast_ref::<HdfsError>()? {
        HdfsError::FileNotFound(_) => return Some(ErrorKind::NotFound),
        HdfsError::RPCError(exception, message) | HdfsError::FatalRPCError(exception, message) => {
            (exception, message)
        }
        _ => return None,
    };
    match exception.rsplit('.').next()? {
        // The name is below that of an object, or it is that of a folder.
        "ParentNotDirectoryException" | "PathIsNotEmptyDirectoryException" => {
            Some(ErrorKind::NotFound)
        }
        "AccessControlException" if message.contains(NOT_A_FOLDER) => Some(ErrorKind::NotFound),
        "AccessControlException" => Some(ErrorKind::Denied),
        _ => None,
    }
}

impl HdfsStorage {
    /// The storage at `hdfs://NAMENODE:PORT/FOLDER`, or at a name service that the files in
    /// `HADOOP_CONF_DIR` know. Nothing is asked of it yet.
    pub fn open(location: &str, replication: Option<u32>) -> Result<Self> {
        let rest = location.strip_prefix("hdfs://").unwrap_or(location);
        let (authority, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let network = Network::shared()?;
        let mut client = ClientBuilder::new()
            .with_url(format!("hdfs://{authority}"))
            .with_io_runtime(network.runtime().handle().clone());
        if authority.contains(':') {
            client = client.with_config([("dfs.client.failover.max.attempts", ATTEMPTS)]);
        }
        let client =
            client.build().map_err(|error| Error::invalid(format!("{location}: {error}")))?;
        let store = Arc::new(HdfsObjectStore::new(client.clone()));
        let folder = ObjectFolder::new(Arc::clone(&store) as _, network, folder, location, RETRIES);
        let folder = folder.with_error_kinds(kind_of);
        Ok(Self { folder, store, client, replication })
    }

    /// How many data nodes are to hold an object's blocks.
    pub fn replication(&self, key: &Key) -> Result<Option<u32>> {
        let path = format!("/{}", self.folder.path(key)?);
        let found = self.folder.runtime().block_on(self.client.get_file_info(&path));
        let failed = |error| Error::new(ErrorKind::Unavailable, format!("{path}: {error}"));
        Ok(found.map_err(failed)?.replication)
    }

    fn put_once(&self, path: &Path, body: &PutPayload) -> Result<(), Failure> {
        self.folder.count_put(body.content_length());
        let options = PutOptions { mode: Mode::Create, ..PutOptions::default() };
        self.folder.wait_for(self.store.put_opts(path, body.clone(), options)).map(drop)
    }

    /// Asks for as many copies of an object that is there as this storage is to have.
    fn replicate(&self, path: &Path) -> Result<()> {
        let Some(replication) = self.replication else { return Ok(()) };
        let name = format!("/{path}");
        self.folder.ask(&format!("replicate {name}"), || {
            self.folder.wait_for(async {
                let set = self.client.set_replication(&name, replication).await;
                set.map(drop).map_err(|error| object_store::Error::Generic {
                    store: "HDFS",
                    source: Box::new(error),
                })
            })
        })
    }
}

impl Storage for HdfsStorage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], _mode: PutMode) -> Result<()> {
        let path = self.folder.path(key)?;
        let payload = body.iter().cloned().collect::<PutPayload>();
        let is_ours = || self.folder.is_ours(key, body);
        let created = self.folder.create(key, || self.put_once(&path, &payload), is_ours);
        created.map_err(|error| match error.kind() {
            // Part of the name is an object's.
            ErrorKind::NotFound => Error::new(ErrorKind::Invalid, error.to_string()),
            _ => error,
        })?;
        self.replicate(&path)
    }

    fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
        self.folder.get(key, range, into)
    }

    fn settle(&self, _: &Key) -> Result<()> {
        // The name node has written down what it shows.
        Ok(())
    }

    fn head(&self, key: &Key) -> Result<ObjectMeta> {
        self.folder.head(key)
    }

    fn delete(&self, keys: &[Key]) -> Result<()> {
        self.folder.delete(keys)
    }

    fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        if begins_no_name(prefix) {
            return Ok(ListPage { objects: Vec::new(), truncated: false });
        }
        // HDFS lists folders, in an order of its own: the folder that the prefix lies in, as a
        // whole.
        let whole = format!("{}{prefix}", self.folder.prefix());
        let folder = whole.rsplit_once('/').map_or("", |(folder, _)| folder);
        let wrong = |error| Error::invalid(format!("{folder}: {error}"));
        let folder = Path::parse(folder).map_err(wrong)?;
        let found = self.folder.ask(&format!("list {prefix}"), || {
            self.folder.count_list();
            self.folder.wait_for(async {
                match self.store.list(Some(&folder)).try_collect().await {
                    Err(object_store::Error::NotFound { .. }) => Ok(Vec::new()),
                    other => other,
                }
            })
        })?;
        let mut objects: Vec<(Key, u64)> = Vec::new();
        for object in found {
            // Other names are not the repository's: files that are being written among them.
            let Some(key) = self.folder.key(&object.location) else { continue };
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
        Some(self.folder.usage())
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn describe(&self) -> String {
        self.folder.location().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_of_the_name_node_have_their_kinds() {
        let of = |exception: &str, message: &str| {
            let exception = format!("org.apache.hadoop.{exception}");
            let source = Box::new(HdfsError::RPCError(exception, message.to_owned()));
            kind_of(&object_store::Error::Generic { store: "HDFS", source })
        };
        let denied = "security.AccessControlException";
        assert_eq!(of(denied, "/a/b (is not a directory)"), Some(ErrorKind::NotFound));
        assert_eq!(of(denied, "Permission denied: user=a"), Some(ErrorKind::Denied));
        assert_eq!(of("fs.PathIsNotEmptyDirectoryException", "x"), Some(ErrorKind::NotFound));
        assert_eq!(of("ipc.StandbyException", "x"), None);
        let source = Box::new(HdfsError::FileNotFound("x".to_owned()));
        let missing = object_store::Error::Generic { store: "HDFS", source };
        assert_eq!(kind_of(&missing), Some(ErrorKind::NotFound));
    }
}
