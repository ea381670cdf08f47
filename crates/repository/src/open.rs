//! Creates and opens repositories, and finds damage in their roots.

use crate::event::Warning;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};

use silt_format::{
    Advice, Config, Error, ErrorKind, HostKeys, Id, KdfCost, KeyLabel, Keyring, MasterKey,
    ObjectKind, RepositoryId, Result, Role, SealScheme, SeriesId, Signer, SigningSeed, WrappedKey,
    names,
};
use silt_storage::Storage;

use crate::authority::{self, Administrator};
use crate::believed::Believed;
use crate::buffers::Buffers;
use crate::env::Context;
use crate::objects::{Address, Objects, is_damage, key};
use crate::repository::Repository;
use crate::room::Room;
use crate::root::{Secret, is_key, key_objects, list_root, open_config};
use crate::seen::Seen;
use crate::series::EVERY_SERIES;
use crate::upload_queue::SharedUploader;

/// How a new repository is protected.
#[derive(Clone, Debug)]
pub enum Protection {
    /// AES-256-GCM; the master key is wrapped by a password.
    Password {
        /// The password.
        password: Vec<u8>,
        /// The cost of key derivation.
        cost: KdfCost,
        /// The creator of the key.
        label: KeyLabel,
    },
    /// No encryption: damage is found, but everyone who can read the storage can read the data.
    None,
}

impl Repository {
    /// Creates a repository in `storage`, which must not hold another one; append-only if there is
    /// an administrator.
    pub fn init(
        storage: Arc<dyn Storage>,
        context: Context,
        config: Config,
        protection: &Protection,
        administrator: Option<&Administrator>,
    ) -> Result<Self> {
        let master = MasterKey::new(context.random());
        Self::init_with(master, (storage, context), config, (protection, administrator))
    }

    /// Creates a replica of this repository in `storage`, which must not hold another one: a
    /// repository with the same secret and settings, an id of its own, and a password of its own.
    ///
    /// Fails with `Denied` if this key can't read data, with `Invalid` if only one of the two would
    /// be encrypted.
    pub fn init_replica(
        &self,
        storage: Arc<dyn Storage>,
        context: Context,
        protection: &Protection,
        administrator: Option<&Administrator>,
    ) -> Result<Self> {
        let Some(master) = self.objects.keys.master() else {
            let message = "a write-only key does not have the secret that a replica needs";
            return Err(Error::new(ErrorKind::Denied, message));
        };
        if self.is_encrypted() != matches!(protection, Protection::Password { .. }) {
            return Err(Error::invalid(
                "a replica is encrypted if and only if the repository is: both have one secret",
            ));
        }
        let config = self.config.clone();
        Self::init_with(master.clone(), (storage, context), config, (protection, administrator))
    }

    fn init_with(
        master: MasterKey,
        (storage, context): (Arc<dyn Storage>, Context),
        mut config: Config,
        (protection, administrator): (&Protection, Option<&Administrator>),
    ) -> Result<Self> {
        config.created_ns = context.env.now_ns();
        config.validate()?;
        let taken = |name| key(name).and_then(|key| storage.head(&key)).is_ok();
        if taken(names::CONFIG) || taken(names::CONFIG_COPY) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("{} already holds a repository", storage.describe()),
            ));
        }
        let scheme = match protection {
            Protection::Password { .. } => SealScheme::Aes256Gcm,
            Protection::None => SealScheme::Checksum,
        };
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
        let (now_ns, room) = (context.env.now_ns(), Room::new(context.budget(0).beside_bytes()));
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
            lacking: Arc::default(),
            looked_ns: AtomicI64::new(now_ns),
            uploader: SharedUploader::default(),
            buffers: Arc::new(Buffers::default()),
            room: Arc::new(room),
            examined: Arc::default(),
        };
        if let Some(administrator) = administrator {
            authority::create(&objects, administrator, &seed)?;
        }
        let objects = Arc::new(objects);
        let mut repository =
            Self { objects, config, opened_by: None, authority: None, root: None, places: None };
        // The keys go first: nobody could open a configuration without a key.
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

    /// Opens the repository in `storage`; calls `password` only if it is encrypted.
    ///
    /// Fails with `NoRepository` if there is none, with `WrongPassword` if the password opens no
    /// key. A damaged configuration gives a warning if its copy is intact.
    pub fn open(
        storage: Arc<dyn Storage>,
        context: Context,
        password: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Self> {
        let mut secret = Secret::Asked(password);
        let mut root = None;
        let mut first = open_config(&*storage, names::CONFIG, &mut secret, &mut root);
        // A cached configuration may belong to an earlier repository at this location; without keys
        // this cannot be detected.
        let is_sure = match &first {
            Ok(opened) => opened.header.scheme != SealScheme::Checksum,
            Err(error) => error.kind() == ErrorKind::WrongPassword,
        };
        if !is_sure && storage.forget(&key(names::CONFIG)?) {
            first = open_config(&*storage, names::CONFIG, &mut secret, &mut root);
        }
        let first = match first {
            Ok(opened) => Ok(opened),
            // A newer program's configuration must not fall back to an older copy.
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                let copy = open_config(&*storage, names::CONFIG_COPY, &mut secret, &mut root);
                match copy {
                    Ok(opened) => {
                        context.warn(Warning::after(&error, "its copy is used"));
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
                format!("{} holds no repository", storage.describe()),
            )
            .with_advice(Advice::InitRepository),
            _ => error,
        })?;
        let (now_ns, room) = (context.env.now_ns(), Room::new(context.budget(0).beside_bytes()));
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
            lacking: Arc::default(),
            looked_ns: AtomicI64::new(now_ns),
            uploader: SharedUploader::default(),
            buffers: Arc::new(Buffers::default()),
            room: Arc::new(room),
            examined: Arc::default(),
        };
        let root = root.map_or_else(|| list_root(&*objects.storage), Ok)?;
        match objects.load_writers(Some(&root)) {
            // Another place may have it intact; without it no signature can be verified.
            Err(error) if is_damage(&error) => {}
            other => drop(other?),
        }
        if let Some(id) = opened.key.filter(|id| objects.believed.is_removed(*id)) {
            let message = format!("this is the password of key {id}, which was removed");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let (config, opened_by, root) = (opened.config, opened.key, Some(root));
        let objects = Arc::new(objects);
        Ok(Self { objects, config, opened_by, authority: None, root, places: None })
    }

    /// The key that opens a configuration again.
    pub fn known_secret(&self) -> Secret<fn() -> Result<Vec<u8>>> {
        let (keys, administrator) = (self.objects.keys.clone(), self.config.administrator);
        // No signature is made with it.
        let seed = SigningSeed::new([0; 32]);
        Secret::Known(self.opened_by, Box::new(HostKeys { keys, seed, administrator }))
    }

    /// Returns the damage of the configuration, the keys, the list of writers and their copies, by
    /// object name.
    pub fn root_damage(&self) -> Result<Vec<(String, Error)>> {
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
            // A wrapped key cannot be verified without its password, but it must equal its copy.
            let differs = keys.iter().any(|(twin, _, bytes)| twin == id && bytes != object);
            let whole = if differs {
                Err(Error::corrupt("it and its copy differ, so one of them is damaged"))
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
}
