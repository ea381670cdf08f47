//! Backups.

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let mut backup = repository.backup("web1", BackupOptions::default())?;
/// let source = StreamSource::new(Box::new(&[7; 100_000][..]));
/// backup.add_volume("root", &source, None)?;
/// let report: BackupReport = backup.finish()?;
/// println!("snapshot {}: {} bytes stored", report.snapshot.id, report.stored_bytes);
/// assert_eq!((report.series.as_str(), report.generation), ("web1", 1));
/// assert!(!report.map_distrusted);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::BackupReport;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let mut backup = repository.backup("web1", BackupOptions::default())?;
/// for (name, bytes) in [("boot", &[1; 50_000]), ("root", &[2; 50_000])] {
///     backup.add_volume(name, &StreamSource::new(Box::new(&bytes[..])), None)?;
/// }
/// assert!(backup.parent().is_none(), "this is the first backup of web1");
/// let snapshot = backup.finish()?.snapshot;
/// assert_eq!(snapshot.volumes.len(), 2);
///
/// let next = repository.backup("web1", BackupOptions::default())?;
/// assert_eq!(next.parent().map(|parent| parent.id), Some(snapshot.id));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::BackupSession;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let tags = vec!["before the upgrade".to_owned()];
/// let options = BackupOptions { tags, ..BackupOptions::default() };
/// let mut backup = repository.backup("web1", options)?;
/// let source = StreamSource::new(Box::new(&[7; 100_000][..]));
/// backup.add_volume("root", &source, None)?;
/// backup.finish()?;
/// let head = &repository.heads(&["web1".to_owned()])?[0];
/// assert_eq!(head.snapshots[0].labels, ["before the upgrade"]);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::BackupOptions;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let detection = DetectionOptions { recent: false, ..DetectionOptions::default() };
/// let options = BackupOptions { detection, ..BackupOptions::default() };
/// let mut backup = repository.backup("web1", options)?;
/// backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// let volume = &backup.finish()?.snapshot.volumes[0];
/// assert_eq!(volume.levels.get(Level::Recent), 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::DetectionOptions;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let (source, target) = (folder.path().join("home"), folder.path().join("restored"));
/// # std::fs::create_dir(&source).unwrap();
/// # std::fs::write(source.join("notes.txt"), b"remember").unwrap();
/// let options = TreeOptions { reread: true, ..TreeOptions::default() };
/// let mut backup = repository.backup("home", BackupOptions::default())?;
/// let volume = backup.add_tree("files", &source, &options)?;
/// assert!(matches!(&volume.kind, VolumeKind::Tree(tree) if tree.counts.files == 1));
/// backup.finish()?;
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::TreeOptions;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let host = Some("old-server".to_owned());
/// let taken = Taken { time_ns: Some(1_000_000_000), host, ..Taken::default() };
/// let options = BackupOptions { taken, ..BackupOptions::default() };
/// let mut backup = repository.backup("web1", options)?;
/// backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// let snapshot = backup.finish()?.snapshot;
/// assert_eq!((snapshot.time_ns, snapshot.host.as_str()), (1_000_000_000, "old-server"));
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::Taken;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # for series in ["web1", "web2"] {
/// #     let mut backup = repository.backup(series, BackupOptions::default())?;
/// #     backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// #     backup.finish()?;
/// # }
/// # let (spool, memory_bytes, dry_run) = (std::env::temp_dir(), 0, false);
/// # let policy = SharePolicy::Duplicates;
/// # repository.build_popular(&PopularOptions { policy, spool, memory_bytes, dry_run })?;
/// #[derive(Debug)]
/// struct Nowhere;
///
/// impl SharedPlaces for Nowhere {
///     fn find(&self, wanted: &[(Fingerprint, u32)]) -> Option<Vec<Option<Reference>>> {
///         Some(vec![None; wanted.len()])
///     }
/// }
///
/// let places: Option<Arc<dyn SharedPlaces>> = Some(Arc::new(Nowhere));
/// let options = BackupOptions { places, ..BackupOptions::default() };
/// let mut backup = repository.backup("web3", options)?;
/// backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// let levels = backup.finish()?.snapshot.volumes[0].levels.clone();
/// assert_eq!(levels.get(Level::Shared), 0, "the shared store has the chunks, and nobody says so");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::SharedPlaces;

/// ```
/// use std::sync::Arc;
///
/// use siltstone::{BackupOptions, NodeAnswers, Reference, Wanted};
///
/// /// Answers as if no node had anything, so that everything is stored as new.
/// #[derive(Debug)]
/// struct Nothing;
///
/// impl NodeAnswers for Nothing {
///     fn similar(&self, _: u16, asked: &[(u16, Vec<Vec<u64>>)]) -> Vec<Option<Vec<usize>>> {
///         asked.iter().map(|(_, handprints)| Some(vec![0; handprints.len()])).collect()
///     }
///     fn find(
///         &self,
///         _: u16,
///         asked: &[(u16, Vec<Wanted>)],
///     ) -> Vec<Option<Vec<Option<Reference>>>> {
///         asked.iter().map(|(_, chunks)| Some(vec![None; chunks.len()])).collect()
///     }
/// }
///
/// assert_eq!(Nothing.similar(1, &[(2, vec![vec![3, 5, 8]])]), [Some(vec![0])]);
/// let node_answers: Option<Arc<dyn NodeAnswers>> = Some(Arc::new(Nothing));
/// let options = BackupOptions { node_answers, ..BackupOptions::default() };
/// # drop(options);
/// ```
pub use silt_backup::NodeAnswers;

/// ```
/// use siltstone::{Fingerprint, Wanted};
///
/// let chunk: Wanted = (Fingerprint([7; 20]), 4096);
/// assert_eq!(chunk.1, 4096, "its length in bytes");
/// ```
pub use silt_backup::Wanted;

/// ```
/// use siltstone::Fingerprint;
///
/// let fingerprint = Fingerprint([7; 20]);
/// assert!(fingerprint < Fingerprint([8; 20]), "they are ordered by their bytes");
/// ```
pub use silt_format::Fingerprint;

/// ```
/// use siltstone::Reference;
///
/// let reference = Reference::new(1, 5, 9);
/// assert_eq!((reference.store(), reference.container(), reference.slot()), (1, 5, 9));
/// ```
pub use silt_format::Reference;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let mut session = repository.backup("web1", BackupOptions::default())?;
/// let received: ReceivedBases = session.received_bases();
/// assert!(received.volumes().is_empty(), "no delta has come");
/// session.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// session.finish()?;
/// let report = repository.optimize_received(&received, &OptimizeOptions::default())?;
/// assert_eq!(report.deltas, 0);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_backup::ReceivedBases;
