//! The header of a qcow2 image: its first cluster.

use silt_format::{Error, ErrorKind, Result};

use super::Compression;
use crate::number::{be_u32, be_u64, to_usize};

/// The first four bytes of every qcow2 image.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";
/// The largest cluster that QEMU allows, in bytes.
pub const CLUSTER_BYTES_MAX: u64 = 2 << 20;

const V2_BYTES: usize = 72;
const V3_BYTES: usize = 104;
const L1_BYTES_MAX: u64 = 32 << 20;
const BACKING_NAME_BYTES_MAX: usize = 1023;

const DIRTY: u64 = 1 << 0;
const CORRUPT: u64 = 1 << 1;
const EXTERNAL_DATA: u64 = 1 << 2;
const COMPRESSION_TYPE: u64 = 1 << 3;
const EXTENDED_L2: u64 = 1 << 4;
const KNOWN: u64 = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION_TYPE | EXTENDED_L2;

const EXTENSION_END: u32 = 0;
const EXTENSION_BACKING_FORMAT: u32 = 0xe279_2aca;

/// An image's backing file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The file's name as stored, not yet resolved.
    pub name: Vec<u8>,
    /// Its format as stored, if any.
    pub format: Option<Vec<u8>>,
}

/// The header fields that reading needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Binary logarithm of the cluster size in bytes: 9 to 21.
    pub cluster_bits: u32,
    /// Size of the volume in bytes.
    pub size: u64,
    /// Offset of the active L1 table in the file, in bytes.
    pub l1_offset: u64,
    /// Number of entries in the active L1 table.
    pub l1_entries: u32,
    /// Compression of compressed clusters.
    pub compression: Compression,
    /// Whether L2 entries have a bitmap of 32 subclusters.
    pub extended_l2: bool,
    /// The image's backing file, if it has one.
    pub backing: Option<Backing>,
}

impl Header {
    /// Returns how many bytes `decode` needs at most: one cluster, whose size is in `start`, the
    /// first 24 bytes of the file. Fails as `decode` does.
    pub fn bytes_needed(start: &[u8]) -> Result<u64> {
        Ok(1 << cluster_bits(start)?)
    }

    /// Decodes `bytes`, the first cluster of an image (or all of a shorter file).
    ///
    /// Fails with Corrupt if the header violates the layout or is marked as corrupt; with
    /// Unsupported for encryption, external data files, and unknown versions and features.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let cluster_bits = cluster_bits(bytes)?;
        let version = be_u32(bytes, 4);
        let fixed = if version == 2 { V2_BYTES } else { V3_BYTES };
        if bytes.len() < fixed {
            return Err(corrupt("the file ends inside its header"));
        }
        if be_u32(bytes, 32) != 0 {
            return Err(unsupported("it is encrypted; decrypt it with qemu-img convert first"));
        }
        let mut header = Self {
            version,
            cluster_bits,
            size: be_u64(bytes, 24),
            l1_offset: be_u64(bytes, 40),
            l1_entries: be_u32(bytes, 36),
            compression: Compression::Deflate,
            extended_l2: false,
            backing: None,
        };
        let cluster = bytes.len().min(1 << cluster_bits);
        let bytes = &bytes[..cluster];
        let extensions_at = if version == 2 { V2_BYTES } else { header.read_features(bytes)? };
        header.read_backing(bytes, extensions_at)?;
        header.check_l1()?;
        Ok(header)
    }

    /// Size of a cluster in bytes.
    pub fn cluster_bytes(&self) -> u64 {
        1 << self.cluster_bits
    }
    /// Size of an L2 entry in bytes.
    pub fn l2_entry_bytes(&self) -> u64 {
        if self.extended_l2 { 16 } else { 8 }
    }
    /// Binary logarithm of the number of entries in an L2 table.
    pub fn l2_bits(&self) -> u32 {
        self.cluster_bits - self.l2_entry_bytes().trailing_zeros()
    }
    /// Binary logarithm of the size of an allocation unit, a cluster or a subcluster.
    pub fn unit_bits(&self) -> u32 {
        if self.extended_l2 { self.cluster_bits - 5 } else { self.cluster_bits }
    }
    /// Number of L1 entries that the volume's size needs.
    pub fn l1_entries_needed(&self) -> u64 {
        self.size.div_ceil(1 << (self.cluster_bits + self.l2_bits()))
    }

    /// Decodes the fields that version 3 adds; returns the offset of the header's extensions.
    fn read_features(&mut self, bytes: &[u8]) -> Result<usize> {
        let incompatible = be_u64(bytes, 72);
        if incompatible & CORRUPT != 0 {
            return Err(corrupt("it is marked as corrupt; repair it with qemu-img check -r all"));
        }
        if incompatible & EXTERNAL_DATA != 0 {
            return Err(unsupported("its data is in an external file; back that file up as raw"));
        }
        if incompatible & !KNOWN != 0 {
            let unknown = incompatible & !KNOWN;
            return Err(unsupported(&format!("it uses unknown features {unknown:#x}")));
        }
        if be_u32(bytes, 96) > 6 {
            return Err(corrupt("its reference counts are wider than 64 bits"));
        }
        let length = to_usize(u64::from(be_u32(bytes, 100)));
        if length < V3_BYTES || length > bytes.len() {
            return Err(corrupt("its header length is out of bounds"));
        }
        let compression = if length > V3_BYTES { bytes[V3_BYTES] } else { 0 };
        if (compression != 0) != (incompatible & COMPRESSION_TYPE != 0) {
            return Err(corrupt("its compression type contradicts its feature bits"));
        }
        self.compression = match compression {
            0 => Compression::Deflate,
            1 => Compression::Zstd,
            _ => return Err(unsupported(&format!("compression type {compression} is unknown"))),
        };
        self.extended_l2 = incompatible & EXTENDED_L2 != 0;
        if self.extended_l2 && self.cluster_bits < 14 {
            return Err(corrupt("its clusters are too small to have subclusters"));
        }
        Ok(length)
    }

    fn read_backing(&mut self, bytes: &[u8], extensions_at: usize) -> Result<()> {
        let (offset, length) = (be_u64(bytes, 8), to_usize(u64::from(be_u32(bytes, 16))));
        if offset == 0 || length == 0 {
            return Ok(());
        }
        let name = usize::try_from(offset)
            .ok()
            .filter(|_| length <= BACKING_NAME_BYTES_MAX)
            .and_then(|offset| bytes.get(offset..offset.checked_add(length)?));
        let (Some(name), Ok(end)) = (name, usize::try_from(offset)) else {
            return Err(corrupt("the name of its backing file is out of bounds"));
        };
        if name.contains(&0) {
            return Err(corrupt("the name of its backing file contains a NUL byte"));
        }
        let format = backing_format(&bytes[..end], extensions_at)?;
        self.backing = Some(Backing { name: name.to_vec(), format });
        Ok(())
    }

    fn check_l1(&self) -> Result<()> {
        if self.size > i64::MAX as u64 {
            return Err(corrupt("the size of its volume is out of bounds"));
        }
        if u64::from(self.l1_entries) * 8 > L1_BYTES_MAX {
            return Err(corrupt("its L1 table is larger than 32 MiB"));
        }
        if u64::from(self.l1_entries) < self.l1_entries_needed() {
            return Err(corrupt("its L1 table is too short for the size of its volume"));
        }
        if self.l1_offset & (self.cluster_bytes() - 1) != 0 {
            return Err(corrupt("its L1 table does not begin at a cluster"));
        }
        Ok(())
    }
}

/// Also checks magic and version, which precede the cluster size.
fn cluster_bits(bytes: &[u8]) -> Result<u32> {
    if bytes.len() < 24 {
        return Err(corrupt("the file ends inside its header"));
    }
    if bytes[..4] != MAGIC {
        return Err(corrupt("it is not a qcow2 image"));
    }
    let version = be_u32(bytes, 4);
    if !(2..=3).contains(&version) {
        return Err(unsupported(&format!(
            "its version is {version}, not 2 or 3; convert it with qemu-img convert first"
        )));
    }
    let bits = be_u32(bytes, 20);
    if !(9..=21).contains(&bits) {
        return Err(corrupt(&format!("its cluster size of 2^{bits} bytes is out of bounds")));
    }
    Ok(bits)
}

/// Finds the backing format in the header's extensions, which begin at `at` and end with `bytes`.
fn backing_format(bytes: &[u8], mut at: usize) -> Result<Option<Vec<u8>>> {
    let mut found = None;
    while at + 8 <= bytes.len() {
        let (kind, length) = (be_u32(bytes, at), to_usize(u64::from(be_u32(bytes, at + 4))));
        if kind == EXTENSION_END {
            break;
        }
        let Some(body) = bytes[at + 8..].get(..length) else {
            return Err(corrupt("an extension of its header is out of bounds"));
        };
        if kind == EXTENSION_BACKING_FORMAT {
            found = Some(body.to_vec());
        }
        at += 8 + length.next_multiple_of(8);
    }
    Ok(found)
}

fn corrupt(why: &str) -> Error {
    Error::corrupt(format!("qcow2 image: {why}"))
}

fn unsupported(why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("qcow2 image: {why}"))
}
