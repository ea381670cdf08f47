//! The contents of a key object: a host's keys, its signing key and the administrator's public key.

use zeroize::Zeroizing;

use crate::envelope::{Header, Id, ObjectKind};
use crate::keyring::{Keyring, MasterKey};
use crate::signature::{Signer, SigningSeed};
use crate::{Error, ErrorKind, Result, WrappedKey};

const SEEDS_BYTES: usize = 32 + 32;

/// The contents of a wrapped key.
#[derive(Clone)]
pub struct HostKeys {
    /// The keys that open and seal.
    pub keys: Keyring,
    /// The host's signing key.
    pub seed: SigningSeed,
    /// The administrator's public key. No object in the storage can replace it.
    pub administrator: [u8; 32],
}

impl HostKeys {
    /// Encodes the secret of a key object: all keys for a full key; for a [write-only
    /// key](ObjectKind::WriteKey), the keys that its host needs. If all patterns in `series` are
    /// full names, such a host opens only the metadata of these series, otherwise that of every
    /// series. With `is_alone`, its series share nothing, and the host cannot test guesses of other
    /// series' chunks.
    ///
    /// Fails with `Denied` if this host's own key is write-only, with `Invalid` if `is_alone` is
    /// combined with a prefix.
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
                return Err(Error::invalid(
                    "a key that shares nothing needs the full names of its series",
                ));
            }
            self.keys.expose_write_only(only, is_alone)?
        } else {
            let only_writes =
                || Error::new(ErrorKind::Denied, "a write-only key cannot create other keys");
            Zeroizing::new(self.keys.master().ok_or_else(only_writes)?.expose().to_vec())
        };
        bytes.extend_from_slice(self.seed.expose());
        bytes.extend_from_slice(&self.administrator);
        Ok(bytes)
    }

    /// Opens a wrapped key, full or write-only. Fails with `WrongPassword` if `password` does not
    /// open it.
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

    /// The keys of a host of an unencrypted repository. Its secret is public, so everybody signs
    /// with the same key.
    pub fn in_the_clear(master: MasterKey, administrator: [u8; 32]) -> Self {
        Self { seed: master.clear_seed(), keys: master.into(), administrator }
    }

    /// The id of the signing key of an unencrypted repository.
    pub const CLEAR_ID: Id = Id(1);

    /// The private key made from `seed`, with the id `id`.
    pub fn signer(&self, id: Id) -> Signer {
        Signer::new(id, self.seed.clone())
    }
}
