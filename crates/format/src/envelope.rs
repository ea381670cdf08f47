//! The header at the start of every object, and the footer at the end of objects with many blocks.

use crate::codec::{Decoder, Encoder, unsupported};
use crate::ids::{ObjectTag, hex_display, is_hex, write_hex};
use crate::{Error, Result};

/// Size of the header at the start of every object, in bytes.
pub const HEADER_BYTES: usize = 96;
/// Size of the footer at the end of objects with a directory, in bytes.
pub const FOOTER_BYTES: usize = 32;
/// The format version that this library writes and reads.
pub const FORMAT_VERSION: u16 = 1;
const MAGIC: &[u8; 8] = b"SILTSTON";
const FOOTER_MAGIC: &[u8; 8] = b"SILTFOOT";

/// Names a repository: 16 random bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RepositoryId(pub [u8; 16]);

/// Names a series: the first 12 bytes of a keyed hash of its domain and name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeriesId(pub [u8; 12]);

impl SeriesId {
    /// The id in objects that belong to no series.
    pub const NONE: Self = Self([0; 12]);

    /// Parses an id of 24 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut id = [0; 12];
        if !is_hex(text, 24) {
            return None;
        }
        for (byte, pair) in id.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(id))
    }
}

hex_display!(RepositoryId, SeriesId);

/// The kind of an object. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ObjectKind {
    /// The repository's settings.
    Config = 1,
    /// The master key, wrapped by a password.
    Key = 2,
    /// A series' name.
    Series = 3,
    /// The state of a series.
    Head = 4,
    /// One committed point in time.
    Snapshot = 5,
    /// A pack of recipes and map pages.
    Recipes = 6,
    /// Chunks.
    Container = 7,
    /// A snapshot's summary vector.
    Summary = 8,
    /// The record of what `check` verified in a series, and when.
    Check = 9,
    /// The process that works on a series.
    Lease = 10,
    /// A part of a dead list.
    DeadList = 11,
    /// The private key of an append-only repository, wrapped by a password.
    Authority = 12,
    /// A partition of a run: records in the order of their fingerprints.
    Run = 13,
    /// Where the repository's objects are kept.
    Places = 14,
    /// The keys of a write-only host, wrapped by a password.
    WriteKey = 15,
    /// A list of writers.
    Writers = 16,
    /// A message between hosts, which is never stored.
    Message = 17,
    /// How new the head of a storage node must be.
    Mark = 18,
}

impl ObjectKind {
    /// Every kind.
    pub const ALL: [Self; 18] = [
        Self::Config,
        Self::Key,
        Self::Series,
        Self::Head,
        Self::Snapshot,
        Self::Recipes,
        Self::Container,
        Self::Summary,
        Self::Check,
        Self::Lease,
        Self::DeadList,
        Self::Authority,
        Self::Run,
        Self::Places,
        Self::WriteKey,
        Self::Writers,
        Self::Message,
        Self::Mark,
    ];
    fn decode(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == byte)
    }
}

/// How an object's blocks are protected. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SealScheme {
    /// Not encrypted; a keyed BLAKE3 tag of 16 bytes finds damage.
    Checksum = 0,
    /// AES-256-GCM under a key of the object's own.
    Aes256Gcm = 1,
    /// AES-256-GCM under a key that only the holder of a private key can derive (HPKE, RFC 9180):
    /// containers of write-only hosts.
    SealedToKey = 2,
}

/// The first 96 bytes of an object. They are readable without a key, and bound to every sealed
/// block because the object's key is derived from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the object is.
    pub kind: ObjectKind,
    /// How its blocks are protected.
    pub scheme: SealScheme,
    /// The repository it belongs to.
    pub repository: RepositoryId,
    /// The series it belongs to, or [`SeriesId::NONE`].
    pub series: SeriesId,
    /// Its part, as in its name, of a summary vector, dead list or run; otherwise 0.
    pub part: u32,
    /// Its number or id, as in its name.
    pub number: u64,
    /// The tag at the end of the name of containers and recipe packs; otherwise
    /// [`ObjectTag::NONE`].
    pub tag: ObjectTag,
    /// Random bytes, so that no two objects share a key.
    pub salt: [u8; 24],
    /// Fields that this version does not use but preserves, because seals are bound to them.
    pub rest: HeaderRest,
}

/// The parts of a header that version 1 leaves zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderRest {
    /// Flags that a reader may ignore.
    pub flags: u16,
    /// Reserved for later versions.
    pub reserved: [u8; 8],
}

impl Header {
    /// The stored form.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut to = Encoder { bytes: Vec::with_capacity(HEADER_BYTES) };
        to.raw(MAGIC);
        to.u16(FORMAT_VERSION);
        to.u8(self.kind as u8);
        to.u8(self.scheme as u8);
        to.u16(self.rest.flags);
        to.u16(0);
        to.raw(&self.repository.0);
        to.raw(&self.series.0);
        to.u32(self.part);
        to.u64(self.number);
        to.u64(self.tag.bits());
        to.raw(&self.salt);
        to.raw(&self.rest.reserved);
        let mut bytes = [0; HEADER_BYTES];
        bytes[..to.bytes.len()].copy_from_slice(&to.bytes);
        bytes
    }

    /// Decodes the header of an object; `bytes` may continue after it.
    ///
    /// Fails with `Corrupt` if it is not a header, with `Unsupported` if a newer program wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "object header");
        if &from.array::<8>()? != MAGIC {
            return Err(from.corrupt("this is not a Siltstone object"));
        }
        let version = from.u16()?;
        if version != FORMAT_VERSION {
            return Err(unsupported("object header", &format!("format version {version}")));
        }
        let (kind, scheme) = (from.u8()?, from.u8()?);
        let kind = ObjectKind::decode(kind)
            .ok_or_else(|| unsupported("object header", &format!("object kind {kind}")))?;
        let scheme = match scheme {
            0 => SealScheme::Checksum,
            1 => SealScheme::Aes256Gcm,
            2 => SealScheme::SealedToKey,
            other => return Err(unsupported("object header", &format!("seal scheme {other}"))),
        };
        // Flags in the first half may be ignored; those in the second half change how the object is
        // read.
        let (flags, required) = (from.u16()?, from.u16()?);
        if required != 0 {
            return Err(unsupported("object header", &format!("required flags {required:#06x}")));
        }
        Ok(Self {
            kind,
            scheme,
            repository: RepositoryId(from.array()?),
            series: SeriesId(from.array()?),
            part: from.u32()?,
            number: from.u64()?,
            tag: ObjectTag::from_bits(from.u64()?),
            salt: from.array()?,
            rest: HeaderRest { flags, reserved: from.array()? },
        })
    }
}

/// The location of an object's directory: the last 32 bytes of containers, recipe packs, summaries
/// and runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Offset of the sealed directory in bytes.
    pub directory_offset: u64,
    /// Size of the sealed directory in bytes.
    pub directory_bytes: u32,
    /// Whether a copy of the header lies between the directory and the footer, so that the end of
    /// the object is enough to open it. Objects that older programs wrote have none.
    pub has_header: bool,
}

impl Footer {
    /// The stored form.
    pub fn encode(&self) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(FOOTER_MAGIC);
        bytes[8..16].copy_from_slice(&self.directory_offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.directory_bytes.to_le_bytes());
        bytes[20] = self.has_header.into();
        bytes
    }

    /// Reads the last bytes of an object.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut from = Decoder::new(bytes, "object footer");
        if &from.array::<8>()? != FOOTER_MAGIC {
            return Err(from.corrupt("the object ends early or its footer is damaged"));
        }
        let (directory_offset, directory_bytes) = (from.u64()?, from.u32()?);
        let has_header = from.u8()?;
        if has_header > 1 || from.array::<11>()? != [0; 11] {
            return Err(unsupported("object footer", "its last bytes"));
        }
        let footer = Self { directory_offset, directory_bytes, has_header: has_header == 1 };
        if footer.directory_offset < HEADER_BYTES as u64 {
            return Err(Error::corrupt("object footer: its directory would lie in the header"));
        }
        Ok(footer)
    }

    /// Bytes behind the directory: the footer, and the copy of the header.
    pub fn end_bytes(&self) -> usize {
        FOOTER_BYTES + if self.has_header { HEADER_BYTES } else { 0 }
    }
}

impl std::fmt::Display for ObjectKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Config => "configuration",
            Self::Key => "key",
            Self::Series => "series record",
            Self::Head => "head",
            Self::Snapshot => "snapshot",
            Self::Recipes => "recipe pack",
            Self::Container => "container",
            Self::Summary => "summary vector",
            Self::Check => "check record",
            Self::Lease => "lease",
            Self::DeadList => "dead list",
            Self::Authority => "authority",
            Self::Run => "run",
            Self::Places => "list of places",
            Self::WriteKey => "write-only key",
            Self::Writers => "list of writers",
            Self::Message => "message",
            Self::Mark => "mark",
        })
    }
}

/// Writes an id as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(f, &self.0.to_be_bytes())
    }
}

impl std::fmt::Debug for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write_hex(f, &self.0.to_be_bytes())
    }
}

impl Id {
    /// Parses an id of 16 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        is_hex(text, 16).then(|| u64::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}
