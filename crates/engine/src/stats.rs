//! Statistics of a repository.

use std::collections::BTreeSet;

use silt_format::names::Numbered;
use silt_format::number::to_u64;
use silt_format::{Error, ErrorKind, Head, LevelBytes, Result, SeriesId, names};
use silt_repository::chunks::open_container;
use silt_repository::event::Warning;
use silt_repository::objects::is_damage;
use silt_repository::stores::CommonStore;
use silt_runs::marks::Marks;

use crate::repository::Repository;

/// The size of a series.
///
/// ```
/// # use {std::sync::Arc, siltstone::{*, source::*, storage::*}};
/// # let (storage, context) = (Arc::new(MemoryStorage::new()), SystemEnv::context());
/// # let (config, none) = (Config::default(), Protection::None);
/// # let repository = Repository::init(storage.clone(), context, config, &none, None)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # let snapshot = backup.finish()?.snapshot;
/// for series in repository.stats(&[])? {
///     let stored = series.container_bytes + series.metadata_bytes;
///     println!("{}: {} bytes in {stored}", series.name, series.logical_bytes);
///     assert_eq!(series.logical_bytes, 100_000);
///     assert!(stored < series.logical_bytes);
/// }
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct SeriesStats {
    /// Its name.
    pub name: String,
    /// The number of living snapshots.
    pub snapshots: u64,
    /// Bytes of all volumes of all living snapshots: sizes of disks, and of the files of trees.
    pub logical_bytes: u64,
    /// The same without zeros of disks, as their backups counted.
    pub data_bytes: u64,
    /// How the bytes of all living snapshots were accounted for.
    pub levels: LevelBytes,
    /// The number of containers in storage.
    pub containers: u64,
    /// Bytes of those containers.
    pub container_bytes: u64,
    /// The number of chunks that deltas are applied to, and that stay for them.
    pub delta_bases: u64,
    /// The number of chunks that are stored as deltas.
    pub deltas: u64,
    /// Bytes of these chunks.
    pub delta_chunk_bytes: u64,
    /// Bytes that the deltas take in their containers: their part of compressed frames.
    pub delta_bytes: u64,
    /// Bytes of recipes, snapshots, summary vectors and heads in storage.
    pub metadata_bytes: u64,
}

/// A storage node and what it holds.
///
/// ```
/// # use {std::{collections::HashMap, sync::Arc}, siltstone::{*, source::*, storage::*}};
/// # let (config, none) = (Config::default(), Protection::None);
/// # let disks = ["/backup", "/mnt/n1"].map(|name| (name, Arc::new(MemoryStorage::new())));
/// # let disks = HashMap::from(disks);
/// # let (disk, context) = (disks["/backup"].clone(), SystemEnv::context());
/// # let open = |location: &str| -> Result<Arc<dyn Storage>> { Ok(disks[location].clone()) };
/// # let repository = Repository::init(disk, context, config, &none, None)?;
/// let repository = repository.add_node("/backup", "n1", "/mnt/n1", &open)?;
/// # let mut backup = repository.backup("web1", BackupOptions::default())?;
/// # backup.add_volume("root", &StreamSource::new(Box::new(&[7; 100_000][..])), None)?;
/// # backup.finish()?;
/// for node in repository.node_status()? {
///     println!("{}: {} bytes in {:?}", node.name, node.container_bytes, node.locations);
///     assert!(node.container_bytes > 0 && node.failure.is_none());
/// }
/// # Ok::<(), siltstone::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct NodeStatus {
    /// Its name.
    pub name: String,
    /// The number of its store in references.
    pub number: u16,
    /// The locations of its store; none if it was taken out.
    pub locations: Vec<String>,
    /// Whether backups write no new chunks to it.
    pub is_closed: bool,
    /// Number of its containers.
    pub containers: u64,
    /// Their size in bytes.
    pub container_bytes: u64,
    /// Number of backups that have reserved container numbers; some may have ended.
    pub backups: u64,
    /// The reason why it can't be reached, or is not used.
    pub failure: Option<String>,
    /// Whether it was taken out although snapshots may need its chunks.
    pub is_lost: bool,
}

impl Repository {
    /// Counts the objects of the shared store; `None` if there is none.
    pub fn shared_stats(&self) -> Result<Option<SeriesStats>> {
        let store = self.objects.keys.shared_store_id(silt_repository::series::DEFAULT_DOMAIN);
        if !self.objects.keys.opens(store) || self.head(store)?.is_none() {
            return Ok(None);
        }
        let mut stats = SeriesStats { name: "(shared store)".to_owned(), ..SeriesStats::default() };
        self.count_objects(store, &mut stats)?;
        Ok(Some(stats))
    }

    /// The storage nodes, and what they hold. Lists their containers.
    pub fn node_status(&self) -> Result<Vec<NodeStatus>> {
        let mut all = Vec::new();
        for node in self.nodes() {
            let store = self.store(node.number);
            let mut status = NodeStatus {
                name: node.name.clone(),
                number: node.number,
                locations: node.locations.clone(),
                is_closed: node.is_closed,
                is_lost: node.is_lost(),
                ..NodeStatus::default()
            };
            if let Err(error) = self.count_node(&store, &mut status) {
                if error.kind() == ErrorKind::Interrupted {
                    return Err(error);
                }
                status.failure = Some(error.to_string());
            }
            all.push(status);
        }
        Ok(all)
    }

    fn count_node(&self, store: &CommonStore, status: &mut NodeStatus) -> Result<()> {
        if !self.objects.keys.opens(store.id) {
            return Ok(());
        }
        let marks = Marks::list(self, store.number)?;
        let head = self.head(store.id)?;
        // A backup may have several ranges of containers.
        let writers = head.iter().flat_map(|head| &head.store_writers);
        status.backups = to_u64(writers.map(|it| it.session).collect::<BTreeSet<_>>().len());
        for item in self.objects.names(&names::containers(store.id), None)? {
            status.containers += 1;
            status.container_bytes += item?.1;
        }
        if status.locations.is_empty() { Ok(()) } else { marks.require(head.as_ref()) }
    }

    /// Counts the objects of a series.
    fn count_objects(&self, series: SeriesId, stats: &mut SeriesStats) -> Result<()> {
        let containers = names::containers(series);
        let state = [Numbered::Head, Numbered::Check].map(|kind| kind.prefix(series));
        for folder in names::data(series).into_iter().chain(state) {
            for item in self.objects.names(&folder, None)? {
                let (_, bytes) = item?;
                if folder == containers {
                    stats.containers += 1;
                    stats.container_bytes += bytes;
                } else {
                    stats.metadata_bytes += bytes;
                }
            }
        }
        Ok(())
    }

    /// Counts the deltas of a series. Reads the directories of rewritten containers, if it has any
    /// deltas.
    fn count_deltas(&self, head: &Head, stats: &mut SeriesStats) -> Result<()> {
        if head.delta_bases.is_empty() {
            return Ok(());
        }
        for (number, tag) in head.containers.iter().filter(|(_, tag)| tag.is_rewritten()) {
            let container = match open_container(&self.objects, head.series, number, tag) {
                Err(error) if is_damage(&error) => {
                    self.warn(Warning::after(&error, "its deltas are not counted"));
                    continue;
                }
                other => other?,
            };
            let directory = &container.directory;
            for delta in &directory.deltas {
                stats.deltas += 1;
                stats.delta_chunk_bytes += u64::from(delta.chunk_bytes);
                let place = directory.slot(delta.slot);
                let frame = place.and_then(|at| directory.frames.get(usize::from(at.frame)));
                let (Some(place), Some(frame)) = (place, frame) else { continue };
                let (packed, raw) = (u64::from(frame.sealed_bytes), u64::from(frame.raw_bytes));
                stats.delta_bytes += u64::from(place.length) * packed / raw.max(1);
            }
        }
        Ok(())
    }

    /// Counts the snapshots and objects of the series in `names`, or of all series if it is empty,
    /// by listing storage.
    pub fn stats(&self, names: &[String]) -> Result<Vec<SeriesStats>> {
        let mut all = Vec::new();
        self.each_beside(
            self.heads(names)?,
            |repository, head| repository.stats_of(&head),
            |stats| {
                all.extend(stats?);
                Ok::<_, Error>(())
            },
        )?;
        Ok(all)
    }

    fn stats_of(&self, head: &Head) -> Result<Option<SeriesStats>> {
        let mut stats = SeriesStats { name: head.shown().to_owned(), ..SeriesStats::default() };
        for entry in &head.snapshots {
            let snapshot = match self.snapshot(head.series, entry) {
                Err(error) if is_damage(&error) => {
                    self.warn(Warning::after(&error, "its volumes are not counted"));
                    continue;
                }
                other => other?,
            };
            stats.snapshots += 1;
            stats.levels.merge(&snapshot.levels());
            for volume in &snapshot.volumes {
                let bytes = volume.logical_bytes();
                stats.logical_bytes += bytes;
                let levels = &volume.levels;
                stats.data_bytes += match volume.tree() {
                    None => levels.total() - levels.get(silt_format::Level::Zero),
                    // Its levels are those of the files that were read.
                    Some(_) => bytes,
                };
            }
        }
        stats.delta_bases = head.delta_bases.iter().map(|list| list.slots).sum();
        self.count_objects(head.series, &mut stats)?;
        self.count_deltas(head, &mut stats)?;
        // The leftovers of an interrupted first backup are not a series.
        let is_one = stats.snapshots + stats.containers > 0 || !head.deleted.is_empty();
        Ok(is_one.then_some(stats))
    }
}
