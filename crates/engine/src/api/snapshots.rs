//! Finding and reading snapshots.

/// A range of bytes of a volume.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let target = StreamTarget::new(Box::new(Vec::new()), 4096);
/// let span = ByteSpan { offset: 8192, length: 4096 };
/// let options = RestoreOptions { range: Some(span), ..RestoreOptions::default() };
/// let report = repository.restore(found.volume("root")?, &target, options)?;
/// assert_eq!(report.bytes, span.length);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::ByteSpan;

/// The newest state of a series: its name, its snapshots, its policy.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// for head in repository.heads(&[])? {
///     println!("{}: {} snapshots, commit {}", head.name, head.snapshots.len(), head.generation);
/// }
/// let head = &repository.heads(&["web1".to_owned()])?[0];
/// assert_eq!(head.snapshots[0].id, snapshot.id);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Head;

/// The id of a snapshot or a key: 16 hexadecimal digits.
///
/// ```
/// use siltstone::Id;
///
/// let id = Id(0x1f);
/// assert_eq!(id.to_string(), "000000000000001f");
/// assert_eq!(Id::from_hex("000000000000001f"), Some(id));
/// assert_eq!(Id::from_hex("1f"), None);
/// ```
pub use silt_format::Id;

/// How a backup found that a range of a volume need not be stored, or that it must be.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let levels = snapshot.volumes[0].levels;
/// for level in Level::ALL {
///     println!("{}: {} bytes", level.name(), levels.get(level));
/// }
/// assert_eq!(levels.get(Level::Zero), 0);
/// assert!(levels.get(Level::New) > 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Level;

/// The bytes of a volume or a snapshot by [`Level`].
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let levels = snapshot.levels();
/// let stored = levels.get(Level::New);
/// let saved = levels.total() - stored;
/// assert_eq!(levels.total(), 100_000);
/// assert!(saved > stored);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::LevelBytes;

/// The id of a repository; its copies have the same.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let again = Repository::open(storage, SystemEnv::context(), || Ok(Vec::new()))?;
/// assert_eq!(again.id(), repository.id());
/// println!("repository {}", again.id());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::RepositoryId;

/// The id of a series: 24 hexadecimal digits, derived from its name by a key of the repository.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let id = repository.series_id("web1");
/// assert_eq!(repository.series()?, [(id, "web1".to_owned())]);
/// assert_eq!(SeriesId::from_hex(&id.to_string()), Some(id));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::SeriesId;

/// A snapshot: when and where it was made, and its volumes.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Id(snapshot.id.to_string()))?;
/// let snapshot = &found.snapshot;
/// println!("{} of {} took {} ms", snapshot.id, snapshot.host, snapshot.duration_ms);
/// assert_eq!(snapshot.parent, None);
/// assert_eq!(snapshot.volumes[0].bytes, 100_000);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Snapshot;

/// A snapshot as its series' [`Head`] lists it: id, time and labels.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// repository.protect("web1", snapshot.id)?;
/// let head = &repository.heads(&[])?[0];
/// let is_protected = |entry: &&SnapshotEntry| entry.is_protected();
/// assert_eq!(head.snapshots.iter().filter(is_protected).count(), 1);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::SnapshotEntry;

/// A volume of a [`Snapshot`]: its size, its source, and the bytes that it added to storage.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let volume: &Volume = &snapshot.volumes[0];
/// assert_eq!(volume.name, "root");
/// assert_eq!(volume.bytes, 100_000);
/// assert!(volume.stored_bytes < volume.bytes);
/// assert!(volume.unreadable.is_empty());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Volume;

/// The heads of all series, and the series whose head is damaged or missing.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// drop(repository.backup("web2", BackupOptions::default())?);
/// let all = repository.all_heads(&[])?;
/// assert_eq!(all.heads[0].name, "web1");
/// assert!(all.damaged.is_empty());
/// assert_eq!(all.unfinished, ["web2"]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::find::AllHeads;

/// A series whose newest head can't be read, with the error and the newest head that can.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// # let head = repository.objects.names("state/", None)?;
/// # let head = head.filter_map(|item| item.ok()).find(|(name, _)| name.contains("/heads/"));
/// # storage.damage(&Key::new(head.unwrap().0)?, |bytes| bytes[200] ^= 1)?;
/// let all = repository.all_heads(&[])?;
/// for damaged in &all.damaged {
///     println!("series '{}': {}", damaged.series, damaged.error);
///     assert_eq!(damaged.error.kind(), ErrorKind::Corrupt);
///     assert!(damaged.before.is_none(), "this was its first commit");
/// }
/// assert_eq!(all.damaged.len(), 1);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::find::DamagedHead;

/// Names a snapshot by the beginning of its id, or by its series and time.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let by_id = Selector::Id(snapshot.id.to_string()[..12].to_owned());
/// let by_time = Selector::Time(Some("web1".to_owned()), When::Latest);
/// let (one, other) = (repository.find(&by_id)?, repository.find(&by_time)?);
/// assert_eq!(one.snapshot, other.snapshot);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::find::Selector;

/// Which snapshot of a series a [`Selector`] means.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let series = || Some("web1".to_owned());
/// let then = When::AtOrBefore(snapshot.time_ns);
/// let found = repository.find(&Selector::Time(series(), then))?;
/// assert_eq!(found.snapshot.id, snapshot.id);
///
/// let earlier = When::AtOrBefore(snapshot.time_ns - 1);
/// let error = repository.find(&Selector::Time(series(), earlier)).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::find::When;

/// A snapshot that [`Repository::find`](crate::Repository) has found.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(Some("web1".to_owned()), When::Latest))?;
/// assert_eq!(found.head.name, "web1");
/// assert_eq!(found.entry.id, found.snapshot.id);
/// let names: Vec<&str> = found.volumes().map(|it| it.volume().name.as_str()).collect();
/// assert_eq!(names, ["root"]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::Found;

/// A volume of a snapshot that was found: it can be read, restored or compared.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let root = found.volume("root")?;
/// assert_eq!(root.volume().bytes, 100_000);
/// assert_eq!(found.volume("boot").unwrap_err().kind(), ErrorKind::NotFound);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::FoundVolume;

/// A range of a volume, and whether it is zeros.
///
/// ```
/// # use std::io::{Read, repeat};
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # let disk = repeat(7).take(4 << 20).chain(repeat(0).take(4 << 20));
/// # backup.add_volume("root", &StreamSource::new(Box::new(disk)), None)?;
/// # backup.finish()?;
/// let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let reader = VolumeReader::open(&repository, found.volume("root")?, 0)?;
/// let (mut at, mut zeros) = (0, 0);
/// while let Some(VolumeExtent { span, is_zero }) = reader.extent_at(at)? {
///     zeros += if is_zero { span.length } else { 0 };
///     at = span.offset + span.length;
/// }
/// assert_eq!((at, zeros), (8 << 20, 4 << 20));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::VolumeExtent;

/// Reads a volume of a snapshot at any offset.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let found = repository.find(&Selector::Time(Some("web1".to_owned()), When::Latest))?;
/// let reader = VolumeReader::open(&repository, found.volume("root")?, 0)?;
/// let mut bytes = [0; 16];
/// assert_eq!(reader.read_at(50_000, &mut bytes)?, 16);
/// assert_eq!(bytes, [7; 16]);
/// assert_eq!(reader.read_at(reader.bytes() - 4, &mut bytes)?, 4);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::VolumeReader;

/// A cache that several readers of volumes share.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// let cache = Arc::new(ReadCache::new(&repository, 16 << 20));
/// let found = repository.find(&Selector::Time(Some("web1".to_owned()), When::Latest))?;
/// let open = || VolumeReader::open_sharing(&repository, found.volume("root")?, cache.clone());
/// let (one, other) = (open()?, open()?);
/// let mut bytes = [0; 16];
/// one.read_at(0, &mut bytes)?;
/// assert_eq!(other.read_in_memory(4096, &mut bytes), Some(false), "the first has read it");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::ReadCache;

/// How well a series is protected.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// let all: Vec<SeriesStatus> = repository.status(&[])?;
/// assert_eq!((all[0].series.as_str(), all[0].snapshots), ("web1", 1));
/// assert!(all[0].newest_good.is_some() && all[0].damaged_objects == 0);
/// assert_eq!(all[0].verified_since_s, None, "nothing was checked yet");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::status::SeriesStatus;

/// A snapshot that can be restored in full, as far as is known.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// let GoodSnapshot { id, .. } = repository.status(&["web1".to_owned()])?[0].newest_good.unwrap();
/// assert_eq!(repository.find(&Selector::Id(id.to_string()))?.snapshot.id, id);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::status::GoodSnapshot;

/// The ranges in which two volumes differ.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # for bytes in [&[7; 100_000], &[8; 100_000]] {
/// #     let mut backup = repository.backup("web1", BackupOptions::default())?;
/// #     backup.add_volume("root", &StreamSource::new(Box::new(&bytes[..])), None)?;
/// #     backup.finish()?;
/// # }
/// # let head = repository.heads(&[])?.remove(0);
/// # let id = |number: usize| head.snapshots[number].id.to_string();
/// # let find = |number: usize| repository.find(&Selector::Id(id(number)));
/// let (old, new) = (find(0)?, find(1)?);
/// let diff = repository.diff(old.volume("root")?, new.volume("root")?)?;
/// assert_eq!(diff.spans, [ByteSpan { offset: 0, length: 100_000 }]);
/// assert_eq!(repository.diff(old.volume("root")?, old.volume("root")?)?.bytes, 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::compare::VolumeDiff;

/// A stretch of a volume, compared with another state by the maps alone.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// for byte in [7, 8] {
///     let mut backup = repository.backup("web1", BackupOptions::default())?;
///     let disk = [vec![7; 8192], vec![byte; 4096]].concat();
///     backup.add_volume("root", &StreamSource::new(Box::new(std::io::Cursor::new(disk))), None)?;
///     backup.finish()?;
/// }
/// let entries = repository.heads(&[])?[0].snapshots.clone();
/// let reader = |id: Id| {
///     let found = repository.find(&Selector::Id(id.to_string()))?;
///     VolumeReader::open(&repository, found.volume("root")?, 0)
/// };
/// let (old, new) = (reader(entries[0].id)?, reader(entries[1].id)?);
/// let ChangedStretch { end, spans } = changed_stretch(&old, &new, 0)?.unwrap();
/// assert_eq!((end, spans), (12_288, vec![ByteSpan { offset: 8192, length: 4096 }]));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::compare::ChangedStretch;

/// Compares a stretch of two volumes of a series; see [`ChangedStretch`] for an example.
pub use silt_repository::compare::changed_stretch;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let kinds: Vec<_> = snapshot.volumes.iter().map(|volume| &volume.kind).collect();
/// assert_eq!(kinds, [&VolumeKind::Disk]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::VolumeKind;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// // Only a volume whose changed-blocks map was believed has one.
/// for proof in snapshot.volumes.iter().filter_map(|volume| volume.map_proof.as_ref()) {
///     println!("all segments were compared since {}", proof.since_ns());
/// }
/// assert!(snapshot.volumes[0].map_proof.is_none());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::MapProof;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// repository.delete("web1", &[snapshot.id], DeleteMethod::default())?;
/// let head = repository.heads(&[])?.remove(0);
/// let deleted: &DeletedEntry = &head.deleted[0];
/// assert_eq!((deleted.entry.id, head.snapshots.len()), (snapshot.id, 0));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::DeletedEntry;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// let names: Vec<_> = snapshot.checkpoints.iter().map(|checkpoint| &checkpoint.id).collect();
/// assert!(names.is_empty(), "only a source that has checkpoints names one");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_format::Checkpoint;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let (source, target) = (folder.path().join("home"), folder.path().join("restored"));
/// # std::fs::create_dir(&source).unwrap();
/// # std::fs::write(source.join("notes.txt"), b"remember").unwrap();
/// # let mut backup = repository.backup("home", BackupOptions::default())?;
/// # backup.add_tree("files", &source, &TreeOptions::default())?;
/// # backup.finish()?;
/// # let found = repository.find(&Selector::Time(None, When::Latest))?;
/// let tree = TreeVolume::open(&repository, found.volume("files")?, 0)?;
/// let file = tree.find(b"/notes.txt")?;
/// let mut bytes = [0; 100];
/// let read = tree.read_at(&file, 2, &mut bytes)?;
/// assert_eq!(&bytes[..read], b"member");
/// let mut entries = tree.entries(&tree.tree().root);
/// while let Some(entry) = tree.next(&mut entries)? {
///     println!("{} has {} bytes", entry.name.escape_ascii(), entry.metadata.size);
/// }
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_repository::tree::TreeVolume;
