//! The keys that a process holds: all of a repository's keys, or those that a write-only host
//! needs.

use std::sync::OnceLock;

use hpke::aead::ExportOnlyAead;
use hpke::kdf::HkdfSha256;
use hpke::kem::X25519HkdfSha256;
use hpke::rand_core::{TryCryptoRng, TryRng};
use hpke::{
    Deserializable, Kem, OpModeR, OpModeS, Serializable, setup_receiver, setup_sender_with_rng,
};
use zeroize::{Zeroize, Zeroizing};

use crate::codec::{Decoder, Encoder, unsupported};
use crate::envelope::{Header, ObjectKind, SealScheme, SeriesId};
use crate::seal::{NoKey, Sealer};
use crate::signature::SigningSeed;
use crate::{ContentHash, Error, ErrorKind, Hashed, Result, SHARED_STORE};

const DATA_CONTEXT: &str = "siltstone 2026 v1 seal of chunk data";
const DATA_PAIR_CONTEXT: &str = "siltstone 2026 v1 key pair that chunk data is sealed to";
const METADATA_CONTEXT: &str = "siltstone 2026 v1 seal of metadata";
const FINGERPRINT_CONTEXT: &str = "siltstone 2026 v1 chunk fingerprints of a domain";
const SEGMENT_CONTEXT: &str = "siltstone 2026 v1 segment digests of a domain";
const SERIES_CONTEXT: &str = "siltstone 2026 v1 series ids";
const CONTENT_CONTEXT: &str = "siltstone 2026 v1 content hashes";
const ADMINISTRATOR_CONTEXT: &str = "siltstone 2026 v1 signing key of the administrator";
const CLEAR_CONTEXT: &str = "siltstone 2026 v1 signing key of who needs no password";
/// The application that HPKE's key schedule is bound to, and the purpose of its exported key.
const HPKE_INFO: &[u8] = b"siltstone 2026 v1 seal of chunk data to a public key";
const HPKE_EXPORT: &[u8] = b"class key";

type PrivateKey = <X25519HkdfSha256 as Kem>::PrivateKey;
type PublicKey = <X25519HkdfSha256 as Kem>::PublicKey;
type EncappedKey = <X25519HkdfSha256 as Kem>::EncappedKey;

/// The repository's secret, from which every other key is derived.
#[derive(Clone)]
pub struct MasterKey([u8; 32]);

impl MasterKey {
    /// The master key made of 32 random bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
    /// The secret itself, to be wrapped.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
    pub(crate) fn derive(&self, context: &str) -> [u8; 32] {
        blake3::derive_key(context, &self.0)
    }
    /// The administrator's signing key of a repository that is not append-only: everyone with the
    /// secret has it.
    pub fn administrator_seed(&self) -> SigningSeed {
        SigningSeed::new(self.derive(ADMINISTRATOR_CONTEXT))
    }
    /// The signing key of an unencrypted repository.
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
    digests: Digests,
    content: [u8; 32],
    series: SeriesKeys,
    data: DataKeys,
}

/// The keys of fingerprints and segment digests.
#[derive(Clone)]
enum Digests {
    /// All domains: their keys are derived from this one.
    All { fingerprints: [u8; 32], segments: [u8; 32] },
    /// Keys of series that share nothing; they are stored with the series.
    Alone,
}

/// The domain of series that share no fingerprints with others.
pub const ALONE: u32 = u32::MAX;

/// The keys of series' ids and metadata.
#[derive(Clone)]
enum SeriesKeys {
    /// All series: their ids and metadata keys are derived from these.
    All { ids: [u8; 32], metadata: [u8; 32] },
    /// Keys of some series, of the shared store, and of objects that belong to no series.
    Some(Vec<OneSeries>),
}

/// A series that a host may open.
#[derive(Clone)]
struct OneSeries {
    name: String,
    id: SeriesId,
    metadata: [u8; 32],
    /// The keys of fingerprints and segment digests of a series that shares nothing.
    alone: Option<([u8; 32], [u8; 32])>,
}

/// The name of the shared store among series' names; no series can have it.
const SHARED_NAME: &str = "\0shared";
/// What the names of storage nodes begin with; no series can have such a name.
const NODE_NAME: &str = "\0node:";

/// The name under which the heads of a storage node are written, by its number in references.
pub fn node_store_name(number: u16) -> String {
    format!("{NODE_NAME}{number}")
}

/// Whether a head's name is that of a storage node's store, and never that of a series.
pub fn is_node_store_name(name: &str) -> bool {
    name.starts_with(NODE_NAME)
}

/// The name that stands for objects without a series.
const NO_NAME: &str = "";

/// The keys of chunk data.
#[derive(Clone)]
enum DataKeys {
    /// The pair is derived when it is first needed, for a container sealed by a write-only host.
    All { master: MasterKey, class: [u8; 32], pair: OnceLock<(PrivateKey, PublicKey)> },
    /// A write-only host has only the public key, to which it seals data.
    WriteOnly { public: [u8; 32] },
}

/// The key pair for data that its writer cannot read.
fn key_pair(master: &MasterKey) -> (PrivateKey, PublicKey) {
    let mut seed = master.derive(DATA_PAIR_CONTEXT);
    let pair = X25519HkdfSha256::derive_keypair(&seed);
    seed.zeroize();
    pair
}

impl From<MasterKey> for Keyring {
    fn from(master: MasterKey) -> Self {
        Self {
            digests: Digests::All {
                fingerprints: master.derive(FINGERPRINT_CONTEXT),
                segments: master.derive(SEGMENT_CONTEXT),
            },
            content: master.derive(CONTENT_CONTEXT),
            series: SeriesKeys::All {
                ids: master.derive(SERIES_CONTEXT),
                metadata: master.derive(METADATA_CONTEXT),
            },
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
        self.content.zeroize();
        if let Digests::All { fingerprints, segments } = &mut self.digests {
            fingerprints.zeroize();
            segments.zeroize();
        }
        match &mut self.series {
            SeriesKeys::All { ids, metadata } => {
                ids.zeroize();
                metadata.zeroize();
            }
            SeriesKeys::Some(some) => some.iter_mut().for_each(|one| {
                one.metadata.zeroize();
                one.alone.zeroize();
            }),
        }
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
    /// The secret that all keys are derived from; a write-only host does not have it.
    pub fn master(&self) -> Option<&MasterKey> {
        match &self.data {
            DataKeys::All { master, .. } => Some(master),
            DataKeys::WriteOnly { .. } => None,
        }
    }

    /// Whether these keys cannot read data.
    pub fn is_write_only(&self) -> bool {
        matches!(self.data, DataKeys::WriteOnly { .. })
    }

    /// Encodes the keys of a write-only host: for all series, or for the named ones, with or
    /// without the keys that let it share.
    ///
    /// Layout: the key of content hashes and the public key for data; a kind; then for 0 and 1 the
    /// keys of fingerprints and segment digests; for 0 those of series ids and metadata, else a
    /// list of name, id and metadata key, for 2 with the series' own keys of fingerprints and
    /// segment digests. For 1 one of the list is the shared store, its name a zero byte and
    /// `shared`; and one without a name is for what belongs to no series.
    pub(crate) fn expose_write_only(
        &self,
        only: Option<&[String]>,
        is_alone: bool,
    ) -> Result<Zeroizing<Vec<u8>>> {
        let public = match &self.data {
            DataKeys::All { master, pair, .. } => {
                pair.get_or_init(|| key_pair(master)).1.to_bytes().into()
            }
            DataKeys::WriteOnly { public } => *public,
        };
        let (SeriesKeys::All { ids, metadata }, Digests::All { fingerprints, segments }) =
            (&self.series, &self.digests)
        else {
            return Err(Error::new(ErrorKind::Denied, "a write-only key cannot create other keys"));
        };
        let mut to = Encoder::default();
        to.raw(&self.content);
        to.raw(&public);
        to.u8(u8::from(only.is_some()) + u8::from(is_alone));
        if !is_alone {
            to.raw(fingerprints);
            to.raw(segments);
        }
        let Some(names) = only else {
            to.raw(ids);
            to.raw(metadata);
            return Ok(Zeroizing::new(to.bytes));
        };
        let named = names.iter().map(|name| (name.as_str(), self.series_id(0, name)));
        let shared = (!is_alone).then(|| (SHARED_NAME, self.shared_store_id(0)));
        let others = shared.into_iter().chain([(NO_NAME, SeriesId::NONE)]);
        to.count(names.len() + 1 + usize::from(!is_alone));
        for (name, id) in named.chain(others) {
            to.string(name);
            to.raw(&id.0);
            to.raw(&metadata_key(metadata, id));
            if is_alone {
                to.raw(&self.fingerprint_key(ALONE, id));
                to.raw(&self.segment_key(ALONE, id));
            }
        }
        Ok(Zeroizing::new(to.bytes))
    }

    /// Decodes the same form.
    pub(crate) fn of_write_only(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "keys");
        let content = from.array()?;
        let data = DataKeys::WriteOnly { public: from.array()? };
        let kind = from.u8()?;
        let digests = match kind {
            0 | 1 => Digests::All { fingerprints: from.array()?, segments: from.array()? },
            2 => Digests::Alone,
            other => return Err(unsupported("keys", &format!("keys of kind {other}"))),
        };
        let series = if kind == 0 {
            SeriesKeys::All { ids: from.array()?, metadata: from.array()? }
        } else {
            SeriesKeys::Some(from.list(46, |item| {
                let (name, id) = (item.string()?, SeriesId(item.array()?));
                let metadata = item.array()?;
                let alone = if kind == 2 { Some((item.array()?, item.array()?)) } else { None };
                Ok(OneSeries { name, id, metadata, alone })
            })?)
        };
        from.end()?;
        Ok(Self { digests, content, series, data })
    }

    /// Whether these keys include the fingerprint key of a domain.
    pub fn has_domain(&self, domain: u32) -> bool {
        domain == ALONE || matches!(self.digests, Digests::All { .. })
    }

    /// Whether these keys open the metadata of a series; for [`NONE`](SeriesId::NONE), of objects
    /// without a series.
    pub fn opens(&self, series: SeriesId) -> bool {
        self.metadata_key(series).is_some()
    }

    /// Whether these keys open the metadata of every series.
    pub fn opens_all(&self) -> bool {
        matches!(self.series, SeriesKeys::All { .. })
    }

    fn metadata_key(&self, series: SeriesId) -> Option<[u8; 32]> {
        match &self.series {
            SeriesKeys::All { metadata, .. } => Some(metadata_key(metadata, series)),
            SeriesKeys::Some(some) => {
                some.iter().find(|one| one.id == series).map(|one| one.metadata)
            }
        }
    }

    /// Returns the key of chunk fingerprints in `domain`, or of `series` if the domain is
    /// [`ALONE`]. If this host lacks the domain's keys, returns a key that nobody else has: check
    /// [`has_domain`](Self::has_domain) first.
    pub fn fingerprint_key(&self, domain: u32, series: SeriesId) -> [u8; 32] {
        match &self.digests {
            Digests::All { fingerprints, .. } => domain_key(fingerprints, domain, series),
            Digests::Alone => self.alone(domain, series).map_or(self.content, |keys| keys.0),
        }
    }

    /// The key of segment digests; see [`fingerprint_key`](Self::fingerprint_key).
    pub fn segment_key(&self, domain: u32, series: SeriesId) -> [u8; 32] {
        match &self.digests {
            Digests::All { segments, .. } => domain_key(segments, domain, series),
            Digests::Alone => self.alone(domain, series).map_or(self.content, |keys| keys.1),
        }
    }

    fn alone(&self, domain: u32, series: SeriesId) -> Option<([u8; 32], [u8; 32])> {
        let SeriesKeys::Some(some) = &self.series else { return None };
        some.iter().find(|one| domain == ALONE && one.id == series)?.alone
    }

    /// The content hash of `plain`.
    pub fn content_hash(&self, of: Hashed, plain: &[u8]) -> ContentHash {
        let mut hasher = blake3::Hasher::new_keyed(&self.content);
        hasher.update(&[of as u8]).update(plain);
        let mut hash = [0; 16];
        hash.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        ContentHash(hash)
    }

    /// Returns the id of the series called `name` in `domain`; the id reveals neither. A host with
    /// keys for some series knows only their ids; for another name, this returns an id that no
    /// series has.
    pub fn series_id(&self, domain: u32, name: &str) -> SeriesId {
        let ids = match &self.series {
            SeriesKeys::All { ids, .. } => ids,
            SeriesKeys::Some(some) => match some.iter().find(|one| one.name == name) {
                Some(one) if domain == 0 => return one.id,
                _ => &self.content,
            },
        };
        let mut hasher = blake3::Hasher::new_keyed(ids);
        hasher.update(&domain.to_le_bytes()).update(name.as_bytes());
        let mut id = [0; 12];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..12]);
        SeriesId(id)
    }

    /// The id of a domain's shared store. No series has it, because names contain no control
    /// characters.
    pub fn shared_store_id(&self, domain: u32) -> SeriesId {
        self.series_id(domain, SHARED_NAME)
    }

    /// The id of a store of several series of a domain, by its number in references: the shared
    /// store or a storage node.
    pub fn store_id(&self, domain: u32, number: u16) -> SeriesId {
        match number {
            SHARED_STORE => self.shared_store_id(domain),
            _ => self.series_id(domain, &node_store_name(number)),
        }
    }

    /// Returns the sealer for the blocks of the object with this header. It cannot seal if the
    /// object is sealed to the public key.
    pub fn sealer(&self, header: &Header) -> Sealer {
        let Some(metadata) = self.metadata_key(header.series).map(Zeroizing::new) else {
            return Sealer::foreign();
        };
        if header.kind != ObjectKind::Container {
            return Sealer::new(&metadata, header);
        }
        let DataKeys::All { master, class: data, pair } = &self.data else {
            return Sealer::of_data(Err(NoKey::Closed), &metadata, header);
        };
        if header.scheme != SealScheme::SealedToKey {
            return Sealer::of_data(Ok(data), &metadata, header);
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
            Sealer::of_data(opened.map(|()| &class).or(Err(NoKey::Broken)), &metadata, header);
        class.zeroize();
        sealer
    }

    /// Begins a container: returns its final header and its sealer. A write-only host seals blocks
    /// to the public key; `random` makes the encapsulated key unique.
    pub fn begin_container(&self, header: Header, random: [u8; 32]) -> Result<(Header, Sealer)> {
        let DataKeys::WriteOnly { public } = &self.data else {
            return Ok((header, self.sealer(&header)));
        };
        let failed = |error: hpke::HpkeError| {
            Error::corrupt(format!("data cannot be sealed to the repository's public key: {error}"))
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
        let foreign = || Error::new(ErrorKind::Denied, "this key does not write that series");
        let metadata = self.metadata_key(header.series).map(Zeroizing::new).ok_or_else(foreign)?;
        let mut class = [0; 32];
        context.export(HPKE_EXPORT, &mut class).map_err(failed)?;
        let sealer = Sealer::of_data(Ok(&class), &metadata, &header);
        class.zeroize();
        Ok((header, sealer))
    }
}

/// The key of a domain, or of a series that has its own.
fn domain_key(root: &[u8; 32], domain: u32, series: SeriesId) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(root);
    hasher.update(&domain.to_le_bytes());
    if domain == ALONE {
        hasher.update(&series.0);
    }
    hasher.finalize().into()
}

/// The key of a series' metadata.
fn metadata_key(root: &[u8; 32], series: SeriesId) -> [u8; 32] {
    blake3::keyed_hash(root, &series.0).into()
}

/// The encapsulated key takes the place of the salt and continues after it.
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

/// An RNG for libraries that require one: BLAKE3's extended output of bytes drawn before.
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
