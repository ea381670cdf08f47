//! The administrator: decides which keys may write what, where the repository is, and what is
//! removed.
//!
//! In an append-only repository the administrator has a password, and a key that backup hosts do
//! not hold. In other repositories, everyone with a full key also has the administrator's key.

use std::sync::Arc;

use silt_format::{
    Error, ErrorKind, KdfCost, KeyLabel, ObjectKind, Result, ResultExt, SeriesId, Signer,
    SigningSeed, WrappedKey, names,
};
use silt_storage::{ByteRange, PutMode};

use crate::objects::{Address, Objects, key};
use crate::repository::Repository;

/// The administrator of a new append-only repository.
#[derive(Clone, Debug)]
pub struct Administrator {
    /// The password of the administrator's signing key.
    pub password: Vec<u8>,
    /// The cost of one try of the password.
    pub cost: KdfCost,
    /// The creator of the key.
    pub label: KeyLabel,
}

/// Writes the administrator's key of a new append-only repository, durable on return.
pub fn create(objects: &Objects, administrator: &Administrator, seed: &SigningSeed) -> Result<()> {
    let header = objects.new_header(Address::new(ObjectKind::Authority, SeriesId::NONE, 0));
    let Administrator { password, cost, label } = administrator;
    let labelled = (&objects.keys, label);
    let object = WrappedKey::wrap(&header, password, *cost, seed.expose(), labelled)?;
    for name in [names::AUTHORITY_COPY, names::AUTHORITY] {
        objects.storage.put(&key(name)?, &[&object], PutMode::Create)?;
    }
    Ok(())
}

fn open(object: &[u8], password: &[u8]) -> Result<Signer> {
    let secret = WrappedKey::unwrap(object, password)?;
    let strange = |_| Error::corrupt("it holds no seed");
    let seed = SigningSeed::new(secret.as_slice().try_into().map_err(strange)?);
    Ok(Signer::new(Signer::ADMINISTRATOR, seed))
}

impl Repository {
    /// Whether deleting, reclaiming and changing keys need the administrator's password.
    pub fn is_append_only(&self) -> bool {
        self.config.append_only
    }

    /// Opens the administrator's key, so that this process may delete and reclaim.
    ///
    /// Fails with `WrongPassword` if the password does not open it.
    pub fn authorize(&mut self, password: &[u8]) -> Result<()> {
        if !self.is_append_only() {
            return Ok(());
        }
        let mut failure = Error::corrupt("the repository has no administrator's key");
        let mut is_wrong = false;
        for name in [names::AUTHORITY, names::AUTHORITY_COPY] {
            let mut object = Vec::new();
            let read = self.objects.storage.get(&key(name)?, ByteRange::Full, &mut object);
            let opened =
                read.and_then(|()| open(&object, password)).context(|| format!("open {name}"));
            match opened {
                Ok(signer) if signer.seed().makes(&self.config.administrator)? => {
                    self.authority = Some(Arc::new(signer));
                    return Ok(());
                }
                Ok(_) => failure = Error::corrupt(format!("{name} belongs to another repository")),
                Err(error) => {
                    is_wrong |= error.kind() == ErrorKind::WrongPassword;
                    failure = error;
                }
            }
        }
        // A copy that refuses the password decides, even if the other one is damaged.
        let message = "wrong password of the administrator";
        Err(if is_wrong { Error::new(ErrorKind::WrongPassword, message) } else { failure })
    }

    /// Returns the signing key for heads that remove something, or `None` if this host's own key
    /// may sign them. Fails with `Denied` if this process lacks the required key, and for
    /// write-only keys.
    pub fn required_authority(&self) -> Result<Option<Arc<Signer>>> {
        self.require_all_keys()?;
        if self.is_append_only() { self.administrator().map(Some) } else { Ok(None) }
    }

    /// Returns the administrator's signing key. Fails with `Denied` if this process does not have
    /// it.
    pub fn administrator(&self) -> Result<Arc<Signer>> {
        self.require_all_keys()?;
        let denied = || {
            let message = "the repository is append-only: this needs the administrator's password";
            Error::new(ErrorKind::Denied, message)
        };
        if self.is_append_only() {
            return self.authority.clone().ok_or_else(denied);
        }
        let master = self.objects.keys.master().ok_or_else(denied)?;
        Ok(Arc::new(Signer::new(Signer::ADMINISTRATOR, master.administrator_seed())))
    }
}
