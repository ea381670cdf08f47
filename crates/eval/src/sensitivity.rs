//! The efficiency of schemes over ranges of what is not known of the published machines.

use crate::Result;
use crate::generate::{Shape, generate};
use crate::schemes::in_brief;
use silt_report::{Table, number, percent};

/// Published: dirty bits, one signature, 2 % popular, stateless routing with binning.
const PUBLISHED: [f64; 4] = [79.70, 92.40, 96.01, 97.86];
/// Their columns.
pub const NAMES: [&str; 4] =
    ["dirty bits only", "one signature", "popular 2 %", "stateless routing with binning"];

type Change = fn(&mut Shape, f64);

/// Every statistic that is varied, by itself, and its values: ours, below and above what was
/// counted; the largest disk is 20 to 45 times the mean in the papers.
const VARIED: [(&str, &[f64], Change); 8] = [
    ("segments that change in a day", &[0.05, 0.12, 0.35], |shape, value| shape.edited = value),
    ("chunks of those that are others, mean", &[0.05, 0.2, 0.9], |shape, value| {
        shape.replaced = std::array::from_fn(|tenth| {
            // As unequal as was counted, at another mean.
            (value * 2.0 * (tenth as f64 + 0.5) / 10.0).min(1.0)
        });
    }),
    ("of those, moved", &[0.0, 0.25, 0.8], |shape, value| shape.moved = value),
    ("machines that have a chunk", &[1.2, 3.0, 6.0], |shape, value| shape.sharing = value),
    ("machines that get new data", &[2.0, 4.0], |shape, value| shape.update_sharing = value),
    ("exponent of Zipf's law", &[0.4, 0.7, 1.3], |shape, value| shape.exponent = value),
    ("largest disk, of the mean", &[5.0, 20.0], |shape, value| shape.skew = value),
    ("repeated in a disk", &[0.0, 0.25], |shape, value| shape.repeated = value),
];

/// The table, and by its notes which published values lie within.
pub fn table(base: &Shape) -> Result<Table> {
    let mut table = Table::new(
        &format!(
            "Sensitivity: efficiency %, {} generated machines of {} segments over {} days",
            base.machines, base.segments, base.days
        ),
        &["statistic", "value", NAMES[0], NAMES[1], NAMES[2], NAMES[3]],
    );
    let mut all: Vec<[f64; 4]> = Vec::new();
    let mut add = |name: &str, value: &str, shape: &Shape| -> Result<()> {
        let found = in_brief(&generate(shape))?;
        let cells = [name.to_owned(), value.to_owned()].into_iter();
        table.row(cells.chain(found.map(percent)).collect());
        all.push(found);
        Ok(())
    };
    add("all as counted", "-", base)?;
    for (name, values, change) in VARIED {
        for value in values {
            let mut shape = *base;
            change(&mut shape, *value);
            add(name, &number(*value), &shape)?;
        }
    }
    let published = PUBLISHED.map(|value| format!("{value:.2}"));
    let cells = ["published (output)".to_owned(), "-".to_owned()].into_iter();
    table.row(cells.chain(published).collect());
    for (at, name) in NAMES.into_iter().enumerate() {
        let values = || all.iter().map(|found| found[at] * 100.0);
        let (low, high) = (values().fold(f64::MAX, f64::min), values().fold(0.0, f64::max));
        let is_within = (low..=high).contains(&PUBLISHED[at]);
        table.note(format!(
            "{name}: from {low:.2} to {high:.2}; the published value, {:.2}, is {}.",
            PUBLISHED[at],
            if is_within { "within" } else { "not within" }
        ));
    }
    Ok(table)
}
