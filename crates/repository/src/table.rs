//! A table of the places of a few thousand chunks by fingerprint, with open addressing.

use silt_format::number::{to_u32, to_usize};
use silt_format::{Fingerprint, Reference};

/// A chunk's fingerprint, its length in bytes, and where it is: 32 bytes.
pub type Entry = (Fingerprint, u32, Reference);

/// The places of chunks, looked up by the fingerprint's own bits, which are random.
pub struct Table {
    entries: Vec<Entry>,
    /// Open addressing: the entry's number plus one, 0 where empty.
    places: Vec<u32>,
}

impl Table {
    /// A table of these.
    pub fn new(entries: Vec<Entry>) -> Self {
        let mut table = Self { places: vec![0; (entries.len() * 2).next_power_of_two()], entries };
        for number in 0..table.entries.len() {
            let place = table.place(&table.entries[number].0);
            table.places[place] = to_u32(number + 1);
        }
        table
    }

    /// Where a fingerprint is, or where it belongs.
    fn place(&self, fingerprint: &Fingerprint) -> usize {
        let mask = self.places.len() - 1;
        let mut bits = [0; 8];
        bits.copy_from_slice(&fingerprint.0[8..16]);
        let mut place = to_usize(u64::from_le_bytes(bits)) & mask;
        // The table is at most half full, so an empty place comes soon.
        while let Some(number) = self.places[place].checked_sub(1) {
            if self.entries[number as usize].0 == *fingerprint {
                break;
            }
            place = (place + 1) & mask;
        }
        place
    }

    /// Returns where the chunk is, if the table has it with this length: the length of a chunk that
    /// a peer describes is its claim.
    pub fn get(&self, fingerprint: &Fingerprint, bytes: usize) -> Option<Reference> {
        let number = self.places[self.place(fingerprint)].checked_sub(1)?;
        let (_, length, reference) = self.entries[number as usize];
        (length as usize == bytes).then_some(reference)
    }

    /// Bytes that it takes.
    pub fn weight(&self) -> usize {
        64 + self.entries.len() * size_of::<Entry>() + self.places.len() * 4
    }
}

const _: () = assert!(size_of::<Entry>() == 32);
