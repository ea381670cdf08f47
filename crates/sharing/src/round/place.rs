//! Records of new chunks and of where they are.

use silt_format::{Fingerprint, Record};

/// Where a new chunk is: as the payload of a request.
#[derive(Clone, Copy)]
pub(super) struct NewChunk {
    pub(super) member: u16,
    pub(super) volume: u8,
    /// At most 2^48 bytes.
    pub(super) offset: u64,
    /// At most 2^24 bytes.
    pub(super) chunk_bytes: u32,
}

impl NewChunk {
    pub(super) fn encode(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        bytes[..2].copy_from_slice(&self.member.to_be_bytes());
        bytes[2] = self.volume;
        bytes[3..9].copy_from_slice(&self.offset.to_be_bytes()[2..]);
        bytes[9..].copy_from_slice(&self.chunk_bytes.to_be_bytes()[1..]);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let number = |range: std::ops::Range<usize>| {
            bytes[range].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte))
        };
        Self {
            member: u16::from_be_bytes([bytes[0], bytes[1]]),
            volume: bytes[2],
            offset: number(3..9),
            chunk_bytes: u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]),
        }
    }
}

/// Chunks of a volume in so many bytes are stored by one host, if the same hosts want them.
const REGION_BYTES: u64 = 1 << 20;

/// The part of a member's volumes in which a new chunk is.
pub(crate) fn region_of(place: &[u8; 12]) -> u32 {
    let NewChunk { volume, offset, .. } = NewChunk::decode(place);
    let number = u32::try_from(offset / REGION_BYTES).unwrap_or(u32::MAX);
    number ^ u32::from(volume) << 24
}

/// A chosen chunk as a record that sorts by its place: place, then fingerprint.
pub(crate) fn by_place(place: &[u8; 12], fingerprint: &Fingerprint) -> Record {
    let (mut key, mut payload) = ([0; 20], [0; 12]);
    key[..12].copy_from_slice(place);
    key[12..].copy_from_slice(&fingerprint.0[..8]);
    payload.copy_from_slice(&fingerprint.0[8..]);
    Record { fingerprint: Fingerprint(key), payload }
}

/// The fingerprint of such a record.
pub(super) fn fingerprint_of(record: &Record) -> Fingerprint {
    let mut print = [0; 20];
    print[..8].copy_from_slice(&record.fingerprint.0[12..]);
    print[8..].copy_from_slice(&record.payload);
    Fingerprint(print)
}
