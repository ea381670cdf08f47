//! Repositories: making, opening, keys, and finding series and snapshots.

use std::sync::Arc;

use silt_format::{
    CheckRecord, Config, Error, ErrorKind, HEADER_BYTES, Head, Header, Id, KdfCost, KeyLabel,
    MasterKey, ObjectKind, RepositoryId, Result, ResultExt, SealScheme, SeriesId, SeriesRecord,
    Snapshot, WrappedKey, names,
};
use silt_storage::{ByteRange, PutMode, Storage};

use crate::env::Context;
use crate::objects::{Address, Objects, is_damage, key};

/// The domain that series belong to until several can be made.
pub(crate) const DEFAULT_DOMAIN: u32 = 0;
/// Bytes of the master key that an unencrypted repository's configuration holds after its header.
const CLEAR_KEY_BYTES: usize = 32;

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
}

/// A wrapped key of a repository.
#[derive(Clone, Debug)]
pub struct KeyInfo {
    /// Its id.
    pub id: Id,
    /// Who made it, and when.
    pub label: KeyLabel,
}

/// What a snapshot name resolved to.
#[derive(Clone, Debug)]
pub struct Found {
    /// The series' head.
    pub head: Head,
    /// The snapshot.
    pub snapshot: Snapshot,
}

impl Repository {
    /// Makes a repository in `storage`, which must hold no other.
    pub fn init(
        storage: Arc<dyn Storage>,
        context: Context,
        mut config: Config,
        protection: &Protection,
    ) -> Result<Self> {
        config.created_ns = context.env.now_ns();
        config.validate()?;
        if storage.head(&key(names::CONFIG)?).is_ok() {
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
            master: MasterKey::new(context.random()),
            storage,
            context,
        };
        let mut repository = Self { objects: Arc::new(objects), config, opened_by: None };
        if let Protection::Password { password, cost, label } = protection {
            // The key goes first: a configuration without a key could not be opened by anyone.
            repository.opened_by = Some(repository.add_key(password, *cost, label)?);
        }
        repository.put_config()?;
        Ok(repository)
    }

    fn put_config(&self) -> Result<()> {
        let objects = &self.objects;
        let header = objects.new_header(Address::new(ObjectKind::Config, SeriesId::NONE, 0));
        let mut object = header.encode().to_vec();
        if objects.scheme == SealScheme::Checksum {
            object.extend_from_slice(objects.master.expose());
        }
        let at = object.len();
        object.extend_from_slice(&self.config.encode());
        objects.sealer(&header).seal(0, &mut object, at);
        objects.put_pieces(names::CONFIG, ObjectKind::Config, &[&object])?;
        Ok(())
    }

    /// Opens the repository in `storage`; `password` is asked for only if it is encrypted.
    ///
    /// Fails as `NoRepository` where there is none, as `WrongPassword` where no key opens.
    pub fn open(
        storage: Arc<dyn Storage>,
        context: Context,
        password: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let mut object = Vec::new();
        let what = || format!("read configuration of {}", storage.describe());
        match storage.get(&key(names::CONFIG)?, ByteRange::Full, &mut object) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(Error::new(
                    ErrorKind::NoRepository,
                    format!("{} holds no repository; `silt init` makes one", storage.describe()),
                ));
            }
            other => other.context(what)?,
        }
        let header = Header::decode(&object).context(what)?;
        if (header.kind, header.number) != (ObjectKind::Config, 0) {
            return Err(Error::corrupt("it holds another object")).context(what);
        }
        let mut at = HEADER_BYTES;
        let (master, opened_by) = match header.scheme {
            SealScheme::Checksum => {
                let secret = object.get(at..at + CLEAR_KEY_BYTES);
                let secret = secret.and_then(|secret| secret.try_into().ok());
                at += CLEAR_KEY_BYTES;
                let short = || Error::corrupt("it ends early");
                (MasterKey::new(secret.ok_or_else(short).context(what)?), None)
            }
            SealScheme::Aes256Gcm => {
                let (id, master) = unlock(&*storage, header.repository, &password()?)?;
                (master, Some(id))
            }
        };
        let sealer = master.sealer(&header);
        let plain = sealer.open(0, &mut object[at..]).context(what)?;
        let config = Config::decode(plain).context(what)?;
        let objects = Objects {
            repository: header.repository,
            scheme: header.scheme,
            storage,
            master,
            context,
        };
        Ok(Self { objects: Arc::new(objects), config, opened_by })
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

    /// Adds a password; the answer is the new key's id.
    pub fn add_key(&self, password: &[u8], cost: KdfCost, label: &KeyLabel) -> Result<Id> {
        if !self.is_encrypted() {
            return Err(Error::invalid("the repository is not encrypted, so it has no keys"));
        }
        let id = Id(self.objects.context.random_id());
        let header = self.objects.new_header(Address::new(ObjectKind::Key, SeriesId::NONE, id.0));
        let object = WrappedKey::wrap(&header, password, cost, &self.objects.master, label)?;
        self.objects.storage.put(&key(&names::key(id))?, &[&object], PutMode::Create)?;
        Ok(id)
    }

    /// Every key with its label, in the order of ids; unreadable ones are reported as warnings.
    pub fn keys(&self) -> Result<Vec<KeyInfo>> {
        let mut keys = Vec::new();
        for (id, object) in key_objects(&*self.objects.storage)? {
            match WrappedKey::label(&object, &self.objects.master) {
                Ok(label) => keys.push(KeyInfo { id, label }),
                Err(error) => self.warn(&format!("key {id} is damaged: {error}")),
            }
        }
        Ok(keys)
    }

    /// Removes the key whose id begins with `prefix`; the last key is never removed.
    pub fn remove_key(&self, prefix: &str) -> Result<Id> {
        let all = key_objects(&*self.objects.storage)?;
        let mut matching = all.iter().filter(|(id, _)| id.to_string().starts_with(prefix));
        let (found, more) = (matching.next(), matching.next());
        let Some((id, _)) = found.filter(|_| more.is_none() && !prefix.is_empty()) else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("no single key begins with '{prefix}'; `silt key list` shows them"),
            ));
        };
        if all.len() == 1 {
            return Err(Error::invalid("this is the last key; without it nothing can be read"));
        }
        self.objects.delete(&[names::key(*id)])?;
        Ok(*id)
    }

    /// Every series' id and name, sorted by name; damaged records are reported as warnings.
    pub fn series(&self) -> Result<Vec<(SeriesId, String)>> {
        let mut series = Vec::new();
        for item in self.objects.names(names::SERIES, None)? {
            let (name, _) = item?;
            let id = name.rsplit('/').next().and_then(SeriesId::from_hex);
            let Some(id) = id else {
                self.warn(&format!("{name} is not a series record"));
                continue;
            };
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

    pub(crate) fn series_record(&self, id: SeriesId) -> Result<SeriesRecord> {
        let name = names::series(id);
        let plain = self.objects.get(&name, Address::new(ObjectKind::Series, id, 0))?;
        SeriesRecord::decode(&plain).context(|| format!("read series record {name}"))
    }

    /// The id that the series called `name` has.
    pub fn series_id(&self, name: &str) -> SeriesId {
        self.objects.master.series_id(DEFAULT_DOMAIN, name)
    }

    /// The newest head of a series, or `None` before its first commit.
    pub fn head(&self, series: SeriesId) -> Result<Option<Head>> {
        let prefix = names::Numbered::Head.prefix(series);
        let Some(name) = self.objects.first_name(&prefix)? else {
            return Ok(None);
        };
        let strange = || Error::corrupt(format!("{name} is not the name of a head"));
        let generation = names::Numbered::number(&name).ok_or_else(strange)?;
        let address = Address::new(ObjectKind::Head, series, generation);
        let plain = self.objects.get(&name, address)?;
        let head = Head::decode(&plain).context(|| format!("read head {name}"))?;
        if (head.generation, head.series) != (generation, series) {
            return Err(Error::corrupt(format!("head {name} is not what its name says")));
        }
        if let Some(store) = head.stores.iter().find(|s| (s.number, s.kind) != (0, 0)) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("head {name} uses store {} of kind {}", store.number, store.kind),
            ));
        }
        Ok(Some(head))
    }

    /// Reads a snapshot.
    pub fn snapshot(&self, series: SeriesId, id: Id) -> Result<Snapshot> {
        let name = names::snapshot(series, id);
        let plain = self.objects.get(&name, Address::new(ObjectKind::Snapshot, series, id.0))?;
        let snapshot = Snapshot::decode(&plain).context(|| format!("read snapshot {name}"))?;
        if (snapshot.id, snapshot.series) != (id, series) {
            return Err(Error::corrupt(format!("snapshot {name} is not what its name says")));
        }
        Ok(snapshot)
    }

    /// What `check` last wrote down of a series.
    pub(crate) fn check_record(&self, series: SeriesId) -> Result<(u64, CheckRecord)> {
        let prefix = names::Numbered::Check.prefix(series);
        let Some(name) = self.objects.first_name(&prefix)? else {
            return Ok((0, CheckRecord::default()));
        };
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

fn key_objects(storage: &dyn Storage) -> Result<Vec<(Id, Vec<u8>)>> {
    let mut keys = Vec::new();
    for item in silt_storage::list_all(storage, names::KEYS, None) {
        let (name, _) = item?;
        let id = name.as_str().rsplit('/').next().and_then(Id::from_hex);
        let mut object = Vec::new();
        if let Some(id) = id {
            storage.get(&name, ByteRange::Full, &mut object)?;
            keys.push((id, object));
        }
    }
    Ok(keys)
}

/// Tries `password` on every key.
fn unlock(
    storage: &dyn Storage,
    repository: RepositoryId,
    password: &[u8],
) -> Result<(Id, MasterKey)> {
    let keys = key_objects(storage)?;
    let mut damaged = None;
    for (id, object) in &keys {
        let header = Header::decode(object);
        let ours = header.as_ref().is_ok_and(|header| {
            (header.kind, header.number, header.repository) == (ObjectKind::Key, id.0, repository)
        });
        let unwrapped = match header {
            Ok(_) if ours => WrappedKey::unwrap(object, password),
            Ok(_) => Err(Error::corrupt("it holds another object")),
            Err(error) => Err(error),
        };
        match unwrapped {
            Ok(master) => return Ok((*id, master)),
            Err(error) if error.kind() == ErrorKind::WrongPassword => {}
            Err(error) => damaged = Some(error.context(format!("read key {}", names::key(*id)))),
        }
    }
    if let Some(error) = damaged {
        return Err(error.context("no other key opens with this password"));
    }
    if keys.is_empty() {
        return Err(Error::corrupt(format!(
            "{} is encrypted but has no key below {}",
            storage.describe(),
            names::KEYS
        )));
    }
    Err(Error::new(
        ErrorKind::WrongPassword,
        format!("the password opens none of the {} keys of {}", keys.len(), storage.describe()),
    ))
}
