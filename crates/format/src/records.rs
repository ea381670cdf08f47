//! The small records: configuration, wrapped keys, series, leases and check records.

use argon2::{Algorithm, Argon2, Block, Params, Version};
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use zeroize::{Zeroize, Zeroizing};

use crate::codec::{Decoder, Encoder, REQUIRED, unsupported};
use crate::envelope::{HEADER_BYTES, Header, SealScheme};
use crate::keyring::Keyring;
use crate::recipe::{decode_chunking, encode_chunking};
use crate::seal::{Sealer, TAG_BYTES};
use crate::{BlockRef, Chunking, Error, ErrorKind, ObjectTag, Result};

const CORE: u16 = 1;
const ADMINISTRATOR: u16 = 2;
const VERIFIED: u16 = 2;
const DAMAGED: u16 = 3;
const DAMAGED_BLOCKS: u16 = 4;
const UNNEEDED: u16 = 5;

/// The repository's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Creation time, in nanoseconds since 1970.
    pub created_ns: i64,
    /// The default chunking of disks.
    pub chunking: Chunking,
    /// The zstd level of frames and metadata, -7 to 19.
    pub zstd_level: i32,
    /// Sealed size in bytes at which a container is closed.
    pub container_bytes: u32,
    /// Maximum raw size of a frame in bytes.
    pub frame_bytes: u32,
    /// The administrator's Ed25519 public key, which verifies the list of writers.
    pub administrator: [u8; 32],
    /// Whether only the administrator can delete; otherwise every full key can.
    pub append_only: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            created_ns: 0,
            chunking: Chunking::Fixed { bytes: 4096 },
            zstd_level: 1,
            container_bytes: 8 << 20,
            frame_bytes: 256 << 10,
            administrator: [0; 32],
            append_only: false,
        }
    }
}

impl Config {
    /// Fails with `Invalid` if a setting is out of the format's bounds.
    pub fn validate(&self) -> Result<()> {
        self.chunking.validate()?;
        let in_bounds = (-7..=19).contains(&self.zstd_level)
            && (64 << 10..=256 << 20).contains(&self.container_bytes)
            && (4096..=1 << 20).contains(&self.frame_bytes);
        if in_bounds {
            return Ok(());
        }
        Err(Error::invalid(
            "a setting is out of bounds: use compression level -7 to 19, containers of 64 KiB to \
             256 MiB, frames of 4 KiB to 1 MiB",
        ))
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            to.i64(self.created_ns);
            encode_chunking(self.chunking, to);
            to.raw(&self.zstd_level.to_le_bytes());
            to.u32(self.container_bytes);
            to.u32(self.frame_bytes);
        });
        to.section(ADMINISTRATOR, REQUIRED, |to| {
            to.raw(&self.administrator);
            to.u8(u8::from(self.append_only));
        });
        to.bytes
    }

    /// Reads the settings and checks their bounds.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let (mut config, mut administrator) = (None, None);
        Decoder::new(bytes, "configuration").sections(|tag, body| {
            if tag == ADMINISTRATOR {
                administrator = Some((body.array()?, body.u8()? != 0));
                return Ok(true);
            }
            if tag != CORE {
                return Ok(false);
            }
            config = Some(Self {
                created_ns: body.i64()?,
                chunking: decode_chunking(body)?,
                zstd_level: i32::from_le_bytes(body.array()?),
                container_bytes: body.u32()?,
                frame_bytes: body.u32()?,
                administrator: [0; 32],
                append_only: false,
            });
            Ok(true)
        })?;
        let missing = || Error::corrupt("configuration: a section is missing");
        let mut config = config.ok_or_else(missing)?;
        (config.administrator, config.append_only) = administrator.ok_or_else(missing)?;
        config.validate().map_err(|e| Error::corrupt("configuration").with_source(e))?;
        Ok(config)
    }
}

/// The cost of key derivation: Argon2id's parameters (RFC 9106).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KdfCost {
    /// Memory in KiB.
    pub memory_kib: u32,
    /// Passes over the memory.
    pub passes: u32,
    /// Lanes.
    pub lanes: u32,
}

impl Default for KdfCost {
    fn default() -> Self {
        Self { memory_kib: 32 << 10, passes: 3, lanes: 4 }
    }
}

impl KdfCost {
    /// Fails with `Invalid` if the cost is out of the format's bounds, which keep a damaged key
    /// from allocating all memory.
    pub fn validate(self) -> Result<Self> {
        let ok = (8 << 10..=1 << 20).contains(&self.memory_kib)
            && (1..=64).contains(&self.passes)
            && (1..=16).contains(&self.lanes);
        if ok {
            return Ok(self);
        }
        Err(Error::invalid(
            "the key derivation cost is out of bounds: use 8 MiB to 1 GiB of memory, 1 to 64 \
             passes and 1 to 16 lanes",
        ))
    }
}

/// The creator of a wrapped key and the time; sealed with the repository's metadata key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyLabel {
    /// Creation time, in nanoseconds since 1970.
    pub created_ns: i64,
    /// The host that created it.
    pub host: String,
    /// The user who created it.
    pub user: String,
    /// The purpose of the key, in the words of the user who created it; may be empty.
    pub purpose: String,
}

/// A key object: a secret that a password unlocks.
pub struct WrappedKey;

impl WrappedKey {
    /// Encodes the whole object: `secret`, wrapped by `password`.
    ///
    /// Layout: header, whose kind tells the kind of secret; memory, passes, lanes and bytes of the
    /// secret (u32 each); the secret sealed at position 0 under Argon2id(password, the header's
    /// salt); the label sealed at position 1 with the repository's metadata key.
    pub fn wrap(
        header: &Header,
        password: &[u8],
        cost: KdfCost,
        secret: &[u8],
        (keys, label): (&Keyring, &KeyLabel),
    ) -> Result<Vec<u8>> {
        let mut to = Encoder::default();
        to.raw(&header.encode());
        to.u32(cost.memory_kib);
        to.u32(cost.passes);
        to.u32(cost.lanes);
        to.count(secret.len());
        let wrapper = password_sealer(header, password, cost)?;
        let at = to.bytes.len();
        to.raw(secret);
        wrapper.seal(0, &mut to.bytes, at);
        let at = to.bytes.len();
        to.i64(label.created_ns);
        to.string(&label.host);
        to.string(&label.user);
        if !label.purpose.is_empty() {
            to.string(&label.purpose);
        }
        keys.sealer(header).seal(1, &mut to.bytes, at);
        Ok(to.bytes)
    }

    /// Returns the secret. Fails with `WrongPassword` if `password` does not open this key object.
    pub fn unwrap(object: &[u8], password: &[u8]) -> Result<Zeroizing<Vec<u8>>> {
        let (header, cost, mut sealed, _) = Self::parts(object)?;
        let sealer = password_sealer(&header, password, cost)?;
        let opened = sealer
            .open(0, &mut sealed)
            .map_err(|_| Error::new(ErrorKind::WrongPassword, "wrong password"))?;
        let secret = Zeroizing::new(opened.to_vec());
        sealed.zeroize();
        Ok(secret)
    }

    /// The label of a key object.
    pub fn label(object: &[u8], keys: &Keyring) -> Result<KeyLabel> {
        let (header, _, _, mut label) = Self::parts(object)?;
        let sealer = keys.sealer(&header);
        let mut from = Decoder::new(sealer.open(1, &mut label)?, "key label");
        let (created_ns, host, user) = (from.i64()?, from.string()?, from.string()?);
        let purpose = if from.rest_len() == 0 { String::new() } else { from.string()? };
        Ok(KeyLabel { created_ns, host, user, purpose })
    }

    fn parts(object: &[u8]) -> Result<(Header, KdfCost, Vec<u8>, Vec<u8>)> {
        let header = Header::decode(object)?;
        let mut from = Decoder::new(object, "key");
        from.take(HEADER_BYTES)?;
        let cost = KdfCost { memory_kib: from.u32()?, passes: from.u32()?, lanes: from.u32()? };
        cost.validate().map_err(|e| Error::corrupt("key").with_source(e))?;
        let bytes = from.u32()? as usize;
        let sealed = from.take(bytes.saturating_add(TAG_BYTES))?.to_vec();
        let label = from.take(from.rest_len())?.to_vec();
        Ok((header, cost, sealed, label))
    }
}

fn password_sealer(header: &Header, password: &[u8], cost: KdfCost) -> Result<Sealer> {
    let cost = cost.validate()?;
    let failed = |error: argon2::Error| Error::invalid(format!("Argon2id: {error}"));
    let params = Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(32)).map_err(failed)?;
    let mut key = [0; 32];
    // All threads touch the memory first: its allocation takes as long as one pass.
    let mut memory: Vec<Block> =
        (0..params.block_count()).into_par_iter().map(|_| Block::new()).collect();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into_with_memory(password, &header.salt, &mut key, &mut memory)
        .map_err(failed)?;
    // Keys are always encrypted, even if the rest is not.
    let sealer = Sealer::new(&key, &Header { scheme: SealScheme::Aes256Gcm, ..*header });
    key.zeroize();
    Ok(sealer)
}

/// A series' name, found by its id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesRecord {
    /// Its name.
    pub name: String,
    /// Its domain.
    pub domain: u32,
    /// Creation time, in nanoseconds since 1970.
    pub created_ns: i64,
}

impl SeriesRecord {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            to.string(&self.name);
            to.u32(self.domain);
            to.i64(self.created_ns);
        });
        to.bytes
    }

    /// Reads a series record.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        one_section(bytes, "series record", |body| {
            Ok(Self { name: body.string()?, domain: body.u32()?, created_ns: body.i64()? })
        })
    }
}

/// Which head of a storage node series rely on; its generation is in the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The session that wrote the head: 16 random bytes.
    pub writer: [u8; 16],
}

impl Mark {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| to.raw(&self.writer));
        to.bytes
    }

    /// Reads a mark.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        one_section(bytes, "mark", |body| Ok(Self { writer: body.array()? }))
    }
}

/// The process that works on a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The session: 16 random bytes.
    pub session: [u8; 16],
    /// The host's name, for messages.
    pub host: String,
    /// The boot id of the host: a process of an earlier boot is dead.
    pub boot: String,
    /// The process id.
    pub process: u32,
    /// The start time of the process, in the host's own unit, because process ids are reused.
    pub process_start: u64,
    /// The time when this lease expires unless renewed, in nanoseconds since 1970.
    pub expires_ns: i64,
}

impl Lease {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| {
            to.raw(&self.session);
            to.string(&self.host);
            to.string(&self.boot);
            to.u32(self.process);
            to.u64(self.process_start);
            to.i64(self.expires_ns);
        });
        to.bytes
    }

    /// Reads a lease.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        one_section(bytes, "lease", |body| {
            Ok(Self {
                session: body.array()?,
                host: body.string()?,
                boot: body.string()?,
                process: body.u32()?,
                process_start: body.u64()?,
                expires_ns: body.i64()?,
            })
        })
    }
}

/// The last verification of a range of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifiedRange {
    /// The first container.
    pub first: u32,
    /// The number of containers.
    pub count: u32,
    /// Their tag.
    pub tag: ObjectTag,
    /// The time, in seconds since 1970.
    pub time_s: u64,
}

/// Slots of a container that are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DamagedSlots {
    /// The container.
    pub container: u32,
    /// Its tag.
    pub tag: ObjectTag,
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
}

/// The record that `check` keeps of one series.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckRecord {
    /// The start of the unfinished pass over all data, in seconds since 1970; 0 if there is none.
    pub pass_started_s: u64,
    /// When containers were last verified.
    pub verified: Vec<VerifiedRange>,
    /// Slots known to be damaged; backups do not refer to them again.
    pub damaged: Vec<DamagedSlots>,
    /// Recipes known to be damaged; new snapshots do not share them.
    pub damaged_blocks: Vec<BlockRef>,
    /// Containers whose damaged slots no living snapshot referred to when they were checked, with
    /// their tags.
    pub unneeded: Vec<(u32, ObjectTag)>,
}

impl CheckRecord {
    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(CORE, REQUIRED, |to| to.u64(self.pass_started_s));
        to.section(VERIFIED, 0, |to| {
            to.count(self.verified.len());
            for range in &self.verified {
                to.u32(range.first);
                to.u32(range.count);
                to.u64(range.tag.bits());
                to.u64(range.time_s);
            }
        });
        to.section(DAMAGED, 0, |to| {
            to.count(self.damaged.len());
            for slots in &self.damaged {
                to.u32(slots.container);
                to.u64(slots.tag.bits());
                to.u16(slots.first);
                to.u16(slots.last);
            }
        });
        to.section(DAMAGED_BLOCKS, 0, |to| {
            to.count(self.damaged_blocks.len());
            self.damaged_blocks.iter().for_each(|block| block.encode(to));
        });
        if !self.unneeded.is_empty() {
            to.section(UNNEEDED, 0, |to| {
                to.count(self.unneeded.len());
                for (container, tag) in &self.unneeded {
                    to.u32(*container);
                    to.u64(tag.bits());
                }
            });
        }
        to.bytes
    }

    /// Reads a check record.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut record = Self::default();
        Decoder::new(bytes, "check record").sections(|tag, body| {
            match tag {
                CORE => record.pass_started_s = body.u64()?,
                VERIFIED => {
                    record.verified = body.list(24, |item| {
                        let (first, count) = (item.u32()?, item.u32()?);
                        let tag = ObjectTag::from_bits(item.u64()?);
                        Ok(VerifiedRange { first, count, tag, time_s: item.u64()? })
                    })?;
                }
                DAMAGED => {
                    record.damaged = body.list(16, |item| {
                        let (container, tag) = (item.u32()?, ObjectTag::from_bits(item.u64()?));
                        let (first, last) = (item.u16()?, item.u16()?);
                        Ok(DamagedSlots { container, tag, first, last })
                    })?;
                }
                DAMAGED_BLOCKS => {
                    record.damaged_blocks = body.list(BlockRef::BYTES, BlockRef::decode)?;
                }
                UNNEEDED => {
                    record.unneeded =
                        body.list(12, |item| Ok((item.u32()?, ObjectTag::from_bits(item.u64()?))))?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        Ok(record)
    }
}

fn one_section<T>(
    bytes: &[u8],
    layout: &'static str,
    decode: impl Fn(&mut Decoder<'_>) -> Result<T>,
) -> Result<T> {
    let mut found = None;
    Decoder::new(bytes, layout).sections(|tag, body| {
        if tag == CORE {
            found = Some(decode(body)?);
        }
        Ok(tag == CORE)
    })?;
    found.ok_or_else(|| unsupported(layout, "an object without its first section"))
}
