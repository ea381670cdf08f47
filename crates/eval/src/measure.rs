//! Statistics of a trace: what the generator needs to know of real disks. None of them is a
//! result of a deduplication scheme.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::trace::{Machine, Print, SEGMENT_CHUNKS, Segment, Trace, chunks};
use silt_report::floor;
use silt_report::{Table, bars, number, percent};

/// What was counted on a trace. Shares are from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    /// Segments of the largest disk, of the mean.
    pub skew: f64,
    /// On the first day: in how many machines a chunk is that is in any, the mean.
    pub sharing: f64,
    /// The exponent of Zipf's law, by the slope of the chunks' counts over their ranks, both as
    /// logarithms. The counts are those of copies on all disks of the first day.
    pub exponent: f64,
    /// The same disk's first day: chunks of which it has another before.
    pub repeated: f64,
    /// Consecutive chunks of the first day that the same number of machines have, the mean.
    pub piece: f64,
    /// Segments that change in a day.
    pub edited: f64,
    /// Consecutive segments that have changed, the mean.
    pub run: f64,
    /// Of a changed segment, the share of chunks that are not as before at their place: deciles,
    /// the means of the tenths of the segments in rising order.
    pub replaced: [f64; 10],
    /// Of those chunks, the share that the machine had the day before at another place.
    pub moved: f64,
    /// The run of such chunks, which were in a row before, too, that one of them is in, the mean.
    pub moved_run: f64,
    /// Of those chunks, the share that is no part of the machine's disk of the day before, and
    /// more than once in what has changed.
    pub repeated_later: f64,
    /// Of chunks that are new to a machine after its first day: in how many machines they are new
    /// on any of these days, the mean.
    pub update_sharing: f64,
}

/// Sums for shares and means.
#[derive(Default)]
struct Counts {
    pieces: u64,
    piece_chunks: u64,
    segments: u64,
    dirty: u64,
    runs: u64,
    replaced: Vec<f64>,
    replaced_chunks: u64,
    moved: u64,
    /// The sum of the squares of the lengths of runs.
    moved_squares: u64,
    repeated_later: u64,
}

/// Counts the statistics of a trace. Zeros are no chunks.
pub fn measure(trace: &Trace) -> Statistics {
    let mut counts = Counts::default();
    let (mut first, mut later) = (HashMap::new(), HashMap::new());
    let (mut copies, mut all, mut different): (HashMap<Print, u64>, u64, u64) = Default::default();
    for machine in &trace.machines {
        let Some(day) = machine.days.first() else { continue };
        let mut own = HashSet::new();
        for print in prints(day.changed.values()) {
            *copies.entry(print).or_default() += 1;
            all += 1;
            own.insert(print);
        }
        different += own.len() as u64;
        own.into_iter().for_each(|print| *first.entry(print).or_insert(0_u64) += 1);
    }
    let mut sizes = Vec::new();
    for machine in &trace.machines {
        sizes.push(machine.days.first().map_or(0, |day| day.changed.len()));
        count_pieces(machine, &first, &mut counts);
        count_days(machine, &mut counts, &mut later);
    }
    let mean_size = sizes.iter().sum::<usize>() as f64 / sizes.len().max(1) as f64;
    let of = |part: u64, whole: u64| part as f64 / (whole as f64).max(1.0);
    Statistics {
        skew: sizes.iter().copied().max().unwrap_or(0) as f64 / mean_size.max(1.0),
        sharing: of(different, first.len() as u64),
        exponent: slope(copies.into_values().collect()),
        repeated: of(all - different, all),
        piece: of(counts.piece_chunks, counts.pieces),
        edited: of(counts.dirty, counts.segments),
        run: of(counts.dirty, counts.runs),
        replaced: deciles(counts.replaced),
        moved: of(counts.moved, counts.replaced_chunks),
        moved_run: of(counts.moved_squares, counts.moved),
        repeated_later: of(counts.repeated_later, counts.replaced_chunks),
        update_sharing: of(later.values().sum(), later.len() as u64),
    }
}

fn prints<'t>(segments: impl Iterator<Item = &'t Segment>) -> impl Iterator<Item = Print> {
    segments.flat_map(|segment| segment.iter().copied()).filter(|print| *print != 0)
}

/// Consecutive chunks that so many machines have.
fn count_pieces(machine: &Machine, machines_of: &HashMap<Print, u64>, counts: &mut Counts) {
    let Some(day) = machine.days.first() else { return };
    for segment in day.changed.values() {
        let shared: Vec<Option<&u64>> = segment.iter().map(|p| machines_of.get(p)).collect();
        let pieces = shared.chunk_by(|a, b| a == b).filter(|piece| piece[0].is_some());
        for piece in pieces {
            counts.pieces += 1;
            counts.piece_chunks += piece.len() as u64;
        }
    }
}

/// What the days after the first change. `later` counts the machines that get a chunk.
fn count_days(machine: &Machine, counts: &mut Counts, later: &mut HashMap<Print, u64>) {
    let mut disk: BTreeMap<u32, &Segment> = BTreeMap::new();
    let mut had: HashSet<Print> = HashSet::new();
    for (number, day) in machine.days.iter().enumerate() {
        if number > 0 {
            counts.segments += disk.values().filter(|segment| chunks(segment) > 0).count() as u64;
            let current = places(&disk);
            let mut row = Row::default();
            let mut today: HashSet<Print> = HashSet::new();
            let mut last = None;
            for (place, segment) in day.changed.iter().filter(|changed| chunks(changed.1) > 0) {
                counts.dirty += 1;
                counts.runs += u64::from(last.is_none_or(|last| last + 1 != *place));
                last = Some(*place);
                let before = disk.get(place).map_or(&[][..], |before| &before[..]);
                let other = |(at, print): (usize, &Print)| before.get(at) != Some(print);
                let changed = segment.iter().enumerate().filter(|(at, p)| other((*at, p)));
                let changed: Vec<Print> = changed.map(|(_, p)| *p).filter(|p| *p != 0).collect();
                counts.replaced.push(changed.len() as f64 / segment.len() as f64);
                counts.replaced_chunks += changed.len() as u64;
                for print in changed {
                    let from = current.get(&print).copied();
                    counts.moved_squares += row.next(from);
                    if from.is_some() {
                        counts.moved += 1;
                    } else if !today.insert(print) {
                        counts.repeated_later += 1;
                    } else if !had.contains(&print) {
                        *later.entry(print).or_default() += 1;
                    }
                }
            }
            counts.moved_squares += row.next(None);
        }
        disk.extend(day.changed.iter().map(|(place, segment)| (*place, segment)));
        had.extend(prints(day.changed.values()));
    }
}

/// Where the chunks of a disk are, counted in chunks; of several that are alike, the last.
fn places(disk: &BTreeMap<u32, &Segment>) -> HashMap<Print, u64> {
    let chunks = disk.iter().flat_map(|(place, segment)| {
        let first = u64::from(*place) * SEGMENT_CHUNKS as u64;
        (first..).zip(segment.iter().copied())
    });
    chunks.filter(|(_, print)| *print != 0).map(|(at, print)| (print, at)).collect()
}

/// Chunks that were in a row.
#[derive(Default)]
struct Row {
    last: Option<u64>,
    length: u64,
}

impl Row {
    /// Takes the next chunk, and where it was; returns the square of the length of a row that has
    /// ended.
    fn next(&mut self, from: Option<u64>) -> u64 {
        let goes_on = from.is_some() && from == self.last.map(|last| last + 1);
        let ended = if goes_on { 0 } else { std::mem::take(&mut self.length).pow(2) };
        self.length += u64::from(from.is_some());
        self.last = from;
        ended
    }
}

/// The means of the tenths, in rising order.
fn deciles(mut values: Vec<f64>) -> [f64; 10] {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    std::array::from_fn(|tenth| {
        let part = &values[count * tenth / 10..count * (tenth + 1) / 10];
        part.iter().sum::<f64>() / part.len().max(1) as f64
    })
}

/// The negative slope of ln(count) over ln(rank) by least squares, at ranks spaced evenly in their
/// logarithm, so that the many rare chunks do not decide alone. Ranks whose count is 1 are left
/// out: they are a floor, and no part of the law.
fn slope(mut counts: Vec<u64>) -> f64 {
    counts.sort_unstable_by(|a, b| b.cmp(a));
    let common = counts.iter().take_while(|count| **count > 1).count();
    let points = 200;
    let rank = |point: usize| floor((common as f64).powf(point as f64 / f64::from(points)));
    let points: Vec<(f64, f64)> = (0..=200)
        .map(rank)
        .filter(|rank| (1..=common).contains(rank))
        .map(|rank| ((rank as f64).ln(), (counts[rank - 1] as f64).ln()))
        .collect();
    let count = points.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let square = sum(&|point| (point.0 - x).powi(2));
    if square > 0.0 { -sum(&|point| (point.0 - x) * (point.1 - y)) / square } else { 0.0 }
}

/// The statistics of a trace, as a table, and a plot of what is replaced of changed segments.
pub fn table(name: &str, found: &Statistics) -> (Table, String) {
    let mut table = Table::new(&format!("Statistics of {name} (input)"), &["statistic", "value"]);
    let mut row = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
    row("segments of the largest disk, of the mean", number(found.skew));
    row("machines that have a chunk on the first day", number(found.sharing));
    row("exponent of Zipf's law, copies over ranks", number(found.exponent));
    row("repeated in the same disk on the first day %", percent(found.repeated));
    row("chunks in a row that as many machines have", number(found.piece));
    row("segments that change in a day %", percent(found.edited));
    row("changed segments in a row", number(found.run));
    let replaced = found.replaced.iter().sum::<f64>() / 10.0;
    row("chunks of a changed segment that are others %", percent(replaced));
    let tenths: Vec<String> = found.replaced.iter().map(|share| percent(*share)).collect();
    row("the same by tenths of the segments %", tenths.join(", "));
    row("of those, at another place the day before %", percent(found.moved));
    row("the row of moved chunks that one of them is in", number(found.moved_run));
    row("of those, more than once among what changed %", percent(found.repeated_later));
    row("machines that get a new chunk later", number(found.update_sharing));
    let title = format!("Chunks of changed segments that are others, by tenths of them, {name}");
    let tenths = (1..).zip(found.replaced);
    let groups: Vec<(String, Vec<f64>)> =
        tenths.map(|(tenth, share): (u32, f64)| (tenth.to_string(), vec![share * 100.0])).collect();
    (table, bars(&title, "%", &["chunks that are others"], &groups))
}
