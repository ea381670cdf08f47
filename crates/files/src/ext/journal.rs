//! Replaying the journal of a file system that was not unmounted, in memory.
//!
//! Follows `jbd2/recovery.c`: blocks of committed transactions replace those in place, unless the
//! same or a later transaction revokes them. A log ends at the first block that does not belong to
//! the next transaction.

use std::collections::BTreeMap;

use siltstone::{Error, ErrorKind, Result};

use super::crc32c::crc32c;
use super::inode::Run;

const MAGIC: u32 = 0xc03b_3998;
const DESCRIPTOR: u32 = 1;
const COMMIT: u32 = 2;
const SUPERBLOCK_V1: u32 = 3;
const SUPERBLOCK_V2: u32 = 4;
const REVOKE: u32 = 5;

const INCOMPAT_REVOKE: u32 = 0x1;
const INCOMPAT_64BIT: u32 = 0x2;
const INCOMPAT_CSUM_V2: u32 = 0x8;
const INCOMPAT_CSUM_V3: u32 = 0x10;

const TAG_ESCAPED: u32 = 0x1;
const TAG_SAME_UUID: u32 = 0x2;
const TAG_DELETED: u32 = 0x4;
const TAG_LAST: u32 = 0x8;

/// Most blocks that a log may hold, 4 GiB of them at 4 KiB; `mke2fs` makes up to 1 GiB.
const LOG_BLOCKS_MAX: u64 = 1 << 20;

/// The copy of a block in the journal.
#[derive(Clone, Copy, Debug)]
pub struct Logged {
    /// Where it is on the disk.
    pub block: u64,
    /// What its checksum must be, and the seed that it begins with.
    checksum: Option<(u32, Check)>,
    /// Whether its first four bytes were the journal's magic number, and were cleared.
    is_escaped: bool,
}

#[derive(Clone, Copy, Debug)]
enum Check {
    /// All of the sum.
    Whole(u32),
    /// Its lower half.
    Half(u16),
}

impl Logged {
    /// Makes of the bytes in the journal those that belong in place, once they are proven.
    pub fn restore(&self, bytes: &mut [u8]) -> Result<()> {
        if let Some((seed, check)) = self.checksum {
            let found = crc32c(seed, bytes);
            let is_right = match check {
                Check::Whole(expected) => found == expected,
                Check::Half(expected) => found & 0xffff == u32::from(expected),
            };
            if !is_right {
                let message = format!("block {} of the journal fails its checksum", self.block);
                return Err(Error::corrupt(message));
            }
        }
        if self.is_escaped {
            bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        }
        Ok(())
    }
}

/// Which blocks the journal has newer copies of.
#[derive(Debug, Default)]
pub struct Replay(BTreeMap<u64, Logged>);

impl Replay {
    pub fn get(&self, block: u64) -> Option<Logged> {
        self.0.get(&block).copied()
    }

    /// Whether any block from `first` up to `end` is in the journal.
    pub fn has_any(&self, first: u64, end: u64) -> bool {
        first < end && self.0.range(first..end).next().is_some()
    }
}

/// A log, block by block.
pub struct Log<'a> {
    /// The journal's file, whose blocks are numbered from 0.
    runs: Vec<Run>,
    block_bytes: u64,
    read: &'a dyn Fn(u64, &mut [u8]) -> Result<()>,
    first: u64,
    end: u64,
    start: u64,
    sequence: u32,
    incompat: u32,
    seed: u32,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Whether transaction `a` is `b` or later; the numbers wrap around.
fn is_since(a: u32, b: u32) -> bool {
    a.wrapping_sub(b) < 1 << 31
}

impl<'a> Log<'a> {
    /// Opens the log in the journal's file; `read` reads the disk.
    pub fn open(
        runs: Vec<Run>,
        block_bytes: u64,
        read: &'a dyn Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Self> {
        let mut log = Self {
            runs,
            block_bytes,
            read,
            first: 0,
            end: 1,
            start: 0,
            sequence: 0,
            incompat: 0,
            seed: !0,
        };
        let head = log.block(0)?;
        let kind = word(&head, 4);
        if word(&head, 0) != MAGIC || !matches!(kind, SUPERBLOCK_V1 | SUPERBLOCK_V2) {
            return Err(Error::corrupt("the journal has no superblock"));
        }
        if kind == SUPERBLOCK_V2 {
            log.incompat = word(&head, 0x28);
            log.seed = crc32c(!0, &head[0x30..0x40]);
        }
        let known = INCOMPAT_REVOKE | INCOMPAT_64BIT | INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3;
        let unknown = log.incompat & !known;
        if unknown != 0 {
            // Fast commits, and commits that do not wait for their blocks.
            let message = format!("the journal uses features that are not read: {unknown:#x}");
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if log.has_checksums() {
            let mut cleared = head[..1024].to_vec();
            cleared[0xfc..0x100].fill(0);
            if crc32c(!0, &cleared) != word(&head, 0xfc) {
                return Err(Error::corrupt("the journal's superblock fails its checksum"));
            }
        }
        log.end = u64::from(word(&head, 0x10));
        log.first = u64::from(word(&head, 0x14));
        log.sequence = word(&head, 0x18);
        log.start = u64::from(word(&head, 0x1c));
        let is_inside = log.start == 0 || (log.first..log.end).contains(&log.start);
        if u64::from(word(&head, 0xc)) != block_bytes || log.first == 0 || !is_inside {
            return Err(Error::corrupt("the journal's superblock contradicts itself"));
        }
        if log.end > LOG_BLOCKS_MAX {
            let message = format!("a journal of {} blocks is not read", log.end);
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        Ok(log)
    }

    fn has_checksums(&self) -> bool {
        self.incompat & (INCOMPAT_CSUM_V2 | INCOMPAT_CSUM_V3) != 0
    }

    /// Where a block of the journal is on the disk, as a block's number.
    fn place(&self, index: u64) -> Result<u64> {
        let offset = index * self.block_bytes;
        let behind = self.runs.partition_point(|run| run.offset <= offset);
        let run = behind.checked_sub(1).map(|before| self.runs[before]);
        let run = run.filter(|run| offset < run.offset + run.length);
        let missing = || Error::corrupt(format!("the journal has a hole at block {index}"));
        let run = run.ok_or_else(missing)?;
        Ok((run.at + offset - run.offset) / self.block_bytes)
    }

    fn block(&self, index: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.block_bytes).unwrap_or(0)];
        (self.read)(self.place(index)? * self.block_bytes, &mut bytes)?;
        Ok(bytes)
    }

    fn next(&self, index: u64, by: u64) -> u64 {
        let next = index + by;
        if next >= self.end { next - (self.end - self.first) } else { next }
    }

    /// Whether the checksum at the end of a descriptor or revoke block is right.
    fn tail_is_right(&self, block: &[u8]) -> bool {
        let at = block.len() - 4;
        let sum = crc32c(crc32c(self.seed, &block[..at]), &[0; 4]);
        !self.has_checksums() || sum == word(block, at)
    }

    fn commit_is_right(&self, block: &[u8]) -> bool {
        let sum = crc32c(crc32c(self.seed, &block[..16]), &[0; 4]);
        !self.has_checksums() || crc32c(sum, &block[20..]) == word(block, 16)
    }

    /// The tags of a descriptor block: the block's number, and its copy but for the place.
    fn tags(&self, block: &[u8], sequence: u32) -> Result<Vec<(u64, Logged)>> {
        let is_v3 = self.incompat & INCOMPAT_CSUM_V3 != 0;
        let is_64bit = self.incompat & INCOMPAT_64BIT != 0;
        let tag_bytes = match (is_v3, is_64bit) {
            (true, _) => 16,
            (_, wide) => {
                let half = if self.incompat & INCOMPAT_CSUM_V2 == 0 { 0 } else { 2 };
                if wide { 12 + half } else { 8 + half }
            }
        };
        let end = block.len() - if self.has_checksums() { 4 } else { 0 };
        let seed = crc32c(self.seed, &sequence.to_be_bytes());
        let (mut tags, mut at) = (Vec::new(), 12);
        while at + tag_bytes <= end {
            let (flags, check) = if is_v3 {
                (word(block, at + 4), Check::Whole(word(block, at + 12)))
            } else {
                let half = u16::from_be_bytes([block[at + 4], block[at + 5]]);
                (word(block, at + 4) & 0xffff, Check::Half(half))
            };
            let high = if is_64bit { u64::from(word(block, at + 8)) } else { 0 };
            let number = u64::from(word(block, at)) | high << 32;
            let logged = Logged {
                block: 0,
                checksum: self.has_checksums().then_some((seed, check)),
                is_escaped: flags & TAG_ESCAPED != 0,
            };
            // A deleted one still has its block in the log.
            tags.push((if flags & TAG_DELETED == 0 { number } else { u64::MAX }, logged));
            if flags & TAG_LAST != 0 {
                return Ok(tags);
            }
            at += tag_bytes + if flags & TAG_SAME_UUID == 0 { 16 } else { 0 };
        }
        Err(Error::corrupt("a descriptor of the journal has no end"))
    }

    fn revoked(&self, block: &[u8]) -> Result<Vec<u64>> {
        let used = usize::try_from(word(block, 12)).unwrap_or(usize::MAX);
        let end = block.len() - if self.has_checksums() { 4 } else { 0 };
        if !(16..=end).contains(&used) {
            return Err(Error::corrupt("a revoke block of the journal contradicts itself"));
        }
        let records = &block[16..used];
        Ok(if self.incompat & INCOMPAT_64BIT == 0 {
            records.chunks_exact(4).map(|record| u64::from(word(record, 0))).collect()
        } else {
            let number =
                |record: &[u8]| u64::from(word(record, 0)) << 32 | u64::from(word(record, 4));
            records.chunks_exact(8).map(number).collect()
        })
    }

    /// Whether a commit of transaction `sequence` follows: what was damaged before it was complete.
    fn commit_follows(&self, from: u64, sequence: u32) -> Result<bool> {
        let mut index = from;
        for _ in self.first..self.end {
            let block = self.block(index)?;
            let is_commit = word(&block, 0) == MAGIC && word(&block, 4) == COMMIT;
            if is_commit && word(&block, 8) == sequence && self.commit_is_right(&block) {
                return Ok(true);
            }
            index = self.next(index, 1);
        }
        Ok(false)
    }

    /// Reads the log from its start to its end.
    pub fn replay(&self) -> Result<Replay> {
        let mut replay = BTreeMap::new();
        if self.start == 0 {
            return Ok(Replay(replay));
        }
        // Transactions that were committed, and since when blocks are revoked.
        let mut committed: Vec<(u32, u64, Logged)> = Vec::new();
        let mut revoked: BTreeMap<u64, u32> = BTreeMap::new();
        let (mut pending, mut to_revoke) = (Vec::new(), Vec::new());
        let (mut index, mut sequence, mut seen) = (self.start, self.sequence, 0);
        while seen < self.end - self.first {
            let block = self.block(index)?;
            if word(&block, 0) != MAGIC || word(&block, 8) != sequence {
                break;
            }
            let here = index;
            (index, seen) = (self.next(index, 1), seen + 1);
            let (kind, tail_is_right) = (word(&block, 4), self.tail_is_right(&block));
            match kind {
                DESCRIPTOR if tail_is_right => {
                    for (number, mut logged) in self.tags(&block, sequence)? {
                        logged.block = self.place(index)?;
                        pending.push((sequence, number, logged));
                        (index, seen) = (self.next(index, 1), seen + 1);
                    }
                }
                REVOKE if tail_is_right => to_revoke.extend(self.revoked(&block)?),
                COMMIT if self.commit_is_right(&block) => {
                    committed.append(&mut pending);
                    revoked.extend(to_revoke.drain(..).map(|number| (number, sequence)));
                    sequence = sequence.wrapping_add(1);
                }
                DESCRIPTOR | REVOKE if self.commit_follows(index, sequence)? => {
                    let message = format!("block {here} of the journal fails its checksum");
                    return Err(Error::corrupt(message));
                }
                _ => break,
            }
        }
        for (transaction, number, logged) in committed {
            if revoked.get(&number).is_none_or(|since| !is_since(*since, transaction)) {
                replay.insert(number, logged);
            }
        }
        replay.remove(&u64::MAX);
        Ok(Replay(replay))
    }
}
