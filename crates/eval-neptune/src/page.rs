//! The text of the page, and the tables of what was chosen and what is missing.

use crate::destination::GROUPS;
use crate::set::{CREATED_WEIGHT, KIND_WEIGHT, OWNER_WEIGHT, SIZE_WEIGHT, WRITTEN_WEIGHT};
use silt_report::Table;

/// The first lines.
pub const HEAD: &str = "# Evaluation: similarity replication

This page compares similarity replication (Neptune, paper 004) with what it was compared with, on
real bytes, beside the published figures. One command makes it:
";

/// How figures are made.
pub const METHOD: &str = "## Method

Cutting, fingerprints, sketches, their index and cache, groups and coders are Siltstone's own code
(`silt-chunking`, `silt-similarity`), also where they are used in the paper's way. The protocol, the
destination's tables, EndRE and cluster-based deduplication are in `crates/eval/src/neptune`. Every
delta is decoded and compared with its chunk.

A set is a list of versions of files in rounds. Round 0 is at the destination before anything is
counted, as the published link is measured after an initial copy. The generated sets are drawn from
a seed: files of a kind, an owner and a size, some from templates, written again with insertions,
deletions, replacements and moves, or copied. Bytes are those to the destination: fingerprints,
sketches, names of bases, deltas and chunks. Times are of one thread on a shared machine.

";

/// What the paper shows and this command does not.
pub fn missing() -> Table {
    let mut table = Table::new("Not in this command", &["published", "why"]);
    let rows = [
        (
            "figure 8: 286.27, 57.26 and 1.57 Mb/s on a link of 2 Mb/s",
            "`silt-bench line` measures it with the product: [MEASURES](MEASURES.md#replication)",
        ),
        (
            "figure 9: 2.47 % of the processor at the source, 4.7 to 9.8 % at the destination",
            "the same command",
        ),
        (
            "disk I/O of about 4.5 %, fewer than 40 bytes of metadata a chunk",
            "of the published prototype's containers; fingerprint and sketch have 20 and 24 bytes",
        ),
        (
            "figure 11: 1,025 hours that became 18.5, the median of the users",
            "there are no users here whose replications could be counted; it is not reproduced",
        ),
        ("figure 6: time of deduplication", "no numbers are published; ours are beside figure 5"),
    ];
    for (published, why) in rows {
        table.row(vec![published.to_owned(), why.to_owned()]);
    }
    table
}

/// What was chosen where the paper gives nothing.
pub fn parameters() -> Table {
    let mut table = Table::new("Parameters", &["parameter", "here", "published", "label"]);
    let groups = format!(
        "{} tables of {} functions, width {}",
        GROUPS.tables, GROUPS.functions, GROUPS.width
    );
    let weights = format!(
        "doubled size {SIZE_WEIGHT}, creation {CREATED_WEIGHT} and last write {WRITTEN_WEIGHT} a \
         round, kind {KIND_WEIGHT}, owner {OWNER_WEIGHT}"
    );
    let rows = [
        ("chunks", "FastCDC of 2, 8 and 64 KiB", "8 KB", "input"),
        ("fingerprint", "20 bytes of keyed BLAKE3", "not given", "input"),
        ("sketch", "3 super-features of 4, Rabin over 32 bytes", "4 features each", "input"),
        ("vector of a file", &weights, "not given", "fitted: by the table of widths"),
        ("groups", &groups, "not given", "fitted: by the table of widths"),
        ("bases k", "4", "4, 4, 5, 6", "input"),
        ("base of several", "most super-features in common, both ends have it", "open", "input"),
        ("delta is sent", "if shorter than its chunk", "not given", "input"),
        ("container", "4.5 MiB", "4.5 MB", "input"),
        ("sketches, groups in memory", "of one chunk in 8", "12 MB (SIDC)", "input"),
        ("sources", "8; disks: one each", "128 servers", "input"),
        ("last compression", "zstd 3", "not given", "input"),
        ("EndRE", "window 32, period 64 or 32 to 512; training", "adaptive", "fitted: training"),
        ("CBD", "16 nodes, super-chunks of 1 MiB, 1 print in 8", "not given", "input"),
    ];
    for (name, here, published, label) in rows {
        table.row([name, here, published, label].map(str::to_owned).to_vec());
    }
    table.note(
        "Input: chosen before any run. Fitted: chosen by a result, which is then no evidence. All \
         that the other tables print is output unless they say otherwise.",
    );
    table
}
