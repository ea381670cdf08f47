//! How often chunks occur, and how large volumes are: the plots of data in the slides.

use std::collections::HashMap;

use crate::spans::volume_sizes;
use crate::trace::{Print, Trace};
use silt_report::{Line, Table, number, plot_values};

/// Copies of the chunks of all first days, most first.
fn copies(trace: &Trace) -> Vec<u64> {
    let mut counts: HashMap<Print, u64> = HashMap::new();
    for day in trace.machines.iter().filter_map(|machine| machine.days.first()) {
        for print in day.changed.values().flat_map(|segment| segment.iter()) {
            if *print != 0 {
                *counts.entry(*print).or_default() += 1;
            }
        }
    }
    let mut counts: Vec<u64> = counts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

/// Ranks that are evenly spaced on a logarithmic axis.
fn ranks(most: usize) -> impl Iterator<Item = usize> {
    let powers = std::iter::successors(Some(1_usize), |power| power.checked_mul(10));
    powers.flat_map(|power| [power, 3 * power]).take_while(move |rank| *rank <= most)
}

/// Copies over ranks.
pub fn frequency(machines: &str, trace: &Trace) -> (Table, String) {
    let title = format!("Copies of chunks over their rank on the first day, {machines}");
    let mut table = Table::new(&title, &["rank", "copies", "first rank's over rank (002)"]);
    let counts = copies(trace);
    let first = counts.first().copied().unwrap_or(0) as f64;
    let (mut here, mut law) = (Vec::new(), Vec::new());
    for rank in ranks(counts.len()) {
        let (found, expected) = (counts[rank - 1] as f64, first / rank as f64);
        table.row(vec![rank.to_string(), number(found), number(expected)]);
        here.push(((rank as f64).log10(), found.log10()));
        law.push(((rank as f64).log10(), expected.max(1.0).log10()));
    }
    table.note(
        "The slides say that frequency is inversely proportional to rank; their curve is not in \
         the text. That statement is an input of the generator, so that the generated trace only \
         shows how it was made.",
    );
    let line = |name: &str, points| Line { name: name.to_owned(), points, is_published: false };
    let lines = [line("this trace", here), line("inversely proportional", law)];
    (table, plot_values(&title, ("log10 of rank", "log10 of copies"), 0.0, &lines))
}

/// Sizes of the published cluster's volumes over ranks, by the ratios of largest to mean.
pub fn sizes() -> (Table, String) {
    let title = "Sizes of volumes over their rank, GB";
    let mut table = Table::new(title, &["rank", "largest 20 times the mean", "45 times"]);
    let sizes = [20.0, 45.0].map(volume_sizes);
    let mut lines = ["20 times", "45 times"].map(|name| Line {
        name: name.to_owned(),
        points: Vec::new(),
        is_published: false,
    });
    for rank in ranks(sizes[0].len()) {
        let at = [&sizes[0], &sizes[1]].map(|all| all[rank - 1] / 1e9);
        for (line, size) in lines.iter_mut().zip(at) {
            line.points.push(((rank as f64).log10(), size));
        }
        table.row(vec![rank.to_string(), number(at[0]), number(at[1])]);
    }
    table.note(
        "2,500 volumes of 40 GB on average by Zipf's law, with the exponent that gives the ratio \
         (inputs: 002 gives 20 for 4,200 volumes and 45 for 8,000; its curves are not in the \
         text). The schedules below are of these sizes.",
    );
    (table, plot_values(title, ("log10 of rank", "GB"), 0.0, &lines))
}

#[cfg(test)]
mod tests {
    use super::{copies, ranks};
    use crate::generate::{Shape, generate};

    #[test]
    fn every_chunk_of_the_first_day_is_counted_once() {
        let trace = generate(&Shape { machines: 6, segments: 3, days: 2, ..Shape::default() });
        let counts = copies(&trace);
        let first: usize = trace.machines.iter().map(|m| m.days[0].changed.len() * 512).sum();
        assert_eq!(counts.iter().sum::<u64>(), first as u64);
        assert!(counts.is_sorted_by(|a, b| a >= b) && counts[0] > 1);
        assert_eq!(ranks(350).collect::<Vec<_>>(), [1, 3, 10, 30, 100, 300]);
    }
}
