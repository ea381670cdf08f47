//! What deletions by summary vectors leave behind, counted by an exact sweep.

use std::sync::Arc;

use silt_format::{Id, SummaryGeometry};
use silt_storage::{DryRunStorage, MemoryStorage, Storage};
use siltstone::{DeleteMethod, DetectionOptions, Repository, SweepOptions};

use super::series::Change;
use crate::Result;
use crate::disk::Disk;
use crate::fleet::{back_up, reopened, repository};
use crate::trace::Machine;
use silt_report::{Line, Table, number, plot_values};

/// Snapshots that a series keeps (000, 002).
pub const KEPT: usize = 10;
/// The misjudgement of a vector that both papers and the product aim at.
pub const AIMED: f64 = 0.01;
/// Chunks that change together: ours.
const RUN: usize = 64;
/// Deletions of the table, but for the last: where 000 has measured.
const DELETIONS: [usize; 5] = [1, 3, 5, 7, 9];
const PUBLISHED: [(&str, &str); 5] =
    [("0.02", "0.01"), ("0.06", "0.055"), ("0.10", "0.09"), ("0.14", "0.12"), ("0.18", "0.15")];
/// The last, where 000 has measured, too: a place on the axis, which no figure follows from.
const MANY: usize = 245;

/// What is left behind after some deletions. Shares are of the chunks stored before the first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Leak {
    pub deletions: usize,
    /// R e du / (u + (h-1) du).
    pub predicted: f64,
    /// Dead chunks that no dead list has.
    pub leaked: u64,
    /// All dead chunks, as an exact sweep finds them.
    pub dead: u64,
    pub stored: u64,
    /// What the series expects by the bits of its vectors.
    pub forecast: f64,
}

impl Leak {
    pub fn measured(&self) -> f64 {
        self.leaked as f64 / self.stored as f64
    }
}

/// A series in memory with its snapshots.
pub struct Kept {
    storage: Arc<MemoryStorage>,
    repository: Repository,
    name: String,
    ids: Vec<Id>,
}

impl Kept {
    fn new(name: &str) -> Result<Self> {
        let storage = Arc::new(MemoryStorage::new());
        let repository = repository(storage.clone())?;
        Ok(Self { storage, repository, name: name.to_owned(), ids: Vec::new() })
    }

    fn add(&mut self, machine: &Machine, disk: &Disk<'_>, number: usize) -> Result<()> {
        let day = &machine.days[number];
        let backup = (&*self.name, disk, day);
        let all = DetectionOptions::default();
        self.ids.push(back_up(&self.repository, backup, number == 0, all)?.0);
        Ok(())
    }

    fn delete(&mut self, place: usize) -> Result<f64> {
        let id = self.ids.remove(place);
        let report = self.repository.delete(&self.name, &[id], DeleteMethod::Approximate)?;
        Ok(report.leak_share)
    }

    /// Leaked, dead and living chunks; nothing is repaired.
    fn sweep(&self) -> Result<[u64; 3]> {
        let storage: Arc<dyn Storage> = self.storage.clone();
        let dry = reopened(Arc::new(DryRunStorage::new(storage)))?;
        let swept = dry.sweep(&self.name, SweepOptions::default())?;
        Ok([swept.leaked_slots, swept.dead_slots, swept.slots - swept.dead_slots])
    }
}

fn predicted(change: &Change, deletions: usize) -> f64 {
    let (all, changed) = (change.chunks() as f64, change.changed() as f64);
    deletions as f64 * AIMED * changed / (all + (KEPT - 1) as f64 * changed)
}

/// Deletes all snapshots of a series but the oldest, newest first, as 000 does.
pub fn newest_first(change: &Change) -> Result<Vec<Leak>> {
    let machine = change.machine();
    let mut kept = Kept::new(&machine.name)?;
    let mut disk = Disk::of(&machine);
    for (number, day) in machine.days.iter().enumerate() {
        disk.change(day);
        kept.add(&machine, &disk, number)?;
    }
    let [_, _, stored] = kept.sweep()?;
    let mut leaks = Vec::new();
    for deletions in 1..machine.days.len() {
        let forecast = kept.delete(kept.ids.len() - 1)?;
        let [leaked, dead, _] = kept.sweep()?;
        let predicted = predicted(change, deletions);
        leaks.push(Leak { deletions, predicted, leaked, dead, stored, forecast });
    }
    Ok(leaks)
}

/// Adds a snapshot each day and deletes the oldest, as often as `change` has days beyond [`KEPT`].
pub fn rolling(change: &Change) -> Result<Leak> {
    let machine = change.machine();
    let mut kept = Kept::new(&machine.name)?;
    let mut disk = Disk::of(&machine);
    let mut leak = Leak::default();
    for (number, day) in machine.days.iter().enumerate() {
        disk.change(day);
        kept.add(&machine, &disk, number)?;
        if kept.ids.len() > KEPT {
            leak.deletions += 1;
            leak.forecast = kept.delete(0)?;
        }
    }
    [leak.leaked, leak.dead, leak.stored] = kept.sweep()?;
    leak.predicted = predicted(change, leak.deletions);
    Ok(leak)
}

/// The series of the table: 10 snapshots, of which 2.5 % change.
pub fn change(segments: usize, days: usize, seed: u64) -> Change {
    Change { segments, grown_segments: segments, days, share: 0.025, run: RUN, seed }
}

/// Sums of several series.
fn together(all: &[Vec<Leak>]) -> Vec<Leak> {
    let sum = |of: fn(&Leak) -> u64, at: usize| all.iter().map(|leaks| of(&leaks[at])).sum();
    let mean = |at: usize| all.iter().map(|leaks| leaks[at].forecast).sum::<f64>();
    let first = all.first().map_or(&[][..], Vec::as_slice);
    let leak = |(at, leak): (usize, &Leak)| Leak {
        leaked: sum(|leak| leak.leaked, at),
        dead: sum(|leak| leak.dead, at),
        stored: sum(|leak| leak.stored, at),
        forecast: mean(at) / all.len() as f64,
        ..*leak
    };
    first.iter().enumerate().map(leak).collect()
}

/// The table of leaks with its plot, and what 245 deletions left behind.
pub fn leaks(segments: usize) -> Result<(Table, String, Leak)> {
    let (few, many) = std::thread::scope(|scope| {
        let many = scope.spawn(|| rolling(&change(segments / 4, KEPT + MANY, 9)));
        let few: Result<Vec<Vec<Leak>>> =
            (1..=4).map(|seed| newest_first(&change(segments, KEPT, seed))).collect();
        (few, many.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (few, many) = (together(&few?), many?);
    let title = "Leaks of deletions by summary vectors, % of what is stored";
    let mut table = Table::new(
        title,
        &[
            "deletions",
            "by the formula",
            "published by the formula (output)",
            "forecast by the series",
            "counted",
            "published (output)",
            "dead chunks",
            "leaked chunks",
        ],
    );
    let share = |share: f64| format!("{:.3}", share * 100.0);
    let mut row = |leak: &Leak, published: (&str, &str)| {
        table.row(vec![
            leak.deletions.to_string(),
            share(leak.predicted),
            published.0.to_owned(),
            share(leak.forecast),
            share(leak.measured()),
            published.1.to_owned(),
            leak.dead.to_string(),
            leak.leaked.to_string(),
        ]);
    };
    for (deletions, published) in DELETIONS.into_iter().zip(PUBLISHED) {
        row(&few[deletions - 1], published);
    }
    row(&many, ("5", "4.1"));
    table.note(format!(
        "1 to 9: of ten snapshots, the newest is deleted first, as in the paper; four series of \
         {} chunks. {MANY}: a series of {} chunks with a new snapshot and a deletion of the \
         oldest each day. 2.5 % of the chunks change each day (input), in runs of {RUN}, and ten \
         snapshots are kept. Snapshots are deleted with the product, and an exact sweep that \
         repairs nothing counts what is left. Newest first, vectors hold fewer chunks from \
         deletion to deletion, so that fewer are misjudged than the formula says. Where changes \
         are spread over most segments, the product makes its vectors larger, and leaks less.",
        change(segments, 1, 1).chunks(),
        change(segments / 4, 1, 1).chunks()
    ));
    let line = |name: &str, is_published, of: &dyn Fn(usize) -> f64| Line {
        name: name.to_owned(),
        points: DELETIONS.iter().enumerate().map(|(at, d)| (*d as f64, of(at))).collect(),
        is_published,
    };
    let published = |at: usize| PUBLISHED[at].1.parse().unwrap_or(0.0);
    let at = |at: usize| &few[DELETIONS[at] - 1];
    let lines = [
        line("by the formula", false, &|place| at(place).predicted * 100.0),
        line("counted", false, &|place| at(place).measured() * 100.0),
        line("published", true, &published),
    ];
    let svg = plot_values(title, ("deletions", "leaks, %"), 0.0, &lines);
    Ok((table, svg, many))
}

/// Deletions until leaks pass a threshold: t/e (u + (h-1) du) / du.
pub fn intervals(many: &Leak) -> Table {
    let mut table = Table::new(
        "Repair interval: deletions until leaks reach a share of what is stored",
        &[
            "share %",
            "by the formula, 1 % misjudged",
            "published (output)",
            "with the misjudgement counted here",
        ],
    );
    let stored_over_changed = 1.0 / 0.025 + (KEPT - 1) as f64;
    let counted = many.leaked as f64 / many.dead as f64;
    for (share, published) in [(0.01, "-"), (0.05, "245"), (0.1, "19.6 days")] {
        table.row(vec![
            number(share * 100.0),
            number(share / AIMED * stored_over_changed),
            published.to_owned(),
            number(share / counted * stored_over_changed),
        ]);
    }
    table.note(format!(
        "R = t/e (u + (h-1) du) / du, with du/u = 2.5 % and h = 10. Counted: {:.2} % of the dead \
         chunks of {} deletions. The slides' 19.6 days at 10 % do not follow from the formula \
         with 1 %; they would with t/e = 0.4. `silt reclaim` sweeps at a forecast of 1 %.",
        counted * 100.0,
        many.deletions
    ));
    table
}

/// What vectors and an exact repair take for a machine of 40 GB.
pub fn vectors() -> Table {
    let mut table = Table::new(
        "Memory of deletion for a machine of 40 GB, ten million chunks",
        &["what", "MB", "published MB (output)"],
    );
    // The papers' own count of its chunks.
    let chunks = 10_000_000;
    let vector = SummaryGeometry::for_references(chunks);
    let part = SummaryGeometry { partitions: 4, partition_bytes: 1 << 20, ..vector };
    let mut row = |what: &str, bytes: f64, published: &str| {
        table.row(vec![what.to_owned(), number(bytes / 1e6), published.to_owned()]);
    };
    row("one whole summary vector", vector.bytes() as f64, "15");
    row("of it in memory at a time", part.bytes() as f64, "-");
    row("marks of an exact repair, a bit a chunk", chunks as f64 / 8.0, "85");
    table.note(
        "The first two are sizes that the product computes. The paper's repair holds 8 bytes and \
         a bit for each chunk; the product's references name a container and a slot, so that a \
         bit for each slot is enough, and containers are marked in windows where memory is less.",
    );
    table
}
