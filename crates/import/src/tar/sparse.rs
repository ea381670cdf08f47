//! Sparse files: GNU tar's old format, and versions 0.0, 0.1 and 1.0 of its pax format.

use std::ops::Range;

use super::header::{Header, decimal, number};

/// Maximum number of ranges with data of one file.
pub(crate) const RANGES_MAX: usize = 1 << 20;
pub(crate) const TOO_MANY: &str = "it has more than 1,048,576 ranges between holes";
const MALFORMED: &str = "its map of holes is malformed";

/// What an extended header says of a sparse file.
#[derive(Clone, Debug, Default)]
pub(crate) struct SparseRecords {
    major: Option<u64>,
    minor: Option<u64>,
    pub(crate) name: Option<Vec<u8>>,
    pub(crate) size: Option<u64>,
    /// Start and length of ranges with data, in versions 0.0 and 0.1.
    map: Vec<(u64, u64)>,
    /// The start of a range whose length comes next.
    offset: Option<u64>,
    has_map: bool,
}

impl SparseRecords {
    pub(crate) fn record(&mut self, key: &[u8], value: &[u8]) -> Result<(), &'static str> {
        let number = || decimal(value).ok_or(MALFORMED);
        match &key[b"GNU.sparse.".len()..] {
            b"major" => self.major = Some(number()?),
            b"minor" => self.minor = Some(number()?),
            b"name" => self.name = Some(value.to_vec()),
            b"size" | b"realsize" => self.size = Some(number()?),
            b"numblocks" => self.has_map = true,
            b"offset" => self.offset = Some(number()?),
            b"numbytes" => {
                let offset = self.offset.take().ok_or(MALFORMED)?;
                self.push(offset, number()?)?;
            }
            b"map" => {
                self.has_map = true;
                self.map.clear();
                let mut numbers = value.split(|byte| *byte == b',').filter(|it| !it.is_empty());
                while let Some(offset) = numbers.next() {
                    let length = numbers.next().and_then(decimal).ok_or(MALFORMED)?;
                    self.push(decimal(offset).ok_or(MALFORMED)?, length)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn push(&mut self, offset: u64, length: u64) -> Result<(), &'static str> {
        if self.map.len() == RANGES_MAX {
            return Err(TOO_MANY);
        }
        self.map.push((offset, length));
        Ok(())
    }

    /// Whether the map is before the data.
    pub(crate) fn is_in_data(&self) -> bool {
        self.major == Some(1) && self.minor == Some(0)
    }

    /// Whether the file is sparse in a version that is not known.
    pub(crate) fn is_unknown(&self) -> bool {
        self.major.is_some_and(|major| major > 0) && !self.is_in_data()
    }

    /// The map of versions 0.0 and 0.1.
    pub(crate) fn take_map(&mut self) -> Option<Vec<(u64, u64)>> {
        self.has_map.then(|| std::mem::take(&mut self.map))
    }
}

/// Reads the map of version 1.0, which is decimal numbers in lines, from blocks of the data.
#[derive(Default)]
pub(crate) struct MapReader {
    digits: Vec<u8>,
    /// How many ranges there are; known once the first line was read.
    count: Option<usize>,
    offset: Option<u64>,
    map: Vec<(u64, u64)>,
}

impl MapReader {
    /// Takes the next block; returns whether it was the last one of the map.
    pub(crate) fn take(&mut self, block: &[u8]) -> Result<bool, &'static str> {
        for byte in block {
            if *byte != b'\n' {
                if self.digits.len() == 20 {
                    return Err(MALFORMED);
                }
                self.digits.push(*byte);
                continue;
            }
            let number = decimal(&self.digits).ok_or(MALFORMED)?;
            self.digits.clear();
            match (self.count, self.offset.take()) {
                (None, _) => {
                    let count = usize::try_from(number).ok().filter(|count| *count <= RANGES_MAX);
                    self.count = Some(count.ok_or(TOO_MANY)?);
                }
                (Some(_), None) => self.offset = Some(number),
                (Some(_), Some(offset)) => self.map.push((offset, number)),
            }
            if self.count == Some(self.map.len()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn into_map(self) -> Vec<(u64, u64)> {
        self.map
    }
}

/// Adds the ranges of a header of GNU tar's old format: `count` of them from `at` on. A range
/// without length and start ends them.
pub(crate) fn old_ranges(
    header: &Header,
    (at, count): (usize, usize),
    map: &mut Vec<(u64, u64)>,
) -> Result<(), &'static str> {
    for at in (at..).step_by(24).take(count) {
        let field = &header.0[at..at + 24];
        if field[0] == 0 {
            return Ok(());
        }
        let numbers = (number(&field[..12]), number(&field[12..]));
        let (Some(offset), Some(length)) = numbers else { return Err(MALFORMED) };
        let (Ok(offset), Ok(length)) = (u64::try_from(offset), u64::try_from(length)) else {
            return Err(MALFORMED);
        };
        if map.len() == RANGES_MAX {
            return Err(TOO_MANY);
        }
        map.push((offset, length));
    }
    Ok(())
}

/// The ranges of a file of `size` bytes that are not holes, of which `stored` bytes follow. They
/// must ascend, and be as many bytes as follow.
pub(crate) fn ranges(
    map: &[(u64, u64)],
    size: u64,
    stored: u64,
) -> Result<Vec<Range<u64>>, &'static str> {
    let (mut ranges, mut sum): (Vec<Range<u64>>, u64) = (Vec::new(), 0);
    let mut behind = 0;
    for (offset, length) in map {
        let end = offset.checked_add(*length).filter(|end| *end <= size && *offset >= behind);
        let end = end.ok_or(MALFORMED)?;
        behind = end;
        if *length == 0 {
            continue;
        }
        sum += length;
        match ranges.last_mut() {
            Some(last) if last.end == *offset => last.end = end,
            _ => ranges.push(*offset..end),
        }
    }
    if sum != stored {
        return Err("its map of holes does not fit its data");
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_ascend_and_fit() {
        assert_eq!(ranges(&[(0, 5), (5, 5), (20, 1), (30, 0)], 30, 11), Ok(vec![0..10, 20..21]));
        assert!(ranges(&[(5, 5), (0, 5)], 30, 10).is_err(), "they don't ascend");
        assert!(ranges(&[(0, 5)], 4, 5).is_err(), "behind the end");
        assert!(ranges(&[(u64::MAX, 5)], u64::MAX, 5).is_err());
        assert!(ranges(&[(0, 5)], 30, 6).is_err(), "more data than ranges");
    }

    #[test]
    fn maps_in_the_data_are_read_block_by_block() {
        let mut reader = MapReader::default();
        assert_eq!(reader.take(b"2\n0\n51"), Ok(false));
        assert_eq!(reader.take(b"2\n1024\n512\n\0\0\0"), Ok(true));
        assert_eq!(reader.into_map(), [(0, 512), (1024, 512)]);
        assert_eq!(MapReader::default().take(b"1000000000\n"), Err(TOO_MANY));
        assert!(MapReader::default().take(b"9999999999999999999999999").is_err());
        assert!(MapReader::default().take(b"1\n-1\n").is_err());
        assert_eq!(MapReader::default().take(b"0\n\0\0"), Ok(true));
    }
}
