//! An open repository: its series, heads and snapshots.

use crate::env::Context;
use crate::event::Warning;
use std::sync::Arc;

use silt_format::{
    Config, Error, ErrorKind, Hashed, Head, Id, ObjectKind, Places, RepositoryId, Result,
    ResultExt, SealScheme, SeriesId, SeriesRecord, Signer, Snapshot, SnapshotEntry, Volume,
    VolumeKind, names,
};
use silt_storage::{Key, Replicated, Storage};

use crate::believed::SignedBy;
use crate::beside::{Beside, each_beside};
use crate::heads;
use crate::objects::{Address, Objects, is_damage};
use crate::series::{DEFAULT_DOMAIN, ID_PREFIX};

/// The places that a repository was opened with.
#[derive(Clone)]
pub struct OpenPlaces {
    /// The list by which it was opened.
    pub list: Places,
    /// The places of the repository, which also hold the shared store unless it has its own.
    pub main: Arc<Replicated>,
    /// The places of the shared store, if it has its own.
    pub shared: Option<Arc<Replicated>>,
    /// The places of the storage nodes that have their own, by number.
    pub nodes: Vec<OpenNode>,
}

impl OpenPlaces {
    /// Whether stores of several series have places of their own, from which they can be moved.
    pub fn has_stores_elsewhere(&self) -> bool {
        self.shared.is_some() || !self.nodes.is_empty()
    }
}

/// The places of a storage node.
#[derive(Clone)]
pub struct OpenNode {
    /// The number of its store.
    pub number: u16,
    /// Its places.
    pub places: Arc<Replicated>,
}

/// An open repository.
pub struct Repository {
    /// Its objects.
    pub objects: Arc<Objects>,
    /// Its settings.
    pub config: Config,
    /// The key that opened it, if it is encrypted.
    pub opened_by: Option<Id>,
    /// The administrator's signing key of an append-only repository, once opened.
    pub authority: Option<Arc<Signer>>,
    /// The listing of `root/` from opening, until it is used.
    pub root: Option<Vec<Key>>,
    /// Its places, if it has more than the one that it was opened by.
    pub places: Option<OpenPlaces>,
}

/// A snapshot with its series' head.
#[derive(Clone, Debug)]
pub struct Found {
    /// The series' head.
    pub head: Head,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Its entry in the head.
    pub entry: SnapshotEntry,
    /// The key that its writer signed it with; `None` where there are no keys.
    pub key: Option<Id>,
}

/// A volume of a snapshot that was found.
#[derive(Clone, Copy, Debug)]
pub struct FoundVolume<'f> {
    found: &'f Found,
    /// One of the snapshot's.
    volume: &'f Volume,
}

impl<'f> FoundVolume<'f> {
    /// The snapshot that the volume is of.
    pub fn found(&self) -> &'f Found {
        self.found
    }

    /// The volume.
    pub fn volume(&self) -> &'f Volume {
        self.volume
    }

    /// Fails with `Invalid` if the volume is a file tree.
    pub fn require_disk(&self) -> Result<()> {
        if self.volume.kind == VolumeKind::Disk {
            return Ok(());
        }
        let message = format!("{} is a file tree, not a disk", self.describe());
        Err(Error::new(ErrorKind::Invalid, message))
    }

    /// The volume and its snapshot, for messages.
    pub fn describe(&self) -> String {
        format!("volume '{}' of snapshot {}", self.volume.name, self.found.snapshot.id)
    }
}

impl Found {
    /// The snapshot's volumes.
    pub fn volumes(&self) -> impl Iterator<Item = FoundVolume<'_>> {
        self.snapshot.volumes.iter().map(|volume| FoundVolume { found: self, volume })
    }

    /// Returns the volume of this name. Fails with `NotFound`, naming the existing volumes.
    pub fn volume(&self, name: &str) -> Result<FoundVolume<'_>> {
        self.volumes().find(|found| found.volume.name == name).ok_or_else(|| {
            let there: Vec<_> =
                self.snapshot.volumes.iter().map(|volume| volume.name.as_str()).collect();
            let message =
                format!("the snapshot has no volume '{name}'; there are: {}", there.join(", "));
            Error::new(ErrorKind::NotFound, message)
        })
    }
}

impl Beside for Repository {
    fn objects(&self) -> &Arc<Objects> {
        &self.objects
    }

    fn beside(&self, context: Context) -> Self {
        self.with_objects(Objects::beside(&self.objects, context))
    }
}

impl Repository {
    /// The same repository as it is in another storage, and there alone; nothing can be taken away
    /// there.
    #[must_use]
    pub fn within(&self, storage: Arc<dyn Storage>) -> Self {
        Self {
            objects: Arc::new(self.objects.with_storage(storage)),
            config: self.config.clone(),
            opened_by: self.opened_by,
            authority: None,
            root: None,
            places: None,
        }
    }

    /// The repository's id.
    pub fn id(&self) -> RepositoryId {
        self.objects.repository
    }

    /// Returns the location of the repository.
    pub fn location(&self) -> String {
        self.objects.storage.describe()
    }

    /// Whether its objects are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.objects.scheme == SealScheme::Aes256Gcm
    }

    /// Whether the repository was opened by a write-only key, which backs up, but neither reads
    /// data nor removes anything.
    pub fn is_write_only(&self) -> bool {
        self.objects.keys.is_write_only()
    }

    /// Every series' id and name, sorted by name, that this key opens; damaged records are reported
    /// as warnings.
    pub fn series(&self) -> Result<Vec<(SeriesId, String)>> {
        let mut series = Vec::new();
        let mut ids = self.series_ids()?;
        ids.retain(|id| self.objects.keys.opens(*id));
        each_beside(self, ids, Self::named, |named| {
            series.push(named?);
            Ok(())
        })?;
        series.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(series)
    }

    /// A series' id and name.
    fn named(&self, id: SeriesId) -> Result<(SeriesId, String)> {
        match self.series_record(id) {
            Ok(record) => Ok((id, record.name)),
            Err(error) if is_damage(&error) => {
                // The head says the name too.
                self.warn(&error);
                let head = self.head(id).ok().flatten();
                let unnamed = || format!("{ID_PREFIX}{id}");
                Ok((id, head.map_or_else(unnamed, |head| head.name)))
            }
            Err(error) => Err(error),
        }
    }

    /// All series by their ids alone, at the price of one listing.
    pub fn series_ids(&self) -> Result<Vec<SeriesId>> {
        let mut ids = Vec::new();
        for item in self.objects.names(names::SERIES, None)? {
            let (name, _) = item?;
            match name.rsplit('/').next().and_then(SeriesId::from_hex) {
                Some(id) => ids.push(id),
                None => self.warn(Warning::new(
                    ErrorKind::Corrupt,
                    format!("{name} is not a series record"),
                )),
            }
        }
        Ok(ids)
    }

    /// Reads the series record, which holds the name.
    pub fn series_record(&self, id: SeriesId) -> Result<SeriesRecord> {
        let name = names::series(id);
        let context = || format!("read series record {name}");
        let address = Address::new(ObjectKind::Series, id, 0);
        let (plain, by) = self.objects.get_signed(&name, address).context(context)?;
        let record = SeriesRecord::decode(&plain).context(context)?;
        by.may_write(&record.name).context(context)?;
        if heads::has_name(&self.objects, id, &record.name) {
            Ok(record)
        } else {
            Err(Error::corrupt(format!("series record {name} holds another series' name")))
        }
    }

    /// Returns the id of the series called `name`.
    pub fn series_id(&self, name: &str) -> SeriesId {
        self.objects.keys.series_id(DEFAULT_DOMAIN, name)
    }

    /// The newest head of a series, or `None` before its first commit.
    pub fn head(&self, series: SeriesId) -> Result<Option<Head>> {
        heads::newest(&self.objects, series)
    }

    /// Reads the snapshot that a head of the series lists as `entry`.
    pub fn snapshot(&self, series: SeriesId, entry: &SnapshotEntry) -> Result<Snapshot> {
        self.snapshot_signed(series, entry).map(|(snapshot, _)| snapshot)
    }

    /// The same, and the id of the key that its writer signed it with; `None` where there are no
    /// keys.
    pub fn snapshot_and_key(
        &self,
        series: SeriesId,
        entry: &SnapshotEntry,
    ) -> Result<(Snapshot, Option<Id>)> {
        let (snapshot, by) = self.snapshot_signed(series, entry)?;
        Ok((snapshot, self.is_encrypted().then_some(by.id)))
    }

    /// Reads a snapshot; also returns its signer.
    pub fn snapshot_signed(
        &self,
        series: SeriesId,
        entry: &SnapshotEntry,
    ) -> Result<(Snapshot, SignedBy)> {
        let (id, kind) = (entry.id, ObjectKind::Snapshot);
        let name = names::snapshot(series, id);
        let context = || format!("read snapshot {name}");
        let address = Address::new(kind, series, id.0);
        let (plain, by) = self.objects.get_signed(&name, address).context(context)?;
        let what = || format!("snapshot {name}");
        self.objects.require_hash(Hashed::Snapshot, &plain, entry.hash, what)?;
        let snapshot = Snapshot::decode(&plain).context(context)?;
        if (snapshot.id, snapshot.series) != (id, series) {
            return Err(Error::corrupt(format!("snapshot {name} does not match its name")));
        }
        Ok((snapshot, by))
    }

    fn with_objects(&self, objects: Objects) -> Self {
        Self {
            objects: Arc::new(objects),
            config: self.config.clone(),
            opened_by: self.opened_by,
            authority: self.authority.clone(),
            root: self.root.clone(),
            places: self.places.clone(),
        }
    }

    /// Returns the same repository for one of several concurrent operations: its events have the
    /// context's id, and the context's token stops it alone. Caches and upload threads are shared.
    #[must_use]
    pub fn for_operation(&self, context: Context) -> Self {
        self.with_objects(self.objects.with_context(context))
    }

    /// Reports a problem that does not stop the operation.
    pub fn warn(&self, warning: impl Into<Warning>) {
        self.objects.context.warn(warning);
    }
}
