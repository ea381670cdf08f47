//! The schemes, each run over a whole trace.

mod exact;
mod local;
mod popular;
mod routed;

use crate::Result;
use crate::report::{Table, number, percent};
use crate::trace::Trace;

pub use local::{Search, after_search};
pub use popular::{Popularity, unique};

/// What a scheme leaves.
pub struct Outcome {
    pub name: String,
    /// Chunks that are stored.
    pub stored_chunks: u64,
    /// Entries of the index that the scheme holds in memory, of all machines together.
    pub index_entries: f64,
    /// The efficiency and the memory of a machine in MB that were published, if they were.
    pub published: (Option<f64>, Option<&'static str>),
}

/// The cluster that the papers report on: raw bytes, machines, bytes of an index entry.
const RAW_BYTES: f64 = 1e15;
const HOSTS: f64 = 100.0;
const ENTRY_BYTES: f64 = 40.0;
/// Bins of stateless routing for each host.
const BINS: u64 = 1024;

/// Runs all schemes.
pub fn run_all(trace: &Trace) -> Result<Vec<Outcome>> {
    let dirty = local::dirty_chunks(trace);
    let mut all = Vec::new();
    let mut push = |name: &str, stored_chunks, index_entries, published| {
        let name = name.to_owned();
        all.push(Outcome { name, stored_chunks, index_entries, published });
    };
    let unknown = (None, None);
    push("dirty bits only", dirty, 0.0, (Some(79.7), Some("-")));
    push("same place in the parent", count(trace, Search::SamePlace), 0.0, unknown);
    push(
        "similar segments, one signature",
        count(trace, Search::One),
        0.0,
        (Some(92.4), Some("10")),
    );
    push("similar segments, eight signatures", count(trace, Search::Eight), 0.0, unknown);
    let alone = Popularity::of(trace, Search::SamePlace);
    let stored = alone.stored(0.02);
    let entries = alone.entries(0.02);
    push("popular 2 %, no similarity", stored, entries, (Some(94.3), Some("108")));
    let popularity = Popularity::of(trace, Search::One);
    for (share, efficiency, memory) in [(0.02, 96.01, "118"), (0.04, 96.58, "190-220")] {
        let name = format!("popular {} %", share * 100.0);
        let published = (Some(efficiency), Some(memory));
        push(&name, popularity.stored(share), popularity.entries(share), published);
    }
    let routed = routed::stored_chunks(trace, BINS);
    push("stateless routing with binning", routed.0, routed.1 as f64, (Some(97.86), Some("2400")));
    let exact = exact::collaborative(trace, 4)?;
    push("collaborative, 4 rounds a day", exact, 0.0, (Some(100.0), Some("35-90")));
    let perfect = unique(trace);
    push("synchronous (perfect)", perfect, perfect as f64, (Some(100.0), Some("40")));
    Ok(all)
}

fn count(trace: &Trace, search: Search) -> u64 {
    let mut stored = 0;
    after_search(trace, search, &mut |_, _| stored += 1);
    stored
}

/// The table of efficiency beside what was published.
pub fn table(title: &str, trace: &Trace, outcomes: &[Outcome]) -> Table {
    let raw = trace.raw_chunks();
    let perfect = unique(trace);
    let mut table = Table::new(
        title,
        &[
            "scheme",
            "of raw left %",
            "data reduction %",
            "efficiency %",
            "published efficiency %",
            "index MB a host, scaled",
            "published MB",
        ],
    );
    for outcome in outcomes {
        let scaled =
            outcome.index_entries / raw as f64 * (RAW_BYTES / 4096.0) * ENTRY_BYTES / HOSTS;
        let efficiency = efficiency(raw, perfect, outcome.stored_chunks);
        let published = outcome.published.0.map_or("-".to_owned(), |value| format!("{value:.2}"));
        table.row(vec![
            outcome.name.clone(),
            percent(outcome.stored_chunks as f64 / raw as f64),
            percent(1.0 - outcome.stored_chunks as f64 / raw as f64),
            percent(efficiency),
            published,
            number(scaled / 1e6),
            outcome.published.1.unwrap_or("-").to_owned(),
        ]);
    }
    table
}

/// Of the duplicates that a perfect scheme removes, the share that is removed where so much is
/// stored.
pub fn efficiency(raw: u64, perfect: u64, stored: u64) -> f64 {
    (raw as f64 - stored as f64) / (raw as f64 - perfect as f64)
}

#[cfg(test)]
mod tests {
    use super::{efficiency, run_all, unique};
    use crate::generate::{Shape, generate};

    /// The published efficiencies, brought to one unit, within three points.
    #[test]
    fn the_calibrated_trace_has_the_published_shape() -> crate::Result<()> {
        let trace = generate(&Shape { machines: 120, segments: 16, ..Shape::default() });
        let (raw, perfect) = (trace.raw_chunks(), unique(&trace));
        for outcome in run_all(&trace)? {
            let Some(published) = outcome.published.0 else { continue };
            let measured = efficiency(raw, perfect, outcome.stored_chunks) * 100.0;
            let name = outcome.name;
            assert!((measured - published).abs() < 3.0, "{name}: {measured} for {published}");
        }
        Ok(())
    }

    #[test]
    fn sorted_runs_find_every_duplicate() -> crate::Result<()> {
        let trace = generate(&Shape { machines: 20, segments: 6, days: 4, ..Shape::default() });
        for rounds in [1, 3] {
            assert_eq!(super::exact::collaborative(&trace, rounds)?, unique(&trace));
        }
        Ok(())
    }
}
