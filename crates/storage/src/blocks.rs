//! Several ranges of an object that one request reads.

use std::ops::Range;

use silt_format::number::{to_u64, to_usize};
use silt_format::{Error, Result};

use crate::{ByteRange, Key};

/// A range of an object, and its bytes once they are read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Where it is in the object, in bytes.
    pub range: Range<u64>,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Blocks of one object that are filled by what arrives of it, from the beginning of the first to
/// the end of the last one. What lies between them is dropped.
#[derive(Clone)]
pub struct Filling {
    blocks: Vec<Block>,
    /// The first block that is not full.
    next: usize,
    /// Where what arrives next is in the object.
    at: u64,
}

impl Filling {
    /// Takes blocks in ascending order and empties them. Fails with `Invalid` if they overlap.
    pub fn new(key: &Key, mut blocks: Vec<Block>) -> Result<Self> {
        let mut end = 0;
        for Block { range, bytes } in &mut blocks {
            if range.start < end || range.end < range.start {
                let (start, stop) = (range.start, range.end);
                let message = format!("blocks of object {key} overlap at bytes {start}..{stop}");
                return Err(Error::invalid(message));
            }
            end = range.end;
            bytes.clear();
            bytes.reserve(to_usize(range.end - range.start));
        }
        let at = blocks.first().map_or(0, |block| block.range.start);
        Ok(Self { blocks, next: 0, at })
    }

    /// What is to be read.
    pub fn range(&self) -> ByteRange {
        let start = self.blocks.first().map_or(0, |block| block.range.start);
        let end = self.blocks.last().map_or(start, |block| block.range.end);
        ByteRange::Bounded { offset: start, length: end - start }
    }

    /// The blocks, if they are to be filled otherwise.
    pub fn unread(self) -> Vec<Block> {
        self.blocks
    }

    /// Adds the bytes that follow the last ones.
    pub fn add(&mut self, mut piece: &[u8]) {
        while let Some(block) = self.blocks.get_mut(self.next).filter(|_| !piece.is_empty()) {
            let until =
                if self.at < block.range.start { block.range.start } else { block.range.end };
            let length = to_usize(until - self.at).min(piece.len());
            let (here, behind) = piece.split_at(length);
            if self.at >= block.range.start {
                block.bytes.extend_from_slice(here);
            }
            self.at += to_u64(length);
            self.next += usize::from(self.at == block.range.end);
            piece = behind;
        }
    }

    /// The blocks, all of which are full. Fails with `Corrupt` if too little has arrived.
    pub fn full(self, key: &Key) -> Result<Vec<Block>> {
        let is_full =
            |Block { range, bytes }: &Block| to_u64(bytes.len()) == range.end - range.start;
        if self.blocks.iter().all(is_full) {
            return Ok(self.blocks);
        }
        Err(Error::corrupt(format!("object {key} is shorter than it was")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryStorage, OperationKind, PutMode, RecordingStorage, Storage};

    fn key() -> Key {
        Key::new("containers/a").unwrap()
    }

    fn blocks(ranges: &[Range<u64>]) -> Vec<Block> {
        let block = |range: &Range<u64>| Block { range: range.clone(), bytes: vec![7; 3] };
        ranges.iter().map(block).collect()
    }

    fn object() -> Vec<u8> {
        (0..=255).collect()
    }

    #[test]
    fn blocks_are_filled_whatever_the_pieces() {
        let ranges = [5..9, 9..10, 10..10, 17..40, 41..42];
        for piece_bytes in [1, 2, 3, 7, 64] {
            let mut filling = Filling::new(&key(), blocks(&ranges)).unwrap();
            assert_eq!(filling.range(), ByteRange::Bounded { offset: 5, length: 37 });
            object()[5..42].chunks(piece_bytes).for_each(|piece| filling.add(piece));
            for block in filling.full(&key()).unwrap() {
                let range = to_usize(block.range.start)..to_usize(block.range.end);
                assert_eq!(block.bytes, object()[range]);
            }
        }
    }

    #[test]
    fn what_is_too_short_or_overlaps_is_refused() {
        let mut filling = Filling::new(&key(), blocks(&[5..9, 12..20])).unwrap();
        filling.add(&object()[5..19]);
        assert!(filling.full(&key()).is_err());
        assert!(Filling::new(&key(), blocks(&[5..9, 8..20])).is_err());
        assert!(Filling::new(&key(), blocks(&[12..20, 5..9])).is_err());
    }

    #[test]
    fn a_storage_reads_blocks_by_one_request() {
        let storage = RecordingStorage::new(MemoryStorage::new());
        storage.put(&key(), &[&object()], PutMode::Create).unwrap();
        let read = storage.get_blocks(&key(), blocks(&[2..3, 200..256])).unwrap();
        assert_eq!(read[0].bytes, object()[2..3]);
        assert_eq!(read[1].bytes, object()[200..]);
        assert_eq!(storage.totals(OperationKind::Get).operations, 1);
        assert!(storage.get_blocks(&key(), blocks(&[2..3, 200..257])).is_err());
        assert!(storage.get_blocks(&key(), Vec::new()).unwrap().is_empty());
    }
}
