//! The coverage model: how much a popular set finds, from Zipf's law.

use crate::schemes::{Outcomes, Popular, efficiency};
use crate::trace::Trace;
use silt_report::{Line, Table, percent, plot};

/// What deduplication finds with a popular set of the share `sigma` of the different chunks, of
/// what a perfect scheme finds.
///
/// `left` is the share of all chunks that is left by deduplication inside each machine, `unique`
/// the share that is different: of the i-th most popular chunk there are copies in proportion to
/// i^-exponent.
pub fn modelled(sigma: f64, left: f64, unique: f64, exponent: f64) -> f64 {
    (1.0 - left + left * sigma.powf(1.0 - exponent) - sigma * unique) / (1.0 - unique)
}

/// The exponent that gives an efficiency at a share.
pub fn fitted(efficiency: f64, sigma: f64, left: f64, unique: f64) -> f64 {
    let covered = (efficiency * (1.0 - unique) - (1.0 - left) + sigma * unique) / left;
    1.0 - covered.ln() / sigma.ln()
}

/// A trace as measured, and by the model.
pub fn table(machines: &str, trace: &Trace, outcomes: &Outcomes) -> (Table, String) {
    let raw = trace.raw_chunks();
    let (unique, left) = (crate::schemes::unique(trace), outcomes.alone);
    let shares = (unique as f64 / raw as f64, left as f64 / raw as f64);
    let measured = |stored: u64| efficiency(raw, unique, stored);
    let at_2 = outcomes.popular.iter().find(|popular| popular.share == 0.02);
    let at_2 = at_2.map_or(0.0, |popular| measured(popular.stored));
    let exponent = fitted(at_2, 0.02, shares.1, shares.0);
    let mut table = Table::new(
        &format!("Efficiency over the share that is popular, {machines}, %"),
        &[
            "share %",
            "this trace, measured",
            "published (output)",
            "this trace, by the model (fitted at 2 % to what was measured)",
        ],
    );
    let published = [(0.02, 96.01), (0.04, 96.58)];
    let mut lines = [("by the model", false), ("published", true), ("this trace", false)].map(
        |(name, is_published)| Line { name: name.to_owned(), points: Vec::new(), is_published },
    );
    for Popular { share: sigma, stored, .. } in outcomes.popular.iter().copied() {
        let model = modelled(sigma, shares.1, shares.0, exponent);
        let reported = published.iter().find(|(share, _)| *share == sigma).map(|found| found.1);
        // What the model says beyond all duplicates is in the table alone.
        lines[0].points.extend((model <= 1.0).then_some((sigma * 100.0, model * 100.0)));
        lines[1].points.extend(reported.map(|value| (sigma * 100.0, value)));
        lines[2].points.push((sigma * 100.0, measured(stored) * 100.0));
        table.row(vec![
            format!("{}", sigma * 100.0),
            percent(measured(stored)),
            reported.map_or("-".to_owned(), |value| format!("{value:.2}")),
            percent(model),
        ]);
    }
    table.note(format!(
        "E(s) = [(1-d) + d s^(1-a) - s u] / (1-u), where d is the share of the data that \
         deduplication inside each machine leaves, u the share of different chunks, and a the \
         exponent of Zipf's law: d = {:.4}, u = {:.4}, a = {exponent:.3}, which is fitted at 2 % \
         to what was measured on this trace. The law goes on beyond the last duplicate, so that \
         the model exceeds what there is where much is popular.",
        shares.1, shares.0
    ));
    let plot = plot(
        &format!("Efficiency of a popular set, {machines}"),
        "popular chunks, % of the different ones",
        90.0,
        &lines,
    );
    (table, plot)
}

#[cfg(test)]
mod tests {
    use super::{fitted, modelled};

    /// Against chunks that are counted: so many with counts by the law, and a set of the first.
    #[test]
    fn the_model_counts_what_the_most_popular_chunks_have() {
        let (different, exponent): (u32, f64) = (200_000, 0.6);
        let counts: Vec<f64> =
            (1..=different).map(|rank| f64::from(rank).powf(-exponent)).collect();
        let copies: f64 = counts.iter().sum();
        // Of 10 million chunks, 2 million are left inside machines.
        let (raw, left) = (1e7, 2e6);
        for sigma in [0.01, 0.05, 0.2] {
            let popular = (f64::from(different) * sigma).round();
            let covered: f64 = counts.iter().take(silt_report::floor(popular)).sum();
            let stored = left - left * covered / copies + popular;
            let found = (raw - stored) / (raw - f64::from(different));
            let model = modelled(sigma, left / raw, f64::from(different) / raw, exponent);
            assert!((found - model).abs() < 0.002, "{sigma}: {found} for {model}");
            let again = fitted(model, sigma, left / raw, f64::from(different) / raw);
            assert!((again - exponent).abs() < 1e-9, "{again}");
        }
    }
}
