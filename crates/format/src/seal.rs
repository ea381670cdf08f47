//! Keys, and the sealing of blocks with them.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

use crate::envelope::{Header, ObjectKind, SealScheme, SeriesId};
use crate::{Error, Fingerprint, Result};

/// Bytes that sealing adds to a block.
pub const TAG_BYTES: usize = 16;

const DATA_CONTEXT: &str = "siltstone 2026 v1 seal of chunk data";
const METADATA_CONTEXT: &str = "siltstone 2026 v1 seal of metadata";
const FINGERPRINT_CONTEXT: &str = "siltstone 2026 v1 chunk fingerprints of a domain";
const SEGMENT_CONTEXT: &str = "siltstone 2026 v1 segment digests of a domain";
const SERIES_CONTEXT: &str = "siltstone 2026 v1 series ids";

/// The repository's secret, from which every other key is derived.
#[derive(Clone)]
pub struct MasterKey([u8; 32]);

impl MasterKey {
    /// The master key made of 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
    /// The secret itself, for wrapping it.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
    fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.0)
    }
    fn derive_for(&self, context: &str, domain: u32) -> [u8; 32] {
        blake3::keyed_hash(&self.derive(context), &domain.to_le_bytes()).into()
    }
    /// The key of chunk fingerprints in `domain`.
    pub fn fingerprint_key(&self, domain: u32) -> [u8; 32] {
        self.derive_for(FINGERPRINT_CONTEXT, domain)
    }
    /// The key of segment digests in `domain`.
    pub fn segment_key(&self, domain: u32) -> [u8; 32] {
        self.derive_for(SEGMENT_CONTEXT, domain)
    }
    /// The id of the series called `name` in `domain`, which reveals neither.
    pub fn series_id(&self, domain: u32, name: &str) -> SeriesId {
        let mut hasher = blake3::Hasher::new_keyed(&self.derive(SERIES_CONTEXT));
        hasher.update(&domain.to_le_bytes()).update(name.as_bytes());
        let mut id = [0; 12];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..12]);
        SeriesId(id)
    }
    /// The id of a domain's shared store: no series has it, since names hold no control characters.
    pub fn shared_store_id(&self, domain: u32) -> SeriesId {
        self.series_id(domain, "\0shared")
    }
    /// What seals and opens the blocks of the object that `header` begins.
    pub fn sealer(&self, header: &Header) -> Sealer {
        let context = match header.kind {
            ObjectKind::Container => DATA_CONTEXT,
            _ => METADATA_CONTEXT,
        };
        Sealer::new(&self.derive(context), header)
    }
}

impl Drop for MasterKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey(secret)")
    }
}

/// The first 20 bytes of a keyed BLAKE3, as a fingerprint; the chunking crate does the same in bulk.
pub fn fingerprint(key: &[u8; 32], chunk: &[u8]) -> Fingerprint {
    let mut bytes = [0; 20];
    bytes.copy_from_slice(&blake3::keyed_hash(key, chunk).as_bytes()[..20]);
    Fingerprint(bytes)
}

/// Seals and opens the blocks of one object, each at a position that no other block of it has.
pub struct Sealer(Cipher);

enum Cipher {
    Checksum([u8; 32]),
    Aes256Gcm(Box<LessSafeKey>),
}

impl Sealer {
    /// The object's key is BLAKE3 of its whole header, keyed with `class_key`: a header that was
    /// changed, or another object's, opens nothing.
    pub fn new(class_key: &[u8; 32], header: &Header) -> Self {
        let mut key: [u8; 32] = blake3::keyed_hash(class_key, &header.encode()).into();
        let cipher = match header.scheme {
            SealScheme::Checksum => Cipher::Checksum(key),
            SealScheme::Aes256Gcm => match UnboundKey::new(&AES_256_GCM, &key) {
                Ok(unbound) => Cipher::Aes256Gcm(Box::new(LessSafeKey::new(unbound))),
                Err(_) => panic!("AES-256-GCM takes every key of 32 bytes"),
            },
        };
        if header.scheme == SealScheme::Aes256Gcm {
            key.zeroize();
        }
        Self(cipher)
    }

    /// Seals `block[from..]` in place and appends its tag.
    pub fn seal(&self, position: u64, block: &mut Vec<u8>, from: usize) {
        match &self.0 {
            Cipher::Checksum(key) => {
                let tag = checksum(key, position, &block[from..]);
                block.extend_from_slice(&tag);
            }
            Cipher::Aes256Gcm(key) => {
                let plain = &mut block[from..];
                match key.seal_in_place_separate_tag(nonce(position), Aad::empty(), plain) {
                    Ok(tag) => block.extend_from_slice(tag.as_ref()),
                    Err(_) => panic!("a block is far smaller than AES-GCM's limit"),
                }
            }
        }
    }

    /// Opens a sealed block in place; the answer is its plain bytes.
    ///
    /// Fails as `Corrupt` unless it was sealed at this position of this object.
    pub fn open<'a>(&self, position: u64, sealed: &'a mut [u8]) -> Result<&'a [u8]> {
        let damaged = || Error::corrupt("its seal is broken: the bytes are not what was written");
        match &self.0 {
            Cipher::Checksum(key) => {
                let at = sealed.len().checked_sub(TAG_BYTES).ok_or_else(damaged)?;
                let (plain, tag) = sealed.split_at(at);
                if checksum(key, position, plain) != tag {
                    return Err(damaged());
                }
                Ok(plain)
            }
            Cipher::Aes256Gcm(key) => {
                let opened = key.open_in_place(nonce(position), Aad::empty(), sealed);
                opened.map(|plain| &*plain).map_err(|_| damaged())
            }
        }
    }
}

fn nonce(position: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&position.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn checksum(key: &[u8; 32], position: u64, plain: &[u8]) -> [u8; TAG_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&position.to_le_bytes()).update(plain);
    let mut tag = [0; TAG_BYTES];
    tag.copy_from_slice(&hasher.finalize().as_bytes()[..TAG_BYTES]);
    tag
}
