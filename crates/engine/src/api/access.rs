//! Settings, keys, places and retention policies.

pub use silt_repository::retention::apply_policy;

/// How disks are cut into chunks.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let chunking = Chunking::FastCdc { min: 4 << 10, avg: 16 << 10, max: 64 << 10 };
/// let options = BackupOptions { chunking: Some(chunking.validate()?), ..Default::default() };
/// let mut backup = repository.backup("web1", options)?;
/// let source = StreamSource::new(Box::new(&[7; 100_000][..]));
/// assert_eq!(backup.add_volume("root", &source, None)?.chunking, chunking);
///
/// let too_small = Chunking::Fixed { bytes: 512 };
/// assert_eq!(too_small.validate().unwrap_err().kind(), ErrorKind::Invalid);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Chunking;

/// How the files of trees are cut into chunks, by kind.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let mut backup = repository.backup("home", BackupOptions::default())?;
/// # backup.add_tree("files", folder.path(), &TreeOptions::default())?;
/// # backup.finish()?;
/// let mut chunking = repository.file_chunking("home")?;
/// assert_eq!(chunking.of(FileKind::DiskImage), Chunking::Fixed { bytes: 4096 });
/// chunking.set(FileKind::Text, Chunking::FastCdc { min: 512, avg: 2048, max: 16_384 })?;
/// repository.set_file_chunking("home", Some(chunking))?;
/// assert_eq!(repository.file_chunking("home")?, chunking);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::tree::FileChunking;

/// ```
/// use siltstone::FileKind;
/// assert!(FileKind::ALL.iter().all(|kind| FileKind::ALL[kind.index()] == *kind));
/// assert_eq!(FileKind::DiskImage.name(), "disk-image");
/// ```
pub use silt_format::tree::FileKind;

/// The settings of a repository, chosen when it is made.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::MemoryStorage}};
/// let config = Config { zstd_level: 3, container_bytes: 16 << 20, ..Config::default() };
/// config.validate()?;
/// let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// let repository = Repository::init(storage, context, config, &Protection::None, None)?;
/// assert_eq!(repository.config.zstd_level, 3);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Config;

/// The cost of one attempt with a password: memory and passes of Argon2id.
///
/// ```
/// use siltstone::{ErrorKind, KdfCost};
///
/// let cost = KdfCost { memory_kib: 256 << 10, ..KdfCost::default() }.validate()?;
/// assert_eq!(cost.passes, 3);
/// let too_cheap = KdfCost { memory_kib: 1024, ..cost };
/// assert_eq!(too_cheap.validate().unwrap_err().kind(), ErrorKind::Invalid);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::KdfCost;

/// The creator of a key: user, host and time.
///
/// ```
/// use siltstone::{KeyLabel, SystemEnv};
///
/// let env = SystemEnv::context().env;
/// let (created_ns, host) = (env.now_ns(), env.process().host);
/// let purpose = "restores in the office".to_owned();
/// let label = KeyLabel { created_ns, host, user: "maria".to_owned(), purpose };
/// assert_eq!(label.user, "maria");
/// ```
pub use silt_format::KeyLabel;

/// A length of calendar time.
///
/// ```
/// use siltstone::{Period, RetentionPolicy};
///
/// let within = Period { months: 1, days: 15, ..Period::default() };
/// assert!(!within.is_zero());
/// let policy = RetentionPolicy { within, ..RetentionPolicy::default() };
/// assert!(!policy.is_empty(), "it keeps the last month and a half");
/// ```
pub use silt_format::Period;

/// Which snapshots of a series are kept.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let policy = RetentionPolicy { daily: 7, weekly: 4, monthly: 12, ..Default::default() };
/// repository.set_policy("web1", Some(policy.clone()))?;
/// assert_eq!(repository.policies(&[])?[0].policy, Some(policy));
/// assert!(RetentionPolicy::default().is_empty(), "a policy without rules keeps nothing");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::RetentionPolicy;

/// The administrator of a new append-only repository.
///
/// Backup hosts add snapshots there; to delete takes the administrator's password.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::MemoryStorage}};
/// let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
/// let (password, label) = (b"only the administrator".to_vec(), KeyLabel::default());
/// let administrator = Administrator { password, cost, label };
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// let mut repository = Repository::init(storage, context, config, &none, Some(&administrator))?;
/// assert!(repository.is_append_only());
/// assert_eq!(repository.authorize(b"a guess").unwrap_err().kind(), ErrorKind::WrongPassword);
/// repository.authorize(b"only the administrator")?;
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::authority::Administrator;

/// The rights of a new key.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::MemoryStorage}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
/// # let (password, label) = (b"mine".to_vec(), KeyLabel::default());
/// # let protection = Protection::Password { password, cost, label: label.clone() };
/// # let config = Config::default();
/// # let repository = Repository::init(storage.clone(), context, config, &protection, None)?;
/// let access = KeyAccess::write_only(&["web*"]);
/// repository.add_key(b"for the web hosts", cost, &label, &access)?;
///
/// let password = || Ok(b"for the web hosts".to_vec());
/// let host = Repository::open(storage, SystemEnv::context(), password)?;
/// assert!(host.is_write_only());
/// let error = host.backup("mail", BackupOptions::default()).err().unwrap();
/// assert_eq!(error.kind(), ErrorKind::Denied);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::keys::KeyAccess;

/// A key of a repository, as [`Repository::keys`](crate::Repository) lists it.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::MemoryStorage}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 };
/// # let (password, label) = (b"mine".to_vec(), KeyLabel::default());
/// # let protection = Protection::Password { password, cost, label: label.clone() };
/// # let config = Config::default();
/// # let repository = Repository::init(storage.clone(), context, config, &protection, None)?;
/// let id = repository.add_key(b"second", cost, &label, &KeyAccess::full())?;
/// for key in repository.keys()? {
///     println!("{} made on {} by {}", key.id, key.label.host, key.label.user);
/// }
/// assert_eq!(repository.keys()?.len(), 2);
/// repository.remove_key(&id.to_string())?;
/// assert_eq!(repository.keys()?.len(), 1);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::keys::KeyInfo;

/// Whether a new repository is encrypted, and by which password.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::MemoryStorage}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let config = Config::default();
/// let cost = KdfCost { memory_kib: 8 << 10, passes: 1, lanes: 1 }; // KdfCost::default() is better
/// let (password, label) = (b"correct horse".to_vec(), KeyLabel::default());
/// let protection = Protection::Password { password, cost, label };
/// let repository = Repository::init(storage.clone(), context, config, &protection, None)?;
/// assert!(repository.is_encrypted());
///
/// let wrong = Repository::open(storage.clone(), SystemEnv::context(), || Ok(b"horse".to_vec()));
/// assert_eq!(wrong.err().unwrap().kind(), ErrorKind::WrongPassword);
/// let context = SystemEnv::context();
/// Repository::open(storage, context, || Ok(b"correct horse".to_vec()))?;
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::open::Protection;

/// The program's function that opens the storage at a location.
///
/// ```
/// # use {std::{collections::HashMap, sync::Arc}, siltstone::{*, storage::*}};
/// # let (config, none) = (Config::default(), Protection::None);
/// # let disk = || Arc::new(MemoryStorage::new());
/// let disks = HashMap::from([("/mnt/a", disk()), ("/mnt/b", disk())]);
/// let open = |location: &str| -> Result<Arc<dyn Storage>> {
///     let missing = || Error::new(ErrorKind::NotFound, format!("{location} is not mounted"));
///     Ok(disks.get(location).ok_or_else(missing)?.clone())
/// };
/// let context = SystemEnv::context();
/// let repository = Repository::init(open("/mnt/a")?, context, config, &none, None)?;
/// let (repository, filled) = repository.add_place("/mnt/a", "/mnt/b", &open)?;
/// assert!(filled.lost.is_empty());
/// assert_eq!(repository.places().len(), 2);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::places::OpenPlace;

/// A place that keeps a copy of the repository, and whether it can be reached.
///
/// ```
/// # use {std::{collections::HashMap, sync::Arc}, siltstone::{*, storage::*}};
/// # let (config, none) = (Config::default(), Protection::None);
/// # let disk = || Arc::new(MemoryStorage::new());
/// # let disks = HashMap::from([("/mnt/a", disk()), ("/mnt/b", disk())]);
/// # let open = |location: &str| -> Result<Arc<dyn Storage>> { Ok(disks[location].clone()) };
/// # let context = SystemEnv::context();
/// # let repository = Repository::init(open("/mnt/a")?, context, config, &none, None)?;
/// # let (repository, _) = repository.add_place("/mnt/a", "/mnt/b", &open)?;
/// for place in repository.places() {
///     match &place.failure {
///         Some(why) => println!("{} can't be reached: {why}", place.location),
///         None => println!("{} is there", place.location),
///     }
/// }
/// let whole = repository.places().into_iter().filter(|place| !place.is_filling);
/// assert_eq!(whole.count(), 2);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::places::PlaceInfo;

/// Whether a series or a storage node may have this name.
///
/// ```
/// assert!(siltstone::is_name("web 1"));
/// assert!(!siltstone::is_name("web1@latest"));
/// ```
pub use silt_repository::series::is_name;

/// A store that several series refer to: the shared store, or that of a storage node.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage, context, config, &none, None)?;
/// let stores: Vec<CommonStore> = repository.stores();
/// assert_eq!((stores[0].number, stores[0].shown.as_str()), (1, "shared store"));
/// assert_eq!(stores.len(), 1, "it has no storage nodes");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::stores::CommonStore;

/// A snapshot that a retention policy decides about.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let head = &repository.heads(&["web1".to_owned()])?[0];
/// let candidates: Vec<Candidate> =
///     head.snapshots.iter().map(|entry| Candidate::new(entry, None)).collect();
/// assert_eq!(candidates[0].id, snapshot.id);
/// assert!(!candidates[0].is_protected);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::retention::Candidate;

/// The decision of a policy about one snapshot: the reasons to keep it, or none.
///
/// ```
/// use jiff::tz::TimeZone;
/// use siltstone::{Candidate, Id, RetentionPolicy, apply_policy};
///
/// let hour_ns = 3_600_000_000_000;
/// let candidate = |number: u32| Candidate {
///     id: Id(number.into()),
///     time_ns: i64::from(number) * hour_ns,
///     tags: Vec::new(),
///     is_protected: number == 1,
///     age_s: None,
/// };
/// let policy = RetentionPolicy { last: 1, ..RetentionPolicy::default() };
/// let all: Vec<Candidate> = (1..=3).map(candidate).collect();
/// let kept = apply_policy(&policy, &all, 9 * hour_ns, &TimeZone::UTC)?;
/// let reasons: Vec<_> = kept.iter().map(|kept| kept.reasons.join(", ")).collect();
/// assert_eq!(reasons, ["last", "", "protected"], "newest first");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::retention::Kept;
