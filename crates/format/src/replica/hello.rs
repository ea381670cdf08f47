//! The first bytes of a connection, and the keys of what follows.

use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use zeroize::Zeroizing;

use crate::{Error, ErrorKind, MasterKey, RepositoryId, Result, Sealer, TAG_BYTES};

/// The version of the protocol.
pub const PROTOCOL_VERSION: u16 = 2;
/// The version from which on a replica takes deltas.
pub const DELTA_VERSION: u16 = 2;
/// Size of a hello in bytes.
pub const HELLO_BYTES: usize = 80;
/// Number of bytes that sealing adds to a record.
pub const SESSION_TAG_BYTES: usize = TAG_BYTES;

const MAGIC: &[u8; 8] = b"SILTREPL";
const CONTEXT: &str = "siltstone 2026 v1 replication";
const SECRET_ID: &[u8] = b"secret";
const TRANSPORT: &[u8] = b"TLS";

/// The end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Role {
    /// Sends snapshots.
    Source = 1,
    /// Receives snapshots.
    Replica = 2,
}

/// The first bytes that each end sends: not sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The end that sends it.
    pub role: Role,
    /// The newest version of the protocol that it speaks.
    pub version: u16,
    /// Its repository.
    pub repository: RepositoryId,
    /// Names the secret of its repository and does not reveal it: repositories with one secret
    /// have the same.
    pub secret: [u8; 16],
    /// Random.
    pub nonce: [u8; 32],
}

impl Hello {
    /// The hello of an end whose repository has the secret `master`.
    pub fn new(role: Role, repository: RepositoryId, master: &MasterKey, nonce: [u8; 32]) -> Self {
        let key = root_key(master);
        let mut secret = [0; 16];
        secret.copy_from_slice(&blake3::keyed_hash(&key, SECRET_ID).as_bytes()[..16]);
        Self { role, version: PROTOCOL_VERSION, repository, secret, nonce }
    }

    /// Encodes magic, role `u8`, zero `u8`, version `u16`, four zeros, repository, secret, nonce.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = self.role as u8;
        bytes[10..12].copy_from_slice(&self.version.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.repository.0);
        bytes[32..48].copy_from_slice(&self.secret);
        bytes[48..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Decodes the hello of the other end, which must have the role `expected`.
    ///
    /// Fails with `Invalid` if it is none, with `Unsupported` for a version before 1.
    pub fn decode(bytes: &[u8; HELLO_BYTES], expected: Role) -> Result<Self> {
        if bytes[..8] != *MAGIC {
            return Err(Error::invalid("the other end does not speak the replication protocol"));
        }
        let role = match bytes[8] {
            1 => Role::Source,
            2 => Role::Replica,
            other => return Err(Error::invalid(format!("the other end has the role {other}"))),
        };
        if role != expected {
            let what = if role == Role::Source { "sends" } else { "receives" };
            return Err(Error::invalid(format!("the other end {what} snapshots, too")));
        }
        let version = u16::from_le_bytes([bytes[10], bytes[11]]);
        if version == 0 {
            let message = "the other end speaks version 0 of the replication protocol";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        let mut hello = Self {
            role,
            version,
            repository: RepositoryId([0; 16]),
            secret: [0; 16],
            nonce: [0; 32],
        };
        hello.repository.0.copy_from_slice(&bytes[16..32]);
        hello.secret.copy_from_slice(&bytes[32..48]);
        hello.nonce.copy_from_slice(&bytes[48..]);
        Ok(hello)
    }
}

/// The seed of the Ed25519 key by which both ends of a TLS connection know each other.
pub fn transport_seed(master: &MasterKey) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(*blake3::keyed_hash(&root_key(master), TRANSPORT).as_bytes())
}

fn root_key(master: &MasterKey) -> Zeroizing<[u8; 32]> {
    Zeroizing::new(master.derive(CONTEXT))
}

/// The keys of the two directions of a connection. Every connection has its own.
pub struct SessionKeys {
    /// Seals what the source sends. The position of a record is its number in this direction.
    pub source: Sealer,
    /// Seals what the replica sends.
    pub replica: Sealer,
}

impl SessionKeys {
    /// Derives the keys from the secret and both hellos: keyed BLAKE3 of the source's hello, the
    /// replica's hello, and the role of the sender.
    pub fn new(master: &MasterKey, source: &Hello, replica: &Hello) -> Self {
        let root = root_key(master);
        let key = |role: Role| {
            let mut hasher = blake3::Hasher::new_keyed(&root);
            hasher.update(&source.encode()).update(&replica.encode()).update(&[role as u8]);
            let key = Zeroizing::new(*hasher.finalize().as_bytes());
            match UnboundKey::new(&AES_256_GCM, &*key) {
                Ok(unbound) => Sealer::of_key(LessSafeKey::new(unbound)),
                Err(_) => panic!("AES-256-GCM takes every key of 32 bytes"),
            }
        };
        Self { source: key(Role::Source), replica: key(Role::Replica) }
    }
}
