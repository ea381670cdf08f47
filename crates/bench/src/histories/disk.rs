//! The disk of a series, and all states that it ever had.

use std::path::PathBuf;
use std::time::SystemTime;

use super::draw::Draw;
use crate::Result;

/// The unit of a disk's content.
const PIECE: usize = 64 << 10;
/// How many different pieces all disks have in common.
const COMMON: u64 = 24;

/// A state of a disk, by when it began.
struct State {
    since: SystemTime,
    bytes: Vec<u8>,
}

pub struct Disk {
    pub series: String,
    pub path: PathBuf,
    states: Vec<State>,
}

fn piece(seed: u64) -> Vec<u8> {
    let mut draw = Draw::new(seed);
    (0..PIECE / 8).flat_map(|_| draw.next().to_le_bytes()).collect()
}

/// A piece that other disks have too, one that none has, or a hole.
fn content(draw: &mut Draw) -> Vec<u8> {
    match draw.below(8) {
        0 => vec![0; PIECE],
        1..=5 => piece(draw.below(COMMON)),
        _ => piece(draw.next() | 1 << 63),
    }
}

impl Disk {
    pub fn new(series: &str, path: PathBuf, draw: &mut Draw) -> Result<Self> {
        let pieces = (1 + draw.below(4)) << 4;
        let bytes = (0..pieces).flat_map(|_| content(draw)).collect();
        let mut disk = Self { series: series.to_owned(), path, states: Vec::new() };
        disk.begin(bytes)?;
        Ok(disk)
    }

    /// A backup that reads the disk goes on with the state that it has opened: each is a file of
    /// its own.
    fn begin(&mut self, bytes: Vec<u8>) -> Result<()> {
        let new = self.path.with_extension("new");
        std::fs::write(&new, &bytes)?;
        // Before the change: who asks since then may find either.
        self.states.push(State { since: SystemTime::now(), bytes });
        std::fs::rename(new, &self.path)?;
        Ok(())
    }

    pub fn change(&mut self, draw: &mut Draw) -> Result<()> {
        let Some(last) = self.states.last() else { return Err("a disk has no state".into()) };
        let mut bytes = last.bytes.clone();
        for _ in 0..=draw.below(6) {
            let at = usize::try_from(draw.below((bytes.len() / PIECE) as u64))? * PIECE;
            let new = content(draw);
            // Whole pieces, and a part of one.
            let length = if draw.below(3) == 0 { 5000 } else { PIECE };
            bytes[at..at + length].copy_from_slice(&new[..length]);
        }
        self.begin(bytes)
    }

    /// Whether the disk had this state at `begun` or later.
    pub fn had(&self, bytes: &[u8], begun: SystemTime) -> std::result::Result<(), String> {
        let mut age = None;
        for (number, state) in self.states.iter().enumerate() {
            let is_past = self.states.get(number + 1).is_some_and(|next| next.since < begun);
            if state.bytes == bytes {
                if !is_past {
                    return Ok(());
                }
                age = Some(number);
            }
        }
        match age {
            Some(number) => Err(format!(
                "state {number} of {}, which was over when the backup began",
                self.states.len()
            )),
            None => Err("no state that the disk ever had".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_states_that_a_backup_can_have_read_are_believed() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let mut draw = Draw::new(1);
        let mut disk = Disk::new("vm", folder.path().join("vm.raw"), &mut draw)?;
        let first = std::fs::read(&disk.path)?;
        let begun = SystemTime::now();
        while std::fs::read(&disk.path)? == first {
            disk.change(&mut draw)?;
        }
        let second = std::fs::read(&disk.path)?;
        assert_eq!(disk.had(&first, begun), Ok(()));
        assert_eq!(disk.had(&second, begun), Ok(()));
        let later = SystemTime::now();
        assert_eq!(disk.had(&second, later), Ok(()));
        assert!(disk.had(&first, later).is_err_and(|found| found.contains("was over")));
        let mixed = [&first[..PIECE / 2], &second[PIECE / 2..], &[1]].concat();
        assert!(disk.had(&mixed, begun).is_err_and(|found| found.contains("ever had")));
        Ok(())
    }
}
