//! The administrator: who says which keys may write what, where the repository is, and what goes.
//!
//! In an append-only repository the administrator has a password, and a key that backup hosts do
//! not hold. In others, everybody with a full key has the administrator's, too.

use std::sync::Arc;

use silt_format::{
    Error, ErrorKind, KdfCost, KeyLabel, ObjectKind, Result, ResultExt, SeriesId, Signer,
    SigningSeed, WrappedKey, names,
};
use silt_storage::{ByteRange, PutMode};

use crate::objects::{Address, Objects, key};
use crate::repository::Repository;

/// Who administers a new append-only repository.
#[derive(Clone, Debug)]
pub struct Administrator {
    /// The password that will open the key that signs.
    pub password: Vec<u8>,
    /// The cost of one try of the password.
    pub cost: KdfCost,
    /// Who makes the key.
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
    /// `WrongPassword` if the password does not open it.
    pub fn authorize(&mut self, password: &[u8]) -> Result<()> {
        if !self.is_append_only() {
            return Ok(());
        }
        let mut failure = Error::corrupt("the repository has no administrator's key");
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
                Ok(_) => failure = Error::corrupt(format!("{name} is not this repository's")),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// What signs a head that takes something away, where that is not this host's own key; `Denied`
    /// if this process needs it and does not have it, and with a key that only backs up.
    pub fn required_authority(&self) -> Result<Option<Arc<Signer>>> {
        self.require_all_keys()?;
        if self.is_append_only() { self.administrator().map(Some) } else { Ok(None) }
    }

    /// What signs in the administrator's name; `Denied` if this process does not have it.
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
