//! What the paper leaves open and this command leaves out, and where the paper contradicts itself.

use std::collections::BTreeMap;

use silt_report::Table;

use super::Options;
use super::tables::HANDPRINT;

/// What was chosen where the paper gives nothing.
pub fn parameters(options: &Options) -> Table {
    let mut table = Table::new("Parameters (input)", &["parameter", "here", "published"]);
    let node = silt_routing::NodeOptions::default();
    let rows: BTreeMap<&str, (String, &str)> = [
        ("super-chunk", ("1 MiB of one stream; Produck 15 MiB".to_owned(), "1 MB")),
        ("handprint", (HANDPRINT.to_string(), "8")),
        ("container", (format!("{} chunks", node.container_chunks), "not given")),
        ("cache of a lock", (format!("{} containers", node.cache_containers), "not given")),
        ("overloaded", ("5 % and 16/1024 above the mean".to_owned(), "not given")),
        ("candidates", ("rendezvous hashing; Sigma: modulo".to_owned(), "consistent hashing")),
        ("EMC stateful", ("1 fingerprint in 8, 1.05, 1.5".to_owned(), "as remembered")),
        ("different super-chunks a node", (options.super_chunks.to_string(), "not given")),
    ]
    .into();
    for (name, (here, published)) in rows {
        table.row(vec![name.to_owned(), here, published.to_owned()]);
    }
    table
}

/// What the paper shows and this command does not.
pub fn missing() -> Table {
    let mut table = Table::new("Not in this command", &["published", "why"]);
    let rows = [
        (
            "figure 5.2: bytes saved a second over the size of chunks",
            "needs bytes: `silt tune PATH` measures it, \
             [here](MEASURES.md#chunking-by-kind-of-file)",
        ),
        ("figure 5.5 for each set alone", "not run; the sets can be told apart in table 5.2"),
        (
            "content-defined chunks of the sets",
            "these are fingerprints; without bytes there is nothing to cut",
        ),
    ];
    for (published, why) in rows {
        table.row(vec![published.to_owned(), why.to_owned()]);
    }
    table
}

/// Where the text, the tables and the figures of the paper do not agree.
pub fn slips() -> Table {
    let mut table =
        Table::new("Where the paper contradicts itself", &["the paper", "what follows"]);
    let rows = [
        ("table 5.2: Produck's total is 2.84 GB", "its rows add up to 28.4 GB"),
        (
            "table 5.3: 41.8, 36.6 and 48.6 MB saved a second",
            "its own sizes and times give 41.1, 36.9 and 48.6",
        ),
        (
            "table 5.3: AppAware has NEDR 0.45 with DS 1.84",
            "with three nodes, the deviation is at most 1.06 of the mean, and NEDR at least 0.48",
        ),
        (
            "figure 5.5: AppDedupe's lead over EMC stateful \"narrows\" from 103.1 to 103.6 %",
            "it widens",
        ),
        ("figure 5.6: \"five schemes\"", "it shows six"),
        (
            "figure 5.1: best with as many streams as processors, and 6.2 GB/s beyond 8",
            "both are said; the curve decides",
        ),
        (
            "table 5.2: Sigma-Dedupe's 38.6 MB for VM, AppDedupe's 106.8 MB for video",
            "8 entries of 40 bytes for each MB of different chunks give less; not explained",
        ),
        ("section 5: headings 4.4 and 4.5", "they are of section 5"),
        (
            "\"algorithm 1\"",
            "the client's look-ups before routing; the director's choice is not listed in the text",
        ),
        (
            "not said",
            "cache and container sizes, bounds of content-defined chunks, the clients and clock of \
             table 5.3, who cuts video at 2 KB where memory is counted, and whether all schemes of \
             figure 5.5 have each application's own chunks",
        ),
    ];
    for (said, follows) in rows {
        table.row(vec![said.to_owned(), follows.to_owned()]);
    }
    table.note("Inputs and outputs: no constant here was fitted to a published output.");
    table
}
