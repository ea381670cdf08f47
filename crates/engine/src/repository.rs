//! Repositories: making, opening, keys, and finding series and snapshots.

use std::sync::Arc;

use silt_format::{
    Authority, CheckRecord, Config, Error, ErrorKind, Head, Header, Id, KdfCost, KeyLabel,
    MasterKey, ObjectKind, RepositoryId, Result, ResultExt, SealScheme, SeriesId, SeriesRecord,
    Snapshot, SnapshotEntry, WrappedKey, names,
};
use silt_storage::{Key, PutMode, Storage};

use crate::authority::{self, Administrator};
use crate::backup::{Buffers, SharedUploader};
use crate::env::Context;
use crate::heads;
use crate::objects::{Address, Objects, is_damage, key};
use crate::places::OpenPlaces;
use crate::root::{Secret, is_key, key_objects, open_config};

/// The domain that series belong to until several can be made.
pub(crate) const DEFAULT_DOMAIN: u32 = 0;

/// How a new repository is protected.
#[derive(Clone, Debug)]
pub enum Protection {
    /// AES-256-GCM; the master key is wrapped by a password.
    Password {
        /// The password.
        password: Vec<u8>,
        /// What one try of a password costs.
        cost: KdfCost,
        /// Who makes the key.
        label: KeyLabel,
    },
    /// No encryption: damage is found, but whoever reads the storage reads the data.
    None,
}

/// An open repository.
pub struct Repository {
    pub(crate) objects: Arc<Objects>,
    /// Its settings.
    pub config: Config,
    /// The key that opened it, if it is encrypted.
    pub opened_by: Option<Id>,
    /// The key that signs what takes something away from an append-only repository, once opened.
    pub(crate) authority: Option<Authority>,
    /// What was listed of the root while it was opened, until it is used.
    pub(crate) root: Option<Vec<Key>>,
    /// Its places, if it has more than the one that it was opened by.
    pub(crate) places: Option<OpenPlaces>,
}

/// A wrapped key of a repository.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// Its id.
    pub id: Id,
    /// Who made it, and when.
    pub label: KeyLabel,
    /// Whether it only lets a host write.
    pub is_write_only: bool,
}

/// What a snapshot name resolved to.
#[derive(Clone, Debug)]
pub struct Found {
    /// The series' head.
    pub head: Head,
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Its entry in the head.
    pub entry: SnapshotEntry,
}

/// Whether a key object holds the keys of a host that only writes.
fn is_write_key(object: &[u8]) -> bool {
    Header::decode(object).is_ok_and(|header| header.kind == ObjectKind::WriteKey)
}

/// Whether a key that reads, other than `id`, has both its objects.
fn reads_without(keys: &[(Id, String, Vec<u8>)], id: Id) -> bool {
    let mut others = keys.iter().filter(|(other, _, object)| *other != id && !is_write_key(object));
    others.any(|(other, name, _)| {
        *name == names::key(*other)
            && keys.iter().any(|(_, name, _)| *name == names::key_copy(*other))
    })
}

impl Repository {
    /// Makes a repository in `storage`, which must hold no other; an append-only one if it has an
    /// administrator.
    pub fn init(
        storage: Arc<dyn Storage>,
        context: Context,
        mut config: Config,
        protection: &Protection,
        administrator: Option<&Administrator>,
    ) -> Result<Self> {
        config.created_ns = context.env.now_ns();
        config.validate()?;
        let taken = |name| key(name).and_then(|key| storage.head(&key)).is_ok();
        if taken(names::CONFIG) || taken(names::CONFIG_COPY) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{} holds a repository already", storage.describe()),
            ));
        }
        let scheme = match protection {
            Protection::Password { .. } => SealScheme::Aes256Gcm,
            Protection::None => SealScheme::Checksum,
        };
        let objects = Objects {
            repository: RepositoryId(context.random()),
            scheme,
            keys: MasterKey::new(context.random()).into(),
            storage,
            context,
            places: 0,
            is_used: std::sync::atomic::AtomicBool::default(),
            uploader: SharedUploader::default(),
            buffers: Buffers::default(),
        };
        config.authority =
            administrator.map(|admin| authority::create(&objects, admin)).transpose()?;
        let objects = Arc::new(objects);
        let mut repository =
            Self { objects, config, opened_by: None, authority: None, root: None, places: None };
        if let Protection::Password { password, cost, label } = protection {
            // The key goes first: a configuration without a key could not be opened by anyone.
            repository.opened_by = Some(repository.add_key(password, *cost, label, false)?);
        }
        repository.put_config()?;
        Ok(repository)
    }

    fn put_config(&self) -> Result<()> {
        let objects = &self.objects;
        let header = objects.new_header(Address::new(ObjectKind::Config, SeriesId::NONE, 0));
        let mut object = header.encode().to_vec();
        if objects.scheme == SealScheme::Checksum {
            object.extend_from_slice(objects.keys.master().map_or(&[][..], |key| key.expose()));
        }
        let at = object.len();
        object.extend_from_slice(&self.config.encode());
        objects.sealer(&header).seal(0, &mut object, at);
        let pieces = [object.into()];
        for name in [names::CONFIG_COPY, names::CONFIG] {
            objects.put_pieces(name, ObjectKind::Config, &pieces)?;
        }
        Ok(())
    }

    /// Opens the repository in `storage`; `password` is asked for only if it is encrypted.
    ///
    /// Fails as `NoRepository` where there is none, as `WrongPassword` where no key opens. A damaged
    /// configuration is a warning as long as its copy is whole.
    pub fn open(
        storage: Arc<dyn Storage>,
        context: Context,
        password: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let mut secret = Secret::Asked(password);
        let mut root = None;
        let mut first = open_config(&*storage, names::CONFIG, &mut secret, &mut root);
        // One that was kept nearby may be of a repository that was here before; without keys nothing tells.
        let is_sure = match &first {
            Ok(opened) => opened.header.scheme != SealScheme::Checksum,
            Err(error) => error.kind() == ErrorKind::WrongPassword,
        };
        if !is_sure && storage.forget(&key(names::CONFIG)?) {
            first = open_config(&*storage, names::CONFIG, &mut secret, &mut root);
        }
        let first = match first {
            Ok(opened) => Ok(opened),
            // A newer program's configuration is no reason to look at an older copy.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                let copy = open_config(&*storage, names::CONFIG_COPY, &mut secret, &mut root);
                match copy {
                    Ok(opened) => {
                        let message = format!("{error}; its copy is used");
                        context.observer.warning(&message);
                        Ok(opened)
                    }
                    Err(copy) if copy.kind() == ErrorKind::NotFound => Err(error),
                    Err(copy) if copy.kind() == ErrorKind::Corrupt => Err(error),
                    Err(copy) => Err(copy),
                }
            }
            Err(error) => Err(error),
        };
        let opened = first.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::new(
                ErrorKind::NoRepository,
                format!("{} holds no repository; `silt init` makes one", storage.describe()),
            ),
            _ => error,
        })?;
        let objects = Objects {
            repository: opened.header.repository,
            scheme: opened.header.scheme,
            storage,
            keys: opened.keys,
            context,
            places: 0,
            is_used: std::sync::atomic::AtomicBool::default(),
            uploader: SharedUploader::default(),
            buffers: Buffers::default(),
        };
        let (config, opened_by) = (opened.config, opened.key);
        let objects = Arc::new(objects);
        Ok(Self { objects, config, opened_by, authority: None, root, places: None })
    }

    /// What is wrong with the configuration, the keys, or the copies of them, by object name.
    pub(crate) fn root_damage(&self) -> Result<Vec<(String, Error)>> {
        let objects = &self.objects;
        let mut found = Vec::new();
        for name in [names::CONFIG, names::CONFIG_COPY] {
            let mut secret: Secret<fn() -> Result<Vec<u8>>> =
                Secret::Known(self.opened_by, Box::new(objects.keys.clone()));
            match open_config(&*objects.storage, name, &mut secret, &mut None) {
                Err(error) if is_damage(&error) => found.push((name.to_owned(), error)),
                other => drop(other?),
            }
        }
        let keys = key_objects(&*objects.storage)?;
        for (id, name, object) in &keys {
            let label = is_key(object, *id, objects.repository)
                .and_then(|()| WrappedKey::label(object, &objects.keys));
            // Without its password a wrapped key can't be verified; but the two must be the same.
            let differs = keys.iter().any(|(twin, _, bytes)| twin == id && bytes != object);
            let whole = if differs {
                Err(Error::corrupt("it and its copy differ: one of them is damaged"))
            } else {
                Ok(())
            };
            if let Err(error) = label.map(drop).and(whole) {
                found.push((name.clone(), error));
            }
            for twin in [names::key(*id), names::key_copy(*id)] {
                let is_twin = |(_, name, _): &(Id, String, Vec<u8>)| *name == twin;
                if !keys.iter().any(is_twin) && !found.iter().any(|(name, _)| *name == twin) {
                    found.push((twin, Error::new(ErrorKind::NotFound, "it is missing")));
                }
            }
        }
        Ok(found)
    }

    /// The repository's id.
    pub fn id(&self) -> RepositoryId {
        self.objects.repository
    }

    /// Where the repository is.
    pub fn location(&self) -> String {
        self.objects.storage.describe()
    }

    /// Whether its objects are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.objects.scheme == SealScheme::Aes256Gcm
    }

    /// Whether this process was opened by a key that only writes: it backs up, and neither reads data nor
    /// takes anything away.
    pub fn is_write_only(&self) -> bool {
        self.objects.keys.is_write_only()
    }

    /// Adds a password, one that only lets a host write if so wished; the answer is the new key's id.
    ///
    /// `Denied` with a write-only key.
    pub fn add_key(
        &self,
        password: &[u8],
        cost: KdfCost,
        label: &KeyLabel,
        is_write_only: bool,
    ) -> Result<Id> {
        if !self.is_encrypted() {
            return Err(Error::invalid("the repository is not encrypted, so it has no keys"));
        }
        self.require_all_keys()?;
        let kind = if is_write_only { ObjectKind::WriteKey } else { ObjectKind::Key };
        let id = Id(self.objects.context.random_id());
        let header = self.objects.new_header(Address::new(kind, SeriesId::NONE, id.0));
        let object = WrappedKey::wrap(&header, password, cost, &self.objects.keys, label)?;
        for name in [names::key_copy(id), names::key(id)] {
            self.objects.storage.put(&key(&name)?, &[&object], PutMode::Create)?;
        }
        Ok(id)
    }

    /// Every key with its label, in the order of ids; unreadable ones are reported as warnings.
    pub fn keys(&self) -> Result<Vec<KeyInfo>> {
        let mut keys: Vec<KeyInfo> = Vec::new();
        for (id, name, object) in key_objects(&*self.objects.storage)? {
            match WrappedKey::label(&object, &self.objects.keys) {
                Ok(_) if keys.iter().any(|key| key.id == id) => {}
                Ok(label) => keys.push(KeyInfo { id, label, is_write_only: is_write_key(&object) }),
                Err(error) => self.warn(&format!("{name} is damaged: {error}")),
            }
        }
        Ok(keys)
    }

    /// Fails as `Denied` with a key that only writes.
    pub fn require_all_keys(&self) -> Result<()> {
        if self.is_write_only() {
            let message =
                "this key only backs up: this needs one that was made without --write-only";
            return Err(Error::new(ErrorKind::Denied, message));
        }
        Ok(())
    }

    /// Removes the key whose id begins with `prefix`. The last that reads is never removed, not even by several
    /// who each remove another one at once: who removes one takes its copy first, looks then, and nobody relies
    /// on a key without its copy.
    pub fn remove_key(&self, prefix: &str) -> Result<Id> {
        self.require_all_keys()?;
        let keys = key_objects(&*self.objects.storage)?;
        let mut all: Vec<Id> = keys.iter().map(|(id, ..)| *id).collect();
        all.dedup();
        let mut matching = all.iter().filter(|id| id.to_string().starts_with(prefix));
        let (found, more) = (matching.next(), matching.next());
        let Some(id) = found.filter(|_| more.is_none() && !prefix.is_empty()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("no single key begins with '{prefix}'; `silt key list` shows them"),
            ));
        };
        let of_key = |name: &str| keys.iter().find(|(_, known, _)| known == name);
        let object = of_key(&names::key(*id)).or_else(|| of_key(&names::key_copy(*id)));
        if let Some((_, _, object)) = object.filter(|(_, _, object)| !is_write_key(object)) {
            let last = || {
                Error::invalid(
                    "this is the last key that reads and has its copy; without it nothing can be read",
                )
            };
            if !reads_without(&keys, *id) {
                return Err(last());
            }
            let copy = names::key_copy(*id);
            self.objects.delete(std::slice::from_ref(&copy))?;
            if !reads_without(&key_objects(&*self.objects.storage)?, *id) {
                self.objects.storage.put(&key(&copy)?, &[object], PutMode::Create)?;
                return Err(last().context("another key is being removed at the same time"));
            }
        }
        self.objects.delete(&[names::key(*id), names::key_copy(*id)])?;
        Ok(*id)
    }

    /// Every series' id and name, sorted by name; damaged records are reported as warnings.
    pub fn series(&self) -> Result<Vec<(SeriesId, String)>> {
        let mut series = Vec::new();
        for id in self.series_ids()? {
            match self.series_record(id) {
                Ok(record) => series.push((id, record.name)),
                Err(error) if is_damage(&error) => {
                    // The head says the name too.
                    self.warn(&error.to_string());
                    let head = self.head(id).ok().flatten();
                    series.push((id, head.map_or_else(|| id.to_string(), |head| head.name)));
                }
                Err(error) => return Err(error),
            }
        }
        series.sort_by(|a, b| a.1.cmp(&b.1));
        Ok(series)
    }

    /// All series by their ids alone, at the price of one listing.
    pub fn series_ids(&self) -> Result<Vec<SeriesId>> {
        let mut ids = Vec::new();
        for item in self.objects.names(names::SERIES, None)? {
            let (name, _) = item?;
            match name.rsplit('/').next().and_then(SeriesId::from_hex) {
                Some(id) => ids.push(id),
                None => self.warn(&format!("{name} is not a series record")),
            }
        }
        Ok(ids)
    }

    pub(crate) fn series_record(&self, id: SeriesId) -> Result<SeriesRecord> {
        let name = names::series(id);
        let plain = self.objects.get(&name, Address::new(ObjectKind::Series, id, 0))?;
        let record = SeriesRecord::decode(&plain);
        let record = record.context(|| format!("read series record {name}"))?;
        if heads::has_name(&self.objects, id, &record.name) {
            Ok(record)
        } else {
            Err(Error::corrupt(format!("series record {name} is of another series by its name")))
        }
    }

    /// The id that the series called `name` has.
    pub fn series_id(&self, name: &str) -> SeriesId {
        self.objects.keys.series_id(DEFAULT_DOMAIN, name)
    }

    /// The newest head of a series, or `None` before its first commit.
    pub fn head(&self, series: SeriesId) -> Result<Option<Head>> {
        heads::newest(&self.objects, series)
    }

    /// Reads the snapshot that a head of the series lists as `entry`.
    pub fn snapshot(&self, series: SeriesId, entry: &SnapshotEntry) -> Result<Snapshot> {
        let (id, kind) = (entry.id, ObjectKind::Snapshot);
        let name = names::snapshot(series, id);
        let plain = self.objects.get(&name, Address::new(kind, series, id.0))?;
        if self.objects.keys.content_hash(kind as u8, &plain) != entry.hash {
            let message = format!(
                "snapshot {name} is not the one that the head lists: its content hash differs"
            );
            return Err(Error::corrupt(message));
        }
        let snapshot = Snapshot::decode(&plain).context(|| format!("read snapshot {name}"))?;
        if (snapshot.id, snapshot.series) != (id, series) {
            return Err(Error::corrupt(format!("snapshot {name} is not what its name says")));
        }
        Ok(snapshot)
    }

    /// What `check` last wrote down of a series.
    pub(crate) fn check_record(&self, series: SeriesId) -> Result<(u64, CheckRecord)> {
        let newest = self.objects.newest_name(names::Numbered::Check, series)?;
        self.read_check_record(series, newest)
    }

    /// The same, where the name of the newest is known.
    pub(crate) fn read_check_record(
        &self,
        series: SeriesId,
        newest: Option<String>,
    ) -> Result<(u64, CheckRecord)> {
        let Some(name) = newest else { return Ok((0, CheckRecord::default())) };
        let number = names::Numbered::number(&name)
            .ok_or_else(|| Error::corrupt(format!("{name} is not the name of a check record")))?;
        let address = Address::new(ObjectKind::Check, series, number);
        let read = self.objects.get(&name, address).and_then(|plain| CheckRecord::decode(&plain));
        match read {
            Ok(record) => Ok((number, record)),
            Err(error) if is_damage(&error) => {
                self.warn(&format!("{error}; what was verified before is forgotten"));
                Ok((number, CheckRecord::default()))
            }
            Err(error) => Err(error),
        }
    }

    pub(crate) fn warn(&self, message: &str) {
        self.objects.context.observer.warning(message);
    }
}
