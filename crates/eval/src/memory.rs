//! Efficiency over the memory of an index: bins, the sampled index, and the popular set, whose
//! index is counted as the product writes it.

use crate::routed::{sampled, stored_chunks};
use crate::schemes::{Outcomes, efficiency, unique};
use crate::trace::Trace;
use silt_report::{Line, Table, number, percent};

const CHUNK_BYTES: f64 = 4096.0;
/// Bytes of an entry of the sampled index, as remembered of its paper.
const SAMPLED_ENTRY_BYTES: f64 = 22.0;
/// Bits of a Bloom filter for one false positive in a hundred: ln(100) / ln(2)^2.
pub const BLOOM_BITS: f64 = 9.59;
/// Rates of the sampled index, and bins: ours. The texts give neither.
const RATES: [u64; 6] = [1, 16, 64, 128, 256, 1024];
const BINS: [usize; 6] = [1, 16, 64, 256, 1024, 8192];
/// The rate at which the bytes in memory are counted, too, and the bins of the other tables, beside
/// which the published values stand.
const RATE_IN_MEMORY: u64 = 128;
const BINS_SHOWN: usize = crate::schemes::BINS;
/// Containers of 1,024 chunks whose fingerprints the sampled index caches: ours.
const CACHE: usize = 16;

/// A line of the table.
struct Row {
    name: String,
    stored: u64,
    /// Entries of the index, and its bytes.
    index: (u64, f64),
    /// Containers whose fingerprints are read for a dirty segment.
    fetched: Option<f64>,
    published: (&'static str, &'static str),
}

fn rows(trace: &Trace, outcomes: &Outcomes) -> Vec<Row> {
    let mut rows = Vec::new();
    for popular in &outcomes.popular {
        let published = match popular.share {
            0.02 => ("96.01", "85"),
            0.04 => ("96.58", "45"),
            _ => ("-", "-"),
        };
        rows.push(Row {
            name: format!("popular {} %, the index as stored", popular.share * 100.0),
            stored: popular.stored,
            index: (popular.entries, popular.index_bytes as f64),
            fetched: None,
            published,
        });
    }
    for rate in RATES {
        let found = sampled(trace, rate, CACHE);
        rows.push(Row {
            name: format!("sampled index, 1 in {rate}, 22 B an entry"),
            stored: found.stored,
            index: (found.entries, found.entries as f64 * SAMPLED_ENTRY_BYTES),
            fetched: Some(found.fetched),
            published: ("-", "-"),
        });
        if rate == RATE_IN_MEMORY {
            rows.push(Row {
                name: "the same, bytes of the table in memory".to_owned(),
                stored: found.stored,
                index: (found.entries, found.bytes as f64),
                fetched: Some(found.fetched),
                published: ("-", "-"),
            });
        }
    }
    for count in BINS {
        let (stored, entries) = stored_chunks(trace, count);
        rows.push(Row {
            name: format!("routing with {count} bins, Bloom filter of 1 % (formula)"),
            stored,
            index: (entries, entries as f64 * BLOOM_BITS / 8.0),
            fetched: None,
            published: if count == BINS_SHOWN { ("97.86", "4.2") } else { ("-", "-") },
        });
    }
    rows
}

/// The table, and a plot of efficiency over raw data for each byte of the index.
pub fn table(machines: &str, trace: &Trace, outcomes: &Outcomes) -> (Table, String) {
    let title = format!("Efficiency over the memory of the index, {machines}");
    let mut table = Table::new(
        &title,
        &[
            "scheme",
            "efficiency %",
            "published % (output)",
            "entries",
            "index KB",
            "raw data : index, thousands",
            "published (output)",
            "containers read for a segment",
        ],
    );
    let (raw, perfect) = (trace.raw_chunks(), unique(trace));
    let mut lines: Vec<Line> = ["popular", "sampled", "routing"]
        .map(|name| Line { name: name.to_owned(), points: Vec::new(), is_published: false })
        .into();
    for row in rows(trace, outcomes) {
        let found = efficiency(raw, perfect, row.stored);
        let ratio = raw as f64 * CHUNK_BYTES / row.index.1;
        if let Some(line) = lines.iter_mut().find(|line| row.name.starts_with(&line.name)) {
            line.points.push((ratio.log10(), found * 100.0));
        }
        table.row(vec![
            row.name,
            percent(found),
            row.published.0.to_owned(),
            row.index.0.to_string(),
            number(row.index.1 / 1e3),
            number(ratio / 1e3),
            row.published.1.to_owned(),
            row.fetched.map_or("-".to_owned(), number),
        ]);
    }
    let sampled = ["sampled index, published", "-", "97", "-", "-", "-", "20", "-"];
    table.row(sampled.map(str::to_owned).into());
    table.note(
        "Raw data: 4 KiB for each chunk of all days that is not zeros. Published: 10 TB for 118 MB \
         of memory (85,000 : 1), and 220 MB at 4 %; 500 TB for 25 GB of the sampled index (20,000 \
         : 1); 10 TB for 2.4 GB with bins. The popular set's index is what the product has \
         written to the storage; a host that holds it all in memory holds as much. Of the paper's \
         118 MB, 10 are buffers. How much a ratio says depends on how often data repeats: with \
         fewer days, every index is larger for the same raw data. Bins and the sampled index run \
         on the product's nodes (`crates/routing`), whose similarity to the published ones ends \
         where the text does: it gives neither the rate, nor how many bins there are, nor how \
         large the cache is (16 containers of 1,024 chunks here).",
    );
    // Thousands of bytes of raw data for a byte of the index, and the efficiency.
    let published = [(85.0, 96.01), (45.0, 96.58), (20.0, 97.0), (4.2, 97.86)]
        .map(|(thousands, efficiency): (f64, f64)| ((thousands * 1e3).log10(), efficiency));
    lines.push(Line {
        name: "published: popular, sampled, routing".to_owned(),
        points: published.to_vec(),
        is_published: true,
    });
    let svg = silt_report::plot_from(&title, "log10 of raw data : index", (3.0, 80.0), &lines);
    (table, svg)
}
