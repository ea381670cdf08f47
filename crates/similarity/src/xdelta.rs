//! Deltas as copies and insertions, in the manner of Xdelta.
//!
//! A delta is a list of numbers as LEB128: `2n` is followed by `n` bytes to insert; `2n + 1` by the
//! place, in the base followed by the target, of `n` bytes to copy. A copy may overlap its own end.
//! Deltas in the store have this form (docs/FORMAT.md).

use silt_format::Result;

use crate::delta::{DeltaCoder, compression_failed, require_size, wrong};
use crate::mix::mix;

/// Size of the windows that are compared, in bytes: the shortest match.
const WINDOW: usize = 16;
/// Windows begin at every this many bytes of the base, and of what was inserted.
const STEP: usize = 4;
/// No place.
const NONE: u32 = u32::MAX;

/// Copies from the base, and from what the target repeats of itself; the rest is inserted.
pub struct XdeltaCoder {
    level: Option<i32>,
    /// Places of windows by their hashes.
    table: Vec<u32>,
}

impl XdeltaCoder {
    /// A coder whose deltas are compressed with this zstd level, or not at all.
    pub fn new(level: Option<i32>) -> Self {
        Self { level, table: Vec::new() }
    }

    /// The instructions for `target`.
    fn instructions(&mut self, base: &[u8], target: &[u8]) -> Vec<u8> {
        let slots = ((base.len() + target.len()) / STEP).next_power_of_two().max(16);
        self.table.clear();
        self.table.resize(slots, NONE);
        let last = base.len().saturating_sub(WINDOW - 1);
        for at in (0..last).step_by(STEP) {
            self.note(&base[at..], at);
        }
        let both = Both { base, target };
        let (mut to, mut pending, mut at) = (Vec::new(), 0, 0);
        while at + WINDOW <= target.len() {
            let found = self.table[self.slot(&target[at..])];
            let Some((from, start, length)) = both.longest(found, at, pending) else {
                if at.is_multiple_of(STEP) {
                    self.note(&target[at..], base.len() + at);
                }
                at += 1;
                continue;
            };
            insert(&target[pending..start], &mut to);
            number(2 * length as u64 + 1, &mut to);
            number(from as u64, &mut to);
            at = start + length;
            pending = at;
        }
        insert(&target[pending..], &mut to);
        to
    }

    fn slot(&self, window: &[u8]) -> usize {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&window[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        // Places fit into 32 bits, and so do slots.
        let [a, b, c, d, ..] = mix(word(0) ^ mix(word(8))).to_le_bytes();
        u32::from_le_bytes([a, b, c, d]) as usize & (self.table.len() - 1)
    }

    fn note(&mut self, window: &[u8], place: usize) {
        let slot = self.slot(window);
        self.table[slot] = u32::try_from(place).unwrap_or(NONE);
    }
}

/// The base followed by the target.
struct Both<'d> {
    base: &'d [u8],
    target: &'d [u8],
}

impl Both<'_> {
    /// Extends the match of what is at `place` and at `at` in the target both ways, back to
    /// `pending` at most. Returns where it begins there and in the target, and how long it is.
    fn longest(&self, place: u32, at: usize, pending: usize) -> Option<(usize, usize, usize)> {
        let place = place as usize;
        let (source, from, start) = if place < self.base.len() {
            (self.base, place, 0)
        } else {
            (self.target, place.checked_sub(self.base.len())?, self.base.len())
        };
        if from >= source.len() {
            return None;
        }
        let same = source[from..].iter().zip(&self.target[at..]);
        let forward = same.take_while(|(ours, theirs)| ours == theirs).count();
        if forward < WINDOW {
            return None;
        }
        let same = source[..from].iter().rev().zip(self.target[pending..at].iter().rev());
        let back = same.take_while(|(ours, theirs)| ours == theirs).count();
        Some((start + from - back, at - back, forward + back))
    }
}

fn number(mut value: u64, to: &mut Vec<u8>) {
    while value >= 0x80 {
        to.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    to.push(value.to_le_bytes()[0]);
}

fn insert(bytes: &[u8], to: &mut Vec<u8>) {
    if !bytes.is_empty() {
        number(2 * bytes.len() as u64, to);
        to.extend_from_slice(bytes);
    }
}

/// Takes a number off the front.
fn take_number(from: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = from.split_first()?;
        *from = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Carries instructions out; `None` if they are wrong.
fn carried_out(base: &[u8], mut from: &[u8], target: &mut [u8]) -> Option<()> {
    let mut at = 0_usize;
    while !from.is_empty() {
        let what = take_number(&mut from)?;
        let length = usize::try_from(what >> 1).ok()?;
        let end = at.checked_add(length).filter(|end| length > 0 && *end <= target.len())?;
        if what & 1 == 0 {
            let bytes = from.get(..length)?;
            target[at..end].copy_from_slice(bytes);
            from = &from[length..];
        } else {
            let place = usize::try_from(take_number(&mut from)?).ok()?;
            if let Some(bytes) = base.get(place..place.checked_add(length)?) {
                target[at..end].copy_from_slice(bytes);
            } else {
                let place = place.checked_sub(base.len()).filter(|place| *place < at)?;
                for offset in 0..length {
                    target[at + offset] = target[place + offset];
                }
            }
        }
        at = end;
    }
    (at == target.len()).then_some(())
}

impl DeltaCoder for XdeltaCoder {
    fn encode(&mut self, base: &[u8], target: &[u8], into: &mut Vec<u8>) -> Result<()> {
        require_size(base, target)?;
        let instructions = self.instructions(base, target);
        let Some(level) = self.level else {
            into.extend_from_slice(&instructions);
            return Ok(());
        };
        let packed = zstd::bulk::compress(&instructions, level).map_err(compression_failed)?;
        into.extend_from_slice(&packed);
        Ok(())
    }

    fn decode(&mut self, base: &[u8], delta: &[u8], target: &mut [u8]) -> Result<()> {
        require_size(base, target)?;
        let unpacked;
        let instructions = if self.level.is_some() {
            // An insertion between two copies makes a delta longer than its target by little.
            let most = 2 * target.len() + 64;
            unpacked = zstd::bulk::decompress(delta, most).map_err(|_| wrong())?;
            &unpacked
        } else {
            delta
        };
        carried_out(base, instructions, target).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_target_repeats_of_itself_is_copied() -> Result<()> {
        let once: Vec<u8> = (0..500_u64).flat_map(|at| mix(at + 1).to_le_bytes()).collect();
        let target = [&once[..], &[7; 1000], &once[..]].concat();
        let (mut coder, mut delta) = (XdeltaCoder::new(None), Vec::new());
        coder.encode(&[], &target, &mut delta)?;
        assert!(delta.len() < once.len() + 60, "{}", delta.len());
        let mut back = vec![0; target.len()];
        coder.decode(&[], &delta, &mut back)?;
        assert_eq!(back, target);
        Ok(())
    }

    #[test]
    fn matches_are_extended_both_ways() -> Result<()> {
        let base: Vec<u8> = (0..100_u64).flat_map(|at| mix(at + 1).to_le_bytes()).collect();
        let target = [b"xyz", &base[5..777]].concat();
        let mut delta = Vec::new();
        XdeltaCoder::new(None).encode(&base, &target, &mut delta)?;
        assert_eq!(delta[..4], [6, b'x', b'y', b'z']);
        // One copy of 772 bytes from place 5.
        assert_eq!(delta[4..], [0x89, 0x0c, 5]);
        Ok(())
    }

    /// The bytes of a stored delta, as docs/FORMAT.md has them; they must never change.
    #[test]
    fn the_stored_form_is_read_as_specified() -> Result<()> {
        let base: Vec<u8> = (0..200).collect();
        // Insert 2 bytes; copy 3 from place 130 of the base; copy 4 from the second byte inserted.
        let delta = [4, b'a', b'b', 7, 0x82, 0x01, 9, 0xc9, 0x01];
        let mut chunk = [0; 9];
        XdeltaCoder::new(None).decode(&base, &delta, &mut chunk)?;
        assert_eq!(chunk, [b'a', b'b', 130, 131, 132, b'b', 130, 131, 132]);
        // A copy that overlaps its own end repeats it.
        let mut chunk = [0; 5];
        XdeltaCoder::new(None).decode(&base, &[2, 7, 9, 0xc8, 0x01], &mut chunk)?;
        assert_eq!(chunk, [7; 5]);
        Ok(())
    }

    #[test]
    fn instructions_that_reach_too_far_are_refused() {
        let base = [1; 20];
        let wrong: [&[u8]; 8] = [
            &[],
            &[0],
            &[20, 1],
            &[21, 11],
            &[21, 20],
            &[21],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[21, 0, 21, 0],
        ];
        for delta in wrong {
            let decoded = XdeltaCoder::new(None).decode(&base, delta, &mut [0; 10]);
            assert!(decoded.is_err(), "{delta:?}");
        }
        let mut target = [0; 10];
        assert!(XdeltaCoder::new(None).decode(&base, &[21, 10], &mut target).is_ok());
        assert_eq!(target, [1; 10]);
    }
}
