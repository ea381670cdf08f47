//! Block traces in the text format of Florida International University's traces of deduplicated
//! input and output ("IODedup" at SNIA), such as `homes`, `mail` and `web-vm`: a line for each
//! request, and a file for each day.
//!
//! A line has `[ts in ns] [pid] [process] [lba] [size in 512 Bytes blocks] [Write or Read] [major
//! device number] [minor device number] [MD5 per 4096 Bytes]`; in the `homes` traces, the digests
//! are those of 512 bytes each. The digests of a request are written one after another.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use crate::Result;
use crate::measure::{Statistics, measure};
use crate::trace::{Day, Machine, Print, SEGMENT_CHUNKS, Segment, Trace};
use silt_report::{Table, draw, number, percent};

const DAY_NS: u64 = 86_400_000_000_000;
/// Sectors of a chunk.
const CHUNK_SECTORS: u64 = 8;
/// Hexadecimal digits of a digest.
const DIGITS: usize = 32;
/// Fields before and behind the process, whose name may have spaces.
const BEFORE: usize = 2;
const BEHIND: usize = 6;
/// The digests of 4,096 and of 512 bytes of zeros.
const ZEROS: [&str; 2] = ["620f0b67a91f7f74151bc5be745b7110", "bf619eac0cdf3f68d496ea9344137e8b"];
/// Devices of at most 8 TiB, so that a place fits.
const SECTORS_MAX: u64 = 1 << 34;

/// A request.
#[derive(Debug, PartialEq)]
struct Request {
    time_ns: u64,
    device: (u32, u32),
    /// The first chunk.
    chunk: u64,
    is_write: bool,
    prints: Vec<Print>,
}

/// Parses a line; says what is wrong with one that is no request.
fn parse(line: &str) -> std::result::Result<Request, &'static str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    if fields.len() <= BEFORE + BEHIND {
        return Err("has too few fields");
    }
    let [lba, sectors, operation, major, minor, digests] = fields[fields.len() - BEHIND..] else {
        return Err("has too few fields");
    };
    let whole = |text: &str| text.parse::<u64>().map_err(|_| "has a field that is no number");
    let (time_ns, lba, sectors) = (whole(fields[0])?, whole(lba)?, whole(sectors)?);
    let device = |text: &str| text.parse::<u32>().map_err(|_| "has no device numbers");
    let is_write = match operation {
        "W" | "w" | "Write" => true,
        "R" | "r" | "Read" => false,
        _ => return Err("neither reads nor writes"),
    };
    if sectors == 0 || !sectors.is_multiple_of(CHUNK_SECTORS) || lba >= SECTORS_MAX - sectors {
        return Err("has a size that is no multiple of 4096 bytes, or ends beyond 8 TiB");
    }
    Ok(Request {
        time_ns,
        device: (device(major)?, device(minor)?),
        // A partition may begin at any sector; its chunks are eight sectors apart.
        chunk: lba / CHUNK_SECTORS,
        is_write,
        prints: prints(digests, sectors)?,
    })
}

/// The fingerprints of the chunks of a request: those of 4,096 bytes, or eight digests together.
fn prints(digests: &str, sectors: u64) -> std::result::Result<Vec<Print>, &'static str> {
    let digits = digests.as_bytes();
    let count = digits.len() / DIGITS;
    if !digits.len().is_multiple_of(DIGITS) || !digits.iter().all(u8::is_ascii_hexdigit) {
        return Err("has digests that are not of 32 hexadecimal digits");
    }
    let of_chunk = match u64::try_from(count) {
        Ok(count) if count * CHUNK_SECTORS == sectors => 1,
        Ok(count) if count == sectors => 8,
        _ => return Err("has other digests than one for each 4096 or 512 bytes"),
    };
    let print = |chunk: &[u8]| {
        let chunk = chunk.to_ascii_lowercase();
        let mut digests = chunk.chunks(DIGITS);
        if digests.all(|digest| digest == ZEROS[usize::from(of_chunk > 1)].as_bytes()) {
            return 0;
        }
        chunk.iter().fold(0, |print: u64, digit| draw(print ^ u64::from(*digit))).max(1)
    };
    Ok(digits.chunks(DIGITS * of_chunk).map(print).collect())
}

/// What is known of a device.
#[derive(Default)]
struct Device {
    /// The first content of chunks that were read before they were written.
    first: HashMap<u64, Print>,
    /// Chunks that were written before they were read.
    unknown: HashSet<u64>,
    /// The last content written on each day.
    days: BTreeMap<usize, BTreeMap<u64, Print>>,
}

/// What a trace holds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Requests {
    pub reads: u64,
    pub writes: u64,
    /// Days from the first request to the last.
    pub days: usize,
    /// Chunks and segments that any request concerns.
    pub chunks: u64,
    pub segments: u64,
    /// Of those chunks, the ones whose content before the first write is known, from a read.
    pub known: u64,
    /// Segments written, the sum over days.
    pub dirty: u64,
    /// Runs of segments written, the sum over days.
    pub runs: u64,
}

impl Requests {
    /// The share of the segments that are written in a day, and how many in a row.
    pub fn changes(&self) -> (f64, f64) {
        let of = |part: u64, whole: u64| part as f64 / (whole as f64).max(1.0);
        let all = self.segments * u64::try_from(self.days).unwrap_or(u64::MAX);
        (of(self.dirty, all), of(self.dirty, self.runs))
    }
}

/// Reads the traces of several hosts: each path is a file, or a folder of one host's files in the
/// order of the numbers in their names. Each device is a machine of the trace that is returned.
/// The first day is what is known of its content before the first write.
///
/// # Errors
/// Fails with the file and line of what is no request.
pub fn read(paths: &[PathBuf]) -> Result<(Trace, Requests)> {
    let (mut trace, mut all) = (Trace::default(), Requests::default());
    for path in paths {
        let mut devices: BTreeMap<(u32, u32), Device> = BTreeMap::new();
        let days = read_host(path, &mut devices, &mut all)?;
        all.days = all.days.max(days);
        for ((major, minor), device) in devices {
            let name = format!("{} {major}:{minor}", path.display());
            trace.machines.push(device.machine(name, days, &mut all));
        }
    }
    Ok((trace, all))
}

/// Reads the files of a host; returns how many days they are of.
fn read_host(
    path: &Path,
    devices: &mut BTreeMap<(u32, u32), Device>,
    all: &mut Requests,
) -> Result<usize> {
    let (mut days, mut origin_ns) = (0, None);
    for file in files(path)? {
        // Times begin with the trace or, in a file that goes back in time, anew with a day.
        let mut shift = None;
        for (line, number) in BufReader::new(File::open(&file)?).lines().zip(1_u64..) {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            let place = |wrong| format!("{}: line {number} {wrong}", file.display());
            let request = parse(&line).map_err(place)?;
            let origin = *origin_ns.get_or_insert(request.time_ns);
            let day = usize::try_from(request.time_ns.saturating_sub(origin) / DAY_NS)?;
            let is_back = day + 1 < days || request.time_ns < origin;
            let shift = *shift.get_or_insert(if is_back { days } else { 0 });
            let day = day + shift;
            if day > 100_000 {
                return Err(place("is 100,000 days after the first").into());
            }
            days = days.max(day + 1);
            *if request.is_write { &mut all.writes } else { &mut all.reads } += 1;
            devices.entry(request.device).or_default().take(&request, day);
        }
    }
    if days == 0 {
        return Err(format!("{} has no requests", path.display()).into());
    }
    Ok(days)
}

/// A file itself, or those of a folder, by the numbers in their names.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files: Vec<(Vec<u64>, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbers = name.split(|digit: char| !digit.is_ascii_digit());
        files.push((numbers.filter_map(|number| number.parse().ok()).collect(), path));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

impl Device {
    fn take(&mut self, request: &Request, day: usize) {
        for (chunk, print) in (request.chunk..).zip(&request.prints) {
            if request.is_write {
                if !self.first.contains_key(&chunk) {
                    self.unknown.insert(chunk);
                }
                self.days.entry(day).or_default().insert(chunk, *print);
            } else if !self.unknown.contains(&chunk) {
                self.first.entry(chunk).or_insert(*print);
            }
        }
    }

    /// The machine, whose first day is the content before the first write, and each further one
    /// what a day has changed.
    fn machine(self, name: String, days: usize, all: &mut Requests) -> Machine {
        all.chunks += (self.first.len() + self.unknown.len()) as u64;
        all.known += self.first.len() as u64;
        let places = |chunks: &mut dyn Iterator<Item = u64>| {
            let mut places: Vec<u64> = chunks.map(|chunk| chunk / SEGMENT_CHUNKS as u64).collect();
            places.sort_unstable();
            places.dedup();
            places
        };
        let known = self.first.keys().chain(&self.unknown);
        all.segments += places(&mut known.copied()).len() as u64;
        let mut disk: BTreeMap<u32, Segment> = BTreeMap::new();
        let mut machine = Machine { name, days: vec![changed(&mut disk, &self.first)] };
        for day in 0..days {
            let written: HashMap<u64, Print> = self
                .days
                .get(&day)
                .into_iter()
                .flatten()
                .map(|(at, print)| (*at, *print))
                .collect();
            let dirty = places(&mut written.keys().copied());
            all.dirty += dirty.len() as u64;
            all.runs += dirty.chunk_by(|a, b| a + 1 == *b).count() as u64;
            machine.days.push(changed(&mut disk, &written));
        }
        machine
    }
}

/// Writes chunks to a disk; the segments that are others then.
fn changed(disk: &mut BTreeMap<u32, Segment>, chunks: &HashMap<u64, Print>) -> Day {
    let mut day = Day::default();
    for (chunk, print) in chunks {
        let place = chunk / SEGMENT_CHUNKS as u64;
        let (Ok(place), Ok(at)) =
            (u32::try_from(place), usize::try_from(chunk % SEGMENT_CHUNKS as u64))
        else {
            continue;
        };
        let empty = || vec![0; SEGMENT_CHUNKS].into_boxed_slice();
        let segment = disk.entry(place).or_insert_with(empty);
        if segment[at] != *print {
            segment[at] = *print;
            day.changed.insert(place, Segment::default());
        }
    }
    for (place, segment) in &mut day.changed {
        segment.clone_from(&disk[place]);
    }
    day
}

/// What a block trace holds, as a table beside that of its statistics.
pub fn table(name: &str, found: &Requests) -> Table {
    let mut table = Table::new(&format!("Requests of {name} (input)"), &["what", "value"]);
    let mut row = |what: &str, value: String| table.row(vec![what.to_owned(), value]);
    let (edited, run) = found.changes();
    row("days", found.days.to_string());
    row("reads", found.reads.to_string());
    row("writes", found.writes.to_string());
    row("chunks that any request concerns", found.chunks.to_string());
    row("of those, known before their first write %", {
        percent(found.known as f64 / (found.chunks as f64).max(1.0))
    });
    row("segments that any request concerns", found.segments.to_string());
    row("of those, written in a day %", percent(edited));
    row("written segments in a row", number(run));
    table.note(
        "Of a disk, a block trace knows only what is read or written. Changes are therefore of the \
         segments that any request concerns; the whole disk changes less. What a chunk held before \
         it was written is known if it was read before. The statistics count as the first day's \
         content what is known in that way.",
    );
    table
}

/// The public block traces that the generator's statistics could be taken from.
const PUBLIC: [&str; 3] = ["FIU homes, 21 days", "FIU mail, 21 days", "FIU web-vm, 21 days"];
/// The columns of the plot.
pub const SHOWN: [&str; 2] = ["segments that change in a day %", "changed segments in a row"];

/// The statistics of block traces beside those of other traces; public ones that are not given are
/// rows that say so.
pub fn compare(others: &[(String, Statistics)], paths: &[PathBuf]) -> Result<Table> {
    let mut table = Table::new(
        "Statistics of block traces beside those of the generator (input)",
        &[
            "trace",
            SHOWN[0],
            SHOWN[1],
            "exponent of Zipf's law",
            "repeated in the same disk %",
            "machines that have a chunk",
        ],
    );
    let mut add = |name: &str, found: &Statistics, (edited, run)| {
        let figures = [number(run), number(found.exponent), percent(found.repeated)];
        let cells = [name.to_owned(), percent(edited)].into_iter().chain(figures);
        table.row(cells.chain([number(found.sharing)]).collect());
    };
    for (name, found) in others {
        add(name, found, (found.edited, found.run));
    }
    for path in paths {
        let (trace, requests) = read(std::slice::from_ref(path))?;
        add(&path.display().to_string(), &measure(&trace), requests.changes());
    }
    if paths.is_empty() {
        for name in PUBLIC {
            let cells = [name, "not at hand: give it with --fiu", "-", "-", "-", "-"];
            table.row(cells.map(str::to_owned).to_vec());
        }
    }
    table.note(
        "Block traces of home directories, a mail server and web servers are public (SNIA, FIU \
         \"IODedup\"). Each user has to accept their licence, so they are not part of this \
         evaluation. `silt-eval measure --fiu` prints what they say; of a disk, a block trace \
         shows only the segments that were read or written.",
    );
    Ok(table)
}

#[cfg(test)]
mod tests;
