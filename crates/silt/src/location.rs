//! Where repositories are: folders, and buckets of S3-compatible stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use silt_format::{Error, ErrorKind, Result, names};
use silt_storage::{CachedStorage, Key, LocalStorage, Prefixes, Storage};

/// What of a repository is worth keeping at hand: objects of which many small parts are read, and those
/// that are read each time.
const CACHED: Prefixes = Prefixes {
    reused: &["recipes/", "runs/"],
    // Keys and snapshots are named by random numbers; a configuration that does not belong to the keys is
    // read again.
    settled: &[names::CONFIG, names::KEYS, "snapshots/"],
};
/// Bytes of the cache of one location unless told otherwise.
const CACHE_MIB_DEFAULT: u64 = 512;

/// What was asked of object stores, in requests and bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Requests {
    pub puts: u64,
    pub gets: u64,
    pub heads: u64,
    pub lists: u64,
    pub deletes: u64,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

/// Where and how much is kept of what is far away.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// The folder; none for no cache.
    pub folder: Option<PathBuf>,
    /// MiB for each location.
    pub mib: Option<u64>,
}

/// Opens storages by their locations, and knows what was asked of them.
#[derive(Default)]
pub struct Opener {
    #[cfg(feature = "s3")]
    opened: std::sync::Mutex<Vec<Arc<silt_s3::S3Storage>>>,
}

/// The part of a location before `://`, if it has one.
fn scheme(location: &str) -> Option<&str> {
    location.split_once("://").map(|(scheme, _)| scheme)
}

fn unsupported(location: &str, scheme: &str) -> Error {
    let known = if cfg!(feature = "s3") { "a folder or s3://BUCKET/PREFIX" } else { "a folder" };
    let message = format!("{location}: {scheme}:// repositories are not supported; use {known}");
    Error::new(ErrorKind::Unsupported, message)
}

impl Opener {
    /// Opens the storage at a location; nothing is written to it.
    pub fn open(&self, location: &str) -> Result<Arc<dyn Storage>> {
        match scheme(location) {
            None => Ok(Arc::new(LocalStorage::open(Path::new(location))?)),
            #[cfg(feature = "s3")]
            Some("s3") => self.open_bucket(location),
            Some(other) => Err(unsupported(location, other)),
        }
    }

    /// The same with a cache before what is far away.
    pub fn open_cached(&self, location: &str, cache: &Cache) -> Result<Arc<dyn Storage>> {
        let storage = self.open(location)?;
        let Some(folder) = cache.folder.as_ref().filter(|_| scheme(location).is_some()) else {
            return Ok(storage);
        };
        let name: String =
            location.chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        let bytes_max = cache.mib.unwrap_or(CACHE_MIB_DEFAULT) << 20;
        Ok(Arc::new(CachedStorage::new(storage, folder.join(name), CACHED, bytes_max)))
    }

    /// Makes an empty storage at a location: a folder that is new or empty, or a part of a bucket that
    /// has no objects, which must do what a repository needs.
    pub fn create(&self, location: &str, unique: u64) -> Result<Arc<dyn Storage>> {
        if scheme(location).is_none() {
            let created = LocalStorage::create(Path::new(location));
            return Ok(Arc::new(created.map_err(|error| taken(location, error))?));
        }
        let storage = self.open(location)?;
        if !storage.list("", None)?.objects.is_empty() {
            let message = format!("{location} is not empty; use another prefix");
            return Err(taken(location, Error::new(ErrorKind::AlreadyExists, message)));
        }
        silt_storage::probe(&*storage, &Key::new(format!("probe/{unique:016x}"))?)?;
        Ok(storage)
    }

    #[cfg(feature = "s3")]
    fn open_bucket(&self, location: &str) -> Result<Arc<dyn Storage>> {
        let storage = Arc::new(silt_s3::S3Storage::open(location, &settings()?)?);
        let mut opened = self.opened.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        opened.push(Arc::clone(&storage));
        Ok(storage)
    }

    /// What was asked of all object stores that were opened; `None` if there were none.
    pub fn requests(&self) -> Option<Requests> {
        #[cfg(feature = "s3")]
        {
            let opened = self.opened.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut all = Requests::default();
            for usage in opened.iter().map(|storage| storage.usage()) {
                all.puts += usage.puts;
                all.gets += usage.gets;
                all.heads += usage.heads;
                all.lists += usage.lists;
                all.deletes += usage.deletes;
                all.sent_bytes += usage.sent_bytes;
                all.received_bytes += usage.received_bytes;
            }
            (!opened.is_empty()).then_some(all)
        }
        #[cfg(not(feature = "s3"))]
        None
    }
}

/// How stores are reached, from the environment.
#[cfg(feature = "s3")]
#[expect(clippy::disallowed_methods, reason = "the programs of AWS are set up by their variables")]
fn settings() -> Result<silt_s3::Settings> {
    let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let number = |name: &str| -> Result<Option<u64>> {
        let parsed = text(name).map(|value| value.parse());
        parsed.transpose().map_err(|_| Error::invalid(format!("{name} is no number")))
    };
    Ok(silt_s3::Settings {
        environment: std::env::vars().collect(),
        storage_class: text("SILT_S3_STORAGE_CLASS"),
        connections: number("SILT_S3_CONNECTIONS")?.and_then(|count| usize::try_from(count).ok()),
        timeout: number("SILT_S3_TIMEOUT")?.map(std::time::Duration::from_secs),
        retries: number("SILT_S3_RETRIES")?.and_then(|count| usize::try_from(count).ok()),
    })
}

/// Of a place that is in use by a repository, says so.
fn taken(location: &str, error: Error) -> Error {
    let config = || -> Result<()> {
        let storage: Arc<dyn Storage> = match scheme(location) {
            None => Arc::new(LocalStorage::open(Path::new(location))?),
            Some(_) => Opener::default().open(location)?,
        };
        storage.head(&Key::new(names::CONFIG)?).map(drop)
    };
    if error.kind() != ErrorKind::AlreadyExists || config().is_err() {
        return error;
    }
    let message =
        format!("{location} holds a repository already; use it, or make one in another place");
    Error::new(ErrorKind::AlreadyExists, message)
}

/// A folder's path from the root, as lists of places have it; other locations as they are.
pub fn absolute(location: &str) -> String {
    if scheme(location).is_some() {
        return location.trim_end_matches('/').to_owned();
    }
    let path = std::fs::canonicalize(location).or_else(|_| std::path::absolute(location));
    path.map_or_else(|_| location.to_owned(), |path| path.to_string_lossy().into_owned())
}
