//! What a process holds of a repository's keys: all, or what a host needs that only writes.

use std::sync::OnceLock;

use hpke::aead::ExportOnlyAead;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::rand_core::{TryCryptoRng, TryRng};
use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable, setup_receiver, setup_sender_with_rng,
};
use zeroize::Zeroize;

use crate::envelope::{Header, ObjectKind, SealScheme, SeriesId};
use crate::seal::{NoKey, Sealer};
use crate::signature::SigningSeed;
use crate::{ContentHash, Error, Result};

const DATA_CONTEXT: &str = "siltstone 2026 v1 seal of chunk data";
const DATA_PAIR_CONTEXT: &str = "siltstone 2026 v1 key pair that chunk data is sealed to";
const METADATA_CONTEXT: &str = "siltstone 2026 v1 seal of metadata";
const FINGERPRINT_CONTEXT: &str = "siltstone 2026 v1 chunk fingerprints of a domain";
const SEGMENT_CONTEXT: &str = "siltstone 2026 v1 segment digests of a domain";
const SERIES_CONTEXT: &str = "siltstone 2026 v1 series ids";
const CONTENT_CONTEXT: &str = "siltstone 2026 v1 content hashes";
const ADMINISTRATOR_CONTEXT: &str = "siltstone 2026 v1 signing key of the administrator";
const CLEAR_CONTEXT: &str = "siltstone 2026 v1 signing key of who needs no password";
/// The application that HPKE's key schedule is bound to, and what its exported key is for.
const HPKE_INFO: &[u8] = b"siltstone 2026 v1 seal of chunk data to a public key";
const HPKE_EXPORT: &[u8] = b"class key";

type PrivateKey = <X25519HkdfSha256 as Kem>::PrivateKey;
type PublicKey = <X25519HkdfSha256 as Kem>::PublicKey;
type EncappedKey = <X25519HkdfSha256 as Kem>::EncappedKey;

/// Bytes of the keys of a host that only writes.
pub(crate) const WRITE_ONLY_BYTES: usize = 6 * 32;

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
    /// What the administrator of a repository signs with that is not append-only: all who have the secret.
    pub fn administrator_seed(&self) -> SigningSeed {
        SigningSeed::new(self.derive(ADMINISTRATOR_CONTEXT))
    }
    /// What everybody signs with in a repository that is not encrypted.
    pub(crate) fn clear_seed(&self) -> SigningSeed {
        SigningSeed::new(self.derive(CLEAR_CONTEXT))
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

/// The keys that a process works with.
#[derive(Clone)]
pub struct Keyring {
    fingerprints: [u8; 32],
    segments: [u8; 32],
    series: [u8; 32],
    metadata: [u8; 32],
    content: [u8; 32],
    data: DataKeys,
}

/// What concerns chunk data.
#[derive(Clone)]
enum DataKeys {
    /// The pair is derived when a container needs it that a write-only host has sealed: most never do.
    All { master: MasterKey, class: [u8; 32], pair: OnceLock<(PrivateKey, PublicKey)> },
    /// A host that only writes has the public key that it seals data to.
    WriteOnly { public: [u8; 32] },
}

/// The pair of keys by which data is sealed that its writer can't read.
fn key_pair(master: &MasterKey) -> (PrivateKey, PublicKey) {
    let mut seed = master.derive(DATA_PAIR_CONTEXT);
    let pair = X25519HkdfSha256::derive_keypair(&seed);
    seed.zeroize();
    pair
}

impl From<MasterKey> for Keyring {
    fn from(master: MasterKey) -> Self {
        Self {
            fingerprints: master.derive(FINGERPRINT_CONTEXT),
            segments: master.derive(SEGMENT_CONTEXT),
            series: master.derive(SERIES_CONTEXT),
            metadata: master.derive(METADATA_CONTEXT),
            content: master.derive(CONTENT_CONTEXT),
            data: DataKeys::All {
                class: master.derive(DATA_CONTEXT),
                pair: OnceLock::new(),
                master,
            },
        }
    }
}

impl Drop for Keyring {
    fn drop(&mut self) {
        for key in [&mut self.fingerprints, &mut self.segments, &mut self.series] {
            key.zeroize();
        }
        self.metadata.zeroize();
        self.content.zeroize();
        if let DataKeys::All { class, .. } = &mut self.data {
            class.zeroize();
        }
    }
}

impl std::fmt::Debug for Keyring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_write_only() { "Keyring(write-only)" } else { "Keyring(all)" })
    }
}

impl Keyring {
    /// The secret that all keys come from; a host that only writes does not have it.
    pub fn master(&self) -> Option<&MasterKey> {
        match &self.data {
            DataKeys::All { master, .. } => Some(master),
            DataKeys::WriteOnly { .. } => None,
        }
    }

    /// Whether data can't be read with these keys.
    pub fn is_write_only(&self) -> bool {
        matches!(self.data, DataKeys::WriteOnly { .. })
    }

    /// What a host gets that only writes.
    pub(crate) fn expose_write_only(&self) -> [u8; WRITE_ONLY_BYTES] {
        let mut bytes = [0; WRITE_ONLY_BYTES];
        let own = [self.fingerprints, self.segments, self.series, self.metadata];
        let public = match &self.data {
            DataKeys::All { master, pair, .. } => {
                pair.get_or_init(|| key_pair(master)).1.to_bytes().into()
            }
            DataKeys::WriteOnly { public } => *public,
        };
        let keys = own.into_iter().chain([public, self.content]);
        for (to, key) in bytes.chunks_exact_mut(32).zip(keys) {
            to.copy_from_slice(&key);
        }
        bytes
    }

    /// The same, back.
    pub(crate) fn of_write_only(bytes: &[u8; WRITE_ONLY_BYTES]) -> Self {
        let key = |number: usize| {
            let mut key = [0; 32];
            key.copy_from_slice(&bytes[32 * number..][..32]);
            key
        };
        Self {
            fingerprints: key(0),
            segments: key(1),
            series: key(2),
            metadata: key(3),
            content: key(5),
            data: DataKeys::WriteOnly { public: key(4) },
        }
    }

    /// The key of chunk fingerprints in `domain`.
    pub fn fingerprint_key(&self, domain: u32) -> [u8; 32] {
        blake3::keyed_hash(&self.fingerprints, &domain.to_le_bytes()).into()
    }

    /// The key of segment digests in `domain`.
    pub fn segment_key(&self, domain: u32) -> [u8; 32] {
        blake3::keyed_hash(&self.segments, &domain.to_le_bytes()).into()
    }

    /// The content hash of what `plain` holds: a recipe (kind 1), a map page (2) or a snapshot (5).
    pub fn content_hash(&self, kind: u8, plain: &[u8]) -> ContentHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.content);
        hasher.update(&[kind]).update(plain);
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        ContentHash(hash)
    }

    /// The id of the series called `name` in `domain`, which reveals neither.
    pub fn series_id(&self, domain: u32, name: &str) -> SeriesId {
        let mut hasher = blake3::Hasher::new_keyed(&self.series);
        hasher.update(&domain.to_le_bytes()).update(name.as_bytes());
        let mut id = [0; 12];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..12]);
        SeriesId(id)
    }

    /// The id of a domain's shared store: no series has it, since names hold no control characters.
    pub fn shared_store_id(&self, domain: u32) -> SeriesId {
        self.series_id(domain, "\0shared")
    }

    /// What opens the blocks of the object that `header` begins, and seals them, if it is none that is
    /// sealed to the public key.
    pub fn sealer(&self, header: &Header) -> Sealer {
        if header.kind != ObjectKind::Container {
            return Sealer::new(&self.metadata, header);
        }
        let DataKeys::All { master, class: data, pair } = &self.data else {
            return Sealer::of_data(Err(NoKey::Closed), &self.metadata, header);
        };
        if header.scheme != SealScheme::SealedToKey {
            return Sealer::of_data(Ok(data), &self.metadata, header);
        }
        let (private, _) = pair.get_or_init(|| key_pair(master));
        let mut class = [0; 32];
        let opened = EncappedKey::from_bytes(&encapped(header)).and_then(|encapped| {
            let mode = OpModeR::Base;
            let context = setup_receiver::<ExportOnlyAead, HkdfSha256, X25519HkdfSha256>(
                &mode, private, &encapped, HPKE_INFO,
            )?;
            context.export(HPKE_EXPORT, &mut class)
        });
        let sealer =
            Sealer::of_data(opened.map(|()| &class).or(Err(NoKey::Broken)), &self.metadata, header);
        class.zeroize();
        sealer
    }

    /// Begins a container: its header as it is to be written, and what seals it. A host that only writes
    /// seals its blocks to the public key, with what `random` makes unique.
    pub fn begin_container(&self, header: Header, random: [u8; 32]) -> Result<(Header, Sealer)> {
        let DataKeys::WriteOnly { public } = &self.data else {
            return Ok((header, self.sealer(&header)));
        };
        let failed = |error: hpke::HpkeError| {
            Error::corrupt(format!("data can't be sealed to the repository's public key: {error}"))
        };
        let public = PublicKey::from_bytes(public).map_err(failed)?;
        let (encapped, context) = setup_sender_with_rng::<
            ExportOnlyAead,
            HkdfSha256,
            X25519HkdfSha256,
        >(
            &OpModeS::Base, &public, HPKE_INFO, &mut Drawn::new(random)
        )
        .map_err(failed)?;
        let header = with_encapped(header, &encapped.to_bytes().into());
        let mut class = [0; 32];
        context.export(HPKE_EXPORT, &mut class).map_err(failed)?;
        let sealer = Sealer::of_data(Ok(&class), &self.metadata, &header);
        class.zeroize();
        Ok((header, sealer))
    }
}

/// The encapsulated key is where other objects have their salt, and goes on behind it.
fn encapped(header: &Header) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes[..24].copy_from_slice(&header.salt);
    bytes[24..].copy_from_slice(&header.rest.reserved);
    bytes
}

fn with_encapped(mut header: Header, encapped: &[u8; 32]) -> Header {
    header.scheme = SealScheme::SealedToKey;
    header.salt.copy_from_slice(&encapped[..24]);
    header.rest.reserved.copy_from_slice(&encapped[24..]);
    header
}

/// Random bytes that were drawn before, for a library that draws by itself: BLAKE3's extended output.
struct Drawn(blake3::OutputReader);

impl Drawn {
    fn new(mut random: [u8; 32]) -> Self {
        let reader = blake3::Hasher::new_keyed(&random).finalize_xof();
        random.zeroize();
        Self(reader)
    }
}

impl TryRng for Drawn {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> std::result::Result<u32, Self::Error> {
        let mut bytes = [0; 4];
        self.0.fill(&mut bytes);
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> std::result::Result<u64, Self::Error> {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> std::result::Result<(), Self::Error> {
        self.0.fill(bytes);
        Ok(())
    }
}

impl TryCryptoRng for Drawn {}
