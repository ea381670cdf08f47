//! Append-only repositories: what takes something away must be signed by a key that backup hosts do
//! not hold.

use silt_format::{
    Authority, Error, ErrorKind, KdfCost, KeyLabel, MasterKey, ObjectKind, Result, ResultExt,
    SeriesId, WrappedKey, names,
};
use silt_storage::{ByteRange, PutMode};

use crate::objects::{Address, Objects, key};
use crate::repository::Repository;

/// Who administers a new append-only repository.
#[derive(Clone, Debug)]
pub struct Administrator {
    /// The password that will open the key that signs.
    pub password: Vec<u8>,
    /// What one try of it costs.
    pub cost: KdfCost,
    /// Who makes the key.
    pub label: KeyLabel,
}

/// Makes the signing key of a new repository, durable on return; the answer is its public part.
pub(crate) fn create(objects: &Objects, administrator: &Administrator) -> Result<[u8; 32]> {
    let seed = MasterKey::new(objects.context.random());
    let header = objects.new_header(Address::new(ObjectKind::Authority, SeriesId::NONE, 0));
    let Administrator { password, cost, label } = administrator;
    let object = WrappedKey::wrap(&header, password, *cost, &seed.clone().into(), label)?;
    for name in [names::AUTHORITY_COPY, names::AUTHORITY] {
        objects.storage.put(&key(name)?, &[&object], PutMode::Create)?;
    }
    Ok(Authority::new(&seed)?.public())
}

impl Repository {
    /// Whether deleting and reclaiming need the administrator's password.
    pub fn is_append_only(&self) -> bool {
        self.config.authority.is_some()
    }

    /// Opens the key that signs, so that this process may delete and reclaim.
    ///
    /// `WrongPassword` if the password does not open it.
    pub fn authorize(&mut self, password: &[u8]) -> Result<()> {
        let Some(public) = self.config.authority else { return Ok(()) };
        let mut failure = Error::corrupt("the repository has no key that signs");
        for name in [names::AUTHORITY, names::AUTHORITY_COPY] {
            let mut object = Vec::new();
            let read = self.objects.storage.get(&key(name)?, ByteRange::Full, &mut object);
            let opened = read
                .and_then(|()| WrappedKey::unwrap(&object, password))
                .and_then(|seed| {
                    let strange = || Error::corrupt("it holds no seed");
                    Authority::new(seed.master().ok_or_else(strange)?)
                })
                .context(|| format!("open {name}"));
            match opened {
                Ok(authority) if authority.public() == public => {
                    self.authority = Some(authority);
                    return Ok(());
                }
                Ok(_) => failure = Error::corrupt(format!("{name} is not this repository's")),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The key that signs, if this process has it; `Denied` if it needs it and does not have it, and with a
    /// key that only backs up.
    pub(crate) fn required_authority(&self) -> Result<Option<&Authority>> {
        self.require_all_keys()?;
        if self.is_append_only() && self.authority.is_none() {
            return Err(Error::new(
                ErrorKind::Denied,
                "the repository is append-only: this needs the administrator's password",
            ));
        }
        Ok(self.authority.as_ref())
    }
}
