//! Where repositories are kept.

pub use silt_storage::LIST_PAGE_OBJECTS_MAX;
pub use silt_storage::conformance;

/// Which bytes of an object [`Storage::get`] reads.
///
/// ```
/// use siltstone::storage::{ByteRange, Key, MemoryStorage, PutMode, Storage};
///
/// let (storage, key, mut bytes) = (MemoryStorage::new(), Key::new("letters")?, Vec::new());
/// storage.put(&key, &[b"abcdef"], PutMode::Create)?;
/// storage.get(&key, ByteRange::Full, &mut bytes)?;
/// assert_eq!(bytes, b"abcdef");
/// storage.get(&key, ByteRange::Bounded { offset: 1, length: 3 }, &mut bytes)?;
/// assert_eq!(bytes, b"bcd");
/// storage.get(&key, ByteRange::Tail(2), &mut bytes)?;
/// assert_eq!(bytes, b"ef");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::ByteRange;

/// Keeps objects of a slow storage in a local folder.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// let cached = CachedStorage::new(storage, folder.path(), CACHE_POLICY, 512 << 20);
/// let cached = Arc::new(cached);
/// let repository = Repository::open(cached, SystemEnv::context(), || Ok(Vec::new()))?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// assert!(std::fs::read_dir(folder.path()).unwrap().count() > 0);
/// assert!(repository.check(&CheckOptions::default())?.damage.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::CachedStorage;

/// Lets an operation run without changing its storage.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let dry = Arc::new(DryRunStorage::new(storage.clone()));
/// let repository = Repository::open(dry, SystemEnv::context(), || Ok(Vec::new()))?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// println!("a backup would store {} bytes", snapshot.stored_bytes());
///
/// let real = Repository::open(storage, SystemEnv::context(), || Ok(Vec::new()))?;
/// assert!(real.heads(&[])?.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::DryRunStorage;

/// The guarantees of a [`Storage`]; a repository needs all of them for several writers at once.
///
/// ```
/// use siltstone::storage::{Guarantees, LocalStorage, Storage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let storage = LocalStorage::create(folder.path())?;
/// assert!(storage.guarantees().conditional_create);
/// assert_eq!(storage.guarantees(), Guarantees::ALL);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::Guarantees;

/// How much of an object a [`CachedStorage`] keeps.
///
/// ```
/// use siltstone::storage::{Keep, Key};
///
/// fn keep(key: &Key) -> Keep {
///     match key.as_str().split('/').next() {
///         Some("snapshots") => Keep::Settled, // a random number names each for ever
///         Some("recipes") => Keep::Whole,
///         Some("containers") => Keep::Ends,
///         _ => Keep::Nothing,
///     }
/// }
///
/// assert!(matches!(keep(&Key::new("containers/1")?), Keep::Ends));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::Keep;

/// Which objects a [`CachedStorage`] keeps, and where their ends begin.
///
/// ```
/// use siltstone::storage::{CACHE_POLICY, CachePolicy, Keep, Key};
///
/// // The repository's own policy, without recipes.
/// let keep = |key: &Key| match key.as_str().starts_with("recipes/") {
///     true => Keep::Nothing,
///     false => (CACHE_POLICY.keep)(key),
/// };
/// let policy = CachePolicy { keep, ..CACHE_POLICY };
/// assert_eq!((policy.keep)(&Key::new("recipes/1/2")?), Keep::Nothing);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::CachePolicy;

/// The objects of a repository that a cache keeps.
///
/// ```
/// use siltstone::storage::{CACHE_POLICY, Keep, Key};
///
/// assert_eq!((CACHE_POLICY.keep)(&Key::new("config")?), Keep::Settled);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::storage_rules::CACHE_POLICY;

/// The same for processes that only read, which ask the storage for less.
///
/// ```
/// use siltstone::storage::{Keep, Key, READER_CACHE_POLICY};
///
/// let container = Key::new("containers/0123456789abcdef01234567/00000001.0123456789abcdef")?;
/// assert_eq!((READER_CACHE_POLICY.keep)(&container), Keep::SettledEnds);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::storage_rules::READER_CACHE_POLICY;

/// The end of an object that is kept.
///
/// ```
/// use siltstone::storage::{CACHE_POLICY, End};
///
/// let end: Option<End> = (CACHE_POLICY.end)(b"these bytes do not end a container");
/// assert_eq!(end, None);
/// ```
pub use silt_storage::End;

/// The name of an object.
///
/// ```
/// use siltstone::ErrorKind;
/// use siltstone::storage::Key;
///
/// let key = Key::new("containers")?.join("00000001")?;
/// assert_eq!(key.as_str(), "containers/00000001");
/// for name in ["", "/absolute", "../above", "Upper", "a//b"] {
///     assert_eq!(Key::new(name).unwrap_err().kind(), ErrorKind::Invalid);
/// }
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::Key;

/// A page of a listing.
///
/// ```
/// use siltstone::storage::{Key, MemoryStorage, PutMode, Storage};
///
/// let storage = MemoryStorage::new();
/// for name in ["a/1", "a/2", "b/1"] {
///     storage.put(&Key::new(name)?, &[b"bytes"], PutMode::Create)?;
/// }
/// let page = storage.list("a/", None)?;
/// let names: Vec<&str> = page.objects.iter().map(|(key, _)| key.as_str()).collect();
/// assert_eq!(names, ["a/1", "a/2"]);
/// assert!(!page.truncated);
/// let rest = storage.list("a/", Some(&page.objects[0].0))?;
/// assert_eq!(rest.objects.len(), 1);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::ListPage;

/// Keeps objects as files in a folder.
///
/// ```
/// use siltstone::storage::{ByteRange, Key, LocalStorage, PutMode, Storage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let storage = LocalStorage::create(folder.path())?;
/// storage.put(&Key::new("notes/today")?, &[b"text"], PutMode::Create)?;
///
/// let again = LocalStorage::open(folder.path())?;
/// let mut bytes = Vec::new();
/// again.get(&Key::new("notes/today")?, ByteRange::Full, &mut bytes)?;
/// assert_eq!(bytes, b"text");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::LocalStorage;

/// Keeps objects in memory, for tests.
///
/// ```
/// use siltstone::storage::{ByteRange, Key, MemoryStorage, PutMode, Storage};
///
/// let (storage, key) = (MemoryStorage::new(), Key::new("object")?);
/// storage.put(&key, &[b"whole"], PutMode::Create)?;
/// let before = storage.snapshot();
/// storage.damage(&key, |bytes| bytes[0] ^= 1)?;
///
/// let mut bytes = Vec::new();
/// before.get(&key, ByteRange::Full, &mut bytes)?;
/// assert_eq!(bytes, b"whole");
/// storage.get(&key, ByteRange::Full, &mut bytes)?;
/// assert_eq!(bytes, b"vhole");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::MemoryStorage;

/// The size of an object, and its age if the storage knows it.
///
/// ```
/// use siltstone::storage::{Key, MemoryStorage, ObjectMeta, PutMode, Storage};
///
/// let (storage, key) = (MemoryStorage::new(), Key::new("object")?);
/// storage.put(&key, &[b"abc", b"def"], PutMode::Create)?;
/// assert_eq!(storage.head(&key)?, ObjectMeta { size: 6, modified_ms: None });
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::ObjectMeta;

/// Whether a new object must survive a power failure; an object is never overwritten.
///
/// ```
/// use siltstone::ErrorKind;
/// use siltstone::storage::{Key, MemoryStorage, PutMode, Storage};
///
/// let (storage, key) = (MemoryStorage::new(), Key::new("object")?);
/// storage.put(&key, &[b"first"], PutMode::Create)?;
/// let error = storage.put(&key, &[b"second"], PutMode::Create).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::AlreadyExists);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::PutMode;

/// A store of named objects that never change.
///
/// A wrapper forwards every method, including those with defaults:
///
/// ```
/// use bytes::Bytes;
/// use siltstone::{Result, storage::*};
///
/// /// Shows every read.
/// struct Traced<S>(S);
///
/// impl<S: Storage> Storage for Traced<S> {
///     fn get(&self, key: &Key, range: ByteRange, into: &mut Vec<u8>) -> Result<()> {
///         println!("read {key}");
///         self.0.get(key, range, into)
///     }
///     fn put_bytes(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<()> {
///         self.0.put_bytes(key, body, mode)
///     }
///     // … and so on:
/// #   fn put_tagged(&self, key: &Key, body: &[Bytes], mode: PutMode) -> Result<Option<String>> {
/// #       self.0.put_tagged(key, body, mode)
/// #   }
/// #   fn settle(&self, key: &Key) -> Result<()> { self.0.settle(key) }
/// #   fn head(&self, key: &Key) -> Result<ObjectMeta> { self.0.head(key) }
/// #   fn delete(&self, keys: &[Key]) -> Result<()> { self.0.delete(keys) }
/// #   fn list(&self, prefix: &str, after: Option<&Key>) -> Result<ListPage> {
/// #       self.0.list(prefix, after)
/// #   }
/// #   fn guarantees(&self) -> Guarantees { self.0.guarantees() }
/// #   fn describe(&self) -> String { self.0.describe() }
/// }
///
/// let traced = Traced(MemoryStorage::new());
/// traced.put(&Key::new("object")?, &[b"bytes"], PutMode::Create)?;
/// assert_eq!(traced.list("", None)?.objects.len(), 1);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::Storage;

/// A page of a listing with tags; an object whose tag is the same as before has not changed.
///
/// Object stores have tags (S3's `ETag`); folders have none.
///
/// ```
/// use siltstone::storage::{Key, MemoryStorage, PutMode, Storage, TaggedPage};
///
/// let (storage, key) = (MemoryStorage::new(), Key::new("object")?);
/// storage.put(&key, &[b"bytes"], PutMode::Create)?;
/// let before: TaggedPage = storage.list_tagged("", None)?;
/// assert_eq!(storage.list_tagged("", None)?, before);
///
/// storage.damage(&key, |bytes| bytes[0] ^= 1)?;
/// assert_ne!(storage.list_tagged("", None)?.tags, before.tags);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_storage::TaggedPage;

/// The requests that were sent to an object store; they cost money.
///
/// ```
/// use siltstone::storage::Usage;
///
/// let backup = Usage { puts: 40, lists: 2, sent_bytes: 300 << 20, ..Usage::default() };
/// let check = Usage { gets: 500, lists: 2, received_bytes: 80 << 20, ..Usage::default() };
/// let both: Usage = [backup, check].into_iter().sum();
/// assert_eq!(both.requests(), 544);
/// assert_eq!(both.lists, 4);
/// ```
pub use silt_storage::Usage;
