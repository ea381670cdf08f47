//! Runs: records of a fixed size, ordered by fingerprint, in partitions.
//!
//! A record maps a fingerprint to a payload, whose meaning depends on the run's use. Fingerprints
//! are keyed hashes, so equal ranges hold about the same number of them.

use crate::codec::{Decoder, Encoder, REQUIRED};
use crate::envelope::Id;
use crate::summary::SummaryGeometry;
use crate::{ContentHash, Error, Fingerprint, Result};

/// Size of a record in bytes.
pub const RECORD_BYTES: usize = FINGERPRINT_BYTES + PAYLOAD_BYTES;
/// Maximum number of records in a block of a run.
pub const RUN_BLOCK_RECORDS_MAX: usize = 2048;
/// A run has at most 2 to the power of this partitions.
pub const PARTITION_BITS_MAX: u8 = 16;
const FINGERPRINT_BYTES: usize = 20;
const PAYLOAD_BYTES: usize = 12;
/// Maximum expected number of records in a partition: about 3 MiB.
const PARTITION_RECORDS: u64 = 100_000;

const BLOCKS: u16 = 5;
const FILTER: u16 = 6;
const BEFORE: u16 = 7;

/// A fingerprint and its payload. Records are ordered by fingerprint, then payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record {
    /// The fingerprint.
    pub fingerprint: Fingerprint,
    /// The payload; the run's use defines its layout.
    pub payload: [u8; PAYLOAD_BYTES],
}

impl Record {
    /// The first eight bytes of the fingerprint, big-endian, so that they sort like fingerprints.
    pub fn prefix(&self) -> u64 {
        prefix(&self.fingerprint)
    }

    /// The stored form.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..FINGERPRINT_BYTES].copy_from_slice(&self.fingerprint.0);
        bytes[FINGERPRINT_BYTES..].copy_from_slice(&self.payload);
        bytes
    }
}

fn prefix(fingerprint: &Fingerprint) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&fingerprint.0[..8]);
    u64::from_be_bytes(bytes)
}

/// A run that a head names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunRef {
    /// The run's id.
    pub id: Id,
    /// The use of its records, a number of [`RunUse`].
    pub use_: RunUse,
    /// It has 2 to the power of this partitions.
    pub partition_bits: u8,
    /// Number of records.
    pub records: u64,
    /// The content hash of its last partition's directory, which holds those of all others.
    pub hash: ContentHash,
}

/// The use of a run. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RunUse {
    /// The location of a chunk of the shared store: its reference (8 bytes), then its length in
    /// bytes (4).
    Shared = 1,
    /// A series that has the chunk: the first 12 bytes of its id.
    Owners = 2,
}

impl RunRef {
    /// Number of fingerprint bits that select the partition in a run of `records` records.
    pub fn partition_bits_for(records: u64) -> u8 {
        let partitions = records.div_ceil(PARTITION_RECORDS).max(1).next_power_of_two();
        u8::try_from(partitions.trailing_zeros()).unwrap_or(u8::MAX).min(PARTITION_BITS_MAX)
    }

    /// Number of partitions, each an object of its own.
    pub fn partitions(&self) -> u32 {
        1 << self.partition_bits
    }

    /// The partition that holds a fingerprint.
    pub fn partition_of(&self, fingerprint: &Fingerprint) -> u32 {
        partition_of(self.partition_bits, fingerprint)
    }

    /// The partition that holds fingerprints that begin with these four bytes.
    pub fn partition_of_key(&self, key: u32) -> u32 {
        key.checked_shr(32 - u32::from(self.partition_bits)).unwrap_or(0)
    }

    pub(crate) fn encode(self, to: &mut Encoder) {
        to.u64(self.id.0);
        to.u8(self.use_ as u8);
        to.u8(self.partition_bits);
        to.u64(self.records);
        to.raw(&self.hash.0);
    }

    pub(crate) fn decode(from: &mut Decoder<'_>) -> Result<Self> {
        let id = Id(from.u64()?);
        let use_ = match from.u8()? {
            1 => RunUse::Shared,
            2 => RunUse::Owners,
            other => return Err(from.corrupt(format!("a run has the unknown use {other}"))),
        };
        let (partition_bits, records) = (from.u8()?, from.u64()?);
        let run = Self { id, use_, partition_bits, records, hash: ContentHash(from.array()?) };
        if run.partition_bits > PARTITION_BITS_MAX {
            return Err(from.corrupt(format!("a run has 2^{} partitions", run.partition_bits)));
        }
        Ok(run)
    }
}

/// The partition of a fingerprint, selected by this many bits.
pub fn partition_of(bits: u8, fingerprint: &Fingerprint) -> u32 {
    let bytes = &fingerprint.0;
    let top = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    top.checked_shr(32 - u32::from(bits)).unwrap_or(0)
}

/// One block of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunBlock {
    /// Its offset in the object, in bytes; also its position for sealing.
    pub offset: u32,
    /// Size of the sealed block in bytes.
    pub sealed_bytes: u32,
    /// The fingerprint of its first record.
    pub first: Fingerprint,
    /// Its content hash.
    pub hash: ContentHash,
}

/// The filter of a partition: a Bloom filter of its fingerprints' bytes 8 to 15.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunFilter {
    /// Its size; it has one partition.
    pub geometry: SummaryGeometry,
    /// Its offset in the object, in bytes; also its position for sealing.
    pub offset: u32,
    /// Size of the sealed block in bytes.
    pub sealed_bytes: u32,
    /// Its content hash.
    pub hash: ContentHash,
}

impl RunFilter {
    /// The hash that selects the bits of a fingerprint.
    pub fn draw(fingerprint: &Fingerprint) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&fingerprint.0[8..16]);
        u64::from_le_bytes(bytes)
    }
}

/// The directory of a partition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunDirectory {
    /// The blocks in the order of their fingerprints.
    pub blocks: Vec<RunBlock>,
    /// The filter, if there is one.
    pub filter: Option<RunFilter>,
    /// In the last partition of a run: the content hashes of the earlier partitions' directories.
    pub before: Vec<ContentHash>,
}

impl RunDirectory {
    /// The blocks that may hold a fingerprint, by index; empty if it is below all.
    pub fn blocks_of(&self, fingerprint: &Fingerprint) -> std::ops::Range<usize> {
        let end = self.blocks.partition_point(|block| block.first <= *fingerprint);
        let start = self.blocks.partition_point(|block| block.first < *fingerprint);
        start.saturating_sub(1)..end
    }

    /// The end of the last block or of the filter, in bytes.
    pub fn end(&self) -> Option<u64> {
        let blocks = self.blocks.last().map(|block| (block.offset, block.sealed_bytes));
        let filter = self.filter.map(|filter| (filter.offset, filter.sealed_bytes));
        filter.or(blocks).map(|(offset, bytes)| u64::from(offset) + u64::from(bytes))
    }

    /// The stored form.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Encoder::default();
        to.section(BLOCKS, REQUIRED, |to| {
            to.count(self.blocks.len());
            for block in &self.blocks {
                to.u32(block.offset);
                to.u32(block.sealed_bytes);
                to.raw(&block.first.0);
                to.raw(&block.hash.0);
            }
        });
        if let Some(filter) = &self.filter {
            to.section(FILTER, 0, |to| {
                filter.geometry.encode(to);
                to.u32(filter.offset);
                to.u32(filter.sealed_bytes);
                to.raw(&filter.hash.0);
            });
        }
        if !self.before.is_empty() {
            to.section(BEFORE, REQUIRED, |to| {
                to.count(self.before.len());
                self.before.iter().for_each(|hash| to.raw(&hash.0));
            });
        }
        to.bytes
    }

    /// Reads a directory.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut directory = Self::default();
        Decoder::new(bytes, "run directory").sections(|tag, body| {
            match tag {
                BLOCKS => {
                    directory.blocks = body.list(44, |item| {
                        let (offset, sealed_bytes) = (item.u32()?, item.u32()?);
                        let first = Fingerprint(item.array()?);
                        let hash = ContentHash(item.array()?);
                        Ok(RunBlock { offset, sealed_bytes, first, hash })
                    })?;
                }
                FILTER => {
                    let geometry = SummaryGeometry::decode(body)?;
                    let (offset, sealed_bytes) = (body.u32()?, body.u32()?);
                    let hash = ContentHash(body.array()?);
                    directory.filter = Some(RunFilter { geometry, offset, sealed_bytes, hash });
                }
                BEFORE => {
                    directory.before = body.list(16, |item| Ok(ContentHash(item.array()?)))?;
                }
                _ => return Ok(false),
            }
            Ok(true)
        })?;
        let in_order = |pair: &[RunBlock]| {
            pair[0].first <= pair[1].first
                && u64::from(pair[0].offset) + u64::from(pair[0].sealed_bytes)
                    == u64::from(pair[1].offset)
        };
        if !directory.blocks.windows(2).all(in_order) {
            return Err(Error::corrupt("run directory: its blocks are out of order"));
        }
        if directory.filter.is_some_and(|filter| filter.geometry.partitions != 1) {
            return Err(Error::corrupt("run directory: its filter has several partitions"));
        }
        Ok(directory)
    }
}

/// The stored form of a block of a run: all fingerprints, then all payloads.
pub fn encode_records(records: &[Record], into: &mut Vec<u8>) {
    into.clear();
    into.reserve(records.len() * RECORD_BYTES);
    records.iter().for_each(|record| into.extend_from_slice(&record.fingerprint.0));
    records.iter().for_each(|record| into.extend_from_slice(&record.payload));
}

/// Appends the records of a block, which must be in order, to `into`.
pub fn decode_records(bytes: &[u8], into: &mut Vec<Record>) -> Result<()> {
    let count = bytes.len() / RECORD_BYTES;
    if !bytes.len().is_multiple_of(RECORD_BYTES) || count > RUN_BLOCK_RECORDS_MAX {
        return Err(Error::corrupt(format!("run: a block of {} bytes", bytes.len())));
    }
    let (fingerprints, payloads) = bytes.split_at(count * FINGERPRINT_BYTES);
    let start = into.len();
    let pairs = fingerprints
        .as_chunks::<FINGERPRINT_BYTES>()
        .0
        .iter()
        .zip(payloads.as_chunks::<PAYLOAD_BYTES>().0);
    into.extend(pairs.map(|(fingerprint, payload)| Record {
        fingerprint: Fingerprint(*fingerprint),
        payload: *payload,
    }));
    // Comparing the prefixes is nearly always enough.
    let in_order = |pair: &[Record]| pair[0].prefix() < pair[1].prefix() || pair[0] <= pair[1];
    if !into[start..].windows(2).all(in_order) {
        return Err(Error::corrupt("run: a block's records are out of order"));
    }
    Ok(())
}

/// Size of the filter for this many records, in bytes.
pub fn filter_geometry(records: usize) -> Option<SummaryGeometry> {
    let geometry = SummaryGeometry::for_references(records as u64);
    (geometry.partitions == 1 && records > 0).then_some(geometry)
}

const _: () = assert!(RUN_BLOCK_RECORDS_MAX * RECORD_BYTES <= 1 << 16);
