//! Signatures: every key signs the objects that others rely on, and the administrator signs the
//! list of keys.

use std::sync::{Mutex, OnceLock, PoisonError};

use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use zeroize::Zeroize;

use crate::envelope::{Header, Id, ObjectKind};
use crate::{Error, Result};

/// Bytes after the plain bytes of a signed object: the signer's id and an Ed25519 signature.
pub const SIGNATURE_BYTES: usize = 8 + ED25519_BYTES;
const ED25519_BYTES: usize = 64;
/// Signed bytes begin with this, so that no other use of the key can be mistaken for it.
const CONTEXT: &[u8] = b"siltstone 2026 v1 object and its writer";

/// Cache entries for a seed and its public key begin with this, in place of a signature.
const SEED_OF: &[u8] = b"seed of the public key";

/// The seed of an Ed25519 key pair: 32 random bytes.
#[derive(Clone)]
pub struct SigningSeed([u8; 32]);

impl SigningSeed {
    /// The seed made of 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
    /// The seed itself, to be wrapped.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether the pair that this seed makes has this public key.
    pub fn makes(&self, public: &[u8; 32]) -> Result<bool> {
        let what = hash(public, SEED_OF, &self.0);
        let is_made = FOUND_GOOD.has(&what) || self.pair()?.public_key().as_ref() == public;
        if is_made {
            FOUND_GOOD.add(what);
        }
        Ok(is_made)
    }

    fn pair(&self) -> Result<Ed25519KeyPair> {
        Ed25519KeyPair::from_seed_unchecked(&self.0)
            .map_err(|_| Error::invalid("the seed makes no Ed25519 key"))
    }
}

impl Drop for SigningSeed {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// A private key that signs objects. The pair is computed when first needed: readers do not need
/// it.
pub struct Signer {
    id: Id,
    seed: SigningSeed,
    pair: OnceLock<Ed25519KeyPair>,
}

impl Signer {
    /// The id of the administrator as a signer.
    pub const ADMINISTRATOR: Id = Id(0);

    /// The key made from a seed; `id` is that of the wrapped key that holds it, or
    /// [`ADMINISTRATOR`](Self::ADMINISTRATOR).
    pub fn new(id: Id, seed: SigningSeed) -> Self {
        Self { id, seed, pair: OnceLock::new() }
    }

    /// The id of the key's owner.
    pub fn id(&self) -> Id {
        self.id
    }

    /// The seed that it is made from.
    pub fn seed(&self) -> &SigningSeed {
        &self.seed
    }

    /// The public key.
    pub fn public(&self) -> Result<[u8; 32]> {
        let mut public = [0; 32];
        public.copy_from_slice(self.pair()?.public_key().as_ref());
        Ok(public)
    }

    /// Signs the contents of the object with this header: appends the signer's id and the
    /// signature.
    pub fn sign(&self, header: &Header, plain: &mut Vec<u8>) -> Result<()> {
        let message = message(header, self.id, plain);
        let signature = self.pair()?.sign(&message);
        FOUND_GOOD.add(hash(&self.public()?, signature.as_ref(), &message));
        plain.extend_from_slice(&self.id.0.to_le_bytes());
        plain.extend_from_slice(signature.as_ref());
        Ok(())
    }

    fn pair(&self) -> Result<&Ed25519KeyPair> {
        if let Some(pair) = self.pair.get() {
            return Ok(pair);
        }
        let pair = self.seed.pair()?;
        Ok(self.pair.get_or_init(|| pair))
    }
}

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({})", self.id)
    }
}

/// The contents of a signed object, and its claimed signer.
#[derive(Clone, Copy, Debug)]
pub struct Signed<'a> {
    header: &'a Header,
    /// The bytes that are signed.
    pub plain: &'a [u8],
    /// The claimed signer.
    pub signer: Id,
    signature: &'a [u8],
}

impl<'a> Signed<'a> {
    /// Splits the plain bytes of an object. Fails with `Corrupt` if they hold no signature.
    pub fn split(header: &'a Header, bytes: &'a [u8]) -> Result<Self> {
        let short = || Error::corrupt("it is not signed");
        let at = bytes.len().checked_sub(SIGNATURE_BYTES).ok_or_else(short)?;
        let (plain, end) = bytes.split_at(at);
        let (id, signature) = end.split_first_chunk().ok_or_else(short)?;
        Ok(Self { header, plain, signer: Id(u64::from_le_bytes(*id)), signature })
    }

    /// Returns whether the key with the public key `public` signed exactly these bytes for exactly
    /// this object.
    pub fn is_by(&self, public: &[u8; 32]) -> bool {
        let message = message(self.header, self.signer, self.plain);
        let what = hash(public, self.signature, &message);
        if FOUND_GOOD.has(&what) {
            return true;
        }
        let is_good =
            UnparsedPublicKey::new(&ED25519, public).verify(&message, self.signature).is_ok();
        if is_good {
            FOUND_GOOD.add(what);
        }
        is_good
    }
}

/// The cache entry for a valid signature.
fn hash(public: &[u8; 32], signature: &[u8], message: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(public).update(signature).update(message);
    *hasher.finalize().as_bytes()
}

/// The signatures that this process made or verified last. A head is read several times in one run,
/// and by every session of a round, and verifying its signature is the most expensive part.
static FOUND_GOOD: Recent = Recent(Mutex::new(Vec::new()));

/// Hashes, each at the index that its first bytes select, until another one replaces it.
struct Recent(Mutex<Vec<[u8; 32]>>);

impl Recent {
    const PLACES: usize = 1 << 12;

    fn place(hash: &[u8; 32]) -> usize {
        usize::from(u16::from_le_bytes([hash[0], hash[1]])) % Self::PLACES
    }

    fn has(&self, hash: &[u8; 32]) -> bool {
        let hashes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hashes.get(Self::place(hash)) == Some(hash)
    }

    fn add(&self, hash: [u8; 32]) {
        let mut hashes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        hashes.resize(Self::PLACES, [0; 32]);
        hashes[Self::place(&hash)] = hash;
    }
}

fn message(header: &Header, signer: Id, plain: &[u8]) -> Vec<u8> {
    [CONTEXT, &header.encode(), &signer.0.to_le_bytes(), plain].concat()
}

impl ObjectKind {
    /// Whether objects of this kind end in a signature.
    pub fn is_signed(self) -> bool {
        matches!(
            self,
            Self::Series
                | Self::Head
                | Self::Snapshot
                | Self::Check
                | Self::Places
                | Self::Writers
                | Self::Message
                | Self::Mark
        )
    }
}
