//! Storage in containers of Azure Blob Storage and in buckets of Google Cloud Storage.
//!
//! Both create objects conditionally: if several hosts create one object, exactly one succeeds.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{ObjectStore, PutMode as Mode, PutOptions, PutPayload, RetryConfig};
use silt_format::{Error, ErrorKind, Result};
use silt_storage::{
    Block, ByteRange, Guarantees, Key, LIST_PAGE_OBJECTS_MAX, ListPage, ObjectMeta, PutMode,
    Storage, Usage,
};

use crate::connections::Connections;
use crate::failure::Failure;
use crate::network::Network;
use crate::object_folder::{ObjectFolder, REQUEST_BYTES, begins_no_name};
use crate::settings::{Settings, once};

/// A folder of a bucket.
pub struct CloudStorage {
    folder: ObjectFolder,
    bucket: Box<dyn Bucket>,
    settings: Settings,
    /// Whether a list below a prefix has the object that is called just so.
    lists_prefix: bool,
    /// Where the list that was read last goes on.
    resumption: Mutex<Option<Resumption>>,
}

/// What a bucket's client does.
trait Bucket: Send + Sync {
    /// Creates objects, and repeats nothing by itself.
    fn creator(&self) -> &dyn ObjectStore;

    /// Asks for one page of names.
    fn page(
        &self,
        folder: &ObjectFolder,
        prefix: &str,
        options: &PaginatedListOptions,
    ) -> Result<object_store::list::PaginatedListResult>;
}

/// A client that repeats what failed, and one that does not.
struct Clients<T> {
    client: T,
    creator: T,
}

impl<T: ObjectStore + PaginatedListStore> Bucket for Clients<T> {
    fn creator(&self) -> &dyn ObjectStore {
        &self.creator
    }

    fn page(
        &self,
        folder: &ObjectFolder,
        prefix: &str,
        options: &PaginatedListOptions,
    ) -> Result<object_store::list::PaginatedListResult> {
        folder.page(&self.client, prefix, options)
    }
}

/// Behind which name a list goes on with which of the server's tokens.
struct Resumption {
    prefix: String,
    after: Key,
    token: String,
}

/// The bucket and the folder of `SCHEME://BUCKET/FOLDER`.
fn split<'a>(location: &'a str, scheme: &str) -> Result<(&'a str, &'a str)> {
    let rest = location.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    let rest = rest.unwrap_or(location);
    let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        let message = format!("{location} names no bucket; use {scheme}://BUCKET/FOLDER");
        return Err(Error::invalid(message));
    }
    Ok((bucket, folder))
}

impl CloudStorage {
    fn open<T: ObjectStore + PaginatedListStore + Clone>(
        (location, folder): (&str, &str),
        settings: &Settings,
        network: Arc<Network>,
        client: impl Fn(RetryConfig) -> Result<T>,
    ) -> Result<Self> {
        if settings.lock.is_some() {
            let message = format!("{location}: only buckets of S3 lock what is put by themselves");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let clients = Clients { client: client(settings.retry())?, creator: client(once())? };
        let store = Arc::new(clients.client.clone());
        Ok(Self {
            folder: ObjectFolder::new(store, network, folder, location, settings.retries()),
            bucket: Box::new(clients),
            settings: settings.clone(),
            lists_prefix: true,
            resumption: Mutex::default(),
        })
    }

    /// Opens the storage at `az://CONTAINER` or `az://CONTAINER/FOLDER`. The variables `AZURE_...`
    /// name the account. Sends no request.
    #[cfg(feature = "azure")]
    pub fn azure(location: &str, settings: &Settings) -> Result<Self> {
        use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};

        let (container, folder) = split(location, "az")?;
        let mut builder = MicrosoftAzureBuilder::new();
        for (name, value) in settings.variables(&["AZURE_"]) {
            if let Ok(known) = name.parse::<AzureConfigKey>() {
                builder = builder.with_config(known, value);
            }
        }
        let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
        let is_clear = endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"));
        let connections = Connections::new(settings, is_clear, |error| wrong(location, error))?;
        let network = connections.network();
        let builder = builder
            .with_container_name(container)
            .with_client_options(connections.options().clone())
            .with_http_connector(connections);
        let mut storage = Self::open((location, folder), settings, network, |retry| {
            builder.clone().with_retry(retry).build().map_err(|error| wrong(location, &error))
        })?;
        (storage.folder.has_tails, storage.lists_prefix) = (false, false);
        Ok(storage)
    }

    /// Opens the storage at `gs://BUCKET` or `gs://BUCKET/FOLDER`. The variables `GOOGLE_...` name
    /// the credentials. Sends no request.
    #[cfg(feature = "google")]
    pub fn google(location: &str, settings: &Settings) -> Result<Self> {
        use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};

        let (bucket, folder) = split(location, "gs")?;
        // An emulator is reached without encryption: its address is among the account's settings.
        let accounts = ["GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BASE_URL"];
        let texts = accounts.iter().filter_map(|name| settings.variable(name));
        let is_clear = texts.into_iter().any(|text| text.contains("http://"));
        let connections = Connections::new(settings, is_clear, |error| wrong(location, error))?;
        let network = connections.network();
        let mut builder = GoogleCloudStorageBuilder::new();
        for (name, value) in settings.variables(&["GOOGLE_"]) {
            if let Ok(known) = name.parse::<GoogleConfigKey>() {
                builder = builder.with_config(known, value);
            }
        }
        let builder = builder
            .with_bucket_name(bucket)
            .with_client_options(connections.options().clone())
            .with_http_connector(connections);
        Self::open((location, folder), settings, network, |retry| {
            builder.clone().with_retry(retry).build().map_err(|error| wrong(location, &error))
        })
    }

    fn put_once(&self, key: &Key, path: &Path, payload: &PutPayload) -> Result<(), Failure> {
        let attributes = self.settings.attributes(key);
        let options = PutOptions { mode: Mode::Create, attributes, ..PutOptions::default() };
        self.folder.counters.put(payload.content_length());
        let creator = self.bucket.creator();
        self.folder.wait_for(creator.put_opts(path, payload.clone(), options)).map(drop)
    }

    /// Returns the server's token to continue a listing after `after`, if the previous page ended
    /// there.
    fn resume(&self, prefix: &str, after: Option<&Key>) -> Option<String> {
        let last = self.resumption.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        (last.prefix == prefix && Some(&last.after) == after).then_some(last.token)
    }

    /// Returns the next page. Some servers ignore `after`: their early names are skipped, and the
    /// next page is requested with the server's own token.
    fn page(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
        let whole = format!("{}{prefix}", self.folder.prefix);
        let mut options = PaginatedListOptions {
            offset: after.map(|after| format!("{}{after}", self.folder.prefix)),
            page_token: self.resume(prefix, after),
            ..PaginatedListOptions::default()
        };
        let page = |options: &PaginatedListOptions| self.bucket.page(&self.folder, &whole, options);
        let listed = self.folder.next_objects(&mut options, after, &page)?;
        let objects: Vec<_> = listed.into_iter().map(|it| (it.key, it.size)).collect();
        let (Some(token), Some((last, _))) = (options.page_token, objects.last()) else {
            return Ok(ListPage { objects, truncated: false });
        };
        let next = Resumption { prefix: prefix.to_owned(), after: last.clone(), token };
        *self.resumption.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        Ok(ListPage { objects, truncated: true })
    }

    /// Returns the object whose name equals the prefix, if listings omit it and it sorts after
    /// `after`.
    fn called(&self, prefix: &str, after: Option<&Key>) -> Result<Option<(Key, u64)>> {
        let is_listed = self.lists_prefix || after.is_some_and(|after| after.as_str() >= prefix);
        let Some(key) = Key::new(prefix).ok().filter(|_| !is_listed) else { return Ok(None) };
        match self.folder.head(&key) {
            Ok(found) => Ok(Some((key, found.size))),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn wrong(location: &str, error: &object_store::Error) -> Error {
    Error::invalid(format!("the settings of {location}: {error}"))
}

impl Storage for CloudStorage {
    fn put_bytes(&self, key: &Key, body: &[Bytes], _mode: PutMode) -> Result<()> {
        let path = self.folder.path(key)?;
        let payload = body.iter().cloned().collect::<PutPayload>();
        let put_once = || self.put_once(key, &path, &payload);
        self.folder.create(key, put_once, || self.folder.is_ours(key, body))
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
        if begins_no_name(prefix) {
            return Ok(ListPage { objects: Vec::new(), truncated: false });
        }
        let called = self.called(prefix, after)?;
        let ListPage { mut objects, mut truncated } = self.page(prefix, after)?;
        objects.splice(..0, called);
        truncated |= objects.len() > LIST_PAGE_OBJECTS_MAX;
        objects.truncate(LIST_PAGE_OBJECTS_MAX);
        Ok(ListPage { objects, truncated })
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
