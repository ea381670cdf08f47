//! The root of a repository: its configuration and keys, each stored twice.

use silt_format::{
    Config, Error, ErrorKind, HEADER_BYTES, Header, HostKeys, Id, MasterKey, ObjectKind,
    RepositoryId, Result, ResultExt, SealScheme, names,
};
use silt_storage::{ByteRange, Key, Storage};
use zeroize::Zeroize;

use crate::objects::key;

/// Bytes of the master key that an unencrypted repository's configuration holds after its header.
const CLEAR_KEY_BYTES: usize = 32;

/// Where the master key comes from.
pub enum Secret<F> {
    /// A function that returns the password, called only if it is needed.
    Asked(F),
    /// A password that has opened nothing yet.
    Password(Vec<u8>),
    /// The key itself, and the wrapped key that held it.
    Known(Option<Id>, Box<HostKeys>),
    /// It is being used.
    Taken,
}

/// The result of opening a configuration.
pub struct Opened {
    /// The header of the configuration.
    pub header: Header,
    /// The settings.
    pub config: Config,
    /// The keys that the password opened.
    pub host: HostKeys,
    /// The key that opened it, if it is encrypted.
    pub key: Option<Id>,
}

/// Reads a configuration, unlocking the master key if that has not been done; then `root` becomes
/// the names of keys and lists of places.
pub fn open_config<F: FnOnce() -> Result<Vec<u8>>>(
    storage: &dyn Storage,
    name: &str,
    secret: &mut Secret<F>,
    root: &mut Option<Vec<Key>>,
) -> Result<Opened> {
    let mut object = Vec::new();
    let what = || format!("read {name} of {}", storage.describe());
    storage.get(&key(name)?, ByteRange::Full, &mut object).context(what)?;
    let header = Header::decode(&object).context(what)?;
    if (header.kind, header.number) != (ObjectKind::Config, 0) {
        return Err(Error::corrupt("it holds another object")).context(what);
    }
    let mut at = HEADER_BYTES;
    if header.scheme == SealScheme::Checksum {
        let clear = object.get(at..at + CLEAR_KEY_BYTES).and_then(|clear| clear.try_into().ok());
        at += CLEAR_KEY_BYTES;
        let clear = clear.ok_or_else(|| Error::corrupt("it ends early")).context(what)?;
        let host = HostKeys::in_the_clear(MasterKey::new(clear), [0; 32]);
        *secret = Secret::Known(None, Box::new(host));
    }
    *secret = match std::mem::replace(secret, Secret::Taken) {
        Secret::Asked(password) => Secret::Password(password()?),
        other => other,
    };
    if let Secret::Password(password) = secret {
        let names = list_root(storage)?;
        let (id, host) = unlock(storage, &names, header.repository, password)?;
        *root = Some(names);
        password.zeroize();
        *secret = Secret::Known(Some(id), Box::new(host));
    }
    let Secret::Known(opened_by, host) = secret else {
        return Err(Error::corrupt("no key can decrypt it")).context(what);
    };
    let (opened_by, mut host) = (*opened_by, HostKeys::clone(host));
    let sealer = host.keys.sealer(&header);
    let plain = sealer.open(0, &mut object[at..]).context(what)?;
    let config = Config::decode(plain).context(what)?;
    if opened_by.is_none() {
        // Without a password, trust the administrator named in the configuration.
        host.administrator = config.administrator;
    } else if host.administrator != config.administrator {
        let message = "its administrator is not the one of the key that opened it";
        return Err(Error::corrupt(message)).context(what);
    }
    // Otherwise any host that can seal metadata could allow everyone to remove things.
    if let Some(master) = host.keys.master()
        && config.append_only == master.administrator_seed().makes(&config.administrator)?
    {
        let message = "its append-only setting does not match its key";
        return Err(Error::corrupt(message)).context(what);
    }
    Ok(Opened { header, config, host, key: opened_by })
}

/// The names of keys, lists of writers and lists of places.
pub fn list_root(storage: &dyn Storage) -> Result<Vec<Key>> {
    silt_storage::list_all(storage, names::ROOT, None).map(|item| Ok(item?.0)).collect()
}

/// Every key object and copy of one: id, name and bytes, in the order of names.
pub fn key_objects(storage: &dyn Storage) -> Result<Vec<(Id, String, Vec<u8>)>> {
    let mut keys = Vec::new();
    for item in silt_storage::list_all(storage, names::KEYS, None) {
        let (name, _) = item?;
        let mut object = Vec::new();
        if let Some(id) = names::key_id(name.as_str()) {
            storage.get(&name, ByteRange::Full, &mut object)?;
            keys.push((id, name.as_str().to_owned(), object));
        }
    }
    Ok(keys)
}

/// Whether an object is the key that its name says.
pub fn is_key(object: &[u8], id: Id, repository: RepositoryId) -> Result<()> {
    let header = Header::decode(object)?;
    let is_key = matches!(header.kind, ObjectKind::Key | ObjectKind::WriteKey);
    if is_key && (header.number, header.repository) == (id.0, repository) {
        return Ok(());
    }
    Err(Error::corrupt("it holds another object"))
}

/// Tries `password` on every key until one opens, and on a key's copy if it differs.
fn unlock(
    storage: &dyn Storage,
    root: &[Key],
    repository: RepositoryId,
    password: &[u8],
) -> Result<(Id, HostKeys)> {
    let key = |name: &Key| names::key_id(name.as_str()).map(|id| (id, name.clone()));
    let keys: Vec<(Id, Key)> = root.iter().filter_map(key).collect();
    let (mut damaged, mut last) = (None, None);
    // A key comes before its copy.
    for (id, name) in &keys {
        let mut object = Vec::new();
        storage.get(name, ByteRange::Full, &mut object)?;
        if last.replace(object.clone()).is_some_and(|last| last == object) {
            continue;
        }
        let unwrapped =
            is_key(&object, *id, repository).and_then(|()| HostKeys::open(&object, password));
        match unwrapped {
            Ok(host) => return Ok((*id, host)),
            Err(error) if error.kind() == ErrorKind::WrongPassword => {}
            Err(error) => damaged = Some(error.context(format!("read key {name}"))),
        }
    }
    if let Some(error) = damaged {
        return Err(error.context("wrong password for every other key"));
    }
    if keys.is_empty() {
        return Err(Error::corrupt(format!(
            "{} is encrypted but has no key below {}",
            storage.describe(),
            names::KEYS
        )));
    }
    let message = format!("wrong password for {}", storage.describe());
    Err(Error::new(ErrorKind::WrongPassword, message))
}
