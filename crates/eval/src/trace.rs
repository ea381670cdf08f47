//! Traces: the fingerprints of disks over days.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::Path;

use crate::Result;

/// Chunks of a segment: 2 MiB of 4 KiB chunks.
pub const SEGMENT_CHUNKS: usize = 512;
const MAGIC: &[u8; 8] = b"SILTTRC1";
const ZSTD_LEVEL: i32 = 1;

/// The first 8 bytes of a chunk's fingerprint; 0 is a chunk of zeros.
pub type Print = u64;

/// A segment: the fingerprints of its chunks. Segments of zeros are left out of days.
pub type Segment = Box<[Print]>;

/// What of a disk is not as the day before.
#[derive(Clone, Debug, Default)]
pub struct Day {
    /// Segments that have changed, by their place; an empty one has become zeros.
    pub changed: BTreeMap<u32, Segment>,
}

/// A disk over days; on the first all that is not zeros has changed.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    pub name: String,
    pub days: Vec<Day>,
}

/// Disks of several machines over the same days.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub machines: Vec<Machine>,
}

impl Trace {
    /// Days of every machine.
    pub fn days(&self) -> usize {
        self.machines.iter().map(|machine| machine.days.len()).min().unwrap_or(0)
    }

    /// Chunks of all days that are not zeros: what a scheme without deduplication stores.
    pub fn raw_chunks(&self) -> u64 {
        let mut all = 0;
        for machine in &self.machines {
            let mut disk: BTreeMap<u32, u64> = BTreeMap::new();
            for day in &machine.days {
                for (place, segment) in &day.changed {
                    disk.insert(*place, chunks(segment));
                }
                all += disk.values().sum::<u64>();
            }
        }
        all
    }

    /// Writes the trace to a file, compressed.
    pub fn write(&self, file: &Path) -> Result<()> {
        let out = BufWriter::new(File::create(file)?);
        let mut out = zstd::Encoder::new(out, ZSTD_LEVEL)?;
        out.write_all(MAGIC)?;
        put(&mut out, self.machines.len() as u64)?;
        for machine in &self.machines {
            put(&mut out, machine.name.len() as u64)?;
            out.write_all(machine.name.as_bytes())?;
            put(&mut out, machine.days.len() as u64)?;
            for day in &machine.days {
                put(&mut out, day.changed.len() as u64)?;
                for (place, segment) in &day.changed {
                    put(&mut out, u64::from(*place) << 16 | segment.len() as u64)?;
                    segment.iter().try_for_each(|print| put(&mut out, *print))?;
                }
            }
        }
        out.finish()?.flush()?;
        Ok(())
    }

    /// Reads a trace that [`Self::write`] wrote.
    pub fn read(file: &Path) -> Result<Self> {
        let mut bytes = zstd::Decoder::new(BufReader::new(File::open(file)?))?;
        let mut magic = [0; 8];
        bytes.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(format!("{} is no trace", file.display()).into());
        }
        let mut trace = Self::default();
        for _ in 0..get(&mut bytes)? {
            let length = get(&mut bytes)?.min(1 << 12);
            let mut name = vec![0; usize::try_from(length)?];
            bytes.read_exact(&mut name)?;
            let mut machine = Machine { name: String::from_utf8(name)?, days: Vec::new() };
            for _ in 0..get(&mut bytes)? {
                let mut day = Day::default();
                for _ in 0..get(&mut bytes)? {
                    let word = get(&mut bytes)?;
                    let (place, length) = (u32::try_from(word >> 16)?, word & 0xffff);
                    let prints: Result<Vec<Print>> = (0..length).map(|_| get(&mut bytes)).collect();
                    day.changed.insert(place, prints?.into_boxed_slice());
                }
                machine.days.push(day);
            }
            trace.machines.push(machine);
        }
        Ok(trace)
    }
}

/// How many chunks of a segment are not zeros.
pub fn chunks(segment: &[Print]) -> u64 {
    segment.iter().filter(|print| **print != 0).count() as u64
}

fn put(out: &mut impl Write, word: u64) -> Result<()> {
    Ok(out.write_all(&word.to_le_bytes())?)
}

fn get(bytes: &mut impl Read) -> Result<u64> {
    let mut word = [0; 8];
    bytes.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

#[cfg(test)]
mod tests {
    use super::Trace;
    use crate::generate::{Shape, generate};

    #[test]
    fn a_trace_is_read_as_it_was_written() -> crate::Result<()> {
        let trace = generate(&Shape { machines: 3, segments: 4, days: 3, ..Shape::default() });
        let file = tempfile::NamedTempFile::new()?;
        trace.write(file.path())?;
        let read = Trace::read(file.path())?;
        assert_eq!(read.raw_chunks(), trace.raw_chunks());
        let changed = |trace: &Trace| trace.machines[2].days[1].changed.clone();
        assert_eq!(changed(&read), changed(&trace));
        std::fs::write(file.path(), b"something else")?;
        assert!(Trace::read(file.path()).is_err());
        Ok(())
    }
}
