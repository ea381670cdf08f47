//! Repositories: making, opening, keys, and finding series and snapshots.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};

use silt_format::{
    CheckRecord, Config, Error, ErrorKind, Hashed, Head, HostKeys, Id, KdfCost, KeyLabel, Keyring,
    MasterKey, ObjectKind, RepositoryId, Result, ResultExt, Role, SealScheme, SeriesId,
    SeriesRecord, Signer, SigningSeed, Snapshot, SnapshotEntry, WrappedKey, names,
};
use silt_storage::{Key, Storage};

use crate::authority::{self, Administrator};
use crate::backup::{Buffers, SharedUploader};
use crate::env::Context;
use crate::heads;
use crate::history::ID_PREFIX;
use crate::keys::EVERY_SERIES;
use crate::objects::{Address, Objects, is_damage, key};
use crate::places::OpenPlaces;
use crate::root::{Secret, is_key, key_objects, list_root, open_config};
use crate::seen::Seen;
use crate::writers::{Believed, SignedBy};

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
    /// What signs in the name of the administrator of an append-only repository, once opened.
    pub(crate) authority: Option<Arc<Signer>>,
    /// What was listed of the root while it was opened, until it is used.
    pub(crate) root: Option<Vec<Key>>,
    /// Its places, if it has more than the one that it was opened by.
    pub(crate) places: Option<OpenPlaces>,
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
    /// The key that its writer signed it with; `None` where there are no keys.
    pub key: Option<Id>,
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
        let master = MasterKey::new(context.random());
        let (is_append_only, is_encrypted) =
            (administrator.is_some(), scheme == SealScheme::Aes256Gcm);
        let seed = match administrator {
            Some(_) => SigningSeed::new(context.random()),
            None => master.administrator_seed(),
        };
        let signs = Signer::new(Signer::ADMINISTRATOR, seed.clone());
        (config.administrator, config.append_only) = (signs.public()?, is_append_only);
        let (id, host) = if is_encrypted {
            let keys = Keyring::from(master);
            let seed = SigningSeed::new(context.random());
            (Id(context.random_id()), HostKeys { keys, seed, administrator: config.administrator })
        } else {
            (HostKeys::CLEAR_ID, HostKeys::in_the_clear(master, config.administrator))
        };
        let now_ns = context.env.now_ns();
        let id_of_all = RepositoryId(context.random());
        let objects = Objects {
            repository: id_of_all,
            scheme,
            seen: Arc::new(Seen::new(id_of_all, &context.env)),
            signer: Arc::new(host.signer(id)),
            believed: Arc::new(Believed::new(config.administrator, is_append_only)),
            keys: host.keys.clone(),
            storage,
            context,
            places: 0,
            is_used: AtomicBool::default(),
            looked_ns: AtomicI64::new(now_ns),
            uploader: SharedUploader::default(),
            buffers: Buffers::default(),
        };
        if let Some(administrator) = administrator {
            authority::create(&objects, administrator, &seed)?;
        }
        let objects = Arc::new(objects);
        let mut repository =
            Self { objects, config, opened_by: None, authority: None, root: None, places: None };
        // The keys go first: a configuration without a key could not be opened by anyone.
        let series = [EVERY_SERIES.to_owned()];
        repository.put_writer(&signs, id, &host, Role::Full, &series)?;
        if let Protection::Password { password, cost, label } = protection {
            let secret = host.expose(ObjectKind::Key, &series, false)?;
            repository.put_key((ObjectKind::Key, id), &secret, password, (*cost, label))?;
            repository.opened_by = Some(id);
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
        let now_ns = context.env.now_ns();
        let objects = Objects {
            repository: opened.header.repository,
            seen: Arc::new(Seen::new(opened.header.repository, &context.env)),
            scheme: opened.header.scheme,
            storage,
            signer: Arc::new(opened.host.signer(opened.key.unwrap_or(HostKeys::CLEAR_ID))),
            believed: Arc::new(Believed::new(
                opened.config.administrator,
                opened.config.append_only,
            )),
            keys: opened.host.keys,
            context,
            places: 0,
            is_used: AtomicBool::default(),
            looked_ns: AtomicI64::new(now_ns),
            uploader: SharedUploader::default(),
            buffers: Buffers::default(),
        };
        let root = root.map_or_else(|| list_root(&*objects.storage), Ok)?;
        match objects.load_writers(Some(&root)) {
            // Another place may have it whole; nothing is believed without it.
            Err(error) if is_damage(&error) => {}
            other => drop(other?),
        }
        if let Some(id) = opened.key.filter(|id| objects.believed.is_removed(*id)) {
            let message = format!("the password is that of key {id}, which was removed");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let (config, opened_by, root) = (opened.config, opened.key, Some(root));
        let objects = Arc::new(objects);
        Ok(Self { objects, config, opened_by, authority: None, root, places: None })
    }

    /// What opens a configuration again.
    pub(crate) fn known_secret(&self) -> Secret<fn() -> Result<Vec<u8>>> {
        let (keys, administrator) = (self.objects.keys.clone(), self.config.administrator);
        // No signature is made with it.
        let seed = SigningSeed::new([0; 32]);
        Secret::Known(self.opened_by, Box::new(HostKeys { keys, seed, administrator }))
    }

    /// What is wrong with the configuration, the keys, the list of writers, or the copies of them, by object
    /// name.
    pub(crate) fn root_damage(&self) -> Result<Vec<(String, Error)>> {
        let objects = &self.objects;
        let mut found = Vec::new();
        for name in [names::CONFIG, names::CONFIG_COPY] {
            let mut secret = self.known_secret();
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
        found.extend(objects.writers_damage()?);
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

    /// Every series' id and name, sorted by name, that this key opens; damaged records are reported as warnings.
    pub fn series(&self) -> Result<Vec<(SeriesId, String)>> {
        let mut series = Vec::new();
        for id in self.series_ids()?.into_iter().filter(|id| self.objects.keys.opens(*id)) {
            match self.series_record(id) {
                Ok(record) => series.push((id, record.name)),
                Err(error) if is_damage(&error) => {
                    // The head says the name too.
                    self.warn(&error.to_string());
                    let head = self.head(id).ok().flatten();
                    let unnamed = || format!("{ID_PREFIX}{id}");
                    series.push((id, head.map_or_else(unnamed, |head| head.name)));
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
        let context = || format!("read series record {name}");
        let address = Address::new(ObjectKind::Series, id, 0);
        let (plain, by) = self.objects.get_signed(&name, address).context(context)?;
        let record = SeriesRecord::decode(&plain).context(context)?;
        by.may_write(&record.name).context(context)?;
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
        self.snapshot_signed(series, entry).map(|(snapshot, _)| snapshot)
    }

    /// The same, and the id of the key that its writer signed it with; `None` where there are no keys.
    pub fn snapshot_and_key(
        &self,
        series: SeriesId,
        entry: &SnapshotEntry,
    ) -> Result<(Snapshot, Option<Id>)> {
        let (snapshot, by) = self.snapshot_signed(series, entry)?;
        Ok((snapshot, self.is_encrypted().then_some(by.id)))
    }

    pub(crate) fn snapshot_signed(
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
            return Err(Error::corrupt(format!("snapshot {name} is not what its name says")));
        }
        Ok((snapshot, by))
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
        let read = self.objects.get_signed(&name, address).and_then(|(plain, by)| {
            let mut record = CheckRecord::decode(&plain)?;
            if !by.is_full() {
                // Who can't read data may have met damage, but has verified nothing.
                (record.pass_started_s, record.verified) = (0, Vec::new());
            }
            Ok(record)
        });
        match read.context(|| format!("read check record {name}")) {
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
