//! What copies of popular blocks cost, and which blocks survive.

use crate::availability::{lost, of_block};
use crate::schemes::{BLOCKS_SHARE, Outcomes};
use crate::trace::Trace;
use silt_report::{Line, Table, number, plot_values};

/// Copies of blocks that are not popular (000).
const COPIES: f64 = 3.0;
/// Raw snapshots of a host (000).
const HOST_RAW_GB: f64 = 10_000.0;

/// Disk space of a host by the number of copies of popular data, before compression.
pub fn cost(machines: &str, trace: &Trace, outcomes: &Outcomes) -> Table {
    let mut table = Table::new(
        &format!("Copies of popular data: GB of a host, {machines}"),
        &[
            "copies of popular data",
            "GB of a host of 10 TB",
            "more than with 3 copies %",
            "published GB (output)",
            "published % (output)",
        ],
    );
    let found = outcomes.popular.iter().find(|popular| popular.share == BLOCKS_SHARE);
    let (stored, shared) = found.map_or((0, 0), |popular| (popular.stored, popular.entries));
    let gb = |chunks: u64| chunks as f64 / trace.raw_chunks() as f64 * HOST_RAW_GB;
    let at = |copies: f64| gb(stored - shared) * COPIES + gb(shared) * copies;
    for (copies, published, more) in [
        (3.0, "3065", "0"),
        (4.0, "3072", "0.228"),
        (5.0, "3079", "0.457"),
        (6.0, "3086", "0.685"),
        (7.0, "3093", "0.914"),
        (9.0, "3107", "1.37"),
    ] {
        table.row(vec![
            format!("{copies}"),
            number(at(copies)),
            number((at(copies) / at(COPIES) - 1.0) * 100.0),
            published.to_owned(),
            more.to_owned(),
        ]);
    }
    table.note(format!(
        "Chunks that the product stored with {:.0} % popular, {:.2} % of them in the shared store, \
         scaled to 10 TB of raw snapshots a host; 3 copies of all others. The paper gives 3,065 \
         GB, 7 GB for each copy more, and 0.685 and 1.37 %; the other published values follow \
         from these. Before compression.",
        BLOCKS_SHARE * 100.0,
        shared as f64 / stored as f64 * 100.0
    ));
    table
}

/// Which file-system blocks survive, by the formula.
pub fn blocks() -> (Table, String) {
    let mut table = Table::new(
        "File-system blocks that survive failed hosts, %",
        &[
            "failed hosts",
            "3 copies, 100 hosts",
            "6 copies, 100 hosts",
            "9 copies, 100 hosts",
            "3 copies, 1000 hosts",
            "6 copies, 1000 hosts",
            "published",
        ],
    );
    for failed in [3, 5, 10, 20] {
        let at = |copies, hosts| format!("{:.6}", of_block(copies, failed, hosts) * 100.0);
        table.row(vec![
            failed.to_string(),
            at(3, 100),
            at(6, 100),
            at(9, 100),
            at(3, 1000),
            at(6, 1000),
            "-".to_owned(),
        ]);
    }
    table.note(
        "1 - C(d,r)/C(p,r), an exact count of placements. The paper refers to a table of these; \
         the text that we have does not contain it.",
    );
    // The blocks that survive are too near 100 %.
    let line = |(copies, hosts): (usize, usize)| Line {
        name: format!("{copies} copies, {hosts} hosts"),
        points: (copies..=20)
            .map(|failed| (failed as f64, lost(copies, failed, hosts).log10()))
            .collect(),
        is_published: false,
    };
    let lines = [(3, 100), (6, 100), (9, 100), (3, 1000), (6, 1000)].map(line);
    let names = ("failed hosts", "log10 of the share that is lost");
    (table, plot_values("File-system blocks that are lost", names, 0.0, &lines))
}
