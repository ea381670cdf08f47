//! What a password unlocks: a host's keys, its signing key, and whom it believes.

use zeroize::Zeroizing;

use crate::envelope::{Header, Id, ObjectKind};
use crate::keyring::{Keyring, MasterKey};
use crate::signature::{Signer, SigningSeed};
use crate::{Error, ErrorKind, Result, WrappedKey};

const SEEDS_BYTES: usize = 32 + 32;

/// Everything that a wrapped key holds.
#[derive(Clone)]
pub struct HostKeys {
    /// What opens and seals.
    pub keys: Keyring,
    /// What the host signs with.
    pub seed: SigningSeed,
    /// The administrator's public key: nothing that storage says can replace it.
    pub administrator: [u8; 32],
}

impl HostKeys {
    /// What a wrapped key holds: all keys, or for a [write-only key](ObjectKind::WriteKey) those of
    /// a host that only writes. Such a host opens the metadata of `series` alone if these are all
    /// names, else of every series; one that is alone shares nothing, and can't tell what others
    /// have.
    ///
    /// `Denied` where these keys are not all.
    pub fn expose(
        &self,
        kind: ObjectKind,
        series: &[String],
        is_alone: bool,
    ) -> Result<Zeroizing<Vec<u8>>> {
        let mut bytes = if kind == ObjectKind::WriteKey {
            let is_name = |pattern: &String| !pattern.ends_with('*');
            let only = Some(series).filter(|series| series.iter().all(is_name));
            if is_alone && only.is_none() {
                return Err(Error::invalid("what shares nothing must be given by its names"));
            }
            self.keys.expose_write_only(only, is_alone)?
        } else {
            let only_writes = || Error::new(ErrorKind::Denied, "a write-only key makes no others");
            Zeroizing::new(self.keys.master().ok_or_else(only_writes)?.expose().to_vec())
        };
        bytes.extend_from_slice(self.seed.expose());
        bytes.extend_from_slice(&self.administrator);
        Ok(bytes)
    }

    /// Opens a wrapped key, full or write-only; `WrongPassword` if `password` does not open it.
    pub fn open(object: &[u8], password: &[u8]) -> Result<Self> {
        let kind = Header::decode(object)?.kind;
        let secret = WrappedKey::unwrap(object, password)?;
        let strange = || Error::corrupt("key: its secret has another length");
        let at = secret.len().checked_sub(SEEDS_BYTES).ok_or_else(strange)?;
        let (keys, seeds) = secret.split_at(at);
        let keys = if kind == ObjectKind::WriteKey {
            Keyring::of_write_only(keys)?
        } else {
            MasterKey::new(keys.try_into().map_err(|_| strange())?).into()
        };
        let (seed, administrator) = seeds.split_first_chunk::<32>().ok_or_else(strange)?;
        let administrator = administrator.try_into().map_err(|_| strange())?;
        Ok(Self { keys, seed: SigningSeed::new(*seed), administrator })
    }

    /// What an unencrypted repository's host has, which keeps its secret in the open: everybody
    /// signs with the same key.
    pub fn in_the_clear(master: MasterKey, administrator: [u8; 32]) -> Self {
        Self { seed: master.clear_seed(), keys: master.into(), administrator }
    }

    /// The id of the key that everybody signs with in an unencrypted repository.
    pub const CLEAR_ID: Id = Id(1);

    /// The private key of `seed`, called `id`.
    pub fn signer(&self, id: Id) -> Signer {
        Signer::new(id, self.seed.clone())
    }
}
