//! Rounds: many series backed up together.

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let bytes: &[u8] = &[7; 100_000];
/// let source = |name: &str| -> Result<Box<dyn VolumeSource>> {
/// #     let folder = tempfile::tempdir().unwrap();
/// #     let path = folder.path().join(name);
///     std::fs::write(&path, bytes).unwrap();
///     open_source(&path, &SourceOptions::default())
/// };
/// let web1 = RoundMember {
///     series: "web1".to_owned(),
///     volumes: vec![("root".to_owned(), source("web1.raw")?.into())],
///     options: BackupOptions::default(),
///     on_released: Some(Box::new(|| println!("the snapshot of web1's disk can go"))),
/// };
/// # let (folder, memory_bytes, spool) = (std::env::temp_dir(), 0, false);
/// # let options = RoundOptions { folder, memory_bytes, spool };
/// let report = repository.backup_round(vec![web1], &options)?;
/// assert!(report.backups[0].is_ok());
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_sharing::round::RoundMember;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let disk = folder.path().join("disk.raw");
/// std::fs::write(&disk, [7; 100_000]).unwrap();
/// let disk = open_source(&disk, &SourceOptions::default())?;
/// let files = RoundVolume::of_directory(folder.path(), TreeOptions::default());
/// let volumes = vec![("disk".to_owned(), disk.into()), ("files".to_owned(), files)];
/// let (series, options) = ("web1".to_owned(), BackupOptions::default());
/// let web1 = RoundMember { series, volumes, options, on_released: None };
/// # let (folder, memory_bytes, spool) = (std::env::temp_dir(), 0, false);
/// # let options = RoundOptions { folder, memory_bytes, spool };
/// let report = repository.backup_round(vec![web1], &options)?;
/// assert_eq!(report.backups[0].as_ref().unwrap().snapshot.volumes.len(), 2);
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_sharing::round::RoundVolume;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// let options = RoundOptions {
///     folder: std::env::temp_dir(),
///     memory_bytes: 64 << 20,
///     spool: true, // read each volume once
/// };
/// let report = repository.backup_round(Vec::new(), &options)?;
/// assert_eq!(report.spooled_bytes, 0, "there were no members");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_sharing::round::RoundOptions;

/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("disk.raw");
/// # std::fs::write(&path, [7; 100_000]).unwrap();
/// # let member = |name: &str| -> Result<RoundMember<'_>> {
/// #     let source = open_source(&path, &SourceOptions::default())?;
/// #     let volumes = vec![("root".to_owned(), source.into())];
/// #     let (series, options) = (name.to_owned(), BackupOptions::default());
/// #     Ok(RoundMember { series, volumes, options, on_released: None })
/// # };
/// # let (folder, memory_bytes, spool) = (std::env::temp_dir(), 0, false);
/// # let options = RoundOptions { folder, memory_bytes, spool };
/// let members = vec![member("web1")?, member("web2")?];
/// let report = repository.backup_round(members, &options)?;
/// for backup in &report.backups {
///     match backup {
///         Ok(done) => println!("{}: snapshot {}", done.series, done.snapshot.id),
///         Err(error) => println!("failed: {error}"),
///     }
/// }
/// assert_eq!(report.shared_chunks, 2, "the disks have the same two chunks");
/// # Ok::<(), siltstone::Error>(())
/// ```
pub use silt_sharing::round::RoundReport;

/// ```
/// use siltstone::{CostModel, Picking, Schedule, ScheduledVm};
///
/// let vm = |bytes: f64| ScheduledVm { machine: 0, scan_bytes: bytes, requests: bytes / 40960.0 };
/// let vms = [vm(100e9), vm(40e9), vm(60e9)];
/// let model = CostModel::local(500e6, 200e6, false);
/// let schedule = Schedule::of(&model, &vms, 1e8, 2, Picking::Least);
/// let mut scheduled = schedule.rounds.concat();
/// scheduled.sort_unstable();
/// assert_eq!(scheduled, [0, 1, 2], "each volume is in one round");
/// ```
pub use silt_sharing::round::ScheduledVm;

/// ```
/// use siltstone::{CostModel, Picking, Schedule, ScheduledVm};
///
/// let vm = |machine| ScheduledVm { machine, scan_bytes: 50e9, requests: 1e6 };
/// let vms = [0, 0, 0, 1, 1, 2].map(vm);
/// let model = CostModel::published();
/// let seconds = |picking| Schedule::of(&model, &vms, 1e8, 3, picking).total_s();
/// assert!(seconds(Picking::Envelope) <= seconds(Picking::Least));
/// ```
pub use silt_sharing::round::Picking;

/// ```
/// use siltstone::{CostModel, Picking, Schedule, ScheduledVm};
///
/// let vms = [100e9, 40e9, 60e9].map(|scan_bytes| ScheduledVm {
///     machine: 0,
///     scan_bytes,
///     requests: 1e6,
/// });
/// let model = CostModel::local(500e6, 200e6, false);
/// let night = Schedule::within(&model, &vms, 1e8, 6.0 * 3600.0, Picking::Envelope);
/// println!("{} rounds, {:.0} s", night.rounds.len(), night.total_s());
/// assert!(night.total_s() <= 6.0 * 3600.0);
/// ```
pub use silt_sharing::round::Schedule;

/// ```
/// use siltstone::RoundMemory;
///
/// let machine = RoundMemory {
///     changed_bytes: 8.8e9,
///     volumes: 25.0,
///     ratio: 136.0,
///     partitions: 400.0,
///     snapshots: 10.0,
///     new_share: 0.228,
/// };
/// assert!(machine.bytes(4) < machine.bytes(1));
/// ```
pub use silt_sharing::round::RoundMemory;

/// ```
/// use siltstone::{CostModel, RoundLoad};
///
/// let model = CostModel { new_duplicate_share: 0.1, ..CostModel::local(500e6, 200e6, false) };
/// let scan_bytes_max = 100e9;
/// let requests = 2e6;
/// let load = RoundLoad { requests, requests_max: requests, scan_bytes_max, index_entries: 1e8 };
/// let stages = model.stages(&load);
/// assert!(stages.scan >= 200.0, "100 GB at 500 MB/s");
/// assert!(model.held_s(&stages) <= stages.total());
/// ```
pub use silt_sharing::round::CostModel;

/// ```
/// use siltstone::{CostModel, RoundLoad};
///
/// let even = RoundLoad {
///     requests: 1e6,
///     requests_max: 1e6,
///     scan_bytes_max: 50e9,
///     index_entries: 1e8,
/// };
/// let uneven = RoundLoad { requests_max: 4e6, scan_bytes_max: 200e9, ..even };
/// let model = CostModel::published();
/// assert!(model.stages(&uneven).total() > model.stages(&even).total());
/// ```
pub use silt_sharing::round::RoundLoad;

/// ```
/// use siltstone::{CostModel, Picking, Schedule, ScheduledVm};
///
/// let vms = [ScheduledVm { machine: 0, scan_bytes: 100e9, requests: 1e6 }];
/// let model = CostModel::local(500e6, 200e6, false);
/// let schedule = Schedule::of(&model, &vms, 1e8, 1, Picking::Least);
/// let stages = &schedule.stages[0];
/// println!("scan: {:.0} s, store: {:.0} s", stages.scan, stages.store);
/// assert_eq!(stages.total(), schedule.total_s());
/// ```
pub use silt_sharing::round::StageSeconds;
