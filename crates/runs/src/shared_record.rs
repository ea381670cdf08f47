//! The payloads of records in runs.

use silt_format::{Fingerprint, Record, Reference};

/// A record of a run of use `Shared`: where in the shared store a chunk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRecord {
    /// The chunk's slot.
    pub reference: Reference,
    /// How long the chunk is.
    pub chunk_bytes: u32,
}

impl SharedRecord {
    /// The record of a chunk of this fingerprint.
    pub fn encode(self, fingerprint: Fingerprint) -> Record {
        let mut payload = [0; 12];
        payload[..8].copy_from_slice(&self.reference.bits().to_le_bytes());
        payload[8..].copy_from_slice(&self.chunk_bytes.to_le_bytes());
        Record { fingerprint, payload }
    }

    /// Decodes a record.
    pub fn decode(record: &Record) -> Self {
        let (mut bits, mut bytes) = ([0; 8], [0; 4]);
        bits.copy_from_slice(&record.payload[..8]);
        bytes.copy_from_slice(&record.payload[8..]);
        let reference = Reference::from_bits(u64::from_le_bytes(bits));
        Self { reference, chunk_bytes: u32::from_le_bytes(bytes) }
    }
}

/// The series that has a chunk, while the chunks of all series are sorted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The series' number in this sorting.
    pub series: u32,
    /// The slot that holds the chunk, or leads to it.
    pub container: u32,
    /// The chunk's slot.
    pub slot: u16,
    /// Whether the slot is the shared store's: then the series refers to it there.
    pub is_shared: bool,
}

impl Owner {
    /// The record of a chunk of this fingerprint.
    pub fn encode(self, fingerprint: Fingerprint) -> Record {
        let mut payload = [0; 12];
        payload[..4].copy_from_slice(&self.series.to_be_bytes());
        payload[4] = u8::from(self.is_shared);
        payload[5..9].copy_from_slice(&self.container.to_be_bytes());
        payload[9..11].copy_from_slice(&self.slot.to_be_bytes());
        Record { fingerprint, payload }
    }

    /// Decodes a record.
    pub fn decode(record: &Record) -> Self {
        let p = &record.payload;
        Self {
            series: u32::from_be_bytes([p[0], p[1], p[2], p[3]]),
            is_shared: p[4] != 0,
            container: u32::from_be_bytes([p[5], p[6], p[7], p[8]]),
            slot: u16::from_be_bytes([p[9], p[10]]),
        }
    }
}

/// Returns a record whose key is the place of a chunk, so that containers are read one after the
/// other: the key is the first eleven bytes of the owner's payload. `payload` becomes the record's
/// payload.
pub fn by_place(owner: Owner, payload: [u8; 12]) -> Record {
    let mut key = [0; 20];
    key[..12].copy_from_slice(&owner.encode(Fingerprint([0; 20])).payload);
    Record { fingerprint: Fingerprint(key), payload }
}

/// The place that [`by_place`] made the key.
pub fn place_of(record: &Record) -> Owner {
    let mut payload = [0; 12];
    payload.copy_from_slice(&record.fingerprint.0[..12]);
    Owner::decode(&Record { fingerprint: Fingerprint([0; 20]), payload })
}
