//! The sealing of blocks.

use crate::Advice;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroize;

use crate::envelope::{Header, SealScheme};
use crate::{Error, ErrorKind, Fingerprint, Result};

/// The position of an object's directory; frame numbers and offsets never reach it.
pub const DIRECTORY_POSITION: u64 = u64::MAX;
/// Number of bytes that sealing adds to a block.
pub const TAG_BYTES: usize = 16;

/// Computes a fingerprint: the first 20 bytes of a keyed BLAKE3. The chunking crate does so in
/// bulk.
pub fn fingerprint(key: &[u8; 32], chunk: &[u8]) -> Fingerprint {
    let mut bytes = [0; 20];
    bytes.copy_from_slice(&blake3::keyed_hash(key, chunk).as_bytes()[..20]);
    Fingerprint(bytes)
}

/// Seals and opens the blocks of one object, each at its own position.
pub struct Sealer {
    blocks: Cipher,
    /// The cipher of the directory, if it differs from that of the blocks.
    directory: Option<Cipher>,
}

enum Cipher {
    Checksum([u8; 32]),
    Aes256Gcm(Box<LessSafeKey>),
    /// Sealed to a public key whose private key is not known here.
    Closed,
    /// The header does not lead to a valid key.
    Broken,
    /// The object belongs to a series that the known keys do not open.
    Foreign,
}

impl Cipher {
    /// The object's key is BLAKE3 of its whole header, keyed with `class_key`, so a changed header,
    /// or that of another object, opens nothing.
    fn new(class_key: &[u8; 32], header: &Header) -> Self {
        let mut key: [u8; 32] = blake3::keyed_hash(class_key, &header.encode()).into();
        if header.scheme == SealScheme::Checksum {
            return Self::Checksum(key);
        }
        let cipher = match UnboundKey::new(&AES_256_GCM, &key) {
            Ok(unbound) => Self::Aes256Gcm(Box::new(LessSafeKey::new(unbound))),
            Err(_) => panic!("AES-256-GCM takes every key of 32 bytes"),
        };
        key.zeroize();
        cipher
    }
}

/// The reason why there is no key for an object's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoKey {
    /// The key is not known here.
    Closed,
    /// The object's header does not lead to a valid key.
    Broken,
}

impl Sealer {
    /// Returns a sealer that uses one key for all blocks.
    pub(crate) fn new(class_key: &[u8; 32], header: &Header) -> Self {
        Self { blocks: Cipher::new(class_key, header), directory: None }
    }

    /// Returns a sealer of a temporary file, with a key that no other file has.
    pub fn of_temporary(key: &[u8; 32]) -> Self {
        match UnboundKey::new(&AES_256_GCM, key) {
            Ok(unbound) => Self::of_key(LessSafeKey::new(unbound)),
            Err(_) => panic!("AES-256-GCM takes every key of 32 bytes"),
        }
    }

    /// Returns a sealer of a connection's records.
    pub(crate) fn of_key(key: LessSafeKey) -> Self {
        Self { blocks: Cipher::Aes256Gcm(Box::new(key)), directory: None }
    }

    /// Returns a sealer with one key for data blocks, if it is known, and another for their
    /// directory.
    pub(crate) fn of_data(
        data_key: std::result::Result<&[u8; 32], NoKey>,
        directory_key: &[u8; 32],
        header: &Header,
    ) -> Self {
        let blocks = match data_key {
            Ok(key) => Cipher::new(key, header),
            Err(NoKey::Closed) => Cipher::Closed,
            Err(NoKey::Broken) => Cipher::Broken,
        };
        Self { blocks, directory: Some(Cipher::new(directory_key, header)) }
    }

    /// Returns a sealer that opens nothing: the keys of the object's series are not known here.
    pub(crate) fn foreign() -> Self {
        Self { blocks: Cipher::Foreign, directory: None }
    }

    fn cipher(&self, position: u64) -> &Cipher {
        match &self.directory {
            Some(directory) if position == DIRECTORY_POSITION => directory,
            _ => &self.blocks,
        }
    }

    /// Seals `block[from..]` in place and appends its tag.
    pub fn seal(&self, position: u64, block: &mut Vec<u8>, from: usize) {
        match self.cipher(position) {
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
            Cipher::Closed | Cipher::Broken | Cipher::Foreign => {
                panic!("only the creator of an object's key seals with it")
            }
        }
    }

    /// Opens a sealed block in place and returns its plain bytes.
    ///
    /// Fails with `Corrupt` unless it was sealed at this position of this object, with `Denied` if
    /// its key is not known here.
    pub fn open<'a>(&self, position: u64, sealed: &'a mut [u8]) -> Result<&'a [u8]> {
        let damaged =
            || Error::corrupt("checksum mismatch: the bytes are not the ones that were written");
        match self.cipher(position) {
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
            Cipher::Broken => Err(damaged()),
            Cipher::Foreign => Err(Error::new(
                ErrorKind::Denied,
                "access denied: this key opens only the series that it may write",
            )),
            Cipher::Closed => Err(Error::new(
                ErrorKind::Denied,
                "access denied: this key is write-only and cannot read data",
            )
            .with_advice(Advice::UseReadingKey)),
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
