//! Locations of repositories: folders, buckets of S3-compatible stores, Azure and Google, and the
//! kinds of storage that a program adds.

#[cfg(feature = "s3")]
mod bucket;
mod price;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use silt_format::names::Numbered;
use silt_format::{Error, ErrorKind, Result, names};
use silt_storage::{CachedStorage, Key, LocalStorage, Storage, Usage};
use siltstone::storage::{CACHE_POLICY, READER_CACHE_POLICY};

/// Bytes of the cache of one location unless told otherwise.
const CACHE_MIB_DEFAULT: u64 = 512;

pub use price::Prices;

/// The cache of distant repositories.
#[derive(Clone, Debug, Default)]
pub struct Cache {
    /// The folder; none for no cache.
    pub folder: Option<PathBuf>,
    /// MiB for each location.
    pub mib: Option<u64>,
    /// Whether only readers use it, which ask the store for less.
    pub is_for_readers: bool,
}

/// Opens storages by their locations, and counts their requests.
#[derive(Default)]
pub struct Opener {
    /// Most objects that are uploaded at once, if it is said.
    #[cfg_attr(not(feature = "s3"), expect(dead_code, reason = "folders have no connections"))]
    connections: Option<usize>,
    /// Those that are far away.
    opened: Mutex<Vec<Arc<dyn Storage>>>,
    #[cfg(feature = "s3")]
    buckets: Mutex<Vec<Arc<silt_remote::S3Storage>>>,
    /// What the program adds.
    kinds: &'static [StorageKind],
}

/// A kind of storage, by the scheme of its locations.
#[derive(Clone, Copy, Debug)]
pub struct StorageKind {
    /// The part of a location before `://`.
    pub scheme: &'static str,
    /// The form of a location, for messages: `hdfs://NAMENODE:PORT/FOLDER`.
    pub form: &'static str,
    /// Opens the storage at a location, which includes its options. Writes nothing.
    pub open: fn(&str) -> Result<Arc<dyn Storage>>,
}

/// Schemes that another program of this project has, and that program.
const ELSEWHERE: [(&str, &str); 1] = [("hdfs", "silt-hdfs")];

/// The part of a location before `://`, if it has one.
fn scheme(location: &str) -> Option<&str> {
    location.split_once("://").map(|(scheme, _)| scheme)
}

/// A location without the options behind it.
fn place(location: &str) -> &str {
    match (scheme(location), location.split_once('?')) {
        (Some(_), Some((place, _))) => place,
        _ => location,
    }
}

fn unsupported(location: &str, scheme: &str, kinds: &[StorageKind]) -> Error {
    if let Some((_, program)) = ELSEWHERE.iter().find(|(known, _)| *known == scheme) {
        let message = format!("{location}: this build has no {scheme}://; use {program} instead");
        return Error::new(ErrorKind::Unsupported, message);
    }
    let mut known = vec!["a folder"];
    known.extend(cfg!(feature = "s3").then_some("s3://BUCKET/PREFIX"));
    known.extend(cfg!(feature = "azure").then_some("az://CONTAINER/PREFIX"));
    known.extend(cfg!(feature = "google").then_some("gs://BUCKET/PREFIX"));
    known.extend(kinds.iter().map(|kind| kind.form));
    let known = known.join(" or ");
    let message = format!("{location}: {scheme}:// repositories are not supported; use {known}");
    Error::new(ErrorKind::Unsupported, message)
}

/// What extending locks came to.
#[derive(Clone, Copy, Default)]
pub struct Locks {
    /// Objects looked at.
    pub objects: u64,
    /// Versions whose lock ends later now.
    pub extended: u64,
    /// Objects that have several versions.
    pub overwritten: u64,
}

impl Opener {
    /// An opener of which at most so many objects are uploaded at once to each store.
    pub fn new(connections: Option<usize>, kinds: &'static [StorageKind]) -> Self {
        Self { connections, kinds, ..Self::default() }
    }

    /// What the program adds.
    pub fn kinds(&self) -> &'static [StorageKind] {
        self.kinds
    }

    /// Opens the storage at a location; nothing is written to it.
    pub fn open(&self, location: &str) -> Result<Arc<dyn Storage>> {
        match scheme(location) {
            None => Ok(Arc::new(LocalStorage::open(Path::new(location))?)),
            #[cfg(feature = "s3")]
            Some("s3") => Ok(self.bucket(location)?),
            Some(scheme) => {
                let storage = self.open_other(scheme, location)?;
                lock(&self.opened).push(Arc::clone(&storage));
                Ok(storage)
            }
        }
    }

    /// Opens what is far away and no bucket of S3.
    fn open_other(&self, scheme: &str, location: &str) -> Result<Arc<dyn Storage>> {
        match scheme {
            #[cfg(feature = "azure")]
            "az" => {
                let (location, settings) = bucket::settings(location, self.connections)?;
                Ok(Arc::new(silt_remote::CloudStorage::azure(location, &settings)?))
            }
            #[cfg(feature = "google")]
            "gs" => {
                let (location, settings) = bucket::settings(location, self.connections)?;
                Ok(Arc::new(silt_remote::CloudStorage::google(location, &settings)?))
            }
            other => match self.kinds.iter().find(|kind| kind.scheme == other) {
                Some(kind) => (kind.open)(location),
                None => Err(unsupported(location, other, self.kinds)),
            },
        }
    }

    /// The same with a cache before what is far away.
    pub fn open_cached(&self, location: &str, cache: &Cache) -> Result<Arc<dyn Storage>> {
        let storage = self.open(location)?;
        let Some(folder) = cache.folder.as_ref().filter(|_| scheme(location).is_some()) else {
            return Ok(storage);
        };
        let name: String =
            place(location).chars().map(|c| if c.is_alphanumeric() { c } else { '_' }).collect();
        let bytes_max = cache.mib.unwrap_or(CACHE_MIB_DEFAULT) << 20;
        let policy = if cache.is_for_readers { READER_CACHE_POLICY } else { CACHE_POLICY };
        Ok(Arc::new(CachedStorage::new(storage, folder.join(name), policy, bytes_max)))
    }

    /// Fails as `AlreadyExists` if something is there already.
    pub fn refuse_existing(&self, location: &str) -> Result<()> {
        let is_taken = if scheme(location).is_none() {
            let folder = Path::new(location);
            [names::CONFIG, names::CONFIG_COPY].iter().any(|name| folder.join(name).exists())
        } else {
            !self.open(location)?.list("", None)?.objects.is_empty()
        };
        if !is_taken {
            return Ok(());
        }
        let message = format!("{location} is not empty; use another location");
        Err(self.taken(location, Error::new(ErrorKind::AlreadyExists, message)))
    }

    /// Makes an empty storage at a location: a folder that is new or empty, or a part of a bucket
    /// that has no objects, which must do what a repository needs.
    pub fn create(&self, location: &str, unique: u64) -> Result<Arc<dyn Storage>> {
        self.refuse_existing(location)?;
        if scheme(location).is_none() {
            let created = LocalStorage::create(Path::new(location));
            return Ok(Arc::new(created.map_err(|error| self.taken(location, error))?));
        }
        let storage = self.open(location)?;
        silt_storage::probe(&*storage, &Key::new(format!("probe/{unique:016x}"))?)?;
        Ok(storage)
    }

    /// Creates a storage like [`create`](Self::create), unless the location holds a repository;
    /// then returns `None`.
    pub fn create_if_missing(
        &self,
        location: &str,
        unique: u64,
    ) -> Result<Option<Arc<dyn Storage>>> {
        let config = Key::new(names::CONFIG)?;
        match self.open(location).and_then(|storage| storage.head(&config)) {
            Ok(_) => Ok(None),
            Err(error) if matches!(error.kind(), ErrorKind::NoRepository | ErrorKind::NotFound) => {
                self.create(location, unique).map(Some)
            }
            Err(error) => Err(error),
        }
    }

    /// A bucket of S3, with what only these do.
    #[cfg(feature = "s3")]
    pub fn bucket(&self, location: &str) -> Result<Arc<silt_remote::S3Storage>> {
        let (location, settings) = bucket::settings(location, self.connections)?;
        let storage = Arc::new(silt_remote::S3Storage::open(location, &settings)?);
        lock(&self.opened).push(Arc::clone(&storage) as Arc<dyn Storage>);
        lock(&self.buckets).push(Arc::clone(&storage));
        Ok(storage)
    }

    /// Extends the locks of all objects of all buckets that were opened, where objects are locked.
    /// `progress` hears how many were looked at as that grows.
    #[cfg(feature = "s3")]
    pub fn extend_locks(&self, progress: &dyn Fn(u64) -> Result<()>) -> Result<Option<Locks>> {
        let locking: Vec<_> =
            lock(&self.buckets).iter().filter(|bucket| bucket.lock().is_some()).cloned().collect();
        let mut all = Locks::default();
        for bucket in &locking {
            // Leases come and go.
            let stays = |key: &Key| !Numbered::Lease.is(key.as_str());
            let report = bucket.extend_locks(stays, |done| progress(all.objects + done))?;
            all.objects += report.objects;
            all.extended += report.extended;
            all.overwritten += report.overwritten;
        }
        Ok((!locking.is_empty()).then_some(all))
    }

    #[cfg(not(feature = "s3"))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "folders have no locks")]
    pub fn extend_locks(&self, _: &dyn Fn(u64) -> Result<()>) -> Result<Option<Locks>> {
        Ok(None)
    }

    /// The error, or one that names the repository that is at the location already.
    fn taken(&self, location: &str, error: Error) -> Error {
        let config = || -> Result<()> {
            let storage: Arc<dyn Storage> = match scheme(location) {
                None => Arc::new(LocalStorage::open(Path::new(location))?),
                Some(_) => Self::new(None, self.kinds).open(location)?,
            };
            storage.head(&Key::new(names::CONFIG)?).map(drop)
        };
        if error.kind() != ErrorKind::AlreadyExists || config().is_err() {
            return error;
        }
        let message = format!(
            "{location} holds a repository already; use it, or make one at another location"
        );
        Error::new(ErrorKind::AlreadyExists, message)
    }

    /// What was asked of all object stores that were opened; `None` if there were none.
    pub fn requests(&self) -> Option<Usage> {
        let opened = lock(&self.opened);
        (!opened.is_empty()).then(|| opened.iter().filter_map(Storage::usage).sum())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a location may be called in a list of places: a folder by its own path, or by the one that
/// leads to it over symbolic links.
pub fn names_of(location: &str) -> Vec<String> {
    let mut names = vec![absolute(location)];
    if scheme(location).is_none()
        && let Ok(path) = std::path::absolute(location)
    {
        let given = path.to_string_lossy().trim_end_matches('/').to_owned();
        names.extend((!names.contains(&given)).then_some(given));
    }
    names
}

/// A folder's path from the root, as lists of places have it; other locations as they are.
pub fn absolute(location: &str) -> String {
    if scheme(location).is_some() {
        return location.trim_end_matches('/').to_owned();
    }
    let path = std::fs::canonicalize(location).or_else(|_| std::path::absolute(location));
    path.map_or_else(|_| location.to_owned(), |path| path.to_string_lossy().into_owned())
}
